"""Decoding options: defaults, ranges, help texts and valid combinations.

Imports neither torch nor fairseq, so that commands check their options at once.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from specdec_plugins.cpus import usual_threads
from specdec_plugins.decoding.options import (
    CHOICES,
    KERNELS,
    MAX_BEAMS,
    MAX_BLOCK_SIZE,
    MAX_LENGTH_PENALTY,
    MAX_UNK_PENALTY,
    RULES,
    USUAL_BUDGET,
    Budget,
    Sampling,
)
from specdec_plugins.fields import MOST, STRATEGIES, Fault, OptionError, count, option, option_of, value_faults

DRAFTING = ("specdec", "drafter")  # strategies that draft
UNTRAINED = ("ngram", "recycling", "lookahead", "previous", "retrieval", "window")  # built-in drafters without weights
BRANCHING = ("recycling", "lookahead")  # untrained drafters that draft trees
DTYPES = ("float32", "bfloat16", "int8", "int4", "float16", "float64", "auto")
WHOLE = "sentence"  # windows of one sentence each
MOST_THREADS = max(64, os.cpu_count() or 1)  # more threads only wait for each other: 1,024 on 2 cores never finish
MAX_LEN_B = 200  # most output tokens unless a model or the user says otherwise: fairseq's
MOST_PER_TOKEN = 1000  # output tokens per source token
BUDGET = ("kv_budget", "sinks", "kv_choice")
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "rule", "seed", "num_samples", "mbr")
# The settings that a call or a request may change. All others shape the loaded model.
PER_REQUEST = {
    *SAMPLING,
    *"""
    beta tau max_len_a max_len_b min_len no_repeat_ngram_size beam nbest lenpen unkpen sampling windows context prefix
