"""The rules where drafted tokens branch. Each row is judged by its own rule, at every node with that node's prefix.

The exact, the coupled and the tolerant rule say of a token whether it passes after its prefix, whatever was drafted beside it.
So each token is judged as a chain of one, and the longest path of tokens that pass is accepted; of equally long ones the one that
the verifier scores higher. Under the exact and the coupled rule that is the path of the verifier's own tokens.

Under the rejection rule the tokens after a node are tried one after the other, each a point mass: x is accepted with the
verifier's probability of it, else x is taken out and what remains is normalised (multi-step speculative sampling, Miao et al.
2024, arXiv 2305.09781). The own token is drawn from what remains after the last one.

B rows, N nodes of all rows with each root, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.constraints import Bounds, repeat_table, repeated, restrict
from specdec_plugins.decoding.noise import Purpose, uniform
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.roles import Scores
from specdec_plugins.decoding.sampling import Table, draw, warp
from specdec_plugins.decoding.trees import TreeDraft, depths, path_to
from specdec_plugins.decoding.values import Draft, Draws, Verdict, send

ROOT = -1  # the last committed token, after which a tree begins


class Taken(NamedTuple):
    """What is accepted of a row's tree: nodes, the own token, the scores (nats) of all, whether the limit forced the own one."""

    path: list[int]
    own: int
    scores: list[float]
    cut: bool


@dataclass(frozen=True)
class Forest:
    """Nodes of some rows, each with what holds after it: `Bounds` and `Draws` of its prefix, its path included."""

    draft: TreeDraft
    bounds: Bounds
    draws: Sequence[Draws | None] | None

    def bounds_after(self, nodes: Sequence[tuple[int, int]]) -> Bounds:
        """The constraints after each of some (row, node)."""
        counts = [len(path_to(node, self.draft.parents[row])) for row, node in nodes]
        constraints, room, minimum, repeats = self.bounds
        places = [(row, count) for (row, _), count in zip(nodes, counts)]
        return Bounds(
            constraints, [room[row] - count for row, count in places], [max(0, minimum[row] - count) for row, count in places],
            repeats and [repeats[row]._replace(prefix=[*repeats[row].prefix, *self.path(row, node)]) for row, node in nodes],
        )  # fmt: skip

    def path(self, row: int, node: int) -> list[int]:
        """The tokens from the root to a node."""
        return [self.draft.tokens[row][each] for each in path_to(node, self.draft.parents[row])]

    def draws_after(self, nodes: Sequence[tuple[int, int]]) -> list[Draws | None] | None:
        """What draws the token after each of some (row, node)."""
        if self.draws is None:
            return None
        found: list[Draws | None] = []
        for row, node in nodes:
            draw = self.draws[row]
            found.append(draw and draw._replace(prefix=[*draw.prefix, *self.path(row, node)]))
        return found


@torch.inference_mode()
def judge(
    scores: Scores, draft: TreeDraft, bounds: Bounds, tolerances: Sequence[Tolerance], draws: Sequence[Draws | None] | None
) -> Verdict:
    """Judge trees by a pass that has read each row's last token and its nodes."""
    forest = Forest(draft, bounds, draws)
    rejects = [draw is not None and draw.sampling.rule == "rejection" for draw in draws or [None] * len(draft.tokens)]
    by_path = [row for row, walks in enumerate(rejects) if not walks]
    by_walk = [row for row, walks in enumerate(rejects) if walks]
    taken: dict[int, Taken] = {}
    if by_path:
        taken |= zip(by_path, longest_paths(scores, forest, by_path, tolerances))
    if by_walk:
        taken |= zip(by_walk, walk(scores.logits(), forest, by_walk))
    paths, own, parts, cut = (list(each) for each in zip(*(taken[row] for row in range(len(rejects)))))
    return Verdict(list(map(len, paths)), own, parts, cut, paths)


def longest_paths(scores: Scores, forest: Forest, rows: Sequence[int], tolerances: Sequence[Tolerance]) -> list[Taken]:
    """By the rules that judge each token after its prefix alone.

    A node is judged as a draft of one token after its parent, by the backend's code for chains: by the logits after the parent,
    and by those after the node, which the own token is chosen by if the node passes. The root is a draft of none.
    """
    tokens, parents = forest.draft.tokens, forest.draft.parents
    logits = scores.logits()
    nodes = [(row, node) for row in rows for node in range(ROOT, len(tokens[row]))]
    before = [(row, ROOT if node == ROOT else parents[row][node]) for row, node in nodes]
    width = logits.size(1)
    pairs = send([[row * width + parent + 1, row * width + node + 1] for (row, node), (_, parent) in zip(nodes, before)],
                 logits.device)  # fmt: skip
    judged = scores.with_logits(logits.flatten(0, 1)[pairs]).judge(
        Draft([[] if node == ROOT else [tokens[row][node]] for row, node in nodes]),
        forest.bounds_after(before), [tolerances[row] for row, _ in nodes], forest.draws_after(before),
    )  # fmt: skip
    assert judged.own is not None
    verdicts = iter(zip(judged.accepted, judged.own, judged.scores, judged.cut))
    return [best_path(parents[row], [next(verdicts) for _ in range(ROOT, len(tokens[row]))]) for row in rows]


