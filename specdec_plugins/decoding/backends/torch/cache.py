"""Keys and values of the sentences in flight, addressed by row and absolute position.

Knows nothing about what is cached. A query at position p may see the positions up to p; so a refused token's entry is
hidden at once and overwritten later, rows stand at different lengths, and nothing is cropped, shifted or padded.

L layers, R rows of capacity, B rows in use, T positions of capacity, Q positions written, W numbers an entry.
"""

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from specdec_plugins.decoding.values import move_rows

# Makes the entries of some of the sentences that were admitted together: their numbers, and the rows of a cache to write them to.
Remember = Callable[[list[int], "KVCache", list[int]], None]


class KVCache:
    """(L, R, T, W) numbers. Grows along R and T as rows and positions are asked for.

    With ``scattered`` a row stays where it is, and whoever reads keeps account of that; else the first B rows are those in use.
    """

    def __init__(self, layers: int, width: int, like: Tensor, scattered: bool = False):
        self.data = like.new_zeros(layers, 0, 0, width)
        self.scattered = scattered
        self.used = 0  # positions that anybody asked for
        self._locate()

    def _locate(self) -> None:
        """Note what changes only when the cache grows: to ask PyTorch in every pass takes as long as a tenth of a pass."""
        self.rows, self.capacity = self.data.shape[1:3]
        self.row = torch.arange(self.rows, device=self.data.device)[:, None]  # (R, 1)
        self.layout = (self.data.data_ptr(), *self.data.stride()[:2])  # address; numbers from layer to layer, row to row

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for positions 0 .. positions-1 of so many rows."""
        self.used = max(self.used, positions)
        if rows > self.rows or positions > self.capacity:
            # At least doubling, so that growth costs little in all; rows are as many as a batch has from the beginning.
            longer = max(positions, 2 * self.capacity, 32) if positions > self.capacity else self.capacity
            # Zeros, not whatever memory held: an entry that a mask hides is still multiplied by its weight 0. Kernels skip it.
            make = self.data.new_empty if self.scattered else self.data.new_zeros
            grown = make(self.data.size(0), max(rows, self.rows), longer, self.data.size(3))
            grown[:, : self.rows, : self.capacity] = self.data
            self.data = grown
            self._locate()

    def write(self, layer: int, positions: Tensor, entries: Tensor) -> None:
        """Store ``entries`` (B, Q, W) at ``positions`` (B, Q) of rows 0 .. B-1."""
        self.data[layer][self.row[: len(positions)], positions] = entries

    def put(self, rows: list[int], entries: Tensor, layer: int = 0) -> None:
        """Store ``entries`` (L', N, Q, W) of some layers, from ``layer`` on, at the first positions of rows."""
        self.reserve(max(rows) + 1, entries.size(2))
        self.data[layer : layer + len(entries), span(rows), : entries.size(2)] = entries

    def read(self, layer: int, rows: int, positions: int) -> Tensor:
        """Entries (B, T, W) of the first ``rows`` and ``positions``; a view."""
        return self.data[layer, :rows, :positions]

    def select(self, order: list[int]) -> None:
        """The new row i is the old row ``order[i]``."""
        if self.used and not self.scattered:
            move_rows(self.data[:, :, : self.used], order, dim=1)


class SourceMemory:
    """Cross-attention keys and values, made once a sentence: (L, R, S, W) numbers, and which positions are no padding.

    They are made when first read: a drafter that is not asked for drafts costs nothing. If the cache is scattered, sentence b of
    the batch has its row ``slots[b]`` from then on, and the keys and values of the target side go there, too.
    """

    def __init__(self, cache: KVCache):
        self.cache = cache
        self.lengths: list[int] = []  # of the rows in use
        self.slots: list[int] = []
        self._due: dict[int, tuple[Remember, int]] = {}  # by row: what makes its entries, and its number there
        self._mask: tuple[Tensor | None] | None = None

    def admit(self, remember: Remember, lengths: list[int]) -> None:
        """Append rows with the entries that the function will make, as many as ``lengths`` says."""
        start = self.rows
        self._due |= {start + number: (remember, number) for number in range(len(lengths))}
        self.slots += [-1] * len(lengths)
        self.lengths += lengths
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
            remember = next(iter(self._due.values()))[0]
            rows = [row for row, (other, _) in self._due.items() if other is remember]
            remember([self._due.pop(row)[1] for row in rows], self.cache, self._places(rows))
        return self.cache

    def _places(self, rows: list[int]) -> list[int]:
        """Where in the cache the entries of some sentences go."""
        if self.cache.scattered:
            taken = set(self.slots)
            for row, slot in zip(rows, (slot for slot in count() if slot not in taken)):
                self.slots[row] = slot
            return [self.slots[row] for row in rows]
        return rows

    def read(self, layer: int) -> Tensor:
        """Entries (B, S, W) of all rows in use; a view. Not for scattered ones."""
        return self.entries.read(layer, self.rows, self.longest)

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, 1, S) added to attention scores; None where nothing is padded."""
        if self._mask is None:
            self._mask = (None,)
            if min(self.lengths, default=0) < self.longest:
                lengths = torch.tensor(self.lengths, device=self.cache.data.device)
                padding = torch.arange(self.longest, device=lengths.device) >= lengths[:, None]  # (B, S)
                self._mask = (hide(padding, self.cache.data.dtype)[:, None, None],)
        return self._mask[0]

    def select(self, order: list[int]) -> None:
        """The new row i is the old row ``order[i]``."""
        self.cache.select(order)
        self.slots = [self.slots[row] for row in order]
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
