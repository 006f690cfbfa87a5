"""Trees of drafted tokens. Knows nothing about models.

A row's nodes are numbered from 0, parents before their children. The root, -1, is the last committed token and no node.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from specdec_plugins.decoding.options import Beam, Tree
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan

ROOT = -1
SPARE = 1.5  # hypotheses drafted at each depth of a beam search, for each live one
MAX_DRAFTED = 96  # nodes drafted for a beam search; one row may own all
Key = TypeVar("Key")  # identifies a node when its children are asked for
Child = tuple[float, int, Key]  # log-probability after the parent, token, key
Children = Callable[[Key], Iterable[Child[Key]]]


class TreeDraft(Draft):
    """Tokens that branch: ``tokens[b][i]`` follows node ``parents[b][i]`` of row b, or the prefix where that is -1.

    To the rejection rule every node is a point mass: none was drawn.
    """

    def __init__(self, tokens: list[list[int]], parents: list[list[int]]):
        super().__init__(tokens)
        self.parents: list[list[int]] = parents

    def clip(self, room: Sequence[int], eos: int) -> "TreeDraft":
        """At most ``room[b]`` tokens on each path, and none after eos."""
        tokens, trees = [], []
        for row, parents, most in zip(self.tokens, self.parents, room):
            numbers = {-1: -1}  # new number of each node that is kept
            for node, (parent, depth) in enumerate(zip(parents, depths(parents))):
                if depth <= most and parent in numbers and (parent < 0 or row[parent] != eos):
                    numbers[node] = len(numbers) - 1
            kept = [*numbers][1:]
            tokens.append([row[node] for node in kept])
            trees.append([numbers[parents[node]] for node in kept])
        return TreeDraft(tokens, trees)

    def select(self, order: Sequence[int]) -> "TreeDraft":
        return TreeDraft([self.tokens[row] for row in order], [self.parents[row] for row in order])


def depths(parents: Sequence[int]) -> list[int]:
    """The number of tokens on each node's path, its own included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + found[parent] if parent >= 0 else 1)
    return found


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the first after the root to ``node``; none for the root."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def parents_of(draft: Draft, row: int) -> Sequence[int]:
    """The node that each of a row's drafted tokens follows, in a chain the one before it."""
    return draft.parents[row] if draft.parents else range(ROOT, len(draft.tokens[row]) - 1)


def nodes_of(draft: Draft, rows: Iterable[int]) -> list[tuple[int, int]]:
    """(row, node) of some rows, each root first."""
    return [(row, node) for row in rows for node in range(ROOT, len(draft.tokens[row]))]


