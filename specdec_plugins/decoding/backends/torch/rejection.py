"""The rejection rule for sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

Accept a drafted token x with probability min(1, verifier(x) / drafter(x)); after a refusal sample from the normalised positive
part of verifier - drafter. Tokens then follow the verifier's distribution, although the draft decides which ones come. A draft
without a distribution is a point mass.

``csrc/judge.h`` has the same rule. R rows, W = K + 1 positions, V vocabulary.
"""

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.noise import uniform
from specdec_plugins.decoding.backends.torch.sampling import Table, draw
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.values import Distribution


def judge(
    weights: Tensor, table: Table, tokens: Tensor, offered: Tensor, distribution: Distribution | None = None
) -> tuple[Tensor, Tensor]:
    """(R, K) bool: whether each drafted token is accepted; (R, W) the verifier's own token where it is refused or missing.

    ``weights`` (R, W, V) come from `sampling.warp`. Of row b's ``tokens`` (R, K) the first ``offered`` (R, 1) are drafted.
    """
    width = tokens.size(1)
    present = torch.arange(width, device=tokens.device) < offered  # (R, K)
    drafter = torch.zeros_like(weights)
    if distribution is None:
        drafter[:, :width].scatter_(2, tokens[..., None], 1.0)
    else:
        drafter[:, :width].scatter_add_(2, distribution.tokens, distribution.probabilities.to(weights))
    drafter[:, :width] *= present[..., None]
    verified, drafted = (each[:, :width].gather(2, tokens[..., None])[..., 0] for each in (weights, drafter))  # (R, K) each
    accepted = uniform(table.bits(Purpose.ACCEPT, width, tokens.new_zeros(1)))[..., 0] * drafted < verified
    rest = (weights - drafter).clamp(min=0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, weights)  # equal distributions refuse nothing
    return accepted & present, draw(rest, table, Purpose.RECOVER)
