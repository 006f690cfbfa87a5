"""The compiled CPU kernels (``csrc/``) in Python: the objects that the library allocates, and arguments for its functions.

``csrc/api.cpp`` documents the functions. Arrays are contiguous and in float32, and the caller keeps the memory of every address
alive until the call returns.

B rows, D width, V vocabulary, O outputs, I inputs.
"""

import ctypes
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from threading import local
from typing import Any, NamedTuple

import numpy as np

from specdec_plugins.decoding.backends.cpu.arguments import address, floats, integers, start
from specdec_plugins.decoding.compiled import Library, kernels
from specdec_plugins.formats.arrays import array as array_of
from specdec_plugins.formats.files import Mapped
from specdec_plugins.formats.packed import BYTES, TILE
from specdec_plugins.model.spec import Local, SideSpec

DTYPES = ("float32", "bfloat16", "int8", "int4")  # of a verifier's weights
GROUPS = "int4 groups"
KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3, GROUPS: 4}  # of linear layers' weights
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": BYTES["int8"], "int4": 0.5, GROUPS: BYTES["int4"]}
# Sums have 32 bits. Inputs are at most 127, int8 weights 128, and int4 weights 8, which products multiply by 16.
MOST_INPUTS = dict.fromkeys(("int4", "int8"), (2**31 - 1) // (127 * 128))
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "swish": 3}
NORMS = {"after": 0, "before": 1, "both": 2}
TABLES = {"float32": 0, "bfloat16": 1, "float16": 2}  # data types of embeddings that passes read
WIDENED = 1 << 14  # weights that are packed, and widened to float32 for it, at a time: they stay in the cache


class Handle:
    """An object of the library's, freed with this one. ``kind`` names the function that makes it. Raises MemoryError."""

    def __init__(self, library: Library, kind: str, *arguments: Any):
        self.library = library
        self.pointer: int = getattr(library, f"specdec_{kind}")(*arguments)
        self._free = weakref.finalize(self, getattr(library, f"specdec_{kind}_free"), self.pointer)


class Team(Handle):
    """Threads and scratch memory, for one call at a time. A forked process lacks the threads, so it never frees them."""

    def __init__(self, library: Library, threads: int):
        super().__init__(library, "engine", threads)
        self._free.detach()
        weakref.finalize(self, free_here, os.getpid(), self.library, self.pointer)


def free_here(process: int, library: Library, team: int) -> None:
    if os.getpid() == process:
        library.specdec_engine_free(team)


class Engine(local):
    """What passes of loaded models run on. Each thread has a team of its own, so several run passes at the same time, and so has
    each forked process. A thread may set ``members``, the size of its team, which is at first ``threads``. Weights are packed for
    its ``library``, by default the best.
    """

    def __init__(self, threads: int, library: Library | None = None):
        self.threads = self.members = threads
        self.library = library or kernels()
        self._teams: dict[tuple[int, int], Team] = {}  # by process and size

    @property
    def pointer(self) -> int:
        """To be used at once."""
        key = os.getpid(), self.members
        if key not in self._teams:
            self._teams[key] = Team(self.library, self.members)
        return self._teams[key].pointer


mapped = Mapped()  # weights that were read


