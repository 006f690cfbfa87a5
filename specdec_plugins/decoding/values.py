"""What the roles hand to each other: sources, prefixes, drafts, verdicts; and what the loop reports.

Knows nothing about models. B rows of the batch (sentences in flight), S source positions, K drafted tokens,
V vocabulary, T target positions that the buffers hold.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


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
    """Some sentences to encode: ``tokens`` (B, S) int64, padded on the right; ``lengths`` (B,) int64."""

    def __init__(self, sentences: Sequence[Sequence[int]], symbols: Symbols, device: torch.device | str = "cpu"):
        width = max(map(len, sentences))
        rows = [[*sentence, *[symbols.pad] * (width - len(sentence))] for sentence in sentences]
        self.tokens = torch.tensor(rows, device=device)
        self.lengths = torch.tensor([len(sentence) for sentence in sentences], device=device)
        self._encoded: dict[int, Tensor] = {}

    def encoded_by(self, encoder) -> Tensor:
        """(B, S, D) output of an encoder, run once for all who share it."""
        if id(encoder) not in self._encoded:
            self._encoded[id(encoder)] = encoder(self.tokens, self.lengths)
        return self._encoded[id(encoder)]


@dataclass(frozen=True)
class Draft:
    """``tokens`` (B, K) int64; only the first ``lengths`` (B,) of a row are offered for verification."""

    tokens: Tensor
    lengths: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device | str = "cpu") -> "Draft":
        return cls(torch.zeros(rows, 0, dtype=torch.int64, device=device), torch.zeros(rows, dtype=torch.int64, device=device))


@dataclass(frozen=True)
class Verdict:
    """``accepted`` (B,) int64 leading tokens of the draft; ``correction`` (B,) the verifier's token after them, or None."""

    accepted: Tensor
    correction: Tensor | None


