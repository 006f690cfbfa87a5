"""Heads conditioned on the tokens before theirs (Hydra, Ankner et al. 2024, arXiv 2402.05109).

Like `medusa`, but heads also read the verifier's own token, and a successor network conditions each drafted token on the previous
one, among the likeliest candidates. All logits still come from one product.
"""

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, HeadsNetwork, heads_drafter, layerless, projecting
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier, options_of
from specdec_plugins.decoding.networks.masking import ManyBlocks
from specdec_plugins.decoding.networks.successor import Successor
from specdec_plugins.formats.spec import DrafterModel, Model


@dataclass
class Options:
    heads: int = 5
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32


class RelatedHeads(HeadsNetwork):
    """Heads with a `Successor`."""

    reads_token = True

    def __init__(self, verifier: FrozenVerifier, length: int, vectors: int, successor_width: int):
        super().__init__(verifier, length, vectors)
        successor = Successor(verifier.embeddings.size(1), successor_width)
        self.decoder = nn.ModuleDict({"successor": successor})  # the engine's name of its tensors is decoder.successor

    def relate(self, predicted: Tensor, block: ManyBlocks, verifier: FrozenVerifier) -> Tensor:
        successor, pad = cast(Successor, self.decoder["successor"]), verifier.spec.symbols.pad
        return successor.relate(predicted, block, lambda tokens: verifier.embeddings[tokens], pad)


class Network(RelatedHeads):
    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__(verifier, options.heads, options.heads, options.successor_width)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return projecting(weights, verifier, options_of(Options, weights.options), layerless(verifier.spec))


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    count = options_of(Options, weights.options).heads
    return heads_drafter(weights, model, verifier, count, count, reads_token=True)
