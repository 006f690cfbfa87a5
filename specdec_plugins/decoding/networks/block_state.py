"""The network of drafter `block_state` in training."""

import torch
from torch import Tensor

from specdec_plugins.decoding.drafters.block_state import Options, shape
from specdec_plugins.decoding.drafters.medusa import POSITIONS
from specdec_plugins.decoding.networks.decoder import Unrolled, adopt, decoder_of, embedded, initial
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier
from specdec_plugins.decoding.networks.hydra import RelatedHeads


class Network(RelatedHeads):
    """Layers start as the verifier's last ones."""

    def __init__(self, options: Options, verifier: FrozenVerifier):
        super().__init__(verifier, options.length, 1, options.successor_width)
        self.spec = shape(verifier.spec, options)
        adopt(self, initial(self.spec, verifier))
        width = verifier.embeddings.size(1)
        adopt(self, iter([(POSITIONS, width**-0.5 * torch.randn(options.length, width))]))

    def read(self, vectors: Tensor, verifier: FrozenVerifier, encoded: Tensor, hidden: Tensor) -> Tensor:
        sentences, blocks = vectors.shape[:2]
        decoder = decoder_of(self, self.spec, verifier)
        numbers = torch.arange(sentences * blocks, device=vectors.device)[:, None].expand(-1, self.length)
        x = embedded(decoder, numbers, vectors.flatten(0, 2))  # (B A, K, D)
        sources = (each.repeat_interleave(blocks, 0) for each in (encoded, hidden))
        features: Tensor = Unrolled(decoder, *sources)(x).unflatten(0, (sentences, blocks))
        return features
