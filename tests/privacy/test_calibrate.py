"""Calibration against decimal arithmetic, numerical integration and published figures."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from dpsql.errors import DataError
from dpsql.privacy.calibrate import gaussian_delta, gaussian_epsilon, gaussian_mu, pure_as_rho


@lru_cache(maxsize=16)
def pi_digits(digits: int) -> Decimal:
    """Machin's formula in integers."""
    one = 10 ** (digits + 10)

    def arctan_inverse(x: int) -> int:
        total, term, k = 0, one // x, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= x * x
            k += 2
        return total

    return Decimal(4 * (4 * arctan_inverse(5) - arctan_inverse(239))).scaleb(-(digits + 10))


def upper_tail(t: Decimal, digits: int) -> Decimal:
    """P(N(0,1) > t) by the all-positive series of Phi(|t|) - 1/2; call with digits to spare."""
    term = total = abs(t)
    n = 1
    while term > total * Decimal(10) ** -digits:
        n += 2
        term = term * t * t / n
        total += term
    middle = total * (-t * t / 2).exp() / (2 * pi_digits(digits)).sqrt()
    return Decimal("0.5") - middle if t > 0 else Decimal("0.5") + middle


def reference_delta(mu: float, epsilon: float) -> Decimal:
    """Balle and Wang's Eq. 6 as printed, in as many digits as its cancellation needs."""
    widest = epsilon / mu + mu / 2
    digits = 60 + int(widest**2 / 2 / math.log(10)) + int(epsilon / math.log(10))
    digits += 2 * int(abs(math.log10(mu)))
    with localcontext() as context:
        context.prec = digits + 20
        m, e = Decimal(mu), Decimal(epsilon)
        return upper_tail(e / m - m / 2, digits) - e.exp() * upper_tail(e / m + m / 2, digits)


POINTS = [
    # A thousand takes a second.
    pytest.param(epsilon, delta, marks=[pytest.mark.long] if epsilon == 1000.0 else [])
    for epsilon in (0.0, 1e-9, 1e-4, 0.1, 1.0, 7.0, 40.0, 1000.0)
    for delta in (1e-300, 1e-30, 1e-9, 1e-3, 0.3, 0.999)
    if epsilon < 1000.0 or delta in (1e-300, 1e-9)
]


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
@pytest.mark.few(every=3)
def test_the_three_conversions_are_tight_and_on_the_safe_side(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    exact = reference_delta(mu, epsilon)
    assert exact <= Decimal(delta)
    assert reference_delta(mu * (1 + 1e-9), epsilon) > Decimal(delta)
    shown = Decimal(gaussian_delta(mu, epsilon))
    assert exact <= shown <= exact * (1 + Decimal("1e-10"))
    back = gaussian_epsilon(mu, delta)
    assert reference_delta(mu, back) <= Decimal(delta)
    if delta < 0.99:
        assert back == pytest.approx(epsilon, rel=1e-9, abs=1e-9 * mu)


def test_the_reference_agrees_with_scipy_where_scipy_is_exact() -> None:
    for t in (-3.0, -0.5, 0.0, 1.0, 6.0, 20.0, 37.0):
        with localcontext() as context:
            context.prec = 400
            value = upper_tail(Decimal(t), 380)
            assert float(value.ln()) == pytest.approx(stats.norm.logsf(t), rel=1e-13)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(0.01, 0.001), (0.2, 0.5), (0.5, 0.0), (1.0, 0.5), (1.0, 3.0), (3.0, 1.0), (6.0, 30.0)],
)
def test_delta_is_the_hockey_stick_divergence_integrated(mu: float, epsilon: float) -> None:
    start = epsilon / mu + mu / 2  # where N(mu, 1) has e^epsilon times the density of N(0, 1)
    excess, _ = integrate.quad(
        lambda x: stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x), start, start + 40, epsabs=0
    )
    assert gaussian_delta(mu, epsilon) == pytest.approx(excess, rel=1e-8)


@pytest.mark.parametrize(
    ("epsilon", "delta", "variance"),
    [(1, 1e-9, 30.20), (1, 1e-6, 17.85), (0.5, 1e-4, 34.74), (0.1, 1e-9, 2521), (3, 1e-9, 3.78)],
)
def test_variances_of_the_tight_gaussian(epsilon: float, delta: float, variance: float) -> None:
    assert 1 / gaussian_mu(epsilon, delta) ** 2 == pytest.approx(variance, rel=6e-4)
    assert 1 / gaussian_mu(epsilon, delta) ** 2 < 2 * math.log(2 / delta) / epsilon**2


def test_delta_is_monotone_and_continuous_where_the_formulas_change() -> None:
    mus = np.concatenate([np.geomspace(1e-3, 40, 400), 1.0 + np.array([-1e-9, 0.0, 1e-9])])
    for epsilon in (0.01, 0.5, 5.0):
        deltas = [gaussian_delta(float(mu), epsilon) for mu in np.sort(mus)]
        assert all(b >= a * (1 - 1e-11) for a, b in pairwise(deltas))
    near = [gaussian_delta(1.0 + shift, 0.5) for shift in (-1e-13, 0.0, 1e-13)]
    assert near[0] == pytest.approx(near[2], rel=1e-11)


def test_extremes_round_to_the_safe_side() -> None:
    assert 0 < gaussian_delta(1e-12, 10.0) < 1e-300
    assert gaussian_delta(1e200, 1.0) == 1.0
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-9) == 0.0
    assert gaussian_epsilon(1e-12, 1e-9) == 0.0
    assert gaussian_mu(1e6, 1e-9) == pytest.approx(math.sqrt(2e6), rel=0.01)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan, math.inf])
def test_a_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(DataError, match="delta must"):
        gaussian_mu(1.0, delta)
    with pytest.raises(DataError, match="delta must"):
        gaussian_epsilon(1.0, delta)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_malformed_figures_are_refused(bad: float) -> None:
    for call in (lambda: gaussian_delta(bad, 1.0), lambda: gaussian_delta(1.0, bad), lambda: pure_as_rho(bad)):
        with pytest.raises(DataError):
            call()


def randomised_response_delta(claimed: float, epsilon: float) -> float:
    """The hockey-stick divergence of binary randomised response at level ``claimed``."""
    return max(0.0, (math.exp(claimed) - math.exp(epsilon)) / (1 + math.exp(claimed)))


def test_a_pure_release_is_not_gdp_at_its_epsilon() -> None:
    assert randomised_response_delta(1.0, 0.5) == pytest.approx(0.2876, abs=1e-4)
    assert gaussian_delta(1.0, 0.5) == pytest.approx(0.2384, abs=1e-4)


@pytest.mark.parametrize("claimed", [0.01, 0.5, 1.0, 4.0])
def test_pure_as_rho_covers_randomised_response_at_every_order(claimed: float) -> None:
    keep = math.exp(claimed) / (1 + math.exp(claimed))
    lie = 1 - keep
    rho = pure_as_rho(claimed)
    for order in np.concatenate([1 + np.geomspace(1e-4, 1, 50), np.geomspace(2, 200, 50)]):
        up, down = math.log(keep), math.log(lie)
        total = np.logaddexp(order * up + (1 - order) * down, order * down + (1 - order) * up)
        assert total / (order - 1) <= order * rho * (1 + 1e-9) + 1e-14 / (order - 1)
    assert rho == pytest.approx(keep * math.log(keep / lie) + lie * math.log(lie / keep), rel=1e-9)
    assert rho < claimed**2 / 2
