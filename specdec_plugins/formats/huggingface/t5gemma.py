"""T5Gemma, as transformers computes it: facts from the modelling files of version 5.24."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import Arrays, Tensors, is_floating
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import DECODER, PROJECTION, Reader, activation_of, checked, tied
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import (
    MAX_LAYERS,
    MAX_SCALE,
    Attention,
    Embedding,
    FeedForward,
    Local,
    ModelSpec,
    Norm,
    Output,
    Rotary,
    SideSpec,
)

# Our names of a layer's tensors, by theirs.
NAMES = {
    "cross_attn.": "encoder_attn.", "o_proj.": "out_proj.", "mlp.gate_proj.": "fc1.", "mlp.up_proj.": "gate.",
    "mlp.down_proj.": "fc2.",
    "pre_self_attn_layernorm.": "self_attn_layer_norm.", "post_self_attn_layernorm.": "self_attn_after_norm.",
    "pre_cross_attn_layernorm.": "encoder_attn_layer_norm.", "post_cross_attn_layernorm.": "encoder_attn_after_norm.",
    "pre_feedforward_layernorm.": "final_layer_norm.", "post_feedforward_layernorm.": "final_after_norm.",
}  # fmt: skip
LAYERS = ("full_attention", "sliding_attention")
USUAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


@dataclass(frozen=True)
class Family(Reader):
    vocabulary: int = 256_000

    def defaults(self, config: Asked) -> Mapping[str, Any]:
        """Those of the decoder."""
        own, usual = config.get("decoder"), {**USUAL, "vocab_size": self.vocabulary}
        return usual | {name: own[name] for name in usual if isinstance(own, dict) and name in own}

    def model_of(self, config: Asked, generation: Generation, weights: Tensors) -> Model | None:
        spec = spec_of(config, generation)
        sizes = [part(config, side).whole("vocab_size", self.vocabulary, least=1) for side in ("encoder", "decoder")]
        return None if config.faults else checked(spec, canonical(config, weights), sizes, config)


FAMILIES = {"t5gemma": Family("T5GemmaForConditionalGeneration")}


def part(config: Asked, side: str) -> Asked:
    """The config of a side; its faults are the config's."""
    own = config.get(side)
    if not isinstance(own, dict):
        config.faults.append(f"{config.path.name}: no '{side}' with its sizes")
    return Asked(config.path, own if isinstance(own, dict) else {}, config.faults)


def spec_of(config: Asked, generation: Generation) -> ModelSpec:
    """Raises ValueError for values that no model has."""
    encoder, decoder = (part(config, side) for side in ("encoder", "decoder"))
    window, own = (side.whole("sliding_window", 4_096, least=1) for side in (encoder, decoder))
    sides = side_of(encoder, window + 1, window), side_of(decoder, own)
    return both_sides(config, generation, *sides, cap(decoder, "final_logit_softcapping", 30.0))


def both_sides(config: Asked, generation: Generation, encoder: SideSpec, decoder: SideSpec, logits: float | None) -> ModelSpec:
    """With ``logits`` capped."""
    if config.flag("is_encoder_decoder", True) is False:
        config.refuse("is_encoder_decoder", "true")
    return ModelSpec(encoder, decoder, Output(cap=logits), **generation.fields(3), float16=False)


def side_of(own: Asked, before: int, after: int = 0) -> SideSpec:
    """An encoder or a decoder, whose local layers see so many positions."""
    side = full_side(own, own.whole("max_position_embeddings", 8_192, least=1), Rotary(theta(own)))
    side = replace(side, attention=replace(side.attention, cap=cap(own, "attn_logit_softcapping", 50.0)))
    return with_windows(own, side, 2, Local((), before, after))


def with_windows(own: Asked, side: SideSpec, pattern: int, local: Local) -> SideSpec:
    """A side with the ``local`` layers that the config names: by default, of ``pattern`` layers all but the last one."""
    kinds = own.get("layer_types")
    if kinds is None:
        kinds = [LAYERS[(layer + 1) % pattern > 0] for layer in range(min(side.layers, MAX_LAYERS))]
    elif not isinstance(kinds, list) or len(kinds) != side.layers or not all(kind in LAYERS for kind in kinds):
        own.refuse("layer_types", f"{' and '.join(LAYERS)}, for each of {side.layers:,} layers")
        return side
    layers = tuple(layer for layer, kind in enumerate(kinds) if kind == LAYERS[1])
    return replace(side, local=replace(local, layers=layers)) if layers else side


def full_side(own: Asked, positions: int, rotary: Rotary) -> SideSpec:
    """An encoder or a decoder whose layers see all of so many positions."""
    layers, width, inner, heads, groups, head = (
        own.whole(name, least=1) for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                                              "num_key_value_heads", "head_dim")
    )  # fmt: skip
    attention = Attention(
        heads, groups, head, own.whole("query_pre_attn_scalar", 256, least=1) ** -0.5, own.flag("attention_bias", False),
        rotary=rotary,
    )  # fmt: skip
    return SideSpec(
        layers, width, attention,
        FeedForward(inner, activation_of(own.word("hidden_activation", "gelu_pytorch_tanh")), gated=True, bias=False),
        positions, Embedding(math.sqrt(width), None), Norm(rms=True, eps=own.number("rms_norm_eps", 1e-6, 1.0), bias=False),
        "both", True,
    )  # fmt: skip


def cap(own: Asked, name: str, usual: float | None) -> float | None:
    """A cap that a config turns off by null."""
    return None if own.values.get(name, usual) is None else own.number(name, usual or 0.0, MAX_SCALE)


def theta(own: Asked) -> float:
    """Of the rotary positions, as versions 4 and 5 write it."""
    rope = own.get("rope_parameters")
    if own.get("rope_scaling") is not None:
        own.refuse("rope_scaling", "none")
    if rope is None:
        return own.number("rope_theta", 10_000.0, 1e9)
    inner = Asked(own.path, rope if isinstance(rope, dict) else {}, own.faults)
    if not isinstance(rope, dict) or rope.keys() - {"rope_type", "rope_theta"} or inner.word("rope_type", "default") != "default":
        own.refuse("rope_parameters", "the rope_type 'default' and a rope_theta")
    return inner.number("rope_theta", 10_000.0, 1e9)


def canonical(config: Asked, weights: Tensors) -> Tensors:
    """Tensors by canonical names."""
    tensors = renamed(weights)
    if config.flag("tie_word_embeddings", True):
        tensors |= tied(tensors, [DECODER, PROJECTION])
    return tensors


def renamed(weights: Arrays) -> Tensors:
    """Tensors by canonical names; unknown ones are refused. Theirs of norms are what to add to 1."""
    tensors = {}
    for name, tensor in weights.items():
        ours = name.removeprefix("model.")
        for side in ("encoder", "decoder"):
            ours = f"{side}.layer_norm.weight" if ours == f"{side}.norm.weight" else ours
        for before, after in NAMES.items():
            ours = ours.replace(f".{before}", f".{after}")
        if ours.endswith("_norm.weight") and is_floating(tensor):
            tensor = tensor.astype(np.promote_types(tensor.dtype, np.float32), copy=False) + 1
        tensors[ours.replace("lm_head.out_proj", "lm_head")] = tensor
    return tensors
