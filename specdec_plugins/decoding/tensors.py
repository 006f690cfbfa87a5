"""Tensors of numbers from the host."""

from collections.abc import Sequence

import torch
from torch import Tensor


def send(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for the device's earlier work."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor (B, ...) padded with zeros to (rows, ...)."""
    return tensor if len(tensor) == rows else torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
