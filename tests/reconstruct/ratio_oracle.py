"""Fieller's interval of one ratio, such as AVG = SUM / COUNT: what those of many at once are held against."""

from __future__ import annotations

import math

from dpsql.errors import DataError


def ratio_interval(
    numerator: float,
    denominator: float,
    covariance: tuple[float, float, float],
    quantile: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float]:
    """Fieller's interval {r : |S - r C| <= quantile * sd(S - r C)}, clipped to ``bounds``.

    covariance: (Var S, Cov(S, C), Var C); quantile in standard errors, so 1.96 for 95 %
    Gaussian (2.118 covers every combination of Laplace noise at 95 %).
    The set solves a r^2 - 2 b r + c <= 0 with a = C^2 - k Var C, b = S C - k Cov,
    c = S^2 - k Var S, k = quantile^2 (Fieller 1954). Where the denominator is within its
    own error of zero (a <= 0) the set is unbounded or has a hole; its hull is then all
    of ``bounds``. Coverage is exact for jointly normal errors, and the interval needs no
    division by the noisy denominator. Raises DataError for bounds in the wrong order.
    """
    low, high = bounds
    if not low <= high:
        raise DataError(f"bounds of a ratio must be ordered, not {low!r} to {high!r}")
    var_s, cov, var_c = covariance
    k = quantile * quantile
    a = denominator * denominator - k * var_c
    b = numerator * denominator - k * cov
    if not a > 0:
        return low, high
    # b^2 - a c, expanded so that S^2 C^2 drops out before it can cancel.
    spread = k * (
        var_s * denominator * denominator
        - 2 * cov * numerator * denominator
        + var_c * numerator * numerator
        - k * (var_s * var_c - cov * cov)
    )
    root = math.sqrt(max(spread, 0.0))
    return _clip((b - root) / a, low, high), _clip((b + root) / a, low, high)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
