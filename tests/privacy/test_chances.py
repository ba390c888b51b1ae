"""Exact chances: tails between their bounds, numbers of trials, Gaussian noise given that it is large."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpsql.privacy import draws
from dpsql.privacy.chances import Chance, normals_beyond
from dpsql.privacy.draws import EntropySource

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def seeded(seed: int) -> EntropySource:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("scale", [Fraction(1, 50), Fraction(1), Fraction(123, 7), Fraction(10**5, 3)])
@pytest.mark.parametrize("least", [1, 2, 17, 400])
def test_probabilities_are_between_their_bounds(scale: Fraction, least: int) -> None:
    with localcontext() as context:
        context.prec = 400
        step = -Decimal(scale.denominator) / Decimal(scale.numerator)
        true = (least * step).exp() / (1 + step.exp())
        chance = Chance.laplace(scale, least)
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
    rare = Chance.laplace(Fraction(1), 277)  # of 2^400 trials 2.04 pass
    expected = 2**400 * math.exp(-277) / (1 + math.exp(-1))
    found = np.bincount([min(rare.times(2**400, word), 7) for _ in range(300)], minlength=8)
    law = stats.poisson.pmf(np.arange(8), expected)
    law[7] = 1 - law[:7].sum()
    assert stats.chi2.sf(((found - 300 * law) ** 2 / (300 * law)).sum(), 7) > 1e-4
    often = Chance.laplace(Fraction(1), 1)
    p = math.exp(-1) / (1 + math.exp(-1))
    many = np.array([often.times(1000, word) for _ in range(100)])
    assert abs(many.mean() - 1000 * p) < 4 * math.sqrt(1000 * p * (1 - p) / 100)
    assert 0.5 < many.var() / (1000 * p * (1 - p)) < 1.7


@pytest.mark.parametrize("variance", [Fraction(1, 50), Fraction(1), Fraction(1234, 7), Fraction(10**9, 3)])
@pytest.mark.parametrize("least", [1, 2, 40, 60_000])
def test_gaussian_tails_are_between_their_bounds(variance: Fraction, least: int) -> None:
    """Against the alternating series, of which the terms are added up to 80 digits and more."""
    y = Fraction(2 * least - 1) ** 2 / (4 * variance)
    chance = Chance.gaussian(variance, least)
    with localcontext() as context:
        context.prec = 80 + 2 * math.ceil(min(y, 500))
        true = Decimal(0)
        if y < 500:
            x2, term, k = Decimal(y.numerator) / Decimal(y.denominator), Decimal(1), 0
            total = Decimal(0)
            while k < 40 + 6 * y:
                total += term / (2 * k + 1)
                k += 1
                term *= -x2 / (2 * k)
            true = Decimal("0.5") - total * (x2 / (2 * PI)).sqrt()
        for bits in (64, 128, 200):
            low, high = chance.bounds(bits)
            assert low <= true * 2**bits <= high <= low + 2
    low, high = chance.bounds(640)
    assert low <= high <= low + 2
    assert chance.bounds(200)[0] <= low >> 440
    assert high >> 440 <= chance.bounds(200)[1]


def test_large_noise_has_the_law_of_what_is_large() -> None:
    """Of two laws, one of which is nearly all at its end; a spread that is off is told."""
    for variance, least in ((Fraction(77), 20), (Fraction(2), 2)):
        found = np.array(normals_beyond(variance, least, 3000, draws.words(seeded(9))))

        def p_value(sigma: float, least: int = least, found: np.ndarray = found) -> float:
            ends = np.arange(least, least + 40)
            above = stats.norm.sf((ends - 0.5) / sigma)
            law = -np.diff(above) / above[0] * 3000
            kept = law > 5
            seen = np.bincount(found - least, minlength=39)[:39]
            law = np.append(law[kept], max(3000 - law[kept].sum(), 1e-9))
            seen = np.append(seen[kept], 3000 - seen[kept].sum())
            return float(stats.chi2.sf(((seen - law) ** 2 / law).sum(), len(law) - 1))

        sigma = math.sqrt(variance)
        assert found.min() == least
        assert p_value(sigma) > 1e-4
        assert p_value(1.5 * sigma) < 1e-6
        assert p_value(sigma / 1.5) < 1e-6


def test_noise_whose_digits_do_not_decide_asks_for_more() -> None:
    """u in the first digits of which an end lies: the next ones say on which side."""
    ends = [Chance.gaussian(Fraction(77), z).bounds(256) for z in (20, 21)]
    first = (ends[1][0] << 64) // ends[0][1]
    for after, larger in ((0, True), (2**64 - 1, False)):
        given = iter([first, after])
        (found,) = normals_beyond(Fraction(77), 20, 1, given.__next__)
        assert found == 20 + larger
        assert next(given, None) is None
