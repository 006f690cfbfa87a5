"""The command ``specdec-pack``: two fairseq checkpoints, dictionaries and BPE codes into one model folder."""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_plugins.text.vocabulary import Vocabulary

DRAFTED = 0.99  # of a text's tokens are drafted: benchmarks/README.md


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="specdec-pack",
        description="Make a model folder from fairseq checkpoints, dictionaries and BPE codes.",
        allow_abbrev=False,
    )
    parser.add_argument("--verifier", required=True, metavar="PT", help="fairseq checkpoint of the autoregressive model")
    parser.add_argument("--drafter", metavar="PT", help="fairseq checkpoint of the block drafter")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder with both dictionaries (dict.LANG.txt)")
    parser.add_argument("--codes", metavar="FILE", help="BPE codes; without them the folder translates only text in BPE")
    parser.add_argument("-s", "--source-lang", metavar="LANG", help="(default: the verifier's)")
    parser.add_argument("-t", "--target-lang", metavar="LANG", help="(default: the verifier's)")
    parser.add_argument(
        "--block-size", type=int, metavar="K", help="drafted tokens an iteration by default (default: as trained)"
    )
    parser.add_argument(
        "--draft-vocabulary", type=Path, metavar="TEXT",
        help=f"draft only the tokens that make up {100 * DRAFTED:g} %% of this text in the target's subwords, such as "
        "distilled/text/train.LANG of train.sh: cheaper, and nearly as much is accepted (default: draft all)",
    )  # fmt: skip
    parser.add_argument("--half", action="store_true", help="store weights in float16: half the size, slightly other numbers")
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    options = parser.parse_args(argv)
    try:
        for line in run(options):
            print(line)
    except (ValueError, OSError) as error:
        print(f"specdec-pack: error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> list[str]:
    """Make the folder; returns what to tell of it. Raises ValueError or OSError with one line that names what is wrong."""
    import torch

    from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY
    from specdec_plugins.formats import folder as model_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    paths = options.verifier, options.drafter, options.data, options.source_lang, options.target_lang, options.codes
    pair = model_folder.load_parts(*paths)
    if options.block_size is not None:
        Settings(block_size=options.block_size)  # raises if it cannot be
        if not pair.drafter:
            raise ValueError("--block-size is for a drafter: give --drafter, too")
        pair = replace(pair, drafter=replace(pair.drafter, block_size=options.block_size))
    if options.draft_vocabulary:
        if not pair.drafter:
            raise ValueError("--draft-vocabulary is for a drafter: give --drafter, too")
        tokens = torch.tensor(frequent(options.draft_vocabulary, pair.target))
        pair = replace(pair, drafter=replace(pair.drafter, tensors={**pair.drafter.tensors, DRAFT_VOCABULARY: tokens}))
    sizes = model_folder.save_folder(pair, options.output, options.half)
    Translator(model_folder.load_folder(options.output), Settings(strategy="specdec" if pair.drafter else "ar"))
    total = sum(sizes.values())
    return [*(f"{size / 1e6:8.2f} MB  {name}" for name, size in sizes.items()), f"{total / 1e6:8.2f} MB  {options.output}"]


def frequent(path: Path, target: "Vocabulary") -> list[int]:
    """The special symbols and the fewest tokens that make up `DRAFTED` of a text, ascending.

    Raises ValueError naming the file if it is empty or not in the vocabulary's subwords.
    """
    from specdec_plugins.text.lines import read_lines

    counts = Counter(symbol for line in read_lines(path) for symbol in line.split())
    left, strange = DRAFTED * counts.total(), sum(count for symbol, count in counts.items() if symbol not in target.numbers)
    if not left or strange > 0.01 * left:
        what = f"{strange:,} of {counts.total():,} tokens are not in {target.path}" if left else "has no tokens"
        raise ValueError(f"--draft-vocabulary {path}: {what}")
    tokens = set(range(len(target.SPECIAL)))
    for symbol, count in counts.most_common():
        if left <= 0:
            break
        tokens.add(target.numbers.get(symbol, target.UNKNOWN))
        left -= count
    return sorted(tokens)


if __name__ == "__main__":
    sys.exit(main())
