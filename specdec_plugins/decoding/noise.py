"""Random numbers that depend only on a request's seed, a purpose, a position and a token.

A counter-based generator, Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), makes a token's
noise independent of the batch, the order and the draft. ``csrc/noise.h`` computes the same bits. Knows nothing about models.
"""

from enum import IntEnum

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


class Purpose(IntEnum):
    """What numbers are for. Streams of different purposes are independent."""

    SAMPLE = 0  # a token of the verifier, or of a drafter under the coupled rule
    DRAFT = 1  # a drafter's token under the rejection rule
    ACCEPT = 2  # whether that is accepted
    RECOVER = 3  # the verifier's own token under the rejection rule


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


def mixed(*numbers: int) -> int:
    """An int64 seed hashed from several numbers by the finaliser of SplitMix64 (Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state - 2**64 if state >= 2**63 else state
