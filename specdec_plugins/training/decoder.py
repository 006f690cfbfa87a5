"""A drafter's Transformer decoder in training: the layers of the engine over all positions of a target at once.

Its encoder, embeddings and output projection are the verifier's, which do not train.

B sentences, S source positions, T target positions, D width.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.backends.cache import hide
from specdec_plugins.decoding.backends.torch.transformer import Decoder, Weights, attention
from specdec_plugins.formats.spec import ModelSpec, shapes
from specdec_plugins.training.initialise import decoder_layer_map, rename_layer

if TYPE_CHECKING:
    from specdec_plugins.training.drafter_code import FrozenVerifier


def initial(spec: ModelSpec, verifier: "FrozenVerifier") -> Iterator[tuple[str, Tensor]]:
    """The tensors of the decoder's layers and last norm, which start as those of some of the verifier's layers."""
    layers = decoder_layer_map(spec.decoder.layers, verifier.spec.decoder.layers)
    for name in shapes(spec, verifier.vocabulary, verifier.vocabulary):
        if name.startswith(("decoder.layers.", "decoder.layer_norm.")):
            yield name, verifier.tensors[rename_layer(name, layers)].clone()


def adopt(module: nn.Module, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Make tensors with dotted names the parameters of a module, under these names."""
    for name, tensor in tensors:
        *path, last = name.split(".")
        owner = module
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = getattr(owner, part)
        owner.register_parameter(last, nn.Parameter(tensor))


def decoder_of(module: nn.Module, spec: ModelSpec, verifier: "FrozenVerifier") -> Decoder:
    """The decoder on a module's parameters, through which gradients flow."""
    own: Mapping[str, Tensor] = dict(module.named_parameters())
    return Decoder(Weights({**verifier.tensors, **own}), spec)


def causal(width: int, like: Tensor) -> Tensor:
    """(T, T) added to attention scores, so that each position sees those up to itself."""
    return hide(torch.ones(width, width, dtype=torch.bool, device=like.device).triu(1), like.dtype)


def embedded(decoder: Decoder, tokens: Tensor) -> Tensor:
    """(B, T, D) inputs of the layers for tokens (B, T)."""
    return decoder.embedding(tokens, torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens))


def features(decoder: Decoder, x: Tensor, encoded: Tensor, hidden: Tensor) -> Tensor:
    """(B, T, D) hidden states that logits are computed from, for inputs x (B, T, D) of the layers and an encoder's output
    (B, S, D), of which ``hidden`` (B, 1, 1, S) hides what is past a sentence's end."""
    assert decoder.memory is not None, "it has layers"
    seen = causal(x.size(1), x)
    for layer, entries in zip(decoder.layers, decoder.memory(encoded).chunk(len(decoder.layers), -1)):

        def attend(queries: Tensor, own: Tensor) -> Tensor:
            return attention(queries, own, decoder.heads, seen)

        def cross_attend(queries: Tensor, entries: Tensor = entries) -> Tensor:
            return attention(queries, entries, decoder.heads, hidden)

        x = layer(x, attend, cross_attend)
    return decoder.features(x)
