"""A model's tensors by canonical names, grouped as passes use them: linear layers and norms.

D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.model import spec as parts


class Weights:
    """Tensors by name."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str) -> Tensor:
        return self.tensors[name]

    def linear(self, *names: str) -> "Linear":
        """One product of several projections of the same input, which all have a bias, or none."""
        weights = [self(f"{name}.weight") for name in names]
        biases = [self(f"{name}.bias") for name in names if f"{name}.bias" in self]
        if len(names) == 1:
            return Linear(weights[0], biases[0] if biases else None)
        return Linear(torch.cat(weights), torch.cat(biases) if biases else None)

    def norm(self, name: str, spec: parts.Norm) -> "Norm":
        return Norm(self(f"{name}.weight"), self(f"{name}.bias") if spec.bias else None, spec.rms, spec.eps)


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Norm:
    weight: Tensor  # (D,)
    bias: Tensor | None
    rms: bool = False
    eps: float = 1e-5

    def __call__(self, x: Tensor) -> Tensor:
        if not self.rms:
            return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        normed = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return normed if self.bias is None else normed + self.bias

    def scaled(self, factor: float) -> "Norm":
        """One whose results are ``factor`` times as large."""
        if factor == 1:
            return self
        return replace(self, weight=self.weight * factor, bias=None if self.bias is None else self.bias * factor)
