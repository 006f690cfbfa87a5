"""Values that the roles exchange. Knows nothing about models.

B rows of the batch, S source positions, K drafted tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, repeat
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.options import Beam, Sampling, Tolerance, Tree
from specdec_plugins.model.spec import HUGE, Heads, Symbols


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
    ``hint`` is an earlier translation, without eos. With ``no_repeat`` n > 0 no output repeats an n-gram.
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
            ("index", self.index, -HUGE, HUGE - 1), ("limit", self.limit, 1, limits.target_positions - 1),
            ("min_length", self.min_length, 0, HUGE - 1), ("no_repeat", self.no_repeat, 0, HUGE - 1),
        ):  # fmt: skip
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
            ("source", self.tokens, limits.source), ("forced", self.forced, limits.target), ("hint", self.hint, limits.target)
        ):  # fmt: skip
            if tokens and not (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < size):
                yield f"{name} has token ids outside the vocabulary of {size:,}"
        if set(map(type, self.seeds)) != {int} or min(self.seeds) < -(1 << 63) or max(self.seeds) >= 1 << 63:
            yield f"seeds are {self.seeds!r}, not one 64-bit integer for each output"
        if self.tolerance is not None and type(self.tolerance) is not Tolerance:
            yield f"tolerance is {self.tolerance!r}, not a Tolerance"
        if self.sampling is not None and type(self.sampling) is not Sampling:
            yield f"sampling is {self.sampling!r}, not a Sampling"
        if self.beam is not None and type(self.beam) is not Beam:
            yield f"beam is {self.beam!r}, not a Beam"
        elif self.beam is not None and (self.sampling is not None or len(self.seeds) > 1):
            yield "beam search cannot be combined with sampling or several seeds"


class Draws(NamedTuple):
    """What a row's next samples depend on. The prefix includes the position."""

    sampling: Sampling
    seed: int
    prefix: Sequence[int]


def rejecting(draws: Sequence[Draws | None]) -> bool:
    """Whether any row is under the rejection rule."""
    return any(draw is not None and draw.sampling.rule == "rejection" for draw in draws)


class Source:
    """Sentences to encode, as lists of tokens and, when asked for, as tensors."""

    def __init__(self, sentences: Sequence[Sequence[int]], symbols: Symbols, device: torch.device | str = "cpu"):
        self.sentences, self.symbols, self.device = sentences, symbols, torch.device(device)
        self.sizes = list(map(len, sentences))
        self.longest = max(self.sizes)  # S
        self._encoded: dict[int, Tensor] = {}

    @cached_property
    def tokens(self) -> Tensor:
        """(B, S) int64, padded on the right."""
        width = self.longest
        return send([[*row, *[self.symbols.pad] * (width - len(row))] for row in self.sentences], self.device)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) int64"""
        return send(self.sizes, self.device)

    def encoded_by(self, encoder) -> Tensor:
        """(B, S, D) output of an encoder, computed once for all models that share it; undefined past a row's length."""
        if id(encoder) not in self._encoded:
            self._encoded[id(encoder)] = encoder(self)
        return self._encoded[id(encoder)]


@dataclass(frozen=True)
class Want:
    """What a pass returns. A pass without logits ends after the layer of ``heads``, which it needs."""

    features: bool = False  # hidden states that logits are computed from
    attention: bool = False  # attention to the source, unless the pass reads only part of it
    heads: Heads | None = None  # whose attention; None: the sum of all heads and layers
    logits: bool = True


LOGITS = Want()


class Plan(NamedTuple):
    """The most tokens to draft for each row of an iteration. All 0 is a plain iteration, at a plain one's cost.

    It holds for up to ``times`` iterations while the rows stay the same. With a ``tree``, drafters with that trait branch, and
    the lengths bound paths; others draft a chain. A ``confident`` drafter ends a draft with the token that makes it less probable
    than ``least``. What the controller ``expects`` is for statistics; None: it does not know.
    """

    lengths: Sequence[int]
    times: int = 1
    tree: Tree | None = None
    least: float = 0.0
    expects: "Expected | None" = None

    def alone(self, row: int) -> "Plan":
        """The plan that drafts for one row."""
        return self._replace(lengths=[length if each == row else 0 for each, length in enumerate(self.lengths)])

    def least_of(self, requests: Sequence[Request]) -> list[float]:
        """Each row's ``least``: none where the draft's length can change the output."""
        return [0.0 if request.depends_on_drafts else self.least for request in requests]


