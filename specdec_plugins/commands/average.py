"""Average the weights of several fairseq checkpoints of one model: ``python -m specdec_plugins.commands.average``."""

import argparse
import sys


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="specdec-average", description="Average the weights of fairseq checkpoints.")
    parser.add_argument("--inputs", nargs="+", required=True, metavar="PT", help="checkpoints of one model")
    parser.add_argument("--output", required=True, metavar="PT", help="where the average goes")
    options = parser.parse_args(argv)

    from specdec_plugins.formats import checkpoint  # after parsing: --help does not wait for torch

    try:
        checkpoint.save(checkpoint.average(options.inputs), options.output)
    except (ValueError, OSError) as error:
        print(f"specdec-average: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: average of {len(options.inputs)} checkpoints")
    return 0


if __name__ == "__main__":
    sys.exit(main())
