"""The compiled CPU kernels (``csrc/``) as Python sees them: the library, what it allocates, and arguments for its functions.

Knows nothing about roles. ``csrc/api.cpp`` says what each function computes and what its arguments are; tensors are contiguous
float32 on the CPU, and the caller keeps the memory of every address alive until the call returns.

B rows, D width, V vocabulary, O outputs, I inputs.
"""

import ctypes
import math
import os
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from threading import Lock, get_ident
from typing import Protocol

import torch
from torch import Tensor

VERSION = 15  # of the library's functions and their parameters: `specdec_version` in api.cpp
# Instruction sets that the library is compiled for, best first: see setup.py
VARIANTS: tuple[str, ...] = ("amx", "avx512", "avx2", "generic")
DTYPES = {"float32": 0, "bfloat16": 1, "int8": 2}  # how weights are held
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "swish": 3}
TILE = 32  # outputs that are computed together; all widths but the vocabulary's are multiples of it

Pair = tuple[Tensor, Tensor]  # a norm's weight and bias

POINTER, NUMBER = c_void_p, c_int64
CACHES = [POINTER, NUMBER, NUMBER] * 2  # cache and memory: address, numbers from layer to layer, from slot to slot
PASS = [POINTER, POINTER, NUMBER, NUMBER, POINTER]  # engine, stack, batch, width, numbers
JUDGED = [NUMBER, NUMBER, NUMBER, *[POINTER] * 6]  # pad, eos, suppressed, tau; judged, scores; sampling, repeats
TABLES = [POINTER, POINTER, NUMBER, *[POINTER] * 3]  # successor network's tokens and outs, candidates; to; sampling, confidence
MADE = {
    "engine": [c_int],
    "linear": [POINTER, POINTER, c_int, c_int, c_int],
    "stack": [c_int, c_int, c_int, c_int, c_int, POINTER, c_float, POINTER, c_int, c_int, POINTER, POINTER, POINTER],
}
CALLED = {
    "layer": [POINTER, POINTER, POINTER],
    "encode": [*PASS, POINTER],
    "remember": [*PASS, POINTER, NUMBER, POINTER, NUMBER, NUMBER],
    "read": [*PASS, *CACHES, *[POINTER] * 6, NUMBER],
    "read_tree": [*PASS, *CACHES, *[POINTER] * 4, NUMBER],
    "verify": [*PASS, *CACHES, POINTER, *JUDGED],
    "judge": [POINTER, POINTER, NUMBER, NUMBER, NUMBER, POINTER, *JUDGED],
    "choose": [POINTER, POINTER, *[NUMBER] * 5, POINTER, POINTER, NUMBER, *TABLES],
    "propose": [*PASS, *CACHES, *[POINTER] * 4, NUMBER, NUMBER, *TABLES],
    "attend": [NUMBER, NUMBER, NUMBER, c_float, POINTER, POINTER, NUMBER, POINTER, POINTER],
    "heads": [POINTER, POINTER, NUMBER, NUMBER, POINTER, POINTER, c_float, POINTER, POINTER],
    "begin": [*[POINTER] * 4, NUMBER, POINTER, NUMBER, NUMBER, POINTER],
    "draft": [*PASS, NUMBER, POINTER, NUMBER, POINTER, NUMBER, NUMBER, POINTER, POINTER],
    "noise": [*[NUMBER] * 5, POINTER, POINTER],
    "warp": [POINTER, POINTER, NUMBER, POINTER, NUMBER, POINTER],
    "decode": [POINTER, POINTER],
}


class Caches(ctypes.Structure):
    """`Caches` in loop.h: the layouts of a model's `KVCache`s of target and source, and the target positions of a slot."""

    _fields_ = [
        (name, NUMBER) for name in ("cache", "cache_layer", "cache_slot", "memory", "memory_layer", "memory_slot", "positions")
    ]


class VisiblePositions(ctypes.Structure):
    """`Selection` in batch.h, which says what the fields are. Addresses are given as numbers."""

    _fields_ = [*((name, NUMBER) for name in ("sinks", "window", "listed")), ("positions", POINTER)]


class Sampling(ctypes.Structure):
    """`Sampling` in sample.h, which says what the fields are. Addresses are given as numbers."""

    _fields_ = [
        *((name, POINTER) for name in ("options", "numbers", "token_ids", "tokens", "probabilities")),
        *((name, NUMBER) for name in ("width", "candidates")),
    ]  # fmt: skip


