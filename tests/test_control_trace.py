"""The throughput policy chooses the lengths that were recorded.

``control_traces.json`` was recorded from the controller of commit 09c9bf4 on the machines of `control_simulation`. For each
simulation it holds a digest of all lengths, and the first 200 of them, each as a character ("0" is 0, "8" is 8, "A" is 17).
A change of decisions that is wanted is recorded anew: ``python tests/test_control_trace.py``.
"""

import hashlib
import json
from pathlib import Path

import pytest
from control_simulation import BLOCK_SIZES, PROGRAMMES, simulate

from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.values import Outcome

RECORD = Path(__file__).with_name("control_traces.json")
SEEDS = {
    "one": (0, 2, 6, 9), "few": (2, 5, 6, 9), "batches": (1, 8, 9), "large": (3, 9, 11), "sweep": (0, 3, 8), "server": (3, 5, 9),
}  # fmt: skip
CASES = [f"{name} {block_size} {seed}" for name in SEEDS for block_size in BLOCK_SIZES for seed in SEEDS[name]]


def trace(case: str) -> tuple[str, str]:
    """Digest of the lengths chosen in a simulation, and the first of them."""
    name, block_size, seed = case.split()
    controller, plans = Throughput(int(block_size)), []

    def choose(rows):
        plans.append(controller.plan(range(rows)))
        return plans[-1].lengths[0]

    def observe(steps, seconds):
        controller.update(Outcome(plans[-1], steps, seconds))

    lengths = simulate(PROGRAMMES[name], int(seed), choose, observe)
    return hashlib.sha256(bytes(lengths)).hexdigest()[:16], "".join(chr(ord("0") + length) for length in lengths[:200])


@pytest.mark.parametrize("case", CASES)
def test_lengths_are_as_recorded(case):
    digest, first = json.loads(RECORD.read_text())[case]
    found_digest, found_first = trace(case)
    assert found_first == first
    assert found_digest == digest


if __name__ == "__main__":
    RECORD.write_text(json.dumps({case: trace(case) for case in CASES}, indent=0) + "\n")
