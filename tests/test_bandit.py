"""What bandits are made of: arms, estimates, pulls, judgements; and what they start from."""

import math
import random
import statistics

import pytest
from control_cells import CELLS, OPEN_ARMS, fixed, run

from specdec_plugins.decoding.control.acceptance import AcceptanceEstimate, committed
from specdec_plugins.decoding.control.arms import GATES, Arm, Known, lengths_for
from specdec_plugins.decoding.control.bandit import SLOW, typical
from specdec_plugins.decoding.control.batches import class_of
from specdec_plugins.decoding.control.learned import DRAFTS, Learned, LearnedCost, LearnedGate
from specdec_plugins.decoding.control.thompson import Thompson
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.control.ucb import Ucb, relative_deviation
from specdec_plugins.decoding.options import OPEN, Gate
from specdec_plugins.decoding.values import Outcome, Step

BANDITS = [Thompson, Ucb]


@pytest.mark.parametrize(("block_size", "lengths"), [(8, [1, 2, 4, 6, 8, 12, 16]), (1, [1, 2]), (25, [3, 6, 12, 19, 25, 38, 50])])
def test_lengths_go_up_to_two_blocks(block_size, lengths):
    assert lengths_for(block_size) == lengths


def test_what_is_not_seen_for_long_is_doubted():
    estimate = AcceptanceEstimate(1, decay=0.998)
    estimate.observe([Step([1], 1, 9)] * 2000, [1] * 2000)
    rates = estimate.rates()
    sure = estimate.deviations(rates)[0]
    for _ in range(20):
        estimate.fade(0.8)
    assert estimate.reached[0] == pytest.approx(8) and estimate.passed[0] / estimate.reached[0] == pytest.approx(1.0)
    assert estimate.deviations(estimate.rates())[0] > 5 * sure


def test_a_gate_that_was_never_tried_is_expected_to_pass_as_much():
    basis = AcceptanceEstimate(2)
    gated = AcceptanceEstimate(2, basis)
    for _ in range(50):
        basis.observe([Step([1, 2], 1, 9)], [2])
    assert gated.rates() == pytest.approx(basis.rates())
    assert gated.deviations(gated.rates())[1] > 2.5 * basis.deviations(basis.rates())[1]


def test_the_slowest_call_of_a_pull_was_perhaps_interrupted():
    assert typical([(4.0, 4)]) == 1.0
    assert typical([(4.0, 4), (4.8, 4)]) == pytest.approx(1.1)
    assert typical([(4.0, 4), (400.0, 4)]) == pytest.approx((1 + SLOW) / 2)
    assert typical([(300.0, 1), (2.0, 2)]) == pytest.approx((2 + SLOW) / 3)


def test_the_variance_of_tokens_is_that_of_sampled_rates():
    """The delta method, against draws."""
    rates, deviations, dice = [0.9, 0.8, 0.7, 0.85], [0.03, 0.05, 0.04, 0.06], random.Random(3)
    drawn = [committed(dice.gauss(*each) for each in zip(rates, deviations))[4] for _ in range(20_000)]
    assert relative_deviation(rates, deviations, 4) == pytest.approx(statistics.stdev(drawn) / statistics.mean(drawn), rel=0.03)
    assert relative_deviation(rates, deviations, 0) == 0.0


def test_costs_that_were_not_measured_come_from_the_most_similar():
    arms = [Arm(0), Arm(4), Arm(8), Arm(4, 1), Arm(8, 1)]
    other, known = Known(2), Known(2)
    assert known.seconds(arms, None)[0] == [math.inf] * 5
    for _ in range(20):
        other.costs[0].observe(0, 1.0)
        other.costs[0].observe(4, 3.0)
        known.costs[0].observe(0, 2.0)
    seconds, doubts = known.seconds(arms, other)
    assert (
        seconds[1] == pytest.approx(6.0, rel=0.05) and seconds[3:] == seconds[1:3]
    )  # three plain passes, with a gate and without
    assert doubts[1] > 10 * doubts[0]
    known.costs[1].observe(8, 5.0)
    assert known.seconds(arms, other)[0][4] == pytest.approx(5.0)


def pulled(bandit, iterations, seconds, steps):
    """Let a bandit plan so many iterations; returns the plans."""
    plans = []
    done = 0
    while done < iterations:
        plan = bandit.plan(range(1))
        times = min(plan.times, 16)
        bandit.update(Outcome(plan, [steps(plan)] * times, times * seconds(plan), times))
        plans.append((plan, times))
        done += times
    return plans


