"""An encoder's or decoder's tensors (`formats/spec.py`) packed for the kernels.

D width, V vocabulary, L layers, H heads, K width of a head, G width of a successor network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec_plugins.decoding.backends.cpu.arguments import floats, integers, start
from specdec_plugins.decoding.backends.cpu.binding import (
    GROUPS,
    NO_LOGITS,
    Engine,
    NativeLinear,
    Norm,
    Plane,
    Projection,
    Screen,
    Stack,
    mapped,
)
from specdec_plugins.decoding.backends.cpu.panels import linear_of
from specdec_plugins.decoding.loading import COPY, DRAFT_VOCABULARY, SUCCESSOR, spread
from specdec_plugins.formats.arrays import array
from specdec_plugins.formats.packed import TILE
from specdec_plugins.formats.positions import buckets, rotations
from specdec_plugins.formats.spec import DrafterModel, Model
from specdec_plugins.model import spec as parts
from specdec_plugins.model.spec import ModelSpec, SideSpec

# By the name of a linear layer's first projection: rounds its weight (O, I) -> weight, scales.
Rounded = Mapping[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]


class Weights:
    """A checked model's arrays by name, and its linear layers, packed in ``dtype``, a verifier's int4 in groups: stored panels,
    weights ``rounded`` for its inputs (see gptq.py), or its arrays."""

    def __init__(self, model: Model | DrafterModel, engine: Engine, dtype: str, rounded: Rounded | None = None):
        assert model.spec is not None
        self.stored = None if isinstance(model, DrafterModel) else model.packed.get(dtype)
        self.dtype, self.rounded = dtype, rounded or {}
        self.linears: dict[str, NativeLinear] = {}  # by the name of the first of their projections
        self.tensors = model.tensors
        self.spec, self.engine = model.spec, engine
        self.drafts, self.hosts = isinstance(model, DrafterModel), getattr(model, "hosts", 0)
        groups = dtype == "int4" and not self.drafts
        self.kind = GROUPS if groups else dtype
        self.output_kind = "int8" if groups else dtype  # an int8 output layer is screened, so as many of its bytes are read

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str) -> np.ndarray:
        return array(self.tensors[name])

    def linear(self, *names: str) -> NativeLinear:
        """One product of several projections of the same input, which all have a bias, or none."""
        biases = [self(f"{name}.bias") for name in names if f"{name}.bias" in self]
        weights = [self.tensors[f"{name}.weight"] for name in names]
        if self.stored is not None and names[0] not in self.stored:
            raise ValueError(f"packed {self.dtype} weights: {names[0]} is missing")
        return self.packed(names[0], self.kind, weights, joined(biases) if biases else None)

    def packed(self, name: str, kind: str, weights: Sequence[Any], bias: np.ndarray | None) -> NativeLinear:
        """A linear layer of these projections, which may be lazy arrays: as stored, or packed now."""
        library, scales = self.engine.library, None
        if self.stored is not None and name in self.stored:
            try:
                made = linear_of(self.stored[name], sum(map(len, weights)), weights[0].shape[1], kind, library)
            except ValueError as error:
                raise ValueError(f"packed {self.dtype} weights: {name} {error}; pack the folder again") from None
        else:
            weight = joined([*map(array, weights)])
            if name in self.rounded and kind == GROUPS:
                weight, scales = self.rounded[name](weight)
            made = NativeLinear(weight, bias, kind, library, scales)
        self.linears[name] = made
        return made

    def norm(self, name: str, spec: parts.Norm) -> Norm:
        return Norm(floats(self(f"{name}.weight")), floats(self(f"{name}.bias")) if spec.bias else None, spec.rms, spec.eps)

    def stack(self, name: str, last: Norm | None, output: Projection = NO_LOGITS) -> Stack:
        """The side ``name``, with its ``last`` norm."""
        side: SideSpec = getattr(self.spec, name)
        placed, decodes = side.embedding.offset is not None, name == "decoder"
        stack = Stack(
            self.engine,
            side,
            self(f"{name}.embed_tokens.weight"),
            self(f"{name}.embed_positions.weight") if placed else None,
            zero_start=decodes and self.spec.zero_start,
            embedding_norm=self.norm(f"{name}.layernorm_embedding", side.norm) if side.embedding.norm else None,
            last_norm=last,
            output=output,
        )
        entries = spread(side.layers, self.hosts) if self.hosts and decodes else range(side.layers)
        for index, place in enumerate(entries):
            self._add_layer(stack, name, index, side, place)
        mapped.unload()
        return stack

    def _add_layer(self, stack: Stack, side_name: str, index: int, side: SideSpec, entries: int) -> None:
        name, decodes = f"{side_name}.layers.{index}", side_name == "decoder"
        spec, own, source = side.attention, f"{name}.self_attn", f"{name}.encoder_attn"
        cross = decodes and not spec.merged
        linears = {
            "qkv": self.linear(*(f"{own}.{part}_proj" for part in "qkv")),
            "out": self.linear(f"{own}.out_proj"),
            "fc1": self.linear(f"{name}.fc1"),
            "fc2": self.linear(f"{name}.fc2"),
        }
        around = {"": own, "final_": f"{name}.final"}
        if cross:
            linears |= {"cross_query": self.linear(f"{source}.q_proj"), "cross_out": self.linear(f"{source}.out_proj")}
            around["cross_"] = source
        if side.feed_forward.gated:
            linears["gate"] = self.linear(f"{name}.gate")
        norms = {f"{prefix}norm": self.norm(f"{part}_layer_norm", side.norm) for prefix, part in around.items()}
        if side.norms == "both":
            norms |= {f"{prefix}after_norm": self.norm(f"{part}_after_norm", side.norm) for prefix, part in around.items()}
        if spec.head_norm:
            turned = {"query": f"{own}.q", "key": f"{own}.k"} | ({"cross_query": f"{source}.q"} if cross else {})
            if decodes and not self.hosts:
                turned["cross_key"] = f"{source if cross else own}.k"
            norms |= {f"{role}_norm": self.norm(f"{part}_norm", spec.head_norm) for role, part in turned.items()}
        relative = None
        if spec.relative is not None:  # (H, 2 R + 1) by the key's distance ahead
            numbers = buckets(spec.relative.buckets, spec.relative.distance, not decodes)
            relative = floats(self(f"{own}.relative.weight"))[list(numbers)].T
        rotary, rotation = side.rotary_at(index), None
        if rotary is not None:
            rotation = floats(rotations(side.max_positions, side.head_width, rotary.theta, rotary.factor))
        stack.add_layer(linears, norms, relative, rotation, side.local_at(index), entries)


def joined(some: Sequence[np.ndarray]) -> np.ndarray:
    if len(some) == 1:
        return some[0]
    alike = len({each.dtype for each in some}) == 1
    return np.concatenate(some if alike else [*map(floats, some)])  # float16 and bfloat16 have no common type


class Successor(NamedTuple):
    """Relates neighbouring tokens: adds P[c] . relu(G x + T[t]) to the logit of token c after token t, x being the hidden state.

    With the embeddings E, T = E W_token and P = E W_out are computed once.
    """

    gate: NativeLinear  # G
    tokens: np.ndarray  # T (V, G)
    out: np.ndarray  # P (V, G)


class Output:
    """What follows a decoder's layers."""

    def __init__(self, weights: Weights):
        spec: ModelSpec = weights.spec
        side, scale = spec.decoder, spec.output.scale
        norm = weights.norm("decoder.layer_norm", side.norm) if side.final_norm else None
        self.norm = norm and norm.scaled(scale)
        embeddings, self.weight = (weights(f"decoder.{name}.weight") for name in ("embed_tokens", "output_projection"))
        self.bias = weights("decoder.output_projection.bias") if spec.output.bias else None  # (V,)
        self.vocabulary: list[int] | None = None  # the token of each logit, if not all have one; from here on that is V
        if weights.drafts and DRAFT_VOCABULARY in weights:
            drafted = weights(DRAFT_VOCABULARY)
            tied, self.vocabulary = self.weight is embeddings, drafted.tolist()
            embeddings = embeddings[drafted]
            self.weight = embeddings if tied else self.weight[drafted]
            self.bias = None if self.bias is None else self.bias[drafted]
        self.successor: Successor | None = None
        if weights.drafts and f"{SUCCESSOR}.out.weight" in weights:
            token, out = weights(f"{SUCCESSOR}.from_token.weight"), weights(f"{SUCCESSOR}.out.weight")  # (G, D), (D, G)
            gate = weights.linear(f"{SUCCESSOR}.from_feature")
            self.successor = Successor(gate, product(embeddings, token.T), product(self.weight, out))
        self.copy = weights(COPY) if weights.drafts and COPY in weights else None  # (D, D)


