"""How many tokens the next draft has.

Knows nothing about models: a controller is told how many rows are in flight, what became of each draft, and looks at the clock.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec_plugins.decoding.values import Step

SMALL = 8  # 4 log2 of the most rows that make a small batch: 4
RATION = 0.01  # of the time, for trials
PLAIN, DRAFTED = 32, 8  # of so many passes of a kind one is thought about: they can be so short that thinking would show
HOLD = 8  # plain passes that follow when rows get fewer behind a plain one: a batch may be ending, and catching up be in vain
FEW, MANY = 4, 32  # measurements of a length: below, its cost is a guess; from there on, a new one weighs no less
GRANTED = 20.0  # measurements that weigh as much as what is taken for granted
PACE = 0.05  # what one pass says of the machine's pace


@dataclass(frozen=True)
class FixedLength:
    """Always the same block size K; 0 is plain autoregressive decoding."""

    length: int

    def next_length(self, rows: int) -> int:
        return self.length

    def update(self, steps: Sequence[Step]) -> None:
        """Told after each pass what became of each row's draft."""


@dataclass
class Costs:
    """Seconds that an iteration takes at one number of rows, by the length of the draft."""

    trials: int = 0  # the visit from which some of each are tried, so that costs are known
    tried: int = 0  # how many of those there were
    visits: int = 0
    seen: int = 0  # the visit that was measured last
    known: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # how often each of them was measured, up to MANY
    price: float = 0.0  # seconds that the last trial took
    wait: int = 32  # visits until something else is tried
    until: int = 32
    decided: int = 0  # the visit of the last decision
    surprise: bool = False  # something was measured that had been expected otherwise
    usual: int = 0  # the length of passes without a thought
    rest: int = 0  # the visit up to which there are such

    def add(self, length: int, seconds: float) -> None:
        """Take in a measurement. One pass says little, as others use the machine, too; but one that took less than half of what
        few had told says that these had been accidents."""
        guessed, old, count = self.seconds(length)[length], self.known.get(length), self.counts.get(length, 0)
        if old is None or (count < FEW and seconds < 0.5 * old):
            self.known[length], self.counts[length] = min(seconds, 1.5 * guessed), 1
        else:
            self.counts[length] = count = min(count + 1, MANY)
            self.known[length] = old * believed(seconds / old) ** (1 / count)
        self.surprise |= not 0.8 * guessed <= self.known[length] <= 1.2 * guessed

    @property
    def longest(self) -> int:
        """The longest draft worth a thought: twice what was measured. Beyond it the line of `seconds` is a guess."""
        return 2 * max(self.known, default=0)

    @property
    def gap(self) -> int:
        """Of so many drafts one is thought about: of ever more, as costs become known."""
        return min(DRAFTED, 1 + self.visits // 128)

    def seconds(self, longest: int) -> list[float]:
        """What an iteration with a draft of 0, 1, .. tokens is expected to take: on a line through what was measured with
        drafts, or off it where much was measured.

        Infinity where nothing is known.
        """
        plain = self.known.get(0, math.inf)
        points = [(self.counts[length], length, seconds) for length, seconds in self.known.items() if length]
        if not points:
            return [plain, *[math.inf] * longest]
        total = sum(count for count, _, _ in points)
        middle = sum(count * length for count, length, _ in points) / total
        mean = sum(count * seconds for count, _, seconds in points) / total
        along = sum(count * (length - middle) * (seconds - mean) for count, length, seconds in points)
        across = sum(count * (length - middle) ** 2 for count, length, _ in points)
        # Until measurements tell otherwise, half of what a draft adds is for its being made at all.
        granted = max(0.0, mean - plain) / (2 * middle)
        slope = max(0.0, (along + GRANTED * granted) / (across + GRANTED))
        least = self.known.get(0, 0.0)  # a draft makes no iteration faster
        found = [plain, *(max(least, mean + slope * (length - middle)) for length in range(1, longest + 1))]
        for count, length, seconds in points:  # a length that does not fit the kernels well is off the line
            if length <= longest:
                found[length] += count / (count + GRANTED) * (seconds - found[length])
        return found


def believed(ratio: float) -> float:
    """A ratio of times, as far as one pass is believed."""
    return min(max(ratio, 0.8), 1.25)


class Adaptive:
    """The length that gives most tokens a second, down to 0: speculation shall never be a loss.

    The expected tokens of a draft of K are 1 + the sum over j <= K of the probability that its first j tokens pass. What an
    iteration costs is measured, for each number of rows by itself, at the machine's pace of the moment. Another length is taken
    only if it promises 3 % more, drafts instead of none if they promise 10 % more. Drafts vary a little in length, so that it is
    known what a token of them costs. Now and then something else is tried, no draft or one of the model's length, less and less
    often while the answer stays the same; where drafts do not pay, and in large batches from the beginning, trials may take
    1 % of the time in all.
    """

    def __init__(self, block_size: int, clock=time.perf_counter):
        self.most = 2 * block_size
        self.clock = clock
        self.costs: dict[int, Costs] = {}
        self.choices: dict[int, int] = {}  # by number of rows, as `costs`
        self.start = block_size
        # By position of the block: in how many drafts all before it passed, and in how many it passed, too. Old ones fade.
        self.reached = [0.0] * self.most
        self.passed = [0.0] * self.most
        self.rows = self.key = self.length = 0
        self.watching = True
        self.total = self.spent = 0.0  # seconds in all, and for trying
        self.pace = 1.0  # how slow the machine is at present: others use it, too, and what counts are ratios
        self.trying = 0  # passes of what is being tried that are still to come
        self.odd = False  # whether what this pass takes says nothing about others
        self.usual = 0  # the length of passes without a thought, while the rows stay
        self.idle = self.granted = 0  # how many of them are to come; how many there were to be
        self.began = 0.0

    def next_length(self, rows: int) -> int:
        if self.idle and rows == self.rows:  # most passes end here
            self.idle -= 1
            self.watching = False
            return self.usual
        if self.granted:
            self.costs[self.key].visits += self.granted - self.idle
            self.granted = self.idle = 0
        key = round(4 * math.log2(max(1, rows)))  # about a fifth more rows is another case
        if key != self.key:
            self.key, self.trying = key, 0
        if key not in self.costs:
            self.costs[key] = Costs(trials=16 if self.choices else 0)  # later on, what is known of similar batches will do
        costs = self.costs[key]
        before, grown, fewer, self.rows = self.length, rows > self.rows, rows < self.rows, rows
        ending = fewer and not before
        self.watching = costs.visits >= costs.rest and not ending
        self.length = self._choose(costs) if self.watching else 0 if ending else costs.usual
        costs.visits += 1
        if not self.trying:
            self.usual = 0 if ending else costs.usual
            if self.watching:
                costs.rest = costs.visits + (costs.gap if costs.usual else PLAIN) - 1
            self.granted = self.idle = HOLD - 1 if ending else max(0, costs.rest - costs.visits)
        # A drafter that paused has to catch up, and new sentences bring work of their own.
        self.odd = before == 0 < self.length or grown
        self.began = self.clock() if self.watching else 0.0
        return self.length

    def update(self, steps: Sequence[Step]) -> None:
        if not self.watching:
            return
        seconds, costs = self.clock() - self.began, self.costs[self.key]
        self.total += seconds * (costs.visits - costs.seen)
        costs.seen = costs.visits
        if self.trying:
            self.trying -= 1
            self.spent += seconds
            costs.price += seconds
        if self.length and not any(step.drafted for step in steps):
            return  # nobody had room for a draft, so this was another kind of pass
        if costs.visits > 1 and not self.odd:  # the first pass of its kind makes room for itself
            if costs.counts.get(self.length, 0) >= FEW:  # what changes for all lengths alike is the pace
                self.pace *= believed(seconds / (self.pace * costs.known[self.length])) ** PACE
            costs.add(self.length, seconds / self.pace)
        if self.length:
            for step in steps:
                for position in range(min(len(step.drafted), step.accepted + 1)):
                    self.reached[position] = 0.99 * self.reached[position] + 1
                    self.passed[position] = 0.99 * self.passed[position] + (step.accepted > position)

    def expected(self) -> list[float]:
        """Tokens that an iteration is expected to commit with a draft of 0, 1, .. tokens.

        A position that few drafts reached is taken to pass as the one before it does.
        """
        tokens, survival, share = [1.0], 1.0, 0.75
        for passed, reached in zip(self.passed, self.reached):
            share = (passed + 4 * share) / (reached + 4)
            survival *= share
            tokens.append(tokens[-1] + survival)
        return tokens

    def _choose(self, costs: Costs) -> int:
        if self.trying:
            return self.length
        affordable = self.spent + max(costs.price, 5 * costs.known.get(0, math.inf)) < RATION * self.total
        first = (*self._lengths(), 0) * 2 if self._small() else self._lengths()[:1]
        if costs.tried < len(first):
            if (affordable or self._small()) and costs.visits >= costs.trials:
                costs.tried += 1
                return self._try(costs, first[costs.tried - 1])
            alike = [key for key in self.choices if (key <= SMALL) == self._small()]
            costs.usual = self.choices[min(alike, key=lambda key: abs(key - self.key))] if alike else 0
            return costs.usual
        if self.key not in self.choices or costs.surprise or costs.visits - costs.decided >= 8:
            self._decide(costs)
        chosen = costs.usual = self.choices[self.key]
        affordable |= self._small() and (chosen > 0 or costs.wait < 256)
        if costs.visits >= costs.until and (affordable or chosen):
            costs.wait = min(512, 2 * costs.wait)
            costs.until = costs.visits + costs.wait
            return self._try(costs, ((0, self.start) if chosen else self._lengths())[costs.wait.bit_length() % 2])
        aside = (0, -1, 0, 1)[costs.visits // costs.gap % 4] * (chosen // 4)
        return min(chosen + aside, self.most)

    def _try(self, costs: Costs, length: int) -> int:
        """Begin a trial: some passes, as the first draft after a pause says nothing."""
        self.trying, costs.price = 3 if self._small() else 2, 0.0
        return length

    def _small(self) -> bool:
        """Whether few rows are in flight, so that drafts are likely to pay. In large batches a draft can take as long as many
        plain passes, and what is spent on trying is limited."""
        return self.key <= SMALL

    def _lengths(self) -> tuple[int, int]:
        """A long and a short draft to try; both short for a large batch, which drafts are likely to slow down much."""
        third = max(1, self.start // 3)
        return (self.start, third) if self._small() else (third, max(1, third // 2))

    def _decide(self, costs: Costs) -> None:
        costs.surprise, costs.decided = False, costs.visits
        rates = [tokens / seconds for tokens, seconds in zip(self.expected(), costs.seconds(costs.longest))]
        best = max(range(len(rates)), key=lambda length: rates[length])
        current = self.choices.get(self.key)
        if current is None or current >= len(rates) or rates[best] > (1.03 if current else 1.1) * rates[current]:
            self.choices[self.key] = best
            costs.wait = 32
