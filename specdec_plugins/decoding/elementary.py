"""Powers, exponentials and means of scores, rounded correctly: equal to the last bit on every machine and Python.

C libraries round theirs otherwise by CPU, and Python's `sum` of floats differs between versions.
"""

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import lru_cache

DIGITS = Context(prec=30, Emin=-999_999, Emax=999_999, traps=[])


@lru_cache(maxsize=1 << 14)
def power(base: int, exponent: float) -> float:
    """``base`` >= 1 to the power of ``exponent``."""
    return float(DIGITS.power(Decimal(base), DIGITS.create_decimal_from_float(exponent)))


def exponential(x: float) -> float:
    """e^x."""
    return float(DIGITS.exp(DIGITS.create_decimal_from_float(x))) if math.isfinite(x) else math.exp(x)


def mean(scores: Sequence[float]) -> float:
    """0 for none."""
    return math.fsum(scores) / max(1, len(scores))
