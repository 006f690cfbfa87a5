#!/usr/bin/env python3
"""Drafts on a cache budget for long sources and large batches, compared with `ar`: MagicDec's grid of self-speculation.

    benchmarks/long.py --model DIR --input FILE [--batch-sizes 1 8 32 64] [--lengths 500 1000 2000 4000]
        [--budgets 64 128 256 512] [--gammas 1 2 3 4 5] [--choices mass]
        [--random 6,512,2048,8 --acceptance 0.8] [--output FILE]

Sources are consecutive lines of the input, cut to a length in tokens. A batch is encoded once; then all systems decode the same
number of tokens per row from it, in turn. No output ends early, so the batch stays whole. `times ar` is a median over rounds.
Bytes are computed: what a verification reads of weights and cache, and a draft pass of its cache, at half of the output.
--random gives the verifier random weights of a shape (layers, width, inner width, heads); --acceptance then draws how many tokens
pass. Otherwise outputs must equal those of `ar`.
"""

import argparse
import json
import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from random_pair import Shape, random_pair  # noqa: E402

from specdec_plugins.assignment import USUAL_BLOCK_SIZE  # noqa: E402
from specdec_plugins.cpus import usable_cpus  # noqa: E402
from specdec_plugins.decoding.acceptance.tolerant import TopBetaTau  # noqa: E402
from specdec_plugins.decoding.admission import BoundedAdmission  # noqa: E402
from specdec_plugins.decoding.assembly import load  # noqa: E402
from specdec_plugins.decoding.backends.cpu import binding  # noqa: E402
from specdec_plugins.decoding.backends.cpu.model import CpuModel  # noqa: E402
from specdec_plugins.decoding.constraints import Constraints  # noqa: E402
from specdec_plugins.decoding.control.fixed import FixedLength  # noqa: E402
from specdec_plugins.decoding.control.throughput import Throughput  # noqa: E402
from specdec_plugins.decoding.drafters.window import WindowDrafter  # noqa: E402
from specdec_plugins.decoding.loop import ITERATIONS_PER_CALL, Session  # noqa: E402
from specdec_plugins.decoding.options import CHOICES, USUAL_BUDGET, Budget  # noqa: E402
from specdec_plugins.decoding.prefix import Prefix  # noqa: E402
from specdec_plugins.decoding.requests import Request, Source  # noqa: E402
from specdec_plugins.decoding.roles import (  # noqa: E402
    Acceptance,
    Controller,
    Drafter,
    NoDrafter,
    Roles,
)
from specdec_plugins.decoding.stats import DecodeStats  # noqa: E402
from specdec_plugins.decoding.values import Draft, Verdict  # noqa: E402
from specdec_plugins.decoding.verifier import ModelVerifier  # noqa: E402
from specdec_plugins.formats.folder import load_folder  # noqa: E402
from specdec_plugins.formats.spec import Model  # noqa: E402
from specdec_plugins.measure.machine import machine  # noqa: E402
from specdec_plugins.settings import Settings  # noqa: E402
from specdec_plugins.text.lines import read_lines  # noqa: E402
from specdec_plugins.translator import Translator  # noqa: E402

WEIGHT_BYTES = {**binding.WEIGHT_BYTES, "float16": 2, "float64": 8}


class System(NamedTuple):
    """Drafts of ``gamma`` tokens on a budget."""

    gamma: int | str
    budget: Budget


AR = System(0, Budget(0, 0, "-"))
OTHER = 5  # the verifier's token where drafts are replayed


class Replayed:
    """Computes a rule, then replaces its verdict: drafted tokens pass with one probability, given that all before did."""

    def __init__(self, rule: Acceptance, share: float):
        self.rule, self.share, self.random = rule, share, random.Random(1)

    def __call__(self, scores: Any, draft: Draft, prefix: Prefix) -> Verdict:
        verdict = self.rule(scores, draft, prefix)
        counts = []
        for tokens in draft.tokens:
            counts.append(0)
            while counts[-1] < len(tokens) and self.random.random() < self.share:
                counts[-1] += 1
        values = [[0.0] * (count + 1) for count in counts]
        return verdict._replace(accepted=counts, own=[OTHER] * len(counts), scores=values, cut=[False] * len(counts))


class Run(NamedTuple):
    tokens: int
    seconds: float
    stats: DecodeStats
    outputs: list[list[int]]


