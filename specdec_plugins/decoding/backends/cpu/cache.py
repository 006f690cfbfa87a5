"""The kernels' KV cache. R slots, T positions of capacity, W numbers per entry."""

from collections.abc import Sequence

import numpy as np

from specdec_plugins.decoding.backends.cache import GrowingCache
from specdec_plugins.decoding.backends.cpu.binding import address


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
