"""PyTorch's KV cache and state: row b's entries lie in slot b, where batched attention reads them.

B rows in use, Q positions written, T positions, W numbers per entry, S source positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.state import GrowingCache, Sources
from specdec_plugins.decoding.backends.torch.tensors import send
from specdec_plugins.decoding.requests import Source


class KVCache(GrowingCache):
    """In the data type and on the device of ``like``. Masks multiply hidden entries by 0, so they are zero at first."""

    data: Tensor

    def __init__(self, layers: int, width: int, like: Tensor):
        self._like = like.new_empty(0)
        super().__init__(layers, width)

    def room(self, *shape: int) -> Tensor:
        return self._like.new_zeros(shape)

    def duplicate(self, entries: Tensor) -> Tensor:
        return entries.clone()

    def _take(self, data: Tensor) -> None:
        """Cache the layout: asking PyTorch in every pass costs a tenth of a pass."""
        super()._take(data)
        self.layout = data.data_ptr(), *data.stride()[:2]  # address; numbers from layer to layer, slot to slot

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
        super().copy(moves)


def span(numbers: Sequence[int], device: torch.device) -> Tensor | slice:
    """The numbers as an index: a slice, which copies several times as fast, if consecutive. For a list PyTorch would sync."""
    first, last = numbers[0], numbers[-1]
    return slice(first, last + 1) if list(numbers) == list(range(first, last + 1)) else send(numbers, device)


def hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive attention mask: minus infinity where ``hidden`` (bool), else 0."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


class DenseState:
    """Keys and values of the target tokens (``cache``) and of the sources.

    Row b's source also lies in slot b. While rows share sources (``shared``), each pass gathers their entries instead.
    """

    def __init__(self, cache: KVCache, sources: Sources):
        self.cache, self.sources = cache, sources
        self.held: list[int] = []
        self.shared = False
        self._mask: tuple[Tensor | None] | None = None

    @property
    def rows(self) -> int:
        return len(self.held)

    def admit(self, source: Source) -> None:
        self.sources.admit(source)
        self._changed([*self.held, *[0] * len(source.sizes)])

    def _changed(self, held: list[int]) -> None:
        self.held, self.shared, self._mask = held, not self.sources.compact(), None

    def encode(self) -> None:
        self.sources.encode()

    @torch.inference_mode()
    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep(range(self.rows), roots, paths)

    def select(self, order: list[int]) -> None:
        self.cache.copy([(old, new, self.held[old]) for new, old in enumerate(order) if new != old])
        self.sources.select(order)
        self._changed([self.held[row] for row in order])

    def read_sources(self, layer: int) -> Tensor:
        """(B, S, W) entries of the rows' sources; a view unless rows share sources."""
        sources = self.sources
        cache: KVCache = sources.cache
        if self.shared:
            return cache.pick(layer, send(sources.slots, cache.data.device), sources.longest)
        return cache.read(layer, self.rows, sources.longest)

    @property
    def source_mask(self) -> Tensor | None:
        """(B, 1, 1, S), additive; None if no source is padded."""
        if self._mask is None:
            self._mask = (None,)
            sizes, longest, like = self.sources.lengths, self.sources.longest, self.sources.cache.data
            if min(sizes, default=0) < longest:
                padding = torch.arange(longest, device=like.device) >= send(sizes, like.device)[:, None]  # (B, S)
                self._mask = (hide(padding, like.dtype)[:, None, None],)
        return self._mask[0]
