#!/usr/bin/env python3
"""Measure decoding with a trained pair on a test set: what stays identical, what tolerance costs, what is accepted.

    benchmarks/decoding.py identity  --model DIR --source FILE
    benchmarks/decoding.py tolerance --model DIR --source FILE --reference FILE
    benchmarks/decoding.py acceptance --model DIR --source FILE
    benchmarks/decoding.py failures   --model DIR --source FILE
    benchmarks/decoding.py drafters   --model DIR --against DIR --source FILE
    benchmarks/decoding.py time       --model DIR --source FILE
    benchmarks/decoding.py auto       --model DIR --source FILE

Prints a table and, as the last line, one line of JSON with the machine's signature.
"""

import argparse
import gc
import json
import math
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.backends.cpu.binding import library  # noqa: E402
from specdec_plugins.decoding.backends.torch.transformer import DRAFT_VOCABULARY  # noqa: E402
from specdec_plugins.decoding.prefix import Prefix  # noqa: E402
from specdec_plugins.decoding.stats import DecodeStats  # noqa: E402
from specdec_plugins.decoding.values import Draft, Plan, Verdict  # noqa: E402
from specdec_plugins.formats.folder import load_folder  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.settings import CONTROLLERS, Settings  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402
from specdec_plugins.translator import Translation, Translator  # noqa: E402

BETAS, TAUS = (2, 3, 5), (0.3, 0.5, 1.0, 2.0, 3.0)
CALLS = {  # native functions, and what each does
    "encode": "encode: source", "remember": "remember: source entries", "verify": "verify: read and judge",
    "propose": "propose: read and choose", "read": "read", "draft": "draft: read a block", "choose": "choose",
    "judge": "judge", "decode": "decode: iterations",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(MODES))
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--source", required=True, type=Path, metavar="FILE")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="for tolerance")
    parser.add_argument("--against", metavar="DIR", help="for drafters: the same verifier with another drafter")
    parser.add_argument("--sentences", type=int, metavar="N", help="only the first N")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[4, 6, 8, 12], metavar="K", help="for acceptance and auto")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128], metavar="N", help="for auto")
    parser.add_argument("--controllers", nargs="+", default=["throughput"], choices=CONTROLLERS, metavar="C", help="for auto")
    parser.add_argument("--rounds", type=int, default=101, metavar="N", help="for auto")
    options = parser.parse_args()
    for what, needed in (("tolerance", "reference"), ("drafters", "against")):
        if options.what == what and getattr(options, needed) is None:
            parser.error(f"{what} needs --{needed}")
    lines = list(read_lines(options.source))[: options.sentences]
    result = MODES[options.what](options, lines)
    signature = {**machine(), "threads": options.threads, "dtype": options.dtype, "model": options.model, "sentences": len(lines)}
    print(json.dumps({"benchmark": f"decoding {options.what}", **result, "signature": signature}))
    return 0


def build(options: argparse.Namespace, successor: bool = True, **settings) -> Translator:
    """A translator of the model; without ``successor``, its drafter chooses each token of a block by itself."""
    pair = load_folder(options.model)
    if not successor and pair.drafter:
        kept = {name: tensor for name, tensor in pair.drafter.tensors.items() if ".successor." not in name}
        pair = replace(pair, drafter=replace(pair.drafter, tensors=kept, options={**pair.drafter.options, "successor_width": 0}))
    if settings["strategy"] == "specdec":
        settings = {"block_size": pair.block_size, **settings}
    dtype = "float32" if settings["strategy"] == "fairseq" else options.dtype
    return Translator(pair, Settings(**settings, dtype=dtype, threads=options.threads))


