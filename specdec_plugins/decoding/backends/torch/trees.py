"""The rules for trees. Each row is judged by its own rule, at every node with that node's prefix.

The exact, coupled and tolerant rules judge a token by its prefix alone, whatever its siblings are. So each token is judged as a
chain of one, and the longest path of passing tokens is accepted; among equally long ones, the one that the verifier scores
highest. Under the exact and the coupled rule that is the path of the verifier's own tokens.

The rejection rule tries siblings in turn, each a point mass: it accepts x with the verifier's probability of x, otherwise removes
x and renormalises the rest (multi-step speculative sampling, Miao et al. 2024, arXiv 2305.09781). The own token is drawn from
what is left.

B rows, N nodes of all rows including each root, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.backends import Pass
from specdec_plugins.decoding.backends.torch.arrays import tensor
from specdec_plugins.decoding.backends.torch.constraints import repeat_table, repeated, restrict
from specdec_plugins.decoding.backends.torch.noise import uniform
from specdec_plugins.decoding.backends.torch.sampling import Table, draw, warp
from specdec_plugins.decoding.backends.torch.tensors import send
from specdec_plugins.decoding.constraints import Bounds
from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.trees import ROOT, TreeDraft, depths, nodes_of, path_to, tokens_to
from specdec_plugins.decoding.values import Draft, Draws, Verdict


class Accepted(NamedTuple):
    """A row's accepted nodes, the own token, the scores (nats) of all if wanted, and whether the limit forced the own one."""

    path: list[int]
    own: int
    scores: list[float]
    cut: bool


@dataclass(frozen=True)
class Forest:
    """Trees of all rows, with the `Bounds` and `Draws` at their roots."""

    draft: TreeDraft
    bounds: Bounds
    draws: Sequence[Draws | None] | None

    def after(self, nodes: Sequence[tuple[int, int]]) -> tuple[Bounds, list[Draws | None] | None]:
        """`Bounds` and `Draws` after each (row, node), its path being part of the prefix."""
        paths = tokens_to(self.draft, nodes)
        bounds = self.bounds.after(paths)
        if self.draws is None:
            return bounds, None
        rows = ((self.draws[row], path) for row, path in paths)
        return bounds, [draw and draw._replace(prefix=[*draw.prefix, *path]) for draw, path in rows]


@torch.inference_mode()
def judge(
    scores: Pass,
    draft: TreeDraft,
    bounds: Bounds,
    tolerances: Sequence[Tolerance],
    draws: Sequence[Draws | None] | None,
    scored: Sequence[bool] | None = None,
) -> Verdict:
    """Judge trees by a pass that has read each row's last token and its nodes. See `Pass.judge`."""
    forest = Forest(draft, bounds, draws)
    scored = [True] * len(draft.tokens) if scored is None else scored
    rejects = [draw is not None and draw.sampling.rule == "rejection" for draw in draws or [None] * len(draft.tokens)]
    by_path = [row for row, walks in enumerate(rejects) if not walks]
    by_walk = [row for row, walks in enumerate(rejects) if walks]
    accepted: dict[int, Accepted] = {}
    if by_path:
        accepted |= zip(by_path, longest_paths(scores, forest, by_path, tolerances, scored))
    if by_walk:
        accepted |= zip(by_walk, walk(scores, forest, by_walk, scored))
    paths, own, parts, cut = (list(each) for each in zip(*(accepted[row] for row in range(len(rejects)))))
    return Verdict(list(map(len, paths)), own, parts, cut, paths)


def longest_paths(
    scores: Pass, forest: Forest, rows: Sequence[int], tolerances: Sequence[Tolerance], scored: Sequence[bool]
) -> list[Accepted]:
    """By the rules that judge a token by its prefix alone.

    The backend judges each node as a chain of one token, by the logits after its parent and, for the own token, those after the
    node itself. The root is an empty chain. Without tolerance equally long paths have the same tokens, so that no score is needed
    to choose one.
    """
    tokens, parents = forest.draft.tokens, forest.draft.parents
    logits, nodes = tensor(scores.logits()), nodes_of(forest.draft, rows)
    before = [(row, ROOT if node == ROOT else parents[row][node]) for row, node in nodes]
    width = logits.size(1)
    pairs = [[row * width + parent + 1, row * width + node + 1] for (row, node), (_, parent) in zip(nodes, before)]
    bounds, draws = forest.after(before)
    judged = scores.with_logits(logits.flatten(0, 1)[send(pairs, logits.device)]).judge(
        Draft([[] if node == ROOT else [tokens[row][node]] for row, node in nodes]),
        bounds,
        [tolerances[row] for row, _ in nodes],
        draws,
        [scored[row] or tolerances[row].beta > 1 for row, _ in nodes],
    )
    assert judged.own is not None
    verdicts = iter(zip(judged.accepted, judged.own, judged.scores, judged.cut))
    best = [best_path(parents[row], [next(verdicts) for _ in range(ROOT, len(tokens[row]))]) for row in rows]
    return [each if scored[row] else each._replace(scores=[]) for row, each in zip(rows, best)]


