"""The encoder-decoder families of transformers, as their code computes them: facts from the modelling files of version 5.24.

All call a layer's tensors by the canonical names, after ``model.``.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.spec import Model, sinusoidal_tables, symbol_faults, tensor_faults, tensor_shapes
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, Output, SideSpec

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "swish": "swish", "silu": "swish",
}  # fmt: skip
ENCODER, DECODER, PROJECTION = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"
UNUSED = ("encoder.version", "decoder.version", "encoder.embed_positions.weights", "decoder.embed_positions.weights")


@dataclass(frozen=True)
class Family:
    """What the code fixes, whatever a config says, and its defaults."""

    architecture: str
    offset: int  # the first token's row in the position tables
    learned: bool = False  # positions
    prenorm: bool = False  # with norms after the last layers
    embedding_norm: bool = False
    activation: str = "gelu"
    scale_embedding: bool = False
    skips_pad: bool = False  # positions count from pad + 1 and leave out pad, which we therefore ban from outputs
    separates: bool = False  # source and target may have vocabularies of their own
    unknown: int = 3  # what drafters read for tokens that they do not know

    @property
    def base(self) -> str:
        """The class without an output projection, by which some are published: theirs is the embedding."""
        return re.sub("MTModel|ForConditionalGeneration", "Model", self.architecture)


FAMILIES = {
    "marian": Family("MarianMTModel", 0, separates=True, unknown=1),
    "m2m_100": Family("M2M100ForConditionalGeneration", 2, prenorm=True, activation="relu", scale_embedding=True, skips_pad=True),
    "bart": Family("BartForConditionalGeneration", 2, learned=True, embedding_norm=True),
    "mbart": Family("MBartForConditionalGeneration", 2, learned=True, prenorm=True, embedding_norm=True),
    "pegasus": Family("PegasusForConditionalGeneration", 0, prenorm=True, unknown=2),
}


def model_of(family: Family, config: Asked, generation: Generation, weights: dict[str, Tensor]) -> Model | None:
    """The model of a config and weights. Faults go to ``config``; None if they leave no model."""
    try:
        spec = spec_of(family, config, generation)
    except ValueError as error:
        config.faults.append(str(error))
        return None
    sizes = vocabularies(family, config)
    if config.faults:
        return None
    named = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    tensors = canonical(family, config, named)
    if (bias := tensors.pop("final_logits_bias", None)) is not None:
        tensors["decoder.output_projection.bias"] = bias.flatten()
        spec = replace(spec, output=Output(bias=True))
    for name, table in () if family.learned else sinusoidal_tables(spec).items():
        tensors.setdefault(name, table)  # old files have it
    shapes = tensor_shapes(tensors)
    config.faults += tensor_faults(spec, shapes)
    for name, size in zip((ENCODER, DECODER), sizes):
        if name in shapes and shapes[name][0] != size:
            config.faults.append(f"{name} has {shapes[name][0]:,} tokens, not the config's {size:,}")
    config.faults += symbol_faults(spec, *sizes)
    return Model(spec, tensors)


def spec_of(family: Family, config: Asked, generation: Generation) -> ModelSpec:
    """Raises ValueError for values that no model has."""
    width = config.whole("d_model")
    positions = config.whole("max_position_embeddings", 1024, least=1)
    scale = math.sqrt(width) if config.flag("scale_embedding", family.scale_embedding) else 1.0
    config.faults += contradictions(family, config)
    symbols, suppressed = generation.symbols, generation.suppressed
    if family.skips_pad:
        suppressed = tuple({*suppressed, symbols.pad})
        if symbols.pad != family.offset - 1 or symbols.start == symbols.pad:
            config.refuse("pad_token_id", f"{family.offset - 1}, and another start token")
    unknown = min(family.unknown, vocabularies(family, config)[1] - 1)

    def side(name: str) -> SideSpec:
        layers, heads, inner = (config.whole(f"{name}_{what}") for what in ("layers", "attention_heads", "ffn_dim"))
        return SideSpec(
            layers, width, Attention(heads), FeedForward(inner, ACTIVATIONS.get(activation, activation)), positions,
            Embedding(scale, family.offset, family.embedding_norm), norms="before" if family.prenorm else "after",
            final_norm=family.prenorm,
        )  # fmt: skip

    activation = config.word("activation_function", family.activation)
    return ModelSpec(
        side("encoder"), side("decoder"),
        symbols=replace(symbols, mask=unknown), forced=generation.forced, suppressed=suppressed, outputs=generation.rules,
    )  # fmt: skip


def contradictions(family: Family, config: Asked) -> Iterator[str]:
    """Settings of old configs that say otherwise than the code does."""
    fixed = {
        "normalize_before": family.prenorm, "add_final_layer_norm": family.prenorm, "normalize_embedding": family.embedding_norm,
        "static_position_embeddings": not family.learned, "is_encoder_decoder": True,
    }  # fmt: skip
    for name, value in fixed.items():
        if config.get(name) not in (None, value):
            yield f"{config.path.name}: {name} {config.get(name)!r:.40} is not what {family.architecture} computes"


def vocabularies(family: Family, config: Asked) -> tuple[int, int]:
    """The sizes of source and target vocabulary."""
    size = config.whole("vocab_size", least=1)
    return size, config.whole("decoder_vocab_size", size, least=1) if separate(family, config) else size


def separate(family: Family, config: Asked) -> bool:
    """Whether source and target have embeddings of their own."""
    return family.separates and not config.flag("share_encoder_decoder_embeddings", True)


def canonical(family: Family, config: Asked, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by canonical names, tied ones the same object.

    As transformers 5, tensors that the config ties but the file has with different values stay apart.
    """
    tensors = {name: tensor for name, tensor in named.items() if name not in UNUSED}
    shared, apart = tensors.pop("shared.weight", None), separate(family, config)
    if apart:
        shared = None
    if config.flag("tie_word_embeddings", True):
        group = [DECODER, PROJECTION] if apart else [ENCODER, DECODER, PROJECTION]
        main = next((tensors[name] for name in group if name in tensors), None) if shared is None else shared
        if main is not None:
            tensors |= {name: one_of(tensors.get(name), main) for name in group}
    if shared is not None:
        tensors = {ENCODER: shared, DECODER: shared} | tensors
    if PROJECTION in tensors:
        tensors["decoder.output_projection.weight"] = tensors.pop(PROJECTION)
    return tensors


def one_of(own: Tensor | None, main: Tensor) -> Tensor:
    """The tensor that both are if they are equal, else the own one."""
    same = own is None or own.data_ptr() == main.data_ptr() or (own.shape == main.shape and torch.equal(own, main))
    return main if same or own is None else own
