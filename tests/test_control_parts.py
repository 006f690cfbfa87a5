"""What the throughput policy is made of: cost model, pace, acceptance estimate, exploration."""

import itertools
import math
import random

import pytest

from specdec_plugins.decoding.control import acceptance, exploration
from specdec_plugins.decoding.control.acceptance import DECAY, FADED, PRIOR, AcceptanceEstimate, CopyEstimate, replayed
from specdec_plugins.decoding.control.costs import OUTLIER, Cost, CostModel, Pace
from specdec_plugins.decoding.control.exploration import FIRST_INTERVAL, LAST_INTERVAL, SMALL_TRIAL, TrialBudget, Trials
from specdec_plugins.decoding.control.throughput import Throughput, class_of
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.values import Outcome


def observed(*measurements, times=50):
    costs = CostModel()
    for _ in range(times):
        for length, seconds in measurements:
            costs.observe(length, seconds)
    return costs


# Costs


def test_costs_are_unknown_until_measured():
    costs = CostModel()
    assert costs.expected(3) == [math.inf] * 4
    assert (costs.plain, costs.longest) == (math.inf, 0)
    costs.observe(0, 2.0)
    assert costs.expected(2) == [2.0, math.inf, math.inf]
    assert (costs.plain, costs.longest) == (2.0, 0)
    # A cost that was not expected is reported.
    costs = CostModel()
    assert costs.observe(4, 1.0)
    assert not costs.observe(4, 1.01)
    assert not costs.observe(8, 1.1)  # near the line
    assert costs.observe(8, 0.3)  # the one before was interrupted, it seems


def test_costs_of_other_lengths_lie_on_a_line():
    costs = observed((4, 3.0), times=1)
    assert costs.expected(9)[9] == 3.0
    costs = observed((0, 1.9), (4, 3.0), (8, 5.0))
    assert costs.expected(8) == pytest.approx([1.9, 1.9, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0], abs=0.2)
    assert costs.expected(12)[12] == pytest.approx(7.0, abs=0.2)
    assert costs.longest == 16
    # Of what a draft of 4 adds to a plain pass, 2 s, three quarters are taken to grow with the length.
    assert observed((0, 1.0), (4, 3.0)).expected(8)[2::2] == pytest.approx([2.25, 3.0, 3.75, 4.5], abs=0.01)
    # Drafts of more than 8 take another second.
    cost = {length: 1.0 + 0.1 * length + (length > 8) for length in range(4, 13)}
    found = observed(*cost.items()).expected(12)
    assert found[9] - found[8] > 0.5
    rare = observed(*cost.items(), times=2).expected(12)
    assert rare[9] - rare[8] < 0.45
    # Drafts make no iteration faster.
    assert min(observed((0, 2.0), (8, 1.5), (16, 3.0)).expected(5)[1:]) == pytest.approx(2.0)
    # The line through 8 and 25 crosses zero at 6, and tokens are divided by costs.
    costs = observed((25, 10.0), (8, 1.0), times=10)
    assert min(costs.expected(25)[1:]) > 0.1
    costs.observe(4, 2.0)
    costs.observe(4, 2.0)
    assert costs.expected(4)[4] > 0.5


def test_interrupted_iterations_change_little():
    costs = observed((0, 1.9), (4, 3.0), (8, 5.0))
    costs.observe(0, 100.0)
    costs.observe(8, 100.0)
    costs.observe(12, 100.0)  # measured for the first time
    assert costs.expected(8)[::2] == pytest.approx([1.9, 2.0, 3.0, 4.0, 5.0], abs=0.3)
    # A first measurement that was interrupted is replaced.
    costs = observed((8, 50.0), times=1)
    costs.observe(8, 2.0)
    assert costs.expected(8)[6:] == [2.0, 2.0, 2.0]
    # After 32 measurements a new one weighs 1/32, so the mean of many old ones is left behind.
    costs = observed((0, 1.0), times=1000)
    for _ in range(200):
        costs.observe(0, 2.0)
    assert costs.plain == pytest.approx(2.0, rel=0.05)


