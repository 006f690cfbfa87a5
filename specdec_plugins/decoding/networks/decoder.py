"""A drafter's Transformer decoder in training: the engine's layers over all positions of a target at once.

The encoder, embeddings and output projection are the verifier's and stay frozen.

B sentences, S source positions, T target positions, D width.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.backends.torch.layers import Context, Layer, through
from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.decoding.backends.torch.transformer import Decoder
from specdec_plugins.decoding.backends.torch.weights import Weights
from specdec_plugins.decoding.loading import spread
from specdec_plugins.formats.spec import shapes
from specdec_plugins.model.spec import ModelSpec

if TYPE_CHECKING:
    from specdec_plugins.decoding.networks.drafter_code import FrozenVerifier


def initial(spec: ModelSpec, verifier: "FrozenVerifier") -> Iterator[tuple[str, Tensor]]:
    """Initial tensors of the decoder's layers and final norm: the verifier's, of evenly spread layers, including the last. Of
    its feed-forward units a narrower layer takes those with the largest weights."""
    wanted, available = spec.decoder.layers, verifier.spec.decoder.layers
    if wanted > available:
        raise ValueError(f"--drafter-options layers={wanted}: the verifier has {available} to start from")
    for name in shapes(spec, verifier.vocabulary, verifier.vocabulary):
        _, kind, number, *rest = name.split(".")
        if name.startswith("decoder.layers."):
            number = str(spread(wanted, available)[int(number)])
        elif not name.startswith("decoder.layer_norm."):
            continue
        tensor = verifier.tensors[".".join(["decoder", kind, number, *rest])]
        if rest and rest[0] in ("fc1", "gate", "fc2"):
            inwards, outwards = (verifier.tensors[f"decoder.layers.{number}.{part}.weight"] for part in ("fc1", "fc2"))
            units = strongest(inwards, outwards, spec.decoder.feed_forward.width)
            tensor = tensor if rest == ["fc2", "bias"] else tensor.index_select(int(rest == ["fc2", "weight"]), units)
        yield name, tensor.clone()


def strongest(inwards: Tensor, outwards: Tensor, count: int) -> Tensor:
    """The ``count`` units of a feed-forward layer, weights (H, D) and (D, H), with the largest norms; ascending."""
    units: Tensor = (inwards.norm(dim=1) * outwards.norm(dim=0)).topk(count).indices
    return units.sort().values


def adopt(module: nn.Module, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Register tensors with dotted names as parameters of a module."""
    for name, tensor in tensors:
        *path, last = name.split(".")
        owner = module
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = getattr(owner, part)
        owner.register_parameter(last, nn.Parameter(tensor))


def decoder_of(module: nn.Module, spec: ModelSpec, verifier: "FrozenVerifier", hosts: int = 0) -> Decoder:
    """A decoder that computes with the module's parameters, so that gradients reach them. ``hosts``: see `Decoder`."""
    own: Mapping[str, Tensor] = dict(module.named_parameters())
    return Decoder(Weights({**verifier.tensors, **own}), spec, hosts=hosts)


def embedded(decoder: Decoder, tokens: Tensor, embeddings: Tensor | None = None) -> Tensor:
    """(B, T, D) layer inputs for tokens (B, T), which index ``embeddings`` (N, D) if given, else the vocabulary."""
    return decoder.embedding(tokens, torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens), embeddings)


class Unrolled:
    """Passes over all positions, one per drafting step; a single pass is an ordinary causal one.

    At step s, a position attends as it would after a draft of s tokens: to itself as of step s, to the s - 1 positions before
    it as of steps s - 1 down to 1, and to earlier positions as of step 0.
    """

    def __init__(self, decoder: Decoder, encoded: Tensor, hidden: Tensor):
        """``encoded`` (B, S, D) is the encoder's output; ``hidden`` (B, 1, 1, S) masks its padding."""
        self.decoder, self.hidden = decoder, hidden
        self.sources = decoder.remember(encoded)
        self.entries: list[list[Tensor]] = [[] for _ in decoder.layers]  # by step

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, D) final hidden states for layer inputs (B, T, D)."""
        decoder, step, position = self.decoder, len(self.entries[0]), torch.arange(x.size(1), device=x.device)
        mask = self._seen(position, step, x.dtype)
        ahead = (position - position[:, None]).repeat(1, step + 1)[None] if decoder.by_distance else None

        def own(layer: Layer, queries: Tensor, entries: Tensor) -> Tensor:
            known = self.entries[layer.entries]
            known.append(entries)
            more = (self.sources[layer.entries], self.hidden) if layer.merged else None
            return layer.attention(queries, torch.cat(known, 1), mask, ahead, more)

        def source(layer: Layer, queries: Tensor) -> Tensor:
            return layer.cross(queries, self.sources[layer.entries], self.hidden)

        return decoder.features(through(decoder.layers, x, Context(position[None], own, source)))

    @staticmethod
    def _seen(position: Tensor, step: int, dtype: torch.dtype) -> Tensor:
        """(T, (s + 1) T) mask to add to attention scores over the entries of all steps."""
        back = position[:, None] - position  # (T, T): distance to earlier positions
        seen = [back >= step, *(back == step - earlier for earlier in range(1, step + 1))]
        return hide(~torch.cat(seen, 1), dtype)
