"""Drafts with the verifier itself, which reads a budget of its cache: self-speculation for long sources and large batches.

There a pass reads more bytes of keys and values than of weights (MagicDec, Chen et al. 2024, arXiv 2408.11049). A drafting pass
takes the whole batch, and reads the weights, but of the cache only as many positions as the budget says: of the target the
first (sinks) and the last ones; of the source those chosen after each verification, by its attention after the last accepted
token:

* ``mass``: the pages of the largest attention, summed over heads and layers, a position's being the largest of its neighbours';
* ``recent``: the first ones, and a window around the position of the largest attention;
* ``sinks``: the first and the last ones, whatever is attended to (StreamingLLM).

Drafted tokens' entries are written where the verifier's own will be, beyond the committed tokens, and the verification writes
over them: there is no second cache.

B rows, K drafted tokens, S source positions, N of them that are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.backends import LoadedModel, Pass, RowState
from specdec_plugins.decoding.backends.cache import Selection
from specdec_plugins.decoding.drafters import PairFacts
from specdec_plugins.decoding.options import Budget
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.turns import draft_in_turn
from specdec_plugins.decoding.values import Draft, Plan, Request, Source, Verdict, send

# Positions on either side that share a position's attention, as the next tokens attend to what is beside it (SnapKV, Li et al.
# 2024, arXiv 2404.14469, pools likewise). With 1 the pairs that ship accept 2 to 19 % more of drafts of 4 tokens than with 0, on
# sources of 120 and 200 tokens from consecutive lines of their validation sets, budgets 32 and 64; 2 beats 1 in one of the four.
NEIGHBOURS = 1
# Most positions in a page, which are chosen together: the kernels compute as many side by side, and read them as one piece of
# memory. A page is at most a quarter of the budget.
PAGE = 16


@dataclass
class WindowState:
    """``rows`` are the verifier's own. Of each: the length of its source, and the positions chosen, as in `Selection`."""

    rows: RowState
    lengths: Tensor  # (B,) int64
    chosen: Tensor  # (B, N) int64

    def select(self, order: list[int]) -> None:
        rows = send(order, self.lengths.device)
        self.lengths, self.chosen = self.lengths[rows], self.chosen[rows]


class WindowDrafter:
    needs_verifier = True

    def __init__(self, model: LoadedModel, budget: Budget):
        self.model, self.budget = model, budget
        model.masses_wanted |= budget.choice != "sinks"

    def start(self, rows: int, shared: RowState) -> WindowState:
        device = self.model.target_embeddings.device
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        return WindowState(shared, nothing, nothing.view(0, self.budget.positions))

    def admit(self, state: WindowState, source: Source) -> None:
        """Append rows, which begin with the first positions: nothing is known of their attention yet."""
        lengths = source.lengths
        begins = torch.zeros_like(lengths) if self.budget.choice != "sinks" else lengths
        state.lengths = torch.cat([state.lengths, lengths])
        state.chosen = torch.cat([state.chosen, around(begins, lengths, self.budget)])

    def propose(self, state: WindowState, prefix: Prefix, plan: Plan) -> Draft:
        sinks, positions = self.budget.sinks, self.budget.positions
        chosen = Selection(sinks, positions - sinks, state.chosen)

        def choose(ahead: Prefix, wanted: Sequence[bool]) -> Draft:
            tokens = [[token] if more else [] for token, more in zip(ahead.last, wanted)]
            done = self.model.read(state.rows, tokens, list(map(len, ahead.outputs)), selection=chosen)
            return done.choose(ahead, Plan([int(more) for more in wanted], gate=plan.gate))

        room = [max(0, min(length, room)) for length, room in zip(plan.lengths, prefix.room)]
        return draft_in_turn(prefix, plan._replace(lengths=room), choose)

    @torch.inference_mode()
    def observe(self, state: WindowState, scores: Pass, draft: Draft, verdict: Verdict) -> None:
        if self.budget.choice == "sinks":
            return
        rows, device = len(state.lengths), state.lengths.device
        last = send([verdict.places(row)[-1] for row in range(rows)], device)
        masses = scores.masses()[torch.arange(rows, device=device), last]  # (B, S)
        beyond = torch.arange(masses.size(1), device=device) >= state.lengths[:, None]
        masses = masses.masked_fill(beyond, 0)  # of which nothing is known
        if self.budget.choice == "recent":
            state.chosen = around(masses.argmax(1), state.lengths, self.budget)
            return
        masses = F.max_pool1d(masses[:, None], 2 * NEIGHBOURS + 1, 1, NEIGHBOURS)[:, 0]
        state.chosen = likeliest(masses, self.budget.positions)

    def bytes_for(self, request: Request) -> int:
        return self.budget.positions * 8  # int64


def likeliest(masses: Tensor, budget: int) -> Tensor:
    """(B, N) the positions of the pages with the largest sums of ``masses`` (B, S), ascending, and then S for none."""
    size = masses.size(1)
    page = 1 if size <= budget else next(page for page in (PAGE, 8, 4, 2, 1) if 4 * page <= max(4, budget))
    pages = F.pad(masses, (0, -size % page)).unflatten(1, (-1, page)).sum(2)  # (B, pages)
    best = pages.topk(min(budget // page, pages.size(1))).indices.sort().values
    positions = (best[:, :, None] * page + torch.arange(page, device=masses.device)).flatten(1)
    return F.pad(positions, (0, budget - positions.size(1)), value=size).clamp(max=size)


def around(centres: Tensor, lengths: Tensor, budget: Budget) -> Tensor:
    """(B, N) the first positions, and a window of those around ``centres`` (B,), which lies behind them and ends with the source
    at the latest."""
    size = budget.positions - budget.sinks
    begins = torch.minimum(centres - size // 2, lengths - size).clamp(min=budget.sinks)
    window = begins[:, None] + torch.arange(size, device=lengths.device)
    return torch.cat([torch.arange(budget.sinks, device=lengths.device).expand(len(lengths), -1), window], 1)


def for_pair(facts: PairFacts) -> WindowDrafter:
    """Raises ValueError where no verifier is loaded."""
    if facts.verifier is None:
        raise ValueError("drafter 'window' drafts with the verifier, which has to be loaded")
    return WindowDrafter(facts.verifier, facts.budget)