class Decoding(ctypes.Structure):
    """`Decoding` in loop.h, which says what the fields are. Addresses are given as numbers."""

    _fields_ = [
        ("verifier", POINTER), ("drafter", POINTER), ("verifying", Caches), ("drafting", Caches),
        *((name, POINTER) for name in ("logits", "drafter_logits", "gates", "tokens", "outs")), ("candidates", NUMBER),
        ("token_ids", POINTER), *((name, NUMBER) for name in ("drafter_pad", "drafter_eos", "drafter_positions")),
        *((name, NUMBER) for name in ("pad", "eos", "mask", "suppressed_count")),
        ("suppressed", POINTER), *((name, NUMBER) for name in ("batch", "longest", "steps")),
        *((name, POINTER) for name in ("numbers", "tau", "last_scores")), ("verifier_gate", c_double), ("drafter_gate", c_double),
        *((name, POINTER) for name in ("sampling", "repeats", "read", "heads", "embeddings")),
        ("scale", c_double), ("heads_length", NUMBER),
        *((name, POINTER) for name in ("states", "features", "vectors", "record", "scores", "seconds")),
        ("taken", NUMBER),
    ]  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """The kernels for the best instruction set that this CPU supports; None if none were compiled.

    Raises RuntimeError for a library that was compiled from other sources than this file belongs to.
    """
    for variant in VARIANTS:
        for path in Path(__file__).parent.glob(f"_kernels_{variant}.*"):
            found = ctypes.CDLL(str(path))
            if not hasattr(found, "specdec_version") or found.specdec_version() != VERSION:
                raise RuntimeError(f"{path.name} is not of this version of the sources: install the package again to compile it")
            if found.specdec_supported():
                declare(found)
                return found
    return None


def declare(found: ctypes.CDLL) -> None:
    """Tell ctypes the functions' parameters and results."""
    for name, parameters in MADE.items():
        make, free = getattr(found, f"specdec_{name}"), getattr(found, f"specdec_{name}_free")
        make.restype, make.argtypes, make.errcheck = POINTER, parameters, pointer_or_error
        free.restype, free.argtypes = None, [POINTER]
    for name, parameters in CALLED.items():
        function = getattr(found, f"specdec_{name}")
        function.restype, function.argtypes, function.errcheck = c_int, parameters, success_or_error


def pointer_or_error(pointer: int | None, function: Callable, arguments: tuple) -> int:
    if not pointer:
        raise MemoryError("too little memory for the weights on the CPU kernels")
    return pointer


def success_or_error(status: int, function: Callable, arguments: tuple) -> int:
    if status:
        raise MemoryError("too little memory for a pass on the CPU kernels")
    return status


class Handle:
    """Something that the library allocated: freed when this object is."""

    def __init__(self, kind: str, *arguments):
        """Call the library's function that makes a ``kind``. Raises MemoryError."""
        made = library()
        assert made is not None, "no kernels were compiled for this machine"
        self.library = made
        pointer: int = getattr(made, f"specdec_{kind}")(*arguments)
        self.pointer = pointer
        self._free = weakref.finalize(self, getattr(made, f"specdec_{kind}_free"), pointer)


class Slotted(Protocol):
    """What a session keeps of its rows."""

    slots: list[int]  # one a row
    user: int  # the thread that last asked for a pass


class Engine(Handle):
    """Threads and scratch memory, for one call at a time.

    The thread that has rows in flight owns it: two threads would overwrite each other's results. In a forked process, which lacks
    the other threads, it starts new ones at the first call. ``states`` are those of its models.
    """

    def __init__(self, threads: int):
        self.threads, self._owner, self._claiming = threads, 0, Lock()
        self.states: weakref.WeakSet[Slotted] = weakref.WeakSet()
        super().__init__("engine", threads)
        watch_forks().add(self)

    @property
    def pointer(self) -> int:
        """For a call at once."""
        if self._owner != get_ident():  # as `claim`, without a call: this is in every pass
            self.claim()
        return self._pointer

    @pointer.setter
    def pointer(self, pointer: int) -> None:
        self._pointer = pointer

    def claim(self) -> int:
        """Own the engine; returns this thread's number. Raises RuntimeError if another thread has rows in flight."""
        if self._owner == get_ident():
            return self._owner
        with self._claiming:
            in_flight = any(state.slots and state.user == self._owner for state in self.states)
            if in_flight and self._owner in sys._current_frames():
                raise RuntimeError(
                    "two threads decode with one loaded model at the same time: let one thread own it, or load two"
                )
            self._owner = get_ident()
            if not self._pointer:
                super().__init__("engine", self.threads)
            return self._owner

    def forget(self) -> None:
        """After a fork, drop what the library made without freeing it: that would wait for threads that are not there."""
        self._free.detach()
        self._owner, self._pointer, self._claiming = 0, 0, Lock()


@cache
def watch_forks() -> "weakref.WeakSet[Engine]":
    """The engines that a forked process forgets."""
    engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def forget() -> None:
        for engine in engines:
            engine.forget()

    os.register_at_fork(after_in_child=forget)
    return engines


