"""The network that relates a drafted token to the one before it, in training."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.networks.masking import ManyBlocks

# Share of the predictions that train without the successor network: decoding lets the logits without it choose its candidates.
ALONE = 0.2


class Successor(nn.Module):
    """What a token says about the one after it: adds W_out relu(W_feature x + b + W_token e) to the feature x of a prediction.

    e is the embedding of the token before it. Fresh, it adds nothing.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.from_feature = nn.Linear(width, hidden)
        self.from_token = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """(..., D) what is added to features (..., D), for embeddings (..., D) of the tokens before."""
        return self.out(F.relu(self.from_feature(features) + self.from_token(tokens)))

    def relate(self, features: Tensor, block: ManyBlocks, embed: Callable[[Tensor], Tensor], pad: int) -> Tensor:
        """Features (N, D) of the blocks' predictions, in the order of ``block.masked``, each related to the token before it.

        That token is the verifier's: in decoding, nothing is accepted after a wrong token, so a guess after one does not count.
        The first token's predecessor is read by what made the features.
        """
        before = F.pad(block.target, (1, 0), value=pad)[..., :-1][block.masked]  # (N,)
        related = block.offsets[block.masked] > 0
        if self.training:
            related &= torch.rand(related.shape, device=related.device) >= ALONE
        return features + self(features, embed(before)) * related[:, None]
