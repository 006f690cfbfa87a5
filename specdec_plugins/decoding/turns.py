"""Drafts of drafters that choose one token after the other. Knows nothing about models.

B rows, which a recorded pass makes R >= B, K drafted tokens, C candidates.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Distribution, Draft, Plan

# Chooses one token for each row that is wanted, to follow the prefix with what is drafted so far.
Choose = Callable[[Prefix, Sequence[bool]], Draft]


def draft_in_turn(prefix: Prefix, plan: Plan, choose: Choose) -> Draft:
    """Draft until each row has as many tokens as planned, or eos, or a product of confidences below the gate's.

    A row that stops early costs nothing more: for these drafters the gate saves drafting, and not only verification.
    """
    rows = range(len(prefix))
    tokens: list[list[int]] = [[] for _ in rows]
    confidence: list[list[float]] = [[] for _ in rows]
    told: list[Distribution] = []
    eos, least = prefix.symbols.eos, plan.gate.drafter
    wanted = [length > 0 for length in plan.lengths]
    while any(wanted):
        one = choose(prefix.ahead(tokens), wanted)
        sure = one.confidence
        for row in rows:
            if wanted[row]:
                tokens[row] += one.tokens[row]
                if sure is not None:
                    confidence[row] += sure[row][:1]
        if one.distribution is not None:  # which a recorded pass overwrites the next time
            told.append(Distribution(*(part.clone() for part in one.distribution)))
        wanted = [
            more and len(tokens[row]) < length and tokens[row][-1] != eos and prod(confidence[row]) >= least
            for row, more, length in zip(rows, wanted, plan.lengths)
        ]
    return Draft(tokens, joined(told), confidence if least else None)


def joined(parts: Sequence[Distribution]) -> Distribution | None:
    """Of one token each (R, 1, C), the distributions of all tokens (R, K, C)."""
    if not parts:
        return None
    return Distribution(torch.cat([part.tokens for part in parts], 1), torch.cat([part.probabilities for part in parts], 1))
