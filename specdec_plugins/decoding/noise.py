"""Random numbers that depend only on a request's seed, a purpose, a position and a token.

A counter-based generator, Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), makes a token's
noise independent of the batch, the order and the draft: ``backends/torch/noise.py``, and ``csrc/noise.h`` with the same bits.
Knows nothing about models.
"""

from enum import IntEnum


class Purpose(IntEnum):
    """What numbers are for. Streams of different purposes are independent."""

    SAMPLE = 0  # a token of the verifier, or of a drafter under the coupled rule
    DRAFT = 1  # a drafter's token under the rejection rule
    ACCEPT = 2  # whether that is accepted
    RECOVER = 3  # the verifier's own token under the rejection rule


def mixed(*numbers: int) -> int:
    """An int64 seed hashed from several numbers by the finaliser of SplitMix64 (Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state - 2**64 if state >= 2**63 else state
