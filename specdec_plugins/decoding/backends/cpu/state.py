"""What the kernels' passes keep of each row: entries lie in numbered slots, and do not move while a row lives.

A row's target slot is its own. Its source slot may be shared: rows that were duplicated (samples, beams) attend to one source.
"""

import heapq
from collections.abc import Sequence

import torch

from specdec_plugins.decoding.backends.cache import Due, KVCache, Remember, write_due
from specdec_plugins.decoding.values import Source


class Slots:
    """Slot numbers with a count of their users, the lowest free one handed out first."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        """A free slot, with one user."""
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot, self._next = self._next, self._next + 1
        self.users[slot] = 1
        return slot

    def share(self, slot: int) -> int:
        """The same slot, with one more user."""
        self.users[slot] += 1
        return slot

    def release(self, slot: int) -> bool:
        """Take one user away. Returns whether it was the last one, so that the slot is free."""
        self.users[slot] -= 1
        if self.users[slot]:
            return False
        del self.users[slot]
        heapq.heappush(self._free, slot)
        return True

    @property
    def bound(self) -> int:
        """One more than the highest slot that was ever taken."""
        return self._next


class SlottedState:
    """Keys and values of the target tokens (``cache``, by target slot) and of the source (``sources``, by source slot)."""

    def __init__(self, cache: KVCache, sources: KVCache, remember: Remember):
        self.cache, self.sources, self._remember = cache, sources, remember
        self.targets, self.owners = Slots(), Slots()
        self.slots: list[int] = []  # of each row, its target slot
        self.source_slots: list[int] = []
        self.lengths: list[int] = []  # of the rows' sources
        self._due: Due = {}  # by source slot, until it is encoded

    @property
    def rows(self) -> int:
        return len(self.slots)

    def admit(self, source: Source) -> None:
        for number, length in enumerate(source.sizes):
            slot = self.owners.take()
            self._due[slot] = source, number
            self.source_slots.append(slot)
            self.slots.append(self.targets.take())
            self.lengths.append(length)

    def share(self, rows: list[int]) -> None:
        """Append rows with nothing read, whose sources are those of ``rows``."""
        self.source_slots += [self.owners.share(self.source_slots[row]) for row in rows]
        self.slots += [self.targets.take() for _ in rows]
        self.lengths += [self.lengths[row] for row in rows]

    def encode(self) -> None:
        write_due(self._due, self._remember, self.sources)

    @torch.inference_mode()
    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep(self.slots, roots, paths)

    def select(self, order: list[int]) -> None:
        staying = set(order)
        for row in range(self.rows):
            if row not in staying:
                self.targets.release(self.slots[row])
                if self.owners.release(self.source_slots[row]):
                    self._due.pop(self.source_slots[row], None)
        slots = [self.slots[row] for row in order]
        if len(staying) < len(order):
            self._copy_repeated(order, slots)
        self.slots = slots
        self.source_slots = [self.source_slots[row] for row in order]
        self.lengths = [self.lengths[row] for row in order]

    @torch.inference_mode()
    def _copy_repeated(self, order: list[int], slots: list[int]) -> None:
        """Give a row that the order names again a slot of its own, with a copy of what the first one holds."""
        named, copies = set(), {}
        for place, row in enumerate(order):
            if row in named:
                fresh = self.targets.take()
                copies[fresh], slots[place] = slots[place], fresh
                self.owners.share(self.source_slots[row])
            named.add(row)
        self.cache.copy(copies)
