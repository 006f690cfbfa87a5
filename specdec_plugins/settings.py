"""How to decode. Imports neither torch nor fairseq, so that a command can check its options at once."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from specdec_plugins.cpus import usual_threads
from specdec_plugins.decoding.options import (
    BUDGETED,
    CHOICES,
    MAX_BLOCK_SIZE,
    USUAL_BUDGET,
    Budget,
    Gate,
    Sampling,
    sampling_faults,
)  # fmt: skip

STRATEGIES = ("specdec", "ar", "drafter", "fairseq")
# Drafters without weights that are built in, ..
UNTRAINED = ("ngram", "recycling", "lookahead", "previous", "retrieval", "window")
BRANCHING = ("recycling", "lookahead")  # .. and of these, those that draft trees
REMOVED_DRAFTERS = {"jacobi": "lookahead"}  # former names, and what to use instead
DTYPES = ("float32", "bfloat16", "int8", "float16", "float64", "auto")

WHOLE = "sentence"  # windows of a sentence each
BUDGET = ("kv_budget", "sinks", "kv_choice")  # how much of a cache drafts read
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "rule", "seed", "samples", "mbr")  # how to draw tokens

Fault = tuple[str, str]  # a field's name, and what is wrong with its value, to be read after the name


class OptionError(ValueError):
    """Options that cannot be used. ``faults`` are (field, message), such as ``("beta", "0 is less than 1")``.

    As text it names the fields as Python does; a command names its options (``--block-size``) from ``faults``.
    """

    def __init__(self, faults: Iterable[Fault]):
        self.faults = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "; ".join(f"{field} {message}" for field, message in self.faults)


@dataclass(frozen=True)
class Settings:
    """How to decode; the names are those of ``specdec-translate``'s options. Raises `OptionError` with everything wrong."""

    strategy: str = "specdec"
    # Drafted tokens an iteration; "auto": as many as pay, down to none; "model": as many as the model was trained for. None: auto
    # where that cannot change the output (specdec with beta 1, without a tree), else the model's.
    block_size: int | str | None = None
    tree: int | None = None  # draft trees of up to this many tokens; block_size is then the longest path
    draft_with: str | None = None  # a drafter without weights, by name; None: the model's
    datastore: str | None = None  # a file, for drafter retrieval
    # Of drafter window, and of the model's with a kv_budget: see `Budget`. None: of window the usual one, of the model's none.
    kv_budget: int | None = None
    sinks: int = USUAL_BUDGET.sinks
    kv_choice: str = USUAL_BUDGET.choice
    beta: int = 1
    tau: float = float("inf")  # nats
    verifier_gate: float = 0.0  # see `Gate`
    drafter_gate: float = 0.0
    # Sources are documents, cut into windows of so many source tokens at most, or of a "sentence" each; None: they are not cut.
    windows: int | str | None = None
    context: int = 0  # windows before each that are read with it
    max_positions: int | None = None  # read and write so many tokens, beyond what the models were trained for
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1  # tokens of an output before eos, at least
    no_repeat_ngram_size: int = 0  # no n-gram of this size comes twice in an output; 0: any may
    beam: int = 1  # of strategy fairseq
    sampling: bool = False  # draw tokens at random; the fields down to `mbr` say how
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    rule: str = "coupled"  # which drafted tokens are accepted
    seed: int = 0  # with a sentence's number and the sample's, it determines the numbers that are drawn
    samples: int = 1  # of each sentence
    mbr: int | None = None  # draw so many samples, and take the one most like the others (minimum Bayes risk)
    device: str = "cpu"
    dtype: str = "float32"  # "auto": the fastest, as `assemble` says
    threads: int | None = None  # of the whole process; None: `usual_threads`
    tensor_parallel: bool = False  # this process is a rank that torchrun started, and all ranks decode together
    drafter_ranks: int = 1  # so many of them, the first ones, share the drafter

    def __post_init__(self):
        if faults := [*self._values(), *self._combinations()]:
            raise OptionError(faults)

    def _values(self) -> Iterable[Fault]:
        """Values that cannot be used, whatever the others are."""
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES), ("dtype", self.dtype, DTYPES), ("kv_choice", self.kv_choice, CHOICES),
        ):  # fmt: skip
            if value not in known:
                yield name, f"'{value}' is unknown; available: {', '.join(known)}"
        if isinstance(self.block_size, str) and self.block_size not in ("auto", "model"):
            yield "block_size", f"'{self.block_size}' is neither a number, nor auto or model"
        if self.draft_with in REMOVED_DRAFTERS:
            yield "draft_with", f"{self.draft_with} was removed; use {REMOVED_DRAFTERS[self.draft_with]}"
        elif self.draft_with and "+" in self.draft_with:
            yield "draft_with", f"takes one drafter, not {self.draft_with}; use one of {', '.join(self.draft_with.split('+'))}"
        if isinstance(self.windows, str) and self.windows != WHOLE:
            yield "windows", f"'{self.windows}' is neither a number nor {WHOLE}"
        if self.context < 0:
            yield "context", f"{self.context} is negative"
        yield from sampling_faults(self)
        counts = ("block_size", "tree", "beta", "beam", "threads", "samples", "kv_budget", "windows", "max_positions", "min_len")
        for name in (*counts, "drafter_ranks"):
            value = getattr(self, name)
            if not isinstance(value, int | str | None):
                yield name, f"{value!r} is no int"
            elif isinstance(value, int) and value < 1:
                yield name, f"{value} is less than 1"
        for name in ("block_size", "tree"):
            value = getattr(self, name)
            if isinstance(value, int) and value > MAX_BLOCK_SIZE:
                yield name, f"{value:,} is over {MAX_BLOCK_SIZE:,}"
        if self.mbr is not None and self.mbr < 2:
            yield "mbr", f"{self.mbr} is less than 2"
        if not 0 <= self.sinks < max(1, self.usual_budget.positions):
            yield "sinks", f"{self.sinks} is negative, or leaves nothing of a budget of {self.usual_budget.positions}"
        if self.no_repeat_ngram_size < 0:
            yield "no_repeat_ngram_size", f"{self.no_repeat_ngram_size} is negative"
        for name in ("verifier_gate", "drafter_gate"):
            if not 0 <= getattr(self, name) <= 1:
                yield name, f"{getattr(self, name)} is not a probability, from 0 up to 1"
        if not self.tau >= 0:
            yield "tau", f"{self.tau} is negative or no number"
        for name in ("max_len_a", "max_len_b"):
            if not 0 <= getattr(self, name) < float("inf"):
                yield name, f"{getattr(self, name)} is negative, infinite or no number"

    def _combinations(self) -> Iterable[Fault]:
        """Values that do not go together."""
        if self.max_len_a >= 0 and self.max_len_b >= 0 and self.max_len_a + self.max_len_b < 1:
            yield "max_len_b", f"{self.max_len_b} leaves no room for an output, with {self.max_len_a} tokens per source token"
        elif self.max_len_a == 0 and self.min_len > self.max_len_b:
            yield "min_len", f"{self.min_len} is over max_len_b, {self.max_len_b}"
        users = {
            "block_size": ("specdec", "drafter"), "beta": ("specdec",), "tau": ("specdec",), "beam": ("fairseq",),
            "sampling": ("specdec", "ar", "drafter"), "rule": ("specdec",), "repetition_penalty": ("specdec", "ar"),
            "min_len": ("specdec", "ar", "fairseq"), "no_repeat_ngram_size": ("specdec", "ar", "fairseq"),
            "verifier_gate": ("specdec",), "drafter_gate": ("specdec",), "draft_with": ("specdec",), "tree": ("specdec",),
            "windows": ("specdec", "ar", "drafter"), "context": ("specdec", "ar"), "max_positions": ("specdec", "ar", "drafter"),
            "kv_budget": ("specdec",),
        }  # fmt: skip
        for name, strategies in users.items():
            if self._given(name) and self.strategy in STRATEGIES and self.strategy not in strategies:
                yield name, f"is not used by strategy {self.strategy}"
        if self.context and self.windows is None:
            yield "context", "has a use only with windows"
        if isinstance(self.windows, int) and self.max_len_a * self.windows + self.max_len_b < self.windows:
            most = int(self.max_len_a * self.windows + self.max_len_b)
            yield "windows", f"of {self.windows} tokens would be cut to {most} tokens of output by the length limit"
        if self.windows is not None and self.draft_with == "previous":
            yield "windows", "does not go with drafter previous, whose hints are of whole lines"
        if self.sampling:
            yield from ((name, "is not used with sampling") for name in ("beta", "tau") if self._given(name))
        else:
            yield from ((name, "has a use only with sampling") for name in SAMPLING if self._given(name))
        if self.draft_with == "retrieval" and not self.datastore:
            yield "datastore", "is missing, which drafter retrieval needs"
        if self.draft_with != "retrieval" and self.datastore:
            yield "datastore", "has a use only with drafter retrieval"
        if self.draft_with not in (None, "window"):
            yield from (
                (name, f"has a use only with drafters window, {', '.join(BUDGETED)}") for name in BUDGET if self._given(name)
            )
        elif self.budget is None:
            yield from ((name, "has a use only with kv_budget, or drafter window") for name in BUDGET if self._given(name))
        if self.mbr is not None and self.samples > 1:
            yield "samples", f"{self.samples} does not go with mbr, which says how many samples it takes"
        if self.tree is not None and self.draft_with in UNTRAINED and self.draft_with not in BRANCHING:
            yield "tree", f"is not supported by {self.draft_with}; use {' or '.join(BRANCHING)}"
        if self.tree is not None and self.block_size == "auto":
            yield "tree", "cannot be combined with block size auto; give the longest path as block size"
        if self.block_size == "auto" and self.strategy == "drafter":
            yield "block_size", "auto is not available with strategy drafter"
        if self.strategy == "fairseq" and self.dtype in ("int8", "auto"):
            yield "dtype", f"{self.dtype} is not available with strategy fairseq"
        if self.tensor_parallel:
            yield from self._parallel()
        elif self._given("drafter_ranks"):
            yield "drafter_ranks", "has a use only with tensor_parallel"
        if self.beta == 1 and not self.sampling and self.tau != float("inf") and self.strategy == "specdec":
            yield "tau", "has a use only with beta over 1"

    def _parallel(self) -> Iterable[Fault]:
        """Values that do not go with tensor parallel decoding."""
        if self.strategy in ("fairseq", "drafter"):
            yield "tensor_parallel", f"splits the verifier, which strategy {self.strategy} does not run here"
        if self.dtype == "int8":
            yield "dtype", "int8 needs the CPU kernels, which tensor_parallel does not use"
        if self.budget is not None and self.draft_with != "window":
            yield "kv_budget", "is for drafter window alone with tensor_parallel"
        untrained = self.strategy == "ar" or self.draft_with in UNTRAINED
        if self._given("drafter_ranks") and untrained:
            yield "drafter_ranks", "has a use only with a drafter that has weights: others run on every rank"

    def _given(self, name: str) -> bool:
        """Whether a field has another value than it has by itself."""
        return getattr(self, name) != getattr(type(self), name)

    @property
    def adaptive(self) -> bool:
        """Whether the controller chooses the draft length: the default where that cannot change an output."""
        usual = self.block_size is None and self.strategy == "specdec" and self.tree is None
        return self.block_size == "auto" or (usual and self.indifferent)

    @property
    def indifferent(self) -> bool:
        """Whether drafts cannot change which output comes."""
        return self.beta == 1 and not (self.sampling and self.rule == "rejection")

    @property
    def gate(self) -> Gate:
        """How sure the models have to be for drafting to go on."""
        return Gate(self.verifier_gate, self.drafter_gate)

    @property
    def budget(self) -> Budget | None:
        """How much of a cache the drafter reads; None: all of it."""
        return self.usual_budget if self.kv_budget is not None or self.draft_with == "window" else None

    @property
    def usual_budget(self) -> Budget:
        """The budget, or of as many positions as drafter window reads by itself."""
        positions = USUAL_BUDGET.positions if self.kv_budget is None else self.kv_budget
        return Budget(positions, self.sinks, self.kv_choice)

    @property
    def drawing(self) -> Sampling | None:
        """How tokens are drawn; None where the best is taken."""
        if not self.sampling:
            return None
        return Sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty, self.rule)

    @property
    def drawn(self) -> int:
        """How many samples of a sentence are drawn."""
        return self.mbr or self.samples

    @property
    def outputs(self) -> int:
        """How many outputs a sentence has."""
        return 1 if self.mbr else self.samples

    def share(self, number: int, workers: int) -> "Settings":
        """The settings of worker ``number``, from 0, of so many: its part of the threads, or a GPU of its own."""
        if workers == 1:
            return self
        device = f"cuda:{number}" if self.device == "cuda" else self.device
        return replace(self, device=device, threads=max(1, (self.threads or usual_threads()) // workers))


def rank_faults(device: str) -> list[Fault]:
    """What keeps the ranks of tensor parallel decoding from having a device each."""
    if not re.fullmatch(r"cuda:\d+", device):
        return []
    return [("device", f"{device} is one GPU: with tensor_parallel say cuda, of which each rank takes one")]
