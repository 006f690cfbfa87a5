"""Beam searches among the rows of a batch: a search has one row for each live hypothesis."""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search import step
from specdec_plugins.decoding.search.beam import Beams, Ranked, Search
from specdec_plugins.decoding.trees import ROOT, parents_of, path_to
from specdec_plugins.decoding.values import Draft, Verdict


class Place(NamedTuple):
    """A row after an iteration: its former row, the drafted nodes that it keeps, the token after them, the scores of all, and
    whether the limit forced that token; if it searches, its rank and the state of its search."""

    row: int
    path: Sequence[int]
    own: int
    scores: list[float]
    cut: bool = False
    rank: int = 0
    beams: Beams | None = None


def advance(
    prefix: Prefix, ranked: Sequence[Sequence[Ranked]], draft: Draft, verdict: Verdict | None
) -> tuple[list[int], Draft, Verdict]:
    """The steps of every search in the batch, by the candidates after each row's prefix and its drafted nodes.

    Returns the order of rows to select, and draft and verdict in that order. The given verdict is of rows that do not search. A
    search that is over keeps one row, which ends with eos. Further rows follow the others.
    """
    kept, added, eos = dict[int, Place](), list[Place](), prefix.symbols.eos
    for row, request in enumerate(prefix.requests):
        if verdict is not None and verdict.own is not None and request.beam is None:
            path = range(verdict.accepted[row]) if verdict.paths is None else verdict.paths[row]
            kept[row] = Place(row, path, verdict.own[row], verdict.scores[row], verdict.cut[row], prefix.numbers[row])
    for rows in prefix.searches():
        after, ends = replay(prefix.search(rows[0]), prefix.beams_of(rows[0]), rows, ranked, draft)
        places = []
        for rank, (row, node) in enumerate(ends):
            path = path_to(node, parents_of(draft, row))
            said = [] if after.over else after.live[rank].path()[-len(path) - 1 :]
            own, scores = (said[-1].token, [each.score for each in said]) if said else (eos, [0.0] * (len(path) + 1))
            places.append(Place(row, path, own, scores, False, rank, after))
        kept |= dict(zip(rows, places))
        added += places[len(rows) :]
    places = [kept[row] for row in sorted(kept)] + added
    order = [place.row for place in places]
    prefix.select(order)
    prefix.numbers, prefix.beams = [place.rank for place in places], [place.beams for place in places]
    paths = [list(place.path) for place in places]
    return (
        order,
        draft.select(order),
        Verdict(
            list(map(len, paths)),
            [place.own for place in places],
            [place.scores for place in places],
            [place.cut for place in places],
            paths if draft.parents else None,
        ),
    )


def replay(
    search: Search, beams: Beams, rows: Sequence[int], ranked: Sequence[Sequence[Ranked]], draft: Draft
) -> tuple[Beams, list[tuple[int, int]]]:
    """Speculative beam search: as many steps of plain beam search as the scores of one pass allow; at least one.

    Invariant: the pass read the last token of each live hypothesis, at the row and node ``read`` of it, with the hypothesis's
    other tokens before it. So what is ``ranked`` there are the candidates that a plain pass returns, bit for bit where a pass's
    results do not depend on what else it reads, and a step depends on nothing else. Steps stop before one for which that does
    not hold: at the first survivor that is not a drafted node. Drafts decide how many steps are taken, never which.

    Returns the state and, for each live hypothesis, where the token before its last one was read; only the first where the
    search is over.
    """
    nodes: dict[tuple[int, int, int], tuple[int, int]] = {}  # by row, parent and token
    for row in rows:
        for node, (parent, token) in enumerate(zip(parents_of(draft, row), draft.tokens[row])):
            nodes.setdefault((row, parent, token), (row, node))
    read = [(row, ROOT) for row in rows]
    while True:
        after = step(search, beams, [ranked[row][node + 1] for row, node in read])
        if after.over:
            return after, read[:1]
        ends = [read[parent] for parent in after.parents]
        following = [nodes.get((*end, node.token)) for end, node in zip(ends, after.live)]
        scored = [each for each in following if each is not None]
        if len(scored) < len(following):
            return after, ends
        beams, read = after, scored
