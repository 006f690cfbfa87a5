"""PyTorch's state: row b's entries lie in slot b, where batched attention reads them. B rows, S source positions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.sources import Sources
from specdec_plugins.decoding.backends.torch.cache import KVCache, hide
from specdec_plugins.decoding.backends.torch.tensors import send
from specdec_plugins.decoding.requests import Source


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
