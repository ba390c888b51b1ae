"""Conversions between (epsilon, delta), mu and rho, each rounded to the safe side.

A mechanism is *mu-GDP* if telling two neighbours apart from its output is never easier
than telling N(0, 1) from N(mu, 1). Adding N(0, sigma^2) noise to every coordinate of a
query of L2 sensitivity D is exactly mu-GDP with mu = D / sigma, and mu-GDP is
(epsilon, delta)-differential privacy for every epsilon >= 0 with

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle and Wang 2018, Eq. 6), which no other delta improves on. With a = epsilon/mu - mu/2
and b = a + mu we have b^2 - a^2 = 2 epsilon, hence e^epsilon phi(b) = phi(a), and

    delta = phi(a) (M(a) - M(b)),      M(t) = Phi(-t) / phi(t)  (Mills ratio)
          = phi(a) * integral over [a, b] of (1 - t M(t)) dt,

since M' = t M - 1 (derivation ours). No exponential of epsilon is left, so the logarithm
of delta is computed as it stands; the integral replaces the difference where mu is small
and the difference would cancel.

Safe side: `_log_delta` bounds its own rounding error (erfcx, log and exp within a few units in the
last place assumed), and every public function moves its result to the side that claims less
privacy. The slack is about 1e-12 of delta, less than 1e-13 of mu in ordinary use.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy

from dpsql.errors import DataError

_ROOT2 = math.sqrt(2.0)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_ULP = 2.0**-52


def _mills(t: float) -> float:
    """Phi(-t) / phi(t), for t > -30."""
    return math.sqrt(math.pi / 2.0) * float(scipy.special.erfcx(t / _ROOT2))


def _log_delta(mu: float, epsilon: float) -> tuple[float, float]:
    """Logarithm of delta and a bound on its absolute error; needs mu > 0, epsilon >= 0."""
    ratio = epsilon / mu
    a, b = ratio - mu / 2.0, ratio + mu / 2.0
    if not math.isfinite(a * b):  # delta below e^-1e300, or mu so large that delta is 1
        return (0.0, 0.0) if a < 0.0 else (-math.inf, 0.0)
    if a < -6.0:  # delta > 0.9: one minus a small number, and phi(a) would cancel M(a)
        phi = math.exp(-a * a / 2.0 - _LOG_ROOT_2PI)
        missing = 0.5 * math.erfc(-a / _ROOT2) + phi * _mills(b)
        return math.log1p(-min(missing, 0.5)), 64.0 * _ULP
    if mu < 1.0:
        # 1 - t M(t) is analytic and close to a polynomial on a unit interval: 24 Gauss-Legendre
        # nodes leave far less than rounding does. At large t it is about 1/t^2, a difference
        # of numbers about 1: the error grows with t^2.
        t = a + (mu / 2.0) * (_NODES + 1.0)
        rate = 1.0 - t * math.sqrt(math.pi / 2.0) * scipy.special.erfcx(t / _ROOT2)
        inner = (mu / 2.0) * float(_WEIGHTS @ rate)
        error = 32.0 * (1.0 + b * b)
    else:
        upper, lower = _mills(a), _mills(b)
        inner = upper - lower
        error = 32.0 * (1.0 + upper / inner) if inner > 0.0 else math.inf
    # a carries an error of about b ulps, a^2 / 2 therefore one of |a| b; a sum, of its largest term.
    largest = a * a / 2.0 + abs(math.log(inner)) if inner > 0.0 else 0.0
    error = (error + 8.0 * (1.0 + abs(a) * (abs(a) + b)) + 4.0 * largest) * _ULP
    if not inner > 0.0 or error > 0.5:
        # Only beyond t = 10^6 or so, where phi(a) is 0 in floats; M(a) <= 1/a bounds it there.
        return -a * a / 2.0, 1.0
    return -a * a / 2.0 - _LOG_ROOT_2PI + math.log(inner), error


def _log_delta_above(mu: float, epsilon: float) -> float:
    value, error = _log_delta(mu, epsilon)
    return value + error


def _check(**named: float) -> None:
    for name, value in named.items():
        if name == "delta" and not 0.0 < value < 1.0:
            raise DataError(f"delta must lie between 0 and 1, not {value!r}; 1e-9 is usual")
        if not math.isfinite(value) or value < 0.0:
            raise DataError(f"{name} must be a finite number of at least 0, not {value!r}; give a positive number")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Least delta for which mu-GDP is (epsilon, delta)-DP, rounded up; 0 only for mu = 0.

    Balle and Wang 2018, Eq. 6. Raises DataError for a negative or non-finite argument.
    """
    _check(mu=mu, epsilon=epsilon)
    if mu == 0.0:
        return 0.0
    value = math.exp(min(0.0, _log_delta_above(mu, epsilon)))
    return min(1.0, math.nextafter(value * (1.0 + 4.0 * _ULP), 2.0))


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Largest float in [low, high) where the monotone ``holds`` is true; ``holds(low)`` is given.

    Positive floats sort as their bit patterns do, so 64 halvings reach neighbours.
    """
    below, above = _bits(low), _bits(high)
    while above - below > 1:
        middle = (below + above) // 2
        if holds(_float(middle)):
            below = middle
        else:
            above = middle
    return _float(below)


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP is (epsilon, delta)-DP, rounded down.

    epsilon >= 0, 0 < delta < 1. The result satisfies ``gaussian_delta(mu, epsilon) <= delta``
    up to the last rounding of the exponential; 0.0 if no positive float does. About 1 ms.
    Balle and Wang 2018, Eq. 6, solved by bisection over the floats. Raises DataError.
    """
    _check(epsilon=epsilon, delta=delta)
    target = math.log(delta) - 4.0 * _ULP * max(1.0, -math.log(delta))
    high = 1.0
    while _log_delta_above(high, epsilon) <= target:
        high *= 2.0
    return _last_true(lambda mu: mu == 0.0 or _log_delta_above(mu, epsilon) <= target, 0.0, high)


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Least epsilon >= 0 for which mu-GDP is (epsilon, delta)-DP, rounded up.

    mu >= 0, 0 < delta < 1. Inverse of `gaussian_mu`. About 1 ms. Raises DataError.
    """
    _check(mu=mu, delta=delta)
    target = math.log(delta) - 4.0 * _ULP * max(1.0, -math.log(delta))
    if mu == 0.0 or _log_delta_above(mu, 0.0) <= target:
        return 0.0
    high = 1.0
    while _log_delta_above(mu, high) > target:
        high *= 2.0
        if high > 1e300:
            raise DataError(f"mu={mu!r} is too large for any finite epsilon; give a smaller one")
    last_false = _last_true(lambda epsilon: _log_delta_above(mu, epsilon) > target, 0.0, high)
    return math.nextafter(last_false, math.inf)


def pure_as_rho(epsilon: float) -> float:
    """Least rho for which every pure epsilon-DP mechanism is rho-zCDP, rounded up.

    rho = epsilon tanh(epsilon/2). Of all epsilon-DP mechanisms binary randomised response has the
    largest Renyi divergence of every order (it post-processes to each pair of output laws:
    Kairouz, Oh and Viswanath 2015); divided by its order that divergence is largest at order 1,
    where it is the Kullback-Leibler divergence epsilon (e^epsilon - 1)/(e^epsilon + 1).
    Never above epsilon^2/2 (Bun and Steinke 2016, Prop. 1.4). Raises DataError.
    """
    _check(epsilon=epsilon)
    return epsilon * math.tanh(epsilon / 2.0) * (1.0 + 8.0 * _ULP)
