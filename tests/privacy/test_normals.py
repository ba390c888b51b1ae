"""Gaussian draws over arrays: ties, rounding and the law, against the scalar code and rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from seeded_source import SeededSource

from dpsql.errors import InternalError
from dpsql.privacy import normals
from dpsql.privacy.draws import rounded
from dpsql.privacy.noise import Noise, sample_from


class Coarse:
    """Words of 4 random bits and 60 zeros: comparisons meet ties all the time."""

    def __init__(self, seed: str) -> None:
        self.source = SeededSource(seed)

    def __call__(self, size: int, /) -> bytes:
        words = np.frombuffer(self.source(-(-size // 8) * 8), dtype=np.uint64)
        return (words & np.uint64(15 << 60)).tobytes()[:size]


def near(wins: np.ndarray, probability: float) -> bool:
    return abs(wins.mean() - probability) < 6 * math.sqrt(probability * (1 - probability) / wins.size)


@pytest.mark.parametrize("source", [SeededSource, Coarse])
@pytest.mark.few("SeededSource")
def test_coins_have_their_probabilities_through_ties(source) -> None:
    # What the coins need of a real is P(u < 1/2) = 1/2 and that orders of independent ones are equally likely: both
    # hold for the coarse reals too, if ties are broken by further digits.
    drawn, count = normals._Draws(source("coins")), 60_000
    assert near(drawn.exp_minus_half(count), math.exp(-0.5))
    for k in (0, 1, 5):
        x = normals._Reals(np.full(count, 1 << 63, dtype=np.uint64), {i: [0] * 12 for i in range(count)})
        wins = drawn.accept_fraction(np.full(count, k, dtype=np.uint64), x, np.arange(count))
        assert near(wins, math.exp(-0.5 * (2 * k + 0.5) / (2 * k + 2)))


def test_comparisons_extend_both_reals() -> None:
    drawn = normals._Draws(Coarse("ties"))
    left, right = drawn.reals(400), drawn.reals(400)
    every = np.arange(400)
    found = drawn.less(left, every, right, every)
    assert found.tolist() == [left.digits(i) < right.digits(i) for i in range(400)]
    assert any(len(left.digits(i)) > 1 for i in range(400))
    assert all(left.digits(i) != right.digits(i) for i in range(400))
    assert drawn.less(left, every, right, every).tolist() == found.tolist()
    flags = np.arange(400) % 3 == 0
    kept = normals._selected(left, flags)
    assert [kept.digits(i) for i in range(134)] == [left.digits(i) for i in range(0, 400, 3)]


def test_faces_are_uniform() -> None:
    drawn = normals._Draws(SeededSource("faces"))
    for k in (0, 1, 2, 31):
        faces = drawn.faces(np.full(40_000, k, dtype=np.uint64))
        counts = np.bincount(faces.astype(int), minlength=2 * k + 2)
        expected = 40_000 / (2 * k + 2)
        assert counts.size == 2 * k + 2
        assert (np.abs(counts - expected) < 6 * math.sqrt(expected)).all()


@pytest.mark.parametrize(
    "variance", [Fraction(1, 50), Fraction(1), Fraction(7, 3), Fraction(10**21, 7), Fraction(2**98), Fraction(2**113)]
)
def test_rounding_agrees_with_the_scalar_code(variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, count = np.random.default_rng(4), 2000
    k = rng.integers(0, 32, size=count).astype(np.uint64)
    first = rng.integers(0, 2**64 - 1, size=count, dtype=np.uint64, endpoint=True)
    first[:4] = 0, 2**64 - 1, 1 << 63, (1 << 63) - 1
    reals = normals._Reals(first, {i: [int(v)] for i, v in enumerate(rng.integers(0, 2**62, size=count))})
    monkeypatch.setattr(normals, "_normals", lambda drawn, size: (k, reals))
    found = normals.rounded_normals(variance.numerator, variance.denominator, count, SeededSource("rounding"))
    assert found is not None
    for i in range(count):
        wanted = rounded(lambda: 0, int(k[i]), reals.digits(i), False, variance.numerator, variance.denominator)
        assert abs(found[i]) == wanted
    assert 0.4 < np.mean([z < 0 for z in found if z]) < 0.6


def test_moments_at_both_sides_of_the_switch() -> None:
    for variance in (Fraction(40), Fraction(10**24)):
        for count, repeats in ((1023, 20), (20_000, 1)):
            source = SeededSource(f"switch {variance} {count}")
            draws = np.array([z for _ in range(repeats) for z in sample_from(Noise.gaussian(variance), count, source)])
            scaled = draws.astype(float) / math.sqrt(variance)
            assert abs(scaled.mean()) < 6 / math.sqrt(scaled.size)
            assert abs((scaled**2).mean() - 1) < 6 * math.sqrt(2 / scaled.size) + 1 / (12 * variance)
            assert abs((scaled**4).mean() - 3) < 6 * math.sqrt(96 / scaled.size) + 1 / variance


def test_long_scales_are_left_to_the_scalar_code() -> None:
    assert normals.rounded_normals(2**114, 1, 5, SeededSource("long")) is None
    assert len(sample_from(Noise.gaussian(Fraction(2**114)), 1500, SeededSource("long"))) == 1500


def test_a_short_or_broken_source_is_an_error() -> None:
    with pytest.raises(InternalError, match="too few"):
        sample_from(Noise.gaussian(Fraction(1)), 5000, lambda size: b"")
    drawn = normals._Draws(SeededSource("broken"))
    calls = iter([True] * 40 + [False])
    drawn.exp_minus_half = lambda count: np.full(count, next(calls, True))  # type: ignore[method-assign]
    with pytest.raises(InternalError, match="broken"):
        normals._normals(drawn, 3)
