"""The command ``specdec-tune``: learn what drafts cost on this machine and how often they pass, as a start for ``auto``."""

import argparse
import sys
from itertools import islice
from pathlib import Path

from specdec_plugins.commands.demo import DATA
from specdec_plugins.commands.runner import less_than_one, run_command
from specdec_plugins.settings import DTYPES, Fault
from specdec_plugins.text.lines import read_lines

LINES = 16  # more tell little more about costs
BATCH_SIZES = (1, 4, 16, 64)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-tune",
        description="Measure what drafts cost and how often they are accepted, and write it to tuning.json in the model folder. "
        "Block size auto starts from it on this processor, with as many threads, this data type and this build. "
        "Nothing else should run meanwhile.",
        allow_abbrev=False,
    )
    p.add_argument("--model", required=True, type=Path, metavar="DIR", help="model folder, with a drafter")
    p.add_argument("--input", default=DATA / "demo.txt", type=Path, metavar="FILE", help="sentences (default: the demo's)")
    p.add_argument("--lines", default=LINES, type=int, metavar="N", help=f"so many of them (default: {LINES})")
    p.add_argument("--batch-sizes", nargs="+", default=list(BATCH_SIZES), type=int, metavar="N",
                   help=f"sentences at a time (default: {' '.join(map(str, BATCH_SIZES))})")  # fmt: skip
    p.add_argument("--rounds", default=3, type=int, metavar="N", help="times that everything is measured (default: 3)")
    p.add_argument("--device", default="cpu", metavar="D", help="as for specdec-translate, as are the following")
    p.add_argument("--dtype", choices=DTYPES, default="float32")
    p.add_argument("--threads", type=int, metavar="N")
    return p


def main(argv: list[str] | None = None) -> int:
    return run_command(parser(), argv, run, check)


def check(options: argparse.Namespace) -> list[Fault]:
    return less_than_one(options, "lines", "batch_sizes", "rounds", "threads")


def run(options: argparse.Namespace) -> None:
    """Measure, write, and print what was found. Raises ValueError or OSError with one line that names what is wrong."""
    from tabulate import tabulate

    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.measure.machine import machine, place
    from specdec_plugins.measure.tuned import read_tuning, write_tuning
    from specdec_plugins.measure.tuning import best_arms, learn
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import SourceTooLong, Translator

    # By number, from 1: empty lines are left out.
    lines = {number: line for number, line in enumerate(islice(read_lines(options.input), options.lines), 1) if line.strip()}
    if not lines:
        raise ValueError(f"{options.input}: no sentences")
    settings = Settings(block_size=1, device=options.device, dtype=options.dtype, threads=options.threads)
    translator = Translator(load_folder(options.model), settings)
    where = place(options.dtype, options.threads, options.device)
    read_tuning(options.model, where)  # a damaged file shows before the work
    try:
        learned = learn(translator, [*lines.values()], options.batch_sizes, options.rounds)
    except SourceTooLong as error:
        raise ValueError(f"{options.input}, line {[*lines][error.index]}: {error}") from None
    path = write_tuning(options.model, where, learned, machine()["date"])
    print(tabulate(best_arms(learned), headers="keys", tablefmt="github", floatfmt=".2f"))
    print(f"{path}: {where.processor}, {where.threads} threads, {where.dtype}, {where.build}")


if __name__ == "__main__":
    sys.exit(main())
