"""The forward of an encoder-decoder Transformer, on tensors by canonical names (`formats/spec.py`). Unknown tensors are refused.

B rows, S source positions, Q positions computed, T positions seen, D width, V vocabulary, L layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.cache import hide
from specdec_plugins.decoding.values import Source
from specdec_plugins.formats.files import Mapped, unload
from specdec_plugins.formats.spec import (
    DrafterModel,
    Model,
    ModelSpec,
    SideSpec,
    storage_fault,
    symbol_faults,
    tensor_faults,
    tensor_shapes,
    weight_fault,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
}
Attend = Callable[[Tensor, Tensor], Tensor]  # queries (B, Q, D), keys and values (B, Q, 2 D) -> (B, Q, D)


class UnsupportedModel(ValueError):
    """A model that this forward cannot run; the message names every reason."""


class Weights:
    """A model's tensors by name, grouped as passes use them."""

    def __init__(self, tensors: Mapping[str, Tensor], packing: bool = False):
        self.tensors, self.packing = tensors, packing

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str) -> Tensor:
        return self.tensors[name]

    def linear(self, *names: str) -> "Linear":
        """One product of several projections of the same input."""
        weights, biases = ([self(f"{name}.{part}") for name in names] for part in ("weight", "bias"))
        if self.packing and len(names) > 1:
            return Joined(weights, biases)
        return Linear(*(parts[0] if len(names) == 1 else torch.cat(parts) for parts in (weights, biases)))

    def norm(self, name: str) -> "Norm":
        return Norm(self(f"{name}.weight"), self(f"{name}.bias"))


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Joined(Linear):
    """Projections to pack: they are joined whenever they are read, so that no second copy stays in memory."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]):
        object.__setattr__(self, "parts", {"weight": weights, "bias": biases})

    def __getattr__(self, name: str) -> Tensor:
        return torch.cat(self.__dict__["parts"][name])


@dataclass(frozen=True)
class Norm:
    weight: Tensor  # (D,)
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias)


def heads(linear: Callable[[Tensor], Tensor], states: Tensor, own: Tensor | None) -> Tensor:
    """(..., K, D) x + silu(W [x, e]) for hidden states x (..., D) and, unless None, token embeddings e = ``own`` (..., D)."""
    inputs = states if own is None else torch.cat([states, own], -1)
    return states[..., None, :] + F.silu(linear(inputs)).unflatten(-1, (-1, states.size(-1)))


def beginning(encoded: Tensor, query: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor | float = 0.0) -> Tensor:
    """(..., D) W sum_s softmax(q h_s) h_s + b for an encoder's output h (..., S, D); ``hidden`` (..., S) is an additive mask."""
    weights = (encoded @ query + hidden).softmax(-1)
    return F.linear((weights[..., None, :] @ encoded)[..., 0, :], weight, bias)


def attention(queries: Tensor, entries: Tensor, heads: int, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """(B, Q, D) softmax(q k / sqrt(D/heads) + mask) v, for queries (B, Q, D) and entries (B, T, 2 D): keys, then values."""
    q, k, v = by_head(queries, entries, heads)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2).reshape(queries.shape)


