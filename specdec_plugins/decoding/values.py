"""What the roles hand to each other. Knows nothing about models.

B rows of the batch (sentences in flight), S source positions, K drafted tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, repeat, takewhile
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.options import OPEN, Gate, Sampling, Tolerance, Tree
from specdec_plugins.formats.spec import Symbols

HUGE = 1 << 31  # numbers of a request stay below: sums of them fit into the kernels' 64 bits


class ModelLimits(NamedTuple):
    """What the models can read: token ids below ``source`` and ``target``, and sequences of at most so many positions."""

    source: int
    target: int
    source_positions: int
    target_positions: int


@dataclass(frozen=True)
class Request:
    """A sentence to translate. It owns a group of rows, one for each output: one for each of its ``seeds``.

    ``tokens`` end with eos. ``limit`` is the most tokens that an output may have before eos, ``min_length`` the fewest. Outputs
    begin with the ``forced`` tokens, after those that the model itself prescribes. ``tolerance`` replaces the session's. With
    ``sampling``, output n is drawn with ``seeds[n]`` (an int64). ``hint`` is an earlier translation, without eos, for drafters
    that use one. With ``no_repeat`` n > 0 no output repeats an n-gram.
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

    @property
    def rows(self) -> int:
        """The size of its group."""
        return len(self.seeds)

    def check(self, limits: ModelLimits | None = None) -> None:
        """Raises ValueError for a field that cannot be decoded at all, or not within the models' limits."""
        for fault in self._faults(limits or ModelLimits(HUGE, HUGE, HUGE, HUGE)):
            raise ValueError(f"request {self.index}: {fault}")

    def _faults(self, limits: ModelLimits) -> Iterator[str]:
        for name, value, least, most in (
            ("index", self.index, -HUGE, HUGE - 1), ("limit", self.limit, 1, limits.target_positions - 1),
            ("min_length", self.min_length, 0, HUGE - 1), ("no_repeat", self.no_repeat, 0, HUGE - 1),
        ):  # fmt: skip
            if type(value) is not int or not least <= value <= most:
                yield f"{name} is {value!r}, not a whole number from {least:,} to {most:,}"
        if not all(isinstance(each, Sequence) for each in (self.tokens, self.forced, self.hint, self.seeds)):
            yield "tokens, forced, hint and seeds are sequences of numbers"
        if not self.tokens:
            yield "the source is empty; it has at least one token, the closing eos"
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


class Draws(NamedTuple):
    """What the next tokens of a row are drawn by: how, the request's seed, and the prefix, which has the position, too."""

    sampling: Sampling
    seed: int
    prefix: Sequence[int]


def rejecting(draws: Sequence[Draws | None]) -> bool:
    """Whether a row is under the rejection rule."""
    return any(draw is not None and draw.sampling.rule == "rejection" for draw in draws)


class Source:
    """Sentences to encode, as lists of tokens; as tensors where a model asks for them."""

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
        """(B, S, D) output of an encoder, computed once for all models that share it; undefined past a sentence's end."""
        if id(encoder) not in self._encoded:
            self._encoded[id(encoder)] = encoder(self)
        return self._encoded[id(encoder)]


@dataclass(frozen=True)
class Want:
    """What a pass returns besides logits."""

    features: bool = False  # the hidden states that logits are computed from
    attention: bool = False  # attention to the source, unless the pass sees only a part of it


LOGITS = Want()


class Plan(NamedTuple):
    """What an iteration does: the most tokens to draft for each row. 0 for all rows is a plain one, at a plain one's cost.

    It may be repeated up to ``times`` times, while the rows stay the same, before the controller is asked again. With a ``tree``
    a drafter that can branches, and paths have these lengths at most; any other drafts a chain.
    """

    lengths: Sequence[int]
    times: int = 1
    gate: Gate = OPEN
    tree: Tree | None = None


@lru_cache(maxsize=1024)
def uniform(rows: int, length: int, times: int = 1, gate: Gate = OPEN, tree: Tree | None = None) -> Plan:
    """The plan that gives each row as many tokens. Kept from step to step: a plain one can take less than 100 microseconds."""
    return Plan((length,) * rows, times, gate, tree)


class Distribution(NamedTuple):
    """What each drafted token was drawn from: ``probabilities`` (R, K, C) of ``tokens`` (R, K, C) int64; all others have none."""

    tokens: Tensor
    probabilities: Tensor


class Draft:
    """The tokens that each row is offered: ``tokens[b]`` are row b's.

    ``distribution`` is what they were drawn from; None: each is certain (a point mass). ``confidence[b]`` are the drafter's at
    row b's positions, as `Gate` says; None where it tells none.
    """

    guesses: Tensor | None = None  # where they are not on the host: see `DeviceDraft`
    parents: Sequence[Sequence[int]] = ()  # of a tree's nodes: see `TreeDraft`

    def __init__(
        self, tokens: list[list[int]], distribution: Distribution | None = None, confidence: list[list[float]] | None = None
    ):
        self.tokens, self.distribution, self.confidence = tokens, distribution, confidence

    def clip(self, room: Sequence[int], eos: int) -> "Draft":
        """At most ``room[b]`` tokens of each row, and none after eos."""
        clipped = [
            tokens[: min(most, tokens.index(eos) + 1 if eos in tokens else most)] for tokens, most in zip(self.tokens, room)
        ]
        return Draft(clipped, self.distribution, self.confidence)

    def cut(self, gate: Gate) -> "Draft":
        """The tokens before the position at which the product of confidences falls below the drafter's ``gate``."""
        sure = self.confidence if gate.drafter else None  # which comes from the device at each reading
        if sure is None:
            return self
        kept = []
        for tokens, confidence in zip(self.tokens, sure):
            products = accumulate(confidence, mul)
            kept.append([token for token, _ in zip(tokens, takewhile(lambda product: product >= gate.drafter, products))])
        return Draft(kept, self.distribution, sure)


