"""Cost model: seconds that an iteration takes, by the length of its draft.

Measured: the seconds of single iterations, for each class of batches by itself, as a geometric running mean for each length.
Assumed: among drafts, cost is a line in the length. A length that was measured often departs from the line: past some lengths the
kernels read the weights twice. All costs share one factor, the machine's pace: other programs use the machine, too, and slow
down all lengths alike, so lengths that are measured at different times can be compared.

One iteration says little: it may have been interrupted and taken many times as long. So its weight is bounded.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

# Smoothing of the measurements of one length
MEMORY = 32  # measurements that the mean spans at most: costs change with the lengths of sentences
MAX_CHANGE = 1.25  # ratio to the mean that one measurement is believed to have at most, and its inverse at least
FIRST_EXCESS = 1.5  # of what the line predicts: as much as the first measurement is believed to be at most
RELIABLE = 4  # measurements; with fewer, the mean is a guess: it tells nothing of the pace, and an outlier may replace it
OUTLIER = 0.8  # of the mean: an iteration this fast shows that the ones before it were interrupted

# The line
PRIOR_WEIGHT = 20.0  # measurements of a length that weigh as much as the line there; one token off the mean, as the slope's prior
PRIOR_FIXED = 0.5  # prior: the part of what the mean draft adds to a plain pass that does not depend on its length
EXTRAPOLATION = 2  # times the longest length that was measured: up to there the line is trusted
TOLERANCE = 0.2  # of what was predicted: a cost farther off is reported

PACE_GAIN = 0.05  # weight of one measurement in the pace: the last 20, a shorter time than other programs run


def believed(ratio: float) -> float:
    """A ratio of seconds, as far as one measurement is believed."""
    return min(max(ratio, 1 / MAX_CHANGE), MAX_CHANGE)


@dataclass(frozen=True)
class Cost:
    """Mean of the measurements of a length."""

    seconds: float
    samples: int  # measurements, up to `MEMORY`


@dataclass
class CostModel:
    """Costs of one class of batches. Length 0 is a plain pass."""

    measured: dict[int, Cost] = field(default_factory=dict)

    @property
    def plain(self) -> float:
        """Seconds of a plain pass; infinity before one is measured."""
        return self.measured[0].seconds if 0 in self.measured else math.inf

    @property
    def longest(self) -> int:
        """The longest draft that costs can be told of."""
        return EXTRAPOLATION * max(self.measured, default=0)

    def reliable(self, length: int) -> bool:
        return length in self.measured and self.measured[length].samples >= RELIABLE

    def observe(self, length: int, seconds: float) -> bool:
        """Take in a measurement; returns whether the cost of that length is now far from what was expected."""
        expected, old = self.expected(length)[length], self.measured.get(length)
        if old is None or (old.samples < RELIABLE and seconds < OUTLIER * old.seconds):
            new = Cost(min(seconds, FIRST_EXCESS * expected), 1)
        else:
            count = min(old.samples + 1, MEMORY)
            new = Cost(old.seconds * believed(seconds / old.seconds) ** (1 / count), count)
        self.measured[length] = new
        return not (1 - TOLERANCE) * expected <= new.seconds <= (1 + TOLERANCE) * expected

    def doubt(self, lengths: Collection[int]) -> None:
        """Keep, of drafts, what these lengths took, as one measurement each."""
        kept = {length: Cost(cost.seconds, 1) for length, cost in self.measured.items() if length in lengths}
        self.measured = {length: cost for length, cost in self.measured.items() if not length} | kept

    def expected(self, longest: int) -> list[float]:
        """Seconds of an iteration with a draft of 0, 1, .. ``longest`` tokens; infinity where nothing is known."""
        plain = self.plain
        drafts = [(cost.samples, length, cost.seconds) for length, cost in self.measured.items() if length]
        if not drafts:
            return [plain, *[math.inf] * longest]
        mean_length, mean_seconds, slope = self._line(drafts)
        floor = plain if plain < math.inf else 0.0  # no iteration gets faster with a draft
        seconds = [plain, *(max(floor, mean_seconds + slope * (length - mean_length)) for length in range(1, longest + 1))]
        for count, length, measured in drafts:
            if length <= longest:
                seconds[length] += count / (count + PRIOR_WEIGHT) * (measured - seconds[length])
        return seconds

    def known(self, longest: int) -> list[float]:
        """`expected`, and infinity where it would be no more than a guess."""
        seconds = self.expected(min(longest, self.longest))
        return seconds + [math.inf] * (longest + 1 - len(seconds))

    def expected_of(self, mean: Callable[[Sequence[float]], list[float]], longest: int) -> list[float]:
        """`expected` where fewer tokens than planned may be offered: ``mean`` tells what values by the tokens offered are on
        average, where 0, 1, .. ``longest`` are planned. Infinity where too little is known.
        """
        plain, *drafts = self.expected(longest)
        if drafts[0] == math.inf:
            return [plain, *drafts]
        _, *seconds = mean([drafts[0], *drafts])  # a draft for which there was nothing to offer is not like none
        if longest > self.longest:
            _, *offers = mean(range(longest + 1))
            seconds = [each if offered <= self.longest else math.inf for each, offered in zip(seconds, offers)]
        return [plain, *seconds]

    def _line(self, drafts: list[tuple[int, int, float]]) -> tuple[float, float, float]:
        """The line through the costs of drafts: mean length, mean seconds, and seconds that a further token takes.

        Least squares, weighted by the counts, with a prior for the slope.
        """
        total = sum(count for count, _, _ in drafts)
        mean_length = sum(count * length for count, length, _ in drafts) / total
        mean_seconds = sum(count * seconds for count, _, seconds in drafts) / total
        covariance = sum(count * (length - mean_length) * (seconds - mean_seconds) for count, length, seconds in drafts)
        variance = sum(count * (length - mean_length) ** 2 for count, length, _ in drafts)
        prior = max(0.0, mean_seconds - self.plain) * (1 - PRIOR_FIXED) / mean_length
        slope = max(0.0, (covariance + PRIOR_WEIGHT * prior) / (variance + PRIOR_WEIGHT))
        if 0 not in self.measured:  # nothing else keeps the line from crossing zero
            slope = min(slope, mean_seconds / mean_length)
        return mean_length, mean_seconds, slope


@dataclass
class Pace:
    """How slow the machine is at present, relative to the costs that are kept."""

    factor: float = 1.0

    def normalised(self, seconds: float, length: int, costs: CostModel) -> float:
        """A measurement at the pace that the costs are kept at; follows the pace where the cost is known."""
        if costs.reliable(length):
            self.factor *= believed(seconds / (self.factor * costs.measured[length].seconds)) ** PACE_GAIN
        return seconds / self.factor
