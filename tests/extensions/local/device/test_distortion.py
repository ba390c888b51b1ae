"""Theorem 1: the bounds as printed (with e^epsilon where the proof has it), their order, their limits."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from dpsql.errors import DataError
from dpsql.extensions.local.device import distortion_lower_bound, distortion_upper_bound
from dpsql.privacy.response import Response


@pytest.mark.parametrize("level", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_bounds_are_those_of_the_theorem(level: int, epsilon: float) -> None:
    k, n = 2**level, 1000
    g = 1 + (k - 1) * math.exp(-epsilon)
    upper = distortion_upper_bound(Response.of(k, epsilon), n, spread=1.5)
    assert upper == pytest.approx(4 * 1.5**2 * g**2 / (1 - math.exp(-epsilon)) ** 2 / n)
    lower = distortion_lower_bound(k, epsilon, n)
    # By the numbers of Lemma 3: (1/4) ((1 - Phi(1)) sigma gamma^(3/2) sqrt n)^2 / n^2.
    gamma, sigma = 1 / (2 * (1 + math.exp(epsilon) / (k - 1))), math.sqrt(2 / k)
    assert lower == pytest.approx(0.25 * (norm.sf(1) * sigma * gamma**1.5 * math.sqrt(n)) ** 2 / n**2)
    assert lower < upper / 16


def test_both_fall_as_one_over_n_and_the_lower_one_stays_below() -> None:
    for k in (2, 3, 100, 10**6):
        for epsilon in ("0.01", "1", "8"):
            response = Response.of(k, epsilon)
            small, large = distortion_upper_bound(response, 10), distortion_upper_bound(response, 1000)
            assert small == pytest.approx(100 * large)
            low, lower = (distortion_lower_bound(k, float(epsilon), n) for n in (10, 1000))
            assert low == pytest.approx(100 * lower)
            assert 0 < lower < large
    assert distortion_lower_bound(2, 500.0, 1) == 0.0


def test_bad_figures_are_refused() -> None:
    response = Response.of(2, 1)
    for rows in (0, -1, True, 1.5):
        with pytest.raises(DataError, match="rows"):
            distortion_upper_bound(response, rows)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="rows"):
            distortion_lower_bound(2, 1.0, rows)  # type: ignore[arg-type]
    for spread in (0.5, math.nan, math.inf):
        with pytest.raises(DataError, match="spread"):
            distortion_upper_bound(response, 1, spread=spread)
    with pytest.raises(DataError, match="2 values"):
        distortion_lower_bound(1, 1.0, 1)
    with pytest.raises(DataError, match="epsilon"):
        distortion_lower_bound(2, math.nan, 1)
