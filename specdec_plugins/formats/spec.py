"""A model: a `ModelSpec`, and tensors by canonical names, which fairseq and Hugging Face's BART family share.

SIDE is ``encoder`` or ``decoder``, N a layer from 0, D the width, I the inner width, V the vocabulary, P positions, H heads, G
key-value heads, K width of a head. What a spec does not ask for is missing: biases, gates, norms.

    SIDE.embed_tokens.weight (V, D), SIDE.embed_positions.weight (P, D), SIDE.layernorm_embedding.{weight,bias} (D,)
    SIDE.layers.N.self_attn.{q (H K, D),k (G K, D),v (G K, D),out (D, H K)}_proj.{weight,bias}
    SIDE.layers.N.self_attn.{q,k}_norm.{weight,bias} (K,), SIDE.layers.N.self_attn.relative.weight (buckets, H)
    decoder.layers.N.encoder_attn.{q,k,v,out}_proj.{weight,bias}, decoder.layers.N.encoder_attn.{q,k}_norm.{weight,bias}
    SIDE.layers.N.{fc1 (I, D),gate (I, D),fc2 (D, I)}.{weight,bias}
    SIDE.layers.N.{self_attn,encoder_attn,final}_{layer,after}_norm.{weight,bias}: `Residual`
    SIDE.layer_norm.{weight,bias}, decoder.output_projection.{weight (V, D),bias (V,)}

With merged attention, a decoder has no tensor of ``encoder_attn``.

Position tables are ordinary tensors, because their frequencies differ between families: row ``embedding.offset`` is the first
token's, and there are at least ``max_positions`` rows from there. Tied tensors are the same object. Readers make NumPy arrays;
training and drafters' networks make PyTorch's tensors, which everything here takes as well (`arrays.py`).
"""

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from specdec_plugins.formats import arrays
from specdec_plugins.formats.arrays import WEIGHT_DTYPES, Arrays, Tensors, address, array, float16, is_floating
from specdec_plugins.formats.errors import listed
from specdec_plugins.formats.files import Mapped
from specdec_plugins.formats.positions import sinusoidal, sinusoidal_from_zero
from specdec_plugins.model.spec import ModelSpec, Norm, SideSpec

Shapes = dict[str, tuple[int, ...]]  # of tensors
HALF = 2**-11  # largest error of a sine in float16


@dataclass(frozen=True)
class Model:
    spec: ModelSpec
    tensors: Mapping[str, Any]  # arrays, or PyTorch's tensors
    # Linear layers packed for the CPU kernels, by data type and name: packed.py
    packed: Mapping[str, Arrays] = field(default_factory=dict)
    mark: str | None = None  # `fingerprint` of the weights that were rounded, of a model that has packed ones alone


@dataclass(frozen=True)
class DrafterModel:
    """A drafter's weights, and the name of its code: built in, an installed entry point, or ``module:object``.

    ``spec`` is None if it is not a Transformer. ``verifier`` is the `fingerprint` of the verifier that it was trained for, None
    if unknown. With ``hosts`` its layers read the caches of a verifier of so many layers. Of a model's drafters it is the default
    on its ``devices``.
    """

    code: str
    tensors: Mapping[str, Any]  # as `Model`'s
    spec: ModelSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 0  # draft length in training
    verifier: str | None = None
    hosts: int = 0
    devices: tuple[str, ...] = ()  # cpu, cuda


Reading = TypeVar("Reading", Model, DrafterModel)


def sides(spec: ModelSpec) -> dict[str, SideSpec]:
    """By name."""
    return {"encoder": spec.encoder, "decoder": spec.decoder}


def sinusoidal_table(side: SideSpec) -> np.ndarray | None:
    """A side's sinusoidal table; None if it cannot have one. Marian's if the first token's is row 0, else fairseq's, which is
    zero in the row before."""
    offset = side.embedding.offset
    if side.width < 4 or offset is None:
        return None
    if offset == 0:
        return sinusoidal_from_zero(side.max_positions, side.width)
    return sinusoidal(offset + side.max_positions, side.width, offset - 1)


def sinusoidal_tables(spec: ModelSpec | None) -> Tensors:
    """The sinusoidal position tables that a model may have, by canonical name."""
    if spec is None:
        return {}
    tables = {f"{name}.embed_positions.weight": sinusoidal_table(side) for name, side in sides(spec).items()}
    return {name: table for name, table in tables.items() if table is not None}


