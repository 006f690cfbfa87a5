"""The rejection rule for sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

A drafted token x is accepted with the probability min(1, verifier(x) / drafter(x)); after a refusal a token is drawn from the
positive part of verifier - drafter. So every token has the verifier's distribution, though which one comes depends on the draft.
A drafter that says nothing of its distribution gave x for certain.

``csrc/judge.h`` has the same rule. R rows, W = K + 1 positions, C tokens that the drafter drew from, V vocabulary.
"""

import torch
from torch import Tensor

from specdec_plugins.decoding.noise import Purpose, uniform
from specdec_plugins.decoding.sampling import Table, draw
from specdec_plugins.decoding.values import Distribution


def judge(
    weights: Tensor, table: Table, tokens: Tensor, offered: Tensor, distribution: Distribution | None = None
) -> tuple[Tensor, Tensor]:
    """(R, K) bool: whether each drafted token is accepted; (R, W) the verifier's own token if it is not, or if none is drafted.

    ``weights`` (R, W, V) as `sampling.warp` gives them, ``tokens`` (R, K) of which row b is offered ``offered`` (R, 1).
    """
    width = tokens.size(1)
    there = torch.arange(width, device=tokens.device) < offered  # (R, K)
    drafter = torch.zeros_like(weights)
    if distribution is None:
        drafter[:, :width].scatter_(2, tokens[..., None], 1.0)
    else:
        drafter[:, :width].scatter_add_(2, distribution.tokens, distribution.probabilities.to(weights))
    drafter[:, :width] *= there[..., None]
    said = [each[:, :width].gather(2, tokens[..., None])[..., 0] for each in (weights, drafter)]  # (R, K) twice
    accepted = uniform(table.bits(Purpose.ACCEPT, width, tokens.new_zeros(1)))[..., 0] * said[1] < said[0]
    rest = (weights - drafter).clamp(min=0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, weights)  # both distributions equal: nothing is refused
    return accepted & there, draw(rest, table, Purpose.RECOVER)
