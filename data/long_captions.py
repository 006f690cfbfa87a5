"""Make a corpus of long documents from Multi30k's captions: one document of up to 4,500 tokens per line.

A document is a run of captions. Training documents have 2, 5, ... or 190 captions on average, varying from half to one and a
half times that. Documents of each size together have as many captions as Multi30k's training set: all of them, grouped
differently for each size, or with ``--mono`` a sample of these and further captions, so that few recur often enough to be
memorised. Their German side is the greedy translation of each caption by the shipped pair data/demo.en-de: a verifier that
continues from that pair learns to find its place in a document, not to translate. Captions whose translation has a repetition
loop (4 %) or that have several sentences are left out. All end with a full stop, at which training splits sentences
(specdec_plugins/criterions/document_loss.py). Validation and test documents keep the corpus's order and its own German side:
`valid` has documents of 64 captions, `test` single captions, and `test1` to `test4` 32, 64, 128 and 256.

Codes and dictionary are the pair's; its verifier becomes the checkpoint ``start.pt`` to continue from.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import corpora

from specdec_plugins.commands.preparation import steps
from specdec_plugins.commands.preparation.pairs import find_text, progress, write_pairs
from specdec_plugins.formats import checkpoint
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.formats.spec import fingerprint
from specdec_plugins.formats.to_fairseq import checkpoint_of
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

T = TypeVar("T")

LANGS = ("en", "de")
PAIR = corpora.DATA / "demo.en-de"
SIZES = (2, 5, 12, 30, 75, 190)  # captions per training document; 190 have about 2,700 subwords on each side
VALID, TESTS = 64, (1, 32, 64, 128, 256)
LONGEST = 4500  # subwords
LOOP = re.compile(r"(.{2,}?)\1\1")  # three repetitions
OPTIONS = (
    "--max-length",
    str(LONGEST),
    *"--max-ratio 2.5 --codes".split(),
    str(PAIR / "codes"),
    "--dict",
    str(PAIR / "dict.en.txt"),
)


def runs(captions: Sequence[T], size: int, random: Random) -> Iterator[Sequence[T]]:
    """Split captions into runs of ``size`` on average, each but the last of half to one and a half times that."""
    at = 0
    while at < len(captions):
        length = random.randint(size - size // 2, size + size // 2)
        yield captions[at : at + length]
        at += length


def training(pairs: Sequence[tuple[str, str]], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield training documents of captions and translations, from ``count`` captions for each size."""
    for size in SIZES:
        random = Random(f"{seed} {size}")
        yield from map(joined, runs(random.sample(pairs, count), size, random))


def in_order(pairs: Sequence[tuple[str, str]], size: int) -> Iterator[tuple[str, str]]:
    """Documents of ``size`` consecutive captions, without an incomplete last one."""
    return (joined(pairs[at : at + size]) for at in range(0, len(pairs) - size + 1, size))


def joined(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    source, target = (" ".join(map(closed, side)) for side in zip(*pairs))
    return source, target


def closed(caption: str) -> str:
    """The caption with a full stop, which one in twenty lacks; in a document, it would run into the next one."""
    caption = caption.rstrip()
    return caption if caption.endswith((".", "!", "?")) else f"{caption}."


def translated(pair: Pair, captions: Sequence[str], path: Path) -> list[str]:
    """The pair's translations of the captions, cached in ``path``."""
    mark, digest = path.with_suffix(".sha256"), steps.digest(fingerprint(pair.verifier), captions)
    if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == digest:
        return list(read_lines(path))
    mark.unlink(missing_ok=True)
    translator = Translator(pair, Settings(strategy="ar", dtype="auto"))
    texts = (translation.text for translation in translator.stream(captions, batch_size=64))
    lines = list(progress(texts, "translate", len(captions)))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    mark.write_text(digest, encoding="utf-8")
    return lines


def sound(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of one sentence each, without repetition loops in the translation."""
    return [pair for pair in pairs if not LOOP.search(pair[1]) and all(closed(side).count(".") == 1 for side in pair)]


def write_corpus(texts: dict[str, list[tuple[str, str]]], count: int, folder: Path, seed: int) -> list[str]:
    """Write the documents of every split to ``folder``; returns the options of specdec-prepare for them."""
    splits = {"train": training(texts["train"], count, seed), "valid": in_order(texts["valid"], VALID)}
    splits |= {f"test{number or ''}": in_order(texts["test"], size) for number, size in enumerate(TESTS)}
    for split, documents in splits.items():
        write_pairs([folder / f"{split}.{lang}" for lang in LANGS], documents)
    tests = ",".join(str(folder / split) for split in splits if split.startswith("test"))
    return ["--train", str(folder / "train"), "--valid", str(folder / "valid"), "--test", tests]


# ---- command line


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "data/long_captions.py", description="Prepare the corpus. Further options are those of specdec-prepare."
    )
    parser.add_argument("--local", type=Path, metavar="DIR", help="use Multi30k's files from this folder")
    parser.add_argument("--mono", type=Path, metavar="FILE", help="more English captions to train on, one per line, .gz allowed")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=corpora.DATA / "prepared" / "long",
        help="data set to write (default: data/prepared/long)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the grouping of captions (default: %(default)s)")
    options, more = parser.parse_known_args(argv)
    source, pairs = options.output / "source", options.output / "pairs"

    def make() -> list[str]:
        prefixes = corpora.gather(corpora.multi30k(), options.local, corpora.DATA / "downloads" / "multi30k", source)
        sides = {split: [list(read_lines(find_text(prefix, lang))) for lang in LANGS] for split, prefix in prefixes.items()}
        train, count = sides["train"], len(sides["train"][0])
        if options.mono:
            train[0] += read_lines(options.mono)
        pair = load_folder(PAIR)
        train[1] = translated(pair, train[0], options.output / "translated.de")
        for split, (english, german) in sides.items():
            if len(english) != len(german):
                raise ValueError(f"{prefixes[split]} has {len(english):,} lines in English, {len(german):,} in German")
        texts = {split: list(zip(*both)) for split, both in sides.items()}
        texts["train"] = sound(texts["train"])
        arguments = write_corpus(texts, min(count, len(texts["train"])), pairs, options.seed)
        verifier = checkpoint_of(pair.verifier)
        checkpoint.save({**checkpoint.untrained(), **verifier}, options.output / "start.pt")
        return [*OPTIONS, *arguments, *more]

    return corpora.prepare_made(parser.prog, LANGS, options.output, make)


if __name__ == "__main__":
    sys.exit(main())
