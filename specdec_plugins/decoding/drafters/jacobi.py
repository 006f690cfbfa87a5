"""Drafts what the verifier itself chose: behind the refused token in its last pass (Jacobi decoding, Santilli et al. 2023, arXiv
2305.10427), and before that the successors of tokens in any earlier pass.

The guesses behind a refusal were made after other tokens, and few of them are right by themselves. But each is read in the next
pass, with this sentence's source, and what the verifier chooses after it is a successor that later drafts take: a pool of bigrams
from the trajectories, as in lookahead decoding (Fu et al. 2024, arXiv 2402.02057), without its window and parallel candidates.
"""

from dataclasses import dataclass, field
from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.drafters.recycling import Successors, choices
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.values import Draft, Plan, Source, Verdict


@dataclass
class Trajectory:
    """The last token of an output when it last drafted, and its length; the guesses, which follow ``valid`` tokens of it."""

    last: int = 0
    said: int = 0
    valid: int = 0
    guesses: list[int] = field(default_factory=list)


class Jacobi(Drafter):
    traits = Traits(copies_text=True)

    def __init__(self) -> None:
        self.successors = Successors()

    def start(self, rows: int, shared: object) -> Rows[Trajectory]:
        return Rows()

    def admit(self, state: Rows[Trajectory], source: Source) -> None:
        state.rows += [Trajectory() for _ in source.sentences]

    def propose(self, state: Rows[Trajectory], prefix: Prefix, plan: Plan) -> Draft:
        drafts = []
        for row, output, last, length in zip(state.rows, prefix.outputs, prefix.last, plan.lengths):
            row.last, row.said = last, len(output)
            drafts.append(self.successors.chain(last, row.guesses if row.valid == row.said else (), length))
        return Draft(drafts)

    def observe(self, state: Rows[Trajectory], scores: Any, draft: Draft, verdict: Verdict) -> None:
        for row, tokens, accepted, following in zip(state.rows, draft.tokens, verdict.accepted, choices(scores, draft, verdict)):
            row.valid, row.guesses = row.said + accepted + 1, following[accepted + 1 :]
            self.successors.learn(row.last, tokens, following)


def for_pair(facts: PairFacts) -> Jacobi:
    return Jacobi()
