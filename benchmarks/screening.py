#!/usr/bin/env python3
"""The exact screen of a verifier's output layer: decoding with it and without, by turns on the same weights.

    benchmarks/screening.py --model DIR --input FILE [--dtypes int8 float32] [--strategies ar specdec] [--batch-sizes 1 8 32]

Processor time of one thread, the best of the rounds for each batch. Outputs must be equal. The last line is JSON.
"""

import argparse
import json
import random
import sys
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--input", required=True, metavar="FILE")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", nargs="+", default=["int8", "float32"])
    parser.add_argument("--strategies", nargs="+", default=["ar", "specdec"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8, 32])
    options = parser.parse_args()
    lines = list(islice(read_lines(options.input), options.sentences))
    rows = [measured(options, lines, *cell) for cell in product(options.dtypes, options.strategies, options.batch_sizes)]
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    print(json.dumps({"benchmark": "screening", "rows": rows, "signature": {**vars(options), **machine("cpu", None)}}))


def measured(options: argparse.Namespace, lines: list[str], dtype: str, strategy: str, batch_size: int) -> dict[str, Any]:
    """A row of the table; ``gain`` is how many times as fast the screen makes decoding."""
    translator = Translator.from_pretrained(options.model, dtype=dtype, strategy=strategy, threads=1, beam=1)
    verifier: Any = translator.engine.roles.verifier
    plane = verifier.model.stack.output.plane
    if plane is None:
        raise SystemExit(f"{dtype}: this output layer is never screened here")
    rows = {"all logits": 0, "screened": plane.rows}
    batches = [lines[at : at + batch_size] for at in range(0, len(lines), batch_size)]
    best = {name: [float("inf")] * len(batches) for name in rows}
    for _ in range(options.rounds):
        tokens = 0
        for number, batch in enumerate(batches):
            outputs = {}
            for name in random.sample(sorted(rows), len(rows)):
                plane.rows = rows[name]
                began = time.process_time()
                outputs[name] = [each.tokens for each in translator.translate(batch, batch_size=batch_size)]
                best[name][number] = min(best[name][number], time.process_time() - began)
            if outputs["screened"] != outputs["all logits"]:
                raise SystemExit(f"{dtype} {strategy}, batch {number}: screened outputs differ")
            tokens += sum(len(each) + 1 for each in outputs["screened"])
    seconds = {name: sum(each) for name, each in best.items()}
    return {
        "dtype": dtype,
        "strategy": strategy,
        "batch size": batch_size,
        **{f"tokens/s, {name}": tokens / each for name, each in seconds.items()},
        "gain": seconds["all logits"] / seconds["screened"],
    }


if __name__ == "__main__":
    main()