def test_a_slow_machine_is_no_change_of_costs():
    """Others use it for a while: all lengths take twice as long."""
    costs, pace = CostModel(), Pace()
    for number in range(4000):
        slow = 2.0 if number >= 2000 else 1.0
        for length, seconds in ((0, 1.0), (8, 3.0)):
            costs.observe(length, pace.normalised(slow * seconds, length, costs))
    assert pace.factor == pytest.approx(2.0, rel=0.2)
    assert costs.measured[8].seconds / costs.plain == pytest.approx(3.0, rel=0.01)
    assert costs.plain == pytest.approx(1.0, rel=0.2)
    # The pace is read from costs that are reliable.
    costs, pace = CostModel(), Pace()
    for _ in range(3):
        costs.observe(0, 1.0)
    assert pace.normalised(2.0, 0, costs) == 2.0
    assert pace.factor == 1.0
    costs.observe(0, 1.0)
    pace.normalised(1e9, 0, costs)
    assert pace.factor == pytest.approx(OUTLIER**0.05)


def test_what_is_expected_of_drafts_of_several_lengths_is_the_mean_of_their_costs():
    costs = CostModel({0: Cost(1.0, 32), 2: Cost(3.0, 32), 4: Cost(6.0, 32)})
    exact = costs.expected(9)

    def mean(values):
        """By what is offered: nothing, one and one, two and four, nothing and nine, nine."""
        pairs = [(0, 0), (1, 1), (2, 4), (0, 9), (9, 9)]
        return [(values[one] + values[other]) / 2 for one, other in pairs]

    expected = costs.expected_of(mean, 9)  # a draft for which there was nothing to offer costs more than none
    assert expected == pytest.approx([exact[0], exact[1], (exact[2] + exact[4]) / 2, (exact[1] + exact[9]) / 2, math.inf])
    assert CostModel({0: Cost(1.0, 32)}).expected_of(mean, 2) == [1.0, math.inf, math.inf]


# Acceptance


def test_acceptance_is_known_by_position():
    estimate, dice = AcceptanceEstimate(4), random.Random(1)
    rates = [0.9, 0.5, 0.8, 0.0]
    for _ in range(3000):
        accepted = next((position for position, rate in enumerate(rates) if dice.random() >= rate), 4)
        estimate.observe([Step([1, 2, 3, 4], accepted, 5)], 4)
    assert estimate.expected_tokens() == pytest.approx([1.0, 1.9, 2.35, 2.71, 2.71], abs=0.25)
    # An unknown position passes as the one before.
    estimate = AcceptanceEstimate(3)
    assert estimate.expected_tokens() == pytest.approx([1.0, 1 + PRIOR, 1 + PRIOR + PRIOR**2, 1 + PRIOR + PRIOR**2 + PRIOR**3])
    for _ in range(2000):
        estimate.observe([Step([1], 0, 9)], 1)
    assert estimate.expected_tokens() == pytest.approx([1.0, 1.03, 1.03, 1.03], abs=0.02)
    # Old drafts count less.
    estimate = AcceptanceEstimate(1)
    for accepted in [1] * 1000 + [0] * 100:
        estimate.observe([Step([1], accepted, 9)], 1)
    assert estimate.expected_tokens()[1] == pytest.approx(1 + math.exp(-1), abs=0.03)
    # Up to their order.
    together, apart, dice = AcceptanceEstimate(4), AcceptanceEstimate(4), random.Random(4)
    for _ in range(40):
        steps = [Step([1] * 4, dice.randrange(5), 9) for _ in range(50)]
        together.observe(steps, 4)
        for step in steps:
            apart.observe([step], 4)
    assert together.accepted.reached == pytest.approx(apart.accepted.reached, rel=0.01)
    assert together.expected_tokens() == pytest.approx(apart.expected_tokens(), rel=0.1)


