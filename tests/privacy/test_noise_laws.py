"""The integer samplers follow their laws: power in both directions, fixed seeds, level 1e-6."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats
from seeded_source import SeededSource

from dpsql.privacy.noise import Noise, sample_from

LEVEL = 1e-6
Cdf = Callable[[np.ndarray], np.ndarray]


def gaussian_cdf(variance: float) -> Cdf:
    """P(round(N(0, variance)) <= z)."""
    return lambda z: special.ndtr((z + 0.5) / math.sqrt(variance))


def laplace_cdf(scale: float) -> Cdf:
    """P(Z <= z) = 1 - q^(z+1)/(1+q) for z >= 0, and by symmetry."""
    q = math.exp(-1 / scale)

    def cdf(z: np.ndarray) -> np.ndarray:
        upper = q ** (np.abs(np.where(z >= 0, z + 1, z)).astype(float)) / (1 + q)
        return np.where(z >= 0, 1 - upper, upper)

    return cdf


def chi_square_p(draws: list[int], cdf: Cdf, bins: int = 24) -> float:
    """p-value of the draws' counts in up to ``bins`` bins of about equal probability."""
    reach = max(2, max(abs(z) for z in draws))
    support = np.arange(-reach - 1, reach + 1)
    below = cdf(support)
    edges = sorted({int(np.searchsorted(below, (i + 1) / bins)) for i in range(bins - 1)})
    edges = [e for e in edges if e < len(support)]
    expected = np.diff(np.concatenate([[0.0], below[edges], [1.0]])) * len(draws)
    counts = Counter(int(np.searchsorted(support[edges], z)) for z in draws)
    observed = np.array([counts[i] for i in range(len(expected))], dtype=float)
    full = expected >= 5
    observed = np.append(observed[full], observed[~full].sum())
    expected = np.append(expected[full], expected[~full].sum())
    if expected[-1] < 1e-9:
        assert observed[-1] == 0
        observed, expected = observed[:-1], expected[:-1]
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1))


CASES = [
    (Noise.gaussian(Fraction(1, 3)), 40_000),
    (Noise.gaussian(Fraction(302, 10)), 40_000),
    (Noise.gaussian(Fraction(10**9 + 1, 7000)), 40_000),
    (Noise.laplace(Fraction(9, 10)), 50_000),
    (Noise.laplace(Fraction(10**13, 10**12 + 1)), 50_000),
    (Noise.laplace(Fraction(1234567, 1000)), 50_000),
]


@pytest.mark.parametrize(("noise", "count"), CASES, ids=lambda v: getattr(v, "kind", str(v)))
@pytest.mark.few(every=3)
def test_draws_follow_the_law_and_wrong_scales_are_caught(
    noise: Noise, count: int, assurance: Callable[..., None]
) -> None:
    make = gaussian_cdf if noise.kind == "gaussian" else laplace_cdf
    off_by = (lambda f: f * f) if noise.kind == "gaussian" else (lambda f: f)
    draws = sample_from(noise, count, SeededSource(f"law {noise}"))
    parameter = float(noise.parameter)
    assert chi_square_p(draws, make(parameter)) > LEVEL
    for factor in (0.95, 1.05):
        assert chi_square_p(draws, make(parameter * off_by(factor))) < LEVEL, "the test must have power"
    wrong = Noise(noise.kind, noise.parameter * off_by(Fraction(95, 100)))
    mutant = sample_from(wrong, count, SeededSource(f"mutant {noise}"))
    assert chi_square_p(mutant, make(parameter)) < LEVEL
    mean = sum(draws) / count
    assert abs(mean) < 5 * math.sqrt(noise.variance / count)
    assurance("draws held against their law", count)


@pytest.mark.parametrize("exponent", [15, 60, 300])
@pytest.mark.few("15", "60")
def test_huge_scales_extend_their_digits_and_stay_normal(exponent: int) -> None:
    noise = Noise.gaussian(Fraction(10**exponent, 3))
    draws = sample_from(noise, 20_000, SeededSource("huge"))
    sigma = math.sqrt(float(noise.parameter))
    assert stats.kstest([z / sigma for z in draws], "norm").pvalue > LEVEL
    assert stats.kstest([z / sigma for z in draws], "norm", args=(0, 1.1)).pvalue < LEVEL
    last_digits = Counter(z % 10 for z in draws)  # no grid coarser than the integers
    assert stats.chisquare(list(last_digits.values())).pvalue > LEVEL
    assert len(last_digits) == 10


def test_huge_laplace_scales() -> None:
    scale = Fraction(10**40, 7)
    draws = sample_from(Noise.laplace(scale), 20_000, SeededSource("huge laplace"))
    scaled = [float(z / scale) for z in draws]
    assert stats.kstest(scaled, "laplace").pvalue > LEVEL
    assert stats.kstest(scaled, "laplace", args=(0, 1.1)).pvalue < LEVEL


def test_draws_are_uncorrelated() -> None:
    draws = np.array(sample_from(Noise.gaussian(Fraction(50)), 50_000, SeededSource("lag")), dtype=float)
    for lag in (1, 2, 3):
        correlation = np.corrcoef(draws[:-lag], draws[lag:])[0, 1]
        assert abs(correlation) < 5 / math.sqrt(len(draws))


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.3, 0.5, 0.8, 1.5])
def test_the_gaussian_variance_is_an_upper_bound(sigma: float) -> None:
    z = np.arange(0, 60)
    tail = special.ndtr(-(z + 0.5) / sigma)  # P(round >= z + 1); E[Z^2] = 2 sum (2z + 1) P(Z >= z + 1)
    exact = 2 * float(((2 * z + 1) * tail).sum())
    shown = Noise.gaussian(Fraction(sigma) ** 2).variance
    assert exact <= shown
    k = np.arange(1, 400)
    terms = (-1.0) ** k * (4 * sigma**2 + 1 / (math.pi * k) ** 2) * np.exp(-2 * (math.pi * k * sigma) ** 2)
    assert exact == pytest.approx(sigma**2 + 1 / 12 + terms.sum(), abs=2e-6)


@pytest.mark.parametrize("scale", [Fraction(1, 20), Fraction(1, 2), Fraction(3), Fraction(400)])
def test_the_laplace_variance_is_exact_and_rounded_up(scale: Fraction) -> None:
    q = math.exp(-1 / float(scale))
    z = np.arange(1, 40_000)
    exact = 2 * float(((1 - q) / (1 + q) * z.astype(float) ** 2 * q**z).sum())
    shown = Noise.laplace(scale).variance
    assert shown == pytest.approx(exact, rel=1e-9)
    assert shown >= exact * (1 - 1e-11)


@pytest.mark.long
def test_a_million_draws_are_all_integers_of_the_law(assurance: Callable[..., None]) -> None:
    for noise in (Noise.gaussian(Fraction(30)), Noise.laplace(Fraction(5))):
        draws = sample_from(noise, 1_000_000 if noise.kind == "gaussian" else 300_000, SeededSource("million"))
        assert all(type(z) is int for z in draws)
        make = gaussian_cdf if noise.kind == "gaussian" else laplace_cdf
        assert chi_square_p(draws, make(float(noise.parameter)), bins=200) > LEVEL
        assurance("draws held against their law", len(draws))
