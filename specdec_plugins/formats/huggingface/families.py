"""What the readers of transformers' encoder-decoder families share. A family is a file here, named in ``__init__.py``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import Tensors, equal
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.spec import Model, symbol_faults, tensor_faults, tensor_shapes
from specdec_plugins.model.spec import ModelSpec

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "swish": "swish", "silu": "swish",
}  # fmt: skip
ENCODER, DECODER, PROJECTION = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Reader:
    """A ``model_type``, as its class in transformers computes it."""

    architecture: str

    @property
    def names(self) -> tuple[str, ...]:
        """Classes under which it is published: the one with an output projection, and the one without, whose projection is the
        embedding."""
        return self.architecture, re.sub("MTModel|ForConditionalGeneration", "Model", self.architecture)

    def defaults(self, config: Asked) -> Mapping[str, Any]:
        """Values that `generate` needs, for a config that lacks them."""
        return {}

    def model_of(self, config: Asked, generation: Generation, weights: Tensors) -> Model | None:
        """The model of a config and weights. Faults go to ``config``; None if they leave no model. Raises ValueError for values
        that no model has."""
        raise NotImplementedError


def activation_of(name: str) -> str:
    """Our name of an activation function, or the name, which `ModelSpec` refuses."""
    return ACTIVATIONS.get(name, name)


def checked(spec: ModelSpec, tensors: Tensors, sizes: Sequence[int], config: Asked) -> Model:
    """The model, with our name of the output projection. Faults of its tensors, and vocabularies of other ``sizes``, go to
    ``config``."""
    if PROJECTION in tensors:
        tensors["decoder.output_projection.weight"] = tensors.pop(PROJECTION)
    shapes = tensor_shapes(tensors)
    config.faults += tensor_faults(spec, shapes)
    for name, size in zip((ENCODER, DECODER), sizes):
        if name in shapes and shapes[name][0] != size:
            config.faults.append(f"{name} has {shapes[name][0]:,} tokens, not the config's {size:,}")
    config.faults += symbol_faults(spec, *sizes)
    return Model(spec, tensors)


def tied(tensors: Tensors, group: Sequence[str], shared: np.ndarray | None = None) -> Tensors:
    """The tensors of a ``group`` that a config ties, as one object: ``shared``, or the first that the file has.

    As transformers 5, those that the file has with different values stay apart.
    """
    main = next((tensors[name] for name in group if name in tensors), None) if shared is None else shared
    return {} if main is None else {name: one_of(tensors.get(name), main) for name in group}


def one_of(own: np.ndarray | None, main: np.ndarray) -> np.ndarray:
    """The tensor that both are if they are equal, else the own one."""
    same = own is None or equal(own, main)
    return main if same or own is None else own