def widened(weight: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Some rows of a matrix at a time, in float32, and the first one's number."""
    rows = max(1, WIDENED // weight.shape[1])
    for first in range(0, len(weight), rows):
        part = weight[first : first + rows]
        yield first, floats(part)
        mapped.read(address(part), part.nbytes)


class NativeLinear(Handle):
    """A linear layer's packed weights, for passes on engines of the same ``library``."""

    def __init__(
        self,
        weight: np.ndarray,
        bias: np.ndarray | None,
        dtype: str,
        library: Library | None = None,
        scales: np.ndarray | None = None,
    ):
        """Pack ``weight`` (O, I) in ``dtype``, one of `KINDS`; ``bias`` (O,) or None. ``scales`` (O, I / `GROUP`) of `GROUPS` are
        by default those of the least rounding errors. Raises ValueError for other shapes, and for more than `MOST_INPUTS`."""
        weight = array_of(weight)
        if weight.ndim != 2 or weight.shape[1] % TILE or (bias is not None and bias.shape != weight.shape[:1]):
            shapes = [None if each is None else tuple(each.shape) for each in (weight, bias)]
            raise ValueError(f"weight and bias of a linear layer are {shapes}, not (O, I) and (O,) with I a multiple of {TILE}")
        self.make(len(weight), weight.shape[1], dtype, library)
        biases, scales = (None if each is None else floats(each) for each in (bias, scales))
        for first, part in widened(weight):
            own, steps = (None if each is None else each[first : first + len(part)] for each in (biases, scales))
            self.library.specdec_pack(self.pointer, address(part), address(own), address(steps), first, len(part))

    def make(self, outputs: int, inputs: int, dtype: str, library: Library | None, packed: np.ndarray | None = None) -> None:
        """Of ``packed`` panels, which are read where they are (panels.py); None: with memory of its own, to be filled."""
        if inputs > MOST_INPUTS.get(dtype, inputs):
            raise ValueError(f"a linear layer of {inputs:,} inputs; {dtype} weights have at most {MOST_INPUTS[dtype]:,}")
        self.outputs, self.inputs, self._packed = outputs, inputs, packed
        super().__init__(library or kernels(), "linear", outputs, inputs, KINDS[dtype], address(packed))
        padded = -(-self.outputs // TILE) * TILE
        self.weight_bytes = padded * int(self.inputs * WEIGHT_BYTES[dtype] + 8)  # 8: bias and scale

    def __call__(self, engine: Engine, x: np.ndarray) -> np.ndarray:
        """(N, I) -> (N, O)"""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"a linear layer of {self.inputs} inputs was given {tuple(x.shape)}")
        x, result = floats(x), np.empty((len(x), self.outputs), np.float32)
        rows = self.library.rows("RememberRow", sentence=[0], slot=[0], length=[len(x)])
        self.library.specdec_remember(
            engine.pointer, None, self.pointer, 1, len(x), start(rows), address(x), self.outputs, address(result), 0, 0
        )
        return result


@dataclass(frozen=True)
class Norm:
    weight: np.ndarray  # (D,) float32, as its bias
    bias: np.ndarray | None
    rms: bool
    eps: float

    def scaled(self, factor: float) -> "Norm":
        """One whose results are ``factor`` times as large."""
        if factor == 1:
            return self
        return replace(self, weight=self.weight * factor, bias=None if self.bias is None else self.bias * factor)


class Plane(Handle):
    """An output layer's weights in four bits: bounds of its logits, from fewer bytes (csrc/screen.h)."""

    KINDS = ("float32", "bfloat16", "int8")
    MOST_INPUTS = 1 << 16

    def __init__(self, linear: NativeLinear, rows: int):
        """For passes of up to so many ``rows``."""
        self.linear, self.rows = linear, rows  # the kernels read `linear` as long as the plane lives
        super().__init__(linear.library, "plane", linear.pointer)


class Screen:
    """Finds the largest logits of a large int4 output layer by approximations (after SVD-softmax, Shim et al. 2017): see
    `Output::screen` in output.h."""

    SAMPLED = 1 << 14  # rows that the basis is computed from

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None, rank: int, library: Library | None = None):
        """``weight`` (V, D) and ``bias`` (V,) are the layer's; the basis has the ``rank`` leading eigenvectors of W'W."""
        weight = array_of(weight)
        few = floats(weight[:: -(-len(weight) // self.SAMPLED)])
        few = few / max(np.abs(few).max(), np.float32(1e-30))  # squares of untrusted weights could overflow
        basis = np.linalg.eigh(few.T @ few).eigenvectors[:, -rank:].T  # (R, D)
        self.basis = NativeLinear(basis, None, "int8", library)
        projected = np.concatenate([part @ basis.T for _, part in widened(weight)])  # (V, R)
        self.weights = NativeLinear(projected, bias, "int4", library)


class Projection(NamedTuple):
    """To logits, of up to ``cap``. ``gate`` is the successor network's. With a ``screen`` most logits are approximate; by a
    ``plane`` passes may be screened. ``ends``: eos, and further tokens that end an output, if any."""

    linear: NativeLinear | None = None
    cap: float | None = None
    gate: NativeLinear | None = None
    screen: Screen | None = None
    plane: Plane | None = None
    ends: Sequence[int] = ()


NO_LOGITS = Projection()


class Stack(Handle):
    """An encoder or decoder: an embedding, layers (`add_layer`), and a projection to logits."""

    def __init__(
        self,
        engine: Engine,
        side: SideSpec,
        tokens: np.ndarray,
        positions: np.ndarray | None,
        *,
        zero_start: bool = False,
        embedding_norm: Norm | None = None,
        last_norm: Norm | None = None,
        output: Projection = NO_LOGITS,
    ):
        """Of a ``side`` of a model, without its norms; those are given. ``tokens`` (V, D), ``positions`` (P, D)."""
        self.engine, self.output = engine, output
        linear, cap, gate, screen, plane, ends = output
        # Passes read them: tokens as they are stored, so that a mapped file's rows are read as they are needed.
        tokens = np.ascontiguousarray(array_of(tokens))
        tokens = tokens if tokens.dtype.name in TABLES else floats(tokens)
        positions = None if positions is None else floats(positions)
        self.tables = [tokens, positions]
        self.width, self.vocabulary = side.width, linear.outputs if linear else 0
        self.linears: list[NativeLinear] = []  # of the layers
        attention, embedding, listed = side.attention, side.embedding, integers(ends)
        call = engine.library.structs["StackCall"](
            width=side.width,
            heads=attention.heads,
            key_heads=side.key_heads,
            head_width=side.head_width,
            activation=ACTIVATIONS[side.feed_forward.activation],
            norms=NORMS[side.norms],
            merged=attention.merged,
            scale=attention.scale or 0,
            cap=attention.cap or 0,
            tokens=address(tokens),
            kind=TABLES[tokens.dtype.name],
            embedding_scale=embedding.scale,
            positions=address(positions),
            first=embedding.offset or 0,
            last=0 if positions is None else len(positions) - 1,
            zero_start=zero_start,
            projection=linear and linear.pointer,
            gate=gate and gate.pointer,
            basis=screen and screen.basis.pointer,
            screen=screen and screen.weights.pointer,
            plane=plane and plane.pointer,
            logits_cap=cap or 0,
            ends=start(listed),
            ends_count=len(listed),
        )
        set_norm(call.embedding_norm, embedding_norm)
        set_norm(call.last_norm, last_norm)
        super().__init__(engine.library, "stack", byref(call))

    def add_layer(
        self,
        linears: Mapping[str, NativeLinear],
        norms: Mapping[str, Norm],
        relative: np.ndarray | None,
        rotation: np.ndarray | None,
        local: Local | None,
        entries: int,
    ) -> None:
        """Append a layer, its parts by their names in `LayerCall`: of ``linears`` qkv has query, key and value in one.
        ``relative`` (H, 2 R + 1) is the bias of scores by distance, ``rotation`` (P, K) the rotary positions. ``entries``: the
        layer of the caches that it reads and writes."""
        self.linears += linears.values()
        self.tables.append(rotation)
        call = self.library.structs["LayerCall"](
            rotation=address(rotation),
            turned=0 if rotation is None else len(rotation),
            before=local.before if local else 0,
            after=local.after if local else 0,
            entries=entries,
            **{name: linear.pointer for name, linear in linears.items()},
        )
        for name, norm in norms.items():
            set_norm(getattr(call, name), norm)
        if relative is not None:
            relative = floats(relative)
            call.relative, call.reach = address(relative), relative.shape[1] // 2
        self.library.specdec_layer(self.pointer, byref(call))


def set_norm(given: ctypes.Structure, norm: Norm | None) -> None:
    """Describe a norm in a call, which copies it."""
    if norm is not None:
        given.weight, given.bias, given.eps, given.rms = address(norm.weight), address(norm.bias), norm.eps, norm.rms
