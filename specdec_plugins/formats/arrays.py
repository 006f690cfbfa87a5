"""NumPy arrays of tensors, in the same memory."""

import sys
from typing import Any

import ml_dtypes
import numpy as np


def array(tensor: Any) -> np.ndarray:
    """An array of a tensor of PyTorch's; an array as it is."""
    if isinstance(tensor, np.ndarray):
        return tensor
    tensor = tensor.detach().cpu()
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
