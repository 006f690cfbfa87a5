"""The network that relates a drafted token to the one before it, in training."""

import torch.nn.functional as F
from torch import Tensor, nn

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