class NativeLinear(Handle):
    """A linear layer's weights, packed."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: str):
        """``weight`` (O, I) to be held in ``dtype``, one of `DTYPES`; ``bias`` (O,) or None. Other shapes are a ValueError."""
        if weight.dim() != 2 or weight.size(1) % TILE or (bias is not None and bias.shape != weight.shape[:1]):
            shapes = [None if each is None else tuple(each.shape) for each in (weight, bias)]
            raise ValueError(f"a linear layer of weight and bias {shapes}: they are (O, I) and (O,), I a multiple of {TILE}")
        self.outputs, self.inputs = weight.shape
        sources = floats(weight), None if bias is None else floats(bias)  # the library copies them
        super().__init__("linear", *map(address, sources), self.outputs, self.inputs, DTYPES[dtype])
        padded = -(-self.outputs // TILE) * TILE
        self.weight_bytes = padded * (self.inputs * WEIGHT_BYTES[dtype] + 12)  # 12: bias, scale and offset

    def __call__(self, engine: Engine, x: Tensor) -> Tensor:
        """(N, I) -> (N, O)"""
        if x.dim() != 2 or x.size(1) != self.inputs:
            raise ValueError(f"a linear layer of {self.inputs} inputs was given {tuple(x.shape)}")
        x, result = floats(x), torch.empty(len(x), self.outputs)
        numbers = integers([0], [0], [len(x)])  # one sentence, in slot 0
        self.library.specdec_remember(
            engine.pointer, self.pointer, 1, len(x), start(numbers), address(x), self.outputs, address(result), 0, 0
        )
        return result


class Stack(Handle):
    """An encoder or decoder: an embedding, layers (`add_layer`), and a projection to logits."""

    def __init__(
        self, engine: Engine, tokens: Tensor, positions: Tensor, *, heads: int, activation: str, prenorm: bool,
        scale: float = 1.0, offset: int = 0, zero_start: bool = False, embedding_norm: Pair | None = None,
        last_norm: Pair | None = None, projection: NativeLinear | None = None, gate: NativeLinear | None = None,
    ):  # fmt: skip
        """``tokens`` (V, D) are multiplied by ``scale``; row ``offset`` of ``positions`` (positions, D) belongs to position 0,
        whose token embedding is zero with ``zero_start``. ``gate`` is the successor network's. Norms that are None are left out.
        """
        self.engine, self.projection, self.gate = engine, projection, gate
        self.tables = floats(tokens), floats(positions)  # the library reads them in every pass
        self.width, self.vocabulary = tokens.size(1), projection.outputs if projection else 0
        self.layers: list[list[NativeLinear | None]] = []
        norms = pairs(embedding_norm, last_norm)
        super().__init__(
            "stack", self.width, heads, ACTIVATIONS[activation], prenorm, zero_start, address(self.tables[0]), scale,
            address(self.tables[1]), offset, positions.size(0) - 1, addresses(norms), projection and projection.pointer,
            gate and gate.pointer,
        )  # fmt: skip

    def add_layer(self, linears: Sequence[NativeLinear | None], norms: Sequence[Pair | None]) -> None:
        """Append a layer. ``linears``: query, key and value in one (3 D, D), out, cross query, cross out, fc1, fc2; ``norms``: of
        self-attention, cross-attention, feed-forward. What belongs to cross-attention is None in an encoder.
        """
        self.layers.append(list(linears))
        given = pairs(*norms)  # the library copies them
        handles = pointers(None if each is None else each.pointer for each in linears)
        self.library.specdec_layer(self.pointer, handles, addresses(given))


VIEWS = 1024  # shapes that a buffer remembers: long sources and outputs have ever new ones


class Buffer:
    """Reused float32 memory for results that are read before the next pass: allocating them costs more than a pass."""

    def __init__(self):
        self.memory = torch.empty(0)
        self.views: dict[tuple[int, ...], tuple[Tensor, int]] = {}

    def view(self, *shape: int) -> tuple[Tensor, int]:
        """A tensor of that shape on the memory, uninitialised, and its address."""
        if shape not in self.views:
            if len(self.views) >= VIEWS:
                self.views.clear()
            size = math.prod(shape)
            if self.memory.numel() < size:
                self.memory = torch.empty(2 * size)
                self.views.clear()
            self.views[shape] = self.memory[:size].view(shape), self.memory.data_ptr()
        return self.views[shape]


def integers(*parts: Iterable[int]) -> array:
    """One int64 array of all parts, one after the other: making several would cost more than their few numbers do."""
    return array("q", [*chain.from_iterable(parts)])


def start(numbers: array) -> int:
    """The address of an array's first number; valid as long as the array is."""
    return numbers.buffer_info()[0]


def starts(rows: Sequence[Sequence[int]]) -> Iterable[int]:
    """(B + 1) where each row begins if they are stored one after the other, and the end of the last."""
    return accumulate(map(len, rows), initial=0)


def floats(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and in float32."""
    return tensor.detach().float().contiguous()


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def pairs(*norms: Pair | None) -> list[Tensor | None]:
    """Weight and bias of each norm, or None twice."""
    return [floats(each) if each is not None else None for norm in norms for each in norm or (None, None)]


def addresses(tensors: Iterable[Tensor | None]) -> ctypes.Array:
    """A C array of the tensors' addresses; valid as long as the tensors are."""
    return pointers(map(address, tensors))


def pointers(values: Iterable[int | None]) -> ctypes.Array:
    """A C array of pointers."""
    values = list(values)
    return (c_void_p * len(values))(*map(c_void_p, values))
