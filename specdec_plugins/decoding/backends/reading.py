"""What a pass reads and returns.

B rows, R >= B rows computed by a recorded pass, K guesses, N positions or embeddings, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_plugins.decoding.values import LOGITS, Array, Want

NOT_WANTED = "this pass was not asked for that: name it in `Reading.want`"


class Visible(NamedTuple):
    """The positions that a pass attends to, if not all.

    Of the target: the first ``sinks`` and the last ``window`` up to a query's own. Of the source: ``sources`` (B, N) int64,
    ascending in each row; numbers past a source's end are padding.
    """

    sinks: int
    window: int
    sources: Array


class Reading(NamedTuple):
    """Row b reads ``tokens[b]`` from position ``positions[b]`` on; each token attends to those before it.

    * ``firsts``: results start at row b's token ``firsts[b]``; None: at the first.
    * ``guesses`` (R, K): tokens still on the device, to follow the one in ``tokens``.
    * ``embeddings`` (N, D): vectors to read in place of tokens, which then index them.
    * ``parents``: the last ``len(parents[b])`` tokens of row b are a tree, as in a `TreeDraft`, whose root is the token before
      them. Each has the position, the context and the result of a chain along its path. Entries lie in the order of the tokens
      until `RowState.keep` moves a path.
    * ``visible``: the only positions that queries attend to.
    * ``want``: what the pass returns besides logits.

    ``guesses``, ``embeddings``, ``parents`` and ``visible`` exclude one another.
    """

    tokens: Sequence[Sequence[int]]
    positions: Sequence[int]
    firsts: Sequence[int] | None = None
    guesses: Array | None = None
    embeddings: Array | None = None
    parents: Sequence[Sequence[int]] | None = None
    visible: Visible | None = None
    want: Want = LOGITS
