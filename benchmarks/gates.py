#!/usr/bin/env python3
"""When drafting pays: gates on the verifier's or the drafter's confidence, compared with no gate, no draft and no verifier.

    benchmarks/gates.py speed --input TEXT [--model data/demo.en-de] [--sentences 60] [--rounds 7] [--batch-size 1]
    benchmarks/gates.py confidence --input TEXT [--model data/demo.en-de] [--sentences 300]

``speed`` decodes the same sentences with every system in turn, in each data type, greedily and at temperature 0.8 (coupled rule).
It prints tokens per second, the gain over exact `specdec` of the same block size without a gate (measured twice for the noise),
tokens per pass, acceptance, and verified positions for each committed token; also shorter drafts without a gate. ``confidence``
prints how often drafted tokens pass, by the product of the drafter's confidences and by the verifier's confidence in the token
before the draft. The last line is JSON with the machine's signature. Nothing else should run beside ``speed``.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sampling import add_options  # noqa: E402
from turns import by_turns, plain  # noqa: E402

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.control.fixed import FixedLength  # noqa: E402
from specdec_plugins.decoding.options import Gate  # noqa: E402
from specdec_plugins.decoding.roles import Roles  # noqa: E402
from specdec_plugins.decoding.verifier import Unverified, accept_all  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402

VERIFIER, DRAFTER = (0.3, 0.5, 0.7), (0.1, 0.2, 0.3, 0.5)  # thresholds
BOTH = (0.5, 0.3)
SHORTER = (3, 4, 6)  # tokens
TEMPERATURE = 0.8
NEVER_CLOSED = 1e-300  # a drafter's gate that only asks for the confidence
EDGES = [0.0, 0.02, 0.05, *(tenth / 10 for tenth in range(1, 11))]  # of classes of confidence


def main() -> int:
    options = parser().parse_args()
    lines = list(islice(read_lines(options.input), options.sentences))
    signature = {**machine(), "threads": usable_cpus(), "model": Path(options.model).name, "sentences": len(lines)}
    result: dict[str, Any] = {"benchmark": f"gates {options.what}"}
    if options.what == "speed":
        rows = [row for dtype in options.dtypes for sampled in (False, True) for row in speed(options, dtype, sampled, lines)]
        tables = {"rows": rows}
        result |= {"batch size": options.batch_size, "rounds": options.rounds}
    else:
        tables = confidence(watched(options, lines))
    for name, rows in tables.items():
        print(f"\n{name}\n{tabulate(rows, headers='keys', tablefmt='github', floatfmt='.2f')}")
    print(json.dumps({**result, **tables, "block size": options.block_size, "signature": signature}))
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("what", choices=["speed", "confidence"])
    add_options(p)
    return p


def speed(options: argparse.Namespace, dtype: str, sampled: bool, lines: list[str]) -> list[dict[str, Any]]:
    """One row per system."""
    size = options.block_size
    drawing: dict[str, Any] = {"sampling": True, "temperature": TEMPERATURE, "seed": 1} if sampled else {}
    translator = Translator.from_pretrained(options.model, dtype=dtype, block_size=size, **drawing)
    roles = translator.engine.roles

    def drafting(length: int = size, **gate: float) -> Roles:
        return roles._replace(controller=FixedLength(length, Gate(**gate)))

    systems = {
        "specdec": drafting(),
        "specdec again": drafting(),
        "ar": plain(roles),
        "drafter": roles._replace(verifier=Unverified(), acceptance=accept_all),
        **{f"{length} tokens": drafting(length) for length in SHORTER if length < size},
        **{f"verifier {threshold}": drafting(verifier=threshold) for threshold in VERIFIER},
        **{f"drafter {threshold}": drafting(drafter=threshold) for threshold in DRAFTER},
        f"both {BOTH[0]}, {BOTH[1]}": drafting(verifier=BOTH[0], drafter=BOTH[1]),
    }
    timed = by_turns(translator, systems, translator.encode(lines), options.batch_size, options.rounds)
    ungated = timed["specdec"]
    return [
        {
            "dtype": dtype, "tokens are": f"drawn at {TEMPERATURE}" if sampled else "the best", "system": name,
            "tokens/s": tokens / seconds, "gain": tokens / seconds / (ungated.tokens / ungated.seconds),
            "tokens per pass": stats.mean_accepted_length, "accepted": stats.acceptance_rate,
            "verified a token": 0.0 if name == "drafter" else (stats.iterations + stats.drafted) / stats.committed,
        }
        for name, (seconds, tokens, stats) in timed.items()
    ]  # fmt: skip


class Draft(NamedTuple):
    """A row's draft in one iteration."""

    confidence: list[float]  # of the drafter in each token
    accepted: int
    before: float | None  # the verifier's probability of the last committed token; none at the beginning
    committed: int  # tokens before the draft


def watched(options: argparse.Namespace, lines: list[str]) -> list[Draft]:
    """The drafts of a translation of ``lines``."""
    translator = Translator.from_pretrained(options.model, block_size=options.block_size)
    rule = translator.engine.roles.acceptance
    drafts: list[Draft] = []

    def watch(scores, draft, prefix):
        verdict = rule(scores, draft, prefix)
        for tokens, sure, accepted, said in zip(draft.tokens, draft.confidence or [], verdict.accepted, prefix.scores):
            if tokens:
                before = math.exp(said[-1]) if said else None
                drafts.append(Draft([float(each) for each in sure[: len(tokens)]], accepted, before, len(said)))
        return verdict

    controller = FixedLength(options.block_size, Gate(drafter=NEVER_CLOSED))
    translator.engine.roles = translator.engine.roles._replace(acceptance=watch, controller=controller)
    translator.engine.generate(translator.encode(lines), 32)
    return drafts


def confidence(drafts: list[Draft]) -> dict[str, list[dict[str, Any]]]:
    """Acceptance of drafted tokens, by the product of confidences up to them and by the last token's probability."""
    product = [(each, n < d.accepted) for d in drafts for n, each in enumerate(accumulate(d.confidence, mul))]
    before = [(d.before, d.accepted) for d in drafts if d.before is not None]
    return {
        "by the product of the drafter's confidences": [
            {"from": low, "to": high, "tokens": len(chosen), "share": len(chosen) / len(product),
             "mean product": statistics.fmean(each for each, _ in chosen), "pass": statistics.fmean(p for _, p in chosen)}
            for low, high, chosen in classes(product)
        ],
        "by the verifier's probability of the token before the draft": [
            {"from": low, "to": high, "drafts": len(chosen), "share": len(chosen) / len(before),
             "first token passes": statistics.fmean(accepted > 0 for _, accepted in chosen),
             "accepted tokens": statistics.fmean(accepted for _, accepted in chosen)}
            for low, high, chosen in classes(before)
        ],
    }  # fmt: skip


def classes(measured: list) -> Iterator[tuple[float, float, list]]:
    """The measurements grouped by class of their first number, without empty classes."""
    for low, high in pairwise(EDGES):
        chosen = [each for each in measured if low <= each[0] < high or each[0] == high == EDGES[-1]]
        if chosen:
            yield low, high, chosen


if __name__ == "__main__":
    sys.exit(main())