def best_path(parents: Sequence[int], judged: Sequence[tuple[int, int, list[float], bool]]) -> Taken:
    """The longest path of a tree, by what was ``judged`` of the root and of each node: how many tokens passed, 0 or 1, the own
    token after them, the scores of both, and whether the limit forced the own one."""
    _, own, scores, cut = judged[0]
    best = Taken([], own, scores, cut)
    reached: dict[int, list[float]] = {ROOT: []}  # nodes whose path passes, and the scores of its tokens
    for node, (parent, (passes, own, scores, cut)) in enumerate(zip(parents, judged[1:])):
        if not passes or parent not in reached:
            continue
        reached[node] = [*reached[parent], scores[0]]
        path = path_to(node, parents)
        rank, other = ((len(each), sum(said[: len(each)])) for each, said in ((path, reached[node]), (best.path, best.scores)))
        if rank > other:
            best = Taken(path, own, [*reached[node], scores[1]], cut)
    return best


def walk(logits: Tensor, forest: Forest, rows: Sequence[int]) -> list[Taken]:
    """By the rejection rule, by logits (R, W, V): position 0 of a row is after its root, position i + 1 after node i."""
    tokens, parents = forest.draft.tokens, forest.draft.parents
    device, width = logits.device, logits.size(1)
    nodes = [(row, node) for row in rows for node in range(ROOT, len(tokens[row]))]
    numbers = {node: number for number, node in enumerate(nodes)}
    after = logits.flatten(0, 1)[send([row * width + node + 1 for row, node in nodes], device)]  # (N, V)
    weights = allowed_weights(after, forest, nodes)  # (N, V)
    children = [(row, node) for row, node in nodes if node != ROOT]
    at = [[numbers[row, parents[row][node]] for row, node in children], [tokens[row][node] for row, node in children]]
    chances = dict(zip(children, weights[tuple(send(at, device))].tolist()))

    ends: list[tuple[int, int]] = []
    refused: list[tuple[int, int]] = []  # (number of the row, token) after its end
    for row, uniforms in zip(rows, accept_uniforms(forest, rows)):
        node: int | None = ROOT
        while node is not None:
            end = row, node
            node, gone = first_accepted(*end, forest.draft, chances, uniforms[len(path_to(node, parents[row]))])
        refused += [(len(ends), token) for token in gone]
        ends.append(end)

    own = draw_rest(weights[send([numbers[end] for end in ends], device)], refused, forest, ends)
    room, eos = forest.bounds_after(ends).room, forest.bounds.constraints.symbols.eos
    taken = []
    for (row, node), left, token in zip(ends, room, own):
        path, limited = path_to(node, parents[row]), left <= 0
        said = [*(tokens[row][each] for each in path), eos if limited else token]
        raw = after[send([numbers[row, each] for each in (ROOT, *path)], device)].float()
        scores = raw.gather(1, send(said, device)[:, None])[:, 0] - raw.logsumexp(-1)  # of the model without constraints
        taken.append(Taken(path, said[-1], scores.tolist(), limited and token != eos))
    return taken


def allowed_weights(logits: Tensor, forest: Forest, nodes: Sequence[tuple[int, int]]) -> Tensor:
    """(N, V) float64 the probabilities that tokens are drawn by after each node, by logits (N, V); the limit apart, beyond which
    a tree has no nodes."""
    device, bounds, draws = logits.device, forest.bounds_after(nodes), forest.draws_after(nodes)
    assert draws is not None
    repeats = None
    if bounds.repeats:
        rows, most = repeat_table(bounds.repeats, logits.size(-1), len(nodes))
        table = send(rows, device)
        repeats = repeated(table, table[:, :0], logits.size(-1), most)
    allowed, _ = restrict(logits[:, None], bounds.constraints, send(bounds.minimum, device)[:, None], None, repeats)
    return warp(allowed, Table.of(draws, len(nodes), logits.size(-1), device))[:, 0]


def accept_uniforms(forest: Forest, rows: Sequence[int]) -> list[list[list[float]]]:
    """(B, depth + 1, tries) numbers by which each try at each of a row's next positions is decided; the first as in a chain."""
    assert forest.draws is not None
    parents = [forest.draft.parents[row] for row in rows]
    depth = max((max(depths(tree), default=0) for tree in parents), default=0)
    tries = max((max(Counter(tree).values(), default=0) for tree in parents), default=0)
    table = Table.of([forest.draws[row] for row in rows], len(rows), 0, torch.device("cpu"))
    return uniform(table.bits(Purpose.ACCEPT, depth + 1, torch.arange(tries))).tolist()


def first_accepted(
    row: int, node: int, draft: TreeDraft, chances: dict[tuple[int, int], float], uniforms: Sequence[float]
) -> tuple[int | None, list[int]]:
    """The first child of a node that is accepted, None if none is, and the tokens that were refused before it."""
    refused: list[int] = []
    left = 1.0  # the probability of all tokens that are not refused yet
    children = [child for child, parent in enumerate(draft.parents[row]) if parent == node]
    for child, number in zip(children, uniforms):
        token, chance = draft.tokens[row][child], chances[row, child]
        if token in refused:
            continue
        if number * left < chance:
            return child, refused
        refused.append(token)
        left -= chance
    return None, refused


def draw_rest(
    weights: Tensor, refused: Sequence[tuple[int, int]], forest: Forest, ends: Sequence[tuple[int, int]]
) -> list[int]:  # fmt: skip
    """A token for each of B ends, by weights (B, V) without those (row, token) that are refused."""
    rest = weights.clone()
    if refused:
        rest[tuple(send(list(zip(*refused)), rest.device))] = 0.0
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, weights)  # if nothing remains, nothing was refused but for rounding
    draws = forest.draws_after(ends)
    assert draws is not None
    return draw(rest[:, None], Table.of(draws, len(ends), weights.size(-1), rest.device), Purpose.RECOVER)[:, 0].tolist()
