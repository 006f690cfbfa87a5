"""KV budgets: which cache positions drafting passes read.

Of the target, passes read the first positions (sinks) and the last ones. Source positions are chosen after each verification, by
the verifier's attention after the last accepted token:

* ``mass``: the pages with the most attention, summed over heads and layers, after max pooling over neighbours;
* ``recent``: the first positions, and a window around the one with the most attention.

Drafter `window` reads the verifier's cache this way.

B rows, S source positions, N chosen positions.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specdec_plugins.decoding.backends import Pass, Visible
from specdec_plugins.decoding.options import Budget
from specdec_plugins.decoding.values import Array, Verdict

# Neighbours pooled on either side: the next tokens attend to what is beside a position (as in SnapKV, Li et al. 2024, arXiv
# 2404.14469). With 1 the shipped pairs accept 2 to 19 % more of drafts of 4 tokens than with 0, on sources of 120 and 200 tokens
# from consecutive validation lines, budgets 32 and 64; 2 beats 1 in one case of four.
NEIGHBOURS = 1
PAGE = 16  # most positions chosen together: the kernels' vector width. A page is at most a quarter of the budget.


class Chosen:
    """Each row's source length and chosen positions, as in `Visible`."""

    def __init__(self, budget: Budget, host: Callable[[Array], np.ndarray]):
        """``host`` is `LoadedModel.host`."""
        self.budget, self.host = budget, host
        self.lengths = np.zeros(0, np.int64)  # (B,)
        self.positions = np.zeros((0, budget.positions), np.int64)  # (B, N)

    def admit(self, lengths: Sequence[int]) -> None:
        """Append rows. They start with the first positions, as their attention is unknown."""
        added = np.array(lengths, np.int64)
        self.lengths = np.concatenate([self.lengths, added])
        self.positions = np.concatenate([self.positions, around(np.zeros_like(added), added, self.budget)])

    def select(self, order: list[int]) -> None:
        self.lengths, self.positions = self.lengths[order], self.positions[order]

    @property
    def visible(self) -> Visible:
        """What a pass attends to."""
        return Visible(self.budget.sinks, self.budget.positions - self.budget.sinks, self.positions)

    def observe(self, scores: Pass, verdict: Verdict) -> None:
        """Choose again, after a verification."""
        rows = [*range(len(self.lengths))]
        last = [verdict.results(row)[-1] for row in rows]
        attention = self.host(scores.attention()[rows, last])  # (B, S)
        beyond = np.arange(attention.shape[1]) >= self.lengths[:, None]
        attention = np.where(beyond, 0, attention)  # undefined there
        if self.budget.choice == "recent":
            self.positions = around(attention.argmax(1), self.lengths, self.budget)
            return
        edges = np.pad(attention, ((0, 0), (NEIGHBOURS, NEIGHBOURS)))  # attention is not negative
        near = [edges[:, shift : shift + attention.shape[1]] for shift in range(2 * NEIGHBOURS + 1)]
        self.positions = likeliest(np.where(beyond, 0, np.max(near, 0)), self.lengths, self.budget.positions)


def likeliest(attention: np.ndarray, lengths: np.ndarray, budget: int) -> np.ndarray:
    """(B, N) positions of the pages with the most ``attention`` (B, S), ascending; numbers from ``lengths`` (B,) on are padding.
    Ties go to the first page, so a row's choice does not depend on the lengths of other rows."""
    size = attention.shape[1]
    page = next(page for page in (PAGE, 8, 4, 2, 1) if 4 * page <= max(4, budget))
    pages = np.pad(attention, ((0, 0), (0, -size % page))).reshape(len(attention), -1, page).sum(2)  # (B, pages)
    beyond = np.arange(0, size, page) >= lengths[:, None]
    order = np.argsort(np.where(beyond, 1, -pages), 1, kind="stable")
    best = np.sort(order[:, : budget // page], 1)
    positions = (best[:, :, None] * page + np.arange(page)).reshape(len(best), -1)
    positions = np.pad(positions, ((0, 0), (0, budget - positions.shape[1])), constant_values=size).clip(max=size)
    return np.where((lengths <= budget)[:, None], np.arange(budget), positions)


def around(centres: np.ndarray, lengths: np.ndarray, budget: Budget) -> np.ndarray:
    """(B, N) the first positions, and a window around ``centres`` (B,) between them and the source's end."""
    size = budget.positions - budget.sinks
    begins = np.minimum(centres - size // 2, lengths - size).clip(min=budget.sinks)
    window = begins[:, None] + np.arange(size)
    return np.concatenate([np.broadcast_to(np.arange(budget.sinks), (len(lengths), budget.sinks)), window], 1)


def bytes_of(budget: Budget) -> int:
    """Memory of a row's chosen positions."""
    return budget.positions * 8  # int64
