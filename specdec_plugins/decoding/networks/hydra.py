"""The network of drafter `hydra` in training."""

from typing import cast

from torch import Tensor, nn

from specdec_plugins.decoding.drafters.hydra import Options
from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier
from specdec_plugins.decoding.networks.masking import ManyBlocks
from specdec_plugins.decoding.networks.medusa import HeadsNetwork
from specdec_plugins.decoding.networks.successor import Successor


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
