#!/usr/bin/env python3
"""The time of a pass of the CPU kernels.

    benchmarks/passes.py --model DIR --source FILE [--dtypes int8 float32] [--threads 1 2] [--kernels avx2]

Times native calls, each repeated with the same arguments: a verification (read and judge) of so many rows of so many sentences in
the middle of their translation, a draft of so many tokens (of `glide`, whose passes are alike, one), encoding a source. Prints
the median, and the rates of products with weights and of bytes of weights that they imply. The last line is JSON with the
machine's signature.
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
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau  # noqa: E402
from specdec_plugins.decoding.backends import Reading  # noqa: E402
from specdec_plugins.decoding.backends.cpu.binding import DTYPES, Stack  # noqa: E402
from specdec_plugins.decoding.compiled import library  # noqa: E402
from specdec_plugins.decoding.drafters import CachedRows  # noqa: E402
from specdec_plugins.decoding.drafters.block import BlockDrafter  # noqa: E402
from specdec_plugins.decoding.drafters.glide import GlideDrafter  # noqa: E402
from specdec_plugins.decoding.prefix import Prefix  # noqa: E402
from specdec_plugins.decoding.requests import Request, Source  # noqa: E402
from specdec_plugins.decoding.values import Draft, uniform  # noqa: E402
from specdec_plugins.formats.folder import Pair, load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

VERIFICATIONS = ((1, 1), (1, 3), (1, 5), (1, 9), (1, 13), (8, 1), (8, 9), (32, 1), (128, 1))  # sentences, rows of each
LINES = 2000  # of the text, at most
DRAFTS = (4, 8)  # tokens
COMMITTED, SHORTEST = 5, 17  # tokens of an output before the pass, and of the outputs that are taken: room for a draft


class Call(NamedTuple):
    """What is timed: the native function, a call that runs it once, products of rows and weights, the weights' bytes."""

    name: str
    function: str
    run: Callable[[], Any]
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
                taken = median_seconds(call, options.seconds, options.kernels)
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


def median_seconds(call: Call, seconds: float, kernels: str | None = None) -> float:
    """The median time of native calls over so many seconds, after warm-up."""
    native = library(kernels)
    assert native is not None, "the pair is on the kernels"
    function, times = getattr(native, f"specdec_{call.function}"), list[float]()

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments)
        times.append(time.perf_counter() - began)
        return result

    setattr(native, f"specdec_{call.function}", timed)
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 10:
            call.run()
    finally:
        setattr(native, f"specdec_{call.function}", function)
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
    translator = Translator(pair, Settings(strategy=strategy, dtype=dtype, threads=threads, kernels=kernels))
    verifier, drafter = cast(Any, translator.engine.roles.verifier), translator.engine.roles.drafter
    found = [verification(verifier, text[:sentences], rows) for sentences, rows in VERIFICATIONS]
    if pair.drafter:
        lengths = (1,) if isinstance(drafter, GlideDrafter) else DRAFTS
        found += [draft(drafter, verifier, text[:1], length) for length in lengths]
    return [*found, encoding(verifier.model, Source([text[0][0]], pair.verifier.spec.symbols))]


def standing(role: Any, text: list[tuple[list[int], list[int]]], *start: Any) -> tuple[Any, Prefix]:
    """A role's state and prefix after the first tokens of some outputs."""
    state, prefix = role.start(len(text), *start), Prefix()
    role.admit(state, Source([source for source, _ in text], prefix.symbols))
    prefix.admit([Request(index, source, 1000) for index, (source, _) in enumerate(text)])
    for output, (_, target) in zip(prefix.outputs, text):
        output.extend(target[:COMMITTED])
    return state, prefix


def reading(verifier: Any, text: list[tuple[list[int], list[int]]]) -> tuple[Any, Prefix]:
    """The verifier's state and prefix, all but each row's last token read."""
    state, prefix = standing(verifier, text)
    tokens = [[prefix.symbols.start, *output[:-1]] for output in prefix.outputs]
    verifier.model.read(state, Reading(tokens, [0] * len(text))).logits()
    return state, prefix


def verification(verifier: Any, text: list[tuple[list[int], list[int]]], rows: int) -> Call:
    state, prefix = reading(verifier, text)
    offered, rule = Draft([target[COMMITTED : COMMITTED + rows - 1] for _, target in text]), TopBetaTau()

    def run() -> None:
        rule(verifier.score(state, prefix, offered), offered, prefix)

    return Call(f"verify {len(text)} x {rows}", "verify", run, *work(verifier.model.stack, len(text) * rows))


def draft(drafter: Any, verifier: Any, text: list[tuple[list[int], list[int]]], length: int) -> Call:
    """A draft after two committed tokens."""
    state, prefix = standing(drafter, text, reading(verifier, text)[0])
    committed, prefix.outputs = prefix.outputs, [output[:-2] for output in prefix.outputs]
    drafter.propose(state, prefix, uniform(len(text), length))
    prefix.outputs, causal = committed, isinstance(state, CachedRows)
    read = list(state.rows) if causal else []

    def run() -> None:
        if causal:
            state.rows[:] = read
        drafter.propose(state, prefix, uniform(len(text), length))

    bidirectional = isinstance(drafter, BlockDrafter)
    rows = length + (COMMITTED if bidirectional else causal)
    return Call(f"draft {length}", "draft" if bidirectional else "propose", run, *work(drafter.model.stack, rows))


def encoding(model: Any, source: Source) -> Call:
    return Call(f"encode {source.longest}", "encode", lambda: model.encoder(source), *work(model.encoder.stack, source.longest))


def work(stack: Stack, rows: int) -> tuple[int, int]:
    """Products of so many rows with a stack's weights, and the weights' bytes. A screened output layer counts as its screen."""
    output = stack.output
    last = [output.screen.basis, output.screen.weights] if output.screen else [output.linear]
    linears = [linear for linear in (*stack.linears, *last, output.gate) if linear is not None]
    return rows * sum(linear.outputs * linear.inputs for linear in linears), sum(linear.weight_bytes for linear in linears)


if __name__ == "__main__":
    sys.exit(main())
