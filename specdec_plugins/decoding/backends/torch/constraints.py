"""The constraints of `decoding/constraints.py` on logits.

B rows, which a recorded pass makes R >= B, K drafted tokens, T tokens of a prefix, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.constraints import Constraints, Repeats


def restrict(
    logits: Tensor, constraints: Constraints, minimum: Tensor, room: Tensor | None = None, repeats: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A copy of logits (R, K+1, V) with minus infinity for banned tokens, and (R, K+1) bool: whether the limit bans the best one.

    Position k of a row comes after k drafted tokens. ``minimum`` (R, 1); ``room`` (R, 1), or None if every row has room for all
    K + 1 tokens; ``repeats`` (R, K+1, V) as `repeated` returns it, None if no row has the rule.
    """
    eos = constraints.symbols.eos
    allowed = logits.clone()
    for token in constraints.banned:  # an index tensor would be a transfer to the device
        allowed[..., token] = -math.inf
    position = torch.arange(logits.size(1), device=logits.device)  # (K+1,)
    allowed[..., eos].masked_fill_(position < minimum, -math.inf)
    if repeats is not None:
        _ban(allowed, repeats, eos)
    if room is None:
        return allowed, torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    over = position >= room  # (R, K+1)
    cut = over & (allowed.argmax(-1) != eos)
    allowed[..., eos].masked_fill_(over, 0)
    _ban(allowed, over[..., None], eos)
    return allowed, cut


def _ban(logits: Tensor, banned: Tensor, eos: int) -> None:
    """Ban tokens in place, but never eos."""
    end = logits[..., eos].clone()
    logits.masked_fill_(banned, -math.inf)
    logits[..., eos] = end


def repeat_table(
    repeats: Sequence[Repeats], vocabulary: int, rows: int, round_up: Callable[[int, int], int] = lambda size, unit: size
) -> tuple[list[list[int]], int]:
    """For `repeated`, ``rows`` rows: the size, then T tokens, the prefix padded on the left with V; and the largest size.
    ``round_up(T, unit)`` leaves fewer different shapes."""
    most = max(size for size, _ in repeats)
    columns = round_up(max(most, *(len(prefix) for _, prefix in repeats)), 64)
    given = [[size, *[vocabulary] * (columns - len(prefix)), *prefix] for size, prefix in repeats]
    return given + [[0, *[vocabulary] * columns]] * (rows - len(given)), most


def repeated(table: Tensor, drafted: Tensor, vocabulary: int, most: int) -> Tensor:
    """(R, K+1, V) bool: the tokens that would repeat an n-gram after the prefix and the first k ``drafted`` tokens (R, K), with
    ``table`` (R, 1 + T) and ``most`` of `repeat_table`."""
    sizes, tokens = table[:, :1, None], torch.cat([table[:, 1:], drafted], 1)  # (R, 1, 1), (R, L)
    (rows, length), width = tokens.shape, drafted.size(1) + 1
    prefix = length - width + 1  # T
    place, end = (torch.arange(size, device=tokens.device) for size in (length, width))
    found = (place < prefix + end[:, None]) & (sizes > 0)  # (R, K+1, L) whether the token there ends an n-gram that would recur
    for back in range(1, most):
        before = F.pad(tokens, (back, 0), value=vocabulary)[:, None, :length]  # (R, 1, L)
        context = tokens[:, prefix - back : prefix - back + width, None]  # (R, K+1, 1)
        found &= ((before == context) & (context < vocabulary)) | (sizes <= back)
    named = torch.where(found, tokens[:, None], vocabulary)
    held = torch.zeros(rows, width, vocabulary + 1, dtype=torch.bool, device=tokens.device)
    return held.scatter_(2, named, True)[..., :vocabulary]