def close(stored: np.ndarray, table: np.ndarray) -> bool:
    """Whether a stored position table is this sinusoidal one, which other programs and half precision round otherwise."""
    return stored.shape == table.shape and bool((np.abs(stored.astype(np.float32) - table) <= HALF).all())


def extended(model: Reading, positions: int) -> Reading:
    """A model that reads at least ``positions`` tokens on both sides, by extending its sinusoidal position tables.

    Raises ValueError naming every side with another table. Quality beyond the trained positions is unknown.
    """
    if model.spec is None:
        return model
    tensors, faults = dict(model.tensors), []
    given = sides(model.spec)
    longer_sides = {name: replace(side, max_positions=max(side.max_positions, positions)) for name, side in given.items()}
    spec = replace(
        model.spec, encoder=longer_sides["encoder"], decoder=longer_sides["decoder"]
    )  # raises before tables are computed
    for name, side in given.items():
        table = f"{name}.embed_positions.weight"
        if side.max_positions >= positions or table not in tensors:  # taken from the verifier
            continue
        longer, known = sinusoidal_table(longer_sides[name]), array(tensors[table])
        if longer is None or not close(known[: len(longer)], longer[: len(known)]):
            faults.append(f"the {name}'s {side.max_positions:,} are learned")
            continue
        tensors[table] = np.concatenate([known, longer[len(known) :].astype(known.dtype)])
    if faults:
        raise ValueError("; ".join(faults))
    return replace(model, spec=spec, tensors=tensors)


def shapes(spec: ModelSpec, source_size: int, target_size: int) -> Shapes:
    """The shapes of a model's tensors, given its vocabulary sizes; position tables may have more rows."""
    found: Shapes = {}
    for name, side, size in (("encoder", spec.encoder, source_size), ("decoder", spec.decoder, target_size)):
        found[f"{name}.embed_tokens.weight"] = size, side.width
        if side.embedding.offset is not None:
            found[f"{name}.embed_positions.weight"] = side.embedding.offset + side.max_positions, side.width
        for norm in ["layernorm_embedding"] * side.embedding.norm + ["layer_norm"] * side.final_norm:
            found |= _norm(f"{name}.{norm}", side.norm, side.width)
        for index in range(side.layers):
            memory = spec.encoder.width if name == "decoder" and not side.attention.merged else None
            found |= _layer(f"{name}.layers.{index}", side, memory)
    found["decoder.output_projection.weight"] = target_size, spec.decoder.width
    return found | ({"decoder.output_projection.bias": (target_size,)} if spec.output.bias else {})


def _layer(name: str, side: SideSpec, memory: int | None) -> Shapes:
    """A layer's; ``memory`` is the width of the source that its cross-attention reads, if any."""
    attention, feed, queries, keys = side.attention, side.feed_forward, side.query_width, side.key_width
    found: Shapes = {}
    for part, width in [("self_attn", side.width)] + ([] if memory is None else [("encoder_attn", memory)]):
        sizes = {"q": (queries, side.width), "k": (keys, width), "v": (keys, width), "out": (side.width, queries)}
        for projection, shape in sizes.items():
            found |= _linear(f"{name}.{part}.{projection}_proj", shape, attention.bias)
        for each in "qk" if attention.head_norm else "":
            found |= _norm(f"{name}.{part}.{each}_norm", attention.head_norm, side.head_width)
    if attention.relative:
        found[f"{name}.self_attn.relative.weight"] = attention.relative.buckets, attention.heads
    for linear in ["fc1"] + ["gate"] * feed.gated:
        found |= _linear(f"{name}.{linear}", (feed.width, side.width), feed.bias)
    found |= _linear(f"{name}.fc2", (side.width, feed.width), feed.bias)
    for part in ("self_attn", "encoder_attn", "final")[:: 2 if memory is None else 1]:
        for place in ("layer", "after") if side.norms == "both" else ("layer",):
            found |= _norm(f"{name}.{part}_{place}_norm", side.norm, side.width)
    return found


def _linear(name: str, shape: tuple[int, int], bias: bool) -> Shapes:
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if bias else {})


def _norm(name: str, norm: Norm | None, width: int) -> Shapes:
    return {f"{name}.{part}": (width,) for part in ("weight", "bias")[: 1 + (norm is not None and norm.bias)]}


