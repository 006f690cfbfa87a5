"""Make a corpus of corrections: passages with inserted errors (``xe``) and the originals (``en``).

The text is the English side of Multi30k. One word in ten gets an error that suits it:

    article dropped    a man in a green room -> a man in green room
    article changed    an man, a apple
    verb form          is and are, was and were, has and have, does and do
    final s            two boy, a boys: dropped or added if the training text has both forms
    letters swapped    gerat; never the first
    letter doubled     greeat
    letter dropped     gret; never the first

All other text can be copied. Errors depend on the caption, the seed, the rate and the words of the training text. Because texts
to correct are usually longer than a caption, a passage is a run of 1 to 4 consecutive captions, of different images; a caption
without a full stop ends its passage. Each training caption occurs three times, with different errors and in different
passages. `errors.json` records the counts.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from random import Random

import corpora

from specdec_plugins.commands import prepare
from specdec_plugins.commands.preparation import steps
from specdec_plugins.commands.preparation.pairs import find_text, write_pairs
from specdec_plugins.text.lines import read_lines

SOURCE, TARGET = "xe", "en"
RATE = 0.1  # fraction of words that get an error
LONGEST = 4  # captions in a passage: about 50 words
VERSIONS = {"train": 3, "valid": 1, "test": 1}  # uses of each caption, so that its errors vary
ARTICLES = ("a", "an", "the")
CHANGED = {"a": "an", "an": "a"}
VERBS = dict([*(pairs := [("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")]), *(pair[::-1] for pair in pairs)])
KINDS = ("article dropped", "article changed", "verb form", "final s", "letters swapped", "letter doubled", "letter dropped")
SHORTEST = 4  # letters in a misspelt word: shorter ones become unrecognisable
WORD = re.compile(r"(?<![\w'’-])[A-Za-z]+(?![\w'’-])")
OPTIONS = ("--tokenizer", "reversible", "--bpe-operations", "4000", "--max-ratio", "2.5")


# ---- errors


def kinds_for(word: str, known: Set[str]) -> list[str]:
    """The kinds of error that a word can get, repeated by weight. Articles and the verbs above are never misspelt."""
    lower = word.lower()
    if lower in ARTICLES:
        return ["article dropped", "article changed"] if lower in CHANGED else ["article dropped"]
    if lower in VERBS:
        return ["verb form"]
    kinds = ["final s"] * 3 if with_other_s(word) in known else []  # as likely as the three misspellings together
    if len(word) >= SHORTEST:
        kinds += ["letters swapped"] * (len(set(word[1:])) > 1) + ["letter doubled", "letter dropped"]
    return kinds


def with_other_s(word: str) -> str:
    """The word with a final s added or removed."""
    return word.removesuffix("s") if word.endswith("s") else word + "s"


def with_error(word: str, kind: str, random: Random) -> str:
    """The word with an error of that kind, always different from it; empty for a dropped article."""
    if kind == "article dropped":
        return ""
    if kind in ("article changed", "verb form"):
        other = (CHANGED if kind == "article changed" else VERBS)[word.lower()]
        return other.capitalize() if word[0].isupper() else other
    if kind == "final s":
        return with_other_s(word)
    if kind == "letters swapped":
        at = random.choice([i for i in range(1, len(word) - 1) if word[i] != word[i + 1]])
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    at = random.randrange(1, len(word))
    return word[:at] + (word[at] * 2 if kind == "letter doubled" else "") + word[at + 1 :]


def corrupt(caption: str, rate: float, seed: int | str, known: Set[str]) -> tuple[str, list[str]]:
    """The caption with errors in about `rate` of its words, fewer if too few words are eligible, and the errors' kinds.

    `known` holds the words whose form with or without a final s is accepted as a word.
    """
    random = Random(f"{seed} {caption}")
    words = list(WORD.finditer(caption))
    fit = [word for word in words if kinds_for(word[0], known)]
    number = sum(random.random() < rate for _ in words)
    made, parts, end = [], [], 0
    for word in sorted(random.sample(fit, min(number, len(fit))), key=lambda word: word.start()):
        kind = random.choice(kinds_for(word[0], known))
        parts += [caption[end : word.start()], with_error(word[0], kind, random)]
        end = word.end()
        if kind == "article dropped" and caption[end : end + 1] == " ":
            end += 1
        made.append(kind)
    return "".join([*parts, caption[end:]]), made


# ---- passages


def passages(
    captions: Iterable[str], rate: float, seed: int | str, known: Set[str], made: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield passages with and without errors; count passages, captions and errors by kind in `made`."""
    random = Random(f"{seed} passages")
    passage: list[tuple[str, str]] = []
    length = random.randint(1, LONGEST)
    for caption in captions:
        corrupted, kinds = corrupt(caption, rate, seed, known)
        passage.append((corrupted, caption))
        made.update(kinds)
        made.update({"captions": 1, "captions without": int(not kinds), "words": len(WORD.findall(caption))})
        if len(passage) == length or not caption.endswith("."):
            yield joined(passage, made)
            passage, length = [], random.randint(1, LONGEST)
    if passage:
        yield joined(passage, made)


