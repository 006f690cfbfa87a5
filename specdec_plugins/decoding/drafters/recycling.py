"""Drafts each token's likeliest successor, as the verifier had it the last time that it read the token, in any sentence.

Token Recycling (Luo et al. 2024, arXiv 2408.08696), for a chain, which takes one successor of each token: a pass has the
verifier's choice after every drafted token, also after those that it refuses.
"""

from collections.abc import Sequence
from typing import Any

import torch

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


def choices(scores: Any, draft: Draft, verdict: Verdict) -> list[list[int]]:
    """The verifier's likeliest tokens after the prefix and after each drafted token, row by row.

    Up to the own token the verdict has them, so that logits are read only behind a refusal.
    """
    assert verdict.own is not None
    logits, chosen = None, []
    for row, (tokens, accepted, own) in enumerate(zip(draft.tokens, verdict.accepted, verdict.own)):
        known = [*tokens[:accepted], own]
        if accepted < len(tokens):
            if logits is None:
                logits = scores.logits()
                if logits.device.type == "cpu" and logits.dtype == torch.float32:
                    logits = logits.numpy()  # PyTorch's argmax takes ten times as long
            known += logits[row, accepted + 1 : len(tokens) + 1].argmax(-1).tolist()
        chosen.append(known)
    return chosen


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
        for token, tokens, following in zip(state.rows, draft.tokens, choices(scores, draft, verdict)):
            self.successors.learn(token, tokens, following)


def for_pair(facts: PairFacts) -> Recycling:
    return Recycling()
