"""The successor network of a block drafter, in training: it conditions a drafted token on the one before it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.networks.masking import ManyBlocks

# Fraction of predictions that train without the successor network: decoding picks its candidates from the logits without it.
ALONE = 0.2


class Successor(nn.Module):
    """Adds W_out relu(W_feature x + b + W_token e) to a prediction's feature x; e embeds the previous token. Initially adds 0."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.from_feature = nn.Linear(width, hidden)
        self.from_token = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The term to add to features (..., D), given embeddings (..., D) of the previous tokens."""
        term: Tensor = self.out(F.relu(self.from_feature(features) + self.from_token(tokens)))
        return term

    def relate(self, features: Tensor, block: ManyBlocks, embed: Callable[[Tensor], Tensor], pad: int) -> Tensor:
        """Features (N, D) of the blocks' predictions, in the order of ``block.masked``, each conditioned on the previous token.

        That token is the target's: nothing after a wrong token is accepted. The first prediction of a block is left alone: its
        features already depend on the previous token.
        """
        before = F.pad(block.target, (1, 0), value=pad)[..., :-1][block.masked]  # (N,)
        related = block.offsets[block.masked] > 0
        if self.training:
            related &= torch.rand(related.shape, device=related.device) >= ALONE
        terms: Tensor = self(features, embed(before))
        return features + terms * related[:, None]
