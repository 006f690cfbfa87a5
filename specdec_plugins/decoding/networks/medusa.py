"""The network of drafter `medusa` in training."""

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.backends.torch.transformer import beginning, heads
from specdec_plugins.decoding.drafters.medusa import Options
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss
from specdec_plugins.decoding.networks.masking import ManyBlocks, training_blocks
from specdec_plugins.model.spec import ModelSpec


class Beginning(nn.Module):
    """A hidden state before the verifier's first pass: W sum_s softmax(q . h_s) h_s, where h is the encoder's output."""

    def __init__(self, verifier: ModelSpec):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(verifier.encoder.width))
        self.out = nn.Linear(verifier.encoder.width, verifier.decoder.width)

    def forward(self, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, D) for an encoder's output (B, S, D); ``hidden`` (B, S), added to scores, masks padding."""
        return beginning(encoded, self.query, self.out.weight, self.out.bias, hidden)


def states_before(beginning: Tensor, states: Tensor) -> Tensor:
    """(B, T, D) the hidden state that each token was predicted from, given ``states`` (B, T, D) after each token."""
    return torch.cat([beginning[:, None], states[:, :-1]], 1)


class HeadsNetwork(nn.Module):
    """Heads that draft ``length`` tokens with ``vectors`` vectors, and the `Beginning`."""

    reads_token = False  # whether heads also read the verifier's own token

    def __init__(self, verifier: FrozenVerifier, length: int, vectors: int):
        super().__init__()
        width = verifier.embeddings.size(1)
        self.length = length
        self.heads = nn.Linear(width * (1 + self.reads_token), width * vectors)
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)
        self.beginning = Beginning(verifier.spec)

    def loss(self, batch: Batch) -> Loss:
        """Weighted cross-entropy of blocks of the target, each after a hidden state: a sample in training, else all."""
        verifier, pad, start = batch.verifier, batch.symbols.pad, batch.symbols.start
        block = training_blocks(batch.target, self.length, pad, start, self.training)
        encoded, hidden = verifier.encode(batch.source)
        states = states_before(self.beginning(encoded, hidden[:, 0, 0]), verifier.states(batch.prefix, encoded, hidden))
        rows = torch.arange(len(states), device=states.device)[:, None]
        own = verifier.embed(batch.prefix[rows, block.starts]) if self.reads_token else None
        vectors = heads(self.heads, states[rows, block.starts], own)  # (B, A, vectors, D)
        vectors = self.read(vectors, verifier, encoded, hidden)[block.masked]  # (N, D)
        return block_loss(self.relate(vectors, block, verifier), block, verifier)

    def read(self, vectors: Tensor, verifier: FrozenVerifier, encoded: Tensor, hidden: Tensor) -> Tensor:
        """(B, A, K, D) features of the blocks' positions: the heads' vectors, unless overridden."""
        return vectors

    def relate(self, predicted: Tensor, block: ManyBlocks, verifier: FrozenVerifier) -> Tensor:
        """Features (N, D) conditioned on the tokens before them, if overridden."""
        return predicted


class Network(HeadsNetwork):
    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__(verifier, options.heads, options.heads)
