"""Tensor parallelism: each rank computes a part of every layer (Shoeybi et al. 2019, arXiv 1909.08053).

A rank has some attention heads with their keys and values, some feed-forward units, and the logits of some tokens; parts may
differ in size. All-reduces after attention and feed-forward, and gathering the logits, give every rank the same numbers.

Embeddings are whole on every rank: a pass reads one row per token, so splitting them would add an exchange and save no time. So
are norms, and a drafter's own weights.

D width, H heads, F hidden units, V vocabulary, I and O inputs and outputs of a linear layer.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.torch.transformer import (
    Decoder,
    Embedding,
    Encoder,
    Layer,
    Linear,
    Norm,
    Successor,
    Transformer,
    UnsupportedModel,
    load_pair,
)
from specdec_plugins.decoding.ranks import Ranks
from specdec_plugins.formats.spec import DrafterModel, Model

Part = TypeVar("Part")


def load_parts(
    verifier: Model, drafter: DrafterModel | None, ranks: Ranks, drafting: Ranks | None, device: torch.device, dtype: torch.dtype
) -> tuple[Transformer, Transformer | None]:
    """This rank's parts of both models: of the verifier as one of ``ranks``, of the drafter as one of ``drafting``, None without
    ``drafting`` or if the drafter is not a Transformer. Whole models are loaded on the CPU only.

    Raises UnsupportedModel as `load_pair` does, and for what cannot be split.
    """
    model, other = load_pair(verifier, drafter if drafting else None, "cpu", dtype)
    split = Split(device)
    first = split.transformer(model, ranks, "the verifier")
    return first, split.transformer(other, drafting, "the drafter") if other and drafting else None


@dataclass(frozen=True)
class SummedLinear(Linear):
    """A rank's columns of a linear layer: ``weight`` (O, part of I), whose products are partial sums."""

    ranks: Ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.sum(F.linear(x, self.weight)) + self.bias


class PartOfDecoder(Decoder):
    """This rank's part of a decoder."""

    def __init__(self, parts: dict[str, Any], ranks: Ranks, vocabulary: int):
        vars(self).update(parts)
        self._ranks, self._vocabulary = ranks, vocabulary

    def project(self, features: Tensor) -> Tensor:
        return self._ranks.join(super().project(features), self._vocabulary)

    def attended(self, masses: Sequence[Tensor]) -> Tensor:
        return self._ranks.sum(super().attended(masses))


