"""The network of drafter `eagle` in training."""

import torch
import torch.nn.functional as F
from torch import nn

from specdec_plugins.decoding.drafters.eagle import Options, shape
from specdec_plugins.decoding.networks.decoder import Unrolled, adopt, decoder_of, embedded, initial
from specdec_plugins.decoding.networks.drafter_code import Batch, FrozenVerifier, Loss
from specdec_plugins.decoding.networks.medusa import states_before

DECAY = 0.85  # weight of a step's loss relative to the previous step's: later ones are used less often


class Network(nn.Module):
    """Layers start as the verifier's last ones, and ``join`` as the embedding alone."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__()
        self.options, self.spec = options, shape(verifier.spec, options.layers)
        adopt(self, initial(self.spec, verifier))
        width = self.spec.decoder.width
        self.join = nn.Linear(2 * width, width)
        self.unknown = nn.Parameter(torch.zeros(width))
        with torch.no_grad():
            self.join.weight.copy_(torch.cat([torch.eye(width), torch.zeros(width, width)], 1))
            self.join.bias.zero_()

    def loss(self, batch: Batch) -> Loss:
        """Weighted cross-entropy of every target token, from the verifier's hidden states, then step by step from its own."""
        verifier, present = batch.verifier, batch.target != batch.symbols.pad
        decoder = decoder_of(self, self.spec, verifier)
        tokens, (encoded, hidden) = verifier.embed(batch.prefix), verifier.encode(batch.source)
        told = verifier.states(batch.prefix, encoded, hidden)
        states = states_before(self.unknown.expand(len(told), -1), told)
        if self.training:
            untold = torch.rand(present.shape, device=present.device) < self.options.untold
            states = torch.where(untold[..., None], self.unknown, states)
        run = Unrolled(decoder, encoded, hidden)
        place = torch.arange(present.size(1), device=present.device)
        numbers = torch.arange(present.numel(), device=present.device).view_as(present)
        total, weight, right = told.new_zeros(()), told.new_zeros(()), []
        for step in range(self.options.steps):
            joined = self.join(torch.cat([tokens, states], -1))
            outputs = run(embedded(decoder, numbers, joined.flatten(0, 1)))
            states = states_before(self.unknown.expand(len(told), -1), outputs)
            there = present & (place >= step)
            loss, hits = verifier.cross_entropy(outputs[there], batch.target[there])
            total, weight = total + DECAY**step * loss.sum(), weight + DECAY**step * len(hits)
            # Step k at a position is the k-th token of a draft that begins k positions earlier.
            right.append(F.pad(torch.zeros_like(there).masked_scatter(there, hits), (0, step))[:, step:])
        return Loss(total, weight, torch.stack(right, -1)[present])
