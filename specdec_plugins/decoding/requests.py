"""Requests and their outputs: what callers of a session see. Knows nothing about models.

B sentences, S source positions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from specdec_plugins.decoding.options import Beam, Sampling, Tolerance
from specdec_plugins.model.spec import HUGE, Symbols

T = TypeVar("T")


class ModelLimits(NamedTuple):
    """What the models can read: token ids below ``source`` and ``target``, and sequences of up to these many positions."""

    source: int
    target: int
    source_positions: int
    target_positions: int


@dataclass(frozen=True)
class Request:
    """A sentence to translate. It owns a group of rows, one per output and seed, or up to one per live hypothesis of a ``beam``.

    ``tokens`` end with eos. Outputs have ``min_length`` to ``limit`` tokens before eos and begin with the ``forced`` ones, after
    those that the model prescribes. ``tolerance`` replaces the session's. With ``sampling``, output n uses ``seeds[n]`` (int64).
    ``hint`` is an earlier translation, without eos. With ``no_repeat`` n > 0 no output repeats an n-gram. ``scores`` of
    tokens are on demand: each is a sum over the vocabulary. A beam search has them anyway.
    """

    index: int
    tokens: Sequence[int]
    limit: int
    min_length: int = 1
    forced: Sequence[int] = ()
    tolerance: Tolerance | None = None
    sampling: Sampling | None = None
    seeds: Sequence[int] = (0,)
    hint: Sequence[int] = ()
    no_repeat: int = 0
    beam: Beam | None = None
    scores: bool = False

    @property
    def rows(self) -> int:
        """The group's largest size."""
        return len(self.seeds) if self.beam is None else self.beam.size

    @property
    def first_rows(self) -> int:
        """The group's size at its start."""
        return len(self.seeds) if self.beam is None else 1

    @property
    def outputs(self) -> int:
        return len(self.seeds) if self.beam is None else self.beam.nbest

    @property
    def scored(self) -> bool:
        """Whether outputs have scores."""
        return self.scores or self.beam is not None

    @property
    def depends_on_drafts(self) -> bool:
        """Whether the draft length can change the output: under tolerance and the rejection rule."""
        if self.sampling is not None:
            return self.sampling.rule == "rejection"
        return self.tolerance is not None and self.tolerance.beta > 1

    def check(self, limits: ModelLimits | None = None) -> None:
        """Raises ValueError for an invalid field, or one beyond the models' limits."""
        for fault in self._faults(limits or ModelLimits(HUGE, HUGE, HUGE, HUGE)):
            raise ValueError(f"request {self.index}: {fault}")

    def _faults(self, limits: ModelLimits) -> Iterator[str]:
        for name, value, least, most in (
            ("index", self.index, -HUGE, HUGE - 1),
            ("limit", self.limit, 1, limits.target_positions - 1),
            ("min_length", self.min_length, 0, HUGE - 1),
            ("no_repeat", self.no_repeat, 0, HUGE - 1),
        ):
            if type(value) is not int or not least <= value <= most:
                yield f"{name} is {value!r}, not a whole number from {least:,} to {most:,}"
        sequences = self.tokens, self.forced, self.hint, self.seeds
        if not {list, tuple}.issuperset(map(type, sequences)) and not all(isinstance(each, Sequence) for each in sequences):
            yield "tokens, forced, hint and seeds are sequences of numbers"  # `isinstance` takes a microsecond each
        if not self.tokens:
            yield "the source is empty; it needs at least eos"
        if len(self.tokens) > limits.source_positions:
            yield f"the source has {len(self.tokens):,} tokens; the models read at most {limits.source_positions:,}"
        for name, tokens, size in (
            ("source", self.tokens, limits.source),
            ("forced", self.forced, limits.target),
            ("hint", self.hint, limits.target),
        ):
            if tokens and not (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < size):
                yield f"{name} has token ids outside the vocabulary of {size:,}"
        if set(map(type, self.seeds)) != {int} or min(self.seeds) < -(1 << 63) or max(self.seeds) >= 1 << 63:
            yield f"seeds are {self.seeds!r}, not one 64-bit integer for each output"
        yield from self._option_faults()

    def _option_faults(self) -> Iterator[str]:
        options = (self.tolerance, Tolerance), (self.sampling, Sampling), (self.beam, Beam)
        for option, kind in options:
            if option is not None and type(option) is not kind:
                yield f"{kind.__name__.lower()} is {option!r}, not a {kind.__name__}"
        if self.beam is not None and (self.sampling is not None or len(self.seeds) > 1):
            yield "beam search cannot be combined with sampling or several seeds"


class Step(NamedTuple):
    """One iteration of one row: the draft, the number of accepted tokens, the verifier's own token after them.

    Accepted tokens come first, in a tree the accepted path. ``own`` is None if an accepted token ended the sentence, or without a
    verifier.
    """

    drafted: list[int]
    accepted: int
    own: int | None


@dataclass(frozen=True)
class Hypothesis:
    """Output number ``output`` of request ``index``.

    ``tokens`` end before eos; ``token_scores`` (nats, the verifier's) include it, as in fairseq; None if not asked for. The first
    ``prefilled`` tokens were forced and belong to no step. ``error`` ended the request early.
    """

    index: int
    tokens: list[int]
    token_scores: list[float] | None
    steps: list[Step]
    cut: bool  # the length limit ended it, not the model
    output: int = 0
    prefilled: int = 0
    error: Exception | None = None
    score: float | None = None  # by the rules of a beam search; None without one


class Commit(NamedTuple):
    """What a step added to an output, and the whole output once it has finished.

    An output's commits concatenate to its hypothesis: nothing is taken back. ``tokens`` end before eos. ``scores`` are empty if
    not asked for. ``steps`` are all of the output's so far, and grow; those of a search come at its end.
    """

    request: int
    output: int
    tokens: list[int]
    scores: list[float]
    finished: Hypothesis | None = None
    steps: Sequence[Step] = ()


class Source:
    """Sentences to encode on a device, as lists of tokens."""

    def __init__(self, sentences: Sequence[Sequence[int]], symbols: Symbols, device: str = "cpu"):
        self.sentences, self.symbols, self.device = sentences, symbols, device
        self.sizes = list(map(len, sentences))
        self.longest = max(self.sizes)  # S
        self._made: dict[int, Any] = {}

    def made_by(self, maker: Callable[["Source"], T]) -> T:
        """What ``maker`` makes of it, made once: models may share an encoder, whose output (B, S, D) is undefined past a
        sentence's end."""
        if id(maker) not in self._made:
            self._made[id(maker)] = maker(self)
        made: T = self._made[id(maker)]
        return made
