"""Attention on tensors, by head.

B rows, S source positions, Q positions computed, T positions seen; H heads, G key-value heads, K width of a head. Queries are H K
wide, an entry of a cache 2 G K: keys, then values.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends.torch.state import hide
from specdec_plugins.model.spec import Local

Memory = tuple[Tensor, Tensor | None]  # entries of the source (B, S, 2 G K), and a mask (B, 1, 1, S) to add to scores


@dataclass(frozen=True)
class Attention:
    """softmax(cap(scale q k) + bias + mask) v, by head; with ``local`` over the keys within its window."""

    heads: int  # H
    key_heads: int  # G
    scale: float | None = None  # None: 1 / sqrt(K)
    cap: float | None = None
    relative: Tensor | None = None  # (H, 2 R + 1): a bias of scores, by the key's distance ahead from -R to R
    local: Local | None = None

    @property
    def by_distance(self) -> bool:
        """Whether scores depend on the distances of positions."""
        return self.relative is not None or self.local is not None

    def __call__(
        self, queries: Tensor, entries: Tensor, mask: Tensor | None, ahead: Tensor | None = None, more: Memory | None = None
    ) -> Tensor:
        """(B, Q, H K) for queries (B, Q, H K) and entries (B, T, 2 G K). ``mask`` is added to scores, (B, 1, Q, T); ``ahead``
        (B, Q, T), if `by_distance`, are the distances of the keys' positions from the queries'. Merged attention sees ``more``
        entries."""
        mask = self.biased(mask, ahead, entries.dtype)
        if more is not None:
            entries, mask = merged(more, entries, mask, queries.size(1))
        q, k, v = self.by_head(queries, entries)
        if self.cap is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            mixed = self.weights(q, k, mask) @ v
        return mixed.transpose(1, 2).reshape(queries.shape)

    def weighed(
        self, queries: Tensor, entries: Tensor, mask: Tensor | None, ahead: Tensor | None = None, more: Memory | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same and its weights (B, H, Q, T), with ``more`` entries (B, H, Q, S + T), reading the keys once."""
        mask = self.biased(mask, ahead, entries.dtype)
        if more is not None:
            entries, mask = merged(more, entries, mask, queries.size(1))
        q, k, v = self.by_head(queries, entries)
        weights = self.weights(q, k, mask)
        return (weights @ v).transpose(1, 2).reshape(queries.shape), weights

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(2, 3)
        scores = scores / math.sqrt(q.size(3)) if self.scale is None else scores * self.scale  # (B, H, Q, T)
        scores = capped(scores, self.cap)
        return (scores if mask is None else scores + mask).softmax(3)

    def by_head(self, queries: Tensor, entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, Q, K), and keys and values (B, H, T, K)."""
        half = entries.size(2) // 2
        q = queries.unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = (each.unflatten(2, (self.key_heads, -1)).transpose(1, 2) for each in (entries[..., :half], entries[..., half:]))
        if self.key_heads != self.heads:
            k, v = (each.repeat_interleave(self.heads // self.key_heads, 1) for each in (k, v))
        return q, k, v

    def biased(self, mask: Tensor | None, ahead: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """(B, H or 1, Q, T) the mask with the relative bias and the window, or the mask."""
        if not self.by_distance:
            return mask
        assert ahead is not None, "distances"
        if self.local is not None:
            outside = hide((ahead <= -self.local.before) | (ahead > self.local.after), dtype)[:, None]
            mask = outside if mask is None else outside + mask
            # Padding may see nothing in its window, and a softmax over nothing is NaN, which others multiply by 0.
            mask = mask.masked_fill(mask.isneginf().all(3, keepdim=True), 0)
        if self.relative is None:
            return mask
        most = self.relative.size(1) // 2
        bias = self.relative[:, ahead.clamp(-most, most) + most].transpose(0, 1)
        return bias if mask is None else bias + mask


def merged(source: Memory, entries: Tensor, mask: Tensor | None, queries: int) -> tuple[Tensor, Tensor | None]:
    """(B, S + T, 2 G K) entries of a source before others (B, T, 2 G K), and the mask (B, 1, Q, S + T) of both."""
    memory, hidden = source
    both = torch.cat([memory.to(entries), entries], 1)
    if mask is None and hidden is None:
        return both, None
    parts = (hidden, memory.size(1)), (mask, entries.size(1))
    zero = entries.new_zeros(())
    return both, torch.cat([(zero if part is None else part).expand(len(both), 1, queries, size) for part, size in parts], 3)


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)
