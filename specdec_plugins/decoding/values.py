"""Values that the roles exchange while they decode requests. Knows nothing about models.

B rows of the batch, K drafted tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple

from specdec_plugins.decoding.options import Sampling, Tree
from specdec_plugins.decoding.requests import Request, Step
from specdec_plugins.model.spec import Heads

Array = Any  # of a backend: NumPy's on the CPU kernels, PyTorch's otherwise


class Draws(NamedTuple):
    """What a row's next samples depend on. The prefix includes the position."""

    sampling: Sampling
    seed: int
    prefix: Sequence[int]


def rejecting(draws: Sequence[Draws | None]) -> bool:
    """Whether any row is under the rejection rule."""
    return any(draw is not None and draw.sampling.rule == "rejection" for draw in draws)


@dataclass(frozen=True)
class Want:
    """What a pass returns. A pass without logits ends after the layer of ``heads``, which it needs."""

    features: bool = False  # hidden states that logits are computed from
    attention: bool = False  # attention to the source, unless the pass reads only part of it
    heads: Heads | None = None  # whose attention; None: the sum of all heads and layers
    logits: bool = True


LOGITS, NOTHING = Want(), Want(logits=False)


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

    tokens: Array
    probabilities: Array

    def check(self, rows: int, length: int, vocabulary: int) -> None:
        """Raises ValueError if the rejection rule would write out of bounds with it."""
        tokens, probabilities = self
        shape = tuple(tokens.shape)
        whole = len(shape) == 3 and shape == tuple(probabilities.shape) and str(tokens.dtype).endswith("int64")
        if not whole or shape[0] < rows or shape[1] < length:
            raise ValueError(f"the drafter's distribution {shape} does not fit {rows:,} drafts of {length:,} tokens")
        if 0 not in shape and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            raise ValueError(f"the drafter's distribution has token ids outside the vocabulary ({vocabulary:,})")


class Draft:
    """Each row's drafted tokens, and the ``distribution`` that they were sampled from; None: point masses."""

    guesses: Array | None = None  # see `DeviceDraft`
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

    def select(self, order: Sequence[int]) -> "Draft":
        """With row ``order[i]`` as row i, and as if certain."""
        return Draft([self.tokens[row] for row in order])


class DeviceDraft(Draft):
    """A draft still on the device, so that the host need not wait: ``guesses`` (R, K) int64, R >= B.

    Row b drafts its first ``room[b]`` guesses, and nothing after ``eos``. Reading ``tokens`` waits for the device, unless another
    transfer has brought the guesses: `arrive`.
    """

    guesses: Array

    def __init__(self, guesses: Array, room: Sequence[int], eos: int | None = None, distribution: Distribution | None = None):
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
    (nats) of the accepted tokens and the own one, [] in rows that want none; ``cut`` marks own tokens that the length limit
    forced. ``paths`` are the accepted nodes of a `TreeDraft`; None for a chain.
    """

    accepted: list[int]
    own: list[int] | None
    scores: list[list[float]]
    cut: list[bool]
    paths: list[list[int]] | None = None

    def results(self, row: int) -> Sequence[int]:
        """Indices of the pass's results after a row's prefix and after each of its accepted tokens."""
        return range(self.accepted[row] + 1) if self.paths is None else [0, *(node + 1 for node in self.paths[row])]


def accepted_first(tokens: Sequence[int], path: Sequence[int]) -> list[int]:
    """A row's drafted tokens, those of the accepted nodes first."""
    return [tokens[node] for node in (*path, *sorted({*range(len(tokens))}.difference(path)))]


class Iterations(NamedTuple):
    """Iterations, one after the other, by row: the step, its committed tokens' scores (as in `Verdict`), whether the limit forced
    the own token."""

    steps: list[Step]
    scores: list[list[float]]
    cut: list[bool]

    @classmethod
    def of(cls, draft: Draft, verdict: Verdict, eos: int) -> "Iterations":
        """One iteration, from its verdict. No own token follows an accepted eos."""
        done, offered = cls([], [], []), draft.tokens
        if verdict.paths is not None:
            offered = [*map(accepted_first, offered, verdict.paths)]
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
