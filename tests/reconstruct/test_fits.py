"""Least squares from noisy moments: right without noise, unbiased and covered with it."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy.stats import binom

from dpsql.errors import InterfaceError
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise
from dpsql.reconstruct import evaluate
from dpsql.reconstruct.derived import Derived
from dpsql.workloads.expr.formulas import Leaf
from dpsql.workloads.expr.statistics import Fit

GAUSSIAN = gaussian_noise(1, Fraction(1, 10**6))
LAPLACE = pure_noise(1, Fraction(1, 1000))
CENTRES, SCALES = (3.0, -1.0, 7.0), (2.0, 4.0, 5.0)
TIMES = 2_000


class World:
    """Rows with y = 0.8 x_1 + ..., and their moments in as many noisy versions."""

    def __init__(self, rows: int, deviation: float, noise: Noise, columns: int = 2, times: int = TIMES) -> None:
        generator = np.random.default_rng(7)
        shared = generator.normal(size=(rows, 1))
        z = np.clip(0.3 * generator.normal(size=(rows, columns)) + 0.2 * shared, -1, 1)
        y = np.clip(0.3 * z[:, 0] + 0.1 + 0.3 * generator.normal(size=rows), -1, 1)
        centres, self.scales = (*CENTRES[:columns], CENTRES[-1]), (*SCALES[:columns], SCALES[-1])
        self.centres = centres
        moved = np.c_[np.ones(rows), np.c_[z, y] * self.scales]
        self.values = moved[:, 1:] + centres
        pairs = list(combinations_with_replacement(range(columns + 2), 2))
        units = np.array([(1.0, *self.scales)[i] * (1.0, *self.scales)[j] for i, j in pairs])
        exact = np.array([(moved[:, i] * moved[:, j]).sum() for i, j in pairs])
        spread = noise.variance**0.5
        R = np.diag(units) * deviation / spread
        shape = (times, len(pairs))
        z_ = generator.normal(size=shape) if noise.kind == "gaussian" else generator.laplace(size=shape) / 2**0.5
        self.estimates = exact + z_ * spread @ R.T
        self.rows = np.repeat(R, times, axis=0)
        self.noise = noise
        self.leaves = tuple(Leaf(at) for at in range(len(pairs)))

    def of(self, what: str, at: int = 0) -> Derived:
        fit = Fit(self.leaves, self.centres, self.scales, what, at)
        return evaluate(fit, self.estimates, self.rows, self.noise)

    def exact(self, what: str, at: int = 0) -> float:
        y, A = self.values[:, -1], np.c_[np.ones(len(self.values)), self.values[:, :-1]]
        beta, *_ = np.linalg.lstsq(A, y, rcond=None)
        rest = y - A @ beta
        degrees = len(y) - A.shape[1]
        return float(
            {
                "coefficient": lambda: beta[at],
                "stderr": lambda: np.sqrt(rest @ rest / degrees * np.linalg.inv(A.T @ A)[at, at]),
                "r2": lambda: 1 - rest @ rest / ((y - y.mean()) ** 2).sum(),
                "corr": lambda: np.corrcoef(A[:, 1], y)[0, 1],
                "covar_pop": lambda: np.cov(A[:, 1], y, bias=True)[0, 1],
                "covar_samp": lambda: np.cov(A[:, 1], y)[0, 1],
            }[what]()
        )


NUMBERS = [("coefficient", 0), ("coefficient", 1), ("coefficient", 2), ("r2", 0), ("stderr", 0), ("stderr", 2)]
PAIRED = [("corr", 0), ("covar_pop", 0), ("covar_samp", 0)]


@pytest.mark.parametrize(("what", "at"), NUMBERS + PAIRED)
def test_without_noise_it_is_the_fit(what: str, at: int) -> None:
    world = World(500, 0.0, GAUSSIAN, columns=1 if (what, at) in PAIRED else 2, times=1)
    assert world.of(what, at).value == pytest.approx(world.exact(what, at), rel=1e-9)


@pytest.mark.parametrize(
    ("deviation", "noise"), [(8.0, GAUSSIAN), (30.0, GAUSSIAN), (20.0, LAPLACE)], ids=["small", "large", "laplace"]
)
@pytest.mark.few("small", "large")
def test_intervals_of_coefficients_cover_and_values_are_unbiased(deviation: float, noise: Noise) -> None:
    world = World(2_000, deviation, noise)
    low, high = binom.ppf([1e-6, 1 - 1e-6], TIMES, 0.95) / TIMES
    for at in range(3):
        found, exact = world.of("coefficient", at), world.exact("coefficient", at)
        covered = np.mean((found.low <= exact) & (exact <= found.high))
        assert low <= covered <= high
        spread = found.value.std()
        assert abs(found.value.mean() - exact) < 5 * spread / TIMES**0.5
        assert np.median(found.stderr) == pytest.approx(spread, rel=0.1)


def test_half_of_the_noise_is_noticed() -> None:
    world = World(2_000, 30.0, GAUSSIAN)
    world.rows = world.rows / 2
    found, exact = world.of("coefficient", 1), world.exact("coefficient", 1)
    assert np.mean((found.low <= exact) & (exact <= found.high)) < 0.75


@pytest.mark.parametrize(("what", "at"), [("r2", 0), *PAIRED])
def test_other_intervals_cover_too(what: str, at: int) -> None:
    world = World(2_000, 25.0, GAUSSIAN, columns=1 if what != "r2" else 2)
    found, exact = world.of(what, at), world.exact(what, at)
    covered = np.mean((found.low <= exact) & (exact <= found.high))
    assert covered >= binom.ppf(1e-6, TIMES, 0.95) / TIMES


def test_a_column_that_noise_hides_has_a_regularised_value_and_no_ends() -> None:
    world = World(300, 60.0, GAUSSIAN, times=200)
    found = world.of("coefficient", 1)
    hidden = np.isnan(found.low)
    assert hidden.mean() > 0.5
    assert np.isfinite(found.value).all()
    assert np.isfinite(found.stderr).all()
    assert np.abs(found.value).max() < 1e3
    assert np.isnan(found.high[hidden]).all()


def test_a_fit_checks_its_shape() -> None:
    with pytest.raises(InterfaceError, match="needs 6 moments"):
        Fit((Leaf(0),), (0.0, 0.0), (1.0, 1.0), "r2")


@pytest.mark.parametrize("what", ["coefficient", "stderr", "p_value", "r2"])
def test_a_column_named_twice_is_regularised(what: str) -> None:
    """Moments that are singular to the last digit: a number without ends, and no error of the solver."""
    for n, s, q, sy, qy in product((0.0, 3.0, 1e6), (0.0, 1.0, 7.0), (1.0, 1e6), (2.0,), (5.0,)):
        # z = (1, x, x, y), i <= j
        moments = np.array([[n, s, s, sy, q, q, qy, q, qy, q]])
        formula = Fit(tuple(map(Leaf, range(10))), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), what, 1 if what != "r2" else 0)
        found = evaluate(formula, moments, np.eye(10), gaussian_noise(1, Fraction(1, 10)))
        assert not np.isinf(found.value).any()
        assert what == "p_value" or not np.isfinite(found.high).any() or what == "r2"
