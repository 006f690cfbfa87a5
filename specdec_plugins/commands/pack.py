"""The command ``specdec-pack``: fairseq checkpoints with dictionaries and codes, or a drafter, into a model folder."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import Parser, add_languages, command, out_of_range, print_sizes, whole
from specdec_plugins.fields import Fault
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.vocabulary import SPECIAL

if TYPE_CHECKING:
    from specdec_plugins.formats.folder import Pair
    from specdec_plugins.text.vocabulary import Vocabulary


def parser() -> Parser:
    p = Parser(prog="specdec-pack", description="Make a model folder from fairseq checkpoints, dictionaries and BPE codes.")
    add = p.add_argument
    add(
        "--verifier",
        required=True,
        metavar="PT|DIR",
        help="fairseq checkpoint of the autoregressive model, or the model folder that has it",
    )
    add("--drafter", metavar="PT|DIR", help="checkpoint or folder of the drafter (default: those of the model folder)")
    add("--add", action="store_true", help="keep the model folder's drafters of other kinds")
    add(
        "--devices",
        nargs="+",
        choices=("cpu", "cuda"),
        default=[],
        metavar="D",
        help="cpu, cuda: where this drafter is the folder's default (default: where no other is)",
    )
    add("--data", metavar="DIR", help="folder with both dictionaries (dict.LANG.txt); a model folder has its own")
    add("--codes", metavar="FILE", help="BPE codes; without them the folder translates only subwords")
    add_languages(add, "source language (default: the verifier's)", "target language (default: the verifier's)")
    add("--block-size", type=whole, metavar="K", help="the folder's draft length (default: as trained)")
    add(
        "--draft-vocabulary",
        type=Path,
        metavar="TEXT",
        help="draft only the tokens that make up 99 %% of this text of target subwords, such as "
        "distilled/text/train.LANG of train.sh: cheaper, about the same acceptance (default: as trained)",
    )
    add("--half", action="store_true", help="store weights in float16: half the size, slightly different numbers")
    add(
        "--dtype",
        nargs="+",
        choices=("int8", "int4"),
        default=[],
        metavar="D",
        help="int8, int4: also store the weights packed for this --dtype of other commands, which then start faster and share "
        "one copy in memory",
    )
    add(
        "--only",
        action="store_true",
        help="store layers only as --dtype packs them: a small folder, from which other data types compute with rounded weights",
    )
    add(
        "--calibrate",
        type=Path,
        metavar="TEXT",
        help="source text, one sentence per line, for which --dtype int4 rounds the weights best; 500 lines are enough",
    )
    add("--output", required=True, metavar="DIR", help="the folder to make")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    yield from out_of_range(options, "block_size")
    for name in ("block_size", "draft_vocabulary", "add", "devices"):
        if getattr(options, name) and not options.drafter:
            yield name, "requires --drafter"
    if options.only and len(options.dtype) != 1:
        yield "only", "requires --dtype with one data type"
    if options.calibrate is not None and "int4" not in options.dtype:
        yield "calibrate", "requires --dtype int4"
    if Path(options.verifier).is_dir():
        languages = () if options.calibrate else ("source_lang", "target_lang")  # of the text
        for name in ("data", "codes", *languages):
            if getattr(options, name):
                yield name, "cannot be combined with a model folder, which has its own"
        return
    if options.add:
        yield "add", "requires a model folder"
    if not options.data:
        yield "data", "is required with a checkpoint"


def run(options: argparse.Namespace) -> None:
    """Make the folder and print its files. Raises ValueError or OSError."""
    ready.new_folder(options.output)
    if Path(options.verifier).is_dir():
        ready.model(options.verifier)
    else:
        ready.readable(options.verifier, options.codes)
        ready.folder(options.data)
    if options.drafter and Path(options.drafter).is_dir() and Path(options.verifier).is_dir():
        ready.trained_drafter(options.drafter, options.verifier)
    else:
        ready.readable(options.drafter)
    ready.readable(options.draft_vocabulary, options.calibrate)
    import numpy as np

    from specdec_plugins.commands.packing import packed
    from specdec_plugins.decoding.loading import DRAFT_VOCABULARY
    from specdec_plugins.formats import folder as model_folder
    from specdec_plugins.formats.drafter_folder import default
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    pair = load(options)
    if drafter := pair.drafter:
        devices = tuple(options.devices) or drafter.devices
        drafter = replace(drafter, block_size=options.block_size or drafter.block_size, devices=devices)
        if options.draft_vocabulary:
            tokens = np.array(frequent_in(options.draft_vocabulary, pair.target), np.int64)
            drafter = replace(drafter, tensors={**drafter.tensors, DRAFT_VOCABULARY: tokens})
        pair = replace(pair, drafter=drafter)
    Translator(pair, Settings(strategy="specdec" if drafter else "ar"))  # raises if the pair cannot decode
    if options.dtype:
        pair = packed(pair, options.dtype, options.calibrate, (options.source_lang, options.target_lang))
    if pair.drafters:
        pair = pair.drafting(default(pair.drafters, "cpu"))  # comes first
    sizes = model_folder.save_folder(pair, options.output, options.half, options.dtype[0] if options.only else None)
    model_folder.load_folder(options.output)
    print_sizes(sizes, options.output)


def load(options: argparse.Namespace) -> "Pair":
    """The verifier, with the given drafter, or those of its folder."""
    from specdec_plugins.formats import checkpoint, fairseq
    from specdec_plugins.formats.folder import load_folder, load_parts, with_drafter
    from specdec_plugins.formats.spec import DrafterModel

    if not Path(options.verifier).is_dir():
        paths = options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes
        return load_parts(*paths)
    pair = load_folder(options.verifier)
    if not options.drafter:
        return pair
    folder = Path(options.drafter)
    drafter = with_drafter(pair, folder).drafter if folder.is_dir() else fairseq.read(checkpoint.load(folder), options.drafter)
    if not isinstance(drafter, DrafterModel):
        raise ValueError(f"--drafter {options.drafter} is not a drafter")
    return pair.drafting(drafter) if options.add else replace(pair, drafter=drafter, others=())


def frequent_in(path: Path, target: "Vocabulary") -> list[int]:
    """The special symbols and the most frequent tokens of a text, ascending.

    Raises ValueError if the file is empty or not in the vocabulary's subwords.
    """
    from specdec_plugins.decoding.loading import frequent

    counts = Counter(symbol for line in read_lines(path) for symbol in line.split())
    total, unknown = counts.total(), sum(count for symbol, count in counts.items() if symbol not in target.numbers)
    if not total or unknown > 0.01 * total:
        what = f"{unknown:,} of {total:,} tokens are not in {target.path}" if total else "has no tokens"
        raise ValueError(f"--draft-vocabulary {path}: {what}")
    numbers = Counter[int]()
    for symbol, count in counts.items():
        numbers[target.numbers.get(symbol, target.unknown)] += count
    return frequent(numbers, range(len(SPECIAL)))


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
