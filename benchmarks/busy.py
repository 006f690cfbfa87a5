#!/usr/bin/env python3
"""What a busy machine costs: the default number of threads beside other processes, against one thread.

    benchmarks/busy.py --input TEXT [--model data/demo.en-de] [--sentences 40] [--rounds 7]

Sentences are decoded one at a time by processes that stay loaded; what is compared takes turns, and a figure is a median of the
rounds. Situations:

    busy N      N processes beside it that do nothing but compute; ratio: seconds with the default number of threads to those
                with one thread
    quota       a control group with the CPU time of one CPU; ratio as before. Needs the right to make one: else it is left out
    together    two translators at once, both with the default number of threads; ratio: seconds for both to those for one after
                the other

Prints a table, and as the last line JSON with the machine's signature. Nothing else should run beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compare import Worker, subwords  # noqa: E402

from specdec_plugins.cpus import cpu_groups, usable_cpus  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402

COMPUTE = "while True: pass"
PERIOD = 100_000  # microseconds: the system's usual one


def main() -> int:
    options = parser().parse_args()
    lines = subwords(options)[: options.sentences]
    rows: list[dict[str, Any]] = []
    for situation, (dtype, strategy) in product(options.situations, product(options.dtypes, options.strategies)):
        with ExitStack() as stack:
            if situation == "quota":
                try:
                    stack.enter_context(quota())
                except OSError as error:
                    print(f"busy.py: quota is left out: {error}", file=sys.stderr)
                    continue
            workers = [start(stack, options, dtype, strategy, lines, n) for n in (None, None if situation == "together" else 1)]
            if situation.startswith("busy"):
                for _ in range(int(situation.split()[1])):
                    stack.enter_context(neighbour())
            decode = together if situation == "together" else separately
            figures = rounds(options.rounds, partial(decode, workers, [0, len(lines), 1]))
        first, second = zip(*figures)
        rows.append({
            "situation": situation, "dtype": dtype, "strategy": strategy,
            "seconds": statistics.median(first), "against": statistics.median(second),
            "ratio": statistics.median(a / b for a, b in figures),
        })  # fmt: skip
    headers = {name: name for name in rows[0]} if rows else {}
    print(tabulate(rows, headers, tablefmt="github", floatfmt=".3f"))
    signature = {**machine(), "threads": usable_cpus(), "model": Path(options.model).name, "sentences": len(lines)}
    print(json.dumps({"benchmark": "busy", "rows": rows, "signature": {**signature, "rounds": options.rounds}}))
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--model", default=str(ROOT / "data/demo.en-de"), metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--sentences", type=int, default=40, metavar="N", help="a round decodes so many (default: 40)")
    p.add_argument("--rounds", type=int, default=7, metavar="N", help="(default: 7)")
    p.add_argument("--dtypes", nargs="+", default=["int8", "float32"])
    p.add_argument("--strategies", nargs="+", default=["ar", "specdec"], help="ar, specdec, specdec-K (blocks of K)")
    p.add_argument("--situations", nargs="+", default=[*(f"busy {n}" for n in range(usable_cpus() + 1)), "quota", "together"])
    return p


def start(
    stack: ExitStack, options: argparse.Namespace, dtype: str, strategy: str, lines: list[str], threads: int | None
) -> Worker:
    """A process that has decoded the sentences once."""
    worker = Worker(ROOT, argparse.Namespace(model=options.model, threads=threads), dtype, strategy, lines)
    stack.callback(worker.close)
    worker.ask([0, len(lines), 1])
    return worker


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that does nothing but compute."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTE])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def quota() -> Iterator[None]:
    """This process, and those that it starts, in a control group with the time of one CPU. Raises OSError."""
    groups = [(folder, version) for folder, _, version in cpu_groups() if (folder / "cgroup.procs").exists()]
    if not groups:
        raise OSError("no control groups")
    parent, version = groups[0]
    group = parent / f"specdec-busy-{os.getpid()}"
    group.mkdir()
    try:
        if version == 2:
            (group / "cpu.max").write_text(f"{PERIOD} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def separately(workers: list[Worker], order: list[int], turn: int) -> tuple[float, float]:
    """Seconds of both workers, one after the other."""
    seconds = {index: workers[index].ask(order)[0] for index in ((0, 1) if turn % 2 else (1, 0))}
    return seconds[0], seconds[1]


def together(workers: list[Worker], order: list[int], turn: int) -> tuple[float, float]:
    """Seconds until both workers are done: at once, and one after the other."""
    seconds = []
    for at_once in (True, False) if turn % 2 else (False, True):
        began = time.perf_counter()
        if at_once:
            for worker in workers:
                worker.send(order)
            for worker in workers:
                worker.receive()
        else:
            for worker in workers:
                worker.ask(order)
        seconds.append(time.perf_counter() - began)
    return (seconds[0], seconds[1]) if turn % 2 else (seconds[1], seconds[0])


def rounds(count: int, measure: Callable[[int], tuple[float, float]]) -> list[tuple[float, float]]:
    measure(0)  # the numbers of threads adapt
    return [measure(turn) for turn in range(count)]


if __name__ == "__main__":
    sys.exit(main())
