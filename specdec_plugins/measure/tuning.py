"""Learn offline what controllers would learn while decoding: every arm decodes a text in turn, at a few batch sizes."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate, committed
from specdec_plugins.decoding.control.arms import GATES, lengths_for
from specdec_plugins.decoding.control.learned import Learned, LearnedCost, LearnedGate
from specdec_plugins.decoding.options import OPEN, Gate
from specdec_plugins.decoding.values import Outcome, Plan, uniform

if TYPE_CHECKING:
    from specdec_plugins.translator import Translator

ALL = 1.0  # of what was seen counts, however long ago
CALL = 16  # iterations of a plan, in one call where the loop is native


class Recorder:
    """A controller that plays one arm, and takes down what full batches of ``rows`` take."""

    def __init__(self, length: int, gate: Gate, rows: int, acceptance: AcceptanceEstimate):
        self.length, self.gate, self.rows, self.acceptance = length, gate, rows, acceptance
        self.seconds, self.iterations = 0.0, 0

    def plan(self, prefix: Sized) -> Plan:
        return uniform(len(prefix), self.length, CALL, self.gate)

    def update(self, outcome: Outcome) -> None:
        self.acceptance.learn(outcome)
        if len(outcome.plan.lengths) == self.rows:
            self.seconds += outcome.seconds
            self.iterations += outcome.times


def learn(translator: "Translator", lines: Sequence[str], batch_sizes: Sequence[int], rounds: int) -> Learned:
    """Decode ``lines`` with every arm, at every batch size, ``rounds`` times; costs are the medians.

    The translator's controller is replaced.
    """
    block_size = translator.trained_block_size
    arms = [(0, OPEN), *((length, gate) for gate in (OPEN, *GATES) for length in lengths_for(block_size))]
    longest = lengths_for(block_size)[-1]
    acceptance = {gate: AcceptanceEstimate(longest, decay=ALL) for gate in (OPEN, *GATES)}
    sources, measured = translator.encode(lines), defaultdict(list)
    for _ in range(rounds):
        for rows in batch_sizes:
            # Copies, as rows with the same list of tokens would share its encoding.
            full = [list(source) for _ in range(-(-rows // len(sources))) for source in sources]
            for length, gate in arms:
                recorder = Recorder(length, gate, rows, acceptance[gate])
                translator.roles = translator.roles._replace(controller=recorder)
                translator.translate_tokens(full, rows)
                if recorder.iterations:
                    measured[gate, rows, length].append(recorder.seconds / recorder.iterations)
    gates = []
    for gate, estimate in acceptance.items():
        costs = [
            LearnedCost(rows, length, statistics.median(each)) for (of, rows, length), each in measured.items() if of == gate
        ]
        gates.append(LearnedGate(*gate, tuple(estimate.rates()), tuple(costs)))
    return Learned(tuple(gates))


def best_arms(learned: Learned) -> list[dict[str, Any]]:
    """A line for each number of rows: a plain iteration, and the arm of most tokens a second."""
    rates = []
    for gate in learned.gates:
        tokens = committed(gate.rates)
        rates += [(cost.rows, tokens[cost.length] / cost.seconds, cost, gate) for cost in gate.costs]
    lines = []
    for rows in sorted({each[0] for each in rates}):
        found = [each for each in rates if each[0] == rows]
        plain = max((rate for _, rate, cost, _ in found if not cost.length), default=math.nan)
        _, rate, cost, gate = max(found, key=lambda each: each[1])
        lines.append({
            "rows": rows, "plain iteration, microseconds": round(1e6 / plain) if plain > 0 else "", "best length": cost.length,
            "verifier gate": gate.verifier_gate, "drafter gate": gate.drafter_gate, "times plain": rate / plain,
        })  # fmt: skip
    return lines
