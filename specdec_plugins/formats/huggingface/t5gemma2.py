"""T5Gemma 2 without its images, as transformers computes it: facts from the modelling file of version 5.24.

Its layers are T5Gemma's with norms of heads, and with one softmax over the decoder's own keys and the source's. A cap of scores
is in configs, but not computed. The token that ends an image has an embedding beside the table, which is not scaled.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from specdec_plugins.formats.arrays import Arrays, Tensors, equal, is_floating
from specdec_plugins.formats.huggingface.asked import Asked
from specdec_plugins.formats.huggingface.families import DECODER, ENCODER, PROJECTION, checked, tied
from specdec_plugins.formats.huggingface.generation import Generation
from specdec_plugins.formats.huggingface.t5 import POSITIONS
from specdec_plugins.formats.huggingface.t5gemma import LAYERS, both_sides, cap, full_side, part, renamed, with_windows
from specdec_plugins.formats.huggingface.t5gemma import Family as First
from specdec_plugins.formats.spec import Model
from specdec_plugins.model.spec import MAX_TABLE, Embedding, Local, ModelSpec, Rotary, SideSpec

PATTERN = 6  # of so many layers, by default, the last one sees all positions
THETAS = {LAYERS[0]: ("rope_theta", 1_000_000.0), LAYERS[1]: ("rope_local_base_freq", 10_000.0)}  # as older configs name them
UNUSED = "model.encoder.vision_tower.", "model.encoder.multi_modal_projector."


@dataclass(frozen=True)
class Family(First):
    def model_of(self, config: Asked, generation: Generation, weights: Tensors) -> Model | None:
        spec = spec_of(config, generation)
        sizes = [side.whole("vocab_size", self.vocabulary, least=1) for side in sides_of(config)]
        return None if config.faults else checked(spec, canonical(config, spec, weights), sizes, config)


FAMILIES = {"t5gemma2": Family("T5Gemma2ForConditionalGeneration", vocabulary=262_208)}


def sides_of(config: Asked) -> tuple[Asked, Asked]:
    """The configs of the encoder, without its images, and of the decoder."""
    return part(part(config, "encoder"), "text_config"), part(config, "decoder")


def spec_of(config: Asked, generation: Generation) -> ModelSpec:
    """Raises ValueError for values that no model has."""
    encoder, decoder = sides_of(config)
    window = encoder.whole("sliding_window", 4_096, least=1)
    sides = side_of(encoder, (window + 1) // 2, window // 2), side_of(decoder, decoder.whole("sliding_window", 4_096, least=1))
    merged = replace(sides[1], attention=replace(sides[1].attention, merged=True))
    return both_sides(config, generation, sides[0], merged, cap(decoder, "final_logit_softcapping", None))


def side_of(own: Asked, before: int, after: int = 0) -> SideSpec:
    """An encoder or a decoder; its local layers see so many positions."""
    full, local = (rotary(own, kind) for kind in LAYERS)
    side = full_side(own, own.whole("max_position_embeddings", 131_072, least=1), full)
    side = with_windows(own, side, own.whole("sliding_window_pattern", PATTERN, least=1), Local((), before, after, local))
    return replace(
        side,
        attention=replace(side.attention, head_norm=side.norm),
        max_positions=min(side.max_positions, POSITIONS, max(1, MAX_TABLE // max(side.width, side.head_width))),
        embedding=Embedding(float(np.float32(math.sqrt(side.width))), None),
    )


def rotary(own: Asked, kind: str) -> Rotary:
    """The positions of layers of a kind, as versions 4 and 5 write them; linear scaling divides them."""
    (name, usual), given, scaling = THETAS[kind], own.get("rope_parameters"), own.get("rope_scaling")
    mine = given.get(kind) if isinstance(given, dict) and given.keys() <= THETAS.keys() else given
    parts = [{} if each is None else each for each in (mine, scaling if kind == LAYERS[0] else None)]
    if not all(isinstance(each, dict) and each.keys() <= {"rope_type", "rope_theta", "factor"} for each in parts):
        own.refuse("rope_parameters", f"a rope_type, a rope_theta and a factor for each of {' and '.join(LAYERS)}")
        return Rotary()
    inner = Asked(own.path, {**parts[0], **parts[1]}, own.faults)
    how = inner.word("rope_type", "default")
    if how not in ("default", "linear"):
        inner.refuse("rope_type", "default and linear")
    theta = inner.number("rope_theta", own.number(name, usual, 1e9), 1e9)
    return Rotary(theta, inner.number("factor", 0.0, 1e6) if how == "linear" else 1.0)


def canonical(config: Asked, spec: ModelSpec, weights: Arrays) -> Tensors:
    """Tensors by canonical names, without those of images; unknown ones are refused."""
    text = {name: tensor for name, tensor in weights.items() if not name.startswith(UNUSED)}
    tensors = renamed({name.replace("model.encoder.text_model.", "model.encoder."): each for name, each in text.items()})
    vectors = [name.replace("weight", "eoi_embedding") for name in (ENCODER, DECODER)]
    if config.flag("tie_word_embeddings", True):
        tensors |= tied(tensors, [ENCODER, DECODER, PROJECTION]) | tied(tensors, vectors)
    end = part(config, "encoder").whole("eoi_token_index", 256_000)
    made: dict[tuple[int, int], np.ndarray] = {}
    for name, vector in zip((ENCODER, DECODER), vectors):
        table, row = tensors.get(name), tensors.get(vector)
        if table is None or table.ndim != 2 or not is_floating(table):
            continue  # refused
        if row is None:
            config.faults += [f"missing weights: {vector}"] * (end < len(table))
        elif row.shape == table.shape[1:] and is_floating(row):  # others are refused
            del tensors[vector]
            key = id(table), id(row)
            if key not in made:
                made[key] = with_row(table, end, row, spec.encoder.embedding.scale)
            tensors[name] = made[key]
    return tensors


def with_row(table: np.ndarray, index: int, row: np.ndarray, scale: float) -> np.ndarray:
    """The embeddings (V, D) in which that of token ``index``, scaled, is ``row`` (D,): a copy, if that changes them."""
    if index >= len(table) or equal(row := (row.astype(np.float64) / scale).astype(table.dtype), table[index]):
        return table
    table = table.copy()
    table[index] = row
    return table
