"""The KV cache, addressed by slot and absolute position: what both backends' have in common.

A query at position p attends to the positions up to p, so a refused token's entry is hidden at once and overwritten later, and
rows of different lengths need no cropping, shifting or padding.

L layers, R slots of capacity, T positions of capacity, W numbers per entry.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from specdec_plugins.decoding.values import Array


class GrowingCache(ABC):
    """(L, R, T, W), growing along R and T."""

    def __init__(self, layers: int, width: int):
        self._take(self.room(layers, 0, 0, width))

    @abstractmethod
    def room(self, *shape: int) -> Array:
        """Memory for entries."""

    @abstractmethod
    def duplicate(self, entries: Array) -> Array: ...

    def _take(self, data: Array) -> None:
        self.data, (self.rows, self.capacity) = data, data.shape[1:3]

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for so many slots and positions."""
        if rows > self.rows or positions > self.capacity:
            # Positions at least double, so that growth is amortised; a batch mostly asks for all its slots at once.
            longer = max(positions, 2 * self.capacity, 32) if positions > self.capacity else self.capacity
            grown = self.room(len(self.data), max(rows, self.rows), longer, self.data.shape[3])
            grown[:, : self.rows, : self.capacity] = self.data
            self._take(grown)

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first positions of slots into others as if at once: ``moves`` are (old slot, new slot, positions)."""
        moves = [move for move in moves if move[2]]
        written = {new for _, new, _ in moves}
        self.reserve(max(written, default=-1) + 1, 0)
        read = [self.data[:, old, :positions] for old, _, positions in moves]
        read = [self.duplicate(each) if old in written else each for each, (old, _, _) in zip(read, moves)]
        for each, (_, new, positions) in zip(read, moves):
            self.data[:, new, :positions] = each
