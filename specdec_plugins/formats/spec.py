"""Encoder-decoder Transformers, independent of any file format.

A model is a `ModelSpec` and tensors by canonical names, which fairseq and Hugging Face's BART family share. SIDE is ``encoder``
or ``decoder``, I a layer from 0, D the width, H the inner width, V the vocabulary, P positions:

    SIDE.embed_tokens.weight (V, D), SIDE.embed_positions.weight (P, D), SIDE.layernorm_embedding.{weight,bias} (D,)
    SIDE.layers.I.self_attn.{q,k,v,out}_proj.{weight (D, D),bias (D,)}, SIDE.layers.I.self_attn_layer_norm.{weight,bias}
    decoder.layers.I.encoder_attn.{q,k,v,out}_proj.{weight,bias}, decoder.layers.I.encoder_attn_layer_norm.{weight,bias}
    SIDE.layers.I.{fc1 (H, D),fc2 (D, H)}.{weight,bias}, SIDE.layers.I.final_layer_norm.{weight,bias}
    SIDE.layer_norm.{weight,bias}, decoder.output_projection.{weight (V, D),bias (V,)}

Position tables are ordinary tensors, because their frequencies differ between families: row ``position_offset`` is the first
token's, and there are at least ``max_positions`` rows from there. Tied tensors are the same object.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from specdec_plugins.decoding.options import Beam
from specdec_plugins.formats.errors import listed
from specdec_plugins.formats.files import Mapped
from specdec_plugins.formats.positions import sinusoidal, sinusoidal_from_zero

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "swish")
# Beyond known models; a tiny file must not claim all memory. The widest, T5-11B, has 65,536; int4 products wrap above 75,000.
MAX_LAYERS, MAX_WIDTH, MAX_POSITIONS, MAX_TABLE, MAX_SCALE = 1_000, 1 << 16, 1 << 20, 1 << 25, 1e6

MAX_HEADS = 63  # of a layer that can be chosen: the kernels' bits
HUGE = 1 << 31  # bounds numbers whose sums must fit into the kernels' 64 bits

HALF = 2**-11  # largest error of a sine in float16


@dataclass(frozen=True)
class Symbols:
    """Special token ids. The defaults are those of fairseq's dictionaries."""

    pad: int = 1
    eos: int = 2
    start: int = 2  # what the decoder reads before the first token
    mask: int = 3  # drafters read it for unknown tokens; ``<unk>``, as published


@dataclass(frozen=True)
class Heads:
    """The cross-attention heads whose attention, summed, aligns an output token with its source.

    ``reading``: the attention of the step that reads the token, in place of that of the step that predicts it.
    """

    layer: int
    heads: tuple[int, ...]
    reading: bool = False

    def faults(self, decoder: "SideSpec") -> Iterator[str]:
        if not 0 <= self.layer < decoder.layers:
            yield f"layer {self.layer:,} of a decoder of {decoder.layers:,}"
        if (
            not self.heads
            or len(set(self.heads)) < len(self.heads)
            or not {*range(min(decoder.heads, MAX_HEADS))} >= {*self.heads}
        ):
            yield f"heads {self.heads!s:.80} of a layer of {decoder.heads:,}"

    @classmethod
    def usual(cls, decoder: "SideSpec") -> "Heads":
        """For a model whose heads nobody has measured: all of the last layer but one (Garg et al. 2019)."""
        return cls(max(0, decoder.layers - 2), tuple(range(min(decoder.heads, MAX_HEADS))))


@dataclass(frozen=True)
class SideSpec:
    """An encoder or a decoder."""

    layers: int
    heads: int
    width: int  # D
    inner_width: int  # H, of the feed-forward layer
    prenorm: bool  # norms before attention and feed-forward instead of after
    final_norm: bool  # a norm after the last layer
    embedding_norm: bool
    embedding_scale: float  # factor of token embeddings
    max_positions: int  # most tokens that it reads
    position_offset: int  # the first token's row in the position table


