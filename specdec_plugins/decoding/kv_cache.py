"""Keys and values of the sentences in flight, addressed by row and absolute position.

Knows nothing about what is cached. A query at position p may see the positions up to p; so a refused token's entry is
hidden at once and overwritten later, rows stand at different lengths, and nothing is cropped, shifted or padded.

L layers, R rows of capacity, B rows in use, T positions of capacity, Q positions written, W numbers an entry.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from .values import move_rows


# What makes the entries (L, N, S, W) of some of the sentences that were admitted together.
Remember = Callable[["list[int] | slice"], Tensor]


class KVCache:
    """(L, R, T, W) numbers; the first rows are in use, in the order of the batch. Grows along T as positions are written."""

    def __init__(self, layers: int, rows: int, width: int, like: Tensor):
        # Zeros, not whatever memory held: an entry that a mask hides is still multiplied by its weight 0.
        self.data = like.new_zeros(layers, rows, 0, width)
        self.used = 0  # positions that anybody asked for
        self._locate()

    def _locate(self) -> None:
        """Note where the data is: to ask PyTorch in every pass takes the CPU kernels as long as a tenth of a pass."""
        self.capacity = self.data.size(2)
        self.layout = (self.data.data_ptr(), *self.data.stride()[:2])  # address; numbers from layer to layer, row to row

    @cached_property
    def _row(self) -> Tensor:
        """(R, 1) row numbers."""
        return torch.arange(self.data.size(1), device=self.data.device)[:, None]

    def reserve(self, positions: int) -> None:
        """Make room for positions 0 .. positions-1."""
        self.used = max(self.used, positions)
        if positions > self.capacity:
            layers, rows, capacity, width = self.data.shape
            grown = self.data.new_zeros(layers, rows, max(positions, 2 * capacity, 32), width)  # so growth costs little in all
            if capacity:
                grown[:, :, :capacity] = self.data
            self.data = grown
            self._locate()

    def write(self, layer: int, positions: Tensor, entries: Tensor, start: int | None = None) -> None:
        """Store ``entries`` (B, Q, W) at ``positions`` (B, Q) of rows 0 .. B-1; ``start``, where all rows begin, if one place."""
        rows, width = positions.shape
        if start is not None:  # a plain copy, several times as fast
            self.data[layer, :rows, start : start + width] = entries
        else:
            self.data[layer][self._row[:rows], positions] = entries

    def read(self, layer: int, rows: int, positions: int) -> Tensor:
        """Entries (B, T, W) of the first ``rows`` and ``positions``; a view."""
        return self.data[layer, :rows, :positions]

    def select(self, order: list[int]) -> None:
        """The new row i is the old row ``order[i]``."""
        if self.used:
            move_rows(self.data[:, :, : self.used], order, dim=1)


class SourceMemory:
    """Cross-attention keys and values, made once a sentence: (L, R, S, W) numbers, and which positions are no padding.

    They are made when first read: a drafter that is not asked for drafts costs nothing.
    """

    def __init__(self, layers: int, rows: int, width: int, like: Tensor):
        self.cache = KVCache(layers, rows, width, like)
        self.lengths: list[int] = []  # of the rows in use
        self._due: dict[int, tuple[Remember, int]] = {}  # by row: what makes its entries, and its number there
        self._mask: tuple[Tensor | None] | None = None

    def admit(self, entries: Remember, lengths: Tensor) -> None:
        """Append rows with the entries that the function will make, of which ``lengths`` (B,) count."""
        start, more = self.rows, lengths.tolist()
        self._due |= {start + row: (entries, row) for row in range(len(more))}
        self.lengths += more
        self._mask = None

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @property
    def entries(self) -> KVCache:
        """The entries of the rows in use, and whatever stands elsewhere."""
        while self._due:
            entries = next(iter(self._due.values()))[0]
            rows = [row for row, (other, _) in self._due.items() if other is entries]
            made = entries(span([self._due.pop(row)[1] for row in rows]))
            self.cache.reserve(made.size(2))
            self.cache.data[:, span(rows), : made.size(2)] = made
        return self.cache

    def read(self, layer: int) -> Tensor:
        """Entries (B, S, W) of all rows in use; a view."""
        return self.entries.read(layer, self.rows, self.longest)

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, 1, S) added to attention scores; None where nothing is padded."""
        if self._mask is None:
            lengths = torch.tensor(self.lengths, device=self.cache.data.device)
            padding = torch.arange(self.longest, device=lengths.device) >= lengths[:, None]  # (B, S)
            self._mask = (hide(padding, self.cache.data.dtype)[:, None, None] if padding.any() else None,)
        return self._mask[0]

    def select(self, order: list[int]) -> None:
        """The new row i is the old row ``order[i]``."""
        self.cache.select(order)
        self.lengths = [self.lengths[row] for row in order]
        self._due = {new: self._due[old] for new, old in enumerate(order) if old in self._due}
        self._mask = None


def span(numbers: list[int]) -> list[int] | slice:
    """The same as an index; a slice, which copies several times as fast, where they follow each other."""
    first, last = numbers[0], numbers[-1]
    return slice(first, last + 1) if numbers == list(range(first, last + 1)) else numbers


def hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores: minus infinity where ``hidden`` (bool), else 0."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
