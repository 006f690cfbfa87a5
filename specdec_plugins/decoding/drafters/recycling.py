"""Drafts each token's likeliest successor, as the verifier had it the last time that it read the token, in any sentence.

Token Recycling (Luo et al. 2024, arXiv 2408.08696), for a chain, which takes one successor of each token: a pass has the
verifier's choice after every drafted token, also after those that it refuses.
"""

from collections.abc import Sequence
from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Source, Verdict


class Successors:
    """The token that followed each token the last time: as many as there are tokens, at most."""

    def __init__(self) -> None:
        self.after: dict[int, int] = {}

    def chain(self, token: int, guesses: Sequence[int], length: int) -> list[int]:
        """Up to ``length`` tokens after a token: each one's successor; where none is known, the guess at its place."""
        tokens: list[int] = []
        after = self.after
        while len(tokens) < length:
            known = after.get(token)
            if known is None:
                if len(tokens) >= len(guesses):
                    break
                known = guesses[len(tokens)]
            token = known
            tokens.append(token)
        return tokens

    def learn(self, token: int, tokens: Sequence[int], choices: Sequence[int]) -> None:
        """The verifier's choices after a token, and after each of the tokens that were drafted to follow it."""
        self.after.update(zip((token, *tokens), choices))


def choices(scores: Any) -> list[list[int]]:
    """The verifier's likeliest tokens after the prefix and after each drafted token, row by row; undefined past a draft."""
    return scores.logits().argmax(-1).tolist()


class Recycling:
    """A row is the token before its draft."""

    def __init__(self) -> None:
        self.successors = Successors()

    def start(self, rows: int, shared: object) -> Rows[int]:
        return Rows()

    def admit(self, state: Rows[int], source: Source) -> None:
        state.rows += [source.symbols.start] * len(source.sentences)

    def propose(self, state: Rows[int], prefix: Prefix, plan: Plan) -> Draft:
        state.rows = prefix.last
        return Draft([self.successors.chain(token, (), length) for token, length in zip(state.rows, plan.lengths)])

    def observe(self, state: Rows[int], scores: Any, draft: Draft, verdict: Verdict) -> None:
        for token, tokens, following in zip(state.rows, draft.tokens, choices(scores)):
            self.successors.learn(token, tokens, following)


def for_pair(facts: PairFacts) -> Recycling:
    return Recycling()
