"""The autoregressive model that decides: scores a whole draft in one cached pass.

B rows, K drafted tokens, S source positions, T positions in the cache, D width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .kv_cache import KVCache, SourceMemory, hide
from .transformer import Transformer, attention
from .values import Draft, Prefix, Source


@dataclass
class VerifierState:
    """Of each row: the keys and values of the tokens already read, and of the source."""

    cache: KVCache
    memory: SourceMemory

    def select(self, order: list[int]) -> None:
        """Row i is from now on what row ``order[i]`` was; the others have left."""
        self.cache.select(order)
        self.memory.select(order)


class TransformerVerifier:
    """A fairseq Transformer or BART as verifier."""

    def __init__(self, model: Transformer):
        self.model = model

    def start(self, rows: int) -> VerifierState:
        """A state with room for so many rows, none in use."""
        decoder = self.model.decoder
        layers, width, like = len(decoder.layers), 2 * decoder.width, decoder.embedding.tokens
        return VerifierState(KVCache(layers, rows, width, like), SourceMemory(layers, rows, width, like))

    def admit(self, state: VerifierState, source: Source) -> None:
        """Append the sentences of ``source`` as rows."""
        entries = self.model.decoder.remember(source.encoded_by(self.model.encoder))  # (L, B, S, 2 D)
        state.memory.admit(lambda: entries, source.lengths)

    def score(self, state: VerifierState, prefix: Prefix, draft: Draft) -> Tensor:
        """(B, K+1, V) logits after the prefix and each of the drafted tokens; behind a row's draft stands anything.

        Read are the last committed token and the draft; what came before is in the cache. Row b reads at positions
        ``prefix.lengths[b]`` and following, and overwrites there what an earlier, refused draft left.
        """
        decoder, cache, memory = self.model.decoder, state.cache, state.memory
        tokens = torch.cat([prefix.last[:, None], draft.padded(prefix.device)], 1)  # (B, K+1)
        rows, width = tokens.shape
        positions = prefix.lengths[:, None] + torch.arange(width, device=tokens.device)  # (B, K+1)
        seen = prefix.longest + width
        cache.reserve(seen)
        mask = None
        if rows * width > 1:  # else the only query is at the last position, and sees everything
            later = torch.arange(seen, device=tokens.device) > positions[..., None]  # (B, K+1, T)
            mask = hide(later, cache.data.dtype)[:, None]

        x = decoder.embedding(tokens, positions)
        for index, layer in enumerate(decoder.layers):

            def attend(queries: Tensor, entries: Tensor, index: int = index) -> Tensor:
                cache.write(index, positions, entries, prefix.longest if rows == 1 else None)
                return attention(queries, cache.read(index, rows, seen), decoder.heads, mask)

            def cross_attend(queries: Tensor, index: int = index) -> Tensor:
                return attention(queries, memory.read(index), decoder.heads, memory.mask)

            x = layer(x, attend, cross_attend)
        return decoder.logits(x)


class Unverified:
    """No verifier: every draft stands as it is (strategy ``drafter``)."""

    def start(self, rows: int) -> None:
        return None

    def admit(self, state: None, source: Source) -> None:
        return None

    def score(self, state: None, prefix: Prefix, draft: Draft) -> None:
        return None
