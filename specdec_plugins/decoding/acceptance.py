"""Which drafted tokens pass: pure functions of the verifier's logits and the draft.

Knows nothing about models or the loop. B rows, K drafted tokens, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .values import Draft, Verdict


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

    def __call__(self, logits: Tensor, draft: Draft) -> Verdict:
        """Judge a draft by logits (B, K+1, V): position j chooses the token after the first j drafted ones."""
        width = draft.tokens.size(1)
        best = logits.argmax(-1)  # (B, K+1)
        passes = draft.tokens == best[:, :width]  # (B, K)
        if self.beta > 1:
            passes |= self._tolerates(logits[:, :width], best[:, :width], draft.tokens)
        passes &= torch.arange(width, device=passes.device) < draft.lengths[:, None]
        accepted = passes.long().cumprod(1).sum(1)  # (B,) up to the first refusal
        return Verdict(accepted, best.gather(1, accepted[:, None])[:, 0])

    def _tolerates(self, logits: Tensor, best: Tensor, tokens: Tensor) -> Tensor:
        """(B, K) whether a token ranks below ``beta`` and lies within ``tau``; ranks are counted only where tau allows it."""
        top = logits.gather(2, best[..., None])[..., 0].float()
        drafted = logits.gather(2, tokens[..., None])[..., 0].float()
        near = (top - drafted <= self.tau) & (drafted > -math.inf) & (tokens != best)
        rivals = logits[near]  # (N, V)
        token = tokens[near][:, None]
        own = rivals.gather(1, token)
        earlier = torch.arange(rivals.size(1), device=rivals.device) < token
        rank = ((rivals > own) | ((rivals == own) & earlier)).sum(1)
        near[near.clone()] = rank < self.beta
        return near


def accept_all(logits: Tensor | None, draft: Draft) -> Verdict:
    """No verification: the draft is the output. For the strategy ``drafter``; ``logits`` are not looked at."""
    return Verdict(draft.lengths, None)