def tokens_to(draft: Draft, nodes: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """The row and the drafted tokens of the path to each (row, node)."""
    if not draft.parents:
        return [(row, draft.tokens[row][: node + 1]) for row, node in nodes]
    return [(row, [draft.tokens[row][each] for each in path_to(node, draft.parents[row])]) for row, node in nodes]


def by_row(nodes: Sequence[tuple[int, int]], values: Sequence[Key], rows: int) -> list[list[Key]]:
    """The values of each row's nodes."""
    found: list[list[Key]] = [[] for _ in range(rows)]
    for (row, _), value in zip(nodes, values):
        found[row].append(value)
    return found


def within_rows(tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> list[list[int]]:
    """The index in its row of the token that each token follows, -1 for the first; a row's last tokens are its tree's nodes."""
    rows = ((len(row) - len(tree), tree) for row, tree in zip(tokens, parents))
    return [[*range(-1, first - 1), *(first + parent for parent in tree)] for first, tree in rows]


def branched(children: Sequence[Children[Key]], roots: Sequence[Key], prefix: Prefix, plan: Plan) -> TreeDraft:
    """A tree for each row, by the row's ``children``: see `grow`. The rows of a beam search share one tree: see `ahead`."""
    assert plan.tree is not None
    trees: list[tuple[list[int], list[int]]] = [([], []) for _ in roots]
    for row, request in enumerate(prefix.requests):
        if request.beam is None:
            trees[row] = grow(children[row], roots[row], plan.tree)
    for rows in prefix.searches():
        totals, width = [node.total for node in prefix.beams_of(rows[0]).live], breadth(prefix.search(rows[0]).beam)
        own = [children[row] for row in rows], [roots[row] for row in rows]
        for row, tree in zip(rows, ahead(*own, totals, width, max(plan.lengths), prefix.symbols.eos)):
            trees[row] = tree
    return TreeDraft([tokens for tokens, _ in trees], [parents for _, parents in trees])


def breadth(beam: Beam) -> int:
    """Hypotheses drafted at each depth of a search."""
    return int(SPARE * beam.size)


def ahead(
    children: Sequence[Children[Key]], roots: Sequence[Key], totals: Sequence[float], width: int, longest: int, eos: int
) -> list[tuple[list[int], list[int]]]:
    """Tokens and parents of the trees behind live hypotheses with these ``totals`` (nats): the ``width`` survivors of each of
    ``longest`` steps of a beam search by the drafter's scores."""
    trees: list[tuple[list[int], list[int]]] = [([], []) for _ in roots]
    live = [(total, row, ROOT, root) for row, (total, root) in enumerate(zip(totals, roots))]
    for _ in range(longest):
        found = [
            (total + score, row, node, token, key)
            for total, row, node, above in live
            for score, token, key in islice(children[row](above), width)
            if token != eos and score > -math.inf
        ]
        found.sort(key=lambda each: -each[0])
        live = []
        for total, row, node, token, key in found[:width]:
            tokens, parents = trees[row]
            tokens.append(token)
            parents.append(node)
            live.append((total, row, len(tokens) - 1, key))
    return trees


def grow(children: Children[Key], root: Key, tree: Tree) -> tuple[list[int], list[int]]:
    """Tokens and parents of a row's tree. ``children(key)`` are a node's candidates, the likeliest first; none ends a path.

    Without a shape, the likeliest paths (EAGLE-2, Li et al. 2024, arXiv 2406.16858); with one, its
    nodes (Medusa, Cai et al. 2024, arXiv 2401.10774) as far as there are candidates.
    """
    return (_shaped if tree.shape else _likeliest)(children, root, tree)


def _likeliest(children: Children[Key], root: Key, tree: Tree) -> tuple[list[int], list[int]]:
    """Best first: a path is never likelier than its parts, so the best open node is the best of all others. Of siblings only
    the next one is open."""
    tokens: list[int] = []
    parents: list[int] = []
    # Ordered by falling log-probability of the path, parent and rank: parent's log-probability and further siblings come last.
    opened: list[tuple[float, int, int, int, Key, float, Iterator[Child[Key]]]] = []

    def open_next(above: float, parent: int, rank: int, siblings: Iterator[Child[Key]]) -> None:
        found = next(siblings, None)
        if found is not None and above + found[0] > -math.inf:
            heapq.heappush(opened, (-above - found[0], parent, rank, found[1], found[2], above, siblings))

    open_next(0.0, -1, 0, iter(children(root)))
    while opened and len(tokens) < tree.nodes:
        negative, parent, rank, token, key, above, siblings = heapq.heappop(opened)
        tokens.append(token)
        parents.append(parent)
        open_next(above, parent, rank + 1, siblings)
        open_next(-negative, len(tokens) - 1, 0, iter(children(key)))
    return tokens, parents


def _shaped(children: Children[Key], root: Key, tree: Tree) -> tuple[list[int], list[int]]:
    """The nodes of a shape, short paths first."""
    tokens: list[int] = []
    parents: list[int] = []
    ranked: dict[tuple[int, ...], tuple[int, float, list[Child[Key]]]] = {}  # by path: node, log-probability, children
    ranked[()] = -1, 0.0, sorted(children(root), key=lambda child: -child[0])
    for path in sorted(tree.shape, key=len):
        if len(tokens) == tree.nodes:
            break
        parent, above, candidates = ranked.get(path[:-1], (-1, 0.0, []))
        if path[-1] < len(candidates):
            score, token, key = candidates[path[-1]]
            if above + score > -math.inf:
                ranked[path] = len(tokens), above + score, sorted(children(key), key=lambda child: -child[0])
                tokens.append(token)
                parents.append(parent)
    return tokens, parents
