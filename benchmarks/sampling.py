#!/usr/bin/env python3
"""The gain of speculation under sampling, compared with greedy decoding.

    benchmarks/sampling.py --input TEXT [--model data/demo.en-de] [--sentences 60] [--rounds 7] [--batch-size 1]

For each temperature (0: greedy) and rule, `ar` and exact `specdec` decode the same sentences in turn. Prints tokens per second,
the gain (`specdec` over `ar`), tokens per pass and the acceptance rate. The last line is JSON with the machine's signature.
Nothing else should run on the machine.
"""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from turns import by_turns, plain  # noqa: E402

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.options import RULES  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402


def main() -> int:
    options = parser().parse_args()
    lines = list(islice(read_lines(options.input), options.sentences))
    rows: list[dict[str, Any]] = []
    for dtype in options.dtypes:
        for temperature in options.temperatures:
            rows += compare(options, dtype, temperature, lines)
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f"))
    signature = {**machine(), "threads": usable_cpus(), "model": Path(options.model).name, "sentences": len(lines)}
    print(json.dumps({"benchmark": "sampling", "rows": rows, "signature": {**signature, "rounds": options.rounds}}))
    return 0


def add_options(p: argparse.ArgumentParser) -> None:
    """The workload and the number of rounds."""
    p.add_argument("--model", default=str(ROOT / "data/demo.en-de"), metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--sentences", type=int, default=60, metavar="N")
    p.add_argument("--rounds", type=int, default=7, metavar="N")
    p.add_argument("--batch-size", type=int, default=1, metavar="N")
    p.add_argument("--block-size", type=int, default=8, metavar="K")
    p.add_argument("--dtypes", nargs="+", default=["int8", "float32"])


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add_options(p)
    p.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.5, 0.8, 1.0], metavar="T")
    return p


def compare(options: argparse.Namespace, dtype: str, temperature: float, lines: list[str]) -> list[dict[str, Any]]:
    """One row per rule: `ar` and `specdec` in turn."""
    drawing: dict[str, Any] = {"sampling": True, "temperature": temperature, "seed": 1} if temperature else {}
    rows = []
    for rule in RULES if temperature else ("greedy",):
        more: dict[str, Any] = {"rule": rule} if temperature else {}
        translator = Translator.from_pretrained(options.model, dtype=dtype, block_size=options.block_size, **drawing, **more)
        systems = {"ar": plain(translator.engine.roles), "specdec": translator.engine.roles}
        timed = by_turns(translator, systems, translator.encode(lines), options.batch_size, options.rounds)
        speeds = {name: each.tokens / each.seconds for name, each in timed.items()}
        rows.append(
            {
                "dtype": dtype,
                "temperature": temperature,
                "rule": rule,
                **{f"{name} tokens/s": speed for name, speed in speeds.items()},
                "gain": speeds["specdec"] / speeds["ar"],
                "tokens per pass": timed["specdec"].stats.mean_accepted_length,
                "accepted": timed["specdec"].stats.acceptance_rate,
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
