"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): drafts n-grams that the verifier produced in earlier passes.

A pool keeps n-grams by their first token. A tree verifies two branches in one pass: the pool's n-grams that begin with the last
token, and a window of guesses at the next W positions. Each window position has a trajectory, the N - 2 tokens that the verifier
last predicted there. Its next prediction completes an n-gram for the pool and drops the oldest token, so a pass yields W new
n-grams. Guesses are drafts like any others: a right one is accepted.

A chain has no room for a window. It concatenates the pool's newest n-grams, and learns pairs of tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_plugins.decoding.drafters import PairFacts, Rows
from specdec_plugins.decoding.drafters.recycling import choices
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.requests import Source
from specdec_plugins.decoding.roles import Drafter, Traits
from specdec_plugins.decoding.trees import TreeDraft
from specdec_plugins.decoding.values import Draft, Plan, Verdict

GRAM = 4  # tokens of an n-gram (N), the paper's 3 to 5
KEPT = 8  # newest n-grams kept per first token: bounds the pool and the time of a lookup
WINDOW = 1 / 2  # fraction of a tree's nodes for the window, as in the paper; the rest hold the pool's n-grams


class Pool:
    """Continuations of each token, newest first."""

    def __init__(self) -> None:
        self._after: dict[int, dict[tuple[int, ...], None]] = {}  # newest last

    def learn(self, token: int, following: tuple[int, ...]) -> None:
        known = self._after.setdefault(token, {})
        known.pop(following, None)
        known[following] = None
        if len(known) > KEPT:
            del known[next(iter(known))]

    def after(self, token: int) -> Iterator[tuple[int, ...]]:
        return reversed(self._after.get(token, {}))

    def chain(self, token: int, length: int) -> list[int]:
        """Up to ``length`` tokens after a token: its newest n-gram, then the newest one of that one's last token, and so on."""
        tokens: list[int] = []
        while len(tokens) < length and (following := next(self.after(token), None)):
            tokens += following
            token = tokens[-1]
        return tokens[:length]


# A tree that merges equal paths: the node of each (parent, token), in the order of the nodes.
Nodes = dict[tuple[int, int], int]


def add(tree: Nodes, path: Sequence[int], most: int) -> None:
    """Add a path from the root, up to ``most`` nodes in all."""
    parent = -1
    for token in path:
        if (parent, token) not in tree and len(tree) >= most:
            return
        parent = tree.setdefault((parent, token), len(tree))


def end(tree: Nodes, path: Sequence[int]) -> int | None:
    """The node at which a path ends, -1 for the root; None if the tree lacks the path."""
    node = -1
    for token in path:
        if (node, token) not in tree:
            return None
        node = tree[node, token]
    return node


@dataclass
class Window:
    """A row's window. ``columns[j]`` holds the guess at position j and its trajectory; the first one starts from the last token.

    ``wide`` is the number of columns in the present draft. First guesses come from ``source``, the source tokens that the target
    vocabulary has.
    """

    source: list[int]
    last: int = 0
    wide: int = 0
    columns: list[list[int]] = field(default_factory=list)

    def open(self, last: int, position: int, wide: int) -> None:
        """Prepare a draft of ``wide`` columns after token ``last``; the next token has ``position``."""
        self.last, self.wide = last, wide
        self.columns += [[] for _ in range(len(self.columns), wide)]
        for number, column in enumerate(self.columns):
            if number and not column:
                column.append(self.source[(position + number - 1) % len(self.source)] if self.source else last)

    def paths(self) -> list[list[int]]:
        """Each column's path: the guesses before its position, then its trajectory."""
        columns = self.columns[: self.wide]
        guesses = [column[0] for column in columns[1:]]
        return [[*guesses[: number - 1 if number else 0], *column] for number, column in enumerate(columns)]

    def move(self, chosen: Sequence[int | None], pool: Pool) -> None:
        """Take the verifier's prediction after each path; None if the draft lacked the path, so its column starts over."""
        for number, choice in enumerate(chosen):
            column = self.columns[number]
            if choice is None:
                column.clear()
                continue
            column.append(choice)
            first = column[0] if number else self.last
            following = tuple(column[1:] if number else column)
            if len(following) == GRAM - 1:
                pool.learn(first, following)
                del column[0]


class Lookahead(Drafter):
    """``copies[s]`` is source token s in the target's vocabulary, or -1."""

    traits = Traits(copies_text=True, trees=True)

    def __init__(self, copies: Sequence[int]):
        self.copies, self.pool = copies, Pool()

    def start(self, rows: int, shared: object) -> Rows[Window]:
        return Rows()

    def admit(self, state: Rows[Window], source: Source) -> None:
        for tokens in source.sentences:
            copied = [self.copies[token] for token in tokens[:-1]]
            state.rows.append(Window([token for token in copied if token >= 0]))

    def propose(self, state: Rows[Window], prefix: Prefix, plan: Plan) -> Draft:
        last = prefix.last
        if plan.tree is None:
            for row, token in zip(state.rows, last):
                row.last = token
            return Draft([self.pool.chain(token, length) for token, length in zip(last, plan.lengths)])
        tokens, parents, nodes = [], [], plan.tree.nodes
        for row, token, output, length in zip(state.rows, last, prefix.outputs, plan.lengths):
            row.open(token, len(output), columns_of(nodes, length))
            tree: Nodes = {}  # the window, and as many of the pool's n-grams as fit
            if length:
                for path in (*row.paths(), *(following[:length] for following in self.pool.after(token))):
                    add(tree, path, nodes)
            tokens.append([child for _, child in tree])
            parents.append([parent for parent, _ in tree])
        return TreeDraft(tokens, parents)

    def observe(self, state: Rows[Window], scores: Any, draft: Draft, verdict: Verdict) -> None:
        if not isinstance(draft, TreeDraft):
            for row, tokens, following in zip(state.rows, draft.tokens, choices(scores, draft, verdict)):
                for token, choice in zip((row.last, *tokens), following):
                    self.pool.learn(token, (choice,))
            return
        ends = []
        for row, tokens, parents in zip(state.rows, draft.tokens, draft.parents):
            tree: Nodes = {edge: node for node, edge in enumerate(zip(parents, tokens))}
            ends.append([end(tree, path) for path in row.paths()])
        places = [(number, node + 1) for number, nodes in enumerate(ends) for node in nodes if node is not None]
        if not places:
            return
        logits = scores.logits()
        rows, nodes = map(list, zip(*places))
        chosen = iter(logits[rows, nodes].argmax(-1).tolist())
        for row, of_row in zip(state.rows, ends):
            row.move([None if node is None else next(chosen) for node in of_row], self.pool)


def columns_of(nodes: int, length: int) -> int:
    """Columns of a window in a tree of ``nodes`` nodes and paths of up to ``length`` tokens."""
    return max(0, min(int(WINDOW * nodes + 1) // (GRAM - 1), length - GRAM + 3))


def for_pair(facts: PairFacts) -> Lookahead:
    return Lookahead(facts.copies)
