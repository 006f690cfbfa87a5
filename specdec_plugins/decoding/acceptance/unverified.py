"""No verification: the draft is the output. For the strategy ``drafter``."""

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Verdict


def accept_all(scores: None, draft: Draft, prefix: Prefix | None = None) -> Verdict:
    """Accept every drafted token; there is no own token, and the scores are 0."""
    rows = len(draft.tokens)
    return Verdict(list(map(len, draft.tokens)), None, [[0.0] * len(tokens) for tokens in draft.tokens], [False] * rows)
