#!/usr/bin/env python3
"""What trees gain or lose against chains and plain decoding, by data type and batch size, and the arithmetic that says why.

    benchmarks/trees.py --model DIR --input FILE

Of a model folder whose drafter branches: `ar`, chains, trees whose paths have at most the model's block size, and `auto` without
trees and with the largest. They take turns; every output must be `ar`'s. Times are milliseconds a pass of the whole batch.

*predicted* are the times `ar` if each verification took what `ar`'s does and what further positions cost (of the verifier's pass
alone, timed for some numbers of positions), and each draft what a chain of the same depth does. What a tree is below it is the
Python of its iterations: growing, the tree's pass, judging its paths.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from decoding import interleaved

from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.measure.machine import machine
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

BEFORE = 8  # tokens that are committed before a pass that is timed
TIMED = 15  # passes, of which the median counts
HEADER = ("dtype", "batch", "system", "times `ar`", "predicted", "tokens", "positions", "drafting", "verifying", "rest")


@dataclass(frozen=True)
class System:
    """A way to decode: a block size and the most nodes of a tree; ``depth`` is the longest draft, None where that varies."""

    name: str
    block_size: int | str | None
    tree: int | None = None

    @property
    def depth(self) -> int | None:
        return self.block_size if isinstance(self.block_size, int) else 0 if self.block_size is None else None

    def translator(self, pair: Pair, dtype: str, threads: int) -> Translator:
        how: dict = {"strategy": "ar"} if self.block_size is None else {"block_size": self.block_size, "tree": self.tree}
        return Translator(pair, Settings(dtype=dtype, threads=threads, **how))


def systems(chains: Sequence[int], trees: Sequence[int], longest: int) -> list[System]:
    sized = [*(System(f"chain {size}", size) for size in sorted({*chains, longest})),
             *(System(f"tree {nodes}", longest, nodes) for nodes in trees)]  # fmt: skip
    return [System("ar", None), *sized, System("auto", "auto"), System(f"auto, trees to {max(trees)}", "auto", max(trees))]


class Passes:
    """Milliseconds of the verifier's pass by the positions that it reads, for some sources."""

    def __init__(self, verifier: ModelVerifier, sources: Sequence[list[int]], most: int):
        model, self.positions, self.times = verifier.model, list[int](), list[float]()
        state = model.start(len(sources))
        state.admit(Source(sources, verifier.model.spec.symbols))
        state.encode()
        start, filler = verifier.model.spec.symbols.start, sources[0][0]
        model.read(state, [[start] + [filler] * (BEFORE - 1)] * len(sources), [0] * len(sources)).logits()
        each = sorted({1, 2, 3, 5, 9, 13, 17, 25, most})
        for count in (count for count in each if count <= most):
            found = []
            for _ in range(TIMED):
                began = time.perf_counter()
                model.read(state, [[filler] * count] * len(sources), [BEFORE] * len(sources)).logits()
                found.append(1000 * (time.perf_counter() - began))
            self.positions.append(count * len(sources))
            self.times.append(statistics.median(found))

    def more(self, positions: float, than: float) -> float:
        """What a pass of so many positions takes more than one of others; beyond the largest that was timed, as that one."""
        taken, base = np.interp([positions, than], self.positions, self.times)
        return float(taken - base)


def figures(found: Sequence[tuple[DecodeStats, float]]) -> dict:
    """Of a system's rounds: milliseconds a pass, medians; and counts, which are those of all rounds."""
    stats = sum((each for each, _ in found[1:]), found[0][0])

    def a_pass(part: str) -> float:
        return statistics.median(1000 * each.seconds[part] / each.passes for each, _ in found)

    return {
        "tokens": stats.mean_accepted_length, "passes": stats.passes / len(found), "rows": stats.iterations / stats.passes,
        "positions": (stats.iterations + stats.drafted) / stats.passes, "drafting": a_pass("drafting"),
        "verifying": a_pass("verifying"), "rest": a_pass("elsewhere"), "encoding": a_pass("encoding"),
    }  # fmt: skip


