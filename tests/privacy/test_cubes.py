"""Noise in blocks: its probabilities one by one, exact privacy, its moments, and samplers that are nearly right."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from seeded_source import SeededSource

from dpsql.errors import InternalError
from dpsql.privacy import cubes, draws
from dpsql.privacy.noise import Noise, pure_noise, sample_from

LEVEL = 1e-6
SIZE, SCALE = 3, Fraction(6, 5)


def probabilities(size: int, scale: Fraction, reach: int) -> dict[tuple[int, ...], float]:
    """P(z) for all z of the cube of that reach, which holds nearly all of them."""
    q = math.exp(-1 / float(scale))
    points = itertools.product(range(-reach, reach + 1), repeat=size)
    weights = {z: q ** max(map(abs, z)) for z in points}
    total = sum(weights.values())
    return {z: weight / total for z, weight in weights.items()}


def p_value(drawn: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square over single points, those that are expected fewer than ten times together."""
    seen = Counter(drawn)
    points = [z for z, chance in law.items() if chance * len(drawn) >= 10]
    observed = np.array([seen[z] for z in points], dtype=float)
    expected = np.array([law[z] * len(drawn) for z in points])
    observed = np.append(observed, len(drawn) - observed.sum())
    expected = np.append(expected, len(drawn) - expected.sum())
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1))


def drawn(count: int, seed: str) -> list[tuple[int, ...]]:
    held = sample_from(Noise("blocks", SCALE, (SIZE,) * count), SIZE * count, SeededSource(seed))
    return [tuple(held[at : at + SIZE]) for at in range(0, len(held), SIZE)]


@pytest.mark.long
def test_every_point_has_its_probability() -> None:
    assert p_value(drawn(20_000, "points"), probabilities(SIZE, SCALE, 24)) > LEVEL


def accepts_all(word: draws.Words, size: int, t: int, s: int) -> int:
    """A radius that is never rejected: without the share of the shell."""
    return sum(draws.geometric(word, t, s) for _ in range(size + 1))


def boundary_lost(word: draws.Words, size: int, t: int, s: int) -> int:
    """One outcome of each coin is lost: below 2r in place of at most 2r, so that r = 0 never comes."""
    while True:
        r = accepts_all(word, size, t, s)
        if all(draws.below(word, 2 * (r + i)) < 2 * r for i in range(1, size + 1)):
            return r


def one_less(word: draws.Words, size: int, t: int, s: int) -> int:
    """The radius of a block of one coordinate less: too little noise."""
    return RIGHT(word, size - 1, t, s)


RIGHT = draws.cube_radius


@pytest.mark.parametrize("mutant", [accepts_all, boundary_lost, one_less])
@pytest.mark.few(every=3)
def test_a_nearly_right_radius_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: object) -> None:
    monkeypatch.setattr(draws, "cube_radius", mutant)
    assert p_value(drawn(6_000, "mutant"), probabilities(SIZE, SCALE, 24)) < LEVEL


def test_the_radius_has_its_law_by_algebra() -> None:
    """The chance of a radius times what is kept of it, in fractions: (2r + 1)^m / (2^m m!), whatever q is."""
    for size, r in itertools.product((1, 2, 5), range(6)):
        kept = math.prod(Fraction(2 * r + 1, 2 * (r + i)) for i in range(1, size + 1))
        assert kept <= 1
        assert kept * math.comb(r + size, size) == Fraction((2 * r + 1) ** size, 2**size * math.factorial(size))


def _index_by_equal_weights(word: draws.Words, size: int, t: int, s: int) -> int:
    return draws.geometric(word, t, s)


@pytest.mark.parametrize(("size", "scale"), [(6, Fraction(1, 3)), (20, Fraction(1)), (4, Fraction(1, 5))])
@pytest.mark.parametrize("right", [True, False])
def test_radii_of_small_scales_have_their_law(
    monkeypatch: pytest.MonkeyPatch, size: int, scale: Fraction, right: bool
) -> None:
    assert size > draws.FEW_KEPT * scale
    if not right:
        monkeypatch.setattr(draws, "_index", _index_by_equal_weights)
    word = draws.words(SeededSource(f"small {size}"))
    seen = Counter(draws.cube_radius(word, size, scale.numerator, scale.denominator) for _ in range(4_000))
    r, chance = cubes.radii(size, scale)
    often = chance * 4_000 >= 10
    observed = np.array([seen[int(radius)] for radius in r[often]], dtype=float)
    expected = chance[often] * 4_000
    square = float((((observed - expected) ** 2) / expected).sum())
    assert (stats.chi2.sf(square, int(often.sum()) - 1) > LEVEL) == right


