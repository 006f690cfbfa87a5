"""Powers, exponentials and means against exact arithmetic, and against the C library's to an ulp."""

import math
import random
from fractions import Fraction

import pytest

from specdec_plugins.decoding.elementary import exponential, mean, power


def test_powers_of_one_and_none_are_exact():
    assert [power(length, 1.0) for length in range(1, 2000)] == list(range(1, 2000))
    assert {power(length, 0.0) for length in range(1, 2000)} == {1.0}


@pytest.mark.parametrize("exponent", [2, 3, -1, -2, 0.5])
def test_powers_are_rounded_correctly(exponent):
    for base in range(1, 300):
        found = power(base, float(exponent))
        neighbours = [math.nextafter(found, bound) for bound in (-math.inf, math.inf)]
        if exponent == 0.5:
            errors = [abs(Fraction(each) ** 2 - base) for each in (found, *neighbours)]
        else:
            errors = [abs(Fraction(each) - Fraction(base) ** exponent) for each in (found, *neighbours)]
        assert errors[0] == min(errors)


def test_powers_and_exponentials_are_the_c_librarys_to_an_ulp():
    rng = random.Random(0)
    for _ in range(500):
        base, exponent, x = rng.randrange(1, 5000), rng.uniform(-30, 30), rng.uniform(-80, 10)
        assert power(base, exponent) == pytest.approx(base**exponent, rel=2.0**-52)
        assert exponential(x) == pytest.approx(math.exp(x), rel=2.0**-52)
    assert power(1, 30.0) == 1 and power(7, 1e-300) == 1 and power(7, 5e-324) == 1
    assert exponential(0.0) == 1 and exponential(-math.inf) == 0 and exponential(-1e6) == 0


def test_means_do_not_depend_on_the_order():
    rng = random.Random(0)
    scores = [rng.uniform(-9, 0) * 10 ** rng.randrange(-6, 2) for _ in range(200)]
    assert len({mean(rng.sample(scores, len(scores))) for _ in range(20)}) == 1
    assert mean([]) == 0
