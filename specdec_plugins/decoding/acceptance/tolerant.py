"""The exact and the tolerant rule (Xia et al. 2023, section 3.3); see `Tolerance`.

After the first refusal comes the verifier's best token. With ``beta`` 1 the output is the verifier's greedy output.
"""

import math

from specdec_plugins.decoding.backends import Pass
from specdec_plugins.decoding.options import Tolerance
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Verdict


class TopBetaTau:
    """The rule for requests without a `Tolerance` of their own. Raises ValueError for invalid values.

    Requests with `Sampling` are judged by the rule that they name, in the same pass.
    """

    def __init__(self, beta: int = 1, tau: float = math.inf):
        self.tolerance = Tolerance(beta, tau)

    def __call__(self, scores: Pass, draft: Draft, prefix: Prefix) -> Verdict:
        tolerances = [request.tolerance or self.tolerance for request in prefix.requests]
        return scores.judge(draft, prefix.bounds(), tolerances, prefix.draws(), prefix.scored())