class DeviceDraft(Draft):
    """A draft that is still on the device, so that the host does not wait for it: ``guesses`` (R, K) int64, of R >= B rows.

    Row b is offered the first ``room[b]`` of its guesses, and nothing after ``eos``. Reading ``tokens`` waits for the device,
    unless the guesses have come to the host with another transfer: `arrive`.
    """

    guesses: Tensor

    def __init__(
        self, guesses: Tensor, room: Sequence[int], eos: int | None = None, distribution: Distribution | None = None,
        sure: Tensor | None = None,
    ):  # fmt: skip
        self.guesses, self.room, self.eos, self.distribution, self._sure = guesses, room, eos, distribution, sure
        self._tokens: list[list[int]] | None = None

    @property
    def confidence(self) -> list[list[float]] | None:  # type: ignore[override]
        return None if self._sure is None else self._sure.tolist()

    @property
    def tokens(self) -> list[list[int]]:  # type: ignore[override]
        if self._tokens is None:
            return self.arrive(self.guesses[: len(self.room)].tolist())
        return self._tokens

    def arrive(self, guesses: list[list[int]]) -> list[list[int]]:
        """Take each row's guesses; returns the tokens that it is offered."""
        eos = -1 if self.eos is None else self.eos
        self._tokens = Draft(guesses).clip(self.room, eos).tokens
        return self._tokens

    def clip(self, room: Sequence[int], eos: int) -> Draft:
        return DeviceDraft(self.guesses, list(map(min, self.room, room)), eos, self.distribution, self._sure)


class Verdict(NamedTuple):
    """How many of each row's drafted tokens are accepted, and the verifier's own token after them.

    ``own`` tokens are *recovered* after a refusal, a *bonus* after none; None where there is no verifier. ``scores`` are the
    log-probabilities (nats) of the accepted tokens and the own one; ``cut`` tells where the length limit forced the own one.
    ``paths`` are the accepted nodes of a `TreeDraft`; None: the first tokens of a chain.
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
    """One iteration of one sentence: the draft, how many of its tokens were accepted, the verifier's own token after them.

    The accepted ones come first: of a drafted tree the accepted path, then all other nodes, in their order.
    ``own`` is None where nothing follows: an accepted token ended the sentence, or there was no verifier.
    """

    drafted: list[int]
    accepted: int
    own: int | None


class Iteration(NamedTuple):
    """What an iteration did to each row: its step, the scores of the tokens committed, whether the limit forced the own one."""

    steps: list[Step]
    scores: list[list[float]]
    cut: list[bool]

    @classmethod
    def of(cls, draft: Draft, verdict: Verdict, eos: int) -> "Iteration":
        """By the rule's verdict. After an accepted eos there is no own token."""
        steps, offered = [], draft.tokens
        if verdict.paths is not None:
            offered = [path_first(tokens, path) for tokens, path in zip(offered, verdict.paths)]
        for drafted, accepted, own in zip(offered, verdict.accepted, verdict.own or repeat(None)):
            ended = accepted and drafted[accepted - 1] == eos
            steps.append(Step(drafted, accepted, None if ended else own))
        return cls(steps, verdict.scores, verdict.cut)


def path_first(tokens: Sequence[int], path: Sequence[int]) -> list[int]:
    """A tree's tokens: those on a path, then the others."""
    others = set(range(len(tokens))).difference(path)
    return [tokens[node] for node in (*path, *sorted(others))]


class Outcome(NamedTuple):
    """What became of a plan: each row's `Step` in each of the ``times`` iterations, and the seconds that these took.

    With ``recorded`` the seconds include the recording of a pass, and say nothing about what such an iteration costs.
    """

    plan: Plan
    steps: Sequence[Step]
    seconds: float
    times: int = 1
    recorded: bool = False


@dataclass(frozen=True)
class Hypothesis:
    """An output: ``output`` is its number within the request ``index``.

    ``tokens`` end before eos; ``token_scores`` (nats, the verifier's) include it, as in fairseq. The first ``prefilled`` tokens
    were forced, and belong to no step. ``error`` is what ended the request early.
    """

    index: int
    tokens: list[int]
    token_scores: list[float]
    steps: list[Step]
    cut: bool  # the length limit ended it, not the model
    output: int = 0
    prefilled: int = 0
    error: Exception | None = None


class Commit(NamedTuple):
    """What a step added to an output of a request, and the whole output once it has finished.

    The commits of an output concatenate to its hypothesis: nothing is taken back. ``tokens`` end before eos.
    """

    request: int
    output: int
    tokens: list[int]
    scores: list[float]
    finished: Hypothesis | None = None


def send(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for the work that the device was given before."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor (B, ...) with zeros for further rows."""
    return tensor if len(tensor) == rows else torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