def test_positions_past_a_refusal_or_the_draft_say_nothing():
    estimate = AcceptanceEstimate(5)
    estimate.observe([Step([1, 2, 3, 4], 1, 9)], 4)
    estimate.observe([Step([1, 2], 2, 9)], 2)
    assert estimate.accepted.reached == pytest.approx([DECAY + 1, DECAY + 1, 0.0, 0.0, 0.0])
    assert estimate.accepted.passed == pytest.approx([DECAY + 1, 1.0, 0.0, 0.0, 0.0])
    # Also one that is empty, because there was nothing to offer.
    estimate = AcceptanceEstimate(5)
    estimate.observe([Step([1, 2], 2, 9), Step([1, 2, 3], 2, 9)], 5)
    assert estimate.accepted.reached == pytest.approx([DECAY + 1, DECAY + 1, DECAY + 1, 0.0, 0.0])
    assert estimate.accepted.passed == pytest.approx([DECAY + 1, DECAY + 1, 0.0, 0.0, 0.0])
    estimate.observe([Step([], 0, 9)], 5)
    assert estimate.accepted.reached[0] == pytest.approx(DECAY**2 + DECAY + 1) and estimate.accepted.passed[0] == pytest.approx(
        DECAY**2 + DECAY
    )


@pytest.mark.parametrize("length", [1, 3, 8])
def test_expected_tokens_are_the_mean_of_what_is_committed(monkeypatch, length):
    """Of short outputs, too, whose ends come within drafts: a long draft commits no more there."""
    monkeypatch.setattr(acceptance, "DECAY", 1 - 1e-9)
    estimate, dice, committed, iterations = AcceptanceEstimate(8), random.Random(2), 0, 0
    for _ in range(3000):
        left = 6  # tokens with eos
        while left:
            passing = next((position for position in range(length) if dice.random() >= 0.9), length)
            accepted = min(passing, left)
            estimate.observe([Step([0] * length, accepted, None if accepted == left else 5)], length)
            left -= min(accepted + 1, left)
            iterations += 1
        committed += 6
    assert estimate.expected_tokens()[length] == pytest.approx(committed / iterations, rel=0.01)


