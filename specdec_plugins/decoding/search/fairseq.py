"""Beam search as fairseq 0.12 does it (`SequenceGenerator`).

Eos finishes a hypothesis only among the best ``size`` continuations; further down it is dropped. The search ends once ``size``
hypotheses have finished, better ones or not. At the limit eos is forced, and its log-probability counts.
"""

from collections.abc import Sequence

from specdec_plugins.decoding.search.beam import Beams, Node, Ranked, Search


def step(search: Search, beams: Beams, candidates: Sequence[Ranked]) -> Beams:
    size, finished, live = search.beam.size, list(beams.finished), list[tuple[int, Node]]()
    for rank, (parent, node) in enumerate(search.continuations(beams, candidates)):
        if len(live) == size:  # an eos from here on is not among the best
            break
        if node.token != search.eos:
            live.append((parent, node))
        elif rank < size and len(finished) < size:
            finished.append((search.normalised(node), node))
    nodes, parents = tuple(node for _, node in live), tuple(parent for parent, _ in live)
    return Beams(nodes, tuple(finished), parents, over=len(finished) == size or not live)
