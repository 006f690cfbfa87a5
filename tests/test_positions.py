"""Sinusoidal position tables against exact arithmetic, fairseq's and transformers' formulas, and their own bits elsewhere."""

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_plugins.formats import positions
from specdec_plugins.formats.positions import exponential, sines_and_cosines, sinusoidal, sinusoidal_from_zero

BITS = 220  # of exact arithmetic


def rounded(number):
    return Fraction(round(number * 2**BITS), 2**BITS)


def arctangent(of, terms):
    return sum(Fraction((-1) ** k, (2 * k + 1) * of ** (2 * k + 1)) for k in range(terms))


PI = rounded(4 * (4 * arctangent(5, 50) - arctangent(239, 20)))  # Machin's formula


def exact(angle):
    """Sine and cosine of a float."""
    number = round(Fraction(angle) / (PI / 2))
    rest, sine, cosine, term = rounded(Fraction(angle) - number * PI / 2), Fraction(0), Fraction(0), Fraction(1)
    for power in range(30):
        if power % 2:
            sine += (-1) ** (power // 2) * term
        else:
            cosine += (-1) ** (power // 2) * term
        term = rounded(term * rest / (power + 1))
    return [(sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine)][number % 4]


def test_sines_and_cosines_are_exact_to_a_millionth_of_an_ulp():
    generator = np.random.default_rng(0)
    angles = np.concatenate([generator.random(200) * 10.0 ** generator.integers(-3, 8, 200), [0.0, 1e7, 7853981.633974483]])
    sines, cosines = (np.empty((len(angles), 1)) for _ in range(2))
    sines_and_cosines(angles[:, None], sines, cosines)
    for angle, sine, cosine in zip(angles.tolist(), sines[:, 0].tolist(), cosines[:, 0].tolist()):
        assert abs(Fraction(sine) - exact(angle)[0]) < 1e-13 > abs(Fraction(cosine) - exact(angle)[1])


def test_exponentials_are_exact_to_some_ulps():
    values = np.random.default_rng(0).uniform(-10, 10, 200)
    with localcontext() as context:
        context.prec = 40
        for value, found in zip(values.tolist(), exponential(values).tolist()):
            assert abs(Decimal(found) / Decimal(value).exp() - 1) < Decimal("1e-15")


def fairseqs(rows, width, pad):
    """As `SinusoidalPositionalEmbedding.get_embedding` computes it."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(rows, dtype=torch.float)[:, None] * rates
    table = torch.cat([angles.sin(), angles.cos(), torch.zeros(rows, width % 2)], 1)
    table[pad] = 0
    return table


def marians(rows, width):
    """As `MarianSinusoidalPositionalEmbedding.create_weight` does."""
    table = np.array([[row / np.power(10000, 2 * (column // 2) / width) for column in range(width)] for row in range(rows)])
    return torch.from_numpy(np.concatenate([np.sin(table[:, 0::2]), np.cos(table[:, 1::2])], 1)).float()


@pytest.mark.parametrize("rows, width", [(40, 4), (66, 17), (514, 256), (1026, 512), (1024, 1024)])
def test_tables_are_fairseqs_and_transformers(rows, width):
    """PyTorch's rates are off by an ulp on some CPUs, which moves an angle by an ulp of its own."""
    found, expected = torch.from_numpy(sinusoidal(rows, width, 1)), fairseqs(rows, width, 1)
    allowed = (torch.arange(rows)[:, None] + 1) * 2.0**-23
    assert ((found - expected).abs() <= allowed).all() and not found[1].any()
    assert (found == expected).float().mean() > 0.9
    if rows < 100:
        torch.testing.assert_close(
            torch.from_numpy(sinusoidal_from_zero(rows, width)), marians(rows, width), rtol=0, atol=2.0**-24
        )


def test_tables_are_the_same_on_every_machine():
    content = b"".join(table.tobytes() for table in (sinusoidal(514, 256, 1), sinusoidal_from_zero(512, 257)))
    assert hashlib.sha256(content).hexdigest() == "1fe5ef76ed4c85c8b17ce55b4ad3748587e4cd4e1f81c9b820ed867a64d73144"


def test_tables_do_not_depend_on_how_many_angles_are_computed_at_a_time(monkeypatch):
    whole = sinusoidal(300, 64, 1), sinusoidal_from_zero(300, 64)
    monkeypatch.setattr(positions, "CHUNK", 100)
    for make, size, table in ((sinusoidal, (300, 64, 1), whole[0]), (sinusoidal_from_zero, (300, 64), whole[1])):
        assert np.array_equal(make.__wrapped__(*size), table)
