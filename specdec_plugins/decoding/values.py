"""What the roles hand to each other: sources, prefixes, drafts, verdicts.

Knows nothing about models. B rows of the batch (sentences in flight), S source positions, K drafted tokens,
V vocabulary, T target positions that the buffers hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specdec_plugins.decoding.stats import DecodeStats as DecodeStats


@dataclass(frozen=True)
class Symbols:
    """Token numbers with a meaning; fairseq's dictionaries all begin alike. The mask symbol is ``<unk>``, as published."""

    pad: int = 1
    eos: int = 2
    mask: int = 3


FAIRSEQ_SYMBOLS = Symbols()


@dataclass(frozen=True)
class Request:
    """A sentence to translate: its number, its tokens with the closing eos, and the most tokens its output may have."""

    index: int
    tokens: Sequence[int]
    limit: int


@dataclass(frozen=True)
class Step:
    """One iteration of one sentence: the draft, how many of its tokens were accepted, the verifier's own token after them.

    ``correction`` is None where nothing follows: an accepted token ended the sentence, or there was no verifier.
    """

    drafted: list[int]
    accepted: int
    correction: int | None


@dataclass(frozen=True)
class Hypothesis:
    """A finished output. ``tokens`` end before eos; ``token_scores`` (nats, the verifier's) include it, as in fairseq."""

    index: int
    tokens: list[int]
    token_scores: list[float]
    steps: list[Step]
    cut: bool  # the length limit ended it, not the model


class Source:
    """Some sentences to encode, as lists of tokens; as tensors, too, when asked for."""

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
        """(B, S, D) output of an encoder, run once for all who share it; behind a sentence stands anything."""
        if id(encoder) not in self._encoded:
            self._encoded[id(encoder)] = encoder(self)
        return self._encoded[id(encoder)]


class Draft:
    """The tokens that each row is offered: ``tokens[b]`` are row b's, as many as there are."""

    guesses: Tensor | None = None  # where they are not on the host: see `DeviceDraft`

    def __init__(self, tokens: list[list[int]]):
        self.tokens = tokens

    def clip(self, room: Sequence[int], eos: int | None = None) -> "Draft":
        """At most ``room[b]`` tokens of each row, and none after eos."""
        return Draft([
            tokens[: min(most, tokens.index(eos) + 1 if eos in tokens else most)] for tokens, most in zip(self.tokens, room)
        ])  # fmt: skip


class DeviceDraft(Draft):
    """A draft that is still on the device, so that nobody waits for it: ``guesses`` (R, K) int64, of R >= B rows.

    Row b is offered the first ``room[b]`` of its guesses, and nothing after ``eos``. Whoever asks for ``tokens`` waits, unless
    the guesses have come to the host with something else: `arrive`.
    """

    guesses: Tensor

    def __init__(self, guesses: Tensor, room: Sequence[int], eos: int | None = None):
        self.guesses, self.room, self.eos = guesses, room, eos
        self._tokens: list[list[int]] | None = None

    @property
    def tokens(self) -> list[list[int]]:  # type: ignore[override]
        if self._tokens is None:
            return self.arrive(self.guesses[: len(self.room)].tolist())
        return self._tokens

    def arrive(self, guesses: list[list[int]]) -> list[list[int]]:
        """Take what each row guesses; returns what it is offered."""
        self._tokens = Draft(guesses).clip(self.room, self.eos).tokens
        return self._tokens

    def clip(self, room: Sequence[int], eos: int | None = None) -> Draft:
        return DeviceDraft(self.guesses, list(map(min, self.room, room)), eos)


