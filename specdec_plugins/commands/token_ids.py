"""Make fairseq's training data from a text and its translations, the JSON lines of ``specdec-translate --format json``.

python -m specdec_plugins.commands.token_ids --model FOLDER --sources TEXT --outputs JSON --output DIR
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from specdec_plugins.commands.runner import Parser, command
from specdec_plugins.formats.errors import printable


def pairs_of(codec, sources: Iterable[str], outputs: Iterable[str]) -> Iterator[tuple[list[int], list[int]]]:
    """The token ids of sources and their translations; none where a source was skipped."""
    for source, output in zip(sources, outputs):
        if tokens := json.loads(output)["tokens"]:
            yield codec.encode(source).ids, codec.target.ids(tokens)


def parser() -> Parser:
    p = Parser("token_ids")
    for name in ("model", "sources", "outputs", "output"):
        p.add_argument(f"--{name}", required=True, type=Path)
    return p


def run(options: argparse.Namespace) -> None:
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.text.lines import read_lines
    from specdec_plugins.training.token_ids import binarise

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # its import reports missing optional packages
    pair = load_folder(options.model)
    pairs = pairs_of(pair.codec, read_lines(options.sources), read_lines(options.outputs))
    written = binarise(pairs, (len(pair.source), len(pair.target)), options.output)
    print(f"{printable(options.output)}: {written['train']:,} pairs to train on, {written['valid']:,} to validate on")


main = command(parser, run)

if __name__ == "__main__":
    sys.exit(main())
