"""Turn parallel text into a data set for fairseq: tokenise, apply BPE, clean, binarise.

``specdec-prepare --source-lang en --target-lang de --train corpus/train --output DIR`` writes, for every split (``train``,
``valid``, ``test``, ``test1``, ...) and language:

    raw/      the input as plain text, one sentence per line
    tok/      the same, tokenised (Moses also normalises it)
    codes     the BPE codes, joint for both languages
    bpe/      subwords; pairs unfit for training are removed from ``train`` here
    bin/      what fairseq loads, for either direction, with one dictionary for both languages
    prepare.json, preprocess.log

``--mono FILE --codes FILE`` prepares source text for a verifier to translate, as far as ``bpe/mono.LANG``.

A run that ended early is resumed by the same command.
"""

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from specdec_plugins.commands.preparation.steps import Preparation
from specdec_plugins.commands.runner import Parser, command, number, out_of_range, whole
from specdec_plugins.cpus import usable_cpus
from specdec_plugins.extras import install_command
from specdec_plugins.fields import MOST, Fault
from specdec_plugins.text.tokenizers import BYTE_LEVEL, TOKENIZERS


def parser() -> Parser:
    p = Parser("specdec-prepare", description="Prepare parallel text for fairseq.")
    add, prefixes = p.add_argument, lambda value: value.split(",")
    add("--source-lang", required=True, metavar="LANG")
    add("--target-lang", required=True, metavar="LANG")
    add("--train", metavar="PREFIX[,...]", type=prefixes, help="training text: PREFIX.LANG or PREFIX.LANG.gz; parts are joined")
    add("--valid", metavar="PREFIX", help="validation text")
    add("--test", metavar="PREFIX[,...]", type=prefixes, help="test sets, named test, test1, ...")
    add("--mono", type=Path, metavar="FILE", help="instead of these: source text without translations; requires --codes")
    add("--output", required=True, type=Path, metavar="DIR", help="folder to fill")
    bpe = p.add_mutually_exclusive_group()
    bpe.add_argument("--bpe-operations", type=whole, default=32000, metavar="N", help="codes to learn (default: %(default)s)")
    bpe.add_argument("--codes", type=Path, metavar="FILE", help="use these BPE codes instead of learning them")
    bpe.add_argument("--bpe-applied", action="store_true", help="the text is subwords already: only clean and binarise it")
    add(
        "--tokenizer",
        choices=TOKENIZERS,
        default="moses",
        help="moses; reversible, for text with code; byte-level, the BPE of GPT-2 and BART, whose vocab.bpe goes to --codes "
        "(default: %(default)s)",
    )
    add(
        "--restyle",
        type=share,
        default=0,
        metavar="X",
        help="fraction of training pairs in which code gets backticks, and as many again get curly apostrophes (default: 0)",
    )
    add("--dict", type=Path, metavar="FILE", help="use this fairseq dictionary; requires its --codes or --bpe-applied")
    add("--dict-size", type=whole, metavar="N", help="keep only the N most frequent subwords")
    add(
        "--max-length",
        type=whole,
        metavar="N",
        help="longest training sentence in subwords; 0: any (default: 175; any with --bpe-applied)",
    )
    add(
        "--max-ratio",
        type=number,
        metavar="X",
        help="greatest length ratio of a training pair; 0: any (default: 1.5; any with --bpe-applied)",
    )
    add("--workers", type=whole, default=usable_cpus(), metavar="N", help="processes (default: %(default)s)")
    return p


def check(options: argparse.Namespace) -> Iterator[Fault]:
    """Everything that is wrong with the options."""
    yield from out_of_range(options, "bpe_operations", "dict_size", "workers")
    splits = options.train or options.valid or options.test
    if options.source_lang == options.target_lang:
        yield "source_lang", "and --target-lang are the same"
    if options.mono and (splits or not options.codes):
        yield "mono", "requires --codes and cannot be combined with --train, --valid or --test"
    if not (splits or options.mono):
        yield "train", "is missing: give --train, --valid, --test or --mono"
    if splits and not options.train and not (options.dict and (options.codes or options.bpe_applied)):
        yield "dict", "is required without --train, with --codes or --bpe-applied"
    if options.dict and not (options.codes or options.bpe_applied):
        yield "dict", "requires the --codes it was made with, or --bpe-applied"
    if options.restyle and (options.bpe_applied or options.mono):
        yield "restyle", "requires raw text in two languages"
    if options.dict_size and (options.dict or options.mono or options.tokenizer == BYTE_LEVEL):
        yield "dict_size", "cannot be combined with --dict, --mono or byte-level BPE"
    if not 0 <= (options.max_length or 0) <= MOST:
        yield "max_length", f"{options.max_length:,} is not a number from 0 to {MOST:,}"
    if not (options.max_ratio or 0) >= 0:
        yield "max_ratio", f"{options.max_ratio} is not a number from 0"


def share(value: str) -> float:
    """Parse a fraction that fits twice into 1."""
    if not 0 <= (parsed := number(value)) <= 0.5:
        raise argparse.ArgumentTypeError(f"'{value}' is not a number from 0 to 0.5")
    return parsed


def run(options: argparse.Namespace) -> None:
    if not find_spec("fairseq_cli"):  # fail now, not after hours of work
        raise ImportError(f"binarising needs fairseq, which is not installed; run: {install_command('train')}")
    if options.max_length is None:
        options.max_length = 0 if options.bpe_applied else 175
    if options.max_ratio is None:
        options.max_ratio = 0.0 if options.bpe_applied else 1.5
    Preparation(options).take_steps()


main = command(parser, run, check, resumption="; run the same command again to resume")

if __name__ == "__main__":
    sys.exit(main())
