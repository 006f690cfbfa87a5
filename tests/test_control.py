"""The controller of draft lengths, on machines that are simulated: costs are known, so the best length is, too."""

import random

import pytest

from specdec_plugins.decoding.control import Adaptive, Costs, FixedLength
from specdec_plugins.decoding.values import Step


class Machine:
    """A clock, and drafts whose tokens pass with a given probability each. A drafter that paused must catch up first."""

    def __init__(self, plain, draft, token, passing, noise=0.1, seed=0, catch_up=0.0, stops=0.02):
        self.plain, self.draft, self.token, self.passing, self.catch_up = plain, draft, token, passing, catch_up
        self.now, self.noise, self.random, self.stops = 0.0, noise, random.Random(seed), stops
        self.tokens, self.fair = 0, 0.0  # seconds without noise
        self.last = 0  # the length of the last draft
        self.pace = 1.0  # how slow it is

    def seconds(self, length, rows):
        """Of an iteration: what a pass costs, what a draft costs, and what each of its tokens costs a row."""
        return self.plain + (self.draft + self.token * length * rows if length else 0.0)

    def run(self, controller, rows, times):
        chosen = []
        for _ in range(times):
            length = controller.next_length(rows)
            seconds = self.seconds(length, rows) + (self.catch_up if length and not self.last else 0.0)
            self.fair += seconds
            seconds *= self.pace * (1 + self.noise * self.random.random())
            if self.random.random() < self.stops:
                seconds *= 30  # the process was not running
            self.now += seconds
            steps = [self.step(length) for _ in range(rows)]
            self.tokens += sum(step.accepted + 1 for step in steps)
            controller.update(steps)
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


@pytest.mark.parametrize(("rows", "seed"), [*((rows, seed) for rows in (1, 4) for seed in range(8)), (30, 1)])
@pytest.mark.parametrize(
    ("draft", "token", "passing"),
    [(0.5, 0.05, 0.8), (0.5, 0.0, 0.9), (0.2, 0.3, 0.5), (2.0, 0.2, 0.6), (0.1, 0.02, 0.3), (0.7, 0.05, 0.0), (0.0, 0.01, 0.99)],
)
def test_the_length_chosen_is_nearly_the_best(draft, token, passing, rows, seed):
    machine = Machine(1.0, draft, token / rows, passing, seed=seed)
    controller = Adaptive(6, clock=lambda: machine.now)
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
    controller = Adaptive(8, clock=lambda: machine.now)
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
    controller = Adaptive(8, clock=lambda: machine.now)
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
    controller = Adaptive(8, clock=lambda: machine.now)
    machine.run(controller, rows, 3500)
    assert machine.fair < 1.02 * machine.tokens / rows


@pytest.mark.parametrize(("passing", "most"), [(0.1, 0.2), (0.9, 0.3)])
def test_most_passes_cost_no_thought(passing, most):
    """With and without drafts."""
    machine = Machine(1.0, 1.0, 0.05, passing)
    looks = 0

    def clock():
        nonlocal looks
        looks += 1
        return machine.now

    chosen = machine.run(Adaptive(8, clock), 1, 3500)
    assert (sum(chosen) > 3500) == (passing > 0.5)
    assert looks < 2 * most * 3500


@pytest.mark.parametrize("seed", range(4))
def test_a_step_in_the_costs_is_found(seed):
    """Drafts of more than 8 make the kernels read the weights twice."""
    machine = Machine(1.0, 0.6, 0.03, 0.9, seed=seed)
    machine.seconds = lambda length, rows: 1.0 + (0.6 + 0.03 * length + (length > 8) if length else 0.0)
    controller = Adaptive(8, clock=lambda: machine.now)
    machine.run(controller, 1, 1000)
    chosen = machine.run(controller, 1, 1000)
    best = max(machine.rate(length, 1) for length in range(17))
    assert sum(machine.rate(length, 1) for length in chosen) / len(chosen) > 0.95 * best


def test_a_machine_that_changes_its_pace():
    """Others use it, too, by turns for longer than a measurement is remembered."""
    shares = []
    for seed in range(8):
        machine, pace = Machine(1.0, 1.0, 0.12, 0.84, noise=1.0, seed=seed), random.Random(seed)
        controller = Adaptive(8, clock=lambda machine=machine: machine.now)
        best, chosen = max(machine.rate(length, 1) for length in range(17)), []
        for _ in range(40):
            machine.pace = pace.uniform(1, 2)
            chosen += machine.run(controller, 1, 100)
        shares.append(sum(machine.rate(length, 1) for length in chosen[400:]) / len(chosen[400:]) / best)
    assert min(shares) > 0.955 and sum(shares) / len(shares) > 0.98


def test_it_follows_a_change():
    """Drafts that stop being accepted, and then are again."""
    machine = Machine(1.0, 0.3, 0.05, 0.9)
    controller = Adaptive(8, clock=lambda: machine.now)
    assert sum(machine.run(controller, 1, 600)[300:]) / 300 > 4
    machine.passing = 0.0
    assert sum(machine.run(controller, 1, 6000)[2000:]) / 4000 < 0.5
    machine.passing = 0.9
    assert sum(machine.run(controller, 1, 60000)[50000:]) / 10000 > 3


def test_batches_of_other_sizes_have_costs_of_their_own():
    machine = Machine(1.0, 0.3, 0.3, 0.8)
    controller = Adaptive(6, clock=lambda: machine.now)
    for _ in range(80):
        alone, many = machine.run(controller, 1, 20), machine.run(controller, 32, 20)
    assert sum(alone) / 20 > 1 and sum(many) / 20 < 1


def test_passes_without_room_for_a_draft_are_not_taken_for_drafts():
    clock = iter(range(10**6))
    controller = Adaptive(4, clock=lambda: next(clock))
    for _ in range(100):
        controller.next_length(1)
        controller.update([Step([], 0, 5)])
    assert set(controller.costs[0].known) <= {0}


def test_costs_between_and_beyond_what_was_measured():
    costs = Costs()
    costs.add(4, 3.0)
    assert costs.seconds(9)[9] == 3.0
    for _ in range(50):
        for length, seconds in ((0, 1.9), (4, 3.0), (8, 5.0)):
            costs.add(length, seconds)
    assert costs.seconds(8) == pytest.approx([1.9, 1.9, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0], abs=0.2)
    assert costs.seconds(12)[12] == pytest.approx(7.0, abs=0.2)
    costs.add(0, 100.0)
    costs.add(8, 100.0)
    costs.add(12, 100.0)  # measured for the first time, by accident
    assert costs.seconds(8)[::2] == pytest.approx([1.9, 2.0, 3.0, 4.0, 5.0], abs=0.3)


def test_a_first_measurement_can_be_an_accident():
    costs = Costs()
    costs.add(8, 50.0)
    costs.add(8, 2.0)
    assert costs.seconds(8)[6:] == [2.0, 2.0, 2.0]


def test_a_fixed_length_stays():
    controller = FixedLength(7)
    controller.update([Step([1, 2], 0, 3)])
    assert controller.next_length(1) == controller.next_length(99) == 7
