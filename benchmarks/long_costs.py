#!/usr/bin/env python3
"""What an iteration of self-speculation takes, as a sum of what its passes read and compute.

    benchmarks/long_costs.py FILE

The rates of the sum are fitted to every second cell of the grid that `benchmarks/long.py grid` wrote to FILE (like the black
squares of a chessboard of batch sizes and source lengths), and compared with the others. The same sum with the rates of a GPU's
data sheet says what a transformer-big could gain there.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

NEAR = 100.0  # MB of cache that a processor keeps in its own caches; 36 to 130 give as good a fit


class Rates(NamedTuple):
    """What a pass takes, in ms: for each MB of weights, 10^9 products of linear layers, MB of cache, MB more if the cache is in
    memory, MB more if it is a single row's, whose entries the threads read in parts, and 10^9 products of attention.

    What a call and a row take besides is in the first two: a model's passes all read the same weights.
    """

    weights: float
    linear: float
    cache: float
    far: float
    alone: float
    attention: float

    @staticmethod
    def terms(row: dict[str, Any], queries: int, cache_mb: float) -> list[float]:
        """What a pass of so many tokens a row has of each. Every float32 of the cache takes part in a product a query."""
        far, alone = cache_mb * (cache_mb > NEAR), cache_mb * (row["batch"] == 1)
        return [row["weights_mb"], row["batch"] * queries * row["products"] / 1e9, cache_mb, far, alone, queries * cache_mb / 4e3]

    def verifying(self, row: dict[str, Any]) -> float:
        return self._sum(self.terms(row, row["gamma"] + 1, row["cache_mb"]))

    def drafting(self, row: dict[str, Any]) -> float:
        return row["gamma"] * self._sum(self.terms(row, 1, row["draft_cache_mb"]))

    def _sum(self, terms: Sequence[float]) -> float:
        return sum(rate * term for rate, term in zip(self, terms))

    def total(self, row: dict[str, Any]) -> float:
        return self.verifying(row) + self.drafting(row)


def fitted(rows: Sequence[dict[str, Any]]) -> Rates:
    """Rates of at least 0 with the least squares of relative errors, of drafting and of verifying."""
    terms, times = [], []
    for row in rows:
        terms.append(Rates.terms(row, row["gamma"] + 1, row["cache_mb"]))
        times.append(row["verifying_ms"])
        if row["gamma"]:
            terms.append(Rates.terms(row, 1, row["draft_cache_mb"]))
            times.append(row["drafting_ms"] / row["gamma"])
    scaled = torch.tensor(terms, dtype=torch.float64) / torch.tensor(times, dtype=torch.float64)[:, None]
    used = list(range(len(Rates._fields)))
    while True:  # without those that would be negative
        scales = scaled[:, used].norm(dim=0)
        found = (
            torch.linalg.lstsq(scaled[:, used] / scales, torch.ones(len(times), 1, dtype=torch.float64)).solution[:, 0] / scales
        )
        if (found >= 0).all():
            break
        used.remove(used[int((found * scales).argmin())])
    rates = dict(zip(used, found.tolist()))
    return Rates(*(rates.get(index, 0.0) for index in range(len(Rates._fields))))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("file", type=Path, help="what `long.py grid` wrote")
    file = p.parse_args().file
    rows = [row for line in file.read_text().splitlines() if (row := json.loads(line))["gamma"] != "auto"]
    places = {key: sorted({row[key] for row in rows}) for key in ("batch", "length")}
    black = [row for row in rows if sum(values.index(row[key]) for key, values in places.items()) % 2 == 0]
    rates = fitted(black)
    print("| ms per | " + " | ".join(Rates._fields) + " |\n" + "| --- " * (1 + len(rates)) + "|")
    print("| | " + " | ".join(f"{rate:.3g}" for rate in rates) + " |\n")
    others = [row for row in rows if row not in black]
    errors = sorted(abs(rates.total(row) / (row["drafting_ms"] + row["verifying_ms"]) - 1) for row in others)
    within = sum(error <= 0.3 for error in errors) / len(errors)
    told = f"{len(black)} rows fitted; of {len(others)} others the median error is {statistics.median(errors):.0%}"
    print(f"{told}, {within:.0%} within 30 %")
    print("\n| batch | length | gamma | budget | ms an iteration | predicted |\n" + "| --- " * 6 + "|")
    for row in others:
        print(
            f"| {row['batch']} | {row['length']} | {row['gamma']} | {row['positions']} | "
            f"{row['drafting_ms'] + row['verifying_ms']:.1f} | {rates.total(row):.1f} |"
        )
    on_paper()


# An H100 SXM by its data sheet: 3.35 TB/s of memory, 989 TFLOP/s of dense bfloat16, of which a MB has twice as many numbers as of
# float32. Nothing reaches these.
H100 = Rates(weights=1 / 3350, linear=2 / 989, cache=1 / 3350, far=0.0, alone=0.0, attention=4 / 989)


def on_paper() -> None:
    """Self-speculation of a transformer-big (6 layers of 1,024, inner width 4,096, 32,000 symbols) in bfloat16 on a GPU."""
    layers, width, symbols, batch, half = 6, 1024, 32000, 256, 32
    products = layers * 14 * width**2 + symbols * width
    print(
        "\n| H100, batch 256, length | budget | gamma | accepted | ms of ar | ms an iteration | times ar |\n" + "| --- " * 7 + "|"
    )
    for length, budget, acceptance in product((1000, 4000), (128, 512), (0.7, 0.9)):
        mb = batch * layers * 2 * width * 2 / 1e6  # a position of all rows, in bfloat16
        row = {
            "batch": batch, "products": products, "weights_mb": 2 * products / 1e6, "gamma": 0,
            "cache_mb": mb * (length + half), "draft_cache_mb": mb * (min(budget, length) + half),
        }  # fmt: skip
        plain, best = H100.total(row), (0.0, 0, 0.0)
        for gamma in range(1, 17):
            tokens, taken = sum(acceptance**n for n in range(gamma + 1)), H100.total(row | {"gamma": gamma})
            best = max(best, (tokens * plain / taken, gamma, taken))
        print(f"| {length} | {budget} | {best[1]} | {acceptance:.0%} | {plain:.2f} | {best[2]:.2f} | {best[0]:.2f} |")


if __name__ == "__main__":
    main()
