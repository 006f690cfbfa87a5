"""What an encoder-decoder Transformer is, whichever file it came from. Knows no file format.

A model is a `ModelSpec` and tensors by canonical names, those that fairseq and Hugging Face's BART family have in common.
SIDE is ``encoder`` or ``decoder``, I a layer from 0, D the width, H the inner width, V the vocabulary, P positions:

    SIDE.embed_tokens.weight (V, D), SIDE.embed_positions.weight (P, D), SIDE.layernorm_embedding.{weight,bias} (D,)
    SIDE.layers.I.self_attn.{q,k,v,out}_proj.{weight (D, D),bias (D,)}, SIDE.layers.I.self_attn_layer_norm.{weight,bias}
    decoder.layers.I.encoder_attn.{q,k,v,out}_proj.{weight,bias}, decoder.layers.I.encoder_attn_layer_norm.{weight,bias}
    SIDE.layers.I.{fc1 (H, D),fc2 (D, H)}.{weight,bias}, SIDE.layers.I.final_layer_norm.{weight,bias}
    SIDE.layer_norm.{weight,bias}, decoder.output_projection.{weight (V, D),bias (V,)}

Position tables are tensors like any other, as their frequencies differ between families. Tied tensors are the same object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swish")


@dataclass(frozen=True)
class Symbols:
    """Token numbers with a meaning. The defaults are those of fairseq's dictionaries."""

    pad: int = 1
    eos: int = 2
    start: int = 2  # what the decoder reads before the first token
    mask: int = 3  # what drafters read in place of a token that is not known yet; ``<unk>``, as published


@dataclass(frozen=True)
class SideSpec:
    """An encoder or a decoder."""

    layers: int
    heads: int
    width: int  # D
    inner_width: int  # H, of the feed-forward part
    prenorm: bool  # norms before attention and feed-forward, not after
    final_norm: bool  # a norm after the last layer
    embedding_norm: bool
    embedding_scale: float  # token embeddings are multiplied by it
    max_positions: int  # the most tokens that it reads
    position_offset: int  # the row of the position table for the first token


@dataclass(frozen=True)
class ModelSpec:
    """An encoder-decoder Transformer."""

    encoder: SideSpec
    decoder: SideSpec
    activation: str  # one of `ACTIVATIONS`
    output_bias: bool = False  # of the logits
    zero_start: bool = False  # the first position's token embedding is zero, whatever the start token's is
    symbols: Symbols = Symbols()
    forced: tuple[int, ...] = ()  # every output begins with these tokens
    suppressed: tuple[int, ...] = ()  # tokens that no output has, besides pad

    def __post_init__(self) -> None:
        """Raise ValueError with everything that cannot be."""
        faults = []
        if self.activation not in ACTIVATIONS:
            faults.append(f"activation function '{self.activation}'; available: {', '.join(ACTIVATIONS)}")
        for name, side in (("encoder", self.encoder), ("decoder", self.decoder)):
            if min(side.layers, side.heads, side.width, side.inner_width, side.max_positions) < 1:
                faults.append(f"{name}: layers, heads, widths and positions are at least 1")
            elif side.width % side.heads:
                faults.append(f"{name}: {side.heads} heads do not divide a width of {side.width}")
        if faults:
            raise ValueError("; ".join(faults))


@dataclass(frozen=True)
class Model:
    """A model's specification and its tensors."""

    spec: ModelSpec
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class DrafterModel:
    """A drafter's weights, and the code that decodes with them, which is named and never carried.

    ``code`` is a built-in drafter's name, an installed entry point's, or ``module:object``; ``spec`` is None for a drafter that
    is no Transformer. ``verifier`` is the `fingerprint` of the verifier that it was trained for, None where that is unknown.
    """

    code: str
    tensors: Mapping[str, Tensor]
    spec: ModelSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 0  # drafted tokens an iteration, as trained
    verifier: str | None = None


def fingerprint(model: Model) -> str:
    """The sha256 of a model's tensors, rounded to float16 so that a folder in half precision has its checkpoint's."""
    import hashlib

    digest = hashlib.sha256()
    for name, tensor in sorted(model.tensors.items()):
        values = tensor.detach().half() if tensor.is_floating_point() else tensor.detach()
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(values.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