def predicted(system: System, row: dict, plain: dict, drafting: dict[int, float], passes: Passes) -> float | None:
    """Times `ar`, by the arithmetic; None where the depth varies."""
    if system.depth is None:
        return None

    def total(of: dict, draft: float) -> float:
        verifying = plain["verifying"] + passes.more(of["positions"], plain["positions"])
        return of["passes"] * (draft + verifying + plain["rest"]) + plain["passes"] * plain["encoding"]

    return total(plain, 0.0) / total(row, drafting[system.depth])


def cell(options: argparse.Namespace, pair: Pair, lines: list[str], dtype: str, batch: int) -> list[dict]:
    """A row a system. Raises SystemExit if a system says something else than `ar`."""
    plan = systems(options.chains, options.trees, pair.block_size)
    translators = [system.translator(pair, dtype, options.threads) for system in plan]
    sources = translators[0].encode(lines)
    expected = [each.tokens for each in translators[0].translate_tokens(sources, batch)]
    for system, translator in zip(plan, translators):
        if [each.tokens for each in translator.translate_tokens(sources, batch)] != expected:
            raise SystemExit(f"{system.name}, {dtype}, batch size {batch}: other outputs than ar's")
    found = interleaved(translators, lines, options.rounds, batch)
    verifier = translators[0].roles.verifier
    assert isinstance(verifier, ModelVerifier)
    passes = Passes(verifier, sources[:batch], max(*options.chains, *options.trees, pair.block_size) + 1)
    rows = [figures(each) for each in found]
    drafting = {system.depth or 0: row["drafting"] for system, row in zip(plan, rows) if not system.tree and system.depth}
    drafting[0] = 0.0
    for system, row, rounds in zip(plan, rows, found):
        ratios = [ar / own for (_, ar), (_, own) in zip(found[0], rounds)]
        row |= {"dtype": dtype, "batch": batch, "system": system.name, "times_ar": statistics.median(ratios),
                "range": [min(ratios), max(ratios)], "predicted": predicted(system, row, rows[0], drafting, passes)}  # fmt: skip
    cost = ", ".join(f"{positions}: {taken:.3f}" for positions, taken in zip(passes.positions, passes.times))
    print(f"{dtype}, batch size {batch}: milliseconds of a pass by positions {cost}\n", flush=True)
    return rows


def line(row: dict) -> str:
    low, high = row["range"]
    expected = "" if row["predicted"] is None else f"{row['predicted']:.2f}"
    figures = " | ".join(f"{row[name]:.3f}" for name in ("drafting", "verifying", "rest"))
    return (
        f"| {row['dtype']} | {row['batch']} | {row['system']} | {row['times_ar']:.2f} ({low:.2f}-{high:.2f}) | {expected} | "
        f"{row['tokens']:.2f} | {row['positions']:.1f} | {figures} |"
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE")
    p.add_argument("--sentences", type=int, default=100, metavar="N", help="the first N")
    p.add_argument("--chains", type=int, nargs="+", default=[2, 4, 6, 8], metavar="K")
    p.add_argument("--trees", type=int, nargs="+", default=[4, 8, 16, 32], metavar="N", help="nodes")
    p.add_argument("--dtypes", nargs="+", default=["int8", "float32"])
    p.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="N")
    p.add_argument("--rounds", type=int, default=5, metavar="N")
    p.add_argument("--threads", type=int, default=1, metavar="N")
    p.add_argument("--output", type=Path, metavar="FILE", help="append a JSON line for each data type and batch size")
    options = p.parse_args()
    pair = load_folder(options.model)
    lines = list(read_lines(options.input))[: options.sentences]
    signature = {**machine(), "model": Path(options.model).name, "input": Path(options.input).name, "sentences": len(lines),
                 "rounds": options.rounds, "threads": options.threads}  # fmt: skip
    for dtype in options.dtypes:
        for batch in options.batch_sizes:
            rows = cell(options, pair, lines, dtype, batch)
            print("| " + " | ".join(HEADER) + " |\n" + "| --- " * len(HEADER) + "|")
            print("\n".join(map(line, rows)) + "\n", flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"signature": signature, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
