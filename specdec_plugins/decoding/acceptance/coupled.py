"""The coupled rule for sampling (Daliri, Musco, Suresh 2024, arXiv 2408.07978).

The verifier's token at a position is drawn by random numbers that depend on the request's seed and the position alone, and a
drafted token is accepted if it is that token. So the output is the one that the verifier would say by itself, whatever was
drafted. A drafter that draws by the same numbers drafts that token more often.

``csrc/judge.h`` has the same rule. R rows, W positions, V vocabulary.
"""

from torch import Tensor

from specdec_plugins.decoding.noise import Purpose
from specdec_plugins.decoding.sampling import Table, draw


def choose(weights: Tensor, table: Table) -> Tensor:
    """(R, W) the verifier's tokens, by weights (R, W, V) as `sampling.warp` gives them."""
    return draw(weights, table, Purpose.SAMPLE)
