"""The network of drafter `small` in training."""

import torch
import torch.nn.functional as F
from torch import nn

from specdec_plugins.decoding.drafters.small import Options, shape
from specdec_plugins.decoding.networks.decoder import Unrolled, adopt, decoder_of, embedded, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss, blocks

BLOCK = 8  # block length for the logged accept_len


class Network(nn.Module):
    """The decoder's layers, which start as the verifier's last ones."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, initial(self.spec, verifier))

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of every target token, with teacher forcing."""
        verifier, present = batch.verifier, batch.target != batch.symbols.pad
        decoder = decoder_of(self, self.spec, verifier)
        x = F.dropout(embedded(decoder, batch.prefix), self.options.dropout, self.training)
        done = Unrolled(decoder, *verifier.encode(batch.source))(x)[present]
        losses, hits = verifier.cross_entropy(done, batch.target[present])
        right = torch.zeros_like(present).masked_scatter(present, hits)
        return Loss(losses.sum(), len(hits), blocks(right, present, BLOCK))
