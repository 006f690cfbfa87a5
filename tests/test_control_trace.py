"""The throughput policy chooses the lengths that were recorded.

``control_traces.json`` was recorded on the machines of `control_simulation`. For each simulation, with iterations one by one
and up to 16 in a call, it holds a digest of all lengths, and the first 200 of them, each as a character ("0" is 0, "8" is 8, "A"
is 17).
A change of decisions that is wanted is recorded anew: ``python tests/test_control_trace.py``.
"""

import hashlib
import json
from itertools import chain
from pathlib import Path

import pytest
from control_simulation import BLOCK_SIZES, PROGRAMMES, simulate

from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.values import Outcome

RECORD = Path(__file__).with_name("control_traces.json")
REPEATS = (1, 16)
SEEDS = {
    "one": (0, 2, 6, 9), "few": (2, 5, 6, 9), "batches": (1, 8, 9), "large": (3, 9, 11), "sweep": (0, 3, 8), "server": (3, 5, 9),
}  # fmt: skip
CASES = [f"{name} {block_size} {seed}" for name in SEEDS for block_size in BLOCK_SIZES for seed in SEEDS[name]]


def trace(case: str, repeats: int) -> tuple[str, str]:
    """Digest of the lengths chosen in a simulation, and the first of them; each plan is repeated up to ``repeats`` times."""
    name, block_size, seed = case.split()
    controller, outcomes = Throughput(int(block_size)), []

    def tell():
        if outcomes:
            steps, seconds = zip(*outcomes)
            controller.update(Outcome(plan, list(chain.from_iterable(steps)), sum(seconds), len(outcomes)))
            outcomes.clear()

    def choose(rows):
        nonlocal plan
        if plan is None or len(outcomes) == min(plan.times, repeats) or rows != len(plan.lengths):
            tell()
            plan = controller.plan(range(rows))
        return plan.lengths[0]

    plan = None
    lengths = simulate(PROGRAMMES[name], int(seed), choose, lambda *outcome: outcomes.append(outcome))
    return hashlib.sha256(bytes(lengths)).hexdigest()[:16], "".join(chr(ord("0") + length) for length in lengths[:200])


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("case", CASES)
def test_lengths_are_as_recorded(case, repeats):
    digest, first = json.loads(RECORD.read_text())[f"{case}, {repeats}"]
    found_digest, found_first = trace(case, repeats)
    assert found_first == first
    assert found_digest == digest


if __name__ == "__main__":
    RECORD.write_text(
        json.dumps({f"{case}, {repeats}": trace(case, repeats) for case in CASES for repeats in REPEATS}, indent=0) + "\n"
    )
