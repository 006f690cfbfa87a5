"""What may be said next, whatever the logits are: the limit, forced and suppressed tokens, the shortest output.

By fairseq's conventions: never pad, no empty output unless a request allows it, and only eos at the length limit. Every backend
applies the same constraints at each verified position, with that position's prefix, before any acceptance rule.

B rows, which a recorded pass makes R >= B, K drafted tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.formats.spec import ModelSpec, Symbols


@dataclass(frozen=True)
class Constraints:
    """A model's own: its special symbols, the tokens that begin every output, and tokens that no output has (besides pad)."""

    symbols: Symbols = field(default_factory=Symbols)
    forced: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()

    @classmethod
    def of(cls, spec: ModelSpec) -> "Constraints":
        return cls(spec.symbols, spec.forced, spec.suppressed)


class Bounds(NamedTuple):
    """The constraints of one step, by row.

    ``room`` is how many tokens may still be committed before eos, ``minimum`` how many must be before eos may follow, and
    ``forced`` the tokens that must come next. The limit takes precedence over forced tokens.
    """

    constraints: Constraints
    room: list[int]
    minimum: list[int]
    forced: Sequence[Sequence[int]]


def restrict(
    logits: Tensor, constraints: Constraints, minimum: Tensor, room: Tensor | None = None, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A copy of logits (R, K+1, V) with minus infinity where a token may not follow, and (R, K+1) bool: whether the limit forbids
    the best token.

    Position k of a row comes after k drafted tokens. ``minimum`` (R, 1); ``room`` (R, 1), or None where every row has room for
    all K + 1 tokens; ``forced`` (R, K+1) has the token that must come, or -1; None where none is forced.
    """
    eos = constraints.symbols.eos
    allowed = logits.clone()
    for token in (constraints.symbols.pad, *constraints.suppressed):  # not as one index, which would be a transfer to the device
        allowed[..., token] = -math.inf
    position = torch.arange(logits.size(1), device=logits.device)  # (K+1,)
    allowed[..., eos].masked_fill_(position < minimum, -math.inf)
    if forced is not None:
        _only(allowed, forced.clamp(min=0), forced >= 0)
    if room is None:
        return allowed, torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    over = position >= room  # (R, K+1)
    cut = over & (allowed.argmax(-1) != eos)
    _only(allowed, torch.full_like(over, eos, dtype=torch.int64), over)
    return allowed, cut


def _only(logits: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Leave only the token ``tokens`` (R, K+1) at the positions ``where`` (R, K+1) bool of logits (R, K+1, V), in place."""
    logits.masked_fill_(where[..., None], -math.inf)
    own = logits.gather(2, tokens[..., None])
    logits.scatter_(2, tokens[..., None], torch.where(where[..., None], torch.zeros_like(own), own))
