"""Tensors as NumPy arrays; bfloat16 is that of `ml_dtypes`. Never imports PyTorch, whose tensors it views."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WEIGHT_DTYPES = (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64))

Arrays = Mapping[str, np.ndarray]
Tensors = dict[str, np.ndarray]  # that are being read


class Lazy:
    """Stands for an array (`read`) that takes memory and time to compute, such as that of a packed matrix (packed.py)."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def read(self) -> np.ndarray:
        """Raises ValueError saying why it cannot be computed."""
        raise NotImplementedError


def array(tensor: Any) -> np.ndarray:
    """An array itself, one that is computed now, or PyTorch's dense tensor: a view of one on the CPU, a copy of one elsewhere."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, Lazy):
        return tensor.read()
    plain, torch = tensor.detach().cpu(), sys.modules["torch"]
    own = getattr(ml_dtypes, str(plain.dtype).removeprefix("torch."), None)
    if own is not None:  # NumPy has no such type
        plain = plain.view(torch.uint16 if plain.itemsize == 2 else torch.uint8)
    values: np.ndarray = plain.numpy()
    return values if own is None else values.view(own)


def arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """`array` of each that is not lazy. Views of the same memory, as PyTorch's tied weights are, become the same object."""
    first: dict[tuple[Any, ...], np.ndarray] = {}
    views = {name: tensor if isinstance(tensor, Lazy) else array(tensor) for name, tensor in tensors.items()}
    return {
        name: each if isinstance(each, Lazy) else first.setdefault((address(each), each.shape, each.strides, each.dtype), each)
        for name, each in views.items()
    }


def address(array: np.ndarray) -> int:
    """Of the first element. (`array.ctypes` takes microseconds.)"""
    first: int = array.__array_interface__["data"][0]
    return first


def addresses(tensors: Iterable[Any]) -> list[int]:
    """Of arrays, but not of lazy ones."""
    return [address(each) for each in tensors if not isinstance(each, Lazy)]


def aligned(array: np.ndarray) -> np.ndarray:
    """The array at an aligned address: files may store it at any byte."""
    return array.copy() if address(array) % array.itemsize else array


def is_floating(array: np.ndarray) -> bool:
    """Whether its numbers are floating-point, of any width."""
    return "float" in array.dtype.name


def float16(array: np.ndarray) -> np.ndarray:
    """As PyTorch rounds, which takes float64 to float32 first; infinite beyond its range."""
    if array.dtype == np.float16:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False).astype(np.float16)


def equal(one: Any, other: Any) -> bool:
    """Whether shapes and values of arrays are, lazy ones among them, whatever their data types."""
    if one is other or one.shape != other.shape:
        return one is other
    one, other = array(one), array(other)
    if one.dtype != other.dtype:  # NumPy has no common type of float16 and bfloat16
        one, other = (each.astype(np.float32) if each.dtype == BFLOAT16 else each for each in (one, other))
    return np.array_equal(one, other)


def all_finite(part: np.ndarray) -> bool:
    """Whether all of floating-point numbers are: infinity and NaN have the largest bit patterns of either sign."""
    if not part.size:
        return True
    bits = 8 * part.itemsize
    infinity = int(np.array(np.inf, part.dtype).view(f"u{part.itemsize}"))
    negative = infinity + (1 << (bits - 1))
    return int(part.view(f"i{part.itemsize}").max()) < infinity and int(part.view(f"u{part.itemsize}").max()) < negative