""".split(),
}

DRAFTED, SCORED, OWN = ("specdec",), ("specdec", "ar"), ("specdec", "ar", "drafter")
SEARCHING = ("specdec", "ar", "fairseq")


# Options of one group share these.
limit = partial(option, least=0, most=MOST, group="limits")
searched = partial(option, strategies=SEARCHING, group="beam search")
sampled = partial(option, group="sampling")
DRAFTS: Any = {"strategies": DRAFTED, "group": "drafting"}
TOLERANCE: Any = {"strategies": DRAFTED, "common": True}
MACHINE: Any = {"common": True, "group": "machine"}


@dataclass(frozen=True)
class Settings:
    """How to decode; the names match ``specdec-translate``'s options. Raises `OptionError` listing every fault."""

    strategy: str = option(
        "specdec",
        "specdec: draft and verify; ar: the model alone, one token per pass; drafter: unverified drafts; fairseq: "
        "fairseq's generator",
        words=STRATEGIES,
        common=True,
    )
    block_size: int | str | None = count(
        None,
        "draft length in tokens; auto: the fastest; model: the drafter's training length (default: auto where it cannot "
        "change the output; otherwise, and with --tree or --trace, model)",
        "K",
        most=MAX_BLOCK_SIZE,
        words=("auto", "model"),
        strategies=DRAFTING,
        common=True,
    )
    beta: int = count(1, "accept drafted tokens among the model's N best; requires --tau (default: 1, exact)", **TOLERANCE)
    tau: float | None = option(
        None, "and within X nats of its best token; requires --beta", "X", kind=float, least=0, **TOLERANCE
    )
    tree: int | None = count(
        None, "draft trees of up to N tokens; --block-size limits their depth", most=MAX_BLOCK_SIZE, **DRAFTS
    )
    draft_with: str | None = option(
        None, f"a drafter without training: {', '.join(UNTRAINED)}, or your own, module:object", "NAME", kind=str, **DRAFTS
    )
    datastore: str | None = option(
        None, "made by specdec-datastore; for --draft-with retrieval", "FILE", kind=str, group="drafting"
    )
    kv_budget: int | None = count(
        None, f"cache positions read by a drafting pass, with --draft-with window (default: {USUAL_BUDGET.positions})", **DRAFTS
    )
    sinks: int = option(
        USUAL_BUDGET.sinks,
        "first source and target positions, which a drafting pass always reads",
        least=0,
        most=MOST,
        shown=False,
    )
    kv_choice: str = option(
        USUAL_BUDGET.choice,
        "source positions to read: those with most of the verifier's attention, or those around its maximum (default: "
        f"{USUAL_BUDGET.choice})",
        words=CHOICES,
        **DRAFTS,
    )

    max_len_a: float = limit(0.0, "an output has at most A * source tokens + B tokens", "A", most=MOST_PER_TOKEN)
    max_len_b: int | None = limit(
        None, f"B of --max-len-a (default: the model's limit, or 0 and {MAX_LEN_B}, as in fairseq)", "B"
    )
    min_len: int | None = limit(
        None, "minimum number of tokens before the end (default: the model's, or 1)", "N", strategies=SEARCHING
    )
    no_repeat_ngram_size: int | None = limit(
        None, "ban repeated n-grams of N tokens (default: the model's, or 0, off)", "N", strategies=SEARCHING
    )

    beam: int | None = searched(
        None,
        "beam size; 1 is greedy (default: 1; without drafts the model's)",
        "N",
        least=1,
        most=MAX_BEAMS,
        common=True,
    )
    nbest: int = count(
        1,
        "write the N best outputs per line; with --sampling the same as --num-samples (default: 1)",
        most=100_000,
        group="beam search",
    )
    lenpen: float | None = searched(
        None,
        "divide a log-probability by its length to the power of X (default: the model's, or 1)",
        "X",
        kind=float,
        least=-MAX_LENGTH_PENALTY,
        most=MAX_LENGTH_PENALTY,
    )
    unkpen: float = searched(
        0.0, "subtract X nats for each unknown token (default: 0)", "X", least=-MAX_UNK_PENALTY, most=MAX_UNK_PENALTY
    )

    sampling: bool = sampled(False, "sample tokens instead of taking the best", strategies=OWN, common=True)
    temperature: float = sampled(1.0, "divides the logits (default: 1)", "T", least=0, above=True, most=1_000_000)
    top_k: int = sampled(0, "sample from the K likeliest tokens (default: 0, all)", "K", least=0, most=MOST)
    top_p: float = sampled(
        1.0, "sample from the likeliest tokens that reach probability P (default: 1)", "P", least=0, above=True, most=1
    )
    repetition_penalty: float = sampled(
        1.0,
        "divides positive and multiplies negative logits of tokens already in the output (default: 1)",
        "R",
        least=0,
        above=True,
        most=1_000_000,
        strategies=SCORED,
    )
    seed: int = sampled(0, "same seed, same samples (default: 0)", "S", least=-(2**63), most=2**63 - 1)
    num_samples: int = sampled(1, "outputs per line (default: 1)", "N", least=1, most=100_000)
    mbr: int | None = sampled(
        None, "draw N samples and write the one closest to the others (minimum Bayes risk, chrF)", "N", least=2, most=10_000
    )
    rule: str = sampled(
        "coupled",
        "coupled: drafts never change a sample; rejection: they may, but keep the distribution (default: coupled)",
        words=RULES,
        strategies=DRAFTED,
    )

    windows: int | str | None = count(
        None,
        f"lines are documents: split them at sentence ends into windows of up to N source tokens, or into sentences ({WHOLE})",
        words=(WHOLE,),
        strategies=OWN,
        group="documents",
    )
    context: int = option(
        0, "read each window with the C before it (default: 0)", "C", least=0, most=MOST, strategies=SCORED, group="documents"
    )
    max_positions: int | None = count(
        None,
        "allow N tokens where the model was trained on fewer; not with learned positions",
        most=10_000_000,
        strategies=OWN,
        group="documents",
    )

    prefix: str | None = option(
        None,
        "begin every source with TEXT, such as 'summarize: ', for models trained on several tasks (default: what the model "
        "folder says)",
        "TEXT",
        kind=str,
        strategies=OWN,
        group="text",
    )

    device: str = option("cpu", "cpu, cuda or cuda:N (default: cpu)", "D", **MACHINE)
    dtype: str = option(
        "float32",
        "of the weights; auto: int8 on a CPU, float16 or bfloat16 on a GPU; int4: least memory (default: float32)",
        words=DTYPES,
        hidden=("float64",),
        **MACHINE,
    )
    threads: int | None = count(None, "CPU threads (default: one per usable core)", most=MOST_THREADS, **MACHINE)
    kernels: str | None = option(
        None,
        "the CPU kernels for an instruction set, to measure them or to report a fault (default: the CPU's best)",
        words=KERNELS,
        kind=str,
        strategies=OWN,
        group="machine",
    )

    def __post_init__(self):
        if faults := [*self._values()] or [*self._combinations()]:
            raise OptionError(faults)

    def _values(self) -> Iterable[Fault]:
        """Values that are invalid by themselves, and options that the strategy does not use."""
        for each in fields(self):
            yield from value_faults(each, getattr(self, each.name))
            if self._given(each.name) and self.strategy in STRATEGIES and self.strategy not in option_of(each).strategies:
                yield each.name, f"is not supported by strategy {self.strategy}"

    def _combinations(self) -> Iterable[Fault]:
        """Values that cannot be combined."""
        yield from self._lengths()
        yield from self._drawing()
        yield from self._drafting()
        if self.strategy == "fairseq" and self.dtype in ("int8", "int4", "auto"):
            yield "dtype", f"{self.dtype} is not supported by strategy fairseq"
        if self.kernels is not None and (self.device != "cpu" or self.dtype in ("float16", "float64")):
            yield "kernels", "requires `device` cpu and a `dtype` of float32, bfloat16, int8 or int4"

    def _lengths(self) -> Iterable[Fault]:
        """Lengths of windows and outputs."""
        most, least = MAX_LEN_B if self.max_len_b is None else self.max_len_b, self.min_len or 0
        if self.max_len_a + most < 1:
            yield "max_len_b", f"{most} leaves no room for an output, with {self.max_len_a} tokens per source token"
        elif self.max_len_a == 0 and least > most:
            yield "min_len", f"{least} is more than `max_len_b`, {most}"
        if self.context and self.windows is None:
            yield "context", "requires `windows`"
        if isinstance(self.windows, int) and self.max_len_a * self.windows + most < self.windows:
            most = int(self.max_len_a * self.windows + most)
            yield "windows", f"of {self.windows} tokens: the length limit cuts their output to {most}; raise `max_len_a`"
        if self.windows is not None and self.draft_with == "previous":
            yield "windows", "cannot be combined with drafter previous, whose hints are for whole lines"

    def _drawing(self) -> Iterable[Fault]:
        """Sampling and tolerance."""
        if self.sampling:
            yield from ((name, "cannot be combined with `sampling`") for name in ("beta", "tau") if self._given(name))
        else:
            yield from ((name, "requires `sampling`") for name in SAMPLING if self._given(name))
            if self.strategy == "specdec" and self._given("beta") != self._given("tau"):
                given, missing = ("beta", "`tau`") if self._given("beta") else ("tau", "`beta` over 1")
                yield given, f"requires {missing}: tolerance needs both, such as `beta` 3 and `tau` 1"
        if self.mbr is not None and self._given("num_samples"):
            yield "num_samples", "cannot be combined with `mbr`, which sets the number of samples"
        if self.nbest > 1 and (self._given("num_samples") or self.mbr is not None):
            yield "nbest", "cannot be combined with `num_samples` or `mbr`"
        yield from self._searching()

    def _searching(self) -> Iterable[Fault]:
        """Beam search."""
        beam = self.beam or 1
        if beam > 1 and self.sampling:
            yield "beam", "cannot be combined with `sampling`"
        if beam > 1:
            yield from ((name, "cannot be combined with `beam`") for name in ("beta", "tau", "tree") if self._given(name))
        if self.nbest > beam and not self.sampling:
            yield "nbest", f"{self.nbest} requires a `beam` of at least {self.nbest}, or `sampling`"
        if self.nbest > 1 and beam > 1 and self.windows is not None:
            yield "nbest", "of a `beam` cannot be combined with `windows`"
        if beam == 1:
            yield from ((name, "requires a `beam` over 1") for name in ("lenpen", "unkpen") if self._given(name))

    def _drafting(self) -> Iterable[Fault]:
        """The drafter, its cache budget and draft lengths."""
        if self.draft_with == "retrieval" and not self.datastore:
            yield "datastore", "is required by drafter retrieval"
        if self.draft_with != "retrieval" and self.datastore:
            yield "datastore", "requires drafter retrieval"
        if self.draft_with != "window":
            yield from ((name, "requires drafter window") for name in BUDGET if self._given(name))
        elif self.sinks >= self.budget.positions:
            yield "sinks", f"{self.sinks} uses up the budget of {self.budget.positions}"
        if self.tree is not None and self.draft_with in UNTRAINED and self.draft_with not in BRANCHING:
            yield "tree", f"is not supported by {self.draft_with}; use {' or '.join(BRANCHING)}"
        if self.tree is not None and self.block_size == "auto":
            yield "tree", "cannot be combined with `block_size` auto; give the longest path as `block_size`"
        if self.block_size == "auto" and self.strategy == "drafter":
            yield "block_size", "auto is not supported by strategy drafter"

    def _given(self, name: str) -> bool:
        """Whether a field differs from its default."""
        return getattr(self, name) != getattr(type(self), name)

    @property
    def adaptive(self) -> bool:
        """Whether the controller chooses the draft length: the default where it cannot change an output."""
        usual = self.block_size is None and self.strategy == "specdec" and self.tree is None
        return self.block_size == "auto" or (usual and self.indifferent)

    @property
    def indifferent(self) -> bool:
        """Whether the output does not depend on the drafts."""
        return self.beta == 1 and not (self.sampling and self.rule == "rejection")

    @property
    def searches(self) -> bool:
        """Whether a beam search is asked for."""
        return (self.beam or 1) > 1

    @property
    def tolerant(self) -> bool:
        """Whether accepted tokens may differ from the verifier's own."""
        return self.beta > 1

    @property
    def usual_batch_size(self) -> int:
        """Sentences at a time. One under tolerance on a CPU: there the draft length decides the output, so it is fixed, and
        drafts in batches cost more than they save. Captions on Zen 4, beta 3, tau 1, 8 tokens, times the speed of `ar` at batch
        size 1, 2, 8, 32: 1.8, 1.4, 0.75, 0.6 in float32; 0.96, 0.7, 0.5, 0.6 in int8."""
        return 1 if self.tolerant and self.device == "cpu" else 32

    @property
    def budget(self) -> Budget:
        """How much of the cache drafter `window` reads."""
        positions = USUAL_BUDGET.positions if self.kv_budget is None else self.kv_budget
        return Budget(positions, self.sinks, self.kv_choice)

    def size(self, beams: int) -> int:
        """Effective beam size. A model's own default, ``beams``, holds for `ar` only: drafts decode greedily unless asked."""
        return self.beam or (beams if self.strategy == "ar" and not self.sampling else 1)

    @property
    def drawing(self) -> Sampling | None:
        """How tokens are sampled; None under greedy decoding."""
        values = self.temperature, self.top_k, self.top_p, self.repetition_penalty, self.rule
        return Sampling(*values) if self.sampling else None

    @property
    def drawn(self) -> int:
        """Outputs decoded per sentence: samples, or the best of a beam."""
        return self.mbr or max(self.num_samples, self.nbest)

    @property
    def outputs(self) -> int:
        """Outputs per sentence."""
        return 1 if self.mbr else self.drawn

    def for_worker(self, number: int, workers: int) -> "Settings":
        """The settings of worker process ``number``, from 0: a part of the threads, or its own GPU."""
        if workers == 1:
            return self
        device = f"cuda:{number}" if self.device == "cuda" else self.device
        return replace(self, device=device, threads=max(1, (self.threads or usual_threads()) // workers))
