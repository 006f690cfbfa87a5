"""Cost model: seconds of an iteration, by draft length.

Iterations are measured separately for each class of batches, as a geometric running mean per length. Among drafts, cost is
assumed linear in the length; a length measured often departs from the line, because past some lengths the kernels read the
weights twice. All costs share one factor, the machine's pace: other programs slow down all lengths alike, so lengths measured
at different times stay comparable.

An interrupted iteration can take many times as long, so the influence of one measurement is bounded.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

MEMORY = 32  # measurements that a mean spans: costs change with the lengths of sentences
RELIABLE = 4  # measurements; with fewer, the mean says nothing about the pace, and a fast iteration replaces it
OUTLIER = 1.4  # ratio to the expectation, or its inverse: limits one measurement's influence; a mean beyond is a surprise

PRIOR_WEIGHT = 6.0  # measurements of a length that weigh as much as the line there, or as the prior of its slope
PRIOR_FIXED = 0.25  # prior: fraction of the mean draft's cost over a plain pass that does not depend on its length
EXTRAPOLATION = 2  # times the longest measured length: the line is trusted up to there

PACE_GAIN = 0.05  # weight of one measurement in the pace: the last 20, a shorter time than other programs run


def bounded(ratio: float) -> float:
    """A ratio of seconds, as far as one measurement counts."""
    return min(max(ratio, 1 / OUTLIER), OUTLIER)


@dataclass(frozen=True)
class Cost:
    """Mean of a length's measurements."""

    seconds: float
    samples: int  # measurements, up to `MEMORY`
    warm: bool = False  # whether they are of iterations that follow others in a call, which tell more


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
        """The longest draft whose cost is known."""
        return EXTRAPOLATION * max(self.measured, default=0)

    def warm(self, length: int) -> bool:
        return length in self.measured and self.measured[length].warm

    def reliable(self, length: int) -> bool:
        return length in self.measured and self.measured[length].samples >= RELIABLE

    def observe(self, length: int, seconds: float, warm: bool = False) -> bool:
        """Take in a measurement; returns whether the mean is now far from what was expected."""
        expected, old = self.expected(length)[length], self.measured.get(length)
        if old is None or old.warm < warm or (old.samples < RELIABLE and seconds < old.seconds / OUTLIER):
            new = Cost(min(seconds, OUTLIER * expected), 1, warm)
        else:
            count = min(old.samples + 1, MEMORY)
            new = Cost(old.seconds * bounded(seconds / old.seconds) ** (1 / count), count, warm)
        self.measured[length] = new
        return not expected / OUTLIER <= new.seconds <= OUTLIER * expected

    def doubt(self, lengths: Collection[int]) -> None:
        """Keep plain passes, and the costs of drafts of these lengths as one measurement each."""
        kept = {length: replace(cost, samples=1) for length, cost in self.measured.items() if length in lengths}
        self.measured = {length: cost for length, cost in self.measured.items() if not length} | kept

    def expected(self, longest: int) -> list[float]:
        """Seconds of an iteration with a draft of 0, 1, .. ``longest`` tokens; infinity where unknown."""
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

    def expected_of(self, mean: Callable[[Sequence[float]], list[float]], longest: int) -> list[float]:
        """`expected` where fewer tokens than planned may be offered. ``mean`` averages values, given by the number of offered
        tokens, over the offers of plans of 0, 1, .. ``longest`` tokens. Infinity beyond `longest` offered tokens.
        """
        plain, *drafts = self.expected(longest)
        if drafts[0] == math.inf:
            return [plain, *drafts]
        _, *seconds = mean([drafts[0], *drafts])  # an empty draft costs more than none
        if longest > self.longest:
            _, *offers = mean(range(longest + 1))
            seconds = [each if offered <= self.longest else math.inf for each, offered in zip(seconds, offers)]
        return [plain, *seconds]

    def _line(self, drafts: list[tuple[int, int, float]]) -> tuple[float, float, float]:
        """The line through the costs of drafts: mean length, mean seconds, seconds per further token.

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
    """How slow the machine is now, relative to the stored costs."""

    factor: float = 1.0

    def normalised(self, seconds: float, length: int, costs: CostModel) -> float:
        """A measurement converted to the pace of the stored costs; updates the pace if the length's cost is reliable."""
        if costs.reliable(length):
            self.factor *= bounded(seconds / (self.factor * costs.measured[length].seconds)) ** PACE_GAIN
        return seconds / self.factor