def send(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for what the device was given to do before."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor (B, ...) with zeros for further rows."""
    return tensor if len(tensor) == rows else torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


@dataclass(frozen=True)
class Bounds:
    """What a row may say next whatever its logits are, by fairseq's conventions: never pad, no output that is empty
    (``empty``: nothing is committed yet), and nothing but eos at the limit, which is ``room`` tokens away."""

    symbols: Symbols
    empty: list[bool]
    room: list[int]


@dataclass(frozen=True)
class Verdict:
    """How many of each row's drafted tokens pass, and what follows them.

    ``corrections`` are the verifier's tokens behind the accepted ones; None if there is no verifier. ``scores`` are the
    log-probabilities (nats) of the accepted tokens and the correction; ``cut`` tells where the limit forced the correction.
    """

    accepted: list[int]
    corrections: list[int] | None
    scores: list[list[float]]
    cut: list[bool]


class Prefix:
    """The committed tokens of the sentences in flight, one row each. Rows leave by `select` and join by `admit`.

    ``outputs[b]`` is row b's y1 .. yn. For a model that reads it all each time the same as tensors: ``tokens`` (B, T) starts with
    eos, as the verifier's input does, and holds anything behind row b's n = ``lengths[b]`` tokens.
    """

    def __init__(self, symbols: Symbols, device: torch.device | str = "cpu"):
        self.symbols = symbols
        self.device = torch.device(device)
        self.requests: list[Request] = []
        self.outputs: list[list[int]] = []
        self.scores: list[list[float]] = []
        self.steps: list[list[Step]] = []
        self.cut: list[bool] = []
        self._placed: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def tokens(self) -> Tensor:
        return self._tensors()[0]

    @property
    def lengths(self) -> Tensor:
        """(B,) int64"""
        return self._tensors()[1]

    @property
    def longest(self) -> int:
        """The length of the longest output."""
        return max(map(len, self.outputs), default=0)

    @property
    def room(self) -> list[int]:
        """How many tokens each row may still commit before eos."""
        return [request.limit - len(output) for request, output in zip(self.requests, self.outputs)]

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.symbols, [not output for output in self.outputs], self.room)

    def _tensors(self) -> tuple[Tensor, Tensor]:
        """Made when asked for, and again when something has changed."""
        if self._placed is None:
            eos, longest = self.symbols.eos, self.longest
            rows = [[eos, *output, *[eos] * (longest - len(output))] for output in self.outputs]
            self._placed = send(rows, self.device), send(list(map(len, self.outputs)), self.device)
        return self._placed

    def admit(self, requests: Sequence[Request]) -> None:
        """Append rows with nothing committed."""
        assert all(request.limit > 0 for request in requests), "an output has at least one token"
        self.requests.extend(requests)
        for histories in (self.outputs, self.scores, self.steps):
            histories.extend([] for _ in requests)
        self.cut.extend(False for _ in requests)
        self._placed = None

    def select(self, order: list[int]) -> None:
        """Keep the rows ``order``: the new row i is the old row ``order[i]``."""
        for name in ("requests", "outputs", "scores", "steps", "cut"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in order])
        self._placed = None

    def clip(self, draft: Draft) -> Draft:
        """Offer no drafted token after eos, and none beyond the length limit."""
        return draft.clip(self.room, self.symbols.eos)

    def commit(self, draft: Draft, verdict: Verdict) -> tuple[list[Step], list[bool]]:
        """Append each row's accepted tokens and correction, up to eos. Returns each row's step and whether it is finished."""
        steps, finished = [], []
        for row, (drafted, accepted) in enumerate(zip(draft.tokens, verdict.accepted)):
            new, output = drafted[:accepted], self.outputs[row]
            correction = None
            if verdict.corrections is not None and new[-1:] != [self.symbols.eos]:
                correction = verdict.corrections[row]
                new.append(correction)
            output += new
            self.scores[row] += verdict.scores[row][: len(new)]
            ended = output[-1:] == [self.symbols.eos]
            full = verdict.corrections is None and (len(output) >= self.requests[row].limit or not new)  # or no more positions
            self.cut[row] = (verdict.cut[row] and correction is not None) or (full and not ended)
            steps.append(Step(drafted, accepted, correction))
            self.steps[row].append(steps[-1])
            finished.append(ended or full)
        self._placed = None
        return steps, finished

    def hypothesis(self, row: int) -> Hypothesis:
        """What a finished row holds."""
        output = self.outputs[row]
        tokens = output[:-1] if output[-1:] == [self.symbols.eos] else output
        return Hypothesis(self.requests[row].index, tokens, self.scores[row], self.steps[row], self.cut[row])


def compacted(finished: Sequence[bool]) -> list[int]:
    """The unfinished rows in a new order that moves few: those behind the new end of the batch fill the gaps before it."""
    staying = [row for row, end in enumerate(finished) if not end]
    movers = [row for row in staying if row >= len(staying)]
    return [movers.pop() if finished[row] else row for row in range(len(staying))]


def move_rows(tensor: Tensor, order: list[int], dim: int = 0) -> None:
    """Let row i of ``tensor``, along ``dim``, be what row ``order[i]`` was; rows that stay are not touched."""
    moved = {new: tensor.select(dim, old).clone() for new, old in enumerate(order) if new != old}
    for row, values in moved.items():
        tensor.select(dim, row).copy_(values)