class Expected(NamedTuple):
    """Relative to a plain iteration: the ``cost`` of one with the plan's draft, in seconds, and the ``speed`` with drafts of the
    best length, in tokens per second."""

    cost: float
    speed: float


@lru_cache(maxsize=1024)
def uniform(rows: int, length: int, times: int = 1, tree: Tree | None = None, least: float = 0.0) -> Plan:
    """The plan with one length for all rows. Cached, as a plain iteration can take less than 100 microseconds."""
    return Plan((length,) * rows, times, tree, least)


class Distribution(NamedTuple):
    """What each drafted token was sampled from: ``probabilities`` (R, K, C) of ``tokens`` (R, K, C) int64; 0 for all others."""

    tokens: Tensor
    probabilities: Tensor

    def check(self, rows: int, length: int, vocabulary: int) -> None:
        """Raises ValueError if the rejection rule would write out of bounds with it."""
        tokens, probabilities = self
        whole = tokens.dim() == 3 and tokens.shape == probabilities.shape and tokens.dtype == torch.int64
        if not whole or len(tokens) < rows or tokens.size(1) < length:
            shape = tuple(tokens.shape)
            raise ValueError(f"the drafter's distribution {shape} does not fit {rows:,} drafts of {length:,} tokens")
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            raise ValueError(f"the drafter's distribution has token ids outside the vocabulary ({vocabulary:,})")


class Draft:
    """Each row's drafted tokens, and the ``distribution`` that they were sampled from; None: point masses."""

    guesses: Tensor | None = None  # see `DeviceDraft`
    confidence: Sequence[float] = ()  # of each row's last token, 0 to 1, from drafters that draft one at a time
    parents: Sequence[Sequence[int]] = ()  # see `TreeDraft`

    def __init__(self, tokens: list[list[int]], distribution: Distribution | None = None):
        self.tokens, self.distribution = tokens, distribution

    def check(self, rows: int, vocabulary: int) -> None:
        """Raises ValueError for a draft that does not fit the batch or the vocabulary: a drafter may be anybody's code."""
        if len(self.tokens) != rows:
            raise ValueError(f"the drafter returned {len(self.tokens):,} drafts for {rows:,} rows")
        drafted = [*chain.from_iterable(self.tokens)]
        if drafted and not 0 <= min(drafted) <= max(drafted) < vocabulary:
            raise ValueError(f"the drafter returned a token id outside the verifier's vocabulary ({vocabulary:,})")
        if self.distribution is not None:
            self.distribution.check(rows, max(map(len, self.tokens)), vocabulary)

    def clip(self, room: Sequence[int], eos: int) -> "Draft":
        """At most ``room[b]`` tokens of each row, and none after eos."""
        clipped = [row[: min(most, row.index(eos) + 1 if eos in row else most)] for row, most in zip(self.tokens, room)]
        return Draft(clipped, self.distribution)


class DeviceDraft(Draft):
    """A draft still on the device, so that the host need not wait: ``guesses`` (R, K) int64, R >= B.

    Row b drafts its first ``room[b]`` guesses, and nothing after ``eos``. Reading ``tokens`` waits for the device, unless another
    transfer has brought the guesses: `arrive`.
    """

    guesses: Tensor

    def __init__(self, guesses: Tensor, room: Sequence[int], eos: int | None = None, distribution: Distribution | None = None):
        self.guesses, self.room, self.eos, self.distribution = guesses, room, eos, distribution
        self._tokens: list[list[int]] | None = None

    @property
    def tokens(self) -> list[list[int]]:  # type: ignore[override]
        if self._tokens is None:
            return self.arrive(self.guesses[: len(self.room)].tolist())
        return self._tokens

    def arrive(self, guesses: list[list[int]]) -> list[list[int]]:
        """Take each row's guesses from the host; returns the drafted tokens."""
        eos = -1 if self.eos is None else self.eos
        self._tokens = Draft(guesses).clip(self.room, eos).tokens
        return self._tokens

    def check(self, rows: int, vocabulary: int) -> None:
        """Reading the tokens would wait for the device; they come from our own networks."""

    def clip(self, room: Sequence[int], eos: int) -> Draft:
        return DeviceDraft(self.guesses, list(map(min, self.room, room)), eos, self.distribution)


