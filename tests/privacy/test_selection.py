"""The exponential mechanism: its law exactly, and its ratio bound by brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from seeded_source import SeededSource

from dpsql.errors import InternalError
from dpsql.privacy.selection import Selection, select_from

P = 1e-6
DRAWS = 8_000


def law(epsilon: Fraction, scores: list[int], reach: list[int]) -> np.ndarray:
    """P(i) proportional to exp(epsilon s_i / (2 D_i)), written down anew."""
    a = np.array([float(epsilon) * s / (2 * d) for s, d in zip(scores, reach, strict=True)])
    w = np.exp(a - a.max())
    return np.asarray(w / w.sum())


CASES = [
    (Fraction(1), [0, 1, 2, 3], [1, 1, 1, 1]),
    (Fraction(7, 3), [5, 5, 0], [2, 3, 1]),
    (Fraction(1, 100), [0, 40, 100, 7, 3], [1, 2, 3, 4, 5]),
    (Fraction(3), [1000, 1002, 999], [1, 1, 1]),
    (Fraction(123456789, 10**9), [2**70, 2**70 - 5 * 2**60, 0], [2**60, 2**60, 2**59]),
]


@pytest.mark.parametrize(("epsilon", "scores", "reach"), CASES, ids=range(len(CASES)))
@pytest.mark.few(every=5)
def test_draws_have_the_law(epsilon: Fraction, scores: list[int], reach: list[int]) -> None:
    source = SeededSource("law")
    selection = Selection(epsilon, tuple(reach))
    found = np.bincount([select_from(selection, scores, source) for _ in range(DRAWS)], minlength=len(scores))
    expected = law(epsilon, scores, reach) * DRAWS
    assert not found[expected < 1e-9].any()
    some = expected >= 5
    statistic = float(((found - expected)[some] ** 2 / expected[some]).sum())
    assert stats.chi2.sf(statistic, max(int(some.sum()) - 1, 1)) > P


@pytest.mark.parametrize("factor", [Fraction(11, 10), Fraction(9, 10), Fraction(2), Fraction(1, 2)])
@pytest.mark.few(every=4)
def test_a_wrong_epsilon_is_caught(factor: Fraction) -> None:
    """The test above has power: draws at another epsilon fail it."""
    source = SeededSource("wrong")
    scores, reach = [0, 4, 8, 12], [2, 2, 2, 2]
    selection = Selection(Fraction(2) * factor, tuple(reach))
    found = np.bincount([select_from(selection, scores, source) for _ in range(DRAWS)], minlength=4)
    expected = law(Fraction(2), scores, reach) * DRAWS
    assert stats.chi2.sf(float(((found - expected) ** 2 / expected).sum()), 3) < P


def test_neighbours_are_within_epsilon_by_brute_force() -> None:
    """All scores from 0 to 3 of three candidates, each moved by at most its reach: no probability moves further."""
    epsilon, reach = Fraction(6, 5), (1, 2, 3)
    worst = 0.0
    for scores in itertools.product(range(4), repeat=3):
        here = law(epsilon, list(scores), list(reach))
        for moves in itertools.product((-1, 0, 1), repeat=3):
            there = law(epsilon, [s + m * d for s, m, d in zip(scores, moves, reach, strict=True)], list(reach))
            worst = max(worst, float(np.abs(np.log(here / there)).max()))
    assert worst <= float(epsilon) * (1 + 1e-12)
    assert worst > 0.9 * float(epsilon) * (1 - 1 / 2)  # the bound is not idle: one candidate alone gains half of it


def test_exponents_are_exact() -> None:
    found = Selection(Fraction(1, 3), (2, 5)).exponents([10, 7])
    assert found == [0, Fraction(1, 3) * 10 / 4 - Fraction(1, 3) * 7 / 10]
    assert math.isclose(float(found[1]), 0.6)


def test_what_is_no_selection_is_refused() -> None:
    for epsilon, reach in (
        (Fraction(0), (1,)),
        (0.5, (1,)),
        (Fraction(1), ()),
        (Fraction(1), (0,)),
        (Fraction(1), (True,)),
    ):
        with pytest.raises(InternalError):
            Selection(epsilon, reach)  # type: ignore[arg-type]
    with pytest.raises(InternalError):
        Selection(Fraction(1), (1, 1)).sample([1])
