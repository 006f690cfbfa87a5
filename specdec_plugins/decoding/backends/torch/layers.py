"""The parts of a Transformer (`model/spec.py`) on tensors by canonical names, and the loop over its layers: for training, as an
oracle, on GPUs.

B rows, S source positions, Q positions computed, T positions seen, D width, V vocabulary, L layers; H heads, G key-value heads, K
width of a head. Queries are H K wide, an entry of a cache 2 G K: keys, then values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.attention import Attention
from specdec_plugins.decoding.backends.torch.weights import Norm, Weights
from specdec_plugins.formats.positions import buckets, rotations
from specdec_plugins.model import spec as parts
from specdec_plugins.model.spec import SideSpec

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
}


def ended(logits: Tensor, ends: Tensor | None) -> Tensor:
    """Logits (..., V) whose tokens ``ends`` (E,) have each other's, in descending order, so that the first stands for all."""
    if ends is None:
        return logits
    return logits.index_copy(-1, ends, logits[..., ends].sort(-1, descending=True).values)


class Turn:
    """What happens to queries and keys before they meet: head by head, a norm and a rotation by their positions."""

    def __init__(self, norm: Norm | None, rotation: Tensor | None):
        self.norm, self.rotation = norm, rotation  # (P, K): cosines, then sines

    def __call__(self, x: Tensor, width: int, positions: Tensor | None = None) -> Tensor:
        """(B, Q, N K) for vectors (B, Q, N K) of heads of ``width`` K; ``positions`` (B, Q): None in cross-attention."""
        by_head: Tensor = x.unflatten(-1, (-1, width))
        if self.norm is not None:
            by_head = self.norm(by_head)
        if self.rotation is not None and positions is not None:
            rows = self.rotation[positions.clamp(max=len(self.rotation) - 1)][:, :, None]  # (B, Q, 1, K)
            (cosine, sine), (first, second) = rows.chunk(2, -1), by_head.chunk(2, -1)
            by_head = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
        return by_head.flatten(2)