class Verdict(NamedTuple):
    """The number of accepted tokens in each row, and the verifier's own token after them.

    ``own`` tokens are *recovered* after a refusal, otherwise a *bonus*; None without a verifier. ``scores`` are log-probabilities
    (nats) of the accepted tokens and the own one; ``cut`` marks own tokens that the length limit forced. ``paths`` are the
    accepted nodes of a `TreeDraft`; None for a chain.
    """

    accepted: list[int]
    own: list[int] | None
    scores: list[list[float]]
    cut: list[bool]
    paths: list[list[int]] | None = None

    def results(self, row: int) -> Sequence[int]:
        """Indices of the pass's results after a row's prefix and after each of its accepted tokens."""
        return range(self.accepted[row] + 1) if self.paths is None else [0, *(node + 1 for node in self.paths[row])]


class Step(NamedTuple):
    """One iteration of one row: the draft, the number of accepted tokens, the verifier's own token after them.

    Accepted tokens come first, in a tree the accepted path. ``own`` is None if an accepted token ended the sentence, or without a
    verifier.
    """

    drafted: list[int]
    accepted: int
    own: int | None


class Iterations(NamedTuple):
    """Iterations, one after the other, by row: the step, its committed tokens' scores, whether the limit forced the own token.

    ``drafting`` and ``verifying`` are the seconds of all, ``first`` those of the first iteration.
    """

    steps: list[Step]
    scores: list[list[float]]
    cut: list[bool]
    drafting: float = 0.0
    verifying: float = 0.0
    first: float = 0.0

    @classmethod
    def of(cls, draft: Draft, verdict: Verdict, eos: int) -> "Iterations":
        """One iteration, from its verdict. No own token follows an accepted eos."""
        done, offered = cls([], [], []), draft.tokens
        if verdict.paths is not None:
            orders = [[*path, *sorted({*range(len(row))}.difference(path))] for row, path in zip(offered, verdict.paths)]
            offered = [[row[node] for node in order] for row, order in zip(offered, orders)]
        rows = zip(offered, verdict.accepted, verdict.own or repeat(None), verdict.scores, verdict.cut)
        for drafted, accepted, own, scores, cut in rows:
            if accepted and drafted[accepted - 1] == eos:
                own, cut = None, False
            done.steps.append(Step(drafted, accepted, own))
            done.scores.append(scores[: accepted + (own is not None)])
            done.cut.append(cut)
        return done


class Outcome(NamedTuple):
    """The result of a plan: each row's `Step`, or search's, in each of the ``times`` iterations, and their seconds.

    ``first`` are the seconds of the first iteration, 0 if unknown. If ``recorded``, the seconds include recording a pass
    and say nothing about an iteration's cost.
    """

    plan: Plan
    steps: Sequence[Step]
    seconds: float
    times: int = 1
    recorded: bool = False
    first: float = 0.0

    @property
    def warm(self) -> "Outcome | None":
        """Without the first iteration, for which processor caches are cold because Python ran; None if no others are known."""
        if not self.first or self.times == 1:
            return None
        rows = len(self.steps) // self.times
        return self._replace(steps=self.steps[rows:], seconds=self.seconds - self.first, times=self.times - 1, first=0.0)


@dataclass(frozen=True)
class Hypothesis:
    """Output number ``output`` of request ``index``.

    ``tokens`` end before eos; ``token_scores`` (nats, the verifier's) include it, as in fairseq. The first ``prefilled`` tokens
    were forced and belong to no step. ``error`` ended the request early.
    """

    index: int
    tokens: list[int]
    token_scores: list[float]
    steps: list[Step]
    cut: bool  # the length limit ended it, not the model
    output: int = 0
    prefilled: int = 0
    error: Exception | None = None
    score: float | None = None  # by the rules of a beam search; None without one


class Commit(NamedTuple):
    """What a step added to an output, and the whole output once it has finished.

    An output's commits concatenate to its hypothesis: nothing is taken back. ``tokens`` end before eos. ``steps`` are all of the
    output's so far, and grow; those of a search come at its end.
    """

    request: int
    output: int
    tokens: list[int]
    scores: list[float]
    finished: Hypothesis | None = None
    steps: Sequence[Step] = ()


def send(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for the device's earlier work."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor (B, ...) padded with zeros to (rows, ...)."""
    return tensor if len(tensor) == rows else torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
