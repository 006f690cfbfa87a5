"""The pass that everything causal shares: read tokens behind those already read, and say what follows each.

B rows, Q tokens read in a pass, W of them with a prediction, S source positions, T positions in the cache, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .kv_cache import KVCache, SourceMemory, hide
from .transformer import Transformer, attention
from .values import Source


@dataclass
class ReaderState:
    """Of each row: the keys and values of the tokens already read, and of the source."""

    cache: KVCache
    memory: SourceMemory

    def select(self, order: list[int]) -> None:
        """Row i is from now on what row ``order[i]`` was; the others have left."""
        self.cache.select(order)
        self.memory.select(order)


class Reader:
    """A Transformer decoder with its cache; its encoder runs when rows are first read."""

    scattered = False  # rows of a batch lie side by side, as PyTorch wants them

    def __init__(self, model: Transformer):
        self.model = model

    def start(self, rows: int) -> ReaderState:
        """A state without rows."""
        decoder = self.model.decoder
        shape = len(decoder.layers), 2 * decoder.width, decoder.embedding.tokens, self.scattered
        return ReaderState(KVCache(*shape), SourceMemory(*shape))

    def admit(self, state: ReaderState, source: Source) -> None:
        """Append the sentences of ``source`` as rows. Their entries are made when first read."""
        state.memory.admit(lambda rows: self.model.decoder.remember(source.encoded_by(self.model.encoder)[rows]), source.lengths)

    def read(
        self, state: ReaderState, tokens: Sequence[Sequence[int]], places: Sequence[int], firsts: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(B, W, V) logits after row b's tokens from number ``firsts[b]`` on, and (B, W, R) `Successor` gates if the model has
        any; behind a row's results stands anything.

        Row b's tokens take the positions ``places[b]`` and following, and overwrite there what an earlier pass left.
        """
        decoder, cache, memory = self.model.decoder, state.cache, state.memory
        device = cache.data.device
        rows, width, wanted = len(tokens), max(map(len, tokens)), widest(tokens, firsts)
        # One transfer to the device, not three.
        table = [[place, first, *row, *[0] * (width - len(row))] for place, first, row in zip(places, firsts, tokens)]
        start, first, padded = torch.tensor(table, device=device).split([1, 1, width], 1)  # (B, 1), (B, 1), (B, Q)
        positions = start + torch.arange(width, device=device)  # (B, Q)
        seen = max(places) + width
        cache.reserve(rows, seen)
        mask = None
        if rows * width > 1:  # else the only query is at the last position, and sees everything
            later = torch.arange(seen, device=device) > positions[..., None]  # (B, Q, T)
            mask = hide(later, cache.data.dtype)[:, None]
        keep = None
        if max(firsts):
            chosen = first + torch.arange(wanted, device=device)  # (B, W)
            keep = torch.arange(rows, device=device)[:, None], chosen.clamp_(max=width - 1)

        x = decoder.embedding(padded, positions)
        for index, layer in enumerate(decoder.layers):
            kept = keep if layer is decoder.layers[-1] else None
            visible = mask if kept is None or mask is None else mask[:, 0][kept][:, None]  # (B, 1, W, T)

            def attend(queries: Tensor, entries: Tensor, index: int = index, visible: Tensor | None = visible) -> Tensor:
                cache.write(index, positions, entries, places[0] if rows == 1 else None)
                return attention(queries, cache.read(index, rows, seen), decoder.heads, visible)

            def cross_attend(queries: Tensor, index: int = index) -> Tensor:
                return attention(queries, memory.read(index), decoder.heads, memory.mask)

            x = layer(x, attend, cross_attend, kept)
        return decoder.logits(x), decoder.successor.gate(decoder.features(x)) if decoder.successor else None


def widest(tokens: Sequence[Sequence[int]], firsts: Sequence[int]) -> int:
    """W, the most results that a row wants."""
    return max(len(row) - first for row, first in zip(tokens, firsts))