@pytest.mark.parametrize("planned", [4, 8, 16])
def test_drafts_of_all_lengths_are_compared_by_the_same_text(monkeypatch, planned):
    """Outputs of 14 tokens that agree with their drafts in the first ten: whatever was drafted tells what others would commit."""

    def passes(length):
        """What passes of a draft of so many tokens accept."""
        place, accepted = 0, []
        while place < 14:
            accepted.append(max(0, min(length, 10 - place)))
            place += accepted[-1] + 1
        return accepted

    monkeypatch.setattr(acceptance, "DECAY", 1 - 1e-9)
    estimate = CopyEstimate(16)
    for _ in range(200):
        for accepted in passes(planned):
            estimate.observe([Step([0] * planned, accepted, 5)], planned)
    expected = estimate.expected_tokens()
    for length in (*range(1, planned // 2 + 1), planned):
        assert expected[length] == pytest.approx(14 / len(passes(length)), rel=0.1)


@pytest.mark.parametrize(
    ("offered", "accepted", "planned", "passes", "offers"),
    [
        # the run of accepted tokens goes on
        (4, 4, 4, (2.5, 5 / 3, 1.25, 1.0), ({1: 2.5}, {2: pytest.approx(5 / 3)}, {3: 1.25}, {4: 1.0})),
        (4, 2, 4, (2.0, 1.0, 1.0, 1.0), ({1: 2}, {2: 1}, {3: 1}, {4: 1})),
        # the last token was the verifier's, after all that there was
        (3, 3, 4, (2.0, 2.0, 1.0, 1.0), ({1: 2}, {2: 1, 0: 1}, {3: 1}, {3: 1})),
        (0, 0, 4, (1.0,) * 4, ({0: 1},) * 4),
    ],
)
def test_what_shorter_drafts_would_take(offered, accepted, planned, passes, offers):
    found, found_offers = replayed(offered, accepted, planned)
    assert found.tolist() == pytest.approx(passes)
    for row, by_tokens in zip(found_offers.tolist(), offers, strict=True):
        assert {tokens: each for tokens, each in enumerate(row) if each} == by_tokens


def test_how_much_a_drafter_that_copies_has_to_offer():
    """It has one token at two places of three, and ten at the third: of longer drafts than were made, the whole ones go on."""
    estimate = CopyEstimate(8)
    for number in range(900):
        estimate.observe([Step([0] * (1 if number % 3 else 4), 0, 5)], 4)
    # By tokens offered, the share of the drafts of 0, 1, .. 8 tokens.
    shares = [estimate.mean_over_offers([float(tokens == offered) for tokens in range(9)]) for offered in range(9)]
    offers = [*zip(*shares)]
    assert [*map(sum, offers)] == pytest.approx([1.0] * 9)
    assert offers[0] == (1, *[0] * 8) and offers[1] == pytest.approx([0, 1, *[0] * 7])
    assert offers[4] == pytest.approx([0, 2 / 3, 0, 0, 1 / 3, *[0] * 4], abs=0.02)
    assert offers[8] == pytest.approx([0, 2 / 3, 0, 0, 0, 0, 0, 0, 1 / 3], abs=0.02)


def test_a_longer_draft_is_remembered_by_what_it_committed():
    """Two of three drafts of 2 pass whole, but no further: by its positions, one of 8 would be expected to commit 4 tokens."""
    estimate = CopyEstimate(8)
    for number in range(360):
        planned = 8 if number < 300 else 2
        estimate.observe([Step([0] * planned, 2 * (number % 3 > 0), 5)], planned)
    assert estimate.expected_tokens()[8] == pytest.approx(7 / 3, rel=0.1)


@pytest.mark.parametrize("make", [AcceptanceEstimate, CopyEstimate])
def test_what_is_doubted_keeps_its_rate_and_loses_weight(make):
    estimate = make(4)
    for number in range(400):
        estimate.observe([Step([1] * 4, 4 * (number % 2), 9)], 4)
    before = estimate.expected_tokens()
    estimate.fade()
    assert estimate.expected_tokens() == pytest.approx(before, rel=0.15) and max(estimate.accepted.reached) == pytest.approx(
        FADED
    )
    estimate.fade()
    assert max(estimate.accepted.reached) == pytest.approx(FADED)
    estimate.observe([Step([1] * 4, 4, 9)] * 8, 4)
    assert estimate.expected_tokens()[4] > 1.2 * before[4]


def test_doubt_keeps_what_is_offered():
    estimate = CopyEstimate(4)
    estimate.observe([Step([1] * (number % 5), 0, 9) for number in range(400)], 4)
    before = estimate.mean_over_offers(range(5))
    estimate.fade()
    assert estimate.mean_over_offers(range(5)) == pytest.approx(before, rel=0.25)


@pytest.mark.parametrize("make", [AcceptanceEstimate, CopyEstimate])
def test_the_token_that_ends_an_output_is_the_iterations_own(make):
    ended, went_on = make(4), make(4)
    ended.observe([Step([1, 2, 3], 2, None)] * 9, 4)
    went_on.observe([Step([1, 2, 3], 1, 5)] * 9, 4)
    assert ended.expected_tokens() == went_on.expected_tokens()


# Exploration


def test_trials_are_paid_from_a_budget():
    budget = TrialBudget()
    assert not budget.allows(0.0)
    budget.earn(300.0)
    assert budget.allows(0.99 * 300 * exploration.BUDGET) and not budget.allows(1.01 * 300 * exploration.BUDGET)
    budget.spend(2.0)
    assert budget.allows(0.99) and not budget.allows(1.01)
    # A trial is affordable at the price of the last.
    trials, budget = Trials(8, small=False), TrialBudget(seconds=10.0)
    assert not trials.affordable(budget, math.inf)  # nothing is known
    assert trials.affordable(budget, 9.9 / SMALL_TRIAL) and not trials.affordable(budget, 10.1 / SMALL_TRIAL)
    trials.seconds = 10.1
    assert not trials.affordable(budget, 0.1)


def test_batches_begin_with_trials():
    trials = Trials(9, small=True)
    assert [trials.initial(now, affordable=False) for now in range(3)] == [4, 0, 2]
    assert not trials.series
    # Large batches begin with a short draft when they can afford it.
    trials = Trials(9, small=False)
    trials.follow(0, fewer=True)
    assert trials.initial(FIRST_INTERVAL - 1, affordable=True) is None
    assert trials.initial(FIRST_INTERVAL, affordable=False) is None
    assert trials.initial(FIRST_INTERVAL, affordable=True) == 2
    assert not trials.series
    # Drafts that paid with fewer rows are compared with none at once.
    trials = Trials(9, small=False)
    trials.follow(4, fewer=True)
    assert not trials.rationed and [trials.initial(now, affordable=False) for now in range(2)] == [4, 0]
    assert trials.due == 1 + FIRST_INTERVAL
    trials.periodic(trials.due, 0, 18, affordable=True)
    assert trials.rationed
    for small, fewer in ((True, True), (False, False)):
        trials = Trials(9, small)
        trials.follow(4, fewer)
        assert trials.initial(FIRST_INTERVAL - 1, affordable=True) is None


def periodic(trials, chosen, affordable, passes=3000):
    """The passes at which something is tried, and what."""
    while trials.series:
        trials.initial(0, affordable=True)
    tried = ((now, trials.periodic(now, chosen, 16, affordable)) for now in range(passes))
    return [(now, length) for now, length in tried if length is not None]


def test_trials_become_rare_up_to_a_limit():
    passes, lengths = zip(*periodic(Trials(8, small=True), 5, affordable=False))
    intervals = [later - now for now, later in itertools.pairwise(passes)]
    assert passes[0] == FIRST_INTERVAL
    assert intervals == [64, 128, 256, *[LAST_INTERVAL] * (len(intervals) - 3)]
    assert lengths[:4] == (0, 10, 2, 0)  # none, twice and half the length, by turns
    # A new decision is tried soon.
    trials = Trials(8, small=True)
    periodic(trials, 5, affordable=False)
    trials.restart(drafting=True)
    assert trials.intervals[True] == FIRST_INTERVAL
    # Drafts that were soon given up are tried as seldom as before.
    trials = Trials(8, small=True)
    periodic(trials, 0, affordable=True)
    trials.restart(drafting=True)
    trials.restart(drafting=False)
    assert trials.intervals[False] == LAST_INTERVAL
    for now in range(5000, 8000):  # drafts paid for long
        trials.periodic(now, 8, 16, affordable=True)
    trials.restart(drafting=False)
    assert trials.intervals[False] == FIRST_INTERVAL


def test_trials_are_rationed_where_nothing_is_drafted():
    small = periodic(Trials(8, small=True), 0, affordable=False)
    assert [length for _, length in small] == [2, 4, 2, 4]
    assert small[-1][0] < LAST_INTERVAL
    assert periodic(Trials(8, small=False), 0, affordable=False) == []
    assert [length for _, length in periodic(Trials(8, small=False), 0, affordable=True)][:4] == [1, 2, 1, 2]


class Searched(list):
    """The rows of a search of five hypotheses."""

    reserved = 5


def test_drafts_of_searches_are_tried_seldom_and_searches_are_one_class_from_their_first_row():
    controller, spent, tried = Throughput(12, searches=True), {False: 0.0, True: 0.0}, set()
    for _ in range(600):
        for rows in (1, 5):
            plan = controller.plan(Searched(range(rows)))
            assert len(plan.lengths) == rows
            length, times = plan.lengths[0], min(plan.times, 16)
            seconds = times * (0.001 if length == 0 else 0.01)
            controller.update(Outcome(plan, [Step([7] * length, 0, 5)] * times, seconds, times))
            spent[length > 0] += seconds
            tried.add(length)
    assert list(controller.classes) == [class_of(5)]
    assert {0, 1, 2} <= tried and 0 < spent[True] < 0.02 * spent[False]