class Cell:
    """Sources of one length, encoded once, and the systems that decode them."""

    def __init__(self, options: argparse.Namespace, verifier: Model, documents: Sequence[list[int]]):
        self.options, self.spec, self.documents = options, verifier.spec, documents
        self.model, _ = load(verifier, None, options.device, options.dtype, options.threads)
        self.verifier = ModelVerifier(self.model)
        self.state = self.verifier.start(len(documents))
        began = time.perf_counter()
        self.source = Source(documents, verifier.spec.symbols, options.device)  # encoded once for all
        self.verifier.admit(self.state, self.source)
        self.prefill = time.perf_counter() - began
        # Nothing ends before the slowest row has its tokens: until then a row may get all that is drafted, in every pass.
        longest = max([2 * USUAL_BLOCK_SIZE, *(gamma for gamma in options.gammas if isinstance(gamma, int))])
        limit = min((options.tokens + 1) * (longest + 1), verifier.spec.decoder.max_positions - 1)
        self.requests = [Request(index, tokens, limit, min_length=limit) for index, tokens in enumerate(documents)]
        # What a pass reads: layers and output projection, but not the projections of the source, which the cache has.
        read = ("decoder.layers.", "decoder.output_projection.")
        sources = ("encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight")
        numbers = sum(
            math.prod(each.shape)
            for name, each in verifier.tensors.items()
            if name.startswith(read) and not name.endswith(sources)
        )
        self.products, self.read_bytes = numbers, numbers * WEIGHT_BYTES[options.dtype]

    def run(self, system: System) -> Run:
        """Decode from the beginning until every row has its tokens."""
        options, stats = self.options, DecodeStats()
        drafter: Drafter = WindowDrafter(self.model, system.budget) if system.gamma else NoDrafter()
        controller: Controller = Throughput(USUAL_BLOCK_SIZE) if system.gamma == "auto" else FixedLength(int(system.gamma))
        rule = Replayed(TopBetaTau(), options.acceptance) if options.acceptance is not None and system.gamma else TopBetaTau()
        session = Session(
            Roles(drafter, self.verifier, rule, controller),
            BoundedAdmission(1),
            1,
            Constraints.of(self.spec),
            stats,
            options.device,
        )
        runner = session.runner
        runner.verifying, runner.drafting = self.state, drafter.start(len(self.documents), self.state)
        drafter.admit(runner.drafting, self.source)
        if runner.drafting is not None:
            runner.drafting.cache.encode()
        session.prefix.admit(self.requests)
        began, outputs = time.perf_counter(), session.prefix.outputs
        while (missing := options.tokens - min(map(len, outputs))) > 0:
            if any(commit.finished for commit in session.step(min(missing, ITERATIONS_PER_CALL))):
                raise SystemExit(
                    f"a row reached the limit of {self.requests[0].limit:,} tokens before others had {options.tokens:,}"
                )
        if options.device != "cpu":
            torch.cuda.synchronize()
        return Run(sum(map(len, outputs)), time.perf_counter() - began, stats, outputs)

    def measure(self, systems: Sequence[System]) -> Iterator[dict[str, Any]]:
        """A row a system. Raises SystemExit where outputs differ on the kernels."""
        options = self.options
        self.run(systems[-1])  # warms up
        rounds = [[self.run(system) for system in systems] for _ in range(options.rounds)]
        for system, runs in zip(systems, zip(*rounds)):
            plain = [each[0] for each in rounds]
            same = [mine[: options.tokens] == own[: options.tokens] for mine, own in zip(runs[0].outputs, plain[0].outputs)]
            if options.acceptance is None and isinstance(self.model, CpuModel) and not all(same):
                raise SystemExit(f"{system}: outputs {[row for row, equal in enumerate(same) if not equal]} are not those of ar")
            yield self.row(system, runs, plain) | {"identical": sum(same)}

    def row(self, system: System, runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
        batch, length, half = len(self.documents), len(self.documents[0]), self.options.tokens // 2
        stats, budget = runs[-1].stats, system.budget
        speeds, own = ([each.tokens / each.seconds for each in some] for some in (runs, plain))
        reads = min(budget.positions, length), min(budget.positions, half)
        return {
            "batch": batch,
            "length": length,
            "gamma": system.gamma,
            **budget._asdict(),
            "tokens_per_second": round(statistics.median(speeds), 1),
            "times_ar": round(statistics.median(mine / other for mine, other in zip(speeds, own)), 3),
            "tokens_a_pass": round(stats.mean_accepted_length, 3),
            "accepted": round(stats.acceptance_rate, 3),
            "drafting_ms": round(1e3 * stats.seconds["drafting"] / stats.passes, 2),
            "verifying_ms": round(1e3 * stats.seconds["verifying"] / stats.passes, 2),
            "products": self.products,
            "weights_mb": round(self.read_bytes / 1e6, 2),
            "cache_mb": round(batch * self.model.bytes_for(length, half) / 1e6, 2),
            "draft_cache_mb": round(batch * self.model.bytes_for(*reads) / 1e6, 2),
            "prefill_s": round(self.prefill, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }


def documents(sentences: Sequence[list[int]], batch: int, length: int) -> list[list[int]]:
    """Sources of ``length`` tokens: consecutive sentences without their eos, each from another start."""
    found = []
    for row in range(batch):
        first = row * len(sentences) // batch
        tokens = (token for sentence in cycle([*sentences[first:], *sentences[:first]]) for token in sentence[:-1])
        found.append([*islice(tokens, length - 1), sentences[0][-1]])
    return found


def grid(options: argparse.Namespace) -> None:
    pair = load_folder(options.model)
    verifier = pair.verifier
    if options.random:
        layers, width, inner, heads = options.random
        positions = 2 * max(*options.lengths, options.tokens)
        verifier, _ = random_pair(Shape(layers, 1, width, inner, heads, len(pair.source.symbols), positions=positions))
    most = verifier.spec.encoder.max_positions
    if max(options.lengths) > most:
        raise SystemExit(f"--lengths {max(options.lengths)}: {options.model} has {most} positions")
    sentences = Translator(pair, Settings(strategy="ar", threads=1)).encode(list(read_lines(options.input)))
    sentences = [sentence for sentence in sentences if len(sentence) > 1]
    known = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    mine = options.model, options.dtype
    done = {(row["batch"], row["length"]) for row in known if (row["model"], row["dtype"]) == mine}
    budgets = [Budget(*each) for each in product(options.budgets, [options.sinks], options.choices)]
    systems = [AR, *(System(gamma, budget) for budget in budgets for gamma in options.gammas)]
    signature = {**machine(options.device), "threads": options.threads, "random": options.random}
    print("| batch | length | gamma | budget | choice | tokens/s | times ar | tokens/pass | accepted | drafting, verifying, ms |")
    print("| --- " * 10 + "|", flush=True)
    for batch, length in product(options.batch_sizes, options.lengths):
        if (batch, length) in done:
            continue
        rows = list(Cell(options, verifier, documents(sentences, batch, length)).measure(systems))
        for row in rows:
            print(
                f"| {batch} | {length} | {row['gamma']} | {row['positions']} | {row['choice']} | {row['tokens_per_second']} | "
                f"{row['times_ar']:.2f} | {row['tokens_a_pass']:.2f} | {row['accepted']:.0%} | {row['drafting_ms']}, "
                f"{row['verifying_ms']} |",
                flush=True,
            )
        with options.output.open("a", encoding="utf-8") as file:  # a batch and length at a time: what is not there is done again
            for row in rows:
                more = {
                    "model": options.model,
                    "dtype": options.dtype,
                    "acceptance": options.acceptance,
                    "signature": signature,
                }
                file.write(json.dumps({"benchmark": "long", **row, **more}) + "\n")


def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--model", required=True, metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE")
    p.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 64])
    p.add_argument("--lengths", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    p.add_argument("--budgets", type=int, nargs="+", default=[64, 128, 256, 512])
    p.add_argument("--sinks", type=int, default=USUAL_BUDGET.sinks)
    p.add_argument("--choices", nargs="+", choices=CHOICES, default=["mass"])
    p.add_argument("--gammas", type=number_or_auto, nargs="+", default=[1, 2, 3, 4, 5])
    p.add_argument("--tokens", type=int, default=64, help="of each row")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--random", type=lambda text: list(map(int, text.split(","))), metavar="LAYERS,WIDTH,INNER,HEADS")
    p.add_argument("--acceptance", type=float, metavar="P", help="accept each drafted token with this probability")
    p.add_argument("--dtype", default="int8", choices=sorted(WEIGHT_BYTES))
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=usable_cpus())
    p.add_argument("--output", type=Path, default=Path("long.jsonl"), help="rows as JSON lines; what it has is not done again")
    grid(p.parse_args())


if __name__ == "__main__":
    main()
