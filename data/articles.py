"""Write a miniature summarisation corpus: invented articles (``source``) and their summaries (``target``).

An article reports one event in a few sentences (who did what, where and when) among sentences about the weather, onlookers and
prices. Its summary has two short sentences: who did what where, and how it ended. Everything depends on the seed; no article
occurs twice.
"""

from random import Random

import generated

LANGS = ("source", "target")
NAMES = ("Anna Brandt", "Luis Ortega", "Mei Tanaka", "Noah Okafor", "Zoë Lindqvist", "Ivan Petrov", "Salma Haddad", "Tom Reilly")
JOBS = ("a baker", "a retired nurse", "a bus driver", "a student", "a fisherman", "a violinist")
TOWNS = ("Oslo", "Graz", "Lyon", "Porto", "Leeds", "São Paulo", "Utrecht", "Cork")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
DEEDS = (  # the deed in past tense, and its outcome
    ("found a lost dog", "The dog is back with its owner"),
    ("won the lottery", "The money goes to a school"),
    ("opened a small museum", "The museum is free for children"),
    ("swam across the harbour", "The swim took forty minutes"),
    ("repaired an old clock tower", "The clock now strikes every hour"),
    ("stopped a runaway tram", "No one was hurt"),
)
FILLERS = (
    "The weather was {weather} that day.",
    "Hundreds of people watched from the {place}.",
    "Coffee there costs {price} euros a cup.",
    '"I have never seen anything like it," said {name}.',
    "The mayor of {town} was not available for comment.",
)


class Articles:
    """Draws articles and their summaries."""

    def __init__(self, seed: int):
        self.random = Random(seed)

    def filler(self) -> str:
        """A sentence that the summary omits."""
        choose = self.random.choice
        return choose(FILLERS).format(
            weather=choose(("sunny", "cold", "windy", "grey")),
            place=choose(("bridge", "station", "market square")),
            price=f"{self.random.randrange(1, 6)}.{self.random.randrange(10)}0",
            name=choose(NAMES),
            town=choose(TOWNS),
        )

    def pair(self) -> tuple[str, str]:
        """An article and its summary."""
        choose = self.random.choice
        name, job, town, (deed, end) = choose(NAMES), choose(JOBS), choose(TOWNS), choose(DEEDS)
        sentences = [f"{name}, {job} from {choose(TOWNS)}, {deed} in {town} on {choose(DAYS)}."]
        sentences += [self.filler() for _ in range(self.random.randrange(2, 7))]
        sentences.insert(self.random.randrange(1, len(sentences) + 1), f"{end}, as {town}'s newspaper reports.")
        return " ".join(sentences), f"{name} {deed} in {town}. {end}."


if __name__ == "__main__":
    generated.main(__doc__, lambda seed: Articles(seed).pair, LANGS, {"val": 100, "test": 100, "train": 4000})
