"""What a bandit may do, and what it knows of that: arms, and estimates of the tokens and the seconds of an iteration of each.

An arm is a draft length with a gate. The goodput of an arm is a ratio of expectations: tokens that an iteration commits / seconds
that it takes. Arms are not learned one by one. A draft of 16 tokens shows, too, what one of 4 would have committed, and how many
tokens pass does not depend on the rows: one acceptance estimate serves all lengths of a gate, in batches of every size. Seconds
are measured by class of batches and gate, with a line through the lengths (`costs`). What was not measured yet is expected to be
as in the most similar class, in relation to a plain pass, and behind a gate as without it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.control.costs import CostModel
from specdec_plugins.decoding.options import Gate

GATES = (Gate(drafter=0.3), Gate(verifier=0.5))  # thresholds that cut off mostly what would be refused
LENGTHS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2)  # block sizes; between them the goodput differs by 2 % at most
COST_NOISE = 0.1  # relative standard deviation of the seconds of a pull
SURPRISE = 0.5  # pulls: a single one may have been interrupted, and counts for less
GUESS = 0.1  # pulls that an expectation from other lengths or classes is worth


class Arm(NamedTuple):
    """What an iteration does: draft ``length`` tokens a row, behind the gate of that number."""

    length: int
    gate: int = 0


NONE = Arm(0)


class Estimates(NamedTuple):
    """What is expected, and how sure that is. ``rates`` and ``deviations`` are by gate and position; the others by arm."""

    arms: Sequence[Arm]
    rates: Sequence[Sequence[float]]  # probability that a token passes
    deviations: Sequence[Sequence[float]]
    seconds: Sequence[float]  # infinity where nothing is known
    doubts: Sequence[float]  # relative standard deviation of the seconds


def lengths_for(block_size: int) -> list[int]:
    """The draft lengths of the arms, from short to long."""
    return sorted({max(1, round(share * block_size)) for share in LENGTHS})


class Known:
    """What is known of one class of batches: costs by gate. Plain passes belong to the first gate."""

    def __init__(self, gates: int):
        self.costs = [CostModel() for _ in range(gates)]
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
        longest = max(arm.length for arm in arms)
        lists = [self._of_gate(gate, longest, similar) for gate in range(len(self.costs))]
        seconds = [lists[arm.gate][arm.length] if arm.length else self.plain for arm in arms]
        counts = [self.costs[arm.gate].measured.get(arm.length) for arm in arms]
        doubts = [COST_NOISE / ((count.samples - SURPRISE if count else 0) + GUESS) ** 0.5 for count in counts]
        return seconds, doubts

    def _of_gate(self, gate: int, longest: int, similar: "Known | None") -> list[float]:
        """Seconds by length. Beyond twice the longest length that was measured, nothing is known."""
        costs = self.costs[gate]
        if costs.longest:
            if gate and 0 in self.costs[0].measured:
                costs.measured[0] = self.costs[0].measured[0]
            told = min(costs.longest, longest)
            return costs.expected(told) + [float("inf")] * (longest - told)
        if gate:
            return self._of_gate(0, longest, similar)
        if similar is not None and similar.plain < float("inf"):
            ratio = self.plain / similar.plain
            return [ratio * each for each in similar._of_gate(0, longest, None)]
        return costs.expected(longest)
