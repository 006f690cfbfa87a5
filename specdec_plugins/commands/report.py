"""The command ``specdec-report``: strategies x data types x batch sizes x beta and tau, over test sets, as tables and figures."""

import argparse
import math
import sys
from importlib.util import find_spec
from pathlib import Path

from specdec_plugins.commands.benchmark import check_measurement
from specdec_plugins.commands.progress import Steps
from specdec_plugins.commands.runner import run_command
from specdec_plugins.extras import install_command
from specdec_plugins.measure.machine import thread_choices
from specdec_plugins.measure.report import BASELINE, Matrix, Report, TestSet
from specdec_plugins.measure.runs import read_text
from specdec_plugins.measure.systems import DRAFTERLESS, DTYPES, SYSTEMS, System
from specdec_plugins.settings import Fault


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specdec-report", allow_abbrev=False,
        usage="%(prog)s --model DIR --test-set SOURCE REFERENCE --output DIR [option ...]",
        description="Measure a matrix of ways to decode, and write tables, figures and JSON. Run again, it goes on where it was.",
        epilog="Writes report.md, report.json, figures, and in cells/ what is measured. While a group is measured, each system "
        "has as many processes as cores, and fewer for each further number of threads; each process holds a model. Needs: "
        f"{install_command('bench')}. Exit status: 0 done; 1 bad input; 2 wrong options.",
    )  # fmt: skip
    names = [name for name in SYSTEMS if name != "specdec-tolerant"]
    p.add_argument("--model", required=True, metavar="DIR", help="model folder")
    p.add_argument("--test-set", required=True, nargs=2, action="append", metavar=("SOURCE", "REFERENCE"), help="may be repeated")
    p.add_argument("--output", required=True, metavar="DIR", help="folder for the report")
    p.add_argument("--sentences", type=int, metavar="N", help="only the first N of each test set")
    p.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    p.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="T", help=", ".join(DTYPES))
    p.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 4, 8, 16, 32], metavar="N", help="(default: 1 4 8 16 32)")
    p.add_argument("--block-sizes", nargs="+", metavar="K", help="of exact specdec (default: auto and the model's)")
    p.add_argument("--betas", nargs="*", type=int, default=[2, 3, 5], metavar="N", help="of tolerant specdec (default: 2 3 5)")
    p.add_argument("--taus", nargs="*", type=float, default=[0.5, 1.0, 2.0], metavar="X", help="nats (default: 0.5 1 2)")
    p.add_argument(
        "--threads", nargs="+", type=int, metavar="N", help="of a process: numbers to choose from (default: 1, 2, 4 .. all cores)"
    )
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    return p


def main(argv: list[str] | None = None) -> int:
    return run_command(parser(), argv, run, check, resumption="; the same command goes on after the last group that was finished")


def check(options: argparse.Namespace) -> list[Fault]:
    """What is wrong with the options, before anything is measured."""
    faults = check_measurement(options, DTYPES)
    if options.betas and min(options.betas) < 2:
        faults.append(("betas", f"{min(options.betas)} is less than 2, and 1 is exact"))
    faults += [("taus", f"{tau} is not a number of nats") for tau in options.taus if not 0 <= tau < math.inf]
    names = [Path(source).stem for source, _ in options.test_set]
    faults += [("test_set", f"has two of the name '{name}'") for name in dict.fromkeys(names) if names.count(name) > 1]
    if not find_spec("matplotlib"):
        faults.append(("output", f"needs matplotlib, which is not installed: {install_command('bench')}"))
    if "ctranslate2" in options.systems and not find_spec("ctranslate2"):
        faults.append(("systems", f"ctranslate2 is not installed: {install_command('bench')} (or leave it out)"))
    return faults


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, and write the report."""
    from specdec_plugins.formats.folder import load_folder
    from specdec_plugins.settings import Settings
    from specdec_plugins.translator import Translator

    pair = load_folder(options.model)
    reader = Translator(pair, Settings(strategy="ar", threads=1))
    systems = systems_of(options, pair.drafter is not None, pair.block_size)
    matrix = Matrix(
        options.model, systems, options.batch_sizes, options.threads or thread_choices(), options.rounds, options.sentences
    )
    test_sets = [
        TestSet(Path(source).stem, read_text(reader, source, reference, options.sentences), Path(source), Path(reference))
        for source, reference in options.test_set
    ]
    report = Report(Path(options.output), matrix, test_sets, reader)
    missing = report.missing
    cells = len(report.groups) * len(systems)
    print(f"{cells} cells in {len(report.groups)} groups, {len(missing)} groups to measure", file=sys.stderr)
    weights = [group.tokens / math.sqrt(group.workload.batch_size) for group in missing]  # about how long each takes
    with Steps(sum(weights)) as steps:
        for number, group in enumerate(missing):
            name = f"group {number + 1} of {len(missing)}, {group.test_set.name}"
            report.measure(group, steps.part(name, sum(weights[:number]), weights[number]))
    print(report.publish())


def systems_of(options: argparse.Namespace, drafter: bool, block_size: int) -> list[System]:
    """The systems, the baseline first."""
    blocks = options.block_sizes or ["auto", str(block_size)]
    found = [BASELINE]
    for name in options.systems:
        for dtype in ["float32"] if name.startswith("fairseq") else options.dtypes:
            if name == "specdec":
                found += [System(name, dtype, block) for block in blocks]
                found += [System("specdec-tolerant", dtype, None, beta, tau) for beta in options.betas for tau in options.taus]
            else:
                found.append(System(name, dtype))
    return [system for system in dict.fromkeys(found) if drafter or system.strategy in DRAFTERLESS]


if __name__ == "__main__":
    sys.exit(main())
