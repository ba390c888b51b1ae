"""Quantiles of weighted sums of noise in blocks, against closed forms, densities and the integers themselves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import gammaincc

from dpsql.common.arrays import Floats
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import intervals
from dpsql.reconstruct.intervals import half_widths, log_concave_quantile
from dpsql.reconstruct.spread import standard_errors

FINE = Fraction(10**7)  # a lattice that does not matter


def widths(rows: object, blocks: tuple[int, ...], alpha: float, scale: Fraction = FINE) -> Floats:
    return half_widths(np.atleast_2d(np.asarray(rows, dtype=float)), Noise("blocks", scale, blocks), alpha) / float(
        scale
    )


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 40])
def test_one_coordinate_has_a_closed_form(size: int, alpha: float) -> None:
    """P(|z_i| > x) = E max(0, 1 - x / r) with r of the Gamma law of size + 1."""
    row = np.zeros(size)
    row[size // 2] = 3.0
    x = brentq(lambda x: gammaincc(size + 1, x) - x / size * gammaincc(size, x) - alpha, 1e-9, 200.0)
    assert widths(row, (size,), alpha) == pytest.approx([3.0 * x], rel=1e-5)


@pytest.mark.parametrize(
    "weights",
    [(1.0,) * 3, (1.0,) * 6, (1.0,) * 8, (1.0, 0.5, 0.1, 0.02), (1.0, 0.01, 0.01), (2.0, -1.0, 0.0, 0.0, 3.0)],
)
@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.01, 0.001])
@pytest.mark.few(every=3)
def test_a_sum_over_one_block_is_that_of_its_density(weights: tuple[float, ...], alpha: float) -> None:
    """w u / |w|_1 has the Fourier series of its sinc functions on [-1, 1]; r times it the tail of a Gamma law."""
    used = np.abs([w for w in weights if w])
    reach = used.sum()
    nodes, mass = np.polynomial.legendre.leggauss(400)
    nodes, mass = (nodes + 1.0) / 2.0, mass / 2.0
    order = np.arange(1, 3000)
    series = 0.5 + np.cos(np.pi * np.outer(nodes, order)) @ np.prod(np.sinc(np.outer(order, used / reach)), axis=1)
    law = 2.0 * mass * series
    x = brentq(lambda x: law @ gammaincc(len(weights) + 1, x / (reach * nodes)) - alpha, 1e-6, 1e3)
    assert widths(weights, (len(weights),), alpha) == pytest.approx([x], rel=1e-3 if alpha > 0.05 else 1e-4)


def test_a_block_of_two_is_two_laplace_variables() -> None:
    row = np.array([[3.0, 1.0], [0.0, 2.0], [1.0, -1.0]])
    turned = half_widths(np.stack([row.sum(axis=1), row[:, 0] - row[:, 1]], axis=1), Noise.laplace(FINE), 0.05)
    assert widths(row, (2,), 0.05) == pytest.approx(turned / float(FINE), rel=1e-9)


def test_sums_over_many_blocks_miss_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    blocks = (1, 1, 2, 3, 3, 7)
    rows = rng.normal(size=(6, 17)) * (rng.random((6, 17)) < 0.6)
    times = 200_000
    parts = [rng.gamma(b + 1, size=(times, 1)) * rng.uniform(-1, 1, size=(times, b)) for b in blocks]
    missed = (np.abs(np.concatenate(parts, axis=1) @ rows.T) > widths(rows, blocks, 0.05)).mean(axis=0)
    assert np.abs(missed - 0.05).max() < 4.5 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(3)])
@pytest.mark.few("scale0", "scale1")
def test_integers_miss_no_more_often(scale: Fraction) -> None:
    """Every combination of a block of three within 20 scales, weighed by its probability."""
    side = np.arange(-int(20 * scale) - 3, int(20 * scale) + 4)
    points = np.stack(np.meshgrid(side, side, side, indexing="ij")).reshape(3, -1)
    law = np.exp(-np.abs(points).max(axis=0) / float(scale))
    law /= law.sum()
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.eye(3)[:1], np.ones((1, 3)), rng.integers(-3, 4, (6, 3)), rng.normal(size=(6, 3))])
    rows = rows[rows.any(axis=1)]
    for alpha in (0.05, 0.01):
        reach = half_widths(rows, Noise("blocks", scale, (3,)), alpha)
        for row, most in zip(rows, reach, strict=True):
            assert law[np.abs(row @ points) > most * (1 + 1e-12)].sum() <= alpha * (1 + 1e-6)


def test_the_bound_of_all_log_concave_laws_serves_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with many weights, many that differ, and alphas that the nodes do not resolve."""
    wide = Noise("blocks", FINE, (13,))
    bound = log_concave_quantile(0.05) * standard_errors(np.ones((1, 13)), wide)
    assert half_widths(np.ones((1, 13)), wide, 0.05) == pytest.approx(bound, rel=1e-12)
    rows = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    known, errors = widths(rows, (3,), 0.05), standard_errors(rows, Noise("blocks", FINE, (3,))) / float(FINE)
    assert known[1] == 0
    assert (known[[0, 2]] < 0.97 * log_concave_quantile(0.05) * errors[[0, 2]]).all()
    for alpha in (0.5, 0.999):
        assert (widths(rows, (3,), alpha) <= widths(rows, (3,), 0.1)).all()
    monkeypatch.setattr(intervals, "_MOST_NUMBERS", 5)
    assert (widths(rows, (3,), 0.05)[[0, 2]] > 1.03 * known[[0, 2]]).all()
