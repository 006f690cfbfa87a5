"""Thompson sampling (Thompson 1933): each arm is played with the probability that it is the best.

For each judgement the rates at which tokens pass are drawn from what is believed of them (beta distributions, by normal ones of
the same mean and variance), and so are the seconds. All lengths of a gate share the draws of its positions: the goodputs of
neighbours go up and down together, and only what tells them apart is explored.
"""

import random
from collections.abc import Sequence

from specdec_plugins.decoding.control.arms import Estimates
from specdec_plugins.decoding.control.bandit import Bandit, goodput
from specdec_plugins.decoding.control.learned import Learned
from specdec_plugins.decoding.options import OPEN, Gate

WIDTH = 0.7  # of the standard deviations are drawn: full ones lose more than they find in some thousand iterations
LEAST = 0.1  # of the seconds that are expected: as few as are drawn


class Thompson(Bandit):
    """A `Bandit` with random numbers of its own, by ``seed``."""

    def __init__(
        self, block_size: int, gate: Gate = OPEN, gates: Sequence[Gate] = (), learned: Learned | None = None, nodes: int = 0,
        seed: int = 0,
    ):  # fmt: skip
        super().__init__(block_size, gate, gates, learned, nodes)
        self._gauss = random.Random(seed).gauss

    def judge(self, estimates: Estimates) -> list[float]:
        """Goodput by arm, of one draw."""
        gauss = self._gauss
        rates = [
            [min(max(gauss(rate, WIDTH * deviation), 0.0), 1.0) for rate, deviation in zip(*each)]
            for each in zip(estimates.rates, estimates.deviations)
        ]
        seconds = [cost * max(gauss(1.0, WIDTH * doubt), LEAST) for cost, doubt in zip(estimates.seconds, estimates.doubts)]
        return goodput(estimates, rates, seconds)
