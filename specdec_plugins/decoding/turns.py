"""Drafting one token per pass. Knows nothing about models.

B rows, which a recorded pass makes R >= B, K drafted tokens, C candidates.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch

from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Distribution, Draft, Plan

# One token for each wanted row, to follow the prefix and the tokens drafted so far.
Choose = Callable[[Prefix, Sequence[bool]], Draft]


def draft_in_turn(prefix: Prefix, plan: Plan, choose: Choose) -> Draft:
    """Draft until each row has its planned tokens, or eos, or a product of confidences below the gate's.

    A row that stops early costs nothing more, so here the gate saves drafting as well as verification.
    """
    rows = range(len(prefix))
    tokens: list[list[int]] = [[] for _ in rows]
    confidence: list[list[float]] = [[] for _ in rows]
    parts: list[Distribution] = []
    eos, least = prefix.symbols.eos, plan.gate.drafter
    wanted = [length > 0 for length in plan.lengths]
    while any(wanted):
        one = choose(prefix.ahead(tokens), wanted)
        confident = one.confidence
        for row in rows:
            if wanted[row]:
                tokens[row] += one.tokens[row]
                if confident is not None:
                    confidence[row] += confident[row][:1]
        if one.distribution is not None:  # the next recorded pass overwrites it
            parts.append(Distribution(*(part.clone() for part in one.distribution)))
        wanted = [
            more and len(tokens[row]) < length and tokens[row][-1] != eos and prod(confidence[row]) >= least
            for row, more, length in zip(rows, wanted, plan.lengths)
        ]
    distribution = Distribution(*(torch.cat(each, 1) for each in zip(*parts))) if parts else None  # of (R, 1, C) each
    return Draft(tokens, distribution, confidence if least else None)
