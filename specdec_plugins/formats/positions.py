"""Tables of positions, sinusoidal, rotary and relative, equal to the last bit on every machine.

Exponentials and sines of PyTorch, NumPy and C libraries differ in their last bits between CPUs. These are polynomials in float64,
computed by additions, multiplications and divisions alone, which IEEE 754 rounds in one way, and rounded to float32 at the end.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

LOG_10000 = 9.210340371976184
LOG2_E = 1.4426950408889634
LOG_2 = 0x162E42FEF * 2.0**-33, 7.440617110012397e-11  # ln 2 as a sum; the first part has 33 bits
QUARTERS = 0.6366197723675814  # in a radian; a quarter turn is pi / 2
QUARTER = 0x3243F6A8 * 2.0**-29, 0x22168C23 * 2.0**-59, 5.170182981794105e-19  # their sum is pi / 2; two times n < 2^23 are exact
EXPONENTIAL = [1 / math.factorial(power) for power in range(14)]  # Taylor's
SINE = [(-1) ** power / math.factorial(2 * power + 1) for power in range(7)]
COSINE = [(-1) ** power / math.factorial(2 * power) for power in range(8)]
CHUNK = 1 << 14  # angles at a time, which stay in a core's cache


@lru_cache(maxsize=8)
def sinusoidal(rows: int, width: int, pad: int) -> np.ndarray:
    """(rows, width) float32 position table of tensor2tensor and fairseq: all sines, then all cosines; row ``pad`` is zero.

    Rates and angles are rounded to float32, as there. Cached, so that models share it. Read-only.
    """
    half = width // 2
    if half < 2 or rows <= pad:
        raise ValueError(f"sinusoidal positions cannot have {rows} rows of width {width}")
    exponents = np.arange(half, dtype=np.float32) * np.float32(-(LOG_10000 / (half - 1)))
    rates = exponential(exponents.astype(np.float64)).astype(np.float32)
    table = np.zeros((rows, width), np.float32)
    for some, part in _chunks(table, half):
        angles = some.astype(np.float32) * rates
        sines_and_cosines(angles.astype(np.float64), part[:, :half], part[:, half : 2 * half])
    table[pad] = 0
    return table


@lru_cache(maxsize=8)
def sinusoidal_from_zero(rows: int, width: int) -> np.ndarray:
    """(rows, width) float32 position table of Marian and Pegasus, rounded from float64. Cached. Read-only."""
    rates = exponential(np.arange(0, width, 2) / width * LOG_10000)
    table = np.zeros((rows, width), np.float32)
    half = len(rates)
    for some, part in _chunks(table, half):
        sines_and_cosines(some / rates, part[:, :half], part[:, half:])
    return table


@lru_cache(maxsize=8)
def rotations(rows: int, width: int, theta: float, factor: float = 1.0) -> np.ndarray:
    """(rows, width) float32 cosines, then sines, of the angles that rotary positions turn the halves of a head by.

    Rates and angles are rounded to float32, as in transformers. ``factor`` divides positions. Cached. Read-only.
    """
    exponents = (np.arange(0, width, 2) / width).astype(np.float32).astype(np.float64)
    rates = np.float32(1) / exponential(exponents * math.log(theta)).astype(np.float32) / np.float32(factor)
    table = np.empty((rows, width), np.float32)
    half = width // 2
    for some, part in _chunks(table, half):
        angles = some.astype(np.float32) * rates
        sines_and_cosines(angles.astype(np.float64), part[:, half:], part[:, :half])
    return table


@lru_cache(maxsize=8)
def buckets(count: int, distance: int, both_ways: bool) -> tuple[int, ...]:
    """T5's bucket of each distance of a key ahead of its query, from ``-distance`` to ``distance``, in float32 as there."""
    half = count // 2 if both_ways else count
    exact = half // 2
    step = np.float32(math.log(distance / exact))
    found = []
    for ahead in range(-distance, distance + 1):
        far, first = (abs(ahead), half * (ahead > 0)) if both_ways else (max(0, -ahead), 0)
        if far >= exact:
            far = exact + int(np.float32(math.log(np.float32(far / exact))) / step * np.float32(half - exact))
        found.append(first + min(far, half - 1))
    return tuple(found)


def _chunks(table: np.ndarray, half: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some positions at a time, as a column, and their rows of a table."""
    step = max(1, CHUNK // half)
    for first in range(0, len(table), step):
        part = table[first : first + step]
        yield np.arange(first, first + len(part), dtype=np.float64)[:, None], part


def exponential(x: np.ndarray) -> np.ndarray:
    """e^x in float64, with a relative error below 1e-15 for -10 < x < 10."""
    power = np.rint(x * LOG2_E)
    result: np.ndarray = np.ldexp(polynomial(EXPONENTIAL, x - power * LOG_2[0] - power * LOG_2[1]), power.astype(np.int64))
    return result


def sines_and_cosines(angles: np.ndarray, sines: np.ndarray, cosines: np.ndarray) -> None:
    """Fills in the sines of ``angles`` (rows, columns) from 0 to 10^7, and their cosines, as many columns as there are.

    Errors are below 1e-13, a millionth of an ulp in float32.
    """
    number = np.rint(angles * QUARTERS)
    rest = angles - number * QUARTER[0]
    rest -= number * QUARTER[1]
    rest -= number * QUARTER[2]
    square, turn = rest * rest, number.astype(np.int64)
    sine, cosine = rest * polynomial(SINE, square), polynomial(COSINE, square)
    odd = (turn & 1).astype(bool)
    sines[:] = np.where(odd, cosine, sine) * (1 - (turn & 2))
    cosines[:] = (np.where(odd, sine, cosine) * (1 - (turn + 1 & 2)))[:, : cosines.shape[1]]


def polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """By Horner's rule; each product and sum is rounded."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total
