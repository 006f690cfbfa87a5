"""Drafts by each token's likeliest successor, as the verifier's recent passes had it.

Token Recycling (Luo et al. 2024, arXiv 2408.08696), for a chain: a pass has the verifier's choice after every drafted token, also
after those that it refuses. Here a successor is looked up by the last two tokens, and by the last one where these were not seen.
"""

from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan, Source, Verdict

PAIRS = 1 << 16  # of tokens, whose successors are kept; some 10 MB. Those that came first leave first

Pair = tuple[int, int]  # the last two tokens


class Successors:
    """The token that followed a token, and a pair of tokens, the last time."""

    def __init__(self, most: int = PAIRS):
        self.most = most
        self.after: dict[int, int] = {}  # bounded by the vocabulary
        self.after_pair: dict[Pair, int] = {}

    def learn(self, pair: Pair, tokens: list[int], following: list[int]) -> None:
        """``following[i]`` follows the first i of some tokens, the two before which are the pair."""
        before, last = pair
        for token, successor in zip([None, *tokens], following):
            if token is not None:
                before, last = last, token
            self.after[last] = successor
            self.after_pair[before, last] = successor
        while len(self.after_pair) > self.most:
            del self.after_pair[next(iter(self.after_pair))]

    def extend(self, pair: Pair, tokens: list[int], length: int) -> list[int]:
        """Up to ``length`` tokens that follow the pair: those given, and their successors."""
        tokens = tokens[:length]
        before, last = [*pair, *tokens][-2:]
        while len(tokens) < length:
            token = self.after_pair.get((before, last))
            if token is None:
                token = self.after.get(last)
                if token is None:
                    break
            tokens.append(token)
            before, last = last, token
        return tokens


def last_pair(output: list[int], start: int) -> Pair:
    """The last two tokens of an output; the start token where there are none."""
    return (output[-2] if len(output) > 1 else start, output[-1] if output else start)


def choices(scores: Any) -> list[list[int]]:
    """The verifier's likeliest tokens after the prefix and after each drafted token."""
    return scores.logits().argmax(-1).tolist()


class Recycling:
    """It learns of all sentences. A row is the last two tokens before its draft."""

    def __init__(self) -> None:
        self.successors = Successors()

    def start(self, rows: int, shared: object) -> Rows[Pair]:
        return Rows()

    def admit(self, state: Rows[Pair], source: Source) -> None:
        state.rows += [(0, 0)] * len(source.sentences)

    def propose(self, state: Rows[Pair], prefix: Prefix, plan: Plan) -> Draft:
        symbols = prefix.symbols
        state.rows = [last_pair(output, symbols.start) for output in prefix.outputs]
        return Draft([self.successors.extend(pair, [], length) for pair, length in zip(state.rows, plan.lengths)])

    def observe(self, state: Rows[Pair], scores: Any, draft: Draft, verdict: Verdict) -> None:
        for pair, tokens, following in zip(state.rows, draft.tokens, choices(scores)):
            self.successors.learn(pair, tokens, following)


def for_pair(facts: PairFacts) -> Recycling:
    return Recycling()
