"""Beam search as transformers 5.24 does it (`_beam_search`), for one eos token.

The best ``size`` finished hypotheses are kept, and the search ends once they are that many and, by ``early_stopping``, at once
(true), or when no live one can still be better, whose bound takes its present length (false) or, with a positive penalty, the
longest length (never). An eos that the limit forces has score 0. Models without forced eos stop at the limit as they are.
"""

from collections.abc import Sequence

from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.search.beam import Beams, Node, Ranked, Search


def step(search: Search, beams: Beams, candidates: Sequence[Ranked]) -> Beams:
    size, length = search.beam.size, beams.live[0].length + 1
    if length > search.limit:
        candidates = [Ranked([search.eos], [0.0]) if search.ends else Ranked([], [])] * len(beams.live)
    stops = not search.ends and length >= search.limit
    live, ended = list[tuple[int, Node]](), list(beams.finished)
    for rank, (parent, node) in enumerate(search.continuations(beams, candidates)):
        if len(live) == size:  # an eos from here on is not among the best
            break
        if not stops and node.token != search.eos:
            live.append((parent, node))
        elif rank < size:
            ended.append((search.normalised(node), node))
    finished = search.kept(ended)
    nodes, parents = tuple(node for _, node in live), tuple(parent for parent, _ in live)
    return Beams(nodes, finished, parents, over=not live or (len(finished) == size and not _improves(search, nodes, finished)))


def _improves(search: Search, live: Sequence[Node], finished: Sequence[tuple[float, Node]]) -> bool:
    """Whether the best live hypothesis may still become better than the worst finished one."""
    stopping, penalty = search.beam.early_stopping, search.beam.length_penalty
    if stopping == "true":
        return False
    longest = search.limit + search.ends
    length = longest if stopping == "never" and penalty > 0 else live[0].length
    return live[0].total / power(length, penalty) > finished[-1][0]
