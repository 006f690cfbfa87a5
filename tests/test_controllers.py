"""Controllers against the best fixed arm in hindsight and plain decoding, on simulated machines (`control_cells`)."""

import random
import statistics

import pytest
from control_cells import (
    BLOCK_SIZE,
    CELLS,
    GATED_ARMS,
    MAKERS,
    OPEN_ARMS,
    PAIRS,
    TREE_ARMS,
    TREE_CELLS,
    TREE_MAKERS,
    best,
    draw_tree,
    expectation,
    fair,
    fixed,
    run,
)

from specdec_plugins.decoding.control.arms import GATES, sizes_for
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.options import OPEN, Tree
from specdec_plugins.decoding.values import Outcome, uniform

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
def test_controllers_are_nearly_as_good_in_most_runs(name, controller):
    """The median of six: a draft that an interruption makes seem dear can cost one run a tenth."""
    least = LEAST[controller]
    if controller == "throughput":
        least = SHORT.get(name, least)
    assert statistics.median(reached(name, controller, seed) for seed in range(6)) > least


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


# ---- trees

TREE_CASES = [(cell, controller) for cell in TREE_CELLS for controller in TREE_MAKERS]


def best_with_trees(cell):
    """Seconds of the best fixed arm, and the arm: none, a chain, or a tree of any size."""
    return min((fixed(cell, *arm), arm) for arm in OPEN_ARMS + TREE_ARMS)


def check_with_trees(name, controller, seeds, least):
    """Nearly as good as the best arm; in large batches throughput is late, and then nearly as good as it is without trees."""
    cell = TREE_CELLS[name]
    shortest, arm = best_with_trees(cell)
    seconds = statistics.mean(run(TREE_MAKERS[controller](seed), cell, seed).seconds for seed in range(seeds))
    if controller == "throughput" and "batch 1" not in name:
        chains = statistics.mean(run(MAKERS[controller](BLOCK_SIZE, seed), cell, seed).seconds for seed in range(seeds))
        shortest = max(shortest, chains)
    assert shortest / seconds > least, arm


@pytest.mark.parametrize(("name", "controller"), TREE_CASES)
def test_with_trees_controllers_are_nearly_as_good_as_the_best_fixed_arm(name, controller):
    check_with_trees(name, controller, 1, 0.95 if controller == "throughput" else 0.91)


@pytest.mark.long
@pytest.mark.parametrize(("name", "controller"), TREE_CASES)
def test_with_trees_controllers_are_nearly_as_good_on_average(name, controller):
    check_with_trees(name, controller, 8, 0.96 if controller == "throughput" else 0.91)


def test_the_cells_with_trees_ask_for_different_arms():
    """None, chains and trees; and where trees are nearly the best, some of the sizes that controllers compare are, too."""
    arms = {best_with_trees(cell)[1] for cell in TREE_CELLS.values()}
    assert {(0, OPEN), (16, OPEN), (8, OPEN, 32)} <= arms
    for cell in TREE_CELLS.values():
        tree = min(fixed(cell, *arm) for arm in TREE_ARMS)
        if tree < 1.05 * best_with_trees(cell)[0]:
            assert min(fixed(cell, min(size, BLOCK_SIZE), OPEN, size) for size in sizes_for(32)) < 1.01 * tree


def test_what_is_expected_of_trees_is_what_steps_give():
    """And what smaller trees and chains would have given, which controllers learn of a tree, too."""
    dice = random.Random(2)
    for pair in PAIRS.values():
        controller = Throughput(BLOCK_SIZE, nodes=16)
        steps = [draw_tree(pair, BLOCK_SIZE, 16, dice.random) for _ in range(4000)]
        tokens = 1 + statistics.mean(step.accepted for step in steps)
        assert tokens == pytest.approx(expectation(pair, BLOCK_SIZE, OPEN, 16).tokens, rel=0.03)
        plan = uniform(1, BLOCK_SIZE, 1, OPEN, Tree(16))
        sums = [0.0] * 5
        for step in steps:
            controller.trees.learn(Outcome(plan, [step], 1.0))
            found = [*controller.trees.expected_tokens(), controller.acceptance.expected_tokens()[3]]
            sums = [total + each for total, each in zip(sums, found)]
        expected = [expectation(pair, min(size, BLOCK_SIZE), OPEN, size).tokens for size in (4, 8, 12, 16)]
        assert [total / len(steps) for total in sums] == pytest.approx([*expected, expectation(pair, 3, OPEN).tokens], rel=0.05)


def test_a_tree_of_another_size_is_planned_as_deep_as_it_can_be():
    """A tree of four tokens has no longer paths, so that the drafter has not more to draft."""
    controller = Throughput(BLOCK_SIZE, nodes=16)
    plans = {(controller.longest + 1 + number): size for number, size in enumerate((4, 8, 12, 16))}
    for choice, size in plans.items():
        assert controller._planned(3, choice, 2) == uniform(3, min(size, BLOCK_SIZE), 2, OPEN, Tree(size))
    assert sizes_for(1) == [1] and sizes_for(0) == []
