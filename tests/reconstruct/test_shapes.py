"""Skewness, kurtosis, standard errors of means, sums of squares and geometric means: scipy's numbers, and coverage."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpsql.errors import InterfaceError
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import evaluate
from dpsql.workloads.expr.formulas import Exponential, Formula, Leaf, Number, Product, Quotient, Root, Variance
from dpsql.workloads.expr.statistics import Shape

RELEASES, DIVISOR, HALF = 4000, 1000, 50.0
N, S, Q, C, D = map(Leaf, range(5))
PARTS = N, Product((Number(HALF), S)), Product((Number(HALF**2), Q))
FORMULAS: dict[str, Formula] = {
    "skewness": Shape((N, S, Q, C), "skewness"),
    "kurtosis": Shape((N, S, Q, C, D), "kurtosis"),
    "kurtosis_pop": Shape((N, S, Q, C, D), "kurtosis_pop"),
    "sem": Root(Variance(*PARTS, 2 * HALF, power=-1)),
    "sxx": Variance(*PARTS, 2 * HALF, power=1),
    "geometric mean": Exponential(Quotient(S, N, (-1.0, 1.0))),
}


def truth(name: str, v: np.ndarray) -> float:
    return float(
        {
            "skewness": lambda: stats.skew(v, bias=False),
            "kurtosis": lambda: stats.kurtosis(v, bias=False),
            "kurtosis_pop": lambda: stats.kurtosis(v),
            "sem": lambda: v.std() / math.sqrt(len(v)),
            "sxx": lambda: ((v - v.mean()) ** 2).sum(),
            "geometric mean": lambda: math.exp(((v - HALF) / HALF).mean()),
        }[name]()
    )


def values(kind: str, size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = rng.exponential(15, size) if kind == "skew" else rng.normal(55, 20, size)
    return np.clip(drawn.round(), 0, 100)


def sums(v: np.ndarray) -> np.ndarray:
    return np.array([(((v - HALF) / HALF) ** k).sum() for k in range(5)])


@pytest.mark.parametrize("name", FORMULAS)
def test_without_noise_it_is_the_statistic(name: str) -> None:
    v = values("skew", 300)
    rows = np.full((5, 1), 1e-9)
    found = evaluate(FORMULAS[name], sums(v)[None, :], rows, Noise.gaussian(Fraction(1)))
    assert found.value == pytest.approx([truth(name, v)], rel=1e-9)
    assert found.low[0] <= found.value[0] <= found.high[0]


@pytest.mark.parametrize(("name", "size"), [("skewness", 3), ("kurtosis", 4), ("kurtosis_pop", 2)])
def test_the_fewest_rows_have_a_value(name: str, size: int) -> None:
    """Rows are whole: a little more than one less than the fewest, beyond any noise, is the fewest."""
    v = np.array([10.0, 80.0, 30.0, 90.0])[:size]
    found = evaluate(FORMULAS[name], sums(v)[None, :], np.full((5, 1), 1e-9), Noise.gaussian(Fraction(1)))
    assert found.value == pytest.approx([truth(name, v)], rel=1e-6)


@pytest.mark.parametrize(("kind", "size", "sigma"), [("normal", 200, 3), ("normal", 1000, 20), ("skew", 1000, 3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_intervals_cover(name: str, kind: str, size: int, sigma: int) -> None:
    """4,000 releases: a share of 95 % has a standard deviation of 0.34 %."""
    v = values(kind, size)
    noise = Noise.gaussian(Fraction(sigma * DIVISOR) ** 2)
    drawn = np.rint(np.random.default_rng(1).normal(0, sigma * DIVISOR, (RELEASES, 5)))
    rows = np.concatenate([np.tile(np.eye(5)[at], (RELEASES, 1)) for at in range(5)])
    found = evaluate(FORMULAS[name], sums(v) + drawn / DIVISOR, rows, noise, divisor=DIVISOR)
    exact = truth(name, v)
    assert 0.935 <= ((found.low <= exact) & (exact <= found.high)).mean() <= 0.975
    assert found.value.std() == pytest.approx(np.median(found.stderr), rel=0.15)


@pytest.mark.parametrize("name", FORMULAS)
def test_numbers_that_noise_made_impossible_give_intervals_of_all_that_there_can_be(name: str) -> None:
    """Counts below 0, no spread, spread without rows, far values: no error and no NaN but that of NULL."""
    extremes = np.array([-1e7, -5.0, 0.0, 1e-3, 3.0, 1e7])
    estimates = np.random.default_rng(2).choice(extremes, (400, 5))
    rows = np.ones((5 * 400, 1))
    with np.errstate(all="raise", under="ignore"):
        found = evaluate(FORMULAS[name], estimates, rows, Noise.gaussian(Fraction(4)))
    assert np.isfinite([found.value, found.low, found.high]).all()
    assert (found.low <= found.value + 1e-6 * np.abs(found.value)).all()
    assert (found.value <= found.high + 1e-6 * np.abs(found.value)).all()


def test_a_group_without_rows_by_the_statement_is_null() -> None:
    for formula in FORMULAS.values():
        found = evaluate(formula, np.zeros((1, 5)), np.zeros((5, 1)), Noise.gaussian(Fraction(1)))
        assert np.isnan([found.value, found.low, found.high, found.stderr]).all()


def test_parts_are_checked() -> None:
    with pytest.raises(InterfaceError, match="powers 0 to 4"):
        Shape((N, S, Q, C), "kurtosis")
    with pytest.raises(InterfaceError, match="power -1, 0 or 1"):
        Variance(N, S, Q, 1.0, sample=True, power=1)
