"""Print a preset as assignments for a shell: ``python -m specdec_plugins.training.presets NAME [--recipe R] [--updates N]``."""

import argparse
import sys

from specdec_plugins.formats.errors import printable
from specdec_plugins.training import presets


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="presets")
    parser.add_argument("name")
    parser.add_argument("--recipe")
    parser.add_argument("--updates", type=int)
    options = parser.parse_args(argv)
    try:
        print(*presets.shell(presets.settings(options.name, options.recipe, options.updates)), sep="\n")
    except ValueError as error:
        print(printable(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