@dataclass(frozen=True)
class OutputRules:
    """How outputs end by default, as ``library`` ends them: the user's settings replace the numbers.

    With ``huggingface``, pad is an ordinary token, the start token counts in n-grams, and forced tokens count in lengths. Of the
    last four, greedy decoding uses none.
    """

    library: str = "fairseq"
    ends: bool = True  # an output at the limit ends with eos
    limit: int | None = None  # most tokens before eos; None: the engine's default
    min_length: int = 1  # tokens before eos may follow
    no_repeat: int = 0  # no n-gram of this size twice; 0: no ban
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: str = "false"
    renormalize: bool = False

    def __post_init__(self) -> None:
        self.beam()  # raises ValueError for its own fields
        if not 1 <= (1 if self.limit is None else self.limit) < HUGE or not all(
            0 <= n < HUGE for n in (self.min_length, self.no_repeat)
        ):
            raise ValueError(f"lengths of outputs from {self.min_length:,} to {self.limit} tokens, n-grams of {self.no_repeat:,}")

    def beam(self) -> Beam:
        """The beam search that the model asks for."""
        return Beam(
            self.beams, self.library, self.length_penalty, early_stopping=self.early_stopping, renormalize=self.renormalize
        )


@dataclass(frozen=True)
class ModelSpec:
    """An encoder-decoder Transformer."""

    encoder: SideSpec
    decoder: SideSpec
    activation: str  # one of `ACTIVATIONS`
    output_bias: bool = False  # of the logits
    zero_start: bool = False  # the start token's embedding is replaced by zeros
    symbols: Symbols = Symbols()
    forced: tuple[int, ...] = ()  # every output begins with these tokens
    suppressed: tuple[int, ...] = ()  # no output contains these tokens; nor pad, by fairseq's rules
    outputs: OutputRules = OutputRules()

    def __post_init__(self) -> None:
        """Raise ValueError with every fault."""
        faults = []
        if self.activation not in ACTIVATIONS:
            faults.append(f"activation function '{self.activation}'; available: {', '.join(ACTIVATIONS)}")
        for name, side in (("encoder", self.encoder), ("decoder", self.decoder)):
            layers = side.layers + (name == "decoder")  # a drafter's decoder may have none: heads on hidden states
            if min(layers, side.heads, side.width, side.inner_width, side.max_positions) < 1 or side.position_offset < 0:
                faults.append(f"{name}: layers, heads, widths and positions are at least 1, and the offset of positions 0")
            elif side.width % side.heads:
                faults.append(f"{name}: {side.heads} heads do not divide a width of {side.width}")
            rows = side.max_positions + side.position_offset
            if side.layers > MAX_LAYERS or max(side.width, side.inner_width) > MAX_WIDTH:
                faults.append(f"{name}: more than {MAX_LAYERS:,} layers, or wider than {MAX_WIDTH:,}")
            elif rows > MAX_POSITIONS or rows * side.width > MAX_TABLE:
                faults.append(f"{name}: {rows:,} positions of width {side.width:,}")
            if not 0 < side.embedding_scale <= MAX_SCALE:
                faults.append(f"{name}: embeddings scaled by {side.embedding_scale}")
        symbols = self.symbols
        if min(symbols.pad, symbols.eos, symbols.start, symbols.mask, *self.forced, *self.suppressed) < 0:
            faults.append("special tokens must not be negative")
        if faults:
            raise ValueError("; ".join(faults))


@dataclass(frozen=True)
class Model:
    spec: ModelSpec
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class DrafterModel:
    """A drafter's weights, and the name of its code: built in, an installed entry point, or ``module:object``.

    ``spec`` is None if it is not a Transformer. ``verifier`` is the `fingerprint` of the verifier that it was trained for, None
    if unknown.
    """

    code: str
    tensors: Mapping[str, Tensor]
    spec: ModelSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 0  # draft length in training
    verifier: str | None = None


Reading = TypeVar("Reading", Model, DrafterModel)


