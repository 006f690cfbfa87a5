"""A block drafted from the verifier's last hidden state: heads as `hydra`'s, whose vectors pass through decoder layers together.

The layers attend to the source and to the vectors before, which heads cannot. Unlike `block_causal`, they read nothing of the
prefix, since the hidden state stands for it: a draft of K tokens costs K positions, and no cache is kept.

B sentences, S source positions, A blocks a sentence, K heads, D width.
"""

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.drafters import hydra
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, heads_drafter, projecting, shape
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.training.decoder import adopt, decoder_of, features, initial
from specdec_plugins.training.drafter_code import FrozenVerifier, at_least_one, options_of


@dataclass
class Options:
    heads: int = 8
    layers: int = 1
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32

    def __post_init__(self) -> None:
        at_least_one(self, "heads", "layers", "successor_width")


class Network(hydra.Network):
    """Hydra's network with layers, which start as the verifier's last ones."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__(options, verifier)  # type: ignore[arg-type]  # it reads what its own options have, too
        self.spec = shape(verifier.spec, options.layers)
        adopt(self, initial(self.spec, verifier))

    def through_layers(self, vectors: Tensor, verifier: FrozenVerifier, encoded: Tensor, hidden: Tensor) -> Tensor:
        sentences, blocks = vectors.shape[:2]
        sources = (each.repeat_interleave(blocks, 0) for each in (encoded, hidden))
        return features(decoder_of(self, self.spec, verifier), vectors.flatten(0, 1), *sources).unflatten(0, (sentences, blocks))


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return projecting(weights, verifier, Options)


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    return heads_drafter(weights, model, verifier, options_of(Options, weights.options).heads, reads_token=True)
