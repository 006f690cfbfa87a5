"""Recipes: what a drafter's `propose` does, as data, so that the CPU kernels draft without calling it.

D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

from specdec_plugins.decoding.backends import LoadedModel


@dataclass(frozen=True)
class InTurn:
    """A pass over each row's last token per drafted one, on the verifier's cache, which the drafter's state has as ``cache``."""

    model: LoadedModel


@dataclass(frozen=True)
class Masked:
    """A causal pass over each row's unread tokens and masks. The drafter's state is a `CachedRows` of how many each has read."""

    model: LoadedModel


@dataclass(frozen=True)
class Vectors:
    """A pass over the vectors that ``heads`` (`LoadedModel.heads`) make of each row's hidden state and last token, for at most
    ``length`` tokens. The drafter's state has a ``cache``, and hidden states (B, D): `current` and `replace`."""

    model: LoadedModel
    heads: Any
    length: int


Recipe = InTurn | Masked | Vectors
