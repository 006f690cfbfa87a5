"""Beam searches among the rows of a batch: a search has one row for each live hypothesis."""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.search import step
from specdec_plugins.decoding.search.beam import Beams, Node, Ranked
from specdec_plugins.decoding.values import Iteration, Step, Verdict


class Place(NamedTuple):
    """A row after a step: its former row and, if it searches, its rank, hypothesis (None: the search is over) and state."""

    row: int
    rank: int = 0
    node: Node | None = None
    beams: Beams | None = None


def advance(prefix: Prefix, ranked: Sequence[Ranked], iteration: Iteration) -> tuple[list[int], Iteration]:
    """One step of every search in the batch, by the candidates of each row.

    Returns the order of rows to select, and the given ``iteration`` in that order, with the tokens that searches chose. A search
    that is over keeps one row, which ends with eos. Further rows follow the others.
    """
    kept, added = dict[int, Place](), list[Place]()
    for rows in prefix.searches():
        after = step(prefix.search(rows[0]), prefix.beams_of(rows[0]), [ranked[row] for row in rows])
        places = [Place(rows[parent], rank, node, after) for rank, (parent, node) in enumerate(zip(after.parents, after.live))]
        if after.over:
            places = [Place(rows[0], 0, None, after)]
        kept |= dict(zip(rows, places))
        added += places[len(rows) :]
    searching = [request.beam is not None for request in prefix.requests]
    places = [kept.get(row, Place(row)) for row in range(len(prefix)) if row in kept or not searching[row]] + added
    eos = prefix.symbols.eos
    moved = Iteration([], [], [])
    for row, _, node, beams in places:
        searched = beams is not None
        token, score = (eos, 0.0) if node is None else (node.token, node.score)
        moved.steps.append(Step([], 0, token) if searched else iteration.steps[row])
        moved.scores.append([score] if searched else iteration.scores[row])
        moved.cut.append(not searched and iteration.cut[row])
    prefix.select([place.row for place in places])
    prefix.numbers = [place.rank if place.beams else number for place, number in zip(places, prefix.numbers)]
    prefix.beams = [place.beams for place in places]
    return [place.row for place in places], moved


def unjudged(rows: int) -> Verdict:
    """The verdict on rows that all search: nothing is drafted, and no token is judged."""
    return Verdict([0] * rows, [0] * rows, [[0.0]] * rows, [False] * rows)