@pytest.mark.parametrize("kind", BANDITS)
def test_bandits_find_the_gate_that_pays(kind):
    """Drafts pass only behind a gate, and everything takes the same time."""
    bandit = kind(8, gates=GATES)

    def step(plan):
        length = plan.lengths[0]
        return Step([1] * length, length if plan.gate == GATES[1] else 0, 9)

    plans = pulled(bandit, 3000, lambda plan: 1.0 + 0.2 * (plan.lengths[0] > 0), step)
    late = [(plan.gate, plan.lengths[0]) for plan, _ in plans[len(plans) // 2 :]]
    assert statistics.mode(late) == (GATES[1], 16) and late.count((GATES[1], 16)) > 0.8 * len(late)


@pytest.mark.parametrize("kind", BANDITS)
def test_a_gate_of_the_user_holds_for_all_drafts(kind):
    gate = Gate(0.3, 0.1)
    plans = pulled(kind(8, gate), 500, lambda plan: 1.0, lambda plan: Step([1] * plan.lengths[0], plan.lengths[0], 9))
    assert {plan.gate for plan, _ in plans if plan.lengths[0]} == {gate}


@pytest.mark.parametrize("kind", BANDITS)
@pytest.mark.parametrize("rows", [1, 32])
def test_where_nothing_passes_trials_stay_within_their_share(kind, rows):
    """A draft costs ten plain passes and brings nothing."""
    bandit, played, time = kind(8, gates=GATES), 0.0, 0.0
    for _ in range(3000):
        plan = bandit.plan(range(rows))
        length, times = plan.lengths[0], min(plan.times, 16)
        seconds = times * (10.0 if length else 1.0)
        bandit.update(Outcome(plan, [Step([1] * length, 0, 9)] * (rows * times), seconds, times))
        time, played = time + seconds, played + seconds * (length > 0)
    assert 0 < played < 0.025 * time


@pytest.mark.parametrize("kind", BANDITS)
def test_plain_iterations_are_planned_in_long_runs(kind):
    """A plain iteration can take less than 100 microseconds, a decision takes as long."""
    plans = pulled(kind(8), 6000, lambda plan: 10.0 if plan.lengths[0] else 1.0, lambda plan: Step([1] * plan.lengths[0], 0, 9))
    late = plans[len(plans) // 2 :]
    assert sum(times for _, times in late) / len(late) > 10


def test_thompson_draws_the_same_numbers_again():
    """By its seed."""
    first, again, other = (run(Thompson(8, seed=seed), CELLS["captions int8 batch 8"], 5).arms for seed in (1, 1, 2))
    assert first == again != other


# What was learned before


def table(plain=1.0, draft=1.5, rates=(0.9,) * 8, rows=1):
    costs = (LearnedCost(rows, 0, plain), LearnedCost(rows, 4, draft), LearnedCost(rows, 8, draft + 0.2))
    return Learned((LearnedGate(0.0, 0.0, rates, costs), LearnedGate(*GATES[0], rates, costs[1:])))


@pytest.mark.parametrize("make", [*BANDITS, Throughput])
def test_a_start_from_a_table_needs_no_trials(make):
    """Drafts that pay are made at once; without the table, something else is tried first. Elsewhere it says nothing."""
    assert make(8, learned=table()).plan(range(1)).lengths[0] >= 4
    fresh = pulled(make(8, learned=table(rows=64)), 40, lambda plan: 1.0, lambda plan: Step([1] * plan.lengths[0], 0, 9))
    assert 0 in {plan.lengths[0] for plan, _ in fresh}
    slow = make(8, learned=table(draft=9.0))
    assert slow.plan(range(1)).lengths[0] == 0


@pytest.mark.parametrize("make", [*BANDITS, Throughput])
def test_a_table_that_is_wrong_is_soon_given_up(make):
    """It says that drafts pay, and none of them passes."""
    bandit = make(8, learned=table())
    pulled(bandit, 400, lambda plan: 1.0 + 0.5 * (plan.lengths[0] > 0), lambda plan: Step([1] * plan.lengths[0], 0, 9))
    plans = pulled(bandit, 400, lambda plan: 1.0 + 0.5 * (plan.lengths[0] > 0), lambda plan: Step([1] * plan.lengths[0], 0, 9))
    assert sum(times for plan, times in plans if plan.lengths[0]) < 80


def test_what_was_learned_weighs_little():
    estimate = AcceptanceEstimate(3)
    table().start(estimate, OPEN)
    assert estimate.reached == [DRAFTS] * 3 and estimate.rates()[0] == pytest.approx(0.9, abs=0.03)
    costs = table(rows=4).costs(class_of(4), GATES[0])
    assert {length: (cost.seconds, cost.samples) for length, cost in costs.measured.items()} == {
        0: (1.0, 4), 4: (1.5, 4), 8: (1.7, 4),
    }  # fmt: skip
    assert not table().costs(class_of(4), OPEN).measured
    assert not table().keys([Gate(0.9, 0.9)])


def test_off_is_off():
    """Plain decoding asks no controller to learn: a fixed length of 0 takes what plain iterations take."""
    cell = CELLS["captions int8 batch 128"]
    from specdec_plugins.decoding.control.fixed import FixedLength

    assert run(FixedLength(0), cell).seconds == pytest.approx(fixed(cell, *OPEN_ARMS[0]), rel=1e-9)
