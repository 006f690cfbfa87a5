"""Self-speculation: the verifier drafts with a budget of its KV cache (`budget.py`), for long sources and large batches.

There a pass reads more bytes of keys and values than of weights (MagicDec, Chen et al. 2024, arXiv 2408.11049). Drafted
tokens are cached after the committed ones and overwritten by the verification, so there is no second cache.
"""

from dataclasses import dataclass

from specdec_plugins.decoding.backends import LoadedModel, Pass, RowState
from specdec_plugins.decoding.budget import Chosen, bytes_of
from specdec_plugins.decoding.drafters import PairFacts, after_the_last, draft_in_turn
from specdec_plugins.decoding.options import Budget
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Request, Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Verdict, Want


@dataclass
class WindowState:
    """``cache`` belongs to the verifier, which moves its rows."""

    cache: RowState
    chosen: Chosen

    def select(self, order: list[int]) -> None:
        self.chosen.select(order)


class WindowDrafter(Drafter):
    traits = Traits(needs_verifier=True, wants=Want(attention=True, logits=False))

    def __init__(self, model: LoadedModel, budget: Budget):
        self.model, self.budget = model, budget

    def start(self, rows: int, shared: RowState) -> WindowState:
        return WindowState(shared, Chosen(self.budget, self.model.host))

    def admit(self, state: WindowState, source: Source) -> None:
        state.chosen.admit(source.sizes)

    def propose(self, state: WindowState, prefix: Prefix, plan: Plan) -> Draft:
        room = [max(0, min(length, room)) for length, room in zip(plan.lengths, prefix.room)]
        choose = after_the_last(self.model, state.cache, state.chosen.visible)
        return draft_in_turn(prefix, plan._replace(lengths=room), choose, self.model.xp)

    def observe(self, state: WindowState, scores: Pass, draft: Draft, verdict: Verdict) -> None:
        state.chosen.observe(scores, verdict)

    def bytes_for(self, request: Request) -> int:
        return bytes_of(self.budget)


def for_pair(facts: PairFacts) -> WindowDrafter:
    """Raises ValueError if no verifier is loaded."""
    if facts.verifier is None:
        raise ValueError("drafter 'window' drafts with the verifier and needs it loaded")
    return WindowDrafter(facts.verifier, facts.budget)
