"""The coupled rule for sampling (Daliri, Musco, Suresh 2024, arXiv 2408.07978).

The verifier's sample at a position depends only on its logits, the request's seed and the position; a drafted token is accepted
if it is that sample. So drafts don't change the output. A drafter that draws with the same random numbers is right more often.

``csrc/judge.h`` has the same rule.
"""

from torch import Tensor

from specdec_plugins.decoding.backends.torch.sampling import Table, draw
from specdec_plugins.decoding.noise import Purpose


def choose(weights: Tensor, table: Table) -> Tensor:
    """(R, W) the verifier's samples, for weights (R, W, V) from `sampling.warp`."""
    return draw(weights, table, Purpose.SAMPLE)
