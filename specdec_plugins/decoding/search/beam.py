"""The state of a beam search, which never changes: a step makes a new one. Knows nothing about models or batches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specdec_plugins.decoding.elementary import power
from specdec_plugins.decoding.options import Beam


class Node(NamedTuple):
    """A hypothesis of ``length`` tokens: the one before it, and one more token. ``total`` sums the scores (nats)."""

    before: "Node | None"
    token: int
    score: float
    total: float
    length: int

    def then(self, token: int, score: float) -> "Node":
        return Node(self, token, score, self.total + score, self.length + 1)

    def path(self) -> list["Node"]:
        """Its prefixes from one token on, itself last."""
        nodes, node = [], self
        while node.before is not None:
            nodes.append(node)
            node = node.before
        return nodes[::-1]

    def after(self, length: int) -> list[int]:
        """Its tokens after the first ``length``."""
        tokens, node = [], self
        while node.length > length and node.before is not None:
            tokens.append(node.token)
            node = node.before
        return tokens[::-1]


ROOT = Node(None, -1, 0.0, 0.0, 0)


class Ranked(NamedTuple):
    """The best tokens to follow a hypothesis, best first, with log-probabilities (nats)."""

    tokens: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Beams:
    """The ``live`` hypotheses, all of one length, best first; ``finished`` ones with normalised scores.

    ``parents[i]`` is the index that live hypothesis i's prefix had before the last step.
    """

    live: tuple[Node, ...] = ()
    finished: tuple[tuple[float, Node], ...] = ()
    parents: tuple[int, ...] = ()
    over: bool = False

    def best(self) -> list[tuple[float, Node]]:
        """The finished hypotheses, best first."""
        return sorted(self.finished, key=lambda each: -each[0])

    @cached_property  # the rows of a search ask for it
    def shared(self) -> int:
        """The number of tokens that all hypotheses begin with."""
        nodes = [*self.live, *(node for _, node in self.finished)]
        length = min(node.length for node in nodes)
        while True:
            nodes = [_prefix(node, length) for node in {id(node): node for node in nodes}.values()]
            if all(node is nodes[0] for node in nodes):
                return length
            length -= 1


def _prefix(node: Node, length: int) -> Node:
    while node.length > length and node.before is not None:
        node = node.before
    return node


@dataclass(frozen=True)
class Search:
    """What the steps of a request's search depend on.

    Hypotheses have at most ``limit`` tokens before eos; with ``ends``, one at the limit ends with eos.
    """

    beam: Beam
    eos: int
    limit: int
    ends: bool = True

    def normalised(self, node: Node) -> float:
        return node.total / power(max(1, node.length), self.beam.length_penalty)

    def kept(self, finished: Iterable[tuple[float, Node]]) -> tuple[tuple[float, Node], ...]:
        """The best ``size`` finished hypotheses, best first."""
        return tuple(sorted(finished, key=lambda each: -each[0])[: self.beam.size])

    def continuations(self, beams: Beams, candidates: Sequence[Ranked]) -> Iterator[tuple[int, Node]]:
        """The best continuations, with their parents. Of equal ones the higher parent's come first."""
        pool = [
            (-node.total - score, parent, rank, token, score)
            for parent, (node, found) in enumerate(zip(beams.live, candidates))
            for rank, (token, score) in enumerate(zip(*found))
            if score > -math.inf
        ]
        pool.sort()
        for _, parent, _, token, score in pool[: self.beam.candidates]:
            yield parent, beams.live[parent].then(token, score)
