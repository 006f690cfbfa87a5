"""Which drafted tokens pass, and what follows them: pure functions of the verifier's logits, the draft and what is allowed.

Knows nothing about models or the loop. B rows, K drafted tokens, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .values import Bounds, Draft, Verdict


@dataclass(frozen=True)
class TopBetaTau:
    """Xia et al. 2023, section 3.3: a drafted token passes if it is among the verifier's ``beta`` best and within ``tau`` nats
    of the best. ``beta=1`` is exact: the output is the verifier's greedy output.

    Of equal logits the lower token number ranks first, as for argmax.
    """

    beta: int = 1
    tau: float = math.inf

    def __post_init__(self):
        if self.beta < 1:
            raise ValueError(f"beta {self.beta} is less than 1")
        if not self.tau >= 0:
            raise ValueError(f"tau {self.tau} is negative or no number")

    def __call__(self, logits: Tensor, draft: Draft, bounds: Bounds) -> Verdict:
        """Judge a draft by logits (B, K+1, V): position j chooses the token after the first j drafted ones."""
        width = draft.width
        tokens = draft.padded(logits.device)  # (B, K)
        offered = torch.tensor(list(map(len, draft.tokens)), device=logits.device)
        allowed, forced = restrict(logits[:, : width + 1], bounds)
        best = allowed.argmax(-1)  # (B, K+1)
        passes = tokens == best[:, :width]  # (B, K)
        if self.beta > 1:
            passes |= self._tolerates(allowed[:, :width], best[:, :width], tokens)
        passes &= torch.arange(width, device=passes.device) < offered[:, None]
        accepted = passes.long().cumprod(1).sum(1)  # (B,) up to the first refusal
        corrections = best.gather(1, accepted[:, None])  # (B, 1)

        # Scores are of all that the model would say, as in fairseq: of the logits before anything was forbidden.
        chosen = torch.cat([tokens, corrections], 1).scatter(1, accepted[:, None], corrections)  # (B, K+1)
        said = logits[:, : width + 1].float()
        scores = said.gather(2, chosen[..., None])[..., 0] - said.logsumexp(-1)  # (B, K+1)
        cut = forced.gather(1, accepted[:, None])
        # All of it goes to the host at once, in numbers that hold token numbers exactly: each transfer waits for the GPU.
        result = torch.cat([accepted[:, None].double(), corrections.double(), cut.double(), scores.double()], 1).tolist()
        counts = [int(row[0]) for row in result]
        return Verdict(
            counts,
            [int(row[1]) for row in result],
            [row[3 : 4 + count] for row, count in zip(result, counts)],
            [row[2] > 0 for row in result],
        )

    def _tolerates(self, logits: Tensor, best: Tensor, tokens: Tensor) -> Tensor:
        """(B, K) whether a token ranks below ``beta`` and lies within ``tau``."""
        top, own = (logits.gather(2, each[..., None]) for each in (best, tokens))  # (B, K, 1)
        near = (top.float() - own.float() <= self.tau) & (own > -math.inf)
        earlier = torch.arange(logits.size(-1), device=logits.device) < tokens[..., None]  # (B, K, V)
        rank = ((logits > own) | ((logits == own) & earlier)).sum(-1)
        return near[..., 0] & (rank < self.beta)


def restrict(logits: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """A copy of logits (B, K+1, V) with minus infinity where `Bounds` forbid; (B, K+1) whether the limit forbids the best."""
    eos, width, device = bounds.symbols.eos, logits.size(1), logits.device
    allowed = logits.clone()
    allowed[..., bounds.symbols.pad] = -math.inf
    allowed[:, 0, eos].masked_fill_(torch.tensor(bounds.empty, device=device), -math.inf)
    if min(bounds.room) >= width:
        return allowed, torch.zeros(logits.shape[:2], dtype=torch.bool, device=device)
    over = torch.arange(width, device=device) >= torch.tensor(bounds.room, device=device)[:, None]  # (B, K+1)
    forced = over & (allowed.argmax(-1) != eos)
    allowed[over] = -math.inf
    allowed[..., eos].masked_fill_(over, 0.0)
    return allowed, forced


def accept_all(logits: Tensor | None, draft: Draft, bounds: Bounds) -> Verdict:
    """No verification: the draft is the output. For the strategy ``drafter``; ``logits`` are not looked at."""
    return Verdict(
        list(map(len, draft.tokens)), None, [[0.0] * len(tokens) for tokens in draft.tokens], [False] * len(draft.tokens)
    )
