"""Sentences at random positions: a model learns from short ones what it needs far into a document.

Positions that training never shows are noise to a Transformer with absolute ones, and long documents, the only ones that show
them, cost most. Shifted, short ones show them (Kiyono et al. 2021, arXiv 2109.05644). Source and target move together, as a
sentence of a document does.

B batch, S source and T target symbols, padding included, C width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

# Standard deviation of the target's shift, in roots of the source's: sentences of n tokens whose translations differ by d from
# their mean length let the sides drift apart by d / sqrt(n) of it.
DRIFT = 0.3


def shifts(source: Tensor, target: Tensor, most: tuple[int, int], share: float) -> tuple[Tensor, Tensor]:
    """Draw how far each sentence is moved: not at all, or uniformly as far as there is room.

    Args:
        source, target: (B, S) and (B, T) bool, true where there is a symbol and no padding.
        most: positions that the model has for a source and for a target. share: of the sentences that are moved.

    Returns: of the source and of the target, (B,) int64. A target's is the source's in proportion to the batch's lengths.
    """
    lengths, target_lengths = source.sum(1), target.sum(1)
    moved = torch.rand(lengths.shape, device=lengths.device) < share
    source_shift = (torch.rand(lengths.shape, device=lengths.device) * (most[0] - lengths + 1).clamp(min=0)).long() * moved
    drift = torch.randn(lengths.shape, device=lengths.device) * source_shift.sqrt() * DRIFT
    target_shift = (source_shift * (target_lengths.sum() / lengths.sum()) + drift).long()
    return source_shift, target_shift.minimum(most[1] - target_lengths).clamp(min=0)


@contextmanager
def shifted_positions(model: FairseqEncoderDecoderModel, source: Tensor, target: Tensor, share: float) -> Iterator[None]:
    """In a forward pass of fairseq's Transformer sentences are moved by `shifts`. ValueError if its positions are learned."""

    def shift(symbols: Tensor, by: Tensor):
        def embed(table, _, output):
            positions = table.padding_idx + (symbols.cumsum(1) + by[:, None]) * symbols
            return table.weights[positions]

        return embed

    tables = [side.embed_positions for side in (model.encoder, model.decoder)]
    if not all(isinstance(table, SinusoidalPositionalEmbedding) for table in tables):
        raise ValueError("--shifted-positions is for the fixed positions that a Transformer has by default")
    source_most, target_most = (table.weights.size(0) - table.padding_idx - 1 for table in tables)
    hooks = [
        table.register_forward_hook(shift(symbols, by))
        for table, symbols, by in zip(tables, (source, target), shifts(source, target, (source_most, target_most), share))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
