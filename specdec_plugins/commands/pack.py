"""The command ``specdec-pack``: two fairseq checkpoints, dictionaries and BPE codes into one model folder."""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_plugins.commands.runner import Parser, command, out_of_range, whole
from specdec_plugins.settings import Fault
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.vocabulary import SPECIAL

if TYPE_CHECKING:
    from specdec_plugins.text.vocabulary import Vocabulary

DRAFTED = 0.99  # fraction of a text's tokens that can be drafted: benchmarks/README.md


def parser() -> Parser:
    p = Parser(prog="specdec-pack", description="Make a model folder from fairseq checkpoints, dictionaries and BPE codes.")
    p.add_argument("--verifier", required=True, metavar="PT", help="fairseq checkpoint of the autoregressive model")
    p.add_argument("--drafter", metavar="PT", help="fairseq checkpoint of the block drafter")
    p.add_argument("--data", required=True, metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    p.add_argument("--codes", metavar="FILE", help="BPE codes; without them the folder translates only subwords")
    p.add_argument("-s", "--source-lang", metavar="LANG", help="(default: the verifier's)")
    p.add_argument("-t", "--target-lang", metavar="LANG", help="(default: the verifier's)")
    p.add_argument("--block-size", type=whole, metavar="K", help="the folder's draft length (default: as trained)")
    p.add_argument("--draft-vocabulary", type=Path, metavar="TEXT",
                   help=f"draft only the tokens that make up {100 * DRAFTED:g} %% of this text in target subwords, such as "
                   "distilled/text/train.LANG of train.sh: cheaper, with nearly the same acceptance (default: all)")  # fmt: skip
    p.add_argument("--half", action="store_true", help="store weights in float16: half the size, slightly different numbers")
    p.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    return p


def check(options: argparse.Namespace) -> list[Fault]:
    faults = out_of_range(options, "block_size")
    needed = [name for name in ("block_size", "draft_vocabulary") if getattr(options, name) and not options.drafter]
    return faults + [(name, "requires --drafter") for name in needed]


def run(options: argparse.Namespace) -> None:
    """Make the folder and print its files. Raises ValueError or OSError."""
    import torch

    from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY
    from specdec_plugins.formats import folder as model_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    paths = options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes
    pair = model_folder.load_parts(*paths)
    if drafter := pair.drafter:
        drafter = replace(drafter, block_size=options.block_size or drafter.block_size)
        if options.draft_vocabulary:
            tokens = torch.tensor(frequent(options.draft_vocabulary, pair.target))
            drafter = replace(drafter, tensors={**drafter.tensors, DRAFT_VOCABULARY: tokens})
        pair = replace(pair, drafter=drafter)
    Translator(pair, Settings(strategy="specdec" if drafter else "ar"))  # raises if the pair cannot decode
    sizes = model_folder.save_folder(pair, options.output, options.half)
    model_folder.load_folder(options.output)
    total = sum(sizes.values())
    for name, size in [*sizes.items(), (options.output, total)]:
        print(f"{size / 1e6:8.2f} MB  {name}")


def frequent(path: Path, target: "Vocabulary") -> list[int]:
    """The special symbols and the fewest tokens that make up `DRAFTED` of a text, ascending.

    Raises ValueError if the file is empty or not in the vocabulary's subwords.
    """
    counts = Counter(symbol for line in read_lines(path) for symbol in line.split())
    left, unknown = DRAFTED * counts.total(), sum(count for symbol, count in counts.items() if symbol not in target.numbers)
    if not left or unknown > 0.01 * left:
        what = f"{unknown:,} of {counts.total():,} tokens are not in {target.path}" if left else "has no tokens"
        raise ValueError(f"--draft-vocabulary {path}: {what}")
    tokens = set(range(len(SPECIAL)))
    for symbol, count in counts.most_common():
        if left <= 0:
            break
        tokens.add(target.numbers.get(symbol, target.unknown))
        left -= count
    return sorted(tokens)


main = command(parser, run, check)

if __name__ == "__main__":
    sys.exit(main())
