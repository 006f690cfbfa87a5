"""The command ``specdec-average``: the average of the weights of several fairseq checkpoints of one model."""

import argparse
import sys

from specdec_plugins.commands import ready
from specdec_plugins.commands.runner import Parser, command
from specdec_plugins.formats.errors import printable


def parser() -> Parser:
    p = Parser(prog="specdec-average", description="Average the weights of fairseq checkpoints.")
    add = p.add_argument
    add("--inputs", nargs="+", required=True, metavar="PT", help="checkpoints of one model")
    add("--output", required=True, metavar="PT", help="checkpoint to write")
    return p


def run(options: argparse.Namespace) -> None:
    ready.readable(*options.inputs)
    ready.writable(options.output, parents=True)
    from specdec_plugins.formats import checkpoint

    checkpoint.save(checkpoint.average(options.inputs), options.output)
    print(f"{printable(options.output)}: average of {(count := len(options.inputs))} checkpoint{'s' * (count != 1)}")


main = command(parser, run)

if __name__ == "__main__":
    sys.exit(main())
