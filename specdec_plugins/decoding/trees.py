"""Trees of drafted tokens: what a node is, which nodes a tree has, and what became of them. Knows nothing about models.

A row's nodes are numbered from 0, parents before their children. The root, the last committed token, is no node.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from specdec_plugins.decoding.options import Gate, Tree
from specdec_plugins.decoding.values import Draft

Key = TypeVar("Key")  # what a node's children are asked by


class TreeDraft(Draft):
    """Tokens that branch: ``tokens[b][i]`` follows node ``parents[b][i]`` of row b, or the prefix where that is -1.

    Every node is certain, which the rejection rule has to know: it was not drawn.
    """

    def __init__(self, tokens: list[list[int]], parents: list[list[int]]):
        super().__init__(tokens)
        self.parents: list[list[int]] = parents

    def clip(self, room: Sequence[int], eos: int) -> "TreeDraft":
        """At most ``room[b]`` tokens on each path, and none after eos."""
        return self._only([
            [depth <= most and (parent < 0 or tokens[parent] != eos) for parent, depth in zip(parents, depths(parents))]
            for tokens, parents, most in zip(self.tokens, self.parents, room)
        ])  # fmt: skip

    def _only(self, wanted: Sequence[Sequence[bool]]) -> "TreeDraft":
        """The nodes that are wanted and follow such nodes only."""
        tokens: list[list[int]] = []
        trees: list[list[int]] = []
        for row, parents, chosen in zip(self.tokens, self.parents, wanted):
            number = {-1: -1}  # of each node that is kept
            kept: list[int] = []
            for node, (parent, wants) in enumerate(zip(parents, chosen)):
                if wants and parent in number:
                    number[node] = len(kept)
                    kept.append(node)
            tokens.append([row[node] for node in kept])
            trees.append([number[parents[node]] for node in kept])
        return TreeDraft(tokens, trees)


def depths(parents: Sequence[int]) -> list[int]:
    """How many tokens each node's path has, its own included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + found[parent] if parent >= 0 else 1)
    return found


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the root to a node, both included; none for the root, -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def within_rows(tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> list[list[int]]:
    """By its number in the row, the token that each one follows, -1 for the first; the last tokens of a row are its nodes."""
    return [
        [*range(-1, len(row) - len(tree) - 1), *(len(row) - len(tree) + parent for parent in tree)]
        for row, tree in zip(tokens, parents)
    ]


def least(gate: Gate) -> float:
    """What a path's log-probability has to reach (nats)."""
    return math.log(gate.drafter) if gate.drafter else -math.inf


def grow(
    children: Callable[[Key], Iterable[tuple[float, int, Key]]], root: Key, tree: Tree, least: float = -math.inf
) -> tuple[list[int], list[int]]:
    """Tokens and parents of a row's tree. ``children(key)`` are a node's candidates, the likeliest first: each one's
    log-probability after it, its token and its own key; none where a path ends.

    Without a shape it has the nodes of the likeliest paths (EAGLE-2, Li et al. 2024, arXiv 2406.16858), none below ``least``
    (nats); with one those (Medusa, Cai et al. 2024, arXiv 2401.10774) of which there are candidates.
    """
    return _shaped(children, root, tree, least) if tree.shape else _likeliest(children, root, tree, least)


def _likeliest(
    children: Callable[[Key], Iterable[tuple[float, int, Key]]], root: Key, tree: Tree, least: float
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Best first: a path is never likelier than a part of it, so that the best open node is the best of all that are left. Of
    siblings only the next one is open."""
    tokens: list[int] = []
    parents: list[int] = []
    opened: list[tuple[float, int, int, int, Key, float, Iterator[tuple[float, int, Key]]]] = []  # of equals the first is taken

    def open_next(above: float, parent: int, rank: int, siblings: Iterator[tuple[float, int, Key]]) -> None:
        found = next(siblings, None)
        if found is not None and above + found[0] > -math.inf and above + found[0] >= least:
            heapq.heappush(opened, (-above - found[0], parent, rank, found[1], found[2], above, siblings))

    open_next(0.0, -1, 0, iter(children(root)))
    while opened and len(tokens) < tree.nodes:
        negative, parent, rank, token, key, above, siblings = heapq.heappop(opened)
        tokens.append(token)
        parents.append(parent)
        open_next(above, parent, rank + 1, siblings)
        open_next(-negative, len(tokens) - 1, 0, iter(children(key)))
    return tokens, parents


def _shaped(
    children: Callable[[Key], Iterable[tuple[float, int, Key]]], root: Key, tree: Tree, least: float
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The nodes of a shape, short paths first."""
    tokens: list[int] = []
    parents: list[int] = []
    ranked: dict[tuple[int, ...], tuple[int, float, list[tuple[float, int, Key]]]] = {}  # by path: node, score, what follows
    ranked[()] = -1, 0.0, sorted(children(root), key=lambda child: -child[0])
    for path in sorted(tree.shape, key=len):
        if len(tokens) == tree.nodes:
            break
        parent, above, candidates = ranked.get(path[:-1], (-1, 0.0, []))
        if path[-1] < len(candidates):
            score, token, key = candidates[path[-1]]
            if above + score > -math.inf and above + score >= least:
                ranked[path] = len(tokens), above + score, sorted(children(key), key=lambda child: -child[0])
                tokens.append(token)
                parents.append(parent)
    return tokens, parents