def joined(passage: list[tuple[str, str]], made: Counter[str]) -> tuple[str, str]:
    """A passage's captions on one line, with and without errors."""
    source, target = (" ".join(side) for side in zip(*passage))
    made.update({"passages": 1, "passages without": int(source == target), "single captions": int(len(passage) == 1)})
    return source, target


def write_corpus(texts: dict[str, list[str]], folder: Path, rate: float, seed: int) -> dict[str, Counter[str]]:
    """Write ``SPLIT.xe`` and ``SPLIT.en`` of every split; returns the counts of each."""
    known = {word for caption in texts["train"] for word in WORD.findall(caption)}
    counts = {}
    for split, captions in texts.items():
        made = counts[split] = Counter(dict.fromkeys(KINDS, 0))
        seeds = [f"{seed} {split} {version}" for version in range(VERSIONS[split])]
        pairs = (pair for each in seeds for pair in passages(captions, rate, each, known, made))
        write_pairs([folder / f"{split}.{lang}" for lang in (SOURCE, TARGET)], pairs)
    return counts


def table(counts: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield the lines of a table: errors per 100 words by kind and split, then counts; "without" means without errors."""
    yield f"{'errors per 100 words':<20}" + "".join(f"{split:>10}" for split in counts)
    for kind in (*KINDS, "all"):
        errors = [sum(made[each] for each in (KINDS if kind == "all" else (kind,))) for made in counts.values()]
        yield f"{kind:<20}" + "".join(f"{100 * n / max(1, made['words']):>10.2f}" for n, made in zip(errors, counts.values()))
    for what in ("words", "captions", "captions without", "passages", "passages without", "single captions"):
        yield f"{what:<20}" + "".join(f"{made[what]:>10,}" for made in counts.values())


# ---- command line


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "data/correction.py", description="Prepare the corpus. Further options are those of specdec-prepare."
    )
    parser.add_argument("--local", type=Path, metavar="DIR", help="use Multi30k's English files from this folder")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=corpora.DATA / "prepared" / "correction",
        help="data set to write (default: data/prepared/correction)",
    )
    parser.add_argument(
        "--rate", type=prepare.share, default=RATE, help="fraction of words that get an error (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of errors and passages (default: %(default)s)")
    options, more = parser.parse_known_args(argv)
    source, pairs = options.output / "source", options.output / "pairs"

    def make() -> list[str]:
        captions = corpora.Corpus((TARGET,), corpora.multi30k().texts, ())
        prefixes = corpora.gather(captions, options.local, corpora.DATA / "downloads" / "multi30k", source)
        texts = {split: list(read_lines(find_text(prefix, TARGET))) for split, prefix in prefixes.items()}
        counts = write_corpus(texts, pairs, options.rate, options.seed)
        steps.write_json(options.output / "errors.json", {"rate": options.rate, "seed": options.seed, "counts": counts})
        print("\n".join(table(counts)), flush=True)
        return [*OPTIONS, *corpora.split_options({split: str(pairs / split) for split in texts}), *more]

    return corpora.prepare_made(parser.prog, (SOURCE, TARGET), options.output, make)


if __name__ == "__main__":
    sys.exit(main())