class Prefix:
    """The committed tokens of the sentences in flight, one row each.

    ``tokens`` (B, T) starts with eos, as the verifier's decoder input does: row b is eos, y1 .. yn, n = ``lengths[b]``.
    ``limits`` (B,) is the most tokens that a row may commit before eos. Rows leave by `select` and join by `admit`.
    """

    def __init__(self, symbols: Symbols, rows: int, device: torch.device | str = "cpu"):
        self.symbols = symbols
        self.device = device
        self.requests: list[Request] = []
        self.steps: list[list[Step]] = []
        self._tokens = torch.full((rows, 64), symbols.eos, device=device)
        self._scores = torch.zeros(rows, 64, device=device, dtype=torch.float32)  # of the token at the same place
        self._lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._limits = torch.zeros(rows, dtype=torch.int64, device=device)
        self._cut = torch.zeros(rows, dtype=torch.bool, device=device)
        self._hidden: list[tuple[Tensor, Tensor]] = []  # parts of the logits in hand that `constrain` hid, and what they were
        self.longest = 0  # of lengths
        self.room = 0  # tokens that the row with most room may still commit before eos
        self._least_room = 0  # the same for the row with least

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def tokens(self) -> Tensor:
        return self._tokens[: len(self)]

    @property
    def lengths(self) -> Tensor:
        return self._lengths[: len(self)]

    @property
    def limits(self) -> Tensor:
        return self._limits[: len(self)]

    @property
    def last(self) -> Tensor:
        """(B,) the last committed token of each row; eos where there is none yet."""
        return self.tokens.gather(1, self.lengths[:, None])[:, 0]

    def admit(self, requests: Sequence[Request]) -> None:
        """Append rows with nothing committed."""
        assert all(request.limit > 0 for request in requests), "an output has at least one token"
        start = len(self)
        self.requests.extend(requests)
        self.steps.extend([] for _ in requests)
        self._lengths[start : len(self)] = 0
        self._cut[start : len(self)] = False
        self._limits[start : len(self)] = torch.tensor([request.limit for request in requests], device=self.device)
        self._measure()

    def select(self, order: list[int]) -> None:
        """Keep the rows ``order``: the new row i is the old row ``order[i]``."""
        for tensor in (self._tokens, self._scores, self._lengths, self._limits, self._cut):
            move_rows(tensor, order)
        self.requests = [self.requests[row] for row in order]
        self.steps = [self.steps[row] for row in order]
        self._measure()

    def constrain(self, logits: Tensor) -> Tensor:
        """Forbid in logits (B, K+1, V), in place, what fairseq's search forbids: pad, an empty output, going on at the limit.

        Position j of row b chooses token number ``lengths[b] + j + 1``.
        """
        self._hidden = []
        self._hide(logits[..., self.symbols.pad], torch.ones((), dtype=torch.bool, device=self.device))
        self._hide(logits[:, 0, self.symbols.eos], self.lengths == 0)
        if self._least_room < logits.size(1):
            place = self.lengths[:, None] + torch.arange(logits.size(1), device=self.device)  # (B, K+1)
            over = place >= self.limits[:, None]
            forced = (place == self.limits[:, None]) & logits.argmax(-1).ne(self.symbols.eos)
            self._cut[: len(self)] = forced.any(1)  # counts only for a row that gets there, which this pass ends
            ends = torch.arange(logits.size(2), device=self.device) == self.symbols.eos
            self._hide(logits, over[..., None] & ~ends)
        return logits

    def _hide(self, logits: Tensor, where: Tensor) -> None:
        """Forbid some choices. `commit` puts the logits back: scores are of all that the model would say, as in fairseq."""
        self._hidden.append((logits, logits.clone()))
        logits.masked_fill_(where, -math.inf)

    def clip(self, draft: Draft) -> Draft:
        """Offer no drafted token after eos, and none beyond the length limit."""
        width = draft.tokens.size(1)
        if not width:
            return draft
        place = torch.arange(width, device=self.device)
        to_eos = torch.where(draft.tokens == self.symbols.eos, place + 1, width).amin(1)
        room = self.limits - self.lengths
        lengths = torch.minimum(torch.minimum(draft.lengths, to_eos), room)
        return Draft(draft.tokens[:, : max(1, int(lengths.max()))], lengths)  # what no row offers need not be scored

    def commit(self, draft: Draft, verdict: Verdict, logits: Tensor | None) -> tuple[list[Step], list[bool]]:
        """Append each row's accepted tokens and correction, up to and with eos.

        ``logits`` (B, K+1, V) give the scores; None leaves them zero. Returns each row's step and whether it is finished.
        """
        rows = len(self)
        block, counts = draft.tokens, verdict.accepted  # tokens to append, and how many of them
        if verdict.correction is not None:
            block = torch.cat([block, block.new_zeros(rows, 1)], 1)  # (B, K+1)
            block.scatter_(1, verdict.accepted[:, None], verdict.correction[:, None])
            counts = counts + 1
        place = torch.arange(block.size(1), device=self.device)
        ends = (block == self.symbols.eos) & (place < counts[:, None])
        counts = torch.minimum(counts, torch.where(ends, place + 1, block.size(1)).amin(1))
        finished = ends.any(1)
        if verdict.correction is None:
            full = (self.lengths + counts >= self.limits) | (counts == 0)  # 0: the drafter has no more positions
            self._cut[:rows] |= full & ~finished
            finished = finished | full

        row, column = (place < counts[:, None]).nonzero(as_tuple=True)  # (N,) what is appended
        self._reserve(self.longest + block.size(1) + 1)
        target = (row, self._lengths[row] + column + 1)
        self._tokens[target] = block[row, column]
        if logits is not None:
            for part, values in reversed(self._hidden):
                part.copy_(values)
            chosen = logits[row, column].float()  # (N, V)
            self._scores[target] = chosen.gather(1, block[row, column][:, None])[:, 0] - chosen.logsumexp(1)
        self._lengths[:rows] += counts
        self._measure()

        accepted = torch.minimum(counts, verdict.accepted).tolist()
        appended = zip(draft.tokens.tolist(), draft.lengths.tolist(), accepted, counts.tolist(), block.tolist())
        steps = [
            Step(drafted[:offered], passed, tokens[passed] if count > passed else None)
            for drafted, offered, passed, count, tokens in appended
        ]
        for history, step in zip(self.steps, steps):
            history.append(step)
        return steps, finished.tolist()

    def hypothesis(self, row: int) -> Hypothesis:
        """What a finished row holds."""
        length = int(self._lengths[row])
        tokens = self._tokens[row, 1 : length + 1].tolist()
        scores = self._scores[row, 1 : length + 1].tolist()
        ended = bool(tokens) and tokens[-1] == self.symbols.eos
        index = self.requests[row].index
        tokens = tokens[:-1] if ended else tokens
        cut = bool(self._cut[row]) and (not ended or len(tokens) == self.requests[row].limit)
        return Hypothesis(index, tokens, scores, self.steps[row], cut)

    def _measure(self) -> None:
        lengths, room = self.lengths.tolist(), (self.limits - self.lengths).tolist()
        self.longest, self.room, self._least_room = max(lengths, default=0), max(room, default=0), min(room, default=0)

    def _reserve(self, width: int) -> None:
        if width > self._tokens.size(1):
            more = max(width, 2 * self._tokens.size(1)) - self._tokens.size(1)
            self._tokens = torch.nn.functional.pad(self._tokens, (0, more), value=self.symbols.eos)
            self._scores = torch.nn.functional.pad(self._scores, (0, more))


