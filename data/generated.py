"""Shared by scripts that generate a corpus: unique pairs of lines, files, and the command line."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

Pair = tuple[str, str]


def without_repeats(make: Callable[[], Pair]) -> Iterator[Pair]:
    """Yield pairs forever, never the same source twice."""
    seen = set()
    while True:
        source, target = make()
        if source not in seen:
            seen.add(source)
            yield source, target


def write_corpus(folder: Path, make: Callable[[], Pair], langs: Pair, sizes: Mapping[str, int]) -> None:
    """Write ``SPLIT.LANG`` of every split in the order of ``sizes``; changing the last size changes no other split."""
    folder.mkdir(parents=True, exist_ok=True)
    made = without_repeats(make)
    for split, count in sizes.items():
        for lang, lines in zip(langs, zip(*islice(made, count))):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def main(description: str | None, pairs: Callable[[int], Callable[[], Pair]], langs: Pair, sizes: Mapping[str, int]) -> None:
    """Run the command line; ``pairs(seed)`` returns a function that makes pairs, and ``sizes`` are the default sizes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    for split, count in sizes.items():
        parser.add_argument(f"--{split}", type=int, default=count, metavar="N", help="pairs (default: %(default)s)")
    options = parser.parse_args()
    try:
        write_corpus(options.output, pairs(options.seed), langs, {split: getattr(options, split) for split in sizes})
    except OSError as error:
        parser.exit(1, f"{parser.prog}: error: {error.filename}: {error.strerror}\n")
