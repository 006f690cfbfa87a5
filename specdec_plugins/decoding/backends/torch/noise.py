"""The generator of `decoding/noise.py` on tensors."""

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for a counter and a key of such words; int64 tensors, shapes broadcast."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # the bits survive the wrap at 2^64
        a, b, c, d = (second >> 32 & LOW) ^ b ^ low, second & LOW, (first >> 32 & LOW) ^ d ^ high, first & LOW
        low, high = low + KEY_STEPS[0] & LOW, high + KEY_STEPS[1] & LOW
    return a, b, c, d


def token_bits(seeds: Tensor, purpose: int, positions: Tensor, tokens: Tensor) -> Tensor:
    """32 random bits, as int64, for each seed, position and token; shapes broadcast."""
    counter = tokens >> 2, positions & LOW, torch.full_like(positions, purpose), torch.zeros_like(positions)
    words = torch.stack(torch.broadcast_tensors(*philox(counter, (seeds & LOW, seeds >> 32 & LOW))))
    return words.gather(0, (tokens & 3).expand(words.shape[1:])[None])[0]


def uniform(bits: Tensor) -> Tensor:
    """Float64 numbers in (0, 1)."""
    return (bits.double() + 0.5) * 2.0**-32


def exponential(bits: Tensor) -> Tensor:
    """Exponentially distributed float64 numbers e.

    The token with the least e / w is a sample by weights w, equal to the argmax of log w plus Gumbel noise -log e.
    """
    return -torch.log1p(-uniform(bits))
