"""Heads conditioned on the tokens before theirs (Hydra, Ankner et al. 2024, arXiv 2402.05109).

Like `medusa`, but heads also read the verifier's own token, and a successor network conditions each drafted token on the previous
one, among the likeliest candidates. All logits still come from one product.
"""

from dataclasses import dataclass

from specdec_plugins.decoding.backends import LoadedModel
from specdec_plugins.decoding.drafters import options_of
from specdec_plugins.decoding.drafters.medusa import HeadsDrafter, heads_drafter, layerless, projecting
from specdec_plugins.formats.spec import DrafterModel, Model


@dataclass
class Options:
    heads: int = 5
    successor_width: int = 128  # hidden units of the successor network; the engine's kernels compute multiples of 32


def transformer(weights: DrafterModel, verifier: Model) -> DrafterModel:
    return projecting(weights, verifier, options_of(Options, weights.options), layerless(verifier.spec))


def build(weights: DrafterModel, model: LoadedModel, verifier: LoadedModel) -> HeadsDrafter:
    count = options_of(Options, weights.options).heads
    return heads_drafter(weights, model, verifier, count, count, reads_token=True)
