"""The pass that everything causal shares: read tokens behind those already read, and say what follows each.

B rows, which become R >= B where a recorded pass computes more, Q tokens read in a pass, W of them with a prediction, K guesses,
S source positions, T positions in the cache, V vocabulary.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdec_plugins.decoding.backends.torch.cache import KVCache, SourceMemory, hide
from specdec_plugins.decoding.backends.torch.graphs import EAGER
from specdec_plugins.decoding.backends.torch.transformer import Transformer, attention
from specdec_plugins.decoding.values import Source, pad_rows, send


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
        self.idle: list[tuple[KVCache, KVCache]] = []  # of states that are gone: what was recorded is for their memory

    def start(self, rows: int) -> ReaderState:
        """A state without rows."""
        decoder = self.model.decoder
        shape = len(decoder.layers), 2 * decoder.width, decoder.embedding.tokens, self.scattered
        cache, sources = self.idle.pop() if self.idle else (KVCache(*shape), KVCache(*shape))
        memory = SourceMemory(sources)
        if self.model.runner is not EAGER:
            weakref.finalize(memory, self.idle.append, (cache, sources))
        return ReaderState(cache, memory)

    def admit(self, state: ReaderState, source: Source) -> None:
        """Append the sentences of ``source`` as rows. Their entries are made when first read."""
        state.memory.admit(partial(self.model.decoder.remember, source, self.model.encoder), source.sizes)

    def read(
        self, state: ReaderState, tokens: Sequence[Sequence[int]], places: Sequence[int], firsts: Sequence[int],
        guesses: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(R, W, V) logits after row b's tokens from number ``firsts[b]`` on, and (R, W, G) `Successor` gates if the model has
        any, for R >= B rows; behind a row's results, and the batch's, stands anything.

        Row b's tokens take the positions ``places[b]`` and following, and overwrite there what an earlier pass left. Behind
        ``tokens``, then one of each row, come ``guesses`` (R', K), if there are any.
        """
        runner, cache, memory = self.model.runner, state.cache, state.memory
        wanted = widest(tokens, firsts)
        width = runner.round(max(map(len, tokens)), wanted)
        padding = runner.round(len(tokens)) - len(tokens)
        # One transfer to the device, not four. Rows of padding read at position 0 of a source with one token.
        lines = [(place, first, length, *row, *[0] * (width - len(row)))
                 for place, first, length, row in zip(places, firsts, memory.lengths, tokens)]  # fmt: skip
        table = send([*lines, *[(0, 0, 1, *[0] * width)] * padding], cache.data.device)
        inputs = [table]
        if guesses is not None:
            inputs.append(pad_rows(guesses, len(table)))
            wanted, width = wanted + guesses.size(1), width + guesses.size(1)
        longest = max(places) + width
        seen, read = runner.round(longest, 64), runner.round(memory.longest, 32)
        sources = memory.entries
        cache.reserve(len(table), seen)
        sources.reserve(len(table), read)
        # What need not be hidden: the only query stands at the last position; no source is padded.
        alone = len(table) * width == 1 and seen == longest
        even = all(length == read for length in memory.lengths) and not padding
        settings = seen, read, wanted, alone, even, max(firsts) > 0
        logits, *gates = runner.run(self._pass, inputs, (cache, sources), settings)
        return logits, gates[0] if gates else None

    def _pass(
        self, cache: KVCache, sources: KVCache, seen: int, read: int, wanted: int, alone: bool, even: bool, chosen: bool,
        table: Tensor, guesses: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """What `read` returns. ``table`` (R, 3 + Q) has each row's place, first result, source length and tokens.

        T = ``seen`` target and S = ``read`` source positions are looked at.
        """
        decoder, device, rows = self.model.decoder, table.device, len(table)
        start, first, lengths, tokens = table.tensor_split((1, 2, 3), 1)  # (R, 1) three times, (R, Q)
        if guesses is not None:
            tokens = torch.cat([tokens, guesses], 1)
        width = tokens.size(1)
        positions = start + torch.arange(width, device=device)  # (R, Q)
        mask = padded = keep = None
        if not alone:
            mask = hide(torch.arange(seen, device=device) > positions[..., None], cache.data.dtype)[:, None]  # (R, 1, Q, T)
        if not even:
            padded = hide(torch.arange(read, device=device) >= lengths, cache.data.dtype)[:, None, None]  # (R, 1, 1, S)
        if chosen:
            results = (first + torch.arange(wanted, device=device)).clamp_(max=width - 1)  # (R, W)
            keep = torch.arange(rows, device=device)[:, None], results

        x = decoder.embedding(tokens, positions)
        for index, layer in enumerate(decoder.layers):
            kept = keep if layer is decoder.layers[-1] else None
            visible = mask if kept is None or mask is None else mask[:, 0][kept][:, None]  # (R, 1, W, T)

            def attend(queries: Tensor, entries: Tensor, index: int = index, visible: Tensor | None = visible) -> Tensor:
                cache.write(index, positions, entries)
                return attention(queries, cache.read(index, rows, seen), decoder.heads, visible)

            def cross_attend(queries: Tensor, index: int = index) -> Tensor:
                return attention(queries, sources.read(index, rows, read), decoder.heads, padded)

            x = layer(x, attend, cross_attend, kept)
        return [decoder.logits(x), *([decoder.successor.gate(decoder.features(x))] if decoder.successor else [])]


def widest(tokens: Sequence[Sequence[int]], firsts: Sequence[int]) -> int:
    """W, the most results that a row wants."""
    return max(len(row) - first for row, first in zip(tokens, firsts))
