"""Marian, M2M100, BART, mBART and Pegasus, as transformers computes them: facts from the modelling files of version 5.24.

All call a layer's tensors by the canonical names, after ``model.``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specdec_plugins.formats.arrays import Tensors
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import DECODER, ENCODER, PROJECTION, Reader, activation_of, checked, tied
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.spec import Model, sinusoidal_tables
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, Output, SideSpec

UNUSED = ("encoder.version", "decoder.version", "encoder.embed_positions.weights", "decoder.embed_positions.weights")


@dataclass(frozen=True)
class Family(Reader):
    """What the code fixes, whatever a config says, and its defaults."""

    offset: int  # the first token's row in the position tables
    learned: bool = False  # positions
    prenorm: bool = False  # with norms after the last layers
    embedding_norm: bool = False
    activation: str = "gelu"
    scale_embedding: bool = False
    skips_pad: bool = False  # positions count from pad + 1 and leave out pad, which we therefore ban from outputs
    separates: bool = False  # source and target may have vocabularies of their own
    unknown: int = 3  # what drafters read for tokens that they do not know

    def model_of(self, config: Asked, generation: Generation, weights: Tensors) -> Model | None:
        spec, sizes = spec_of(self, config, generation), vocabularies(self, config)
        if config.faults:
            return None
        named = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        tensors = canonical(self, config, named)
        if (bias := tensors.pop("final_logits_bias", None)) is not None:
            tensors["decoder.output_projection.bias"] = bias.reshape(-1)
            spec = replace(spec, output=Output(bias=True))
        for name, table in () if self.learned else sinusoidal_tables(spec).items():
            tensors.setdefault(name, table)  # old files have it
        return checked(spec, tensors, sizes, config)


FAMILIES = {
    "marian": Family("MarianMTModel", 0, separates=True, unknown=1),
    "m2m_100": Family("M2M100ForConditionalGeneration", 2, prenorm=True, activation="relu", scale_embedding=True, skips_pad=True),
    "bart": Family("BartForConditionalGeneration", 2, learned=True, embedding_norm=True),
    "mbart": Family("MBartForConditionalGeneration", 2, learned=True, prenorm=True, embedding_norm=True),
    "pegasus": Family("PegasusForConditionalGeneration", 0, prenorm=True, unknown=2),
}


def spec_of(family: Family, config: Asked, generation: Generation) -> ModelSpec:
    """Raises ValueError for values that no model has."""
    width = config.whole("d_model")
    positions = config.whole("max_position_embeddings", 1024, least=1)
    scale = math.sqrt(width) if config.flag("scale_embedding", family.scale_embedding) else 1.0
    config.faults += contradictions(family, config)
    symbols = generation.symbols
    if family.skips_pad:
        generation = replace(generation, suppressed=tuple({*generation.suppressed, symbols.pad}))
        if symbols.pad != family.offset - 1 or symbols.start == symbols.pad:
            config.refuse("pad_token_id", f"{family.offset - 1}, and another start token")
    unknown = min(family.unknown, vocabularies(family, config)[1] - 1)

    def side(name: str) -> SideSpec:
        layers, heads, inner = (config.whole(f"{name}_{what}") for what in ("layers", "attention_heads", "ffn_dim"))
        return SideSpec(
            layers, width, Attention(heads), FeedForward(inner, activation_of(activation)), positions,
            Embedding(scale, family.offset, family.embedding_norm), norms="before" if family.prenorm else "after",
            final_norm=family.prenorm,
        )  # fmt: skip

    activation = config.word("activation_function", family.activation)
    return ModelSpec(side("encoder"), side("decoder"), **generation.fields(unknown))


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


def canonical(family: Family, config: Asked, named: Tensors) -> Tensors:
    """Tensors by canonical names, tied ones the same object."""
    tensors = {name: tensor for name, tensor in named.items() if name not in UNUSED}
    shared, apart = tensors.pop("shared.weight", None), separate(family, config)
    if apart:
        shared = None
    if config.flag("tie_word_embeddings", True):
        tensors |= tied(tensors, [DECODER, PROJECTION] if apart else [ENCODER, DECODER, PROJECTION], shared)
    if shared is not None:
        tensors = {ENCODER: shared, DECODER: shared} | tensors
    return tensors
