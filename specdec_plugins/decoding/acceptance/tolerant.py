"""The exact rule and the tolerant one (Xia et al. 2023, section 3.3).

A drafted token is accepted if it is among the verifier's ``beta`` best and within ``tau`` nats of the best; after the first
refusal follows the verifier's best token. With ``beta`` 1 the output is the verifier's greedy output.
"""

import math
from dataclasses import dataclass

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.roles import Scores
from specdec_plugins.decoding.values import Draft, Tolerance, Verdict


@dataclass(frozen=True)
class TopBetaTau:
    """The rule for requests that name no tolerance of their own. Raises ValueError for values that cannot be."""

    beta: int = 1
    tau: float = math.inf

    def __post_init__(self) -> None:
        check(Tolerance(self.beta, self.tau))

    def __call__(self, scores: Scores, draft: Draft, prefix: Prefix) -> Verdict:
        usual = Tolerance(self.beta, self.tau)
        return scores.judge(draft, prefix.bounds(), [request.tolerance or usual for request in prefix.requests])


def check(tolerance: Tolerance) -> None:
    """Raise ValueError if a tolerance cannot be."""
    if tolerance.beta < 1:
        raise ValueError(f"beta {tolerance.beta} is less than 1")
    if not tolerance.tau >= 0:
        raise ValueError(f"tau {tolerance.tau} is negative or no number")
