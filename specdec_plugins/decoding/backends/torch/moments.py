"""Second moments of the inputs of a model's linear layers, while it reads sentences and its own outputs.

S source positions, T tokens of an output, D inputs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.backends import Reading
from specdec_plugins.decoding.backends.torch.model import TorchModel
from specdec_plugins.decoding.backends.torch.placement import Placement
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Encoder, Transformer
from specdec_plugins.decoding.backends.torch.weights import Linear, Weights
from specdec_plugins.decoding.loading import checked
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.values import Want
from specdec_plugins.formats.spec import Model


@dataclass(frozen=True)
class Observed(Linear):
    """Adds up x x' of its inputs x."""

    total: Tensor  # (D, D)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        self.total.addmm_(rows.T, rows)
        return super().__call__(x)


class Observing(Weights):
    """Whose linear layers are observed."""

    def __init__(self, tensors: dict[str, Tensor]):
        super().__init__(tensors)
        self.linears: dict[str, Observed] = {}  # by the name of the first of their projections

    def linear(self, *names: str) -> Linear:
        plain = super().linear(*names)
        width = plain.weight.size(1)
        self.linears[names[0]] = Observed(plain.weight, plain.bias, torch.zeros(width, width))
        return self.linears[names[0]]


@torch.inference_mode()
def moments(model: Model, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> dict[str, np.ndarray]:
    """(D, D) float32 by linear layer, the output layer left out, for sources and outputs (S and T token ids), both with eos. One
    pair is read at a time: padding would count."""
    model, _ = checked(model, None)
    weights = Observing(Placement("cpu", torch.float32)(model.tensors))
    spec, symbols = model.spec, model.spec.symbols
    reader = TorchModel(Transformer(spec, Encoder(weights, spec), Decoder(weights, spec)))
    for source, output in pairs:
        state = reader.start(1)
        state.admit(Source([source], symbols))
        reader.read(state, Reading([[symbols.start, *output]], [0], want=Want(logits=False)))
    return {name: each.total.numpy() for name, each in weights.linears.items()}