def product(table: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """table (V, D) @ matrix (D, G) in float32, without a copy of a large table in it."""
    return joined([floats(table[first : first + (1 << 15)]) @ floats(matrix) for first in range(0, len(table), 1 << 15)])


def screen_of(output: Output, kind: str, engine: Engine) -> Screen | None:
    """Of an int4 drafter with a large output layer. At width 512 a trained one (V 6,583) drafts as it would by exact logits; at
    width 256 2 % of the tokens are others."""
    size, width = output.weight.shape
    if kind != "int4" or size <= 4096 or width < 512:
        return None
    return Screen(output.weight, output.bias, width // 4 // TILE * TILE, engine.library)


def plane_of(projection: NativeLinear | None, spec: ModelSpec, kind: str) -> Plane | None:
    """Of a verifier's output layer, where it saves time. A cap is not monotone to the last bit."""
    if projection is None or kind not in Plane.KINDS or spec.output.cap or projection.inputs > Plane.MOST_INPUTS:
        return None
    rows = plane_rows(projection)
    return Plane(projection, rows) if rows else None


def plane_rows(linear: NativeLinear) -> int:
    """Rows of a pass up to which a plane saves time; 0: never."""
    rows = integers([0])
    linear.library.specdec_plane_rows(linear.pointer, start(rows))
    return rows[0]


class Embeddings:
    """A side's embeddings without their norm, for the source copy."""

    def __init__(self, weights: Weights, name: str):
        self.spec, self.tokens = getattr(weights.spec, name).embedding, weights(f"{name}.embed_tokens.weight")
        self.positions = None if self.spec.offset is None else weights(f"{name}.embed_positions.weight")

    def copied(self, sentences: Sequence[Sequence[int]], weight: np.ndarray) -> np.ndarray:
        """(N, S, 2 D) keys and values of the source copy for N sentences, undefined past their ends; ``weight`` (D, D) is
        `Output.copy`."""
        longest, width = max(map(len, sentences)), self.tokens.shape[1]
        found, weight = np.zeros((len(sentences), longest, 2 * width), np.float32), floats(weight)
        for entries, tokens in zip(found, sentences):
            embedded = floats(self.tokens[[*tokens]]) * np.float32(self.spec.scale)
            first = self.spec.offset or 0
            placed = 0 if self.positions is None else floats(self.positions[first : first + len(tokens)])
            entries[: len(tokens), :width] = (embedded + placed) @ weight  # W p . k = p . (k W)
            entries[: len(tokens), width:] = embedded
        return found
