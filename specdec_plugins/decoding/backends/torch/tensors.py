"""Tensors of what the host has.

B rows, S source positions, T target positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source


def send(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device | str) -> Tensor:
    """Numbers as an int64 tensor on a device, without waiting for the device's earlier work."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor (B, ...) padded with zeros to (rows, ...)."""
    return tensor if len(tensor) == rows else torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


def source_tokens(source: Source) -> Tensor:
    """(B, S) int64, padded on the right."""
    return source.made_by(_padded)


def _padded(source: Source) -> Tensor:
    width, pad = source.longest, source.symbols.pad
    return send([[*row, *[pad] * (width - len(row))] for row in source.sentences], source.device)


def prefix_tokens(prefix: Prefix) -> tuple[Tensor, Tensor]:
    """(B, T) int64, the start token and each row's output, padded on the right; and (B,) int64, the outputs' lengths."""
    start, pad, longest = prefix.symbols.start, prefix.symbols.pad, prefix.longest
    rows = [[start, *output, *[pad] * (longest - len(output))] for output in prefix.outputs]
    return send(rows, prefix.device), send(list(map(len, prefix.outputs)), prefix.device)


def mark(device: str) -> torch.cuda.Event:
    """An event after the device's work so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
