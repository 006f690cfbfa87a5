"""Drafts each token's likeliest successors, as predicted by the verifier when it last read that token in any sentence.

Token Recycling (Luo et al. 2024, arXiv 2408.08696): a pass gives the verifier's prediction after every drafted token, refused
ones included. A chain takes one successor of each token, a tree several with their probabilities. Passes over chains store only
the best successor, because log-probabilities of all tokens would take twice as long; a tree falls back on it where it has no
branches.
"""

import math
from functools import partial
from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.trees import TreeDraft, branched
from specdec_plugins.decoding.values import Draft, Plan, Verdict

KEPT = 8  # successors of each token in trees, as in the paper
TAUGHT = math.log(0.5)  # log-probability (nats) that trees assume for a successor learned from a chain


def choices(scores: Any, draft: Draft, verdict: Verdict) -> list[list[int]]:
    """The verifier's likeliest tokens after the prefix and after each drafted token, row by row.

    The verdict has them up to the own token, so logits are read only after a refusal.
    """
    assert verdict.own is not None
    logits, chosen = None, []
    for row, (tokens, accepted, own) in enumerate(zip(draft.tokens, verdict.accepted, verdict.own)):
        known = [*tokens[:accepted], own]
        if accepted < len(tokens):
            if logits is None:
                logits = scores.logits()
            known += logits[row, accepted + 1 : len(tokens) + 1].argmax(-1).tolist()
        chosen.append(known)
    return chosen


class Recycling(Drafter):
    """A row's state is the token before its draft. What is learned has at most one entry per token of the vocabulary."""

    traits = Traits(copies_text=True, trees=True)

    def __init__(self) -> None:
        self.successors: dict[int, int] = {}
        self.branches: dict[int, list[tuple[float, int]]] = {}  # the latest `KEPT` likeliest successors, log-probabilities first

    def start(self, rows: int, shared: object) -> Rows[int]:
        return Rows()

    def admit(self, state: Rows[int], source: Source) -> None:
        state.rows += [source.symbols.start] * len(source.sentences)

    def propose(self, state: Rows[int], prefix: Prefix, plan: Plan) -> Draft:
        state.rows = prefix.last
        if plan.tree is not None:
            followers = [partial(self.children, length) for length in plan.lengths]
            return branched(followers, [(0, token) for token in state.rows], prefix, plan)
        return Draft([self.chain(token, length) for token, length in zip(state.rows, plan.lengths)])

    def chain(self, token: int, length: int) -> list[int]:
        """Up to ``length`` tokens after a token, each the successor of the one before."""
        tokens: list[int] = []
        successors = self.successors
        while len(tokens) < length and (known := successors.get(token)) is not None:
            token = known
            tokens.append(token)
        return tokens

    def children(self, length: int, key: tuple[int, int]) -> list[tuple[float, int, tuple[int, int]]]:
        """What may follow a token at a depth of less than ``length``."""
        depth, before = key
        if depth == length:
            return []
        known = self.branches.get(before)
        if known is None:
            known = [(TAUGHT, self.successors[before])] if before in self.successors else []
        return [(score, follower, (depth + 1, follower)) for score, follower in known]

    def observe(self, state: Rows[int], scores: Any, draft: Draft, verdict: Verdict) -> None:
        if isinstance(draft, TreeDraft):
            return self._learn_branches(state.rows, draft, scores)
        for token, tokens, following in zip(state.rows, draft.tokens, choices(scores, draft, verdict)):
            self.successors.update(zip((token, *tokens), following))

    def _learn_branches(self, rows: list[int], draft: TreeDraft, scores: Any) -> None:
        """Learn from the pass's predictions after the token of each of ``rows`` and after each node of its tree."""
        read = [(token, row, place) for row, first in enumerate(rows) for place, token in enumerate([first, *draft.tokens[row]])]
        likeliest = scores.likeliest([(row, place) for _, row, place in read], KEPT)
        for (token, _, _), followers in zip(read, likeliest):
            self.branches[token] = followers
            self.successors[token] = followers[0][1]


def for_pair(facts: PairFacts) -> Recycling:
    return Recycling()