class Split:
    """Makes parts of models; what models share, such as tied tables, their parts share."""

    def __init__(self, device: torch.device):
        self.device = device
        self._made: dict[int, tuple[Any, Any]] = {}  # by identity: a whole, kept alive, and its part

    def transformer(self, whole: Transformer, ranks: Ranks, name: str) -> Transformer:
        """This rank's part of a model, which errors call ``name``."""
        if faults := obstacles(whole, ranks.size):
            raise UnsupportedModel("; ".join(f"{name} {fault}" for fault in faults))
        encoder = self._once(whole.encoder, lambda each: self._encoder(each, ranks))
        return replace(whole, encoder=encoder, decoder=self._decoder(whole.decoder, ranks))

    def _encoder(self, whole: Encoder, ranks: Ranks) -> Encoder:
        part = copy(whole)
        part.embedding, part.norm = self._moved(whole.embedding), self._moved(whole.norm)
        part.layers = [self._layer(layer, ranks, whole.heads) for layer in whole.layers]
        part.heads = len(range(*ranks.share(whole.heads)))
        return part

    def _decoder(self, whole: Decoder, ranks: Ranks) -> Decoder:
        embedding, heads = self._moved(whole.embedding), ranks.share(whole.heads)
        memory, tokens = whole.memory, ranks.share(len(whole.projection))
        tied = whole.projection is whole.embedding.tokens  # a view of it takes no memory
        parts = {
            "embedding": embedding, "heads": len(range(*heads)), "norm": self._moved(whole.norm),
            "layers": [self._layer(layer, ranks, whole.heads) for layer in whole.layers],
            "memory": memory and self._rows(memory, heads, whole.heads, 2 * len(whole.layers)),
            "projection": embedding.tokens[slice(*tokens)] if tied else self._taken(whole.projection[slice(*tokens)]),
            "bias": None if whole.bias is None else self._taken(whole.bias[slice(*tokens)]),
            "vocabulary": self._moved(whole.vocabulary), "copy": self._moved(whole.copy),
            "successor": self._moved(whole.successor),
        }  # fmt: skip
        return PartOfDecoder(parts, ranks, len(whole.projection))

    def _layer(self, whole: Layer, ranks: Ranks, count: int) -> Layer:
        part, heads, hidden = copy(whole), ranks.share(count), len(whole.fc1.bias)
        units = ranks.share(hidden)
        part.qkv, part.out = self._rows(whole.qkv, heads, count, 3), self._columns(whole.out, heads, count, ranks)
        part.fc1, part.fc2 = self._rows(whole.fc1, units, hidden), self._columns(whole.fc2, units, hidden, ranks)
        part.norm, part.final_norm = self._moved(whole.norm), self._moved(whole.final_norm)
        if hasattr(whole, "cross_query"):
            part.cross_query = self._rows(whole.cross_query, heads, count)
            part.cross_out = self._columns(whole.cross_out, heads, count, ranks)
            part.cross_norm = self._moved(whole.cross_norm)
        return part

    def _rows(self, whole: Linear, share: tuple[int, int], count: int, projections: int = 1) -> Linear:
        """The outputs of a ``share`` of ``count`` heads or units, in each of so many concatenated projections."""

        def rows(tensor: Tensor) -> Tensor:
            return self._taken(tensor.unflatten(0, (projections, count, -1))[:, slice(*share)].flatten(0, 2))

        return Linear(rows(whole.weight), rows(whole.bias))

    def _columns(self, whole: Linear, share: tuple[int, int], count: int, ranks: Ranks) -> Linear:
        """The inputs of a ``share`` of ``count`` heads or units."""
        weight = whole.weight.unflatten(1, (count, -1))[:, slice(*share)].flatten(1, 2)
        return SummedLinear(self._taken(weight), self._taken(whole.bias), ranks)

    def _taken(self, tensor: Tensor) -> Tensor:
        """A part of a tensor, copied, so that the whole can be freed."""
        return tensor.to(self.device, copy=True).contiguous()

    def _moved(self, whole: Any) -> Any:
        """The whole on this rank's device: a tensor, or a part of a model with all its tensors; anything else is unchanged."""
        if isinstance(whole, Tensor):
            return self._once(whole, lambda each: each.to(self.device))
        if not isinstance(whole, (Embedding, Linear, Norm, Successor)):
            return whole
        part = copy(whole)
        vars(part).update({name: self._moved(each) for name, each in vars(whole).items()})
        return part

    def _once(self, whole: Part, make: Callable[[Part], Part]) -> Part:
        if id(whole) not in self._made:
            self._made[id(whole)] = whole, make(whole)
        return self._made[id(whole)][1]


def obstacles(whole: Transformer, ranks: int) -> list[str]:
    """Why a model cannot be split among so many ranks; empty if it can."""
    decoder, sides = whole.decoder, (("encoder", whole.spec.encoder), ("decoder", whole.spec.decoder))
    counts = [(f"{side} attention heads", each.heads, each.layers) for side, each in sides]
    counts += [(f"{side} feed-forward units", each.inner_width, each.layers) for side, each in sides]
    counts.append(("tokens", len(decoder.projection), 1))
    faults = [f"has {count:,} {what}, too few for {ranks:,} ranks" for what, count, layers in counts if layers and count < ranks]
    if decoder.copy is not None and ranks > 1:
        faults.append("has a source copy, which is not split: one rank can have it (drafter_ranks 1)")
    return faults