def identity(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """ar and exact specdec against fairseq's beam 1 in float32, and against ar at batch size 1, token for token."""
    translators = {name: build(options, strategy=name) for name in ("fairseq", "ar", "specdec")}
    expected = translators["fairseq"].translate(lines, batch_size=1)
    plain = translators["ar"].translate(lines, batch_size=1)
    rows = []
    for batch_size in (1, 16, 64):
        for name, translator in translators.items():
            found = translator.translate(lines, batch_size=batch_size)
            pairs = [(ours, theirs) for ours, theirs in zip(found, expected) if ours.tokens == theirs.tokens]
            gap = max((abs(ours.score - theirs.score) for ours, theirs in pairs), default=0.0)
            as_ar = sum(ours.tokens == theirs.tokens for ours, theirs in zip(found, plain))
            row = {"strategy": name, "batch_size": batch_size, "as_fairseq": len(pairs), "as_ar": as_ar, "of": len(lines)}
            rows.append({**row, "score_gap": gap})
            counts = f"as fairseq {len(pairs)}, scores within {gap:.1e} nats; as ar {as_ar}"
            print(f"{name:8} batch {batch_size:3}: of {len(lines)}, {counts}", flush=True)
            if options.dtype == "float32":
                for number, (ours, theirs) in enumerate(zip(found, expected)):
                    if ours.tokens != theirs.tokens:
                        print(f"  line {number + 1}: {first_difference(ours, theirs)}")
    return {"rows": rows}


def first_difference(ours: Translation, theirs: Translation) -> str:
    """The first token that differs between two outputs, and by how much the two tokens' log-probabilities differ."""
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


def acceptance(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """What is accepted, by block size, position in the block and length of the source, with and without successor network."""
    rows = []
    drafter = load_folder(options.model).drafter
    related = (True, False) if drafter and any(".successor." in name for name in drafter.tensors) else (False,)
    print("    K  successor  tokens/pass  accepted by position, if all before it were")
    for block_size, successor in product(options.block_sizes, related):
        found = build(options, successor, strategy="specdec", block_size=block_size).translate(lines)
        reached, passed = Counter[int](), Counter[int]()
        for step in (step for translation in found for step in translation.steps):
            for place in range(min(len(step.drafted), step.accepted + 1)):
                reached[place] += 1
                passed[place] += step.accepted > place
        shares = [round(passed[place] / reached[place], 3) for place in sorted(reached)]
        by_length = {}
        for low, high in ((1, 9), (10, 14), (15, 19), (20, 999)):
            group = [each for each in found if low <= len(each.source_tokens) <= high]
            by_length[f"{low}-{high}"] = round(tokens_a_pass(group), 3) if group else None
        rows.append(
            {"block_size": block_size, "successor": successor, "mean_accepted_length": round(tokens_a_pass(found), 3),
             "by_position": shares, "by_source_length": by_length}
        )  # fmt: skip
        print(f"{block_size:5}  {'yes' if successor else 'no':9} {tokens_a_pass(found):12.2f}  {shares}  {by_length}", flush=True)
    return {"rows": rows}


def timed(translator: Translator, lines: list[str], batch_size: int = 1) -> tuple[DecodeStats, float]:
    """The statistics of decoding some lines, and the seconds it took, tokenising and detokenising excluded."""
    translator.take_stats()
    translator.translate(lines, batch_size=batch_size)
    stats = translator.stats
    return stats, sum(stats.seconds.values()) - stats.seconds["text"]


def interleaved(
    translators: list[Translator], lines: list[str], rounds: int, batch_size: int = 1, some: int | None = None
) -> list[list[tuple[DecodeStats, float]]]:
    """The results of `timed` by translator and round; each round runs all translators, in alternating order.

    With ``some``, a round decodes only so many lines, and the next round those after them. A run over all lines warms up.
    """
    found: list[list[tuple[DecodeStats, float]]] = [[] for _ in translators]
    for translator in translators:
        timed(translator, lines, batch_size)
    gc.freeze()  # a full collection visits all of PyTorch's objects, takes 90 ms, and would be charged to one translator
    parts = cycle([lines[start : start + some] for start in range(0, len(lines) - some + 1, some)] if some else [lines])
    for number, part in zip(range(rounds), parts):
        for results, translator in list(zip(found, translators))[:: -1 if number % 2 else 1]:
            results.append(timed(translator, part, batch_size))
    return found


def drafters(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """Two drafters of one verifier, interleaved, at batch size 1: speed, and what a draft costs."""
    keys = list(product((options.model, options.against), options.block_sizes))
    translators = [
        build(argparse.Namespace(**{**vars(options), "model": model}), strategy="specdec", block_size=size)
        for model, size in keys
    ]
    rows = []
    print("    K  tokens/s  tokens/pass  drafting, us a pass")
    for (model, block_size), found in zip(keys, interleaved(translators, lines, rounds=7)):
        speed = round(statistics.median(stats.committed / seconds for stats, seconds in found))
        tokens = round(found[-1][0].mean_accepted_length, 3)
        cost = round(statistics.median(1e6 * stats.seconds["drafting"] / stats.passes for stats, _ in found))
        row = {"model": model, "block_size": block_size, "tokens_per_second": speed}
        rows.append({**row, "tokens_a_pass": tokens, "drafting_us": cost})
        print(f"{block_size:5} {speed:9,} {tokens:12.2f} {cost:20}  {model}")
    return {"rows": rows}


class SecondChoices:
    """A drafter's model that notes, for each draft of a single row, the second choice at each position.

    That is what the model chooses if only the first choice at this position is ruled out.
    """

    def __init__(self, model: Any, vocabulary: torch.Tensor | None):
        """``vocabulary`` has the tokens that the numbers of the logits are; None where these are the tokens."""
        self.model, self.drafts = model, list[list[int]]()
        self.numbers = None if vocabulary is None else {token: number for number, token in enumerate(vocabulary.tolist())}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def read(self, *arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(choose=partial(self.choose, self.model.read(*arguments)))

    def read_block(self, *arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(choose=partial(self.choose, self.model.read_block(*arguments)))

    def choose(self, reading: Any, prefix: Prefix, plan: Plan) -> Draft:
        logits = reading.logits().clone()  # (1, K, V), as choosing writes to them
        draft, others = reading.choose(prefix, plan), []
        for place, token in enumerate(draft.tokens[0]):
            changed = logits.clone()
            changed[0, place, token if self.numbers is None else self.numbers[token]] = -math.inf
            others.append(reading.with_logits(changed).choose(prefix, plan).tokens[0][place])
        self.drafts.append(others)
        return draft


def failures(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """How sure the verifier is where drafts pass and where they fail, and examples of refused tokens."""
    translator = build(options, strategy="specdec")
    drafter: Any = translator.roles.drafter
    rule, weights = translator.roles.acceptance, translator.pair.drafter
    assert weights is not None, "strategy specdec has a drafter"
    drafter.model = model = SecondChoices(drafter.model, weights.tensors.get(DRAFT_VOCABULARY))
    seen: list[list[tuple[float, float]]] = []  # of each pass, by position: entropy in nats, and the best token's probability

    def watched(scores: Any, draft: Draft, prefix: Prefix) -> Verdict:
        chances = scores.logits()[0, : len(draft.tokens[0]) + 1].softmax(-1)  # (K + 1, V)
        entropy = torch.special.entr(chances).sum(-1)
        seen.append(list(zip(entropy.tolist(), chances.max(-1)[0].tolist())))
        return rule(scores, draft, prefix)

    translator.roles = translator.roles._replace(acceptance=watched)
    judgements, refused, near = [], [], 0
    for line in lines:
        seen.clear()
        model.drafts.clear()
        (found,) = translator.translate([line], batch_size=1)
        done: list[int] = []
        drafts = iter(model.drafts)
        for step, sure in zip(found.steps, seen):
            others = next(drafts) if step.drafted else []
            for place in range(min(len(step.drafted), step.accepted + 1)):
                judgements.append((sure[place][0], step.accepted > place))
            if step.accepted < len(step.drafted):
                near += others[step.accepted] == step.own
                before = " ".join(translator.words([*done, *step.drafted[: step.accepted]][-8:]))
                drafted, own = translator.words([step.drafted[step.accepted], step.own or 0])
                refused.append({
                    "source": line, "before": before, "drafted": drafted, "verifier": own, "place": step.accepted + 1,
                    "entropy": round(sure[step.accepted][0], 2), "probability": round(sure[step.accepted][1], 2),
                })  # fmt: skip
            done += [*step.drafted[: step.accepted], *([step.own] if step.own is not None else [])]
    rows = []
    print("entropy of the verifier, nats   tokens judged  accepted  of all refusals")
    for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 1), (1, 2), (2, 99)):
        group = [passed for entropy, passed in judgements if low <= entropy < high]
        share, part = sum(group) / max(1, len(group)), (len(group) - sum(group)) / max(1, len(refused))
        rows.append({"from": low, "to": high, "judged": len(group), "accepted": round(share, 3), "of_refusals": round(part, 3)})
        print(f"{f'{low} to {high}':30} {len(group):14,} {share:9.1%} {part:16.1%}")
    print(f"refused where the verifier's token was the drafter's second choice: {near / max(1, len(refused)):.1%}")
    examples = random.Random(1).sample(refused, min(10, len(refused)))
    for example in examples:
        print(
            "{source}\n    .. {before} [{drafted}] -> {verifier}   place {place}, {entropy} nats, p {probability}".format(
                **example
            )
        )
    return {"rows": rows, "refusals": len(refused), "second_choice": round(near / max(1, len(refused)), 3), "examples": examples}


def split(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """Where an iteration's time goes at batch size 1: in each native call, and in Python around them."""
    native, clock = library(), time.perf_counter
    if native is None:
        sys.exit("decoding.py: error: time needs the CPU kernels, which were not compiled for this machine")
    spent: defaultdict[str, float] = defaultdict(float)

    def clocked(function: Any, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            began = clock()
            result = function(*arguments)
            spent[name] += clock() - began
            return result

        return call

    for name, title in CALLS.items():
        setattr(native, f"specdec_{name}", clocked(getattr(native, f"specdec_{name}"), title))
    rows: list[dict[str, Any]] = []
    for block_size in (0, *options.block_sizes):
        strategy: dict[str, Any] = {"strategy": "specdec", "block_size": block_size} if block_size else {"strategy": "ar"}
        translator = build(options, **strategy)
        rounds: list[dict[str, float]] = []
        for _ in range(6):  # the first one warms up
            spent.clear()
            stats, seconds = timed(translator, lines)
            parts = {**spent, "Python": seconds - sum(spent.values()), "in all": seconds}
            rounds.append({name: 1e6 * seconds / stats.passes for name, seconds in parts.items()})
        middle = {name: round(statistics.median(each[name] for each in rounds[1:])) for name in rounds[-1]}
        rows.append({"block_size": block_size, "tokens_a_pass": round(stats.mean_accepted_length, 3), "microseconds": middle})
        print(f"{f'block size {block_size}' if block_size else 'ar'}: {stats.mean_accepted_length:.2f} tokens a pass")
        for name, taken in middle.items():
            print(f"  {name:24} {taken:6} us a pass  {taken / middle['in all']:5.0%}")
    return {"rows": rows}


def auto(options: argparse.Namespace, lines: list[str]) -> dict[str, Any]:
    """Controllers against plain decoding and against the best fixed length in hindsight, interleaved in one process.

    Rounds are short and many, as the machine's pace changes. Reports medians of their ratios with 95 % intervals.
    """
    fixed = {"ar": build(options, strategy="ar")}
    fixed |= {f"{size} tokens": build(options, strategy="specdec", block_size=size) for size in options.block_sizes}
    adaptive = {name: build(options, strategy="specdec", block_size=None, controller=name) for name in options.controllers}
    systems, rows = {**fixed, **adaptive}, []
    print("batch  controller   ar, tokens/s  its tokens/s  its / ar (95 %)         its / best fixed (95 %)             lengths")
    for batch_size in options.batch_sizes:
        some = min(len(lines), max(16, 2 * batch_size))
        found = dict(zip(systems, interleaved(list(systems.values()), lines, options.rounds, batch_size, some)))
        speeds = {name: [stats.committed / seconds for stats, seconds in results] for name, results in found.items()}
        best = min(fixed, key=lambda name: sum(seconds for _, seconds in found[name]))
        medians = {name: round(statistics.median(rates)) for name, rates in speeds.items()}
        for name in adaptive:
            to_ar, to_best = ([ours / theirs for ours, theirs in zip(speeds[name], speeds[other])] for other in ("ar", best))
            lengths = dict(sorted(found[name][-1][0].lengths.items()))
            row = {"batch_size": batch_size, "controller": name, "ar": medians["ar"], "auto": medians[name], "lengths": lengths}
            row |= {"ratios": [round(each, 3) for each in sorted(to_ar)]}
            rows.append({**row, "best": best, "to_best": [round(each, 3) for each in sorted(to_best)]})
            print(
                f"{batch_size:5}  {name:11} {medians['ar']:13,} {medians[name]:13,}  {between(to_ar)}  "
                f"{between(to_best)} {best:>9}  {lengths}", flush=True,
            )  # fmt: skip
    return {"rows": rows}


def between(ratios: list[float]) -> str:
    """The median with its 95 % interval, which is that of ranks."""
    ranked, count = sorted(ratios), len(ratios)
    away = min(count // 2, math.ceil(0.98 * math.sqrt(count)))
    return f"{statistics.median(ranked):.3f} ({ranked[count // 2 - away]:.3f} to {ranked[(count - 1) // 2 + away]:.3f})"


MODES = {"identity": identity, "tolerance": tolerance, "acceptance": acceptance, "failures": failures, "drafters": drafters,
         "time": split, "auto": auto}  # fmt: skip


def tokens_a_pass(found: list[Translation]) -> float:
    return sum(len(each.token_scores) for each in found) / sum(len(each.steps) for each in found)


if __name__ == "__main__":
    sys.exit(main())
