#!/usr/bin/env python3
"""When drafting pays: gates on the verifier's confidence and on the drafter's, beside no gate, no draft and no verifier.

    benchmarks/gates.py speed --input TEXT [--model data/demo.en-de] [--sentences 60] [--rounds 7] [--batch-size 1]
    benchmarks/gates.py confidence --input TEXT [--model data/demo.en-de] [--sentences 300]

``speed`` decodes the same sentences with every system in turn, in each data type, greedily and at temperature 0.8 (coupled rule),
and prints tokens a second, the gain over exact `specdec` of the same block size without a gate (median of the rounds' ratios),
tokens a pass, the share of drafted tokens that are accepted, and verified positions for each token committed; beside gates, also
shorter drafts without one. ``confidence`` prints how often drafted tokens pass, by the product of the drafter's confidences and
by the verifier's confidence in the token before the draft. The last line is JSON with the machine's signature. Nothing else
should run beside ``speed``.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, islice, pairwise
from operator import mul
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sampling import add_options, seconds  # noqa: E402

from specdec_plugins import Translator  # noqa: E402
from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.control.fixed import FixedLength  # noqa: E402
from specdec_plugins.decoding.options import Gate  # noqa: E402
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
        print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f"))
        result |= {"rows": rows, "batch size": options.batch_size, "rounds": options.rounds}
    else:
        for name, rows in confidence(options, lines).items():
            print(f"\n{name}\n{tabulate(rows, headers='keys', tablefmt='github', floatfmt='.2f')}")
            result[name] = rows
    print(json.dumps({**result, "block size": options.block_size, "signature": signature}))
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("what", choices=["speed", "confidence"])
    add_options(p)
    return p


def speed(options: argparse.Namespace, dtype: str, sampled: bool, lines: list[str]) -> list[dict[str, Any]]:
    """A row for each system."""
    how: dict[str, Any] = {"dtype": dtype}
    if sampled:
        how |= {"sampling": True, "temperature": TEMPERATURE, "seed": 1}
    speculative = {"block_size": options.block_size}
    systems: dict[str, dict[str, Any]] = {
        "specdec": speculative,
        "ar": {"strategy": "ar"},
        "drafter": {"strategy": "drafter", **speculative},
        **{f"{length} tokens": {"block_size": length} for length in SHORTER if length < options.block_size},
        **{f"verifier {threshold}": {**speculative, "verifier_gate": threshold} for threshold in VERIFIER},
        **{f"drafter {threshold}": {**speculative, "drafter_gate": threshold} for threshold in DRAFTER},
        f"both {BOTH[0]}, {BOTH[1]}": {**speculative, "verifier_gate": BOTH[0], "drafter_gate": BOTH[1]},
    }
    translators = {name: Translator.from_pretrained(options.model, **how, **more) for name, more in systems.items()}
    decode = partial(seconds, sources=translators["ar"].encode(lines), batch_size=options.batch_size)
    for translator in translators.values():
        decode(translator)
        translator.take_stats()
    rounds = [{name: decode(translator) for name, translator in translators.items()} for _ in range(options.rounds)]
    rows = []
    for name, translator in translators.items():
        stats = translator.stats
        rows.append({
            "dtype": dtype, "tokens are": f"drawn at {TEMPERATURE}" if sampled else "the best", "system": name,
            "tokens/s": stats.committed / options.rounds / statistics.median(each[name] for each in rounds),
            "gain": statistics.median(each["specdec"] / each[name] for each in rounds)
            * stats.committed / translators["specdec"].stats.committed,
            "tokens a pass": stats.mean_accepted_length, "accepted": stats.acceptance_rate,
            "verified a token": 0.0 if name == "drafter" else (stats.iterations + stats.drafted) / stats.committed,
        })  # fmt: skip
    return rows


def confidence(options: argparse.Namespace, lines: list[str]) -> dict[str, list[dict[str, Any]]]:
    """How often drafted tokens pass: by the product of confidences up to them, and by the last token's probability."""
    translator = Translator.from_pretrained(options.model, block_size=options.block_size)
    gate = Gate(drafter=NEVER_CLOSED)
    rule = translator.roles.acceptance
    product: list[tuple[float, bool]] = []  # of confidences up to a drafted token; whether it passed with all before it
    before: list[tuple[float, int, int]] = []  # probability of the last committed token; accepted and drafted tokens

    def watch(scores, draft, prefix):
        verdict = rule(scores, draft, prefix)
        for tokens, sure, accepted, said in zip(draft.tokens, draft.confidence or [], verdict.accepted, prefix.scores):
            product.extend((each, place < accepted) for place, each in enumerate(accumulate(sure[: len(tokens)], mul)))
            if said and tokens:
                before.append((math.exp(said[-1]), accepted, len(tokens)))
        return verdict

    translator.roles = translator.roles._replace(acceptance=watch, controller=FixedLength(options.block_size, gate))
    translator.translate_tokens(translator.encode(lines), 32)
    return {
        "by the product of the drafter's confidences": [
            {"from": low, "to": high, "tokens": len(chosen), "share": len(chosen) / len(product),
             "mean product": statistics.fmean(each for each, _ in chosen), "pass": statistics.fmean(p for _, p in chosen)}
            for low, high, chosen in classes(product)
        ],
        "by the verifier's probability of the token before the draft": [
            {"from": low, "to": high, "drafts": len(chosen), "share": len(chosen) / len(before),
             "first token passes": statistics.fmean(accepted > 0 for _, accepted, _ in chosen),
             "accepted tokens": statistics.fmean(accepted for _, accepted, _ in chosen)}
            for low, high, chosen in classes(before)
        ],
    }  # fmt: skip


def classes(measured: list) -> Iterator[tuple[float, float, list]]:
    """The measurements by class of their first number; classes without any are left out."""
    for low, high in pairwise(EDGES):
        chosen = [each for each in measured if low <= each[0] < high or each[0] == high == EDGES[-1]]
        if chosen:
            yield low, high, chosen


if __name__ == "__main__":
    sys.exit(main())