def tensor_faults(spec: ModelSpec, given: Shapes, more: Shapes | None = None) -> list[str]:
    """How the shapes ``given`` differ from the spec's; ``more`` are a drafter's own tensors."""
    vocabularies = [(given.get(f"{side}.embed_tokens.weight") or (0,))[0] for side in ("encoder", "decoder")]
    wanted = {**shapes(spec, *vocabularies), **(more or {})}
    wrong = [
        f"{name} {tuple(given[name])}, not {shape}"
        for name, shape in wanted.items()
        if name in given and not _fits(name, tuple(given[name]), shape)
    ]
    missing = [name for name in wanted if name not in given]
    foreign = [name for name in given if name not in wanted]
    return [
        f"{what}: {listed(names)}"
        for what, names in (
            ("missing weights", missing),
            ("weights without a place here", foreign),
            ("weights of another shape", wrong),
        )
        if names
    ]


def own_shapes(spec: ModelSpec, given: Shapes) -> Shapes:
    """Those of the shapes ``given`` that are not the Transformer's but a drafter's own."""
    wanted = shapes(spec, 0, 0)
    return {name: shape for name, shape in given.items() if name not in wanted}


def _fits(name: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if name.endswith(".embed_positions.weight"):
        return len(given) == 2 and given[1] == wanted[1] and given[0] >= wanted[0]
    return given == wanted


def tensor_shapes(tensors: Mapping[str, Any]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def storage_fault(tensor: Any) -> str | None:
    """Why an untrusted object is not an ordinary tensor in memory, whose address a kernel may read; None if it is one."""
    if isinstance(tensor, np.ndarray):
        reach = tensor.itemsize + sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.strides))
        few = tensor.size and reach < tensor.nbytes
    else:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(tensor, torch.Tensor):
            return f"is not a tensor but {type(tensor).__name__}"
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            kind = "quantised" if tensor.is_quantized else "without data" if tensor.device.type == "meta" else "sparse"
            return f"is {kind}, not a dense tensor"
        few = tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size()
    return "has more elements than memory" if few else None  # expanded: a small file could claim all memory


def storage_faults(weights: Mapping[Any, Any]) -> str | None:
    """The first weight that has no name or a `storage_fault`; None if none has."""
    for name, tensor in weights.items():
        if fault := storage_fault(tensor) if type(name) is str else "has no name":
            return f"the weight {name!r:.80} {fault}"
    return None


def weight_fault(tensor: Any) -> str | None:
    """Why a tensor cannot be a weight; None if it can."""
    if fault := storage_fault(tensor):
        return fault
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in map(str, WEIGHT_DTYPES):
        return f"is {name}, not float16, bfloat16, float32 or float64"
    return None if all_finite(tensor) else "has values that are not finite"


def all_finite(tensor: Any) -> bool:
    """Whether all values are, of a floating-point tensor."""
    return all(map(arrays.all_finite, _parts(tensor)))


PART = 1 << 20


def _parts(tensor: Any) -> Iterator[np.ndarray]:
    """A tensor's values in order, `PART` at a time: little is computed from them, and in memory of a mapped file, at once."""
    mapped, values = Mapped(), array(tensor).reshape(-1)
    for first in range(0, len(values), PART):
        part = values[first : first + PART]
        yield part
        mapped.read(address(part), part.nbytes)


def symbol_faults(spec: ModelSpec, source_size: int, target_size: int) -> list[str]:
    """Special tokens outside vocabularies of these sizes. Sources contain pad as well."""
    named = {
        **dataclasses.asdict(spec.symbols),
        "forced": max(spec.forced, default=0),
        "suppressed": max(spec.suppressed, default=0),
        "ending": max(spec.ends, default=0),
    }
    faults = [(f"{name} token", token, target_size) for name, token in named.items()]
    faults.append(("pad token", spec.symbols.pad, source_size))
    return [f"{name} {token:,} is outside the vocabulary of {size:,} tokens" for name, token, size in faults if token >= size]


def fingerprint(model: Model | DrafterModel) -> str:
    """The sha256 of a model's weights, rounded to float16 so that half-precision folders match their checkpoints.

    Leaves out sinusoidal tables, whether computed here or stored by a program that rounds them otherwise.
    """
    if isinstance(model, Model) and model.mark is not None:
        return model.mark
    digest = hashlib.sha256()
    tables = sinusoidal_tables(model.spec)
    for name, tensor in sorted(model.tensors.items()):
        if name in tables and close(array(tensor), tables[name]):
            continue
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        for part in _parts(tensor):
            digest.update((float16(part) if is_floating(part) else part).data)
    return digest.hexdigest()
