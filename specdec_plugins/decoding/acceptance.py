"""Which drafted tokens pass, and what follows them: pure functions of the verifier's logits, the draft and what is allowed.

Knows nothing about models or the loop. B rows, which a recorded pass makes R >= B, K drafted tokens, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.graphs import EAGER, Runner
from specdec_plugins.decoding.values import Bounds, DeviceDraft, Draft, Symbols, Verdict, pad_rows, send


@dataclass(frozen=True)
class TopBetaTau:
    """Xia et al. 2023, section 3.3: a drafted token passes if it is among the verifier's ``beta`` best and within ``tau`` nats
    of the best. ``beta=1`` is exact: the output is the verifier's greedy output.

    Of equal logits the lower token number ranks first, as for argmax.
    """

    beta: int = 1
    tau: float = math.inf
    runner: Runner = EAGER

    def __post_init__(self):
        if self.beta < 1:
            raise ValueError(f"beta {self.beta} is less than 1")
        if not self.tau >= 0:
            raise ValueError(f"tau {self.tau} is negative or no number")

    def __call__(self, logits: Tensor, draft: Draft, bounds: Bounds) -> Verdict:
        """Judge a draft by logits (R, K+1, V), R >= B: position j chooses the token after the first j drafted ones."""
        if isinstance(draft, DeviceDraft):
            width, guesses = draft.guesses.size(1), [pad_rows(draft.guesses, len(logits))]
            lines: list[tuple[int, ...]] = list(zip(draft.room, bounds.empty, bounds.room))
        else:
            width, guesses = max(map(len, draft.tokens)), []
            lines = [(len(row), empty, room, *row, *[0] * (width - len(row)))
                     for row, empty, room in zip(draft.tokens, bounds.empty, bounds.room)]  # fmt: skip
        padding = [(0,) * len(lines[0])] * (len(logits) - len(lines))
        inputs = [logits[:, : width + 1], send([*lines, *padding], logits.device), *guesses]
        limited = min(bounds.room) <= width
        judged = self.runner.run(self._judge, inputs, settings=(bounds.symbols, limited))[0][: len(lines)].tolist()
        if isinstance(draft, DeviceDraft):
            draft.arrive([list(map(int, row[4 + width :])) for row in judged])
        counts = [int(row[0]) for row in judged]
        return Verdict(
            counts,
            [int(row[1]) for row in judged],
            [row[3 : 4 + count] for row, count in zip(judged, counts)],
            [row[2] > 0 for row in judged],
        )

    def _judge(
        self, symbols: Symbols, limited: bool, logits: Tensor, table: Tensor, guesses: Tensor | None = None
    ) -> list[Tensor]:
        """One tensor (R, 3 + K + 1 + K), so that all of it goes to the host at once: each transfer waits for the GPU.

        A row has how many are accepted, the correction, whether the limit forced it, K + 1 scores and the drafted tokens, all in
        numbers that hold token numbers exactly. ``table`` (R, 3 + K) has how many are offered, the `Bounds`, and the drafted
        tokens, unless they are the ``guesses`` (R, K) of a `DeviceDraft`.
        """
        width = logits.size(1) - 1
        offered, empty, room, tokens = table.tensor_split((1, 2, 3), 1)  # (R, 1) three times, (R, K) or (R, 0)
        tokens = tokens if guesses is None else guesses
        allowed, forced = restrict(logits, symbols, empty[:, 0] > 0, room[:, 0] if limited else None)
        best = allowed.argmax(-1)  # (R, K+1)
        passes = tokens == best[:, :width]  # (R, K)
        if self.beta > 1:
            passes |= self._tolerates(allowed[:, :width], best[:, :width], tokens)
        passes &= torch.arange(width, device=passes.device) < offered
        if guesses is not None:  # nothing is offered after eos: the host has cut its own drafts there
            ends = (tokens == symbols.eos).long()
            passes &= ends.cumsum(1) == ends
        accepted = passes.long().cumprod(1).sum(1, keepdim=True)  # (R, 1) up to the first refusal
        corrections = best.gather(1, accepted)  # (R, 1)

        # Scores are of all that the model would say, as in fairseq: of the logits before anything was forbidden.
        chosen = torch.cat([tokens, corrections], 1).scatter(1, accepted, corrections)  # (R, K+1)
        said = logits.float()
        scores = said.gather(2, chosen[..., None])[..., 0] - said.logsumexp(-1)  # (R, K+1)
        return [torch.cat([each.double() for each in (accepted, corrections, forced.gather(1, accepted), scores, tokens)], 1)]

    def _tolerates(self, logits: Tensor, best: Tensor, tokens: Tensor) -> Tensor:
        """(B, K) whether a token ranks below ``beta`` and lies within ``tau``."""
        top, own = (logits.gather(2, each[..., None]) for each in (best, tokens))  # (B, K, 1)
        near = (top.float() - own.float() <= self.tau) & (own > -math.inf)
        earlier = torch.arange(logits.size(-1), device=logits.device) < tokens[..., None]  # (B, K, V)
        rank = ((logits > own) | ((logits == own) & earlier)).sum(-1)
        return near[..., 0] & (rank < self.beta)


def restrict(logits: Tensor, symbols: Symbols, empty: Tensor, room: Tensor | None) -> tuple[Tensor, Tensor]:
    """A copy of logits (R, K+1, V) with minus infinity where `Bounds` forbid; (R, K+1) whether the limit forbids the best.

    ``empty`` (R,) bool, ``room`` (R,), or None where all have room for all of K + 1 tokens.
    """
    allowed = logits.clone()
    allowed[..., symbols.pad] = -math.inf
    allowed[:, 0, symbols.eos].masked_fill_(empty, -math.inf)
    if room is None:
        return allowed, torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    over = torch.arange(logits.size(1), device=logits.device) >= room[:, None]  # (R, K+1)
    forced = over & (allowed.argmax(-1) != symbols.eos)
    allowed.masked_fill_(over[..., None], -math.inf)
    allowed[..., symbols.eos].masked_fill_(over, 0.0)
    return allowed, forced


def accept_all(logits: Tensor | None, draft: Draft, bounds: Bounds) -> Verdict:
    """No verification: the draft is the output. For the strategy ``drafter``; ``logits`` are not looked at."""
    return Verdict(
        list(map(len, draft.tokens)), None, [[0.0] * len(tokens) for tokens in draft.tokens], [False] * len(draft.tokens)
    )
