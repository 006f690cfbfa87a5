"""Linear layers as stored: their packed panels (formats/packed.py, csrc/weights.h). O outputs, I inputs."""

import ctypes

import numpy as np

from specdec_plugins.decoding.backends.cpu.arguments import integers, start
from specdec_plugins.decoding.backends.cpu.binding import GROUPS, NativeLinear
from specdec_plugins.decoding.compiled import Library
from specdec_plugins.formats.packed import fault

COPIED = 1 << 20  # bytes of panels up to which they are copied: memory of our own has huge pages


def linear_of(panels: np.ndarray, outputs: int, inputs: int, kind: str, library: Library | None = None) -> NativeLinear:
    """The layer of ``panels`` (bytes,), untrusted, in int8 or `GROUPS`. They are read where they are, perhaps in a mapped file;
    few are copied. Raises ValueError saying what is wrong with them."""
    if found := fault(panels, outputs, inputs, "int4" if kind == GROUPS else kind):
        raise ValueError(found)
    made, copied = NativeLinear.__new__(NativeLinear), panels.nbytes <= COPIED
    made.make(outputs, inputs, kind, library, None if copied else panels)
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
