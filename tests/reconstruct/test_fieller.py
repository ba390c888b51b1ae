"""Fieller's interval for many ratios: its definition, a grid, scale and shift, and where it has no end."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from ratio_oracle import ratio_interval

from dpsql.privacy.noise import Noise
from dpsql.reconstruct import half_widths
from dpsql.reconstruct.fieller import Ratios, fieller
from dpsql.reconstruct.linear_errors import LinearErrors
from dpsql.reconstruct.spread import covariance

NOISES = [Noise.gaussian(Fraction(10**6)), Noise.laplace(Fraction(700)), Noise.laplace(Fraction(3, 2))]
G = 40
S_WEIGHTS, C_WEIGHTS = np.tile([1.0, 0.0], (G, 1)), np.tile([0.0, 1.0], (G, 1))


def case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """S, C (G,) and rows (2 G x 5); noise of scale 1000 times rows of length 1, C from nowhere to far from zero."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2 * G, 5)) * (rng.random((2 * G, 5)) < 0.6)
    return rng.normal(size=G) * 1e4, rng.normal(size=G) * 1e4, rows


def ratios(S: np.ndarray, C: np.ndarray, rows: object, noise: Noise, alpha: float = 0.05) -> Ratios:
    return fieller(S, C, S_WEIGHTS, C_WEIGHTS, LinearErrors.of(rows, G, noise, alpha))


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("alpha", [0.05, 0.5, 1e-4])
def test_the_ends_are_where_the_test_turns(noise: Noise, alpha: float) -> None:
    S, C, rows = case(1)
    found = ratios(S, C, rows, noise, alpha)
    assert found.bounded.any()
    for end, outward in ((found.low, -1), (found.high, 1)):
        for move in (-1e-3, 1e-3):  # inside, outside
            with np.errstate(invalid="ignore"):
                r = np.where(found.bounded, end + move * outward * (found.high - found.low), 0.0)
            accepted = np.abs(S - r * C) <= half_widths(rows[:G] - r[:, None] * rows[G:], noise, alpha)
            # On a lattice a test may turn in a jump, and then stays accepted further in than out.
            coarse = float(noise.parameter) < 10
            assert (accepted == (move < 0))[found.bounded].mean() > (0.8 if coarse else 0.9999)


@pytest.mark.parametrize("noise", NOISES[:2], ids=str)
def test_the_interval_is_what_a_grid_accepts(noise: Noise) -> None:
    S, C, rows = case(2)
    found = ratios(S, C, rows, noise)
    for i in np.flatnonzero(found.bounded)[:8]:
        width = found.high[i] - found.low[i]
        grid = np.linspace(found.low[i] - 3 * width, found.high[i] + 3 * width, 4001)
        inside = np.abs(S[i] - grid * C[i]) <= half_widths(rows[i] - grid[:, None] * rows[G + i], noise)
        accepted = grid[inside]
        assert accepted.min() == pytest.approx(found.low[i], abs=7 * width / 4000)
        assert accepted.max() == pytest.approx(found.high[i], abs=7 * width / 4000)


def test_gaussian_ends_agree_with_the_scalar_formula() -> None:
    S, C, rows = case(3)
    noise = NOISES[0]
    found = ratios(S, C, rows, noise)
    for i in range(G):
        cov = covariance(rows[[i, G + i]], noise)
        q = float(half_widths(rows[[i]], noise)[0] / np.sqrt(cov[0, 0])) if cov[0, 0] else 1.959964
        plain = ratio_interval(S[i], C[i], (cov[0, 0], cov[0, 1], cov[1, 1]), q)
        assert plain == pytest.approx((found.low[i], found.high[i]), rel=2e-3, abs=1e-6)


def test_without_end_where_the_denominator_may_be_zero() -> None:
    S, C, rows = case(4)
    C[:3] = 0.0
    for noise in NOISES:
        found = ratios(S, C, rows, noise)
        reach = half_widths(rows[G:], noise)
        assert not found.bounded[np.abs(C) <= reach].any()
        assert found.bounded[np.abs(C) > 1.2 * reach].all()
        lost = ~found.bounded
        assert (found.low[lost] == -np.inf).all()
        assert (found.high[lost] == np.inf).all()
        assert not found.gradient[lost].any()
        assert not np.isnan([found.low, found.high]).any()
        kept = found.bounded
        assert (found.low[kept] <= found.value[kept]).all()
        assert (found.value[kept] <= found.high[kept]).all()


@pytest.mark.parametrize("noise", NOISES[:2], ids=str)
def test_scale_and_shift(noise: Noise) -> None:
    S, C, rows = case(5)
    plain = ratios(S, C, rows, noise)
    kept = plain.bounded
    moved_rows = np.concatenate([-3 * rows[:G] + 7 * rows[G:], rows[G:]])
    moved = ratios(-3 * S + 7 * C, C, moved_rows, noise)
    tiny = ratios(S * 1e-150, C * 1e-150, rows * 1e-150, noise)
    assert (moved.bounded == kept).all()
    assert moved.low[kept] == pytest.approx(7 - 3 * plain.high[kept], rel=1e-5)
    assert moved.high[kept] == pytest.approx(7 - 3 * plain.low[kept], rel=1e-5)
    assert tiny.low[kept] == pytest.approx(plain.low[kept], rel=1e-9)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_what_overflows_is_not_bounded_and_nothing_warns(size: float) -> None:
    S, C, rows = case(5)
    for noise in NOISES[:2]:
        for top, bottom in ((S * size, C), (S, C * size), (S * size, C / size), (S, C * 0)):
            found = ratios(top, bottom, rows, noise)
            assert not np.isnan(found.low).any()
            assert not np.isnan(found.high).any()
            assert (found.low <= found.high).all()


def test_sparse_rows_and_certain_numbers() -> None:
    S, C, rows = case(6)
    noise = NOISES[1]
    dense, sparse = ratios(S, C, rows, noise), ratios(S, C, sp.csr_array(rows), noise)
    assert sparse.low == pytest.approx(dense.low, rel=1e-9)
    certain = ratios(S, np.full(G, 4.0), np.concatenate([rows[:G], np.zeros((G, 5))]), noise)
    assert certain.bounded.all()
    assert certain.high - certain.value == pytest.approx(half_widths(rows[:G], noise) / 4, rel=1e-6)
    nothing = ratios(S, np.full(G, 4.0), np.zeros((2 * G, 5)), noise)
    assert (nothing.low == nothing.high).all()


@pytest.mark.parametrize("steps", [20, 100, 500, 700])
def test_noise_that_is_nearly_always_nothing_leaves_an_interval(steps: int) -> None:
    """At scale 1/500 its deviation is 1e-109 beside a half-width of a step; the fourth power of the ratio overflows."""
    rows = np.concatenate([np.tile([0.3, 1.7, -0.4, 0, 0], (G, 1)), np.tile([0, 0.3, 0.1, -0.6, 1], (G, 1))])
    found = ratios(np.full(G, 30.0), np.full(G, 10.0), rows, Noise.laplace(Fraction(1, steps)))
    assert found.bounded.all()
    assert (found.value == 3).all()
    assert ((found.low > 2.8) & (found.low <= 3) & (found.high >= 3) & (found.high < 3.3)).all()
