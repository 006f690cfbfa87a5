"""Trees of drafted tokens: what a node is, which nodes a tree has, and what became of them. Knows nothing about models.

A row's nodes are numbered from 0, parents before their children. The root, the last committed token, is no node.
"""

from collections.abc import Sequence

from specdec_plugins.decoding.values import Draft


class TreeDraft(Draft):
    """Tokens that branch: ``tokens[b][i]`` follows node ``parents[b][i]`` of row b, or the prefix where that is -1.

    Every node is certain, which the rejection rule has to know: it was not drawn.
    """

    def __init__(self, tokens: list[list[int]], parents: list[list[int]]):
        super().__init__(tokens)
        self.parents = parents

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
