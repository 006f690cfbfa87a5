"""The throughput controller on simulated machines: costs are known, so the best length is, too."""

import random
import statistics

import pytest

from specdec_plugins.decoding.control.exploration import SMALL_TRIAL
from specdec_plugins.decoding.control.fixed import FixedLength
from specdec_plugins.decoding.control.throughput import LAST_SPACING, PLAIN_SPACING, Throughput, best_choice
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.values import Outcome


class Machine:
    """Seconds that iterations take, and drafts whose tokens pass with a given probability each.

    A drafter that paused must catch up first.
    """

    def __init__(self, plain, draft, token, passing, noise=0.1, seed=0, catch_up=0.0, stops=0.02):
        self.plain, self.draft, self.token, self.passing, self.catch_up = plain, draft, token, passing, catch_up
        self.noise, self.random, self.stops = noise, random.Random(seed), stops
        self.tokens, self.fair = 0, 0.0  # seconds without noise
        self.last = 0  # the length of the last draft
        self.pace = 1.0  # how slow it is
        self.recordings, self.unrecorded, self.told = 0, {}, True  # recordings per length; those left; whether it says so

    def seconds(self, length, rows):
        """Of an iteration: what a pass costs, what a draft costs, and what each of its tokens costs a row."""
        return self.plain + (self.draft + self.token * length * rows if length else 0.0)

    def run(self, controller, rows, times):
        chosen = []
        for _ in range(times):
            plan = controller.plan(range(rows))
            length = plan.lengths[0]
            assert plan.lengths == (length,) * rows
            seconds = self.seconds(length, rows) + (self.catch_up if length and not self.last else 0.0)
            self.fair += seconds
            seconds *= self.pace * (1 + self.noise * self.random.random())
            if self.random.random() < self.stops:
                seconds *= 30  # the process was not running
            steps = [self.step(length) for _ in range(rows)]
            self.tokens += sum(step.accepted + 1 for step in steps)
            recorded = self.unrecorded.get(length, self.recordings) > 0
            if recorded:  # its kernels are recorded, for this length and some sizes of the cache
                self.unrecorded[length] = self.unrecorded.get(length, self.recordings) - 1
                seconds *= 100
            controller.update(Outcome(plan, steps, seconds, recorded=recorded and self.told))
            chosen.append(length)
            self.last = length
        return chosen

    def step(self, length):
        accepted = 0
        while accepted < length and self.random.random() < self.passing:
            accepted += 1
        return Step(list(range(length)), accepted, 0)

    def rate(self, length, rows):
        return sum(self.passing**position for position in range(length + 1)) / self.seconds(length, rows)


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_recording_passes_hides_no_gain(rows):
    """A GPU on which drafts pay at every batch size, and which records the first passes of each length."""
    rates = {}
    for told in (True, False):
        machine = Machine(1.0, 0.5, 0.01 / rows, 0.8, stops=0)
        machine.recordings, machine.told = 3, told
        controller = Throughput(8)
        machine.run(controller, rows, 600)
        chosen = machine.run(controller, rows, 400)
        rates[told] = sum(machine.rate(length, rows) for length in chosen) / len(chosen)
    assert rates[True] > 0.9 * max(machine.rate(length, rows) for length in range(17))
    assert rows == 1 or rates[False] < 0.9 * rates[True], "the machine of this test is too easy"


