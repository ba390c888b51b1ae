"""Which counts pass a threshold: the law of dense noise, held exactly and by draws, and what breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats

from dpsql.errors import InternalError
from dpsql.privacy import draws, passing
from dpsql.privacy.draws import EntropySource
from dpsql.privacy.passing import Chance, GeometricThreshold, sample_passing
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
    passed = cells if count >= law.least else Chance.of(law.scale, law.least - count).times(cells, word)
    return [law.least] * passed  # the noise forgotten


def _mean(self: Chance, trials: int, word: Callable[[], int]) -> int:
    return trials * self.bounds(64)[0] + word() >> 64  # as many as expected


def _first(word: Callable[[], int], count: int, cells: int, taken: np.ndarray) -> list[int]:
    return np.setdiff1d(np.arange(cells), taken)[:count].tolist()


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [("passing", _all_pass, p_value), ("apart", _first, p_value), ("Chance.times", _mean, of_two)],
)
def test_mutants_of_the_sampler_are_told(
    name: str, wrong: object, told: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"dpsql.privacy.passing.{name}", wrong)
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


@pytest.mark.parametrize("scale", [Fraction(1, 50), Fraction(1), Fraction(123, 7), Fraction(10**5, 3)])
@pytest.mark.parametrize("least", [1, 2, 17, 400])
def test_probabilities_are_between_their_bounds(scale: Fraction, least: int) -> None:
    with localcontext() as context:
        context.prec = 400
        step = -Decimal(scale.denominator) / Decimal(scale.numerator)
        true = (least * step).exp() / (1 + step.exp())
        chance = Chance.of(scale, least)
        for bits in (64, 128, 640):
            low, high = chance.bounds(bits)
            assert low <= true * 2**bits <= high <= low + 2


def test_numbers_of_trials_have_the_binomial_law() -> None:
    """Every word of digits gives the number that the exact sums of the law give, or asks for more digits."""
    p = Fraction(7, 23)
    event = Chance(lambda bits: (p.numerator * 2**bits // 23, p.numerator * 2**bits // 23 + 1))
    terms = [math.comb(6, k) * p**k * (1 - p) ** (6 - k) for k in range(7)]
    sums = [sum(terms[: k + 1]) for k in range(7)]
    words = [int(end * 2**64) + step for end in (0, *sums[:-1]) for step in range(-2, 3)]
    for at in sorted(word for word in (*words, 2**64 - 1) if 0 <= word < 2**64):
        first, last = (next(k for k, end in enumerate(sums) if u < end * 2**64) for u in (at, at + Fraction(999, 1000)))
        found = event._decided(6, at, 64)
        assert found == first if first == last and found is not None else found is None
        assert (found is None) <= any(abs(at - int(end * 2**64)) < 2 for end in (0, *sums))
    given = iter([int(sums[2] * 2**64), 0])
    assert event.times(6, given.__next__) == 2  # the second word decides
    assert event.times(0, given.__next__) == 0


def test_any_number_of_trials_is_one_draw() -> None:
    """2^400 trials of which two are expected to succeed; and a fifth of a thousand."""
    word = draws.words(seeded(8))
    rare = Chance.of(Fraction(1), 277)  # of 2^400 trials 2.04 pass
    expected = 2**400 * math.exp(-277) / (1 + math.exp(-1))
    found = np.bincount([min(rare.times(2**400, word), 7) for _ in range(300)], minlength=8)
    law = stats.poisson.pmf(np.arange(8), expected)
    law[7] = 1 - law[:7].sum()
    assert stats.chi2.sf(((found - 300 * law) ** 2 / (300 * law)).sum(), 7) > 1e-4
    often = Chance.of(Fraction(1), 1)
    p = math.exp(-1) / (1 + math.exp(-1))
    many = np.array([often.times(1000, word) for _ in range(100)])
    assert abs(many.mean() - 1000 * p) < 4 * math.sqrt(1000 * p * (1 - p) / 100)
    assert 0.5 < many.var() / (1000 * p * (1 - p)) < 1.7


def test_no_cache_has_counts_after_a_draw() -> None:
    sample_passing(LAW, np.array([1, 2]), 50, np.array([3, 4]), seeded(1))
    assert not [name for name, held in vars(passing).items() if hasattr(held, "cache_info")]


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
