"""A pair with random weights of any shape, for measurements and tests without a trained one. D width, V vocabulary."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.drafters import glide
from specdec_plugins.decoding.loading import DRAFT_VOCABULARY
from specdec_plugins.formats.spec import DrafterModel, Model, shapes, sinusoidal_table
from specdec_plugins.model.spec import Attention, Embedding, FeedForward, ModelSpec, Norm, Relative, SideSpec, Symbols


@dataclass(frozen=True)
class Shape:
    """A verifier with equally many encoder and decoder layers, and the drafter `glide` with fewer."""

    layers: int = 6
    drafter_layers: int = 2
    width: int = 512  # D
    inner: int = 2048
    heads: int = 8
    vocabulary: int = 32000  # V
    drafted: float = 1.0  # fraction of the vocabulary that is drafted: the first tokens
    block_size: int = 8
    positions: int = 1024  # of either side
    head: int | None = None  # width of a head; None: D / heads
    t5: bool = False  # T5 1.1's parts
    alike: bool = False  # all layers' tensors are the same objects: float weights of many layers take much memory


def random_pair(shape: Shape, seed: int = 1) -> tuple[Model, DrafterModel]:
    """Verifier and drafter in float32, initialised as in fairseq, with one table for all embeddings."""
    generator, spec = torch.Generator().manual_seed(seed), _spec(shape)
    table = torch.empty(shape.vocabulary, shape.width).normal_(0, shape.width**-0.5, generator=generator)
    table[Symbols().pad] = 0
    shared = dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"), table
    )
    if (positions := sinusoidal_table(spec.encoder)) is not None:
        shared |= {f"{side}.embed_positions.weight": tensor(positions) for side in ("encoder", "decoder")}
    verifier = Model(spec, {**shared, **_initial(spec, shared, generator, shape.alike)})
    drafting = glide.shape(spec, shape.drafter_layers)
    tensors = {
        name: each
        for name, each in _initial(drafting, shared, generator, shape.alike).items()
        if name.startswith("decoder.") and not glide.hosted(name)
    }
    if shape.drafted < 1:
        tensors[DRAFT_VOCABULARY] = torch.arange(max(4, int(shape.drafted * shape.vocabulary)))
    return verifier, DrafterModel("glide", tensors, None, {"layers": shape.drafter_layers}, shape.block_size)


def _spec(shape: Shape) -> ModelSpec:
    if shape.t5:
        attention = Attention(shape.heads, head_width=shape.head, scale=1.0, bias=False, relative=Relative())
        feed_forward, norm = FeedForward(shape.inner, "gelu_tanh", gated=True, bias=False), Norm(rms=True, eps=1e-6, bias=False)
        sizes = shape.layers, shape.width, attention, feed_forward, shape.positions
        side = SideSpec(*sizes, Embedding(offset=None), norm, "before", final_norm=True)
        return ModelSpec(side, side, float16=False)
    encoder = SideSpec(
        shape.layers,
        shape.width,
        Attention(shape.heads),
        FeedForward(shape.inner),
        shape.positions,
        Embedding(math.sqrt(shape.width), 2),
    )
    return ModelSpec(encoder, encoder)


def _initial(spec: ModelSpec, given: Mapping[str, Tensor], generator: torch.Generator, alike: bool) -> dict[str, Tensor]:
    """A model's tensors other than those ``given``, by canonical name."""
    made: dict[str, Tensor] = {}
    for name, size in shapes(spec, 0, 0).items():
        if name not in given:
            first = re.sub(r"layers\.\d+", "layers.0", name) if alike else name
            made[name] = made[first] if first in made else _tensor(name, size, generator)
    return made


def _tensor(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices by Xavier's rule, attention inputs divided by sqrt(2); identity norms."""
    if len(size) == 1:
        return torch.ones(size) if name.endswith("norm.weight") else torch.zeros(size)
    bound = math.sqrt(6 / sum(size))
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        bound /= math.sqrt(2)
    return torch.empty(size).uniform_(-bound, bound, generator=generator)
