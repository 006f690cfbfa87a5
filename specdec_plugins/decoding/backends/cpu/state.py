"""The kernels' KV cache and state: each row's entries lie in a numbered slot and do not move while the row lives.

R slots, T positions of capacity, W numbers per entry.
"""

from collections.abc import Sequence
from ctypes import Structure

import numpy as np

from specdec_plugins.decoding.backends.cpu.arguments import address
from specdec_plugins.decoding.backends.state import GrowingCache, Slots, Sources
from specdec_plugins.decoding.compiled import kernels
from specdec_plugins.decoding.requests import Source


class KVCache(GrowingCache):
    """In float32. Nothing reads what was not written."""

    data: np.ndarray

    def room(self, *shape: int) -> np.ndarray:
        return np.empty(shape, np.float32)

    def duplicate(self, entries: np.ndarray) -> np.ndarray:
        return entries.copy()

    def _take(self, data: np.ndarray) -> None:
        super()._take(data)
        # Address; numbers from layer to layer, slot to slot.
        self.layout = address(data), *(stride // data.itemsize for stride in data.strides[:2])

    def put(self, slots: Sequence[int], entries: np.ndarray, layer: int) -> None:
        """Store ``entries`` (N, T', W) of a layer at the first positions of N slots."""
        self.reserve(max(slots) + 1, entries.shape[1])
        self.data[layer, slots, : entries.shape[1]] = entries

    def keep(self, slots: Sequence[int], roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """In ``slots[b]`` move the entries at ``roots[b] + 1 + node``, for the nodes of ``paths[b]``, to follow ``roots[b]``."""
        for slot, root, path in zip(slots, roots, paths):
            if list(path) != [*range(len(path))]:
                self.data[:, slot, root + 1 : root + 1 + len(path)] = self.data[:, slot, [root + 1 + node for node in path]]


class SlottedState:
    """Keys and values of the target tokens (``cache``, one slot per row) and of the sources."""

    def __init__(self, cache: KVCache, sources: Sources):
        self.cache, self.sources = cache, sources
        self.targets = Slots()
        self.slots: list[int] = []  # each row's target slot
        self.held: list[int] = []
        self._caches: tuple[tuple[int, ...], Structure] | None = None  # as of the last call

    def admit(self, source: Source) -> None:
        self.sources.admit(source)
        self.slots += [self.targets.take() for _ in source.sizes]
        self.held += [0] * len(source.sizes)

    def encode(self) -> None:
        self.sources.encode()

    def caches(self) -> Structure:
        """`Caches` in calls.h. Not to be changed."""
        now = *self.cache.layout, *self.sources.cache.layout, self.cache.capacity
        if self._caches is None or self._caches[0] != now:
            self._caches = now, kernels().structs["Caches"](*now)
        return self._caches[1]

    def placed(self) -> tuple[list[int], list[int], list[int]]:
        """Each row's target slot, source slot and source length."""
        return self.slots, self.sources.slots, self.sources.lengths

    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep(self.slots, roots, paths)

    def select(self, order: list[int]) -> None:
        self.sources.select(order)
        slots = [*map(self.slots.__getitem__, order)]
        for slot in set(self.slots).difference(slots):
            self.targets.release(slot)
        if len(set(order)) < len(order):
            self._fork(order, slots)
        self.slots, self.held = slots, [*map(self.held.__getitem__, order)]

    def moved(self, order: list[int], slots: list[int], taken: Sequence[int], held: list[int]) -> None:
        """As `select`, after the kernels have forked the rows: row i, which holds ``held[i]`` positions, lies in ``slots[i]``.

        They used the slots ``taken``, all rows' among them.
        """
        sources = self.sources.slots
        if [sources[row] for row in order] != sources:
            self.sources.select(order)
        for slot in set(taken).difference(slots):
            self.targets.release(slot)
        self.slots, self.held = slots, held

    def _fork(self, order: list[int], slots: list[int]) -> None:
        """Give each repetition of a row its own slot, with a copy of the positions that the row holds."""
        forks, seen = [], set()
        for new, row in enumerate(order):
            if row in seen:
                slots[new] = self.targets.take()
                forks.append((self.slots[row], slots[new], self.held[row]))
            seen.add(row)
        self.cache.copy(forks)
