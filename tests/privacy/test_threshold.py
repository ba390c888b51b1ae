"""Thresholds: what outcomes show of one unit, worked out exactly on both neighbours, and mutants that must show."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2, norm
from seeded_source import SeededSource

from dpsql.errors import DataError
from dpsql.privacy import draws, threshold
from dpsql.privacy.calibrate import gaussian_delta
from dpsql.privacy.shown_counts import intervals
from dpsql.privacy.threshold import GaussianThreshold

GAUSSIANS = [(1, "0.05", "1e-9"), (3, "0.4", "1e-5"), (2, "1.5", "0.02"), (10, "2", "1e-12")]
Outcome = tuple[int | None, ...]
Law = dict[int | None, float]


def gaussian(groups: int, mu: str, delta: str) -> GaussianThreshold:
    return GaussianThreshold(groups, Fraction(mu) ** 2, Fraction(delta))


@pytest.mark.parametrize("given", GAUSSIANS)
def test_a_gaussian_threshold_is_the_least_that_holds(given: tuple[int, str, str]) -> None:
    law = gaussian(*given)

    def alone(least: int) -> float:
        """A unit alone in all its values: the chance that one of them is shown."""
        return -math.expm1(law.groups * norm.logcdf((least - 1 - 0.5) / law.sigma))

    assert alone(law.least) <= float(law.delta) < alone(law.least - 1)
    # Alone in fewer values it shows less.
    assert all(
        -math.expm1(k * norm.logcdf((law.least - 1.5) / law.sigma)) <= float(law.delta) for k in range(1, law.groups)
    )


def outcomes(law: GaussianThreshold, count: int, sigma: float, least: int) -> Law:
    """The law of what is shown of a value of that count, but for what floats do not see."""
    if count == 0:
        return {None: 1.0}
    noise = np.arange(-math.ceil(9 * sigma), math.ceil(9 * sigma) + 1)
    weights = norm.cdf((noise + 0.5) / sigma) - norm.cdf((noise - 0.5) / sigma)
    found: Law = {None: 0.0}
    for z, weight in zip(noise.tolist(), weights.tolist(), strict=True):
        key = count + z if count + z >= least else None
        found[key] = found.get(key, 0.0) + weight
    return found


def joint(laws: list[Law]) -> Iterator[tuple[Outcome, float]]:
    for combination in product(*(law.items() for law in laws)):
        yield tuple(key for key, _ in combination), math.prod(chance for _, chance in combination)


def worst(
    law: GaussianThreshold, counts: tuple[int, ...], epsilon: float, *, factor: float = 1.0, less: int = 0
) -> float:
    """The larger divergence of the tables with and without a unit that has one row in every value of ``counts``."""
    sigma, least = law.sigma * factor, law.least - less
    with_unit = dict(joint([outcomes(law, count, sigma, least) for count in counts]))
    without = dict(joint([outcomes(law, count - 1, sigma, least) for count in counts]))
    keys, power = with_unit.keys() | without.keys(), math.exp(epsilon)
    ways = ((with_unit, without), (without, with_unit))
    return max(sum(max(0.0, a.get(key, 0.0) - power * b.get(key, 0.0)) for key in keys) for a, b in ways)


CASES = [((1,), 1), ((7,), 1), ((1, 1), 2), ((1, 5), 2), ((4, 6), 2), ((1, 1), 3)]


@pytest.mark.parametrize(("counts", "groups"), CASES)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
def test_a_gaussian_threshold_hides_one_unit(counts: tuple[int, ...], groups: int, epsilon: float) -> None:
    law = gaussian(groups, "0.8", "0.02")
    promised = gaussian_delta(0.8, epsilon) + 0.02
    assert worst(law, counts, epsilon) <= promised + 1e-12


def test_mutants_of_a_gaussian_threshold_show() -> None:
    """A unit alone shows a threshold that is lower by 1, and one among others shows half the noise."""
    law = gaussian(1, "0.4", "0.02")
    assert worst(law, (1,), 3.0, less=1) > 0.02
    assert worst(law, (40,), 0.5, factor=0.5) > gaussian_delta(0.4, 0.5) + 0.02
    assert law.failure(law.least - 1) > 0.02
    two = gaussian(2, "0.4", "0.02")
    forgotten = GaussianThreshold(1, two.mu_squared / 2, two.delta)  # the noise of two values, the threshold of one
    assert two.failure(forgotten.least) > 0.02


def test_what_is_out_of_reach_is_said() -> None:
    with pytest.raises(DataError, match="larger than any table"):
        _ = GaussianThreshold(1, Fraction(1, 10**30), Fraction("1e-9")).least


# -- what is shown --------------------------------------------------------------------------------

LAWS = [gaussian(1, "0.3", "1e-6"), gaussian(4, "1", "1e-3")]


def chances(law: GaussianThreshold, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy counts that are shown, and their chances, given that one is."""
    seen = np.arange(law.least, count + min(law.spread, 12 * math.ceil(law.stderr)) + 1)
    tails = np.exp(law.log_tail(np.append(seen, seen[-1] + 1).astype(float) - count))
    found = tails[:-1] - tails[1:]
    return seen, found / found.sum()