def best_path(parents: Sequence[int], judged: Sequence[tuple[int, int, list[float], bool]]) -> Accepted:
    """The longest path of a tree. ``judged``, of the root and each node: how many tokens passed, 0 or 1, the own token after
    them, the scores of both if known, and whether the limit forced the own one."""
    best = Accepted([], *judged[0][1:])
    reached: dict[int, list[float]] = {ROOT: []}  # nodes whose path passes, and the scores of its tokens
    for node, (parent, (passes, own, scores, cut)) in enumerate(zip(parents, judged[1:])):
        if not passes or parent not in reached:
            continue
        reached[node] = [*reached[parent], *scores[:1]]
        path, longest = path_to(node, parents), len(best.path)
        if (len(path), sum(reached[node])) > (longest, sum(best.scores[:longest])):
            best = Accepted(path, own, [*reached[node], *scores[1:]], cut)
    return best


def walk(scores: Pass, forest: Forest, rows: Sequence[int], scored: Sequence[bool]) -> list[Accepted]:
    """By the rejection rule. Position 0 of a row's logits is after its root, position i + 1 after node i."""
    tokens, parents, logits = forest.draft.tokens, forest.draft.parents, tensor(scores.logits())
    device, width, nodes = logits.device, logits.size(1), nodes_of(forest.draft, rows)
    numbers = {node: number for number, node in enumerate(nodes)}
    after = logits.flatten(0, 1)[send([row * width + node + 1 for row, node in nodes], device)]  # (N, V)
    bounds, draws = forest.after(nodes)
    assert draws is not None
    weights = allowed_weights(after, bounds, draws)  # (N, V)
    children = [(row, node) for row, node in nodes if node != ROOT]
    at = [[numbers[row, parents[row][node]] for row, node in children], [tokens[row][node] for row, node in children]]
    chances = dict(zip(children, weights[tuple(send(at, device))].tolist()))

    ends: list[int] = []  # the number of each row's last accepted node
    refused: list[tuple[int, int]] = []  # (index of the row, token) after its end
    for row, uniforms in zip(rows, accept_uniforms(forest, rows)):
        node: int | None = ROOT
        while node is not None:
            end = row, node
            node, gone = first_accepted(*end, forest.draft, chances, uniforms[len(path_to(node, parents[row]))])
        refused += [(len(ends), token) for token in gone]
        ends.append(numbers[end])

    eos, accepted = bounds.constraints.symbols.eos, []
    own = draw_rest(weights[send(ends, device)], refused, [draws[number] for number in ends])
    for number, token in zip(ends, own):
        row, node = nodes[number]
        path, limited = path_to(node, parents[row]), bounds.room[number] <= 0
        committed = [*(tokens[row][each] for each in path), eos if limited else token]
        said = list[float]()
        if scored[row]:
            raw = scores.with_logits(after[send([numbers[row, each] for each in (ROOT, *path)], device)][None])
            (said,) = raw.scores([committed])
        accepted.append(Accepted(path, committed[-1], said, limited and token != eos))
    return accepted


def allowed_weights(logits: Tensor, bounds: Bounds, draws: Sequence[Draws | None]) -> Tensor:
    """(N, V) float64 probabilities of the next token after each node, for logits (N, V). The length limit is left out: no node
    lies beyond it."""
    device, (rows, vocabulary) = logits.device, logits.shape
    repeats = None
    if bounds.repeats:
        lines, most = repeat_table(bounds.repeats, vocabulary, rows)
        table = send(lines, device)
        repeats = repeated(table, table[:, :0], vocabulary, most)
    allowed, _ = restrict(logits[:, None], bounds.constraints, send(bounds.minimum, device)[:, None], None, repeats)
    return warp(allowed, Table.of(draws, rows, vocabulary, device))[:, 0]


def accept_uniforms(forest: Forest, rows: Sequence[int]) -> list[list[list[float]]]:
    """(B, depth + 1, tries) uniform numbers for each try at each of a row's next positions; the first try's are a chain's."""
    assert forest.draws is not None
    parents = [forest.draft.parents[row] for row in rows]
    depth = max((max(depths(tree), default=0) for tree in parents), default=0)
    tries = max((max(Counter(tree).values(), default=0) for tree in parents), default=0)
    table = Table.of([forest.draws[row] for row in rows], len(rows), 0, torch.device("cpu"))
    return uniform(table.bits(Purpose.ACCEPT, depth + 1, torch.arange(tries))).tolist()


def first_accepted(
    row: int, node: int, draft: TreeDraft, chances: dict[tuple[int, int], float], uniforms: Sequence[float]
) -> tuple[int | None, list[int]]:
    """The first accepted child of a node, or None, and the tokens refused before it."""
    refused: list[int] = []
    left = 1.0  # probability of all tokens not yet refused
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


def draw_rest(weights: Tensor, refused: Sequence[tuple[int, int]], draws: Sequence[Draws | None]) -> list[int]:
    """B tokens drawn by weights (B, V) without those of the ``refused`` (row, token)."""
    rest = weights.clone()
    if refused:
        rest[tuple(send(list(zip(*refused)), rest.device))] = 0.0
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, weights)  # only rounding leaves nothing
    return draw(rest[:, None], Table.of(draws, len(draws), weights.size(-1), rest.device), Purpose.RECOVER)[:, 0].tolist()