@pytest.mark.parametrize(("rows", "seed"), [*((rows, seed) for rows in (1, 4) for seed in range(8)), (30, 1)])
@pytest.mark.parametrize(
    ("draft", "token", "passing"),
    [(0.5, 0.05, 0.8), (0.5, 0.0, 0.9), (0.2, 0.3, 0.5), (2.0, 0.2, 0.6), (0.1, 0.02, 0.3), (0.7, 0.05, 0.0), (0.0, 0.01, 0.99)],
)
def test_the_length_chosen_is_nearly_the_best(draft, token, passing, rows, seed):
    machine = Machine(1.0, draft, token / rows, passing, seed=seed)
    controller = Throughput(6)
    machine.run(controller, rows, 400 if rows <= 4 else 1500)  # in large batches trying is rationed
    chosen = machine.run(controller, rows, 400)
    best = max(machine.rate(length, rows) for length in range(13))
    reached = sum(machine.rate(length, rows) for length in chosen) / len(chosen)
    assert reached > 0.9 * best
    assert reached > 0.97 * machine.rate(0, rows)
    assert all(0 <= length <= 12 for length in chosen)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_catches_up_for_the_last_tokens_of_a_batch(seed):
    """Drafts pay with few rows, but batches end in few passes with few rows, and the drafter has paused up to there."""
    machine = Machine(1.0, 0.5, 0.05, 0.85, seed=seed)
    controller = Throughput(8)
    plain = 0.0
    for _ in range(60):
        for rows, tokens in ((8, 20), (4, 2), (2, 2), (1, 4)):
            machine.draft, machine.token = (0.5, 0.05) if rows < 8 else (3.0, 0.5)
            machine.catch_up, start = 12.0, machine.tokens
            while machine.tokens - start < rows * tokens:
                machine.run(controller, rows, 1)
            plain += (machine.tokens - start) / rows * machine.plain
    assert machine.fair < 1.03 * plain
    machine.run(controller, 1, 200)
    assert machine.run(controller, 1, 100).count(0) < 10  # but where it goes on, they pay


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [8, 32, 128])
def test_speculation_costs_next_to_nothing_where_it_does_not_pay(rows, seed):
    """A pass is bound by arithmetic, so a draft of K costs as much as K steps; batches end in ever fewer rows; much noise."""
    machine = Machine(rows / 8, rows / 16, 0.2, 0.85, noise=0.8, seed=seed, catch_up=rows)
    controller = Throughput(8)
    plain = 0.0
    for _ in range(40):
        for count, times in ((rows, 50), (rows // 2, 3), (rows // 4, 3)):
            machine.plain, machine.draft, machine.catch_up = count / 8, count / 16, count
            before = machine.tokens
            machine.run(controller, count, times)
            plain += (machine.tokens - before) / count * machine.plain
    assert machine.fair < 1.04 * plain


@pytest.mark.parametrize("passing", [0.0, 0.3, 0.45])
@pytest.mark.parametrize("rows", [1, 4])
def test_few_rows_lose_no_time_with_drafts_that_do_not_pay(rows, passing):
    machine = Machine(1.0, 1.0, 0.1 / rows, passing, catch_up=7.0)
    controller = Throughput(8)
    machine.run(controller, rows, 3500)
    assert machine.fair < 1.03 * machine.tokens / rows  # the first trials are free


@pytest.mark.parametrize(("passing", "most"), [(0.1, 0.2), (0.9, 0.3)])
def test_most_steps_are_neither_measured_nor_reconsidered(monkeypatch, passing, most):
    """With and without drafts."""
    machine, controller = Machine(1.0, 1.0, 0.05, passing, stops=0.0), Throughput(8)
    considered, earned = [], []
    monkeypatch.setattr(controller, "_plan", lambda rows, plan=controller._plan: considered.append(rows) or plan(rows))
    earn = controller.budget.earn
    monkeypatch.setattr(controller.budget, "earn", lambda seconds: earned.append(seconds) or earn(seconds))
    chosen = machine.run(controller, 1, 3500)
    assert (sum(chosen) > 3500) == (passing > 0.5)
    assert len(considered) < most * 3500
    assert sum(earned) == pytest.approx(machine.fair, rel=0.1)  # by what is not measured, too


def test_repeated_steps_are_planned_at_once():
    machine, controller = Machine(1.0, 9.0, 1.0, 0.1), Throughput(8)
    machine.run(controller, 4, 400)
    plans = []
    for _ in range(8):
        plans.append(controller.plan(range(4)))
        controller.update(Outcome(plans[-1], [Step([], 0, 5)] * 4, 1.0))
    assert [plan.lengths for plan in plans] == [(0, 0, 0, 0)] * 8
    assert all(PLAIN_SPACING < plan.times <= LAST_SPACING for plan in plans)


def test_a_call_of_several_iterations_is_measured_as_the_mean_of_all_but_the_first():
    """For the first, processor caches are cold. If a call has only that one, it tells less than others."""
    controller, times = Throughput(8), set()
    for number in range(4000):
        plan = controller.plan(range(1))
        length = plan.lengths[0]
        times.add(plan.times)
        steps = [Step([7] * length, length, 5)] * plan.times
        if number % 4 == 3:
            controller.update(Outcome(plan, steps[:1], 1.3, 1, first=1.3))
            continue
        each = 1 + length / 100
        controller.update(Outcome(plan, steps, 1.3 + (plan.times - 1) * each, plan.times, first=1.3))
    costs = controller.classes[0].costs
    warm = {length: cost.seconds for length, cost in costs.measured.items() if cost.warm}
    assert max(times) == LAST_SPACING and {0, length} < set(warm)
    assert warm == pytest.approx({length: 1 + length / 100 for length in warm})


@pytest.mark.parametrize("seed", range(4))
def test_a_step_in_the_costs_is_found(seed):
    """Drafts of more than 8 make the kernels read the weights twice."""
    machine = Machine(1.0, 0.6, 0.03, 0.9, seed=seed)
    machine.seconds = lambda length, rows: 1.0 + (0.6 + 0.03 * length + (length > 8) if length else 0.0)
    controller = Throughput(8)
    machine.run(controller, 1, 1000)
    chosen = machine.run(controller, 1, 1000)
    best = max(machine.rate(length, 1) for length in range(17))
    assert sum(machine.rate(length, 1) for length in chosen) / len(chosen) > 0.95 * best


def test_a_machine_that_changes_its_pace():
    """Others use it, too, by turns for longer than a measurement is remembered."""
    shares = []
    for seed in range(12):
        machine, pace = Machine(1.0, 1.0, 0.12, 0.84, noise=1.0, seed=seed), random.Random(seed)
        controller = Throughput(8)
        best, chosen = max(machine.rate(length, 1) for length in range(17)), []
        for _ in range(40):
            machine.pace = pace.uniform(1, 2)
            chosen += machine.run(controller, 1, 100)
        shares.append(sum(machine.rate(length, 1) for length in chosen[400:]) / len(chosen[400:]) / best)
    assert min(shares) > 0.9 and sum(shares) / len(shares) > 0.96


def test_it_follows_a_change():
    """Drafts that stop being accepted, and then are again."""
    machine = Machine(1.0, 0.3, 0.05, 0.9)
    controller = Throughput(8)
    assert sum(machine.run(controller, 1, 600)[300:]) / 300 > 4
    machine.passing = 0.0
    assert sum(machine.run(controller, 1, 6000)[2000:]) / 4000 < 0.5
    machine.passing = 0.9
    assert sum(machine.run(controller, 1, 60000)[50000:]) / 10000 > 3


@pytest.mark.parametrize(("token", "copies", "drafts"), [(0.3, False, 0), (0.05, False, 32), (0.3, True, 40), (0.05, True, 40)])
def test_the_last_rows_of_a_plain_batch_draft_only_for_a_large_gain(token, copies, drafts):
    """Drafts are worth 1.25 and 2.4 times plain passes for one row, and never pay for 32. Copies are drafted at once: nothing
    has to be read for them.
    """
    machine, controller = Machine(1.0, 0.4, token, 0.8), Throughput(8, copies=copies)
    for rows in (1, 32, 1, 32):
        learned = machine.run(controller, rows, 540)[-1]
        assert bool(learned) == (rows == 1)
    assert sum(map(bool, machine.run(controller, 1, 40))) == drafts


@pytest.mark.parametrize("fixed", [0.3, 0.8])
def test_a_drafter_that_copies_is_asked_for_what_pays(fixed):
    """Outputs of 14 tokens agree with an earlier text in the first ten, after which there is nothing to offer. Every verified
    token takes as long as 0.3 plain passes, as with int8 on some CPUs, and a draft as long as ``fixed`` ones.
    """

    def decoded(choose, tell, outputs):
        """Seconds of so many outputs."""
        seconds = 0.0
        for _ in range(outputs):
            place = 0
            while place < 14:
                length = choose()
                accepted = max(0, min(length, 10 - place))
                took = 1 + 0.3 * accepted + fixed * (length > 0)
                tell(length, accepted, took)
                place, seconds = place + accepted + 1, seconds + took
        return seconds

    controller, plans = Throughput(8, copies=True), []

    def choose():
        plans.append(controller.plan(range(1)))
        return plans[-1].lengths[0]

    def tell(length, accepted, took):
        controller.update(Outcome(plans[-1], [Step([1] * accepted, accepted, 5)], took))

    best = min(decoded(lambda length=length: length, lambda *_: None, 1) for length in range(17))
    decoded(choose, tell, 200)
    assert decoded(choose, tell, 200) < 200 * best / 0.93


@pytest.mark.parametrize("longest", [6, 24], ids=["short", "long"])
@pytest.mark.parametrize("token", [0.1, 0.3])
def test_copies_of_a_text_with_errors_are_drafted_as_pays(longest, token):
    """Stretches of an output agree with a text, up to so many tokens; for three tokens more the draft is wrong. It takes half a
    plain pass, and so much each token; one pass in a hundred is interrupted, and takes ten times as long. On average over runs.
    """

    def seconds(text, choose, tell=lambda *_: None):
        """Without interruptions."""
        total = 0.0
        for left in text:
            while left >= 0:
                length = choose()
                offered = min(length, left + 3)
                accepted = min(offered, left)
                took = 1 + token * offered + 0.5 * (length > 0)
                tell(offered, accepted, took)
                left, total = left - accepted - 1, total + took
        return total

    def reached(seed):
        """Of the best length's speed."""
        rng = random.Random(seed)
        text = [rng.randrange(longest) for _ in range(750)]
        controller, plans = Throughput(8, copies=True), []

        def choose():
            plans.append(controller.plan(range(1)))
            return plans[-1].lengths[0]

        def tell(offered, accepted, took):
            took *= rng.uniform(0.95, 1.05) * (10 if rng.random() < 0.01 else 1)
            controller.update(Outcome(plans[-1], [Step([1] * offered, accepted, 5)], took))

        return min(seconds(text, lambda length=length: length) for length in range(17)) / seconds(text, choose, tell)

    assert statistics.mean(map(reached, range(8))) > 0.9


@pytest.mark.parametrize("token", [0.2, 0.6])
def test_drafts_that_end_where_they_become_improbable(token):
    """Of six tokens one is unsure. From the first passes on nearly as fast as the best length, and where tokens are cheap faster
    than without such ends."""

    def speed(choose, tell=lambda *_: None):
        rng, tokens, seconds = random.Random(3), 0, 0.0
        for _ in range(400):
            length, least = choose()
            sure, offered, accepted = 1.0, 0, 0
            while offered < length and sure >= least:
                probability = rng.choice([0.97, 0.97, 0.97, 0.97, 0.97, 0.2])
                accepted += accepted == offered and rng.random() < probability
                sure, offered = sure * probability, offered + 1
            took = 1 + token * offered + 0.1 * (length > 0)
            tell(offered, accepted, took)
            tokens, seconds = tokens + accepted + 1, seconds + took
        return tokens / seconds

    controller, plans = Throughput(8, confident=True), []

    def choose():
        plans.append(controller.plan(range(1)))
        return plans[-1].lengths[0], plans[-1].least

    def tell(offered, accepted, took):
        controller.update(Outcome(plans[-1], [Step([1] * offered, accepted, 5)], took))

    reached = speed(choose, tell)
    assert plans[0].lengths[0] > 0 and all(plan.least == 0.5 for plan in plans)
    assert reached > 0.95 * max(speed(lambda length=length: (length, 0.5)) for length in range(17))
    if token < 0.5:
        assert reached > 1.05 * max(speed(lambda length=length: (length, 0.0)) for length in range(17))


def test_drafts_that_are_mostly_empty():
    """Of ten steps nine have nothing to offer: the drafts that are left pass, and still do not pay."""
    controller, number = Throughput(4), 0
    for _ in range(2000):
        plan, number = controller.plan(range(1)), number + 1
        drafted = plan.lengths[0] if number % 10 == 0 else 0
        seconds = 1.2 if plan.lengths[0] else 1.0
        controller.update(Outcome(plan, [Step([1] * drafted, drafted, 5)], seconds))
    assert controller.acceptance.expected_tokens()[4] < 1.6
    assert set(controller.classes[0].costs.measured) > {0}


def test_a_new_class_of_batches_starts_from_a_similar_one():
    """Eight rows follow what twelve rows learned; one row is a small batch, and tries for itself."""
    machine, controller = Machine(1.0, 0.3, 0.01, 0.9), Throughput(8)
    machine.run(controller, 12, 4000)
    learned = controller.classes[14].choice
    assert learned > 4
    assert machine.run(controller, 8, 10) == [learned] * 10
    assert machine.run(controller, 1, 10)[-1] == 0
    # 64 rows begin with what pays for eight, and see at once that it does not pay for them.
    controller = Throughput(8)
    learned = Machine(1.0, 0.3, 0.01, 0.9)
    learned.run(controller, 8, 4000)
    assert controller.classes[12].choice > 4
    assert sum(map(bool, Machine(1.0, 5.0, 1.0, 0.9).run(controller, 64, 400))) <= 16
    # Batches of other sizes have costs of their own.
    machine = Machine(1.0, 0.3, 0.3, 0.8)
    controller = Throughput(6)
    for _ in range(80):
        many, alone = machine.run(controller, 32, 20), machine.run(controller, 1, 100)[-20:]  # first it might be a batch's end
    assert sum(alone) / 20 > 1 and sum(many) / 20 < 1


def test_short_outputs_are_enough_to_find_what_pays():
    """Within 24 passes a large batch has tried a draft; a small one, which begins with drafts, has given up those that lose, and
    drafts long where it costs next to nothing."""
    assert any(Machine(1.0, 0.3, 0.01, 0.9).run(Throughput(8), 32, 24))
    lost = Machine(1.0, 4.0, 1.0, 0.5, stops=0).run(Throughput(8), 1, 40)
    assert sum(map(bool, lost)) == 2 * SMALL_TRIAL
    assert sum(Machine(1.0, 0.1, 0.01, 0.95, stops=0).run(Throughput(8), 1, 60)[30:]) > 8 * 30


@pytest.mark.parametrize(("present", "gain", "length"), [(1, 1.01, 1), (1, 1.02, 2), (0, 1.04, 0), (0, 1.06, 2), (None, 1.01, 2)])
def test_another_length_must_be_clearly_better(present, gain, length):
    """By 1.5 %, and drafts by 5 % if there were none."""
    assert best_choice([1.0, 1.0, gain], present) == length


@pytest.mark.parametrize(("gain", "length"), [(1.04, 1), (1.06, 0)])
def test_no_drafts_must_be_clearly_better_than_drafts(gain, length):
    assert best_choice([gain, 1.0], 1) == length


def test_a_choice_that_costs_cannot_be_told_of_is_given_up():
    assert best_choice([1.0, 1.25], 3) == 1


def test_a_fixed_length_stays():
    controller = FixedLength(7)
    for rows in (1, 3):
        plan = controller.plan(range(rows))
        assert plan.lengths == (7,) * rows and plan.times > 1000
        controller.update(Outcome(plan, [Step([1, 2], 0, 3)] * rows, 1.0))
