"""The network of drafter `block_causal` in training."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.decoding.backends.torch.layers import through, whole
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.drafters.block_causal import Options
from specdec_plugins.decoding.drafters.small import shape
from specdec_plugins.decoding.networks.decoder import adopt, decoder_of, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, block_loss
from specdec_plugins.decoding.networks.masking import ManyBlocks, layout, training_blocks
from specdec_plugins.decoding.networks.successor import Successor


class Network(nn.Module):
    """The decoder's layers, which start as the verifier's last ones, and a `Successor`."""

    decoder: nn.Module

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, initial(self.spec, verifier))
        self.decoder.add_module("successor", Successor(verifier.embeddings.size(1), options.successor_width))

    def loss(self, batch: Batch) -> Loss:
        """Weighted cross-entropy of blocks of the target: a sample in training, else all."""
        verifier, symbols = batch.verifier, batch.symbols
        block = training_blocks(batch.target, self.options.length, symbols.pad, symbols.start, self.training)
        features = self.features(batch, block)[block.masked]  # (N, D)
        successor = cast(Successor, self.decoder.successor)
        features = successor.relate(features, block, lambda tokens: verifier.embeddings[tokens], symbols.pad)
        return block_loss(features, block, verifier)

    def features(self, batch: Batch, block: ManyBlocks) -> Tensor:
        """(B, A, K, D) final hidden states of the blocks' predictions."""
        decoder = decoder_of(self, self.spec, batch.verifier)
        encoded, hidden = batch.verifier.encode(batch.source)
        tokens, positions, seen = layout(batch.prefix, block, batch.symbols.mask)
        x = F.dropout(decoder.embedding(tokens, positions), self.options.dropout, self.training)  # (B, T, D)
        context = whole(positions, hide(~seen, x.dtype)[:, None], decoder.remember(encoded), hidden)
        x = through(decoder.layers, x, context)
        x, width = decoder.features(x), batch.prefix.size(1)
        first = x[torch.arange(len(x), device=x.device)[:, None], block.starts][:, :, None]  # (B, A, 1, D)
        return torch.cat([first, x[:, width:].unflatten(1, (first.size(1), block.block_size - 1))], 2)