def compacted(finished: Sequence[bool]) -> list[int]:
    """The unfinished rows in a new order that moves few: those behind the new end of the batch fill the gaps before it."""
    staying = [row for row, end in enumerate(finished) if not end]
    movers = [row for row in staying if row >= len(staying)]
    return [movers.pop() if finished[row] else row for row in range(len(staying))]


def move_rows(tensor: Tensor, order: list[int], dim: int = 0) -> None:
    """Let row i of ``tensor``, along ``dim``, be what row ``order[i]`` was; rows that stay are not touched."""
    targets = [new for new, old in enumerate(order) if new != old]
    if targets:
        sources = torch.tensor([order[new] for new in targets], device=tensor.device)
        tensor.index_copy_(dim, torch.tensor(targets, device=tensor.device), tensor.index_select(dim, sources))


@dataclass
class DecodeStats:
    """Running sums over sentences and iterations. committed = accepted + corrections, always."""

    sentences: int = 0
    passes: int = 0  # of the verifier, over a whole batch
    iterations: int = 0  # passes counted once per row in the batch
    drafted: int = 0  # tokens offered for verification
    accepted: int = 0
    corrections: int = 0
    cut: int = 0  # outputs that the length limit ended
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("text", "encoding", "drafting", "verifying", "elsewhere"), 0.0)
    )
    _since: float = 0.0

    @property
    def committed(self) -> int:
        """Tokens of all outputs, the closing eos included."""
        return self.accepted + self.corrections

    @property
    def mean_accepted_length(self) -> float:
        """Tokens committed per verifier pass and row, correction included: 1.0 is plain autoregressive decoding."""
        return self.committed / max(1, self.iterations)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per drafted token that was offered."""
        return self.accepted / max(1, self.drafted)

    def record(self, steps: Sequence[Step]) -> None:
        """Count one pass over the batch."""
        self.passes += 1
        self.iterations += len(steps)
        self.drafted += sum(len(step.drafted) for step in steps)
        self.accepted += sum(step.accepted for step in steps)
        self.corrections += sum(step.correction is not None for step in steps)

    def finish(self, hypothesis: Hypothesis) -> None:
        self.sentences += 1
        self.cut += hypothesis.cut

    def lap(self, what: str | None, device: torch.device | str = "cpu") -> None:
        """Book the time since the last lap under ``what``; None books it nowhere."""
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if what is not None:
            self.seconds[what] += now - self._since
        self._since = now
