"""NumPy arrays, as models' files are read into, as PyTorch's tensors."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.formats.arrays import Lazy


def tensor(array: np.ndarray | Lazy | Tensor) -> Tensor:
    """A tensor itself, or a view of an array; of one that may not be written to, a copy, as tensors are writable."""
    if isinstance(array, Tensor):
        return array
    if isinstance(array, Lazy):
        array = array.read()
    writable = array if array.flags.writeable else array.copy()
    if array.dtype.isbuiltin == 2:  # registered by ml_dtypes, as bfloat16
        return torch.from_numpy(writable.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(writable)


def tensors(arrays: Mapping[str, np.ndarray | Lazy | Tensor]) -> dict[str, Tensor]:
    """`tensor` of each; one array is one tensor."""
    first: dict[int, Tensor] = {}
    return {name: first.setdefault(id(each), tensor(each)) for name, each in arrays.items()}
