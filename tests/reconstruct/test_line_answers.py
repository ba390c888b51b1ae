"""Errors of all ranges: figures, their largest and mean, and the bound on Laplace combinations."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpsql.errors import DataError, InterfaceError
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import LineAnswers, RangeErrors, half_widths, mean_square
from dpsql.reconstruct.line_answers import deviations
from dpsql.strategies.ranges.line_strategy import line_strategy

WIDE = Fraction(10**12)  # so wide that the lattice of the noise does not matter


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("n", [1, 2, 33, 200, 1000])
def test_mean_and_largest_are_those_of_all_ranges(noise: str, n: int) -> None:
    line = line_strategy(n, "ranges", noise).line
    held = RangeErrors(np.array([2.0, 3.0]), line.spread, n)
    i, j = np.triu_indices(n)
    every = held.of(i, j)
    assert every.shape == (2, n * (n + 1) // 2)
    assert held.mean_square() == pytest.approx(float((every**2).mean()), rel=1e-9)
    assert every.max() * (1 - 1e-12) <= held.max() <= every.max() * 1.001
    assert len(held) == 2 * held.count
    assert held[held.count :].max() == pytest.approx(held.max())
    assert line.spread.total(n, "ranges") == pytest.approx(float((every[0] ** 2).sum() / 4))


def test_places_outside_are_refused() -> None:
    held = RangeErrors.uniform(np.ones(1), 10)
    for first, last in ((-1, 3), (0, 10), (5, 4), (0.5, 3)):
        with pytest.raises(DataError, match="a range"):
            held.of(first, last)
    with pytest.raises(DataError, match="taken whole"):
        held[3:55]


def test_errors_of_ranges_do_what_arrays_of_errors_do() -> None:
    """Length, slices, multiples, largest, mean square; compared with each other, and never below those of an array."""
    blocks, lengths = (line_strategy(33, "ranges", noise).line.spread for noise in ("laplace", "gaussian"))
    for spread in (blocks, lengths):
        errors = RangeErrors(np.array([2.0, 3.0]), spread, 33)
        listed = errors.of(*np.triu_indices(33)).ravel()
        assert len(errors) == listed.size
        assert mean_square(errors * 2.0) == pytest.approx(mean_square(listed * 2.0))
        assert mean_square(errors[errors.count :]) == pytest.approx(mean_square(listed[errors.count :]))
        assert errors.max(initial=1e9) == listed.max(initial=1e9)
        assert errors <= errors * 1.000001
        assert not errors <= errors * 0.999999
        assert not errors <= RangeErrors(np.array([2.0, 2.9]), spread, 33)
        assert not errors <= listed * 9.0
        assert not listed <= errors * 9.0
    assert not RangeErrors(np.ones(1), blocks, 33) <= RangeErrors(np.full(1, 9.0), lengths, 33)


def test_rows_of_prefixes_have_the_inner_products_of_the_reconstruction() -> None:
    """Two numbers of two groups each, beside R written out: by unit vectors through the estimate."""
    line = line_strategy(20, "prefixes", "gaussian").line
    answers = LineAnswers(line, np.array([[1.0, 0.5], [0.0, 2.0], [-1.0, 1.0], [0.3, 0.0]]), "prefixes")
    law, parts = Noise.gaussian(WIDE), [slice(0, 40), slice(40, 80)]
    rows = np.asarray(answers.rows(parts, law))
    whole = np.stack([answers.estimate(unit, 1) for unit in np.eye(2 * line.rows)], axis=1)
    assert rows.shape == (80, 2)
    for group in range(40):
        mine, all_of_it = (matrix[[group, 40 + group]] for matrix in (rows, whole))
        assert mine @ mine.T == pytest.approx(all_of_it @ all_of_it.T, rel=1e-6, abs=1e-9)
    assert half_widths(rows, law, 0.1) == pytest.approx(answers.widths(law, 0.1, 1), rel=1e-6)
    with pytest.raises(InterfaceError, match="too many for a policy that hides small counts"):
        answers.rows(parts, Noise.laplace(WIDE))


@pytest.mark.parametrize("alpha", [0.5, 0.1, 0.05, 0.01, 1e-4, 1e-9])
@pytest.mark.few(every=3)
def test_deviations_hold_every_combination(alpha: float) -> None:
    """Exact quantiles of Laplace combinations (one, two, many, mixed weights) stay within the bound, one comes near."""
    noise = Noise.laplace(WIDE)
    bound = deviations(noise, alpha)
    rng = np.random.default_rng(1)
    rows = [[1.0], [1.0, 1.0], [1.0, 0.3], [1.0] * 50, [1.0, *[0.1] * 40], *rng.exponential(size=(6, 9)).tolist()]
    nearest = 0.0
    for row in rows:
        R = np.array([row])
        share = float(half_widths(R, noise, alpha)[0]) / float(np.sqrt((R**2).sum() * noise.variance))
        assert share <= bound * (1 + 1e-5)
        nearest = max(nearest, share)
    if alpha <= 0.05:
        assert nearest > 0.975 * bound


def test_gaussian_deviations_are_the_quantile() -> None:
    assert deviations(Noise.gaussian(WIDE), 0.05) == pytest.approx(1.959964, rel=1e-5)
    with pytest.raises(DataError, match="alpha"):
        deviations(Noise.gaussian(WIDE), 1.0)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("family", ["ranges", "prefixes"])
@pytest.mark.few(every=6)
def test_errors_match_a_monte_carlo(family: str, noise: str) -> None:
    """Answers of 3,000 drawn measurements of zeros: variances within 5.2 deviations of their own, no bias."""
    n, draws = 60, 3000
    line = line_strategy(n, family, noise).line
    R = np.array([[1.0, 0.5], [0.0, 2.0]])
    answers = LineAnswers(line, R, family)
    law = Noise.gaussian(Fraction(9)) if noise == "gaussian" else Noise.laplace(Fraction(2))
    rng = np.random.default_rng(5)
    size = (draws, 2 * line.rows)
    q = 1 - np.exp(-0.5)
    pure = rng.geometric(q, size) - rng.geometric(q, size)
    z = np.rint(rng.normal(0, 3, size)) if noise == "gaussian" else pure
    found = []
    for row in z:
        held = answers.estimate(row.astype(int).tolist(), 4)
        if family == "ranges":
            held = np.stack([held[:, 41] - held[:, 7], held[:, 60] - held[:, 0]], axis=1).ravel()
        found.append(held)
    errors = answers.errors(law, 4)
    expected = errors.of([7, 0], [40, 59]).ravel() if isinstance(errors, RangeErrors) else errors
    drawn = np.array(found)
    assert np.abs(drawn.mean(axis=0)).max() < (5.2 * expected / np.sqrt(draws)).max()
    kurtosis = 6.0  # at most that of one Laplace variable
    limit = 5.2 * np.sqrt((kurtosis - 1) / draws)
    assert np.abs(drawn.var(axis=0) / expected**2 - 1).max() < limit
