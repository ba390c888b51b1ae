"""Intervals of many ratios at once, by inversion of a test (Fieller 1954), and of variances, which are such ratios.

With S and C estimated jointly, r is accepted as their ratio where

    |S - r C| <= h(S - r C),

h the half-width of the (1 - alpha) interval of that combination of the noise. The true ratio is
accepted with probability 1 - alpha exactly, however small C is. For normal noise h is a constant number
q of standard errors and the ends solve a quadratic equation. For Laplace noise q depends a little on
r (1.960 to 2.118 at 95 %), and each end is found as a fixed point with its own q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.common.numerics import NEAR

from .linear_errors import LinearErrors, scale_rows
from .spread import Matrix

_STEPS = 12


@dataclass(frozen=True)
class Ratios:
    """Ratios (g,) with their gradients over the outputs (g x k) and the ends of their intervals.

    Where not ``bounded`` the denominator is within its error of zero: the ends are -inf and inf, the gradient 0,
    the value S / C, which may be NaN or infinite there.
    """

    value: Floats
    gradient: Floats
    low: Floats
    high: Floats
    bounded: NDArray[np.bool_]


@np.errstate(all="ignore")
def fieller(S: Floats, C: Floats, S_weights: Floats, C_weights: Floats, errors: LinearErrors) -> Ratios:
    """S / C for all groups; S, C (g,), whose errors have the weights (g x k) over the outputs.

    The set of accepted r is an interval around S / C where |C| > h(C); elsewhere it is the line or the
    outside of an interval, and its hull is the line. With r = S/C + t and all errors divided by C the set is

        t^2 <= q^2 (V - 2 t K + t^2 U),   U = Var(C)/C^2, V = Var(S - S/C C)/C^2, K their covariance,

    whose ends (-q^2 K +- sqrt(q^4 K^2 + (1 - q^2 U) q^2 V)) / (1 - q^2 U) need no subtraction of squares.
    The fixed point takes a few quantiles of Laplace sums a group and end; it stops at a relative change of 1e-6,
    and takes the larger of the last two. What overflows on the way is not bounded; nothing is warned of.
    """
    C_rows = errors.combine(C_weights)
    reach = errors.half_widths(C_rows)
    value = S / C
    weights = (S_weights - value[:, None] * C_weights) / C[:, None]
    bounded = (np.abs(C) > reach) & np.isfinite(value) & np.isfinite(weights).all(axis=1)
    weights[~bounded] = 0.0
    C_rows = scale_rows(C_rows, 1 / np.where(bounded, C, np.inf))
    rows = errors.combine(weights)
    low, high = _end(rows, C_rows, errors, -1.0), _end(rows, C_rows, errors, 1.0)
    bounded &= np.isfinite(low) & np.isfinite(high)
    weights[~bounded] = 0.0
    return Ratios(
        value,
        weights,
        np.where(bounded, value, 0.0) + np.where(bounded, low, -np.inf),
        np.where(bounded, value, 0.0) + np.where(bounded, high, np.inf),
        bounded,
    )


def _end(rows: Matrix, C_rows: Matrix, errors: LinearErrors, side: float) -> Floats:
    """The end t of each set on one side of 0; +-inf where q leaves no finite end."""
    V, U = errors.covariances(rows, rows), errors.covariances(C_rows, C_rows)
    K = errors.covariances(rows, C_rows)
    end = np.zeros_like(V)
    q = _quantiles(rows, errors, np.zeros_like(V))
    for _ in range(_STEPS):
        end = _root(q, V, K, U, side)
        moved = np.where(np.isfinite(end), end, 0.0)
        following = _quantiles(cast("Matrix", rows - scale_rows(C_rows, moved)), errors, q)
        settled = np.abs(following - q) <= NEAR * q
        previous, q = q, following
        if settled.all():
            break
    return np.where(q > previous, _root(q, V, K, U, side), end)


def _root(q: Floats, V: Floats, K: Floats, U: Floats, side: float) -> Floats:
    """The end in half-widths h = q sqrt(V) and g = q sqrt(U), with the correlation r = K / sqrt(V U).

    h (-g r +- sqrt(g^2 r^2 + 1 - g^2)) / (1 - g^2). Noise that is nearly always 0 has deviations of 1e-100 and less
    beside a half-width of a step, so that q^4 is no double.
    """
    v, u = np.sqrt(V), np.sqrt(U)
    h, g = q * v, q * u
    some = (v > 0) & (u > 0)
    r = np.clip(np.where(some, K / np.where(some, v, 1.0) / np.where(some, u, 1.0), 0.0), -1.0, 1.0)
    a = 1 - g * g
    end = h * (-g * r + side * np.sqrt(np.maximum(g * g * r * r + a, 0.0))) / a
    return np.where(a > 0, end, side * np.inf)


def _quantiles(rows: Matrix, errors: LinearErrors, otherwise: Floats) -> Floats:
    """Half-widths in standard errors; ``otherwise`` where there is no error."""
    deviation = errors.deviations(rows)
    certain = deviation == 0
    return np.where(certain, otherwise, errors.half_widths(rows) / np.where(certain, 1.0, deviation))


def variances(
    n: Floats,
    S: Floats,
    Q: Floats,
    weights: tuple[Floats, Floats, Floats],
    sample: bool,
    power: int,
    errors: LinearErrors,
) -> Ratios:
    """(Q - S^2 / n) n^power / (n - sample) for all groups; ``weights``: of the errors of n, S, Q, each (g x k).

    Let f(c) = Q - 2 c S + c^2 n, the sum of squares about c as measured. About the true mean mu it is linear in
    the noise, so f(mu) / n has Fieller's interval. mu is not known; f is least at the estimated mean
    m = S / n, and f(mu) = f(m) + n (mu - m)^2. So the interval of f(m) / n, moved up by (mu - m)^2, covers;
    here its upper end alone moves, by the largest (mu - m)^2 that the interval of the mean allows. Without that the
    variances of groups whose mean is poorly known would be stated too low. Unbounded where n - sample is not
    above zero by more than its error. The estimate itself is f(m) / (n - sample), low by about Var(m). Ours.
    """
    n_weights, S_weights, Q_weights = weights
    mean = fieller(S, n, S_weights, n_weights, errors)
    m = np.where(np.isfinite(mean.value), mean.value, 0.0)
    about = Q - m * (2 * S - m * n)
    about_weights = Q_weights - 2 * m[:, None] * S_weights + (m * m)[:, None] * n_weights
    degrees = n - 1 if sample else n ** (1 - power)
    ratio = fieller(about, degrees, about_weights, ((1 - power) * n ** max(-power, 0))[:, None] * n_weights, errors)
    bounded = ratio.bounded & mean.bounded & (degrees > 0) & (n > 0)
    with np.errstate(all="ignore"):
        off = np.maximum(mean.high - m, m - mean.low) ** 2 * np.where(bounded, n / degrees, 1.0)
    return Ratios(
        ratio.value,
        np.where(bounded[:, None], ratio.gradient, 0.0),
        np.where(bounded, ratio.low, -np.inf),
        np.where(bounded, ratio.high + np.where(bounded, off, 0.0), np.inf),
        bounded,
    )


def largest_variance(n: Floats, reach: Floats, width: float, sample: bool, power: int) -> Floats:
    """No variance of values within ``width`` exceeds (width / 2)^2 (Popoviciu 1935).

    For samples n / (n - 1) times that; n^power times that for others. n - reach and n + reach are the least and the
    most n that are believed; a sample has at least 2 rows, a mean 1.
    """
    cap = np.full_like(n, (width / 2) ** 2)
    if sample:
        least = np.maximum(n - reach, 2.0)
        cap *= least / (least - 1)
    return cast("Floats", cap * np.maximum(n + power * reach, 1.0) ** power)
