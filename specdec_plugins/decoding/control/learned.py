"""What was learned before, as a start for controllers: by gate, how often tokens pass, and what iterations take.

It weighs little: `DRAFTS` drafts and `PULLS` measurements, so that a text or a machine of another kind is soon believed instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate
from specdec_plugins.decoding.control.batches import class_of
from specdec_plugins.decoding.control.costs import Cost, CostModel
from specdec_plugins.decoding.options import OPEN, Gate

DRAFTS = 32  # drafts that learned rates weigh
PULLS = 4  # measurements that learned seconds weigh


@dataclass(frozen=True)
class LearnedCost:
    """Seconds of an iteration with so many rows and a draft of ``length`` tokens; 0 is a plain one."""

    rows: int
    length: int
    seconds: float

    def __post_init__(self) -> None:
        if self.rows < 1 or self.length < 0 or not 0 < self.seconds < float("inf"):
            raise ValueError(f"{self.seconds} seconds for {self.rows} rows and {self.length} tokens cannot be")


@dataclass(frozen=True)
class LearnedGate:
    """What was learned of drafts behind a gate. Plain iterations belong to the open gate."""

    verifier_gate: float
    drafter_gate: float
    rates: tuple[float, ...]  # probability that a token passes, by position, where those before it did
    costs: tuple[LearnedCost, ...]

    def __post_init__(self) -> None:
        if not all(0 <= each <= 1 for each in (self.verifier_gate, self.drafter_gate, *self.rates)):
            raise ValueError("a gate or a rate is not a probability")


@dataclass(frozen=True)
class Learned:
    """What was learned of a pair on a machine."""

    gates: tuple[LearnedGate, ...]

    def keys(self, gates: Iterable[Gate]) -> set[int]:
        """The classes of batches in which drafts behind such gates were measured."""
        return {class_of(cost.rows) for gate in gates for cost in self._of(gate).costs if cost.length}

    def start(self, estimate: AcceptanceEstimate, gate: Gate) -> None:
        """Begin an acceptance estimate with what is known."""
        for position, rate in enumerate(self._of(gate).rates[: len(estimate.reached)]):
            estimate.reached[position], estimate.passed[position] = float(DRAFTS), DRAFTS * rate

    def costs(self, key: int, gate: Gate) -> CostModel:
        """The costs of a class of batches, and of its plain iterations."""
        drafts = [cost for cost in self._of(gate).costs if cost.length]
        plain = [cost for cost in self._of(OPEN).costs if not cost.length]
        return CostModel({cost.length: Cost(cost.seconds, PULLS) for cost in plain + drafts if class_of(cost.rows) == key})

    def _of(self, gate: Gate) -> LearnedGate:
        known = (each for each in self.gates if (each.verifier_gate, each.drafter_gate) == gate)
        return next(known, LearnedGate(*gate, (), ()))
