"""Drafts what the verifier itself chose behind the refused token in its last pass (Jacobi decoding, Santilli et al. 2023, arXiv
2305.10427).

These guesses were made after tokens that turned out otherwise; each pass corrects them. Where they end, the successors go on that
the verifier chose in earlier passes, of all sentences: a pool of pairs as in lookahead decoding (Fu et al. 2024, arXiv
2402.02057), of which only one candidate is verified.
"""

from dataclasses import dataclass, field
from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.drafters.recycling import Pair, Successors, choices, last_pair
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Source, Verdict


@dataclass
class Trajectory:
    """A row's last two tokens and their number when it last drafted, and the guesses for an output of ``valid`` tokens."""

    pair: Pair = (0, 0)
    said: int = 0
    valid: int = -1
    guesses: list[int] = field(default_factory=list)


class Jacobi:
    def __init__(self) -> None:
        self.successors = Successors()

    def start(self, rows: int, shared: object) -> Rows[Trajectory]:
        return Rows()

    def admit(self, state: Rows[Trajectory], source: Source) -> None:
        state.rows += [Trajectory() for _ in source.sentences]

    def propose(self, state: Rows[Trajectory], prefix: Prefix, plan: Plan) -> Draft:
        drafts, start = [], prefix.symbols.start
        for row, output, length in zip(state.rows, prefix.outputs, plan.lengths):
            row.pair, row.said = last_pair(output, start), len(output)
            guesses = row.guesses if row.valid == row.said else []
            drafts.append(self.successors.extend(row.pair, guesses, length))
        return Draft(drafts)

    def observe(self, state: Rows[Trajectory], scores: Any, draft: Draft, verdict: Verdict) -> None:
        for row, tokens, accepted, following in zip(state.rows, draft.tokens, verdict.accepted, choices(scores)):
            following = following[: len(tokens) + 1]
            row.valid, row.guesses = row.said + accepted + 1, following[accepted + 1 :]
            self.successors.learn(row.pair, tokens, following)


def for_pair(facts: PairFacts) -> Jacobi:
    return Jacobi()
