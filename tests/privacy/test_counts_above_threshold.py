"""Which counts pass a threshold: the law of dense noise, held exactly and by draws, and what breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats

from dpsql.errors import InternalError
from dpsql.privacy import chances as exact
from dpsql.privacy import counts_above_threshold
from dpsql.privacy.chances import Chance
from dpsql.privacy.counts_above_threshold import GeometricThreshold, sample_passing
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.shown_counts import intervals

LAW = GeometricThreshold(Fraction(3, 2), 3)
KINDS = np.array([0, 1, 0, 0, 2, 1, 0, 0, 0, 5, 0, 0])  # rows of twelve cells, of which there are many copies
COPIES = 6000
NONE = np.array([], dtype=np.int64)


def seeded(seed: int) -> EntropySource:
    return np.random.default_rng(seed).bytes


def tail(law: GeometricThreshold, at: int) -> float:
    """P(Z >= at), in floats, by its own sum."""
    q = math.exp(-1 / float(law.scale))
    return float(sum((1 - q) / (1 + q) * q ** abs(z) for z in range(at, at + 400)))


def chances(law: GeometricThreshold, x: int) -> np.ndarray:
    """That a cell of count x is absent, shows least, least + 1, ..., or least + 5 and more."""
    above = [tail(law, law.least - x + k) for k in range(6)]
    return np.array([1 - above[0], *(a - b for a, b in pairwise(above)), above[5]])


def p_value(law: GeometricThreshold = LAW) -> float:
    """How well one draw of all copies agrees with ``law`` for every cell."""
    x = np.repeat(KINDS, COPIES)
    taken = np.flatnonzero(x)
    cells, values = sample_passing(LAW, x[taken], len(x), taken, seeded(5))
    assert (np.diff(cells) > 0).all()
    seen = np.zeros(len(x), dtype=int)
    seen[cells] = 1 + np.minimum(values - LAW.least, 5)
    found = np.array([np.bincount(mine, minlength=7) for mine in seen.reshape(-1, COPIES)])
    expected = np.array([chances(law, int(n)) for n in KINDS]) * COPIES
    return float(stats.chi2.sf(((found - expected) ** 2 / expected).sum(), 6 * len(KINDS)))


def of_two() -> float:
    """How well 1,500 draws of two cells without rows agree with two cells that pass independently."""
    law, source = GeometricThreshold(Fraction(2), 2), seeded(11)
    seen = np.zeros((2, 2))
    for _ in range(1500):
        cells, _ = sample_passing(law, NONE, 2, NONE, source)
        seen[int(0 in cells), int(1 in cells)] += 1
    p = tail(law, 2)
    expected = np.outer([1 - p, p], [1 - p, p]) * 1500
    return float(stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), 3))


def test_every_cell_is_shown_as_dense_noise_would_show_it_and_wrong_laws_are_told() -> None:
    assert p_value() > 1e-4
    for scale, least in ((Fraction(4, 3), 3), (Fraction(3, 2), 4)):
        assert p_value(GeometricThreshold(scale, least)) < 1e-9


def test_two_cells_without_rows_pass_independently() -> None:
    assert of_two() > 1e-4


def _all_pass(
    law: GeometricThreshold, count: int, cells: int, source: EntropySource, word: Callable[[], int]
) -> list[int]:
    passed = cells if count >= law.least else Chance.laplace(law.scale, law.least - count).times(cells, word)
    return [law.least] * passed  # the noise forgotten


def _mean(self: Chance, trials: int, word: Callable[[], int]) -> int:
    return trials * self.bounds(64)[0] + word() >> 64  # as many as expected


def _first(word: Callable[[], int], count: int, cells: int, taken: np.ndarray) -> list[int]:
    return np.setdiff1d(np.arange(cells), taken)[:count].tolist()


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("counts_above_threshold.passing", _all_pass, p_value),
        ("counts_above_threshold.sample_distinct", _first, p_value),
        ("chances.Chance.times", _mean, of_two),
    ],
)
def test_mutants_of_the_sampler_are_told(
    name: str, wrong: object, told: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"dpsql.privacy.{name}", wrong)
    assert told() < 1e-9


def test_no_neighbour_is_told_by_more_than_epsilon() -> None:
    """All outcomes of two cells, all pairs of neighbours: the law that the draws were held to above."""
    epsilon, law = Fraction(2, 3), LAW
    for x in product(range(5), repeat=2):
        for at in range(2):
            y = [n + (i == at) for i, n in enumerate(x)]
            one, other = ([chances(law, n) for n in held] for held in (x, y))
            for shown in product(range(7), repeat=2):
                p, q = (math.prod(float(held[i][s]) for i, s in enumerate(shown)) for held in (one, other))
                assert max(p / q, q / p) <= math.exp(float(epsilon)) * (1 + 1e-9)
    halved = [chances(GeometricThreshold(law.scale / 2, law.least), n) for n in (0, 1)]
    assert (np.abs(np.log(halved[0] / halved[1])) > float(epsilon) * 1.01).any()


def test_no_cache_has_counts_after_a_draw() -> None:
    sample_passing(LAW, np.array([1, 2]), 50, np.array([3, 4]), seeded(1))
    held = {**vars(counts_above_threshold), **vars(exact)}
    assert [name for name, one in held.items() if hasattr(one, "cache_info")] == ["_pi"]  # which is public


def test_a_hundred_million_cells_take_no_vector() -> None:
    law = GeometricThreshold(Fraction(1), 40)  # 3e-10 are expected
    cells, values = sample_passing(law, np.array([10**6]), 10**8, np.array([7]), seeded(3))
    assert cells.tolist() == [7]
    assert abs(values[0] - 10**6) < 50


def test_shown_counts_are_covered_given_that_they_are_shown() -> None:
    law, source = GeometricThreshold(Fraction(10), 60), seeded(2)
    counts = np.repeat([30, 50, 60, 90, 500], 4000)
    taken = np.arange(len(counts))
    cells, values = sample_passing(law, counts, 4_000_000, taken, source)
    low, high = intervals(law, values, 0.05)
    assert (low >= 0).all()
    true = np.where(cells < len(counts), counts[np.minimum(cells, len(counts) - 1)], 0)
    for count in (0, 30, 50, 60, 90, 500):
        mine = true == count
        assert mine.sum() > 50
        assert ((low <= true) & (true <= high))[mine].mean() > 0.95 - 3 * math.sqrt(0.05 * 0.95 / mine.sum())


@pytest.mark.parametrize("least", [0, -1, True, 1.5])
def test_a_threshold_is_a_whole_number(least: int) -> None:
    with pytest.raises(InternalError):
        GeometricThreshold(Fraction(1), least)


def test_counts_and_cells_must_fit() -> None:
    for counts, taken in (
        (np.array([1]), np.array([1, 2])),
        (np.array([0]), np.array([1])),
        (1 + KINDS, np.arange(12)),
    ):
        with pytest.raises(InternalError):
            sample_passing(LAW, counts, 3, taken, seeded(1))
