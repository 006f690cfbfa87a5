"""What a bandit may do, and what it knows of that: arms, and estimates of the tokens and the seconds of an iteration of each.

An arm is a draft length of a kind: a chain with a gate, or a tree of a size, whose paths are that long at most. The goodput of an
arm is a ratio of expectations: tokens that an iteration commits / seconds that it takes. Arms are not learned one by one. A draft
of 16 tokens shows, too, what one of 4 would have committed, and how many tokens pass does not depend on the rows: one acceptance
estimate serves all lengths of a kind, in batches of every size. Seconds are measured by class of batches and kind, with a line
through the lengths (`costs`). What was not measured yet is taken from the most similar class, in proportion to a
plain pass; for a gate from drafts without one; for a tree from a chain of as many tokens, or from the longest that is known.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.control.costs import CostModel
from specdec_plugins.decoding.options import Gate

GATES = (Gate(drafter=0.3), Gate(verifier=0.5))  # thresholds that cut off mostly what would be refused
LENGTHS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2)  # block sizes; between them the goodput differs by 2 % at most
SIZES = (1 / 4, 1 / 2, 3 / 4, 1)  # of trees, as shares of the largest
COST_NOISE = 0.1  # relative standard deviation of the seconds of a pull
SURPRISE = 0.5  # pulls: a single one may have been interrupted, and counts for less
GUESS = 0.1  # pulls that an expectation from other lengths or classes is worth


class Arm(NamedTuple):
    """What an iteration does: it drafts ``length`` tokens a row behind the gate of number ``kind``, or a tree of ``nodes``
    tokens, whose kinds follow those of the gates.
    """

    length: int
    kind: int = 0
    nodes: int = 0


NONE = Arm(0)


class Estimates(NamedTuple):
    """What is expected, and how sure that is. ``rates`` and ``deviations`` are by kind and position; the others by arm."""

    arms: Sequence[Arm]
    rates: Sequence[Sequence[float]]  # probability that a token passes
    deviations: Sequence[Sequence[float]]
    seconds: Sequence[float]  # infinity where nothing is known
    doubts: Sequence[float]  # relative standard deviation of the seconds


def lengths_for(block_size: int) -> list[int]:
    """The draft lengths of the arms, from short to long."""
    return sorted({max(1, round(share * block_size)) for share in LENGTHS})


def sizes_for(nodes: int) -> list[int]:
    """The sizes of trees that are compared, from small to large, where they may have so many ``nodes``; none for 0."""
    return sorted({max(1, round(share * nodes)) for share in SIZES}) if nodes else []


class Known:
    """What is known of one class of batches: costs by kind. Plain passes belong to the first kind."""

    def __init__(self, kinds: int):
        self.costs = [CostModel() for _ in range(kinds)]
        self.chosen = NONE  # the arm of most tokens a second, as far as is known
        self.decided = False  # whether that is a decision of its own
        self.passes = 0
        self.stable = 0  # decisions since the last surprise

    @property
    def plain(self) -> float:
        return self.costs[0].plain

    @property
    def tried(self) -> bool:
        """Whether a draft was measured."""
        return any(length for costs in self.costs for length in costs.measured)

    def seconds(self, arms: Sequence[Arm], similar: "Known | None") -> tuple[list[float], list[float]]:
        """Seconds of each arm, and their doubts."""
        longest = max(max(arm.length, arm.nodes) for arm in arms)
        lists = [self._of_kind(kind, longest, similar) for kind in range(len(self.costs))]
        seconds = []
        for arm in arms:
            known = lists[arm.kind]
            if arm.nodes and not self.costs[arm.kind].longest:
                seconds.append(next((each for each in known[arm.nodes : 0 : -1] if each < float("inf")), float("inf")))
            else:
                seconds.append(known[arm.length] if arm.length else self.plain)
        counts = [self.costs[arm.kind].measured.get(arm.length) for arm in arms]
        doubts = [COST_NOISE / ((count.samples - SURPRISE if count else 0) + GUESS) ** 0.5 for count in counts]
        return seconds, doubts

    def _of_kind(self, kind: int, longest: int, similar: "Known | None") -> list[float]:
        """Seconds by length. Beyond twice the longest length that was measured, nothing is known."""
        costs = self.costs[kind]
        if costs.longest:
            if kind and 0 in self.costs[0].measured:
                costs.measured[0] = self.costs[0].measured[0]
            told = min(costs.longest, longest)
            return costs.expected(told) + [float("inf")] * (longest - told)
        if kind:
            return self._of_kind(0, longest, similar)
        if similar is not None and similar.plain < float("inf"):
            ratio = self.plain / similar.plain
            return [ratio * each for each in similar._of_kind(0, longest, None)]
        return costs.expected(longest)
