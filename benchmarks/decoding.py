"""Measure decoding on a real pair and a real test set: what stays identical, what tolerance costs, how long each strategy takes.

    benchmarks/decoding.py identity  --model DIR --source FILE
    benchmarks/decoding.py tolerance --model DIR --source FILE --reference FILE
    benchmarks/decoding.py speed     --model DIR --source FILE [--rounds N]

Prints a table for people and, as the last line, one line of JSON with the machine's signature.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from specdec_plugins.model_folder import load_folder  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text import read_lines  # noqa: E402
from specdec_plugins.translator import Translation, Translator  # noqa: E402

TOLERANT = {"beta": 3, "tau": 1.0}
BETAS, TAUS = (2, 3, 5), (0.5, 1.0, 2.0, 3.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("identity", "tolerance", "speed"))
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--source", required=True, type=Path, metavar="FILE")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="for tolerance")
    parser.add_argument("--sentences", type=int, metavar="N", help="only the first N")
    parser.add_argument("--rounds", type=int, default=3, help="of speed (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--block-size", type=int, metavar="K")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = list(read_lines(options.source))[: options.sentences]
    result = {"identity": identity, "tolerance": tolerance, "speed": speed}[options.what](options, lines)
    print(json.dumps({"benchmark": f"decoding {options.what}", **result, "signature": signature(options, lines)}))
    return 0


def signature(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    return {
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(), "device": "cpu",
        "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), ""),
        "threads": options.threads, "dtype": "float32", "model": options.model, "sentences": len(lines),
    }  # fmt: skip


def build(options: argparse.Namespace, **settings) -> Translator:
    block_size = {"block_size": options.block_size} if settings["strategy"] == "specdec" else {}
    return Translator(load_folder(options.model), Settings(**settings, **block_size))


def identity(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """Exact specdec against ar, and ar against fairseq's beam 1, token for token, at several batch sizes."""
    translators = {name: build(options, strategy=name) for name in ("fairseq", "ar", "specdec")}
    expected = translators["fairseq"].translate(lines, batch_size=1)
    rows = []
    for batch_size in (1, 16, 64):
        for name, translator in translators.items():
            found = translator.translate(lines, batch_size=batch_size)
            same = sum(ours.tokens == theirs.tokens for ours, theirs in zip(found, expected))
            worst = max(
                (abs(ours.score - theirs.score) for ours, theirs in zip(found, expected) if ours.tokens == theirs.tokens),
                default=0.0,
            )
            rows.append({"strategy": name, "batch_size": batch_size, "identical": same, "of": len(lines), "score_gap": worst})
            print(f"{name:8} batch {batch_size:3}: identical {same} of {len(lines)}, scores within {worst:.1e} nats", flush=True)
            for number, (ours, theirs) in enumerate(zip(found, expected)):
                if ours.tokens != theirs.tokens:
                    print(f"  line {number + 1}: {first_difference(ours, theirs)}")
    return {"rows": rows}


def first_difference(ours: Translation, theirs: Translation) -> str:
    """Where two outputs part, and how near the choice was there: the difference of the two tokens' log-probabilities."""
    pairs = zip([*ours.tokens, "</s>"], [*theirs.tokens, "</s>"])
    place = next(i for i, (a, b) in enumerate(pairs) if a != b)
    gap = abs(ours.token_scores[place] - theirs.token_scores[place])
    return f"token {place + 1}, {gap:.1e} nats apart"


def tolerance(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """BLEU and mean accepted length over a grid of beta and tau."""
    from sacrebleu.metrics import BLEU

    references = list(read_lines(options.reference))[: options.sentences]
    metric, rows = BLEU(), []
    print(" beta   tau    BLEU  tokens/pass  accepted  identical to exact")
    exact = None
    for beta, tau in [(1, float("inf")), *((beta, tau) for beta in BETAS for tau in TAUS)]:
        translator = build(options, strategy="specdec", beta=beta, tau=tau)
        found = translator.translate(lines)
        exact = exact or found
        bleu = metric.corpus_score([translation.text for translation in found], [references]).score
        same = sum(ours.tokens == theirs.tokens for ours, theirs in zip(found, exact))
        stats = translator.stats
        rows.append(
            {"beta": beta, "tau": tau if beta > 1 else None, "bleu": round(bleu, 2), "identical": same,
             "mean_accepted_length": round(stats.mean_accepted_length, 3), "acceptance_rate": round(stats.acceptance_rate, 3)}
        )  # fmt: skip
        print(
            f"{beta:5} {tau if beta > 1 else '-':>5} {bleu:7.2f} {stats.mean_accepted_length:12.2f} {stats.acceptance_rate:9.1%} "
            f"{same} of {len(lines)}",
            flush=True,
        )
    print(f"BLEU: {metric.get_signature()}")
    return {"rows": rows, "bleu_signature": str(metric.get_signature())}


def speed(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """Decoding time of each strategy (text processing left out), interleaved, after a warm-up; medians."""
    choices: dict[str, dict[str, Any]] = {
        "fairseq beam 1": {"strategy": "fairseq"},
        "ar": {"strategy": "ar"},
        "specdec exact": {"strategy": "specdec"},
        "specdec {beta}/{tau}".format(**TOLERANT): {"strategy": "specdec", **TOLERANT},
    }
    translators = {name: build(options, **settings) for name, settings in choices.items()}
    for translator in translators.values():
        translator.translate(lines[:32], batch_size=16)
    rows = []
    for batch_size in (1, 16):
        times: dict[str, list[float]] = {name: [] for name in choices}
        lengths: dict[str, float] = {}
        for _ in range(options.rounds):
            for name, translator in translators.items():
                before, began = dict(translator.stats.seconds), time.perf_counter()
                found = translator.translate(lines, batch_size=batch_size)
                spent = time.perf_counter() - began
                times[name].append(spent - (translator.stats.seconds["text"] - before["text"]))
                lengths[name] = sum(len(translation.token_scores) for translation in found)
        base = statistics.median(times["fairseq beam 1"])
        for name, found_times in times.items():
            median = statistics.median(found_times)
            stats = translators[name].stats
            rows.append(
                {"strategy": name, "batch_size": batch_size, "seconds": [round(value, 3) for value in found_times],
                 "sentences_per_second": round(len(lines) / median, 1), "tokens_per_second": round(lengths[name] / median),
                 "times_fairseq": round(base / median, 2), "mean_accepted_length": round(stats.mean_accepted_length, 3)}
            )  # fmt: skip
            print(
                f"batch {batch_size:3}  {name:16} {median:7.2f} s {len(lines) / median:8.1f} sentences/s "
                f"{lengths[name] / median:7.0f} tokens/s {base / median:6.2f} x fairseq "
                f"{stats.mean_accepted_length:6.2f} tokens/pass",
                flush=True,
            )
    return {"rows": rows, "rounds": options.rounds}


if __name__ == "__main__":
    sys.exit(main())
