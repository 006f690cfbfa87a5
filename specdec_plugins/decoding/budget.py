"""KV budgets: which cache positions drafting passes read.

Of the target, passes read the first positions (sinks) and the last ones. Source positions are chosen after each verification, by
the verifier's attention after the last accepted token:

* ``mass``: the pages with the most attention, summed over heads and layers, after max pooling over neighbours;
* ``recent``: the first positions, and a window around the one with the most attention.

Drafter `window` reads the verifier's cache this way.

B rows, S source positions, N chosen positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends import Pass
from specdec_plugins.decoding.backends.reading import Visible
from specdec_plugins.decoding.options import Budget
from specdec_plugins.decoding.tensors import send
from specdec_plugins.decoding.values import Verdict

# Neighbours pooled on either side: the next tokens attend to what is beside a position (as in SnapKV, Li et al. 2024, arXiv
# 2404.14469). With 1 the shipped pairs accept 2 to 19 % more of drafts of 4 tokens than with 0, on sources of 120 and 200 tokens
# from consecutive validation lines, budgets 32 and 64; 2 beats 1 in one case of four.
NEIGHBOURS = 1
PAGE = 16  # most positions chosen together: the kernels' vector width. A page is at most a quarter of the budget.


class Chosen:
    """Each row's source length and chosen positions, as in `Visible`."""

    def __init__(self, budget: Budget, device: torch.device):
        self.budget = budget
        self.lengths = torch.zeros(0, dtype=torch.int64, device=device)  # (B,)
        self.positions = self.lengths.view(0, budget.positions)  # (B, N)

    def admit(self, lengths: Tensor) -> None:
        """Append rows. They start with the first positions, as their attention is unknown."""
        self.lengths = torch.cat([self.lengths, lengths])
        self.positions = torch.cat([self.positions, around(torch.zeros_like(lengths), lengths, self.budget)])

    def select(self, order: list[int]) -> None:
        rows = send(order, self.lengths.device)
        self.lengths, self.positions = self.lengths[rows], self.positions[rows]

    @property
    def visible(self) -> Visible:
        """What a pass attends to."""
        return Visible(self.budget.sinks, self.budget.positions - self.budget.sinks, self.positions)

    @torch.inference_mode()
    def observe(self, scores: Pass, verdict: Verdict) -> None:
        """Choose again, after a verification."""
        rows, device = len(self.lengths), self.lengths.device
        last = send([verdict.results(row)[-1] for row in range(rows)], device)
        attention = scores.attention()[torch.arange(rows, device=device), last]  # (B, S)
        beyond = torch.arange(attention.size(1), device=device) >= self.lengths[:, None]
        attention = attention.masked_fill(beyond, 0)  # undefined there
        if self.budget.choice == "recent":
            self.positions = around(attention.argmax(1), self.lengths, self.budget)
            return
        attention = F.max_pool1d(attention[:, None], 2 * NEIGHBOURS + 1, 1, NEIGHBOURS)[:, 0].masked_fill(beyond, 0)
        self.positions = likeliest(attention, self.lengths, self.budget.positions)


def likeliest(attention: Tensor, lengths: Tensor, budget: int) -> Tensor:
    """(B, N) positions of the pages with the most ``attention`` (B, S), ascending; numbers from ``lengths`` (B,) on are padding.
    Ties go to the first page, so a row's choice does not depend on the lengths of other rows."""
    size, device = attention.size(1), attention.device
    page = next(page for page in (PAGE, 8, 4, 2, 1) if 4 * page <= max(4, budget))
    pages = F.pad(attention, (0, -size % page)).unflatten(1, (-1, page)).sum(2)  # (B, pages)
    beyond = torch.arange(0, size, page, device=device) >= lengths[:, None]
    order = pages.masked_fill(beyond, -1).sort(dim=1, descending=True, stable=True).indices
    best = order[:, : budget // page].sort().values
    positions = (best[:, :, None] * page + torch.arange(page, device=device)).flatten(1)
    positions = F.pad(positions, (0, budget - positions.size(1)), value=size).clamp(max=size)
    return torch.where((lengths <= budget)[:, None], torch.arange(budget, device=device), positions)


def around(centres: Tensor, lengths: Tensor, budget: Budget) -> Tensor:
    """(B, N) the first positions, and a window around ``centres`` (B,) between them and the source's end."""
    size = budget.positions - budget.sinks
    begins = torch.minimum(centres - size // 2, lengths - size).clamp(min=budget.sinks)
    window = begins[:, None] + torch.arange(size, device=lengths.device)
    return torch.cat([torch.arange(budget.sinks, device=lengths.device).expand(len(lengths), -1), window], 1)


def bytes_of(budget: Budget) -> int:
    """Memory of a row's chosen positions."""
    return budget.positions * 8  # int64
