"""What both backends' states have in common: a KV cache, addressed by slot and absolute position, and the slots of sources.

A query at position p attends to the positions up to p, so a refused token's entry is hidden at once and overwritten later, and
rows of different lengths need no cropping, shifting or padding. Forked rows share the slot of their source.

L layers, R slots of capacity, T positions of capacity, W numbers per entry, S source positions.
"""

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from specdec_plugins.decoding.requests import Source
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


# Writes the cross-attention entries of a source's sentences, given by index, into slots of a cache.
Remember = Callable[[Source, Sequence[int], Any, Sequence[int]], None]


class Slots:
    """Reference-counted slots; the lowest free one is taken first. Slots 0 .. ``taken``-1 are in use at the start."""

    def __init__(self, taken: int = 0) -> None:
        self.users: dict[int, int] = dict.fromkeys(range(taken), 1)
        self._free: list[int] = []
        self.bound = taken  # one more than the highest slot ever taken

    def take(self) -> int:
        """A free slot, with one user."""
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot, self.bound = self.bound, self.bound + 1
        self.users[slot] = 1
        return slot

    def recount(self, users: Iterable[int]) -> Set[int]:
        """From now on ``users`` name the slot of each user. Returns the slots that are free now."""
        counts = Counter(users)
        free = self.users.keys() - counts.keys()
        for slot in free:
            heapq.heappush(self._free, slot)
        self.users = counts
        return free

    def release(self, slot: int) -> bool:
        """Drop one user. Returns whether the slot is now free."""
        self.users[slot] -= 1
        if self.users[slot]:
            return False
        del self.users[slot]
        heapq.heappush(self._free, slot)
        return True


class Sources:
    """Keys and values of each row's source, encoded when first read."""

    def __init__(self, cache: Any, remember: Remember):
        self.cache, self._remember = cache, remember
        self.slots: list[int] = []  # by row
        self.lengths: list[int] = []  # by row
        self._slots = Slots()
        self._due: dict[int, tuple[Source, int]] = {}  # slots to encode: their source, and the index in it

    @property
    def longest(self) -> int:
        """S"""
        return max(self.lengths, default=0)

    def admit(self, source: Source) -> None:
        """Append one row per sentence."""
        for number, length in enumerate(source.sizes):
            slot = self._slots.take()
            self._due[slot] = source, number
            self.slots.append(slot)
            self.lengths.append(length)

    def encode(self) -> None:
        """Encode what was not encoded yet."""
        while self._due:  # all sentences of a source together
            source = next(iter(self._due.values()))[0]
            slots = [slot for slot, (other, _) in self._due.items() if other is source]
            self._remember(source, [self._due.pop(slot)[1] for slot in slots], self.cache, slots)

    def select(self, order: Sequence[int]) -> None:
        """See `State.select`. No entry is copied or moved."""
        self.slots, self.lengths = [*map(self.slots.__getitem__, order)], [*map(self.lengths.__getitem__, order)]
        for slot in self._slots.recount(self.slots):
            self._due.pop(slot, None)

    def compact(self) -> bool:
        """Move row b's source to slot b, unless rows share sources. Returns whether all are there."""
        rows = len(self.slots)
        if self.slots == [*range(rows)]:
            return True
        if len(set(self.slots)) < rows:
            return False
        encoded = [(old, new, self.lengths[new]) for new, old in enumerate(self.slots) if old not in self._due]
        self.cache.copy([move for move in encoded if move[0] != move[1]])
        self._due = {new: self._due[old] for new, old in enumerate(self.slots) if old in self._due}
        self.slots, self._slots = [*range(rows)], Slots(rows)
        return True
