"""Exact convolutions: the proven bound against what the FFT does, digits and carries against Python integers."""

import numpy as np
import pytest
from scipy import fft

from dpsql.linalg.convolution import (
    Wide,
    balanced_digits,
    carried,
    digit_count,
    digit_width,
    rounding_bound,
    scaled,
)

EXTREMES = [2**63 - 1, -(2**63), -1, 0, 1, 2**62, -(2**62) - 1]


def values(seed=0):
    rng = np.random.default_rng(seed)
    return np.array([*EXTREMES, *rng.integers(-(2**63), 2**63 - 1, size=200).tolist()], dtype=np.int64)


@pytest.mark.parametrize("levels", [1, 4, 9, 14])
def test_the_bound_holds_with_room(levels):
    length, rng = 2**levels, np.random.default_rng(levels)
    worst = 0.0
    for draw in range(6):
        a = rng.integers(-(2**8), 2**8, size=length) if draw else np.full(length, 2**8)
        b = rng.integers(-(2**8), 2**8, size=length) if draw else np.full(length, 2**8)
        found = fft.irfft(fft.rfft(a.astype(float)) * fft.rfft(b.astype(float)), length)
        exact = fft.irfft(fft.rfft(a.astype(np.longdouble)) * fft.rfft(b.astype(np.longdouble)), length)
        error = float(np.abs(found - np.rint(exact)).max())
        worst = max(worst, error / (np.linalg.norm(a) * np.linalg.norm(b)))
    assert worst <= rounding_bound(length) / 2
    assert rounding_bound(length) < 50 * levels * 2.0**-53 * 3


@pytest.mark.parametrize("length", [2, 64, 4096, 2**21])
def test_the_widest_digits_stay_below_a_quarter(length):
    entries, norm = max(1, length // 2), 3e5
    width = digit_width(length, entries, norm)
    largest = 2 ** (width - 1) + 2
    assert 4 <= width <= 20
    assert rounding_bound(length) * largest * np.sqrt(entries) * norm <= 0.25
    assert digit_width(length, entries, 1e18) == 0


@pytest.mark.parametrize("width", [4, 11, 13, 16, 20])
def test_scaled_values_digits_and_carries_are_exact(width):
    x = values()
    for factors in (np.full(x.size, 2**20 - 1), np.ones(x.size, dtype=np.int64), np.arange(x.size)):
        u = scaled(x, factors, width)
        wanted = [int(a) * int(d) for a, d in zip(x, factors, strict=True)]
        assert u.integers() == wanted
        assert u.shift % width == 0
        assert (u.low >= 0).all()
        assert (u.low < 2**u.shift).all()
        count = digit_count(83, width)
        digits = list(balanced_digits(u, width, count))
        assert len(digits) == count
        assert max(np.abs(d).max() for d in digits) <= 2 ** (width - 1) + 2
        sums = [sum(int(d[j]) << (width * k) for k, d in enumerate(digits)) for j in range(x.size)]
        assert sums == wanted
        assert carried((d.astype(np.int64) for d in digits), width).integers() == wanted


def test_few_digits_of_small_values():
    x = np.array([-5, 7, 0, 31], dtype=np.int64)
    u = scaled(x, np.ones(4, dtype=np.int64), 8)
    (one,) = balanced_digits(u, 8, 1)
    assert one.tolist() == x.tolist()
    two = [d.astype(np.int64) for d in balanced_digits(u, 8, 2)]
    assert (two[0] + 256 * two[1]).tolist() == x.tolist()


def test_carries_of_large_parts():
    rng = np.random.default_rng(3)
    parts = [rng.integers(-(2**34), 2**34, size=50) for _ in range(7)]
    found = carried(iter(parts), 13)
    assert found.integers() == [sum(int(p[j]) << (13 * k) for k, p in enumerate(parts)) for j in range(50)]
    assert np.allclose(found.floats(), [float(v) for v in found.integers()], rtol=1e-15)
    assert Wide(np.array([-1]), np.array([1]), 3).integers() == [-7]
