#!/usr/bin/env python3
"""Compare controllers on simulated machines, where the best fixed arm is known in hindsight (tests/control_cells.py).

    benchmarks/controllers.py [--seeds 4] [--json benchmarks/controllers.json] [--figure benchmarks/controllers.png]

Prints, for each cell and controller, the time of the best fixed arm (plain decoding included) over the controller's, mean and
least of the seeds; that of the best arm without a gate, too, as `throughput` chooses no gates. The figure shows the regret, the
time that was lost against the best fixed arm. Nothing is timed, so the figures are the same on every machine.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from control_cells import BLOCK_SIZE, CELLS, MAKERS, OPEN_ARMS, Run, best, fixed, run  # noqa: E402

SHOWN = ("captions int8 batch 1", "captions float32 batch 32", "documentation float32 batch 1", "captions float32 hostile")
POINTS = 200  # of a curve


def main() -> int:
    options = parser().parse_args()
    rows, curves = [], {}
    for name, cell in CELLS.items():
        seconds, length, gate = best(cell)
        row: dict[str, Any] = {
            "cell": name, "best length": length, "verifier gate": gate.verifier, "drafter gate": gate.drafter,
            "ar": seconds / fixed(cell, *OPEN_ARMS[0]), "best without gate": seconds / best(cell, gated=False)[0],
        }  # fmt: skip
        for controller, make in MAKERS.items():
            runs = [run(make(BLOCK_SIZE, seed), cell, seed) for seed in range(options.seeds)]
            found = [seconds / each.seconds for each in runs]
            row |= {controller: statistics.mean(found), f"{controller}, least": min(found)}
            if name in SHOWN:
                curves[name, controller] = regret(runs[0], seconds / sum(work for work, _, _ in cell.phases))
        rows.append(row)
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3f"))
    if options.json:
        options.json.write_text(json.dumps({"benchmark": "controllers", "seeds": options.seeds, "rows": rows}, indent=1) + "\n")
    if options.figure:
        plot(curves, options.figure)
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--seeds", type=int, default=4, metavar="N")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    p.add_argument("--figure", type=Path, metavar="PNG")
    return p


def regret(found: Run, seconds: float) -> tuple[list[int], list[float]]:
    """Iterations, and the time lost up to there in milliseconds, if the best fixed arm takes so many seconds a token."""
    trace = found.trace[:: max(1, len(found.trace) // POINTS)]
    return [iterations for iterations, _, _ in trace], [1e3 * (time - tokens * seconds) for _, tokens, time in trace]


def plot(curves: dict[tuple[str, str], tuple[list[int], list[float]]], path: Path) -> None:
    """A panel a cell, a line a controller."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for panel, name in zip(panels.flat, SHOWN):
        for controller, style in zip(MAKERS, ("-", "--", ":")):
            panel.plot(*curves[name, controller], style, label=controller)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("iterations")
        panel.set_ylabel("regret (ms)")
        panel.axhline(0, color="0.7", linewidth=0.8)
    panels.flat[0].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
