"""Which entries of the cache the tokens of a pass attend to: all before them, the nearest ones, or their branch of a tree.

R rows, Q tokens read, T positions in the cache, N of them near.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def visibility(
    places: Tensor, seen: int, near: tuple[int, int] | None, family: Tensor | None, alone: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """For tokens at ``places`` (R, Q) of the cache, which follow each other:

    * their positions in the output (R, Q), in a tree by its ``family`` (R, Q, Q) bool: which tokens see which;
    * the only entries to read (R, N), if ``near`` (sinks, window) restricts them; None: the first ``seen``;
    * which of the entries each token does not see, (R, Q, T or N) bool; None: it sees all, as those ``alone`` do.
    """
    if near is not None:
        return places, *window_of(places, *near)
    entries = torch.arange(seen, device=places.device)  # (T,)
    if family is not None:
        start, width = places[:, :1], places.size(1)
        after = entries - start  # (R, T) distance from the pass's first entry
        within = family.gather(2, after.clamp(0, width - 1)[:, None].expand(-1, width, -1))  # (R, Q, T)
        hidden = ((after < 0)[:, None] | within & (after < width)[:, None]).logical_not()
        return start + family.sum(-1) - 1, None, hidden
    return places, None, None if alone else entries > places[..., None]


def distances(places: Tensor, positions: Tensor, seen: int, nearest: Tensor | None) -> Tensor:
    """(R, Q, T or N) how far ahead of each token each entry is, by what `visibility` returns."""
    if nearest is None:  # only these may have a tree, whose tokens are not where they lie
        nearest = torch.arange(seen, device=places.device).expand(len(places), -1).scatter(1, places, positions)
    return nearest[:, None] - positions[..., None]


def window_of(places: Tensor, sinks: int, window: int) -> tuple[Tensor, Tensor]:
    """The positions (R, N) that consecutive queries at ``places`` (R, Q) see, and which of them each does not: (R, Q, N) bool.

    A query sees the first ``sinks`` and the last ``window`` up to its own.
    """
    first = torch.arange(sinks, device=places.device).expand(len(places), -1)
    recent = places[:, :1] + torch.arange(1 - window, places.size(1), device=places.device)
    positions, own = torch.cat([first, recent], 1)[:, None], places[..., None]
    hidden = (positions < 0) | (positions > own) | (positions <= own - window) & (positions >= sinks)
    hidden[..., :sinks] |= (first >= recent[:, :1])[:, None]  # those that are also recent
    return positions[:, 0].clamp(min=0), hidden


def ancestry(parents: Sequence[Sequence[int]], rows: int, width: int) -> Tensor:
    """(R, Q, Q) bool: whether token k of a row is another token or descends from it by its ``parents``."""
    sees = np.broadcast_to(np.eye(width, dtype=bool), (rows, width, width)).copy()
    for row, tree in zip(sees, parents):
        for token, parent in enumerate(tree):
            if parent >= 0:
                row[token] |= row[parent]
    return torch.from_numpy(sees)
