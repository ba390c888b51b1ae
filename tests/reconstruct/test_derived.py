"""Derived numbers: by hand, gradients by finite differences, scale and shift, bounds, and what has no number."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from dpsql.errors import DataError, InterfaceError
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import Derived, evaluate, half_widths, standard_errors
from dpsql.workloads.expr.formulas import (
    Formula,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Sum,
    Variance,
)

GAUSSIAN, LAPLACE = Noise.gaussian(Fraction(10**6)), Noise.laplace(Fraction(800))
NOISES = [GAUSSIAN, LAPLACE]
N, S, Q, M = (Leaf(i) for i in range(4))
MEAN = Quotient(S, N)
VARIANCE = Variance(N, S, Q, 20.0)
FORMULAS: dict[str, Formula] = {
    "linear": Sum((N, Product((Number(-2), S)), Number(7))),
    "mean": MEAN,
    "share of the sum": Quotient(N, Sum((N, M))),
    "variance": VARIANCE,
    "sample variance": Variance(N, S, Q, 20.0, sample=True),
    "deviation": Root(VARIANCE),
    "difference of means": Sum((MEAN, Negative(Quotient(S, M)), Number(1))),
    "product": Product((Number(3), N, M)),
    "square": Product((MEAN, MEAN)),
    "ratio of means": Quotient(MEAN, Quotient(Q, M)),
    "mixed": Sum((Root(Quotient(Q, N)), N, Negative(S), Product((S, MEAN)))),
}
# n = 1000, sum 2000, sum of squares 9000: mean 2, variance 5; another count of 500.
POINT = np.array([[1000.0, 2000.0, 9000.0, 500.0]])
L = 1000


def rows_of(g: int, seed: int = 0) -> np.ndarray:
    """Stacked rows (4 g x 6), output by output."""
    return np.random.default_rng(seed).normal(size=(4 * g, 6))


def all_of(found: Derived) -> np.ndarray:
    return np.stack([found.value, found.stderr, found.low, found.high])


def plain(name: str, x: np.ndarray) -> float:
    n, s, q, m = x
    variance = q / n - (s / n) ** 2
    return float(
        {
            "linear": n - 2 * s + 7,
            "mean": s / n,
            "share of the sum": n / (n + m),
            "variance": variance,
            "sample variance": variance * n / (n - 1),
            "deviation": math.sqrt(variance),
            "difference of means": s / n - s / m + 1,
            "product": 3 * n * m,
            "square": (s / n) ** 2,
            "ratio of means": s / n / (q / m),
            "mixed": math.sqrt(q / n) + n - s + s * s / n,
        }[name]
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients(name: str) -> None:
    """With rows of one unit each, the standard error shows the gradient by its length and its parts."""
    step = 1e-3
    slopes = np.array(
        [(plain(name, POINT[0] + step * e) - plain(name, POINT[0] - step * e)) / (2 * step) for e in np.eye(4)]
    )
    for j in range(4):
        found = evaluate(FORMULAS[name], POINT, np.eye(4)[:, [j]], GAUSSIAN, divisor=L)
        assert found.value[0] == pytest.approx(plain(name, POINT[0]), rel=1e-12)
        assert found.stderr[0] == pytest.approx(abs(slopes[j]) * math.sqrt(GAUSSIAN.variance) / L, rel=1e-5, abs=1e-9)
    together = evaluate(FORMULAS[name], POINT, slopes[:, None], GAUSSIAN, divisor=L)  # signs count
    assert together.stderr[0] == pytest.approx((slopes**2).sum() * math.sqrt(GAUSSIAN.variance) / L, rel=1e-5)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_small_noise_gives_the_linear_interval(name: str, noise: Noise) -> None:
    rows, alpha = rows_of(1), 0.01
    found = evaluate(FORMULAS[name], POINT, rows, noise, alpha, divisor=10**7)
    step = 1e-3
    slopes = np.array(
        [(plain(name, POINT[0] + step * e) - plain(name, POINT[0] - step * e)) / (2 * step) for e in np.eye(4)]
    )
    half = half_widths(slopes[None, :] @ rows, noise, alpha)[0] / 10**7
    assert found.high[0] - found.value[0] == pytest.approx(half, rel=1e-3)
    assert found.value[0] - found.low[0] == pytest.approx(half, rel=1e-3)


def test_linear_formulas_are_as_other_answers() -> None:
    rows = rows_of(3)
    estimates = np.arange(12.0).reshape(3, 4)
    found = evaluate(Sum((S, Negative(Q), Number(5))), estimates, rows, LAPLACE, divisor=L)
    combined = rows[3:6] - rows[6:9]
    assert found.value == pytest.approx(estimates[:, 1] - estimates[:, 2] + 5)
    assert found.stderr == pytest.approx(standard_errors(combined, LAPLACE) / L)
    assert found.high - found.value == pytest.approx(half_widths(combined, LAPLACE) / L)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(every=3)
def test_groups_do_not_meet_and_sparse_is_dense(name: str) -> None:
    g = 5
    rng = np.random.default_rng(3)
    estimates = POINT * rng.uniform(0.1, 2, (g, 4))
    rows = rows_of(g)
    for noise in NOISES:
        dense = all_of(evaluate(FORMULAS[name], estimates, rows, noise, divisor=10))
        sparse = all_of(evaluate(FORMULAS[name], estimates, sp.csr_array(rows), noise, divisor=10))
        again = all_of(evaluate(FORMULAS[name], estimates, rows, noise, divisor=10))
        assert np.array_equal(dense, again, equal_nan=True)
        assert sparse == pytest.approx(dense, rel=1e-9, nan_ok=True)
        for i in range(g):
            alone = all_of(evaluate(FORMULAS[name], estimates[[i]], rows[i::g], noise, divisor=10))
            assert alone[:, 0] == pytest.approx(dense[:, i], rel=1e-4, nan_ok=True)


@pytest.mark.parametrize("sample", [False, True])
def test_units_and_centres_of_averages_and_variances(sample: bool) -> None:
    """v -> 3 v + 40 moves averages with it and multiplies variances by 9."""
    g = 30
    rng = np.random.default_rng(4)
    n = rng.uniform(2, 300, g)
    estimates = np.stack([n, rng.normal(size=g) * n, n * rng.uniform(2, 9, g), n], axis=1)
    rows = rows_of(g)
    T = np.array([[1, 0, 0, 0], [40, 3, 0, 0], [1600, 240, 9, 0], [0, 0, 0, 1.0]])
    moved_rows = np.kron(T, np.eye(g)) @ rows
    for noise in NOISES:
        average = all_of(evaluate(Quotient(S, N, (-10, 10)), estimates, rows, noise, divisor=100))
        moved = all_of(evaluate(Quotient(S, N, (10, 70)), estimates @ T.T, moved_rows, noise, divisor=100))
        assert moved == pytest.approx(average * 3 + np.array([[40], [0], [40], [40]]), rel=1e-5, abs=1e-6)
        spread = all_of(evaluate(Variance(N, S, Q, 20.0, sample), estimates, rows, noise, divisor=100))
        scaled = all_of(evaluate(Variance(N, S, Q, 60.0, sample), estimates @ T.T, moved_rows, noise, divisor=100))
        assert scaled == pytest.approx(9 * spread, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(every=3)
def test_within_bounds_nothing_is_missing(name: str, noise: Noise) -> None:
    """From no noise to noise that drowns everything, zeros included; value and interval within bounds and in order."""
    rng = np.random.default_rng(5)
    g = 60
    estimates = rng.normal(size=(g, 4)) * 10.0 ** rng.integers(-3, 5, (g, 1))
    estimates[:4] = 0.0
    estimates[4:8, 0] = 0.0
    estimates[8:10, 0] = 1.0  # a sample variance of one row
    for divisor in (1, 1000, 10**9):
        rows = rows_of(g)
        rows[10:15] = 0.0
        found = evaluate(FORMULAS[name], estimates, rows, noise, bounds=(-5, 30), divisor=divisor)
        assert np.isfinite(all_of(found)).all()
        assert (found.low >= -5).all()
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()
        assert (found.high <= 30).all()
        assert (found.stderr <= 17.5).all()
        free = evaluate(FORMULAS[name], estimates, rows, noise, divisor=divisor)
        assert not np.isinf(all_of(free)).any()
        assert (np.isnan(free.value) == np.isnan(free.stderr)).all()


def test_a_lost_denominator_by_hand() -> None:
    estimates, rows = np.array([[1.0, 30.0]]), np.eye(2)
    noise = Noise.gaussian(Fraction(100))
    bounded = evaluate(Quotient(S, N, (0, 120)), estimates, rows, noise)
    assert all_of(bounded)[:, 0].tolist() == [30, 60, 0, 120]
    assert np.isnan(all_of(evaluate(MEAN, estimates, rows, noise))).all()
    half = evaluate(Quotient(S, N, (0, math.inf)), estimates, rows, noise)
    assert half.low[0] == 0
    assert half.value[0] == 30
    assert np.isnan([half.stderr[0], half.high[0]]).all()
    empty = evaluate(Quotient(S, N, (0, 120)), [[0.0, 30.0]], rows, noise)
    assert all_of(empty)[:, 0].tolist() == [60, 60, 0, 120]  # 30 / 0: the middle
    assert np.isnan(all_of(evaluate(Quotient(S, Number(0)), estimates, rows, noise))).all()


def test_sets_of_lost_parts_combine_as_sets() -> None:
    lost, noise = Quotient(S, N, (2, 4)), Noise.gaussian(Fraction(100))
    estimates, rows = np.array([[1.0, 3.0, 500.0]]), np.eye(3)
    reach = half_widths(rows[[2]], noise)[0]
    for formula, low, high in [
        (Sum((lost, Q)), 2 + 500 - reach, 4 + 500 + reach),
        (Sum((lost, Negative(lost))), -2, 2),
        (Product((Number(-3), lost)), -12, -6),
        (Product((lost, lost)), 4, 16),
        (Product((lost, Q)), 2 * (500 - reach), 4 * (500 + reach)),
        (Quotient(Q, lost), (500 - reach) / 4, (500 + reach) / 2),
        (Root(lost), math.sqrt(2), 2),
        (Product((Number(0), MEAN)), 0, 0),
    ]:
        found = evaluate(formula, estimates, rows, noise)
        assert (found.low[0], found.high[0]) == pytest.approx((low, high), rel=1e-9)
        assert found.stderr[0] == pytest.approx((high - low) / 2)
    zero = evaluate(Quotient(Q, Quotient(S, N, (-1, 1))), estimates, rows, noise)
    assert np.isnan([zero.low[0], zero.high[0]]).all()


def test_intervals_beyond_the_bounds_move_to_them() -> None:
    noise = Noise.gaussian(Fraction(1))
    estimates, rows = np.array([[100.0, 5000.0], [100.0, -5000.0]]), np.eye(4)
    free = evaluate(MEAN, estimates, rows, noise)
    found = evaluate(MEAN, estimates, rows, noise, bounds=(0, 10))
    width = free.high - free.low
    assert found.value.tolist() == [10, 0]
    assert found.low == pytest.approx([10 - width[0], 0])
    assert found.high == pytest.approx([10, width[1]])


def test_two_independent_means_recover_their_variances() -> None:
    """Zou and Donner 2008: the reaches of independent parts add up by their squares."""
    estimates, rows = np.array([[60.0, 120.0, 90.0, 45.0]]), np.diag([1.0, 20.0, 30.0, 1.0])
    noise, fine = Noise.gaussian(Fraction(10**12)), 10**5  # far above the lattice
    other = Quotient(Q, M)
    a, b = (evaluate(x, estimates, rows, noise, divisor=fine) for x in (MEAN, other))
    found = evaluate(Sum((MEAN, Negative(other))), estimates, rows, noise, divisor=fine)
    below = math.hypot(a.value[0] - a.low[0], b.high[0] - b.value[0])
    above = math.hypot(a.high[0] - a.value[0], b.value[0] - b.low[0])
    assert below != pytest.approx(above, rel=0.01)
    assert found.low[0] == pytest.approx(found.value[0] - below)
    assert found.high[0] == pytest.approx(found.value[0] + above)


def test_variances_by_hand() -> None:
    estimates, rows = np.array([[4.0, 4.0, 20.0]]), np.zeros((3, 1))  # 1 +- 2: variance 4, sample 16/3
    for sample, value in ((False, 4), (True, 16 / 3)):
        found = evaluate(Variance(N, S, Q, 100.0, sample), estimates, rows, GAUSSIAN)
        assert all_of(found)[:, 0] == pytest.approx([value, 0, value, value])
    noisy = np.eye(3) * 10
    noise = Noise.gaussian(Fraction(1))
    assert all_of(evaluate(VARIANCE, estimates, noisy, noise))[:, 0] == pytest.approx([4, 50, 0, 100])
    sample = Variance(N, S, Q, 20.0, True)
    assert all_of(evaluate(sample, estimates, noisy, noise))[:, 0] == pytest.approx([16 / 3, 100, 0, 200])
    deviation = evaluate(Root(sample), estimates, noisy, noise)
    assert deviation.high[0] == pytest.approx(math.sqrt(200))
    negative = evaluate(VARIANCE, [[100.0, 0.0, -5.0]], np.eye(3), noise)
    assert negative.value[0] == negative.low[0] == 0
    assert negative.high[0] > 0


def test_refusals() -> None:
    rows = np.eye(4)
    with pytest.raises(InterfaceError, match="matrix of groups"):
        evaluate(N, [1.0], rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="matrix of groups"):
        evaluate(N, np.zeros((0, 2)), rows, GAUSSIAN)
    with pytest.raises(DataError, match="not finite"):
        evaluate(N, [[math.nan, 0, 0, 0]], rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="the rows hold 4"):
        evaluate(N, [[1.0, 2.0]], rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="whole number of outputs"):
        evaluate(N, np.zeros((3, 1)), rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="divisor"):
        evaluate(N, np.zeros((1, 4)), rows, GAUSSIAN, divisor=0)
    with pytest.raises(DataError, match="ordered"):
        evaluate(N, np.zeros((1, 4)), rows, GAUSSIAN, bounds=(1, 0))
    with pytest.raises(DataError, match="alpha"):
        evaluate(N, np.zeros((1, 4)), rows, GAUSSIAN, 1.5)
    with pytest.raises(InterfaceError, match="output 4"):
        evaluate(Root(Leaf(4)), np.zeros((1, 4)), rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="must be linear"):
        evaluate(Variance(N, MEAN, Q, 1.0), np.ones((1, 4)), rows, GAUSSIAN)
    with pytest.raises(InterfaceError, match="no part of a formula"):
        evaluate("AVG", np.ones((1, 4)), rows, GAUSSIAN)  # type: ignore[arg-type]
