"""Noise in a block: probability of z in Z^m proportional to exp(-max |z_i| / b). Its moments and its law.

z is uniform in the cube {-r..r}^m, where P(r) is proportional to (2r + 1)^m exp(-r/b) (``draws.cube``). So coordinates
are uncorrelated, and the variance of one is E r (r + 1)/3. With t = r + 1/2 the sums over r are those of t^k exp(-t/b)
over half-integers; by Euler and Maclaurin they are the integrals k! b^(k+1) but for terms of order b^-m, as m
derivatives vanish at 0. Where b is not large the sums themselves are taken.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

_SUMMED = 2**20  # values of r up to which sums are taken one by one
_PLACES = 2**14
_LARGE = 1000.0  # scale from which the integrals are right to 1 part in 10^6


def radii(size: int, scale: Fraction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(r, P(r)) for all r but those of probability below 10^-15 together; for at most some 2^20 of them."""
    b = float(scale)
    r = np.arange(int(b * (size + 1 + 12 * (size + 1) ** 0.5 + 45)) + 2, dtype=np.float64)
    logs = size * np.log(2 * r + 1) - r / b
    weights = np.exp(logs - logs.max())
    return r, weights / weights.sum()


@lru_cache(256)
def variance(size: int, scale: Fraction) -> float:
    """Of one coordinate, not below it: near (m + 1)(m + 2) b^2 / 3, for m = 1 that of discrete Laplace noise."""
    b = float(scale)
    if b > _LARGE or not summable(size, scale):
        return (size + 1) * (size + 2) * b * b / 3.0 * (1.0 + 1e-9)
    r, chance = radii(size, scale)
    return float(chance @ (r * (r + 1))) / 3.0 * (1.0 + 1e-9)


def spread(size: int, scale: Fraction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``radii``, or where these are many real radii of equal probability: r + 1/2 is nearly Gamma(m + 1, b)."""
    if summable(size, scale):
        return radii(size, scale)
    places = (np.arange(_PLACES) + 0.5) / _PLACES
    return scipy.special.gammaincinv(size + 1, places) * float(scale) - 0.5, np.full(_PLACES, 1.0 / _PLACES)


def below_largest(size: int, scale: Fraction, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(max |z_i| <= edge) for each whole number of ``edges``."""
    r, chance = spread(size, scale)
    share = [np.minimum((2 * edge + 1) / (2 * r + 1), 1.0) for edge in edges]
    return np.array([float(chance @ part**size) for part in share])


def below(size: int, scale: Fraction, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(z_i <= edge) for each whole number of ``edges``."""
    r, chance = spread(size, scale)
    return np.array([float(chance @ np.clip((edge + r + 1) / (2 * r + 1), 0.0, 1.0)) for edge in edges])


def mean_size(size: int, scale: Fraction) -> float:
    """E |z_i|."""
    r, chance = spread(size, scale)
    return float(chance @ (r * (r + 1) / (2 * r + 1)))


def summable(size: int, scale: Fraction) -> bool:
    """Whether ``radii`` are few."""
    return bool(float(scale) * (size + 13 * (size + 1) ** 0.5 + 45) < _SUMMED)
