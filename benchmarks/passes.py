#!/usr/bin/env python3
"""The time of a pass of the CPU kernels.

    benchmarks/passes.py --model DIR --source FILE [--dtypes int8 float32] [--threads 1 2] [--kernels avx2]

Times calls, each repeated with the same arguments: a verification of so many rows of so many sentences in the middle of their
translation, a draft of so many tokens, encoding a source. Prints the median, and the rates of products with weights and of bytes
of weights that they imply (of a draft in turn the bytes once for all its passes). The last line is JSON with the machine's
signature.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from specdec_plugins.decoding import compiled  # noqa: E402
from specdec_plugins.decoding.backends import Reading  # noqa: E402
from specdec_plugins.decoding.backends.cpu.binding import DTYPES, Stack  # noqa: E402
from specdec_plugins.decoding.backends.cpu.runner import Batch, CpuRunner  # noqa: E402
from specdec_plugins.decoding.drafters import CachedRows  # noqa: E402
from specdec_plugins.decoding.options import Tolerance  # noqa: E402
from specdec_plugins.decoding.prefix import Prefix  # noqa: E402
from specdec_plugins.decoding.requests import Source  # noqa: E402
from specdec_plugins.decoding.values import NOTHING, Draft, uniform  # noqa: E402
from specdec_plugins.engine import Engine  # noqa: E402
from specdec_plugins.formats.folder import Pair, load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

VERIFICATIONS = ((1, 1), (1, 3), (1, 5), (1, 9), (1, 13), (8, 1), (8, 9), (32, 1), (128, 1))  # sentences, rows of each
LINES = 2000  # of the text, at most
DRAFTS = (1, 4, 8)  # tokens
EXACT = Tolerance()
COMMITTED, SHORTEST = 5, 17  # tokens of an output before the pass, and of the outputs that are taken: room for a draft


class Call(NamedTuple):
    """What is timed: a function that returns its seconds, products of rows and weights, the weights' bytes."""

    name: str
    run: Callable[[], float]
    products: int
    weight_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "data/demo.en-de"), metavar="DIR")
    parser.add_argument("--source", required=True, type=Path, metavar="FILE")
    parser.add_argument("--dtypes", nargs="+", default=["int8", "float32"], choices=tuple(DTYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    parser.add_argument("--seconds", type=float, default=0.2, help="for each call (default: %(default)s)")
    parser.add_argument("--kernels", choices=compiled.VARIANTS, help="those for a set of instructions (default: the best here)")
    options = parser.parse_args()
    pair = load_folder(options.model)
    text = chosen(pair, list(read_lines(options.source))[:LINES])
    rows = []
    print(f"{'dtype':9}{'threads':>7}  {'pass':24}{'us':>7}{'G products/s':>14}{'GB/s':>7}")
    for dtype in options.dtypes:
        for threads in options.threads:
            for call in calls(pair, text, dtype, threads, options.kernels):
                taken = median_seconds(call, options.seconds)
                row = {"dtype": dtype, "threads": threads, "pass": call.name, "us": round(1e6 * taken, 1)}
                row |= {"products": call.products, "weight_bytes": call.weight_bytes}
                rows.append(row)
                print(
                    f"{dtype:9}{threads:7}  {call.name:24}{1e6 * taken:7.0f}{call.products / taken / 1e9:14.0f}"
                    f"{call.weight_bytes / taken / 1e9:7.1f}",
                    flush=True,
                )
    print(json.dumps({"benchmark": "passes", "rows": rows, "signature": machine(kernels=options.kernels)}))
    return 0


def median_seconds(call: Call, seconds: float) -> float:
    """The median time of calls over so many seconds, after warm-up."""
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        times.append(call.run())
    return statistics.median(times[len(times) // 10 :])


def chosen(pair: Pair, lines: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Sources and outputs, as tokens, of lines with long enough outputs. Exits if there are too few."""
    translator = Translator(pair, Settings(strategy="ar"))
    sources = translator.encode(lines)
    found = [(sources[each.index], each.tokens) for each in translator.engine.generate(sources) if len(each.tokens) >= SHORTEST]
    needed = max(sentences for sentences, _ in VERIFICATIONS)
    if len(found) < needed:
        sys.exit(f"passes.py: error: {len(found)} outputs have {SHORTEST} tokens, and {needed} are needed: give longer text")
    return found[:needed]


def calls(pair: Pair, text: list[tuple[list[int], list[int]]], dtype: str, threads: int, kernels: str | None) -> list[Call]:
    """All timed calls."""
    strategy = "specdec" if pair.drafter else "ar"
    engine = Translator(pair, Settings(strategy=strategy, dtype=dtype, threads=threads, kernels=kernels)).engine
    found = [verification(engine, text[:sentences], rows) for sentences, rows in VERIFICATIONS]
    if pair.drafter:
        found += [draft(engine, text[:1], length) for length in DRAFTS]
    return [*found, encoding(cast(Any, engine.roles.verifier).model, Source([text[0][0]], pair.verifier.spec.symbols))]


def standing(engine: Engine, text: list[tuple[list[int], list[int]]]) -> tuple[CpuRunner, Prefix]:
    """A runner and its rows after the first tokens of some outputs, all but each row's last one read."""
    session = engine.session(len(text))
    runner, prefix = session.runner, session.prefix
    assert isinstance(runner, CpuRunner), "the pair is on the kernels"
    runner.admit(Source([source for source, _ in text], prefix.symbols))
    prefix.admit([engine.request(index, source) for index, (source, _) in enumerate(text)])
    for output, (_, target) in zip(prefix.outputs, text):
        output.extend(target[:COMMITTED])
    tokens = [[prefix.symbols.start, *output[:-1]] for output in prefix.outputs]
    runner.model.read(runner.verifying, Reading(tokens, [0] * len(text))).logits()
    return runner, prefix


def verification(engine: Engine, text: list[tuple[list[int], list[int]]], rows: int) -> Call:
    runner, prefix = standing(engine, text)
    offered = Draft([target[COMMITTED : COMMITTED + rows - 1] for _, target in text])

    def run() -> float:
        Batch(runner, prefix, uniform(len(text), 0), offered, EXACT, NOTHING).run(1)
        return runner.call.verifying_seconds

    return Call(f"verify {len(text)} x {rows}", run, *work(runner.model.stack, len(text) * rows))


def draft(engine: Engine, text: list[tuple[list[int], list[int]]], length: int) -> Call:
    """A draft after a committed token."""
    runner, prefix = standing(engine, text)
    model, state = cast(Any, engine.roles.drafter).model, runner.drafting
    causal = isinstance(state, CachedRows)

    def run() -> float:
        Batch(runner, prefix, uniform(1, length), None, EXACT, NOTHING).run(1)
        if causal:
            state.rows[:] = [COMMITTED]  # has read all but the last token
        return runner.call.drafting_seconds

    return Call(f"draft {length}", run, *work(model.stack, length + causal))


def encoding(model: Any, source: Source) -> Call:
    def run() -> float:
        began = time.perf_counter()
        model.encoder(source)
        return time.perf_counter() - began

    return Call(f"encode {source.longest}", run, *work(model.encoder.stack, source.longest))


def work(stack: Stack, rows: int) -> tuple[int, int]:
    """Products of so many rows with a stack's weights, and the weights' bytes. A screened output layer counts as its screen."""
    output = stack.output
    last = [output.screen.basis, output.screen.weights] if output.screen else [output.linear]
    linears = [linear for linear in (*stack.linears, *last, output.gate) if linear is not None]
    return rows * sum(linear.outputs * linear.inputs for linear in linears), sum(linear.weight_bytes for linear in linears)


if __name__ == "__main__":
    sys.exit(main())
