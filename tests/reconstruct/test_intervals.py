"""Half-widths against closed forms, plain Gil-Pelaez, exact convolutions and sampling."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import beta, norm

from dpsql.errors import DataError, InterfaceError
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import covariance, half_widths, intervals, simultaneous_alpha, standard_errors
from dpsql.reconstruct.intervals import quantiles

LAPLACE = Noise.laplace(Fraction(10**6))
GAUSSIAN = Noise.gaussian(Fraction(10**10))


def families() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "two": np.array([1.0, 0.1]),
        "three": np.array([1.0, 0.9, 0.3]),
        "eight": np.ones(8),
        "thirty": rng.uniform(0.2, 1, 30),
        "one and dust": np.r_[1.0, np.full(400, 0.05)],
        "two and dust": np.r_[1.0, 1.0, np.full(600, 0.03)],
        "geometric": 0.7 ** np.arange(30.0),
        "hundreds": np.abs(rng.normal(size=500)),
    }


def gil_pelaez(weights: np.ndarray, x: float) -> float:
    """P(|X| > x) by the real-line integral, X = sum w_i * Laplace(1) of variance 1."""
    nodes, masses = np.polynomial.legendre.leggauss(16)
    s = (np.arange(400)[:, None] + (nodes + 1) / 2).ravel()
    phi = np.exp(-np.log1p(np.multiply.outer(s, weights) ** 2).sum(axis=1))
    return 1 - 2 / math.pi * float((np.tile(masses / 2, 400) * np.sin(s * x) / s * phi).sum())


@pytest.mark.parametrize("alpha", [0.9, 0.5, 0.2, 0.05, 1e-3, 1e-6, 1e-9])
def test_one_and_two_weights_have_closed_forms(alpha: float) -> None:
    one = quantiles(np.array([[1.0]]), alpha)[0]
    assert one == pytest.approx(-math.log(alpha) / math.sqrt(2), rel=1e-5)
    two = 2 * quantiles(np.array([[3.0, 3.0]]), alpha)[0]  # in scales, whose tail is (1 + y/2) exp(-y)
    assert math.exp(-two) * (1 + two / 2) == pytest.approx(alpha, rel=2e-5)


@pytest.mark.parametrize("alpha", [0.5, 0.05, 1e-3])
@pytest.mark.parametrize("name", families())
@pytest.mark.few(every=3)
def test_quantiles_agree_with_the_real_line_integral(name: str, alpha: float) -> None:
    weights = families()[name]
    weights /= math.sqrt(2 * (weights**2).sum())
    x = float(quantiles(weights[None, :], alpha)[0])
    assert gil_pelaez(weights, x) == pytest.approx(alpha, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.999999, 0.96, 1e-12, 1e-30, 1e-300])
def test_extreme_levels_are_bounded_from_above(alpha: float) -> None:
    one = quantiles(np.array([[1.0]]), alpha)[0]
    assert -math.log(alpha) / math.sqrt(2) * (1 - 1e-5) <= one <= -math.log(alpha) / math.sqrt(2) * 1.05
    many = quantiles(np.ones((1, 5000)), alpha)[0]
    assert norm.isf(alpha / 2) <= many * (1 + 1e-4)
    assert many <= norm.isf(alpha / 2) * (1.05 if alpha > 1e-20 else 4)


@pytest.mark.parametrize("alpha", [0.9, 0.3, 0.05, 1e-6])
def test_many_equal_weights_become_normal(alpha: float) -> None:
    p = 20_000
    z = norm.isf(alpha / 2)
    edgeworth = z + (z**3 - 3 * z) * (3 / p) / 24  # excess kurtosis 3/p
    assert quantiles(np.ones((1, p)), alpha)[0] == pytest.approx(edgeworth, rel=1e-5)


def test_at_95_percent_between_1960_and_2118_standard_errors() -> None:
    rng = np.random.default_rng(2)
    for p in (1, 2, 3, 10, 100, 1000):
        R = rng.normal(size=(50, p)) * rng.uniform(1e-3, 1e3, size=(50, 1)) * rng.random((1, p)) ** 3
        ratio = half_widths(R, LAPLACE) / standard_errors(R, LAPLACE)
        assert ratio.min() >= 1.95996
        assert ratio.max() <= -math.log(0.05) / math.sqrt(2) * (1 + 1e-6)
    assert half_widths(np.eye(2), LAPLACE)[0] / standard_errors(np.eye(2), LAPLACE)[0] == pytest.approx(
        2.1183, abs=1e-4
    )


def test_gaussian_is_quantile_times_standard_error() -> None:
    R = np.random.default_rng(3).normal(size=(7, 5))
    errors = np.sqrt((R**2).sum(axis=1) * (1e10 + 1 / 12))
    np.testing.assert_allclose(standard_errors(R, GAUSSIAN), errors, rtol=1e-12)
    np.testing.assert_allclose(half_widths(R, GAUSSIAN, 0.01), norm.isf(0.005) * errors, rtol=1e-12)


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN, Noise.laplace(Fraction(2)), Noise.gaussian(Fraction(9))])
def test_sparse_dense_scale_sign_order_and_repeats(noise: Noise) -> None:
    rng = np.random.default_rng(4)
    R = rng.normal(size=(40, 30)) * (rng.random((40, 30)) < 0.2)
    R[7] = 0
    R[11] = -np.roll(R[3], 5)
    R[12] = 1e-150 * R[3]
    dense = half_widths(R, noise)
    assert dense[7] == 0
    assert dense[11] == pytest.approx(dense[3], rel=1e-14)
    assert dense[12] == pytest.approx(1e-150 * dense[3], rel=1e-12)
    np.testing.assert_allclose(half_widths(sp.csr_array(R), noise), dense, rtol=1e-12)
    np.testing.assert_allclose(half_widths(sp.csr_matrix(R), noise), dense, rtol=1e-12)
    np.testing.assert_allclose(standard_errors(sp.csr_array(R), noise), standard_errors(R, noise), rtol=1e-13)
    np.testing.assert_allclose(covariance(sp.csr_array(R), noise), covariance(R, noise), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(
        np.sqrt(np.diag(covariance(R, noise))), standard_errors(R, noise), rtol=1e-12, atol=1e-300
    )


def test_duplicate_and_stored_zero_entries_of_a_sparse_matrix() -> None:
    doubled = sp.csr_array((np.array([1.0, 2.0, 0.0]), np.array([1, 1, 2]), np.array([0, 3])), shape=(1, 3))
    noise = Noise.laplace(Fraction(1))
    np.testing.assert_allclose(half_widths(doubled, noise), half_widths(np.array([[0.0, 3.0, 0.0]]), noise))
    assert doubled.nnz == 3  # the caller's matrix is as it was


def pmf(noise: Noise, reach: int) -> np.ndarray:
    z = np.arange(-reach, reach + 1)
    if noise.kind == "laplace":
        q = math.exp(-1 / float(noise.parameter))
        return (1 - q) / (1 + q) * q ** np.abs(z)
    sigma = math.sqrt(noise.parameter)
    return norm.cdf((z + 0.5) / sigma) - norm.cdf((z - 0.5) / sigma)


def exact_tail(noise: Noise, weights: list[int], h: float) -> float:
    """P(|sum w z| > h) by convolution on the lattice; the cut-off tails count as outside."""
    spread = float(noise.parameter) if noise.kind == "laplace" else math.sqrt(noise.parameter)
    reach = math.ceil(spread * (40 if noise.kind == "laplace" else 9)) + 2
    single = pmf(noise, reach)
    total = np.ones(1)
    for w in weights:
        stretched = np.zeros(2 * reach * w + 1)
        stretched[::w] = single
        total = np.convolve(total, stretched)
    middle = total.size // 2
    values = np.arange(total.size) - middle
    return 1.0 - float(total[np.abs(values) <= h * (1 + 1e-12)].sum())


SMALL = [
    *(Noise.laplace(Fraction(b)) for b in ("0.2", "0.5", "1", "2", "5", "20")),
    *(Noise.gaussian(Fraction(v)) for v in ("0.05", "0.5", "1", "4", "30", "400")),
]
COMBINATIONS = [
    [1],
    [1, 1],
    [1, 1, 1],
    [1] * 9,
    [2, 1],
    [5, 1],
    [10, 1, 1],
    [3, 2],
    [7, 5, 3],
    [4, 4, 1, 1, 1],
]


@pytest.mark.parametrize("noise", SMALL, ids=str)
@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-3])
@pytest.mark.few(every=10)
def test_a_coarse_lattice_is_covered_and_not_wastefully(noise: Noise, alpha: float) -> None:
    for weights in COMBINATIONS:
        h = half_widths(np.array([weights], dtype=float), noise, alpha)[0]
        assert exact_tail(noise, weights, h) <= alpha * (1 + 1e-9), weights
        least = next(k for k in range(10**6) if exact_tail(noise, weights, k) <= alpha) if h < 60 else None
        if least is not None and len(weights) == 1:
            assert h == least
        elif least is not None and noise.variance > 0.5:
            assert h <= least + 1.5 * max(weights)


def test_coverage_by_sampling_has_power_both_ways() -> None:
    rng = np.random.default_rng(5)
    draws, alpha = 200_000, 0.05
    R = np.array([[1.0, 0.5, -0.25, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 2.0, 0.0]])
    b = 10**6
    errors = np.rint(rng.laplace(scale=b, size=(draws, 4))) @ R.T
    h = half_widths(R, Noise.laplace(Fraction(b)), alpha)
    for i in range(3):
        outside = int((np.abs(errors[:, i]) > h[i]).sum())
        low = beta.ppf(5e-7, outside, draws - outside + 1)
        high = beta.isf(5e-7, outside + 1, draws - outside)
        assert low <= alpha <= high
        wider = int((np.abs(errors[:, i]) > 1.05 * h[i]).sum())
        assert beta.isf(5e-7, wider + 1, draws - wider) < alpha  # 5 % too wide would show


def test_simultaneous_levels() -> None:
    assert simultaneous_alpha(0.05, 1, "gaussian") == pytest.approx(0.05)
    assert simultaneous_alpha(0.05, 100, "gaussian") == pytest.approx(1 - 0.95**0.01, rel=1e-12)
    assert simultaneous_alpha(0.05, 100, "laplace") == 0.0005
    assert simultaneous_alpha(0.05, 0, "laplace") == 0.05
    assert simultaneous_alpha(1e-12, 10**6, "gaussian") == pytest.approx(1e-18, rel=1e-9)


def test_wrong_arguments_are_refused() -> None:
    for alpha in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(DataError, match="alpha"):
            half_widths(np.eye(2), LAPLACE, alpha)
    with pytest.raises(InterfaceError, match="matrix"):
        half_widths(np.ones(3), LAPLACE)
    with pytest.raises(DataError, match="NaN"):
        half_widths(np.array([[math.nan]]), LAPLACE)
    with pytest.raises(InterfaceError, match="noise kind"):
        simultaneous_alpha(0.05, 3, "cauchy")


def test_empty_shapes() -> None:
    assert half_widths(np.zeros((0, 4)), LAPLACE).shape == (0,)
    assert half_widths(np.zeros((3, 0)), LAPLACE).tolist() == [0, 0, 0]
    assert half_widths(sp.csr_array((3, 4)), LAPLACE).tolist() == [0, 0, 0]
    for noise in (LAPLACE, GAUSSIAN):
        assert half_widths(sp.csr_array((3, 0)), noise).tolist() == [0, 0, 0]  # a median of no rows


def test_rows_are_worked_on_together_and_equal_ones_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a thousand rows of a thousand weights take a fifth of a second rests on it."""
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        intervals, "quantiles", lambda weights, alpha: shapes.append(weights.shape) or quantiles(weights, alpha)
    )
    R = np.random.default_rng(6).normal(size=(300, 200))
    half_widths(np.concatenate([R, R[:, ::-1], -R]), LAPLACE)
    assert shapes == [(300, 200)]
