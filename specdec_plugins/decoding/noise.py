"""Random numbers that depend on nothing but what they are for: a request's seed, a purpose, a position and a token.

They come from a counter-based generator, Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), so
that a token's noise does not depend on what is decoded beside it, in which order, or how many tokens are verified at a time.
``csrc/noise.h`` is the twin of this file; the random bits are the same. Knows nothing about models.
"""

from enum import IntEnum

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


class Purpose(IntEnum):
    """What numbers are drawn for; the streams of different purposes are independent."""

    SAMPLE = 0  # a token of the verifier's; under the coupled rule a drafter's, too
    DRAFT = 1  # a drafter's token under the rejection rule
    ACCEPT = 2  # whether that is accepted
    RECOVER = 3  # the verifier's own token under the rejection rule


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for a counter and a key of such words; int64 tensors of shapes that broadcast."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # wraps around at 2^64, which leaves the bits as they are
        a, b, c, d = (second >> 32 & LOW) ^ b ^ low, second & LOW, (first >> 32 & LOW) ^ d ^ high, first & LOW
        low, high = low + KEY_STEPS[0] & LOW, high + KEY_STEPS[1] & LOW
    return a, b, c, d


def token_bits(seeds: Tensor, purpose: int, positions: Tensor, tokens: Tensor) -> Tensor:
    """32 random bits, as int64, for each token number at each position of requests with these ``seeds``; shapes broadcast."""
    counter = tokens >> 2, positions & LOW, torch.full_like(positions, purpose), torch.zeros_like(positions)
    words = torch.stack(torch.broadcast_tensors(*philox(counter, (seeds & LOW, seeds >> 32 & LOW))))
    return words.gather(0, (tokens & 3).expand(words.shape[1:])[None])[0]


def uniform(bits: Tensor) -> Tensor:
    """Float64 numbers between 0 and 1, neither included."""
    return (bits.double() + 0.5) * 2.0**-32


def exponential(bits: Tensor) -> Tensor:
    """Exponentially distributed float64 numbers.

    Of tokens with weights w and such numbers e, the one of least e / w comes with a probability proportional to w: the same as
    the largest of log w plus Gumbel noise, where the noise is -log e.
    """
    return -torch.log1p(-uniform(bits))


def mixed(*numbers: int) -> int:
    """A seed, from -2^63 up to 2^63, derived from several numbers: different ones give unrelated seeds.

    The numbers are absorbed one after the other by the finaliser of SplitMix64 (Steele et al. 2014).
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state - 2**64 if state >= 2**63 else state
