"""Write a miniature of a summarisation corpus: made-up articles (``source``), and summaries of them (``target``).

An article tells in a few sentences of one event: who did what, where and when, among sentences about the weather, onlookers and
prices. Its summary has two short sentences: who did what where, and how the article says that it ended. Everything follows from
the seed, and no article occurs twice.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

LANGS = ("source", "target")
NAMES = ("Anna Brandt", "Luis Ortega", "Mei Tanaka", "Noah Okafor", "Zoë Lindqvist", "Ivan Petrov", "Salma Haddad", "Tom Reilly")
JOBS = ("a baker", "a retired nurse", "a bus driver", "a student", "a fisherman", "a violinist")
TOWNS = ("Oslo", "Graz", "Lyon", "Porto", "Leeds", "São Paulo", "Utrecht", "Cork")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
DEEDS = (  # past tense, and what it is called afterwards
    ("found a lost dog", "The dog is back with its owner"),
    ("won the lottery", "The money goes to a school"),
    ("opened a small museum", "The museum is free for children"),
    ("swam across the harbour", "The swim took forty minutes"),
    ("repaired an old clock tower", "The clock now strikes every hour"),
    ("stopped a runaway tram", "No one was hurt"),
)
FILLERS = (
    "The weather was {weather} that day.", "Hundreds of people watched from the {place}.",
    "Coffee there costs {price} euros a cup.",
    '"I have never seen anything like it," said {name}.', "The mayor of {town} was not available for comment.",
)  # fmt: skip


class Articles:
    """Draws articles and their summaries."""

    def __init__(self, seed: int):
        self.random = Random(seed)

    def filler(self) -> str:
        """A sentence that is not for the summary."""
        choose = self.random.choice
        return choose(FILLERS).format(
            weather=choose(("sunny", "cold", "windy", "grey")), place=choose(("bridge", "station", "market square")),
            price=f"{self.random.randrange(1, 6)}.{self.random.randrange(10)}0", name=choose(NAMES), town=choose(TOWNS),
        )  # fmt: skip

    def pair(self) -> tuple[str, str]:
        """An article and its summary."""
        choose = self.random.choice
        name, job, town, (deed, end) = choose(NAMES), choose(JOBS), choose(TOWNS), choose(DEEDS)
        sentences = [f"{name}, {job} from {choose(TOWNS)}, {deed} in {town} on {choose(DAYS)}."]
        sentences += [self.filler() for _ in range(self.random.randrange(2, 7))]
        sentences.insert(self.random.randrange(1, len(sentences) + 1), f"{end}, as {town}'s newspaper reports.")
        return " ".join(sentences), f"{name} {deed} in {town}. {end}."

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield pairs without end, never the same article twice."""
        seen = set()
        while True:
            article, summary = self.pair()
            if article not in seen:
                seen.add(article)
                yield article, summary


def write_corpus(folder: Path, seed: int = 1, train: int = 4000, val: int = 100, test: int = 100) -> None:
    """Write ``train``, ``val`` and ``test``, articles and summaries, with so many pairs each."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = Articles(seed).pairs()
    for split, count in (("val", val), ("test", test), ("train", train)):  # train last, so that its size changes no other
        for lang, lines in zip(LANGS, zip(*islice(pairs, count))):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    for split, count in (("train", 4000), ("val", 100), ("test", 100)):
        parser.add_argument(f"--{split}", type=int, default=count, metavar="N", help="pairs (default %(default)s)")
    options = parser.parse_args()
    write_corpus(options.output, options.seed, options.train, options.val, options.test)