def weighed_attention(queries: Tensor, entries: Tensor, heads: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`attention`, and its weights (B, H, Q, T), reading the keys once."""
    q, k, v = by_head(queries, entries, heads)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.size(3))  # (B, H, Q, T)
    weights = (scores if mask is None else scores + mask).softmax(3)
    return (weights @ v).transpose(1, 2).reshape(queries.shape), weights


def by_head(queries: Tensor, entries: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, Q, D/H), and keys and values (B, H, T, D/H); views."""
    size = queries.size(2)
    parts = (queries, entries[..., :size], entries[..., size:])
    return tuple(part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts)  # type: ignore[return-value]


class Embedding:
    """Token embedding, position embedding, norm: the bottom of an encoder or decoder."""

    def __init__(self, weights: Weights, name: str, side: SideSpec, zero_start: bool = False):
        self.tokens = weights(f"{name}.embed_tokens.weight")  # (V, D)
        self.positions = weights(f"{name}.embed_positions.weight")  # (P, D)
        self.scale, self.offset, self.zero_start = side.embedding_scale, side.position_offset, zero_start
        self.norm = weights.norm(f"{name}.layernorm_embedding") if side.embedding_norm else None

    def embed(self, tokens: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """(B, Q, D) scaled embeddings of tokens (B, Q), or of rows of other ``embeddings`` (N, D)."""
        return F.embedding(tokens, self.tokens if embeddings is None else embeddings).to(self.positions.dtype) * self.scale

    def place(self, positions: Tensor) -> Tensor:
        """(B, Q, D) embeddings of positions, counted from 0; past the table's end, for hidden entries only, its last row."""
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


class Layer:
    """A Transformer layer; the caller supplies attention. ``entries`` is the layer of the caches that it reads and writes."""

    def __init__(self, weights: Weights, name: str, prenorm: bool, activation: str, cross: bool, entries: int):
        self.entries = entries
        self.prenorm, self.activation = prenorm, ACTIVATIONS[activation]
        self.qkv = weights.linear(*(f"{name}.self_attn.{part}_proj" for part in "qkv"))
        self.out = weights.linear(f"{name}.self_attn.out_proj")
        self.norm = weights.norm(f"{name}.self_attn_layer_norm")
        if cross:
            self.cross_query = weights.linear(f"{name}.encoder_attn.q_proj")
            self.cross_out = weights.linear(f"{name}.encoder_attn.out_proj")
            self.cross_norm = weights.norm(f"{name}.encoder_attn_layer_norm")
        self.fc1 = weights.linear(f"{name}.fc1")
        self.fc2 = weights.linear(f"{name}.fc2")
        self.final_norm = weights.norm(f"{name}.final_layer_norm")

    def __call__(
        self, x: Tensor, attend: Attend, cross_attend: Callable[[Tensor], Tensor] | None = None,
        keep: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """(B, T, D) -> (B, T, D), or (B, Q, D) for only the rows and positions ``keep``, which still attend to all."""
        qkv = self.qkv(self.norm(x) if self.prenorm else x)  # (B, T, 3 D)
        queries, entries = qkv[..., : x.size(-1)], qkv[..., x.size(-1) :]
        if keep is not None:
            x, queries = x[keep], queries[keep]
        x = x + self.out(attend(queries, entries))
        x = x if self.prenorm else self.norm(x)
        if cross_attend is not None:
            x = self._around(self.cross_norm, x, lambda y: self.cross_out(cross_attend(self.cross_query(y))))
        return self._around(self.final_norm, x, lambda y: self.fc2(self.activation(self.fc1(y))))

    def _around(self, norm: Norm, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The residual connection around a part, with the norm before it or after the sum."""
        return x + part(norm(x)) if self.prenorm else norm(x + part(x))


class Encoder:
    """A source of B sentences -> (B, S, D); positions past a sentence's end are undefined."""

    def __init__(self, weights: Weights, spec: ModelSpec):
        side = spec.encoder
        self.embedding = Embedding(weights, "encoder", side)
        names = [f"encoder.layers.{index}" for index in range(side.layers)]
        self.layers = [Layer(weights, name, side.prenorm, spec.activation, False, index) for index, name in enumerate(names)]
        self.norm = weights.norm("encoder.layer_norm") if side.final_norm else None
        self.heads = side.heads

    def __call__(self, source: Source) -> Tensor:
        tokens, lengths = source.tokens, source.lengths
        place = torch.arange(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens, place.expand_as(tokens))
        padded = min(source.sizes) < source.longest  # by the host's numbers, without a sync
        mask = hide(place >= lengths[:, None], x.dtype)[:, None, None] if padded else None  # (B, 1, 1, S)

        def attend(queries: Tensor, entries: Tensor) -> Tensor:
            return attention(queries, entries, self.heads, mask)

        for layer in self.layers:
            x = layer(x, attend)
        return x if self.norm is None else self.norm(x)


class Successor:
    """Relates neighbouring tokens: adds P[c] . relu(G x + T[t]) to the logit of token c after token t, x being the hidden state.

    With the embeddings E, T = E W_token and P = E W_out are computed once.
    """

    def __init__(self, weights: Weights, embeddings: Tensor, projection: Tensor):
        name = "decoder.successor"
        self.gate = weights.linear(f"{name}.from_feature")  # G, (R, D), and its bias
        token, out = weights(f"{name}.from_token.weight"), weights(f"{name}.out.weight")  # (R, D), (D, R)
        self.tokens, self.out = _product(embeddings, token.T), _product(projection, out)  # T and P, (V, R)


def _product(table: Tensor, matrix: Tensor) -> Tensor:
    """table (V, D) @ matrix (D, R) in the matrix's data type, without a copy of a large table in it."""
    return torch.cat([part.to(matrix) @ matrix for part in table.split(1 << 15)])


class Decoder:
    """The parts of a decoder; `TorchModel.read` and `read_block` run them."""

    def __init__(self, weights: Weights, spec: ModelSpec, code: str | None = None, hosts: int = 0):
        """``code`` names a drafter, whose own weights are then also read. With ``hosts`` its layers use the caches of a
        verifier of so many layers, evenly spread."""
        side = spec.decoder
        self.embedding = Embedding(weights, "decoder", side, spec.zero_start)
        names = [f"decoder.layers.{index}" for index in range(side.layers)]
        entries = spread(side.layers, hosts) if hosts else range(side.layers)
        self.layers = [Layer(weights, name, side.prenorm, spec.activation, True, at) for name, at in zip(names, entries)]
        memory = [] if hosts else [f"{name}.encoder_attn.{part}_proj" for name in names for part in "kv"]
        self.memory = weights.linear(*memory) if memory else None  # (L 2 D, D)
        self.norm = weights.norm("decoder.layer_norm") if side.final_norm else None
        self.heads = side.heads
        self.projection = weights("decoder.output_projection.weight")  # (V, D)
        self.bias = weights("decoder.output_projection.bias") if spec.output_bias else None  # (V,)
        embeddings, self.vocabulary = self.embedding.tokens, None
        if code and DRAFT_VOCABULARY in weights:
            self.vocabulary = draft_vocabulary(weights(DRAFT_VOCABULARY), len(self.projection))  # from here on that is V
            tied = self.projection is embeddings
            embeddings = embeddings[self.vocabulary]
            self.projection = embeddings if tied else self.projection[self.vocabulary]
            self.bias = None if self.bias is None else self.bias[self.vocabulary]
        successor = code and "decoder.successor.out.weight" in weights
        self.successor = Successor(weights, embeddings, self.projection) if successor else None
        self.copy = weights(COPY) if code == "block" and COPY in weights else None

    @property
    def width(self) -> int:
        return self.embedding.tokens.size(1)

    def features(self, x: Tensor) -> Tensor:
        """(..., D) the last layer's output -> hidden states that the logits are computed from."""
        return x if self.norm is None else self.norm(x)

    def project(self, features: Tensor) -> Tensor:
        """(..., V) logits."""
        return F.linear(features, self.projection, self.bias)


def spread(wanted: int, available: int) -> list[int]:
    """So many of the available layers, evenly spread and ending with the last."""
    return [(index + 1) * available // wanted - 1 for index in range(wanted)]


# A drafter may restrict its output to the tokens listed here (FR-Spec, Zhao et al. 2025): a few thousand make up most text, and
# the other logits would be half of a shallow drafter's work.
DRAFT_VOCABULARY = "decoder.draft_vocabulary"
COPY = "decoder.copy_attn.weight"
POSITIONS = "encoder.embed_positions.weight"


def draft_vocabulary(tokens: Tensor, size: int) -> Tensor:
    """Validate and return these tokens (V',), whose indices are those of the drafter's logits. Raises UnsupportedModel."""
    proper = tokens.dtype == torch.int64 and tokens.dim() == 1 and len(tokens) > 0
    if not proper or not (tokens[1:] > tokens[:-1]).all() or not 0 <= int(tokens[0]) <= int(tokens[-1]) < size:
        raise UnsupportedModel(f"{DRAFT_VOCABULARY} must list tokens below {size:,} in ascending order, as int64")
    return tokens


OPTIONS: dict[str, dict[str, type]] = {
    "block": {"source_copy": bool},
    "block_causal": {"successor_width": int},
    "glide": {"hosts": int},
}


def option_faults(model: DrafterModel) -> list[str]:
    """Faults of a built-in drafter's options."""
    known = OPTIONS.get(model.code, {})
    return [
        f"options: {name} is {value!r:.40}" if name in known else f"options: '{model.code}' has no {name}"
        for name, value in model.options.items()
        if model.code in OPTIONS and type(value) is not known.get(name)
    ]


def drafter_shapes(model: DrafterModel) -> dict[str, tuple[int, ...]]:
    """The tensors that a built-in drafter has besides its Transformer's."""
    assert model.spec is not None, "a Transformer"
    width, options, given = model.spec.decoder.width, model.options, model.tensors
    more: dict[str, tuple[int, ...]] = {}
    if DRAFT_VOCABULARY in given:
        more[DRAFT_VOCABULARY] = tuple(given[DRAFT_VOCABULARY].shape)  # its values are checked: `draft_vocabulary`
    if model.code == "block" and options.get("source_copy"):
        more[COPY] = (width, width)
    hidden = options.get("successor_width", 0) if model.code != "block" else 0
    if hidden:
        name = "decoder.successor"
        more |= {
            f"{name}.from_feature.weight": (hidden, width), f"{name}.from_feature.bias": (hidden,),
            f"{name}.from_token.weight": (hidden, width), f"{name}.out.weight": (width, hidden),
        }  # fmt: skip
    return more


@dataclass(frozen=True)
class Transformer:
    """A loaded model."""

    spec: ModelSpec
    encoder: Encoder
    decoder: Decoder

    @classmethod
    def load(cls, model: Model | DrafterModel, encoder: Encoder | None = None, packing: bool = False) -> "Transformer":
        """Build a model on its tensors, with another's encoder if given. Raises UnsupportedModel naming every fault.

        ``packing``: a backend will pack the weights, and nothing else reads them.
        """
        code = model.code if isinstance(model, DrafterModel) else None
        if model.spec is None:
            raise UnsupportedModel(f"drafter '{code}' is no Transformer")
        faults = option_faults(model) if isinstance(model, DrafterModel) else []
        if not model.spec.decoder.layers and code in (None, *OPTIONS):
            faults.append("a decoder without layers")
        if not faults:
            more = drafter_shapes(model) if isinstance(model, DrafterModel) else {}
            faults = tensor_faults(model.spec, tensor_shapes(model.tensors), more)
        if not faults:
            faults = symbol_faults(
                model.spec, *(len(model.tensors[f"{side}.embed_tokens.weight"]) for side in ("encoder", "decoder"))
            )
        if COPY in model.tensors and model.spec.encoder.width != model.spec.decoder.width:
            faults.append("a source copy with an encoder and a decoder of different widths")
        if faults:
            raise UnsupportedModel("; ".join(faults))
        weights, hosts = Weights(model.tensors, packing), 0
        if isinstance(model, DrafterModel) and code in OPTIONS:
            hosts = model.options.get("hosts", 0)
        return cls(model.spec, encoder or Encoder(weights, model.spec), Decoder(weights, model.spec, code, hosts))


AS_STORED = ("_proj.weight", "fc1.weight", "fc2.weight", "output_projection.weight", "embed_tokens.weight")


class Placement:
    """Puts models' tensors on ``device`` in ``dtype``, each once: tied tensors stay tied, and a tensor that equals its namesake
    in a model placed before becomes that one.

    With ``packing`` linear layers and embeddings keep their stored data type: the kernels widen them piece by piece, so that a
    float16 model is never held in float32 as well.
    """

    def __init__(self, device: torch.device | str, dtype: torch.dtype, packing: bool = False):
        self.device, self.dtype, self.packing = device, dtype, packing
        self._placed: dict[tuple, Tensor] = {}  # by origin
        self._named: dict[str, Tensor] = {}

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        origins = {name: (tensor.data_ptr(), tensor.shape, tensor.stride()) for name, tensor in tensors.items()}
        converted = {origin for name, origin in origins.items() if not (self.packing and name.endswith(AS_STORED))}
        for name, tensor in tensors.items():
            origin, twin = origins[name], self._named.get(name)
            if origin not in self._placed:
                dtype = self.dtype if tensor.is_floating_point() and origin in converted else None
                moved = tensor.detach().to(device=self.device, dtype=dtype)
                self._placed[origin] = twin if twin is not None and equal(twin, moved) else moved
        result = {name: self._placed[origin] for name, origin in origins.items()}
        self._named |= result
        return result


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same values, whatever their data types."""
    common = torch.promote_types(one.dtype, other.dtype)
    return one.shape == other.shape and torch.equal(one.to(common), other.to(common))


def load_pair(
    verifier: Model | DrafterModel, drafter: DrafterModel | None, device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32, packing: bool = False,
) -> tuple[Transformer, Transformer | None]:  # fmt: skip
    """Load verifier and drafter; None for a drafter that is not a Transformer, whose code loads it. ``packing``: see `Placement`.

    A drafter whose encoder equals the verifier's shares it, held once and run once. Raises UnsupportedModel, also for weights
    that are not finite floats and for a drafter with another vocabulary.
    """
    check_weights(verifier, drafter)
    tensors = [tensor for model in (verifier, drafter) if model for tensor in model.tensors.values()]
    unload(map(Tensor.data_ptr, tensors))  # checking has read all of them
    place = Placement(device, dtype, packing)
    placed = replace(verifier, tensors=place(verifier.tensors))
    model, second = Transformer.load(placed, packing=packing), None
    if drafter is not None and drafter.spec is not None:
        other = replace(drafter, tensors=place(drafter.tensors))
        second = Transformer.load(other, model.encoder if same_encoder(placed, other) else None, packing)
    unload(map(Tensor.data_ptr, tensors))
    return model, second


def check_weights(verifier: Model | DrafterModel, drafter: DrafterModel | None) -> None:
    """Raise UnsupportedModel naming the first tensor that cannot be a weight, or vocabularies of different sizes."""
    checked, mapped = set[int](), Mapped()  # tensors that both models have are checked once
    for role, model in (("verifier", verifier), ("drafter", drafter)):
        for name, tensor in model.tensors.items() if model is not None and model.spec is not None else ():
            if id(tensor) in checked:
                continue
            checked.add(id(tensor))
            fault = storage_fault(tensor) if name == DRAFT_VOCABULARY else weight_fault(tensor)
            if fault:
                raise UnsupportedModel(f"the {role}'s {name} {fault}")
            mapped.read(tensor.data_ptr(), tensor.nbytes)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        sizes = [len(model.tensors[name]) for model in (verifier, drafter) if model is not None and name in model.tensors]
        if len(set(sizes)) > 1 and drafter is not None and drafter.spec is not None:
            raise UnsupportedModel(f"{name} has {sizes[0]:,} tokens in the verifier, {sizes[1]:,} in the drafter")


def same_encoder(verifier: Model | DrafterModel, drafter: DrafterModel) -> bool:
    """Whether two models from one `Placement` have the same encoder. Position tables may differ in length, as sources are limited
    to the shorter one."""
    sides = [
        model.spec and (replace(model.spec.encoder, max_positions=1), model.spec.activation) for model in (verifier, drafter)
    ]
    tables = [model.tensors.get(POSITIONS) for model in (verifier, drafter)]
    weights = [
        {name: id(tensor) for name, tensor in model.tensors.items() if name.startswith("encoder.") and name != POSITIONS}
        for model in (verifier, drafter)
    ]
    if sides[0] != sides[1] or weights[0] != weights[1] or tables[0] is None or tables[1] is None:
        return False
    rows = min(map(len, tables))  # type: ignore[arg-type]
    return tables[0] is tables[1] or torch.equal(tables[0][:rows], tables[1][:rows])
