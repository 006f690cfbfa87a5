"""Upper confidence bounds (Auer, Cesa-Bianchi and Fischer 2002): the arm is played whose goodput may be the highest.

The bound is exp(`WIDTH` standard deviations of the logarithm of the goodput) times the expected goodput. The variance is that
of the delta method: of a ratio, the sum of the relative variances of tokens and seconds; of tokens, from the last position on,

    E[i] = r[i] (1 + E[i+1]),    Var[i] = var(r[i]) (1 + E[i+1])^2 + r[i]^2 Var[i+1],

with r[i] the rate at which tokens pass at position i, and E[i] what is accepted from there on. What is known about rates fades,
so the bounds widen with time in place of a growing logarithm.
"""

import math
from collections.abc import Sequence

from specdec_plugins.decoding.control.arms import Estimates
from specdec_plugins.decoding.control.bandit import Bandit, goodput

WIDTH = 1.5  # standard deviations


class Ucb(Bandit):
    """A `Bandit`."""

    def judge(self, estimates: Estimates) -> list[float]:
        """The upper bound of the goodput by arm."""
        expected = goodput(estimates, estimates.rates, estimates.seconds)
        bounds = []
        for arm, value, doubt in zip(estimates.arms, expected, estimates.doubts):
            spread = relative_deviation(estimates.rates[arm.kind], estimates.deviations[arm.kind], arm.length)
            bounds.append(value * math.exp(WIDTH * math.hypot(spread, doubt)))
        return bounds


def relative_deviation(rates: Sequence[float], deviations: Sequence[float], length: int) -> float:
    """Standard deviation of the tokens that an iteration with a draft of that length commits, relative to their expectation."""
    accepted = variance = 0.0
    for rate, deviation in zip(reversed(rates[:length]), reversed(deviations[:length])):
        variance = (deviation * (1 + accepted)) ** 2 + rate * rate * variance
        accepted = rate * (1 + accepted)
    return math.sqrt(variance) / (1 + accepted)
