"""Generalised least squares over several measurements: by hand, against brute force, and by coverage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpsql.privacy.noise import Noise
from dpsql.reconstruct import combined
from dpsql.reconstruct.combined import CombinedAnswers, Observed, answers_alone, combined_answers

Way = Callable[[sparse.csr_array, Observed], CombinedAnswers | None]


def gaussian(sigma: float) -> Noise:
    return Noise.gaussian(Fraction(sigma) ** 2)


def observed(matrix: object, y: object, noise: Noise, divisor: int = 1) -> Observed:
    return Observed(sparse.csr_array(np.atleast_2d(matrix)), divisor, [int(v) for v in np.atleast_1d(y)], noise)


def test_two_looks_at_one_number_are_weighed_by_their_precision() -> None:
    first, second = gaussian(1000.0), gaussian(3000.0)
    found = combined_answers([[1.0]], [observed([1], 10_000, first), observed([1], 20_000, second)])
    assert found is not None
    w, v = 1 / first.variance, 1 / second.variance
    assert found.values() == pytest.approx([(w * 10_000 + v * 20_000) / (w + v)], rel=1e-12)
    assert found.errors() == pytest.approx([(w + v) ** -0.5], rel=1e-12)


def test_a_known_sum_makes_a_difference_worth_a_quarter() -> None:
    """MATHS: with a + b known exactly, measuring a - b at variance 1 leaves a with variance 0.25."""
    exact, unit = gaussian(1.0), gaussian(1.0)
    many = observed([10**5, 10**5], 0, exact)
    found = combined_answers(np.eye(2), [many, observed([1, -1], 6, unit)])
    assert found is not None
    assert found.errors() ** 2 == pytest.approx(np.full(2, 0.25 * unit.variance), rel=1e-4)
    assert found.values() == pytest.approx([3.0, -3.0], rel=1e-9)


@pytest.mark.parametrize("way", [lambda W, one: combined_answers(W, [one]), answers_alone])
def test_rows_that_only_rounding_tells_apart_are_solved_like_others(way: Way) -> None:
    """A difference of two rows of 10^5: the square of their condition, 4e10, would leave six digits less."""
    many, unit = 10**5, gaussian(100.0)
    y = [many * 30, (many + 1) * 30 + 40]
    found = way(sparse.csr_array([[0.0, 1.0], [1.0, 0.0]]), observed([[many, many], [many, many + 1]], y, unit))
    assert found is not None
    deviation = math.sqrt(unit.variance)
    R = np.array([[-1.0, 1.0], [(many + 1) / many, -1.0]])
    assert np.abs(found.weights / deviation - R).max() < 1e-9
    assert found.values() == pytest.approx([70.0, -40.0], rel=1e-9)


def test_the_divisor_and_the_scale_of_integers_cancel() -> None:
    plain = combined_answers([[1.0, 1.0]], [observed(np.eye(2), [5, 7], gaussian(50.0))])
    scaled = combined_answers([[1.0, 1.0]], [observed(np.eye(2) * 4, [5 * 12, 7 * 12], gaussian(600.0), 3)])
    assert plain is not None
    assert scaled is not None
    assert plain.values() == pytest.approx(scaled.values(), rel=1e-12)
    assert plain.errors() == pytest.approx(scaled.errors(), rel=1e-4)  # the variance of rounding is 1/12 in either


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_best_linear_unbiased_estimate(seed: int) -> None:
    """Against the normal equations, and unbiased: R S = W."""
    rng = np.random.default_rng(seed)
    n = 6
    parts = [
        Observed(
            sparse.csr_array(rng.integers(-3, 4, (int(rng.integers(2, 9)), n))),
            int(rng.integers(1, 4)),
            [],
            Noise.laplace(Fraction(int(rng.integers(200, 900)))) if rng.random() < 0.5 else gaussian(300.0 + seed),
        )
        for _ in range(4)
    ]
    exact = rng.integers(0, 100, n)
    parts = [Observed(p.matrix, p.divisor, [int(v) for v in p.divisor * (p.matrix @ exact)], p.noise) for p in parts]
    S = np.concatenate([p.matrix.toarray() * (p.divisor / math.sqrt(p.noise.variance)) for p in parts])
    W = rng.integers(-2, 3, (5, S.shape[0])) @ S  # rows that the measurements determine
    found = combined_answers(W, parts)
    assert found is not None
    assert found.values() == pytest.approx(W @ exact, rel=1e-9, abs=1e-7)
    covariance = W @ np.linalg.pinv(S.T @ S) @ W.T
    assert found.errors() ** 2 == pytest.approx(np.diag(covariance), rel=1e-8)
    rows = found.rows([slice(0, 5)], found.law)
    assert (rows @ rows.T).toarray() * found.law.variance == pytest.approx(covariance, rel=1e-7, abs=1e-9)


def test_no_answer_gets_worse_by_another_measurement() -> None:
    rng = np.random.default_rng(5)
    W = rng.integers(0, 2, (7, 5)).astype(float)
    parts = [observed(np.eye(5), np.zeros(5), gaussian(400.0))]
    before = combined_answers(W, parts)
    for _ in range(4):
        parts.append(observed(rng.integers(-1, 2, (2, 5)), [0, 0], gaussian(float(rng.integers(100, 2000)))))
        after = combined_answers(W, parts)
        assert before is not None
        assert after is not None
        assert np.all(after.errors() <= before.errors() * (1 + 1e-9))
        before = after


def test_what_was_not_measured_is_not_answered() -> None:
    half = observed([[1, 1, 0]], 5, gaussian(100.0))
    assert combined_answers([[1.0, 0.0, 0.0]], [half]) is None
    assert combined_answers([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [half]) is None
    found = combined_answers([[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]], [half])
    assert found is not None
    assert found.values().tolist() == pytest.approx([10.0, 0.0])
    assert combined_answers([[1.0, 1.0, 0.0]], []) is None


def test_sizes_past_the_caps_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [observed(np.eye(3), [1, 2, 3], gaussian(100.0))]
    for name in ("MOST_COLUMNS", "MOST_ROWS", "MOST_ENTRIES"):
        with monkeypatch.context() as patch:
            patch.setattr(combined, name, 2)
            assert combined_answers(np.eye(3), parts) is None
    assert combined_answers(np.eye(3), parts) is not None


def covered(parts: list[Observed], W: np.ndarray, alpha: float, draws: int) -> list[float]:
    """The share of simulated errors within the half-widths, for each answer; continuous noise."""
    found = combined_answers(W, parts)
    assert found is not None
    rng = np.random.default_rng(20_251)
    error = np.zeros((draws, len(W)))
    start = 0
    for one in parts:
        p, deviation = one.matrix.shape[0], math.sqrt(one.noise.variance)
        shape = (draws, p)
        if one.noise.kind == "gaussian":
            noise = rng.normal(0.0, deviation, shape)
        else:
            noise = rng.laplace(0.0, float(one.noise.parameter), shape)
        error += (noise / deviation) @ found.weights[:, start : start + p].T
        start += p
    widths = found.widths(None, alpha)
    return [float(np.mean(np.abs(error[:, i]) <= widths[i])) for i in range(len(W))]


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.01])
def test_intervals_cover_whatever_the_mixture(alpha: float) -> None:
    """Laplace and Gaussian measurements together, weighed very differently. Below 5 deviations of 400,000 draws."""
    draws = 400_000
    laplace = Noise.laplace(Fraction(1500))
    for sigma in (300.0, 2000.0, 20_000.0):
        parts = [observed(np.eye(2), [0, 0], laplace), observed([[1, 1]], 0, gaussian(sigma))]
        spread = 5 * math.sqrt(alpha * (1 - alpha) / draws)
        for share in covered(parts, np.array([[1.0, 0.0], [1.0, 1.0], [3.0, -1.0]]), alpha, draws):
            assert 1 - alpha - spread - 0.001 <= share <= 1 - alpha + spread + 0.001


def test_a_coarse_lattice_is_rounded_outward() -> None:
    """Two counts at epsilon near 2: noise of deviation below 1. Exact probabilities over the lattice."""
    first, second = Noise.laplace(Fraction(1, 2)), Noise.laplace(Fraction(4, 5))
    found = combined_answers([[1.0]], [observed([1], 0, first), observed([1], 0, second)])
    assert found is not None
    (width,), weights = found.widths(None, 0.05), found.weights[0]
    inside = 0.0
    for a, b in itertools.product(range(-60, 61), repeat=2):
        error = weights[0] * a / math.sqrt(first.variance) + weights[1] * b / math.sqrt(second.variance)
        if abs(error) <= width + 1e-12:
            inside += mass(first, a) * mass(second, b)
    assert inside >= 0.95


def mass(noise: Noise, z: int) -> float:
    q = math.exp(-1 / float(noise.parameter))
    return (1 - q) / (1 + q) * q ** abs(z)
