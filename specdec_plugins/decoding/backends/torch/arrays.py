"""Tensors of NumPy arrays, in the same memory."""

import numpy as np
import torch
from torch import Tensor


def tensor(array: np.ndarray | Tensor) -> Tensor:
    """A tensor of an array; a tensor as it is."""
    if isinstance(array, Tensor):
        return array
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
