"""What PyTorch's passes keep of each row: row b's entries lie in slot b, side by side, as batched attention wants them.

B rows, S source positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.cache import Due, KVCache, Remember, hide, write_due
from specdec_plugins.decoding.values import Source, send


class DenseState:
    """Keys and values of the target tokens (``cache``) and of the source (``sources``).

    Rows are copied when they are duplicated, source entries included: batched attention reads consecutive slots.
    """

    def __init__(self, cache: KVCache, sources: KVCache, remember: Remember):
        self.cache, self.sources, self._remember = cache, sources, remember
        self.lengths: list[int] = []  # of the rows' sources
        self._due: Due = {}  # by row, until it is encoded
        self._mask: tuple[Tensor | None] | None = None

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """S"""
        return max(self.lengths, default=0)

    def admit(self, source: Source) -> None:
        start = self.rows
        self._due |= {start + number: (source, number) for number in range(len(source.sizes))}
        self.lengths += source.sizes
        self._mask = None

    def share(self, rows: list[int]) -> None:
        """Append rows with nothing read, whose sources are those of ``rows``."""
        self.encode()  # once, not in every row
        self.select([*range(self.rows), *rows])

    @torch.inference_mode()
    def encode(self) -> None:
        write_due(self._due, self._remember, self.sources)

    @torch.inference_mode()
    def keep(self, roots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep(range(self.rows), roots, paths)

    @torch.inference_mode()
    def select(self, order: list[int]) -> None:
        moves = {new: old for new, old in enumerate(order) if new != old}
        self.cache.copy(moves)
        self.sources.copy({new: old for new, old in moves.items() if old not in self._due})
        self.lengths = [self.lengths[row] for row in order]
        self._due = {new: self._due[old] for new, old in enumerate(order) if old in self._due}
        self._mask = None

    def read_sources(self, layer: int) -> Tensor:
        """(B, S, W) entries of all rows' sources; a view."""
        return self.sources.read(layer, self.rows, self.longest)

    @property
    def source_mask(self) -> Tensor | None:
        """(B, 1, 1, S) added to attention scores; None where nothing is padded."""
        if self._mask is None:
            self._mask = (None,)
            if min(self.lengths, default=0) < self.longest:
                lengths = send(self.lengths, self.sources.data.device)
                padding = torch.arange(self.longest, device=lengths.device) >= lengths[:, None]  # (B, S)
                self._mask = (hide(padding, self.sources.data.dtype)[:, None, None],)
        return self._mask[0]
