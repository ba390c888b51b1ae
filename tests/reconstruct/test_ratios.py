"""Fieller's interval: by hand, by its definition, and where it is unbounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ratio_oracle import ratio_interval

from dpsql.errors import DataError


def test_ends_satisfy_the_definition() -> None:
    s, c, cov, z = 500.0, 100.0, (400.0, 30.0, 25.0), 1.96
    low, high = ratio_interval(s, c, cov, z)
    assert low < 5 < high
    for r in (low, high):
        sd = math.sqrt(cov[0] - 2 * r * cov[1] + r * r * cov[2])
        assert abs(s - r * c) == pytest.approx(z * sd, rel=1e-9)


def test_a_certain_denominator_gives_the_plain_interval() -> None:
    assert ratio_interval(10, 4, (1, 0, 0), 2) == pytest.approx((2, 3))


def test_unbounded_sets_become_the_bounds() -> None:
    assert ratio_interval(5, 1, (1, 0, 4), 1.96, (0, 10)) == (0, 10)
    assert ratio_interval(5, 0, (1, 0, 0), 1.96) == (-math.inf, math.inf)
    assert ratio_interval(500, 10, (1, 0, 0.01), 1.96, (0, 10)) == (10, 10)
    with pytest.raises(DataError, match="ordered"):
        ratio_interval(1, 1, (1, 0, 1), 1.96, (2, 1))


def test_coverage_of_a_bad_denominator() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(4000):
        s, c = 12 + 3 * rng.normal(), 6 + 2 * rng.normal()
        low, high = ratio_interval(s, c, (9, 0, 4), 1.959964)
        inside += low <= 2 <= high
    assert 0.93 < inside / 4000 < 0.975