def sinusoidal_table(side: SideSpec) -> Tensor | None:
    """A side's sinusoidal table; None if it cannot have one. Marian's if the first token's is row 0, else fairseq's, which is
    zero in the row before."""
    if side.width < 4:
        return None
    if side.position_offset == 0:
        return sinusoidal_from_zero(side.max_positions, side.width)
    return sinusoidal(side.position_offset + side.max_positions, side.width, side.position_offset - 1)


def sinusoidal_tables(spec: ModelSpec | None) -> dict[str, Tensor]:
    """The sinusoidal position tables that a model may have, by canonical name."""
    if spec is None:
        return {}
    tables = {f"{name}.embed_positions.weight": sinusoidal_table(getattr(spec, name)) for name in ("encoder", "decoder")}
    return {name: table for name, table in tables.items() if table is not None}


def close(stored: Tensor, table: Tensor) -> bool:
    """Whether a stored position table is this sinusoidal one, which other programs and half precision round otherwise."""
    return stored.shape == table.shape and torch.allclose(stored.float(), table, rtol=0, atol=HALF)


def extended(model: Reading, positions: int) -> Reading:
    """A model that reads at least ``positions`` tokens on both sides, by extending its sinusoidal position tables.

    Raises ValueError naming every side with another table. Quality beyond the trained positions is unknown.
    """
    if model.spec is None:
        return model
    tensors, faults = dict(model.tensors), []
    sides = {name: getattr(model.spec, name) for name in ("encoder", "decoder")}
    longer_sides = {name: replace(side, max_positions=max(side.max_positions, positions)) for name, side in sides.items()}
    spec = replace(model.spec, **longer_sides)  # raises before tables are computed
    for name, side in sides.items():
        table = f"{name}.embed_positions.weight"
        if side.max_positions >= positions or table not in tensors:  # taken from the verifier
            continue
        longer, known = sinusoidal_table(longer_sides[name]), tensors[table]
        if longer is None or not close(known[: len(longer)], longer[: len(known)]):
            faults.append(f"the {name}'s {side.max_positions:,} are learned")
            continue
        tensors[table] = torch.cat([known, longer[len(known) :].to(known)])
    if faults:
        raise ValueError("; ".join(faults))
    return replace(model, spec=spec, tensors=tensors)


