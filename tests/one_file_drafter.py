"""A drafter with weights in one file, as somebody outside the project would write it: it knows the last two tokens, and no
source.

Drafts one token after the other from the embeddings of the two tokens before it, which are the verifier's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from specdec_plugins.decoding.backends.torch.arrays import tensor, tensors
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.decoding.networks.drafter_code import Loss
from specdec_plugins.decoding.roles import Drafter
from specdec_plugins.decoding.values import Draft


@dataclass
class Options:
    width: int = 16
    smoothing: float = 0.0


class Network(nn.Module):
    """logits of a token = E out(relu(last(e1) + before(e2))), for embeddings E and the two tokens before it."""

    def __init__(self, options, verifier):
        super().__init__()
        self.smoothing, size = options.smoothing, verifier.embeddings.size(1)
        self.last, self.before = nn.Linear(size, options.width), nn.Linear(size, options.width, bias=False)
        self.out = nn.Linear(options.width, size, bias=False)

    def forward(self, embeddings, last, before):
        """(..., V) for token numbers (...)."""
        features = F.relu(self.last(embeddings[last]) + self.before(embeddings[before]))
        return self.out(features) @ embeddings.T

    def loss(self, batch):
        before = F.pad(batch.prefix, (1, 0), value=batch.symbols.start)[:, :-1]
        present = batch.target != batch.symbols.pad
        logits = self(batch.verifier.embeddings, batch.prefix, before)[present]
        target = batch.target[present]
        total = F.cross_entropy(logits, target, reduction="sum", label_smoothing=self.smoothing)
        return Loss(total, len(target), (logits.argmax(-1) == target)[:, None])


class LastTwo(Drafter):
    """The decoding half: it keeps nothing of a row."""

    def __init__(self, network, embeddings):
        self.network, self.embeddings = network.eval(), embeddings

    @torch.inference_mode()
    def propose(self, state, prefix, plan):
        drafts = [[] for _ in prefix.outputs]
        texts = [[prefix.symbols.start, prefix.symbols.start, *output] for output in prefix.outputs]
        for _ in range(max(plan.lengths)):
            last, before = (torch.tensor([text[place] for text in texts]) for place in (-1, -2))
            for row, token in enumerate(self.network(self.embeddings, last, before).argmax(-1).tolist()):
                texts[row].append(token)
                if len(drafts[row]) < plan.lengths[row]:
                    drafts[row].append(token)
        return Draft(drafts)


class Bigram:
    """What the drafter's name names."""

    Options, Network = Options, Network

    @staticmethod
    def build(weights, model, verifier):
        class Known:  # all that the network asks of the verifier
            embeddings = tensor(verifier.target_embeddings)

        network = Network(options_of(Options, weights.options), Known)
        network.load_state_dict(tensors(weights.tensors))
        network.to(Known.embeddings.dtype)
        return LastTwo(network, Known.embeddings)
