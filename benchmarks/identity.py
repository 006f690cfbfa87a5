#!/usr/bin/env python3
"""Does speculation change the samples? Under the coupled rule it must not.

    benchmarks/identity.py --input TEXT [--model data/demo.en-de] [--sentences 1000] [--torch-sentences 100]

Compares `specdec` with `ar` in the same data type, token by token, in runs that cover every pair of: backend and data type,
temperature, top-k and top-p, seed, batch size, block size. The kernels and PyTorch in float64 must agree on every sentence.
PyTorch in float32 sums logits in an order that depends on the batch, so near-ties may fall the other way; for each difference the
relative gap of the two tokens is computed in float64. Prints a row per run; the last line is JSON. Exit status 1 if a difference
is not explained by a near-tie.
"""

import argparse
import itertools
import json
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.decoding.backends.cpu import model as cpu  # noqa: E402
from specdec_plugins.decoding.backends.torch.noise import exponential  # noqa: E402
from specdec_plugins.decoding.backends.torch.sampling import Table, warp  # noqa: E402
from specdec_plugins.decoding.noise import Purpose, mixed  # noqa: E402
from specdec_plugins.decoding.prefix import Prefix  # noqa: E402
from specdec_plugins.decoding.requests import Source  # noqa: E402
from specdec_plugins.decoding.values import Draft, Draws  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402

FACTORS: dict[str, list[Any]] = {
    "computed": ["kernels int8", "kernels bfloat16", "kernels float32", "PyTorch float64", "PyTorch float32"],
    "temperature": [0.5, 0.7, 1.0],
    "warping": [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}],
    "seed": [1, 2, 3],
    "batch": [1, 16, 64],
    "block": [1, 2, 3, 5, 8, 12, "auto"],
}
NEAR_TIE = 1e-3  # relative gap of the two first times of a race, in float64, that float32 may decide otherwise


def main() -> int:
    options = parser().parse_args()
    lines = list(islice(read_lines(options.input), options.sentences))
    identity = Identity(options, lines)
    rows = []
    for number, run in enumerate(pairwise_cover(options.runs), 1):
        rows.append({**run, **identity.compare(run)})
        print(number, rows[-1], file=sys.stderr)
    print(tabulate(rows, headers="keys", tablefmt="github"))
    wrong = sum(row["different"] - row["near ties"] for row in rows)
    sentences = sum(row["sentences"] for row in rows)
    print(f"{len(rows)} runs, {sentences:,} sentences, {sum(row['different'] for row in rows)} different, {wrong} unexplained")
    print(json.dumps({"benchmark": "identity", "rows": rows, "gaps": identity.gaps, "signature": machine()}))
    return int(wrong > 0)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--model", default=str(ROOT / "data/demo.en-de"), metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE", help="source text")
    p.add_argument("--sentences", type=int, default=1000, metavar="N")
    p.add_argument("--torch-sentences", type=int, default=100, metavar="N", help="PyTorch is slow on a CPU (default: 100)")
    p.add_argument("--runs", type=int, default=60, metavar="N", help="at least as many as cover all pairs")
    return p


def pairwise_cover(least: int) -> list[dict[str, Any]]:
    """Runs that cover every pair of values of different factors; greedily, the best of some random runs each time."""
    rng = random.Random(0)
    indices = {name: range(len(values)) for name, values in FACTORS.items()}
    missing = {
        ((one, i), (other, j)) for one, other in itertools.combinations(FACTORS, 2) for i in indices[one] for j in indices[other]
    }
    chosen: list[dict[str, int]] = []
    while missing or len(chosen) < least:
        tries = [{name: rng.choice(each) for name, each in indices.items()} for _ in range(200)]
        best = max(tries, key=lambda run: len(missing.intersection(itertools.combinations(run.items(), 2))))
        missing.difference_update(itertools.combinations(best.items(), 2))
        chosen.append(best)
    return [{name: FACTORS[name][index] for name, index in run.items()} for run in chosen]


class Identity:
    def __init__(self, options: argparse.Namespace, lines: list[str]):
        self.options, self.gaps = options, list[float]()
        self.exact = self.translator("PyTorch float64", strategy="ar")
        self.sources = self.exact.encode(lines)
        self.plain: dict[str, list[list[int]]] = {}  # outputs of `ar`

    def translator(self, computed: str, **settings: Any) -> Translator:
        backend, dtype = computed.split()
        with patch.object(cpu, "DTYPES", () if backend == "PyTorch" else cpu.DTYPES):
            return Translator.from_pretrained(self.options.model, dtype=dtype, **settings)

    def compare(self, run: dict[str, Any]) -> dict[str, int]:
        """How many outputs differ, and how many of these at a near-tie."""
        sources = self.sources[: self.options.torch_sentences] if "PyTorch" in run["computed"] else self.sources
        how = {"sampling": True, "temperature": run["temperature"], "seed": run["seed"], **run["warping"]}
        key = json.dumps([run["computed"], how])
        if key not in self.plain:
            plain = self.translator(run["computed"], strategy="ar", **how)
            self.plain[key] = [each.tokens for each in plain.engine.generate(sources, 32)]
        fast = self.translator(run["computed"], block_size=run["block"], **how)
        outputs = [each.tokens for each in fast.engine.generate(sources, run["batch"])]
        gaps = [
            self.gap(fast, sources[index], index, expected, found)
            for index, (expected, found) in enumerate(zip(self.plain[key], outputs, strict=True))
            if expected != found
        ]
        self.gaps += gaps
        near = sum(gap < NEAR_TIE for gap in gaps) if run["computed"] == "PyTorch float32" else 0
        return {"sentences": len(sources), "different": len(gaps), "near ties": near}

    def gap(self, translator: Translator, source: list[int], index: int, expected: list[int], found: list[int]) -> float:
        """Of the race where two outputs part: the second token's time over the first one's, less 1."""
        shared = next(
            (i for i, (one, other) in enumerate(zip(expected, found)) if one != other), min(map(len, (expected, found)))
        )
        verifier, sampling = self.exact.engine.roles.verifier, translator.settings.drawing
        assert sampling
        prefix = Prefix()
        state = verifier.start(1)
        verifier.admit(state, Source([source], prefix.symbols))
        prefix.admit([translator.engine.request(0, source)])
        scores = verifier.score(state, prefix, Draft([expected[:shared]]))
        assert scores
        logits = scores.logits()[:1, -1:].clone()
        logits[..., prefix.symbols.pad] = -torch.inf
        draws = Draws(sampling, mixed(translator.settings.seed, index, 0), expected[:shared])
        table = Table.of([draws], 1, logits.size(-1), logits.device)
        bits = table.bits(Purpose.SAMPLE, 1, torch.arange(logits.size(-1)))
        first, second = (exponential(bits) / warp(logits, table))[0, 0].topk(2, largest=False).values.tolist()
        return second / first - 1


if __name__ == "__main__":
    sys.exit(main())
