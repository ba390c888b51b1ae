"""Tests of hypotheses: the classical ones without noise, of the right size with it; Gini's coefficient."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpsql.common.arrays import Floats
from dpsql.privacy import cubes
from dpsql.privacy.noise import gaussian_noise, pure_noise
from dpsql.reconstruct import evaluate
from dpsql.reconstruct.spread import excess
from dpsql.replicates.noise import replicates
from dpsql.workloads.expr.formulas import Formula, Leaf
from dpsql.workloads.expr.statistics import Comparison, Gini, Independence

NOISE = gaussian_noise(1, Fraction(1, 10**6))
LEAVES = tuple(Leaf(at) for at in range(12))
WELCH = ((LEAVES[0], LEAVES[1], LEAVES[2]), (LEAVES[3], LEAVES[4], LEAVES[5]))
TIMES = 4_000
SIZES = stats.binom.ppf([1e-6, 1 - 1e-6], TIMES, 0.05) / TIMES


def worked_out(formula: Formula, exact: Floats, deviation: float | Floats, generator: np.random.Generator) -> Floats:
    """The number for each row of ``exact`` (times x k), noise of that deviation added."""
    times, k = exact.shape
    R = np.diag(np.broadcast_to(deviation, k)) / NOISE.variance**0.5
    moved = exact + generator.normal(size=exact.shape) * deviation
    return evaluate(formula, moved, np.repeat(R, times, axis=0), NOISE).value


def sums(values: Floats) -> list[Floats]:
    return [np.full(len(values), values.shape[1]), values.sum(axis=1), (values**2).sum(axis=1)]


def test_without_noise_a_comparison_is_welchs() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.uniform(-1, 1, (1, 30)), generator.uniform(-0.6, 0.9, (1, 50))
    exact = np.stack(sums(one) + sums(other), axis=1)
    said = stats.ttest_ind(other[0], one[0], equal_var=False)
    for what, value in (("t", said.statistic), ("df", said.df), ("p_value", said.pvalue)):
        found = worked_out(Comparison(WELCH, 2.0, what), exact, 0.0, generator)
        assert found == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("deviation", [0.5, 4.0, 10.0])
def test_a_comparison_of_equal_means_rejects_one_in_twenty(deviation: float) -> None:
    generator = np.random.default_rng(2)
    exact = np.stack(sums(generator.uniform(-0.5, 0.5, (TIMES, 80)))
                     + sums(np.clip(0.2 * generator.normal(size=(TIMES, 120)), -1, 1)), axis=1)  # fmt: skip
    found = worked_out(Comparison(WELCH, 2.0, "p_value"), exact, deviation, generator)
    rejected = np.mean(found[np.isfinite(found)] < 0.05)
    assert SIZES[0] <= rejected <= SIZES[1]


def test_without_noise_independence_is_pearsons() -> None:
    table = np.array([[20, 35, 15], [30, 22, 28]])
    said = stats.chi2_contingency(table, correction=False)
    for what, value in (("chisq", said.statistic), ("p_value", said.pvalue)):
        test = Independence(LEAVES[:6], 2, what)
        found = worked_out(test, table.reshape(1, -1).astype(float), 0.0, np.random.default_rng(3))
        assert found == pytest.approx(value, rel=1e-6)
    assert Independence(LEAVES[:6], 2, "chisq").degrees == 2


@pytest.mark.parametrize("deviation", [1.0, pytest.param(10.0, marks=pytest.mark.long), 40.0])
@pytest.mark.few("1.0")
def test_a_table_without_dependence_rejects_one_in_twenty(deviation: float) -> None:
    generator = np.random.default_rng(4)
    cells = np.outer([0.2, 0.5, 0.3], [0.15, 0.25, 0.3, 0.3]).ravel()
    exact = generator.multinomial(600, cells, TIMES).astype(float)
    found = worked_out(Independence(LEAVES, 3, "p_value"), exact, deviation, generator)
    rejected = np.mean(found[np.isfinite(found)] < 0.05)
    assert SIZES[0] <= rejected <= SIZES[1]


def test_noise_taken_for_none_rejects_far_too_often() -> None:
    generator = np.random.default_rng(5)
    exact = generator.multinomial(600, np.full(12, 1 / 12), 500).astype(float)
    moved = exact + generator.normal(size=exact.shape) * 10.0
    found = evaluate(Independence(LEAVES, 3, "p_value"), moved, np.zeros((12 * 500, 12)), NOISE).value
    assert np.mean(found < 0.05) > 0.25


def test_power_grows_with_dependence() -> None:
    generator = np.random.default_rng(6)
    cells = np.outer([0.2, 0.5, 0.3], [0.15, 0.25, 0.3, 0.3])
    cells[0, 0] += 0.05
    cells[1, 0] -= 0.05
    exact = generator.multinomial(2_000, cells.ravel(), 300).astype(float)
    found = worked_out(Independence(LEAVES, 3, "p_value"), exact, 10.0, generator)
    assert np.mean(found < 0.05) > 0.9


def test_gini_is_the_mean_distance_over_twice_the_mean() -> None:
    generator = np.random.default_rng(8)
    values = np.array([0.0, 1.0, 2.0, 5.0])
    rows = generator.choice(values, 400, p=[0.4, 0.3, 0.2, 0.1])
    exact = np.array([[(rows <= value).sum() for value in values]], dtype=float)
    expected = np.abs(rows[:, None] - rows).mean() / (2 * rows.mean())
    gini = Gini(LEAVES[:4], tuple(values))
    assert worked_out(gini, exact, 0.0, generator) == pytest.approx(expected, rel=1e-9)
    times = 2_000
    R = np.eye(4) * 8.0 / NOISE.variance**0.5
    moved = exact + generator.normal(size=(times, 4)) * 8.0
    found = evaluate(gini, moved, np.repeat(R, times, axis=0), NOISE)
    covered = np.mean((found.low <= expected) & (expected <= found.high))
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], times, 0.95) / times
    assert low <= covered <= high
    assert abs(found.value.mean() - expected) < 5 * found.value.std() / times**0.5


@pytest.mark.parametrize("deviation", [2.0, 8.0, 30.0])
@pytest.mark.long
def test_laplace_noise_rejects_one_in_twenty_too(deviation: float) -> None:
    noise = pure_noise(1, Fraction(1, 1000))
    generator = np.random.default_rng(9)
    scale = deviation / noise.variance**0.5

    def rejected(formula: Formula, exact: Floats) -> float:
        moved = exact + generator.laplace(size=exact.shape) * deviation / 2**0.5
        rows = np.repeat(np.eye(exact.shape[1]) * scale, TIMES, axis=0)
        found = evaluate(formula, moved, rows, noise).value
        return float(np.mean(found[np.isfinite(found)] < 0.05))

    table = generator.multinomial(600, np.full(12, 1 / 12), TIMES).astype(float)
    assert 0.04 <= rejected(Independence(LEAVES, 3, "p_value"), table) <= 0.06
    two = np.stack(sums(generator.uniform(-0.5, 0.5, (TIMES, 280)))
                   + sums(generator.uniform(-0.5, 0.5, (TIMES, 320))), axis=1)  # fmt: skip
    assert 0.04 <= rejected(Comparison(WELCH, 2.0, "p_value"), two) <= 0.06


@pytest.mark.parametrize("blocks", [(12,), pytest.param((3, 3, 3, 3), marks=pytest.mark.long)])
@pytest.mark.long
def test_noise_in_blocks_rejects_no_more(blocks: tuple[int, ...]) -> None:
    """Coordinates of a block are large together: at the level of 1 % a normal law rejects 3 %."""
    noise = pure_noise(1, Fraction(1, 1000), blocks)
    table = np.random.default_rng(9).multinomial(600, np.full(12, 1 / 12), TIMES).astype(float)
    scale = 30.0 / np.sqrt(noise.variances)
    moved = table + replicates(noise, 30, TIMES, 12) * scale
    found = evaluate(Independence(LEAVES, 3, "p_value"), moved, np.repeat(np.diag(scale), TIMES, axis=0), noise).value
    found = found[np.isfinite(found)]
    assert np.mean(found < 0.01) <= stats.binom.ppf(1 - 1e-6, TIMES, 0.012) / TIMES
    assert 0.035 <= np.mean(found < 0.05) <= 0.06


@pytest.mark.parametrize("blocks", [(), (3,), (2, 1), (1, 1, 1)])
def test_the_excess_is_that_of_the_law(blocks: tuple[int, ...]) -> None:
    """E |A z|^4 from the moments of uniform points of cubes, over all radii."""
    noise = pure_noise(400, Fraction(1), blocks)
    deviations = np.sqrt(noise.variances) if blocks else np.full(3, noise.variance**0.5)
    A = np.array([[1.0, -2.0, 0.5], [0.3, 1.0, 1.5]])
    G = (A / deviations).T @ (A / deviations)  # of coordinates as they are drawn
    held = blocks or (1, 1, 1)
    owner = np.repeat(range(len(held)), held)
    radii = {size: cubes.radii(size, noise.parameter) for size in held}
    moments = {}
    for size, (r, chance) in radii.items():
        two, four = r * (r + 1) / 3, r * (r + 1) * (3 * r * r + 3 * r - 1) / 15
        moments[size] = float(chance @ two), float(chance @ two**2), float(chance @ four)
    whole = 0.0
    for i, k in np.ndindex(3, 3):
        one, other = held[owner[i]], held[owner[k]]
        if i == k:
            whole += G[i, i] ** 2 * moments[one][2]
        else:
            both = moments[one][1] if owner[i] == owner[k] else moments[one][0] * moments[other][0]
            whole += (G[i, i] * G[k, k] + 2 * G[i, k] ** 2) * both
    normal = np.trace(A @ A.T) ** 2 + 2 * np.sum((A @ A.T) ** 2)
    assert excess(A, noise) == pytest.approx(whole - normal, rel=1e-3)


def test_a_table_beyond_floats_has_no_test() -> None:
    counts = np.array([[3e30, -2e30, 3e30, 0.0, -1e30, 3e30]])
    found = evaluate(Independence(LEAVES[:6], 2, "p_value"), counts, np.eye(6) * 1e-6, NOISE).value
    assert found.shape == (1,)