@pytest.mark.parametrize("law", LAWS)
def test_intervals_hold_of_what_passed(law: GaussianThreshold) -> None:
    """Given that a value is shown, its count lies in the interval with at least the stated probability."""
    for alpha in (0.05, 0.3):
        for count in (1, 2, law.least // 2, law.least, law.least + 5, 3 * law.least):
            seen, chance = chances(law, count)
            low, high = intervals(law, seen, alpha)
            covered = chance[(low <= count) & (count <= high)].sum()
            assert covered >= 1 - alpha - 1e-9, (count, alpha, covered)
            assert low.min() >= 1
            assert np.all(np.diff(low) >= 0)
            assert np.all(np.diff(high) >= 0)
    # Far above the threshold the interval is the usual one.
    far = np.array([100 * law.least])
    low, high = intervals(law, far, 0.05)
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * law.stderr, rel=0.35, abs=3)


@pytest.mark.parametrize("law", LAWS)
def test_draws_have_the_law(law: GaussianThreshold, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100_000
    monkeypatch.setattr(os, "urandom", SeededSource(f"threshold {law.kind} {law.groups}"))
    found = Counter(law.sample(count).tolist())
    high = 2 * math.ceil(law.stderr)
    ends = np.arange(-high, high + 1)
    observed = np.array([0.0, *(found[z] for z in ends.tolist())])
    observed[0], observed[-1] = sum(v for k, v in found.items() if k < -high), 0.0
    observed[-1] = count - observed.sum()

    def statistic(factor: float) -> tuple[float, float]:
        """Of noise whose spread is ``factor`` times as large, and the value that it passes once in a million."""
        tails = np.exp(law.log_tail(np.round(ends / factor)))
        expected = count * np.concatenate([[1 - tails[0]], tails[:-1] - tails[1:], [tails[-1]]])
        kept = expected > 10
        return float(((observed - expected)[kept] ** 2 / expected[kept]).sum()), float(chi2.isf(1e-6, kept.sum()))

    right, limit = statistic(1.0)
    assert right < limit
    for factor in (0.8, 1.25):
        wrong, limit = statistic(factor)
        assert wrong > limit


def in_bulk(law: GaussianThreshold, *, lower: int = 0) -> float:
    """How well what passes of many values of few counts agrees with noise on each; with all pairs of places, too."""
    size, sigma = 20_000, law.stderr
    counts = np.array(sorted({max(1, law.least - math.ceil(part * sigma)) for part in (2.6, 2.1, 1.7, -1)}))
    which, places, noisy = law.passed(counts, np.full(len(counts), size))
    assert (np.diff(which * size + places) > 0).all()
    steps, total, free = np.ceil(np.arange(6) * sigma / 6), 0.0, 0
    for at, count in enumerate(counts.tolist()):
        seen, where = noisy[which == at], places[which == at]
        above = np.exp(law.log_tail(np.append(law.least - lower + steps, np.inf)[:-1] - count))
        chance = np.concatenate([[1 - above[0]], -np.diff(above), above[-1:]])
        found = np.bincount(np.searchsorted(steps, seen - law.least, side="right"), minlength=len(chance))
        found[0] = size - len(seen)
        kept = size * chance > 5
        total += float((((found - size * chance) ** 2)[kept] / (size * chance[kept])).sum())
        thirds = np.bincount(where * 3 // size, minlength=3)  # where they are says nothing
        total += float(((thirds - len(seen) / 3) ** 2 / max(1, len(seen) / 3)).sum())
        free += int(kept.sum()) + 1
    return float(chi2.sf(total, free))


@pytest.mark.parametrize("law", LAWS)
def test_values_of_one_count_pass_as_with_noise_on_each(
    law: GaussianThreshold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", SeededSource(f"bulk {law.kind}"))
    drawn: list[int] = []
    real = threshold._each

    def noted(law: GaussianThreshold, counts: np.ndarray, sizes: np.ndarray) -> Iterator[threshold.Passed]:
        drawn.append(int(sizes.sum()))
        return real(law, counts, sizes)

    monkeypatch.setattr(threshold, "_each", noted)
    assert in_bulk(law) > 1e-4
    assert drawn[0] == 20_000  # the others had no draw each
    assert in_bulk(law, lower=1) < 1e-6

    def forgotten(self: GaussianThreshold, at: int, many: int, word: draws.Words) -> list[int]:
        return [at] * many

    def halved(self: GaussianThreshold, at: int, many: int, word: draws.Words) -> list[int]:
        return [at + (z - at) // 2 for z in right(law, at, many, word)]

    def first(word: draws.Words, count: int, cells: int, taken: np.ndarray) -> list[int]:
        return list(range(count))

    right = type(law).beyond
    for name, wrong in (("beyond", forgotten), ("beyond", halved), ("sample_distinct", first)):
        with monkeypatch.context() as mutant:
            mutant.setattr(type(law) if name == "beyond" else threshold, name, wrong)
            assert in_bulk(law) < 1e-6
