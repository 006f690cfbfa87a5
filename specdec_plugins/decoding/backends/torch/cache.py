"""The KV cache, addressed by slot and absolute position.

A query at position p attends to the positions up to p, so a refused token's entry is hidden at once and overwritten later, and
rows of different lengths need no cropping, shifting or padding.

L layers, R slots of capacity, B rows in use, T positions of capacity, Q positions written, W numbers per entry.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.tensors import send


class KVCache:
    """(L, R, T, W), growing along R and T. ``zeroed`` is for backends that mask: they multiply hidden entries by 0."""

    def __init__(self, layers: int, width: int, like: Tensor, zeroed: bool = True):
        self.data = like.new_zeros(layers, 0, 0, width)
        self.zeroed = zeroed
        self._locate()

    def _locate(self) -> None:
        """Cache what changes only when the cache grows: asking PyTorch in every pass costs a tenth of a pass."""
        self.rows, self.capacity = self.data.shape[1:3]
        self.layout = (self.data.data_ptr(), *self.data.stride()[:2])  # address; numbers from layer to layer, slot to slot

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for so many slots and positions."""
        if rows > self.rows or positions > self.capacity:
            # Positions at least double, so that growth is amortised; a batch mostly asks for all its slots at once.
            longer = max(positions, 2 * self.capacity, 32) if positions > self.capacity else self.capacity
            make = self.data.new_zeros if self.zeroed else self.data.new_empty
            grown = make(self.data.size(0), max(rows, self.rows), longer, self.data.size(3))
            grown[:, : self.rows, : self.capacity] = self.data
            self.data = grown
            self._locate()

    def write(self, layer: int, slots: Tensor, positions: Tensor, entries: Tensor) -> None:
        """Store ``entries`` (B, Q, W) at ``positions`` (B, Q) of ``slots`` (B, 1)."""
        self.data[layer][slots, positions] = entries

    @torch.inference_mode()
    def put(self, rows: Sequence[int], entries: Tensor, layer: int = 0) -> None:
        """Store ``entries`` (L', N, Q, W) of the layers from ``layer`` on at the first positions of N slots."""
        self.reserve(max(rows) + 1, entries.size(2))
        self.data[layer : layer + len(entries), span(rows, entries.device), : entries.size(2)] = entries

    def read(self, layer: int, rows: int, positions: int) -> Tensor:
        """Entries (B, T, W) of the first ``rows`` and ``positions``; a view."""
        return self.data[layer, :rows, :positions]

    def pick(self, layer: int, slots: Tensor, positions: int) -> Tensor:
        """Entries (B, T, W) of ``slots`` (B,) and the first ``positions``; a copy."""
        return self.data[layer, :, :positions].index_select(0, slots)

    def gather(self, layer: int, slots: Tensor, positions: Tensor) -> Tensor:
        """Entries (B, N, W) at ``positions`` (B, N) of ``slots`` (B, 1); a copy."""
        return self.data[layer][slots, positions]

    def keep(self, slots: Sequence[int], roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """In ``slots[b]`` move the entries at ``roots[b] + 1 + node``, for the nodes of ``paths[b]``, to follow ``roots[b]``."""
        moves = [
            (slot, root + 1 + node, root + 1 + depth)
            for slot, root, path in zip(slots, roots, paths)
            for depth, node in enumerate(path)
            if node != depth
        ]
        if moves:
            slot, old, new = send(list(zip(*moves)), self.data.device)
            self.data[:, slot, new] = self.data[:, slot, old]  # all are read before any is written

    @torch.inference_mode()
    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first positions of slots into others as if at once: ``moves`` are (old slot, new slot, positions)."""
        moves = [move for move in moves if move[2]]
        written = {new for _, new, _ in moves}
        self.reserve(max(written, default=-1) + 1, 0)
        read = [self.data[:, old, :positions] for old, _, positions in moves]
        read = [each.clone() if old in written else each for each, (old, _, _) in zip(read, moves)]
        for each, (_, new, positions) in zip(read, moves):
            self.data[:, new, :positions] = each


def span(numbers: Sequence[int], device: torch.device) -> Tensor | slice:
    """The numbers as an index: a slice, which copies several times as fast, if consecutive. For a list PyTorch would sync."""
    first, last = numbers[0], numbers[-1]
    return slice(first, last + 1) if list(numbers) == list(range(first, last + 1)) else send(numbers, device)


def hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive attention mask: minus infinity where ``hidden`` (bool), else 0."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
