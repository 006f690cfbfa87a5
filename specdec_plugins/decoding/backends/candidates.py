"""The likeliest tokens at each position of a draft, and their scores after each candidate before them: what trees grow from.

R rows of a pass, K drafted positions, C candidates at each, V vocabulary, G width of the successor network; P = C where scores
depend on the token before, which takes a successor network, else 1.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.trees import TreeDraft, branched
from specdec_plugins.decoding.values import Plan
from specdec_plugins.model.spec import Symbols

CANDIDATES = 16  # per position, for a successor network or sampling to choose from


class Candidates(NamedTuple):
    """``tokens`` (R, K, C), and ``scores`` (R, K, P, C): log-probabilities among the candidates."""

    tokens: list[list[list[int]]]
    scores: list[list[list[list[float]]]]


def numbered(symbols: Symbols, vocabulary: Sequence[int] | None) -> Symbols:
    """The symbols with pad and eos as indices of logits, -1 without a logit.

    ``vocabulary`` has the tokens with logits, in ascending order; None: all.
    """
    if vocabulary is None:
        return symbols

    def index(token: int) -> int:
        at = bisect_left(vocabulary, token)
        return at if vocabulary[at : at + 1] == [token] else -1

    return replace(symbols, pad=index(symbols.pad), eos=index(symbols.eos))


Place = tuple[int, int]  # a node's depth and index among the candidates there


def branch(found: Candidates, prefix: Prefix, plan: Plan) -> TreeDraft:
    """The trees of a plan."""
    eos = prefix.symbols.eos

    def children(
        row: Sequence[Sequence[int]], scores: Sequence[Sequence[Sequence[float]]], length: int, above: Place
    ) -> Iterator[tuple[float, int, Place]]:
        depth, number = above
        if depth < length and not (depth and row[depth - 1][number] == eos):
            after = scores[depth][min(number, len(scores[depth]) - 1)]
            for rank in sorted(range(len(after)), key=after.__getitem__, reverse=True):  # few of them are taken
                yield after[rank], row[depth][rank], (depth + 1, rank)

    rows = zip(*found, plan.lengths)
    return branched([partial(children, *row) for row in rows], [(0, 0)] * len(prefix), prefix, plan)
