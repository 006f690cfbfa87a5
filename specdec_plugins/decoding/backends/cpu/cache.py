"""The kernels' KV cache, addressed by slot and absolute position.

A query at position p attends to the positions up to p, so a refused token's entry is hidden at once and overwritten later, and
rows of different lengths need no cropping, shifting or padding.

L layers, R slots of capacity, T positions of capacity, W numbers per entry.
"""

from collections.abc import Sequence

import numpy as np

from specdec_plugins.decoding.backends.cpu.binding import address


class KVCache:
    """(L, R, T, W) float32, growing along R and T. Nothing reads what was not written."""

    def __init__(self, layers: int, width: int):
        self.data = np.empty((layers, 0, 0, width), np.float32)
        self._locate()

    def _locate(self) -> None:
        """Cache what changes only when the cache grows."""
        self.rows, self.capacity = self.data.shape[1:3]
        # Address; numbers from layer to layer, slot to slot.
        self.layout = address(self.data), *(stride // self.data.itemsize for stride in self.data.strides[:2])

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for so many slots and positions."""
        if rows > self.rows or positions > self.capacity:
            # Positions at least double, so that growth is amortised; a batch mostly asks for all its slots at once.
            longer = max(positions, 2 * self.capacity, 32) if positions > self.capacity else self.capacity
            layers, width = len(self.data), self.data.shape[3]
            grown = np.empty((layers, max(rows, self.rows), longer, width), np.float32)
            grown[:, : self.rows, : self.capacity] = self.data
            self.data = grown
            self._locate()

    def put(self, slots: Sequence[int], entries: np.ndarray, layer: int) -> None:
        """Store ``entries`` (N, T', W) of a layer at the first positions of N slots."""
        self.reserve(max(slots) + 1, entries.shape[1])
        self.data[layer, slots, : entries.shape[1]] = entries

    def keep(self, slots: Sequence[int], roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """In ``slots[b]`` move the entries at ``roots[b] + 1 + node``, for the nodes of ``paths[b]``, to follow ``roots[b]``."""
        for slot, root, path in zip(slots, roots, paths):
            if list(path) != [*range(len(path))]:
                self.data[:, slot, root + 1 : root + 1 + len(path)] = self.data[:, slot, [root + 1 + node for node in path]]

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first positions of slots into others as if at once: ``moves`` are (old slot, new slot, positions)."""
        moves = [move for move in moves if move[2]]
        written = {new for _, new, _ in moves}
        self.reserve(max(written, default=-1) + 1, 0)
        read = [self.data[:, old, :positions] for old, _, positions in moves]
        read = [each.copy() if old in written else each for each, (old, _, _) in zip(read, moves)]
        for each, (_, new, positions) in zip(read, moves):
            self.data[:, new, :positions] = each
