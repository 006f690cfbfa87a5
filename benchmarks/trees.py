#!/usr/bin/env python3
"""What trees gain or lose against chains and plain decoding, by data type and batch size, and the arithmetic that says why.

    benchmarks/trees.py --model DIR --input FILE

Of a model folder whose drafter branches: `ar`, chains, trees whose paths have at most the model's block size, and `auto` without
trees and with the largest. They take turns; every output must be `ar`'s. Times are milliseconds a pass of the whole batch.

*predicted* are the times `ar` if each verification took what `ar`'s does and what further positions cost (of the verifier's pass
alone, timed for some numbers of positions), and each draft what a chain of the same depth does. What a tree is below it is the
Python of its iterations: growing, the tree's pass, judging its paths.

With --shapes the same is predicted of larger pairs (layers, width, inner width, heads) whose drafts pass as the folder's do:
passes and drafts are timed with random weights. Encoding is left out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from decoding import interleaved, timed

from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY
from specdec_plugins.decoding.stats import DecodeStats
from specdec_plugins.decoding.values import Source
from specdec_plugins.decoding.verifier import ModelVerifier
from specdec_plugins.formats.folder import Pair, load_folder
from specdec_plugins.measure.machine import machine
from specdec_plugins.measure.random_pair import Shape, random_pair
from specdec_plugins.settings import Settings
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

BEFORE = 8  # tokens that are committed before a pass that is timed
TIMED = 15  # passes, of which the median counts
SHORT, ROUNDS = 8, 3  # tokens of the outputs that drafts of other shapes are timed in, and how often
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

    def __str__(self) -> str:
        return ", ".join(f"{positions}: {taken:.3f}" for positions, taken in zip(self.positions, self.times))

    def of(self, positions: float) -> float:
        """What a pass of so many positions takes; beyond the largest that was timed, as that one."""
        return float(np.interp(positions, self.positions, self.times))


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
        further = passes.of(of["positions"]) - passes.of(plain["positions"])
        return of["passes"] * (draft + plain["verifying"] + further + plain["rest"]) + plain["passes"] * plain["encoding"]

    return total(plain, 0.0) / total(row, drafting[system.depth])


def at_shape(
    pair: Pair, shape: Sequence[int], dtype: str, threads: int, plan: Sequence[System], lines: list[str]
) -> tuple[Passes, dict[int, float]]:  # fmt: skip
    """A pair of another shape with random weights: its verifier's passes for the lines, and milliseconds of drafts by depth."""
    assert pair.drafter and pair.drafter.spec
    layers, width, inner, heads = shape
    size, drafted = len(pair.source.symbols), pair.drafter.tensors.get(DRAFT_VOCABULARY)
    share = 1.0 if drafted is None else len(drafted) / size
    verifier, drafter = random_pair(Shape(layers, pair.drafter.spec.decoder.layers, width, inner, heads, size, share))
    drafting, batch = {0: 0.0}, len(lines)
    for depth in (system.depth for system in plan if system.depth and not system.tree):
        how = Settings(dtype=dtype, threads=threads, block_size=depth, max_len_a=0.0, max_len_b=SHORT)
        translator = Translator(replace(pair, verifier=verifier, drafter=drafter), how)
        drafting[depth] = min(figures([timed(translator, lines, batch)])["drafting"] for _ in range(ROUNDS))
    return passes_of(translator, lines, plan), drafting


def passes_of(translator: Translator, lines: list[str], plan: Sequence[System]) -> Passes:
    verifier = translator.roles.verifier
    assert isinstance(verifier, ModelVerifier)
    most = max(max(system.depth or 0, system.tree or 0) for system in plan)
    return Passes(verifier, translator.encode(lines), most + 1)


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
    passes = passes_of(translators[0], lines[:batch], plan)
    rows = [figures(each) for each in found]
    drafting = {system.depth or 0: row["drafting"] for system, row in zip(plan, rows) if not system.tree and system.depth}
    drafting[0] = 0.0
    for system, row, rounds in zip(plan, rows, found):
        ratios = [ar / own for (_, ar), (_, own) in zip(found[0], rounds)]
        row |= {"dtype": dtype, "batch": batch, "system": system.name, "times_ar": statistics.median(ratios),
                "range": [min(ratios), max(ratios)], "predicted": predicted(system, row, rows[0], drafting, passes)}  # fmt: skip
    print(f"{dtype}, batch size {batch}: milliseconds of a pass by positions {passes}\n", flush=True)
    for shape in options.shapes:
        larger, drafts = at_shape(pair, shape, dtype, options.threads, plan, lines[:batch])
        plain = rows[0] | {"verifying": larger.of(rows[0]["positions"]), "encoding": 0.0}
        for system, row in zip(plan, rows):
            row[name_of(shape)] = predicted(system, row, plain, drafts, larger)
        print(
            f"{name_of(shape)}: passes {larger}; drafts {', '.join(f'{n}: {ms:.3f}' for n, ms in drafts.items())}\n", flush=True
        )
    return rows


def name_of(shape: Sequence[int]) -> str:
    return "+".join(map(str, [shape[0]] * 2)) + f" x {shape[1]}"


def line(row: dict, columns: Sequence[str]) -> str:
    low, high = row["range"]
    expected, *elsewhere = ("" if row[name] is None else f"{row[name]:.2f}" for name in ("predicted", *columns))
    figures = " | ".join(f"{row[name]:.3f}" for name in ("drafting", "verifying", "rest"))
    return (
        f"| {row['dtype']} | {row['batch']} | {row['system']} | {row['times_ar']:.2f} ({low:.2f}-{high:.2f}) | {expected} | "
        f"{row['tokens']:.2f} | {row['positions']:.1f} | {figures} | {''.join(f'{each} | ' for each in elsewhere)}"
    ).rstrip()


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
    p.add_argument("--shapes", type=lambda text: list(map(int, text.split(","))), nargs="+", default=[],
                   metavar="LAYERS,WIDTH,INNER,HEADS")  # fmt: skip
    p.add_argument("--output", type=Path, metavar="FILE", help="append a JSON line for each data type and batch size")
    options = p.parse_args()
    pair = load_folder(options.model)
    lines = list(read_lines(options.input))[: options.sentences]
    signature = {**machine(), "model": Path(options.model).name, "input": Path(options.input).name, "sentences": len(lines),
                 "rounds": options.rounds, "threads": options.threads}  # fmt: skip
    for dtype in options.dtypes:
        for batch in options.batch_sizes:
            rows = cell(options, pair, lines, dtype, batch)
            columns = [name_of(shape) for shape in options.shapes]
            print("| " + " | ".join([*HEADER, *columns]) + " |\n" + "| --- " * len([*HEADER, *columns]) + "|")
            print("\n".join(line(row, columns) for row in rows) + "\n", flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"signature": signature, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