def test_the_weights_of_small_scales_by_algebra() -> None:
    """The sum over r of (2r + 1)^n q^r times (1 - q)^(n + 1) has the coefficients B(n, j), at q = 1 all 2^n n!."""
    for size in range(1, 8):
        low, high = draws._ends(size, 10**9, 1, 400)  # q = 1 but for 10^-9
        assert low[-1] >> 400 <= 2**size * math.factorial(size) <= (high[-1] >> 400) + 1
        powers = [Fraction(2 * r + 1) ** size for r in range(size + 3)]
        signs = [(-1) ** i * math.comb(size + 1, i) for i in range(size + 2)]
        by_product = [sum(signs[i] * powers[j - i] for i in range(min(j, size + 1) + 1)) for j in range(size + 3)]
        ends = [0, *(end / 2.0**400 for end in low)]
        assert np.diff(ends) == pytest.approx([float(b) for b in by_product[: size + 1]], rel=1e-6)
        assert by_product[size + 1 :] == [0, 0]


def test_bounds_of_an_exponential_hold_it_and_are_near() -> None:
    with localcontext() as context:
        context.prec = 300
        for (t, s), bits in itertools.product([(1, 1), (3, 1), (1, 50), (1000, 1), (7, 123), (1, 10**6)], (64, 300)):
            low, high = draws._exp_minus_bounds(t, s, bits)
            exact = (Decimal(-s) / t).exp() * 2**bits
            assert low <= exact <= high
            assert high - low < 5


def test_no_move_within_the_norm_costs_more_than_epsilon() -> None:
    """All moves of two blocks of two and one, all outcomes: the largest log ratio is epsilon, and no more."""
    epsilon, blocks, norm = Fraction(3, 4), (2, 1), 3
    scale = float(pure_noise(norm, epsilon, blocks).parameter)
    points = np.array(list(itertools.product(range(-7, 8), repeat=3)))

    def energy(z: np.ndarray) -> np.ndarray:
        return (np.abs(z[:, :2]).max(axis=1) + np.abs(z[:, 2])) / scale

    moves = np.array([c for c in itertools.product(range(-4, 5), repeat=3) if max(map(abs, c[:2])) + abs(c[2]) <= norm])
    worst = max(float(np.abs(energy(points) - energy(points - move)).max()) for move in moves)
    assert worst == pytest.approx(float(epsilon), rel=1e-12)


@pytest.mark.parametrize(("size", "scale"), [(1, Fraction(7, 10)), (2, Fraction(2)), (3, Fraction(1))])
def test_moments_and_distribution_functions(size: int, scale: Fraction) -> None:
    law = probabilities(size, scale, 60 if size < 3 else 32)
    points, chance = np.array(list(law)), np.array(list(law.values()))
    assert cubes.variance(size, scale) == pytest.approx(float(chance @ points[:, 0] ** 2), rel=1e-5)
    assert cubes.mean_size(size, scale) == pytest.approx(float(chance @ np.abs(points[:, 0])), rel=1e-5)
    edges = np.array([-2.0, 0.0, 1.0, 3.0])
    largest = np.abs(points).max(axis=1)
    assert cubes.below(size, scale, edges) == pytest.approx([chance[points[:, 0] <= e].sum() for e in edges], abs=1e-6)
    assert cubes.below_largest(size, scale, edges[1:]) == pytest.approx(
        [chance[largest <= e].sum() for e in edges[1:]], abs=1e-6
    )
    if size > 1:
        assert abs(float(chance @ (points[:, 0] * points[:, 1]))) < 1e-9


def test_a_single_coordinate_is_laplace_noise_and_large_scales_go_on() -> None:
    assert cubes.variance(1, Fraction(5, 2)) == pytest.approx(Noise.laplace(Fraction(5, 2)).variance, rel=1e-8)
    for size in (1, 4, 60):
        before, after = cubes.variance(size, Fraction(999)), cubes.variance(size, Fraction(1001))
        assert before / 999**2 == pytest.approx(after / 1001**2, rel=1e-6)


def test_variances_are_those_of_the_blocks_in_order() -> None:
    noise = Noise("blocks", SCALE, (2, 1, 3))
    assert noise.variances.tolist() == [cubes.variance(m, SCALE) for m in (2, 2, 1, 3, 3, 3)]
    assert len(noise.sample(6)) == 6
    with pytest.raises(InternalError, match="6 coordinates"):
        noise.sample(5)
    with pytest.raises(InternalError, match="variances of their own"):
        _ = noise.variance
    for blocks in ((), (0, 2), (True,)):
        with pytest.raises(InternalError, match="blocks"):
            Noise("blocks", SCALE, blocks)
    with pytest.raises(InternalError, match="blocks"):
        Noise("laplace", SCALE, (1, 2))