class Embedding:
    """Token embedding, position embedding, norm: the bottom of an encoder or decoder."""

    def __init__(self, weights: Weights, name: str, side: SideSpec, zero_start: bool = False):
        spec = side.embedding
        self.tokens = weights(f"{name}.embed_tokens.weight")  # (V, D)
        self.positions = None if spec.offset is None else weights(f"{name}.embed_positions.weight")  # (P, D)
        self.scale, self.offset, self.zero_start = spec.scale, spec.offset or 0, zero_start
        self.norm = weights.norm(f"{name}.layernorm_embedding", side.norm) if spec.norm else None

    def embed(self, tokens: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """(B, Q, D) scaled embeddings of tokens (B, Q), or of rows of other ``embeddings`` (N, D)."""
        dtype = (self.tokens if self.positions is None else self.positions).dtype
        return F.embedding(tokens, self.tokens if embeddings is None else embeddings).to(dtype) * self.scale

    def place(self, positions: Tensor) -> Tensor:
        """(B, Q, D) embeddings of positions, counted from 0; past the table's end, for hidden entries only, its last row."""
        if self.positions is None:
            return self.tokens.new_zeros(())
        return F.embedding((positions + self.offset).clamp_(max=self.positions.size(0) - 1), self.positions)

    def copied(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """(1, N, S, 2 D) keys and values of the source copy for sources (N, S); ``weight`` (D, D) is `Decoder.copy`."""
        embedded = self.embed(tokens)
        positions = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        return torch.cat([(embedded + self.place(positions)) @ weight, embedded], -1)[None]  # W p . k = p . (k W)

    def __call__(self, tokens: Tensor, positions: Tensor, embeddings: Tensor | None = None) -> Tensor:
        x = self.embed(tokens, embeddings)
        if self.zero_start:
            x = x.masked_fill((positions == 0)[..., None], 0)
        x = x + self.place(positions)
        return x if self.norm is None else self.norm(x)


class Residual:
    """The norms around a part of a layer, and the sum of its input and its result."""

    def __init__(self, weights: Weights, name: str, side: SideSpec):
        norm, after = f"{name}_layer_norm", f"{name}_after_norm"
        self.before = weights.norm(norm, side.norm) if side.norms != "after" else None
        self.inner = weights.norm(after, side.norm) if side.norms == "both" else None
        self.after = weights.norm(norm, side.norm) if side.norms == "after" else None

    @property
    def norms(self) -> tuple[Norm | None, Norm | None]:
        """``layer_norm`` and ``after_norm``."""
        return self.before or self.after, self.inner

    def enter(self, x: Tensor) -> Tensor:
        return x if self.before is None else self.before(x)

    def leave(self, x: Tensor, result: Tensor) -> Tensor:
        x = x + (result if self.inner is None else self.inner(result))
        return x if self.after is None else self.after(x)


@dataclass(frozen=True)
class Context:
    """What layers attend to, which their caller keeps."""

    places: Tensor  # (B, Q) or (1, Q): positions of the inputs
    # (B, Q, H K) self-attention of a layer's queries (B, Q, H K), given the inputs' own entries (B, T, 2 G K)
    own: "Callable[[Layer, Tensor, Tensor], Tensor]"
    source: "Callable[[Layer, Tensor], Tensor] | None" = None  # cross-attention


class Layer:
    """Layer ``index`` of a side. ``entries`` is the layer of the caches that it reads and writes."""

    def __init__(self, weights: Weights, side_name: str, index: int, side: SideSpec, entries: int, rotation: Tensor | None):
        name, decodes = f"{side_name}.layers.{index}", side_name == "decoder"
        spec, own, source = side.attention, f"{name}.self_attn", f"{name}.encoder_attn"
        self.merged, cross = spec.merged, decodes and not spec.merged
        self.entries, self.queries, self.width = entries, side.query_width, side.head_width
        self.activation = ACTIVATIONS[side.feed_forward.activation]
        heads = Attention(spec.heads, side.key_heads, spec.scale, spec.cap)
        self.attention, self.cross = replace(heads, relative=relative(weights, own, spec.relative, not decodes)), heads
        self.attention = replace(self.attention, local=side.local_at(index))
        self.turns = [turn(weights, f"{own}.{part}_norm", spec.head_norm, rotation) for part in "qk"]
        self.qkv = weights.linear(*(f"{own}.{part}_proj" for part in "qkv"))
        self.out = weights.linear(f"{own}.out_proj")
        self.around = Residual(weights, own, side)
        self.cross_turn = turn(weights, f"{source}.q_norm", spec.head_norm, None) if cross else None
        self.cross_query = weights.linear(f"{source}.q_proj") if cross else None
        self.cross_out = weights.linear(f"{source}.out_proj") if cross else None
        self.cross_around = Residual(weights, source, side) if cross else None
        self.fc1, self.fc2 = weights.linear(f"{name}.fc1"), weights.linear(f"{name}.fc2")
        self.gate = weights.linear(f"{name}.gate") if side.feed_forward.gated else None
        self.final_around = Residual(weights, f"{name}.final", side)

    def __call__(self, x: Tensor, context: Context, keep: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D), or (B, Q, D) for only the rows and positions ``keep``, which still attend to all."""
        qkv = self.qkv(self.around.enter(x))  # (B, T, H K + 2 G K)
        queries, entries = qkv[..., : self.queries], qkv[..., self.queries :]
        query_turn, key_turn = self.turns
        if query_turn is not None and key_turn is not None:
            keys, values = entries.chunk(2, -1)
            queries = query_turn(queries, self.width, context.places)
            entries = torch.cat([key_turn(keys, self.width, context.places), values], -1)
        if keep is not None:
            x, queries = x[keep], queries[keep]
        x = self.around.leave(x, self.out(context.own(self, queries, entries)))
        if self.cross_query is not None:
            assert context.source and self.cross_out and self.cross_around, "a decoder's layer"
            queries = self.cross_query(self.cross_around.enter(x))
            queries = queries if self.cross_turn is None else self.cross_turn(queries, self.width)
            x = self.cross_around.leave(x, self.cross_out(context.source(self, queries)))
        return self.final_around.leave(x, self.fc2(self._inner(self.final_around.enter(x))))

    def _inner(self, x: Tensor) -> Tensor:
        inner = self.activation(self.fc1(x))
        return inner if self.gate is None else inner * self.gate(x)


def through(
    layers: Sequence[Layer],
    x: Tensor,
    context: Context,
    keep: tuple[Tensor, Tensor] | None = None,
    placed: Tensor | None = None,
    last: Layer | None = None,
) -> Tensor:
    """(B, T, D) -> (B, T, D), or (B, Q, D) if the ``last`` layer, by default that of these, shall ``keep`` only some. ``placed``
    (B, T, D) is added before every layer but the first."""
    for index, layer in enumerate(layers):
        x = x if placed is None or not index else x + placed
        x = layer(x, context, keep if layer is (last or layers[-1]) else None)
    return x


def relative(weights: Weights, name: str, spec: parts.Relative | None, both_ways: bool) -> Tensor | None:
    """(H, 2 R + 1) the bias of scores by the key's distance ahead."""
    if spec is None:
        return None
    table = weights(f"{name}.relative.weight")  # (buckets, H)
    return table[torch.tensor(buckets(spec.buckets, spec.distance, both_ways), device=table.device)].T


def turn(weights: Weights, name: str, spec: parts.Norm | None, rotation: Tensor | None) -> Turn | None:
    if spec is None and rotation is None:
        return None
    return Turn(None if spec is None else weights.norm(name, spec), rotation)


def rotations_of(side: SideSpec, like: Tensor) -> list[Tensor | None]:
    """(P, K) the rotary positions of each layer of a side."""
    tables: dict[parts.Rotary | None, Tensor | None] = {None: None}
    for spec in map(side.rotary_at, range(side.layers)):
        if spec is not None and spec not in tables:
            tables[spec] = tensor(rotations(side.max_positions, side.head_width, spec.theta, spec.factor)).to(like)
    return [tables[side.rotary_at(layer)] for layer in range(side.layers)]


def whole(
    places: Tensor,
    mask: Tensor | None,
    sources: Sequence[Tensor] | None = None,
    hidden: Tensor | None = None,
    cached: Sequence[Tensor] | None = None,
    cached_places: Tensor | None = None,
) -> Context:
    """All inputs at once, at ``places`` (1, Q) or (B, Q): they attend to each other, with a ``mask`` (.., Q, C + Q), and to
    entries of the source (B, S, 2 G K) by layer, ``hidden`` (B, 1, 1, S) masked. ``cached`` (B, C, 2 G K) by layer are entries
    before the inputs' own, at ``cached_places`` (1, C) or (B, C)."""
    seen = places if cached_places is None else torch.cat([cached_places.expand(len(places), -1), places], 1)

    def own(layer: Layer, queries: Tensor, entries: Tensor) -> Tensor:
        known = entries if cached is None else torch.cat([cached[layer.entries].to(entries), entries], 1)
        ahead = seen[:, None] - places[..., None] if layer.attention.by_distance else None
        more = (sources[layer.entries], hidden) if sources is not None and layer.merged else None
        return layer.attention(queries, known, mask, ahead, more)

    def source(layer: Layer, queries: Tensor) -> Tensor:
        assert sources is not None
        return layer.cross(queries, sources[layer.entries].to(queries), hidden)

    return Context(places, own, None if sources is None else source)
