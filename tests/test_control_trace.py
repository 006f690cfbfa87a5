"""The throughput controller chooses the draft lengths on record.

The simulated machines are deterministic and depend only on the lengths chosen. Their arithmetic uses +, -, *, / and
``random.random()`` alone, so it gives the same bits everywhere. For each simulation, with iterations one by one and up to 16 in a
call, ``control_traces.json`` holds a digest of all lengths and the first 200 of them, one character each ("0" is 0, "8" is 8, "A"
is 17). Record an intended change of decisions with ``python tests/test_control_trace.py``.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.requests import Step
from specdec_plugins.decoding.values import Outcome

STEPS = 4000
BLOCK_SIZES = (8, 25)
ACCEPTANCES = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97)  # probability that a drafted token passes, given that those before it did


class Dice:
    """Choices that depend on ``random.Random.random`` alone, which is stable across Python versions."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def below(self, count: int) -> int:
        return int(count * self.random())


def one(dice: Dice) -> Iterator[int]:
    while True:
        yield 1


def few(dice: Dice) -> Iterator[int]:
    """One to five rows that come and go: latency-bound traffic."""
    while True:
        rows = 1 + dice.below(5)
        for _ in range(1 + dice.below(60)):
            yield rows


def batches(dice: Dice) -> Iterator[int]:
    """Batches of eight that run out, one after another."""
    while True:
        for rows, times in ((8, 15 + dice.below(10)), (6, 2), (4, 3), (2, 2), (1, 1 + dice.below(8))):
            for _ in range(times):
                yield rows


def large(dice: Dice) -> Iterator[int]:
    """Batches of 16 to 64 rows, refilled by the quarter, that run out now and then."""
    most = 16 + dice.below(49)
    while True:
        for _ in range(30 + dice.below(60)):
            for missing in range(4):
                for _ in range(1 + dice.below(8)):
                    yield most - most * missing // 16
        rows = most
        while rows:
            for _ in range(1 + dice.below(4)):
                yield rows
            rows -= 1 + dice.below(rows)


def sweep(dice: Dice) -> Iterator[int]:
    """1 to 128 rows and back."""
    while True:
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 100, 80, 64, 50, 40, 32, 20, 10, 8, 5, 4, 2):
            for _ in range(20 + dice.below(60)):
                yield rows


def server(dice: Dice) -> Iterator[int]:
    """A random walk by single rows: sentences join and leave one at a time."""
    rows = 4
    while True:
        rows = min(max(rows + dice.below(5) - 2, 1), 24)
        for _ in range(1 + dice.below(30)):
            yield rows


PROGRAMMES = {programme.__name__: programme for programme in (one, few, batches, large, sweep, server)}


class Machine:
    """What an iteration takes, by rows and length: random coefficients, noise, stalls, a pace that changes."""

    def __init__(self, dice: Dice):
        self.dice = dice
        self.plain = dice.between(1e-4, 3e-3)  # seconds of a plain pass of one row
        self.row = (
            dice.between(0.0, 0.1) * dice.random() * dice.random()
        )  # what every further row adds, as a share of that; and so on
        self.draft = dice.between(0.0, 1.5) * dice.random()
        self.token = dice.between(0.0, 0.3) * dice.random() * dice.random()
        self.cliff, self.extra = 4 + dice.below(12), dice.between(0.0, 1.0)  # longer drafts take another kernel
        self.catch_up = dice.between(0.0, 8.0)  # the first draft after a plain pass
        self.noise = dice.between(0.02, 0.8)
        self.pace = 1.0
        self.last = 0

    def seconds(self, length: int, rows: int) -> float:
        dice, shares = self.dice, 1.0 + self.row * (rows - 1)
        if length:
            shares += (
                self.draft + self.token * length * (1.0 + self.row * (rows - 1)) + (self.extra if length > self.cliff else 0.0)
            )
            shares += 0.0 if self.last else self.catch_up
        self.last = length
        if dice.random() < 0.005:
            self.pace = dice.between(1.0, 2.0)  # other programs start or stop
        stall = 30.0 if dice.random() < 0.01 else 1.0  # the process did not run
        return self.plain * shares * self.pace * (1.0 + self.noise * dice.random()) * stall


def simulate(
    programme: Callable[[Dice], Iterator[int]],
    seed: int,
    choose: Callable[[int], int],
    observe: Callable[[Sequence[Step], float], None],
) -> list[int]:
    """The lengths that ``choose(rows)`` gives in `STEPS` iterations; ``observe(steps, seconds)`` follows each."""
    dice = Dice(seed)
    machine, rows_by_step, lengths = Machine(dice), programme(dice), []
    acceptance, change = 0.8, 0
    for number in range(STEPS):
        if number >= change:
            acceptance, change = ACCEPTANCES[dice.below(len(ACCEPTANCES))], number + 150 + dice.below(900)
        rows = next(rows_by_step)
        length = choose(rows)
        lengths.append(length)
        no_room = dice.random() < 0.02  # all rows are at their last token
        steps = []
        for _ in range(rows):
            room = 0 if no_room else dice.below(8) if dice.random() < 0.05 else 1000
            drafted, accepted = min(length, room), 0
            while accepted < drafted and dice.random() < acceptance:
                accepted += 1
            steps.append(Step([7] * drafted, accepted, 0))
        observe(steps, machine.seconds(0 if no_room else length, rows))
    return lengths


RECORD = Path(__file__).with_name("control_traces.json")
REPEATS = (1, 16)
SEEDS = {
    "one": (0, 2, 6, 9),
    "few": (2, 5, 6, 9),
    "batches": (1, 8, 9),
    "large": (3, 9, 11),
    "sweep": (0, 3, 8),
    "server": (3, 5, 9),
}
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


@pytest.mark.parametrize(
    ("case", "repeats"),
    [(case, REPEATS[number % 2]) for number, case in enumerate(CASES)]
    + [pytest.param(case, REPEATS[number % 2 - 1], marks=pytest.mark.long) for number, case in enumerate(CASES)],
)
def test_lengths_are_as_recorded(case, repeats):
    digest, first = json.loads(RECORD.read_text())[f"{case}, {repeats}"]
    found_digest, found_first = trace(case, repeats)
    assert found_first == first
    assert found_digest == digest


if __name__ == "__main__":
    RECORD.write_text(
        json.dumps({f"{case}, {repeats}": trace(case, repeats) for case in CASES for repeats in REPEATS}, indent=0) + "\n"
    )
