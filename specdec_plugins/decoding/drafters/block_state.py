"""A block drafted from the verifier's last hidden state.

A head maps that state and the verifier's own token to one vector, as `hydra`'s do. With an embedding added for each position of
the block, it passes through decoder layers with causal attention, and a successor network conditions each drafted token on the
previous one. Unlike `block_causal`, the layers do not read the prefix: a draft of K tokens costs K positions and no cache.

B sentences, A blocks per sentence, K drafted tokens, D width.
"""

from dataclasses import dataclass, replace

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, heads_drafter, layerless, projecting
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model.spec import ModelSpec


@dataclass
class Options:
    length: int = 8  # tokens drafted, at most
    layers: int = 1
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32


def shape(verifier: ModelSpec, options: Options) -> ModelSpec:
    """A decoder with positions for one block."""
    bare, norm = layerless(verifier), verifier.decoder.final_norm
    placed = replace(bare.decoder.embedding, offset=0)
    side = replace(bare.decoder, layers=options.layers, final_norm=norm, max_positions=options.length, embedding=placed)
    return replace(bare, decoder=side, output=verifier.output)


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    options = options_of(Options, weights.options)
    return projecting(weights, verifier, options, shape(verifier.spec, options))


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    return heads_drafter(weights, model, verifier, options_of(Options, weights.options).length, 1, reads_token=True)
