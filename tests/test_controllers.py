"""Controllers against the best fixed arm in hindsight and plain decoding, on simulated machines (`control_cells`)."""

import statistics

import pytest
from control_cells import BLOCK_SIZE, CELLS, GATED_ARMS, MAKERS, OPEN_ARMS, PAIRS, best, expectation, fair, fixed, run

from specdec_plugins.decoding.control.arms import GATES
from specdec_plugins.decoding.options import OPEN

LEAST = {"throughput": 0.97, "thompson": 0.97, "ucb": 0.965}  # of the best fixed arm's tokens a second, on average over seeds
LEAST_OF_ONE = 0.955  # with one seed
# Throughput begins to try drafts in large batches only when 1 % of the time is enough for a trial: where they pay, it is late.
SHORT = {"captions float32 batch 8": 0.9, "documentation float32 batch 8": 0.94, "captions float32 batch 32": 0.9}
SHORT["documentation int8 batch 1"] = 0.94  # one seed of six, of which a stall hit the first trials, stays with short drafts
CASES = [(cell, controller) for cell in CELLS for controller in MAKERS]


def reached(name, controller, seed):
    """Time of the best fixed arm over the controller's. Throughput chooses no gates, and is compared with arms without."""
    cell = CELLS[name]
    return best(cell, gated=controller != "throughput")[0] / run(MAKERS[controller](BLOCK_SIZE, seed), cell, seed).seconds


@pytest.mark.parametrize(("name", "controller"), CASES)
def test_controllers_are_nearly_as_good_as_the_best_fixed_arm(name, controller):
    least = SHORT.get(name, LEAST_OF_ONE) if controller == "throughput" else LEAST_OF_ONE
    assert reached(name, controller, seed=0) > least


@pytest.mark.long
@pytest.mark.parametrize(("name", "controller"), CASES)
def test_controllers_are_nearly_as_good_on_average(name, controller):
    least = LEAST[controller]
    if controller == "throughput":
        least = SHORT.get(name, least)
    assert statistics.mean(reached(name, controller, seed) for seed in range(6)) > least


def test_the_cells_ask_for_different_arms():
    """Otherwise a fixed choice would pass: none, short and long drafts, with a gate and without, are the best of some cell."""
    arms = {best(cell)[1:] for cell in CELLS.values()}
    assert (0, OPEN) in arms and {length for length, gate in arms if gate in GATES} >= {4, 8, 12}
    assert {best(cell, gated=False)[1] for cell in CELLS.values()} >= {0, 2, 6, 16}


def test_what_is_expected_of_arms_is_what_steps_give():
    """A gate saves positions, and costs few accepted tokens."""
    for pair in PAIRS.values():
        plain, cut = expectation(pair, 8, OPEN), expectation(pair, 8, GATES[0])
        assert cut.drafted < 0.6 * plain.drafted and 0.75 * plain.tokens < cut.tokens <= plain.tokens + 0.05
        shut = expectation(pair, 8, GATES[1])
        assert shut.drafts < 0.85 and shut.tokens < plain.tokens
    cell = CELLS["captions int8 batch 1"]
    assert fixed(cell, 0, OPEN) == pytest.approx(16_000 * fair(cell.costs, 1, PAIRS["captions"], 0, OPEN)[1])
    assert len(OPEN_ARMS) == 17 and len(GATED_ARMS) == 14
