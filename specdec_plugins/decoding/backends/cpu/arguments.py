"""Numbers and arrays as arguments of the kernels' functions."""

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from specdec_plugins.formats.arrays import address as address_of
from specdec_plugins.formats.arrays import array as array_of


def integers(*parts: Iterable[int]) -> "array[int]":
    """One int64 array of all parts: making several costs more than copying their few numbers."""
    return array("q", [*chain.from_iterable(parts)])


def start(numbers: "array[int] | array[float]") -> int:
    """The array's address; valid as long as the array."""
    return numbers.buffer_info()[0]


def floats(values: Any) -> np.ndarray:
    """An array or tensor, contiguous and in float32."""
    return np.ascontiguousarray(array_of(values), np.float32)


def address(values: np.ndarray | None) -> Any:
    """An array's address; None for none."""
    return None if values is None else address_of(values)
