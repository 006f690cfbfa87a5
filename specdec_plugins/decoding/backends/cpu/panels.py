"""Linear layers as stored: their packed panels (csrc/weights.h), the same for all instruction sets. O outputs, I inputs."""

import ctypes

import numpy as np

from specdec_plugins.decoding.backends.cpu.binding import (
    GROUP,
    GROUPS,
    TILE,
    WEIGHT_BYTES,
    NativeLinear,
    integers,
    start,
)
from specdec_plugins.decoding.compiled import Library
from specdec_plugins.formats.arrays import BFLOAT16, all_finite

TRAILER = 8 * TILE  # bytes of a panel's biases and scales
GROUP_WEIGHTS = GROUP * TILE // 2  # bytes of a group's weights, before their scales
COPIED = 1 << 20  # bytes of panels up to which they are copied: memory of our own has huge pages


def linear_of(panels: np.ndarray, outputs: int, inputs: int, dtype: str, library: Library | None = None) -> NativeLinear:
    """The layer of ``panels`` (bytes,), untrusted, in one of `KINDS`. They are read where they are, perhaps in a mapped file; few
    are copied. Raises ValueError saying what is wrong with them."""
    if fault := panels_fault(panels, outputs, inputs, dtype):
        raise ValueError(fault)
    made, copied = NativeLinear.__new__(NativeLinear), panels.nbytes <= COPIED
    made.make(outputs, inputs, dtype, library, None if copied else panels)
    if copied:
        _memory(made)[:] = panels
    return made


def panels_of(linear: NativeLinear) -> np.ndarray:
    """A copy of a layer's panels (bytes,)."""
    return _memory(linear).copy()


def _memory(linear: NativeLinear) -> np.ndarray:
    """As long as the layer lives."""
    size = integers([0])
    first = linear.library.specdec_panels(linear.pointer, start(size))
    return np.ctypeslib.as_array((ctypes.c_uint8 * size[0]).from_address(first))


def panels_fault(panels: np.ndarray, outputs: int, inputs: int, dtype: str) -> str | None:
    """Why these cannot be a layer's; None if they can. Any weights are safe. Biases and scales must be finite, and int8's scales
    not negative, as the screen's bounds count on."""
    each = TILE * int(inputs * WEIGHT_BYTES[dtype]) + TRAILER
    size = -(-outputs // TILE) * each
    if panels.dtype != np.uint8 or panels.shape != (size,):
        return f"is {panels.dtype} {panels.shape}, not uint8 ({size},)"
    rows = panels.reshape(-1, each)
    if dtype == GROUPS:
        groups = rows[:, :-TRAILER].reshape(len(rows), -1, GROUP_WEIGHTS + 2 * TILE)
        if not all_finite(groups[..., GROUP_WEIGHTS:].copy().view(BFLOAT16)):
            return "has scales that are not finite"
    numbers = rows[:, -TRAILER:].copy().view(np.float32)  # biases, then scales
    if not all_finite(numbers):
        return "has biases or scales that are not finite"
    return "has negative scales" if dtype == "int8" and (numbers[:, TILE:] < 0).any() else None