def shapes(spec: ModelSpec, source_size: int, target_size: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors, given its vocabulary sizes; position tables may have more rows."""
    found: dict[str, tuple[int, ...]] = {}
    for name, side, size in (("encoder", spec.encoder, source_size), ("decoder", spec.decoder, target_size)):
        width, inner = side.width, side.inner_width
        found[f"{name}.embed_tokens.weight"] = size, width
        found[f"{name}.embed_positions.weight"] = side.position_offset + side.max_positions, width
        norms = ["layernorm_embedding"] * side.embedding_norm + ["layer_norm"] * side.final_norm
        linears = []
        for index in range(side.layers):
            layer = f"layers.{index}"
            attentions = [("self_attn", width)] + [("encoder_attn", spec.encoder.width)] * (name == "decoder")
            for attention, memory in attentions:
                linears += [(f"{layer}.{attention}.{part}_proj", width, memory) for part in "kv"]
                linears += [(f"{layer}.{attention}.{part}_proj", width, width) for part in ("q", "out")]
                norms.append(f"{layer}.{attention}_layer_norm")
            linears += [(f"{layer}.fc1", inner, width), (f"{layer}.fc2", width, inner)]
            norms.append(f"{layer}.final_layer_norm")
        for linear, outputs, inputs in linears:
            found |= {f"{name}.{linear}.weight": (outputs, inputs), f"{name}.{linear}.bias": (outputs,)}
        found |= {f"{name}.{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
    found["decoder.output_projection.weight"] = target_size, spec.decoder.width
    return found | ({"decoder.output_projection.bias": (target_size,)} if spec.output_bias else {})


def tensor_faults(
    spec: ModelSpec, given: Mapping[str, tuple[int, ...]], more: Mapping[str, tuple[int, ...]] | None = None
) -> list[str]:
    """How the shapes ``given`` differ from the spec's; ``more`` are a drafter's own tensors."""
    vocabularies = [(given.get(f"{side}.embed_tokens.weight") or (0,))[0] for side in ("encoder", "decoder")]
    wanted = {**shapes(spec, *vocabularies), **(more or {})}
    wrong = [
        f"{name} {tuple(given[name])}, not {shape}" for name, shape in wanted.items()
        if name in given and not _fits(name, tuple(given[name]), shape)
    ]  # fmt: skip
    missing = [name for name in wanted if name not in given]
    foreign = [name for name in given if name not in wanted]
    return [
        f"{what}: {listed(names)}"
        for what, names in (
            ("missing weights", missing), ("weights without a place here", foreign), ("weights of another shape", wrong)
        )
        if names
    ]  # fmt: skip


def own_shapes(spec: ModelSpec, given: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Those of the shapes ``given`` that are not the Transformer's but a drafter's own."""
    wanted = shapes(spec, 0, 0)
    return {name: shape for name, shape in given.items() if name not in wanted}


def _fits(name: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if name.endswith(".embed_positions.weight"):
        return len(given) == 2 and given[1] == wanted[1] and given[0] >= wanted[0]
    return given == wanted


def tensor_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor at an aligned address: safetensors files may store it at any byte."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor


def storage_fault(tensor: Any) -> str | None:
    """Why an untrusted object is not an ordinary tensor in memory, whose address a kernel may read; None if it is one."""
    if not isinstance(tensor, Tensor):
        return f"is not a tensor but {type(tensor).__name__}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        kind = "quantised" if tensor.is_quantized else "without data" if tensor.device.type == "meta" else "sparse"
        return f"is {kind}, not a dense tensor"
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        return "has more elements than memory"  # expanded: a small file could claim all memory
    return None


def weight_fault(tensor: Any) -> str | None:
    """Why a tensor cannot be a weight; None if it can."""
    if fault := storage_fault(tensor):
        return fault
    if tensor.dtype not in WEIGHT_DTYPES:
        return f"is {str(tensor.dtype).removeprefix('torch.')}, not floating-point"
    return None if all_finite(tensor) else "has values that are not finite"


def all_finite(tensor: Tensor) -> bool:
    """Whether all values are. A finite sum implies it, at memory speed and without copies; the sum of large ones may overflow."""
    return all(math.isfinite(part.sum()) or bool(part.isfinite().all()) for part in _parts(tensor))


PART = 1 << 22


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor's values in order, `PART` at a time: little is computed from them, and in memory of a mapped file, at once."""
    mapped = Mapped()
    for part in tensor.detach().reshape(-1).split(PART):
        yield part
        mapped.read(part.data_ptr(), part.nbytes)


def symbol_faults(spec: ModelSpec, source_size: int, target_size: int) -> list[str]:
    """Special tokens outside vocabularies of these sizes. Sources contain pad as well."""
    named = {
        **dataclasses.asdict(spec.symbols),
        "forced": max(spec.forced, default=0),
        "suppressed": max(spec.suppressed, default=0),
    }
    faults = [(f"{name} token", token, target_size) for name, token in named.items()]
    faults.append(("pad token", spec.symbols.pad, source_size))
    return [f"{name} {token:,} is outside the vocabulary of {size:,} tokens" for name, token, size in faults if token >= size]


def fingerprint(model: Model) -> str:
    """The sha256 of a model's weights, rounded to float16 so that half-precision folders match their checkpoints.

    Leaves out sinusoidal tables, whether computed here or stored by a program that rounds them otherwise.
    """
    digest = hashlib.sha256()
    tables = sinusoidal_tables(model.spec)
    for name, tensor in sorted(model.tensors.items()):
        if name in tables and close(tensor, tables[name]):
            continue
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        for part in _parts(tensor):
            digest.update((part.half() if part.is_floating_point() else part).cpu().numpy().data)
    return digest.hexdigest()
