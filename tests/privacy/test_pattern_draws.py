"""Noise for 0/1 patterns: its probabilities one by one, its privacy, and samplers that are nearly right."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from seeded_source import SeededSource
from test_cubes import p_value

from dpsql.common.pattern_block import PatternBlock, law_of
from dpsql.errors import DataError, InternalError
from dpsql.privacy import draws, pattern_draws
from dpsql.privacy.noise import Noise, pure_noise, sample_from

LEVEL = 1e-6
SCALE = Fraction(3, 2)


def level(z: tuple[int, ...], limit: int) -> int:
    sides = [x for x in z if x > 0], [-x for x in z if x < 0]
    return sum(max(max(side, default=0), sum(side) // limit) for side in sides)


def grid(size: int, limit: int, reach: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All z (size x points) of the cube of that reach, which holds nearly all of the noise, n(z) and P(z)."""
    axis = np.arange(-reach, reach + 1)
    z = np.array(np.meshgrid(*[axis] * size, indexing="ij")).reshape(size, -1)
    sides = np.maximum(z, 0), np.maximum(-z, 0)
    levels = sum(np.maximum(side.max(axis=0), side.sum(axis=0) // limit) for side in sides)
    chance = np.exp(-levels / 1.5)
    return z, levels, chance / chance.sum()


def probabilities(size: int, limit: int, reach: int) -> dict[tuple[int, ...], float]:
    """P(z) of the likely z."""
    z, _, chance = grid(size, limit, reach)
    likely = np.flatnonzero(chance > 1e-3)
    return dict(zip(map(tuple, z[:, likely].T.tolist()), chance[likely].tolist(), strict=True))


def seen_of(z: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """What little of z tells wrong samplers: its level, a sign, and how many entries are positive and are 0."""
    return min(level(z, limit), 16), int(np.sign(z[0])), sum(x > 0 for x in z), z.count(0)


def chances_of_seen(size: int, limit: int, reach: int) -> dict[tuple[int, ...], float]:
    z, levels, chance = grid(size, limit, reach)
    parts = np.stack([np.minimum(levels, 16), np.sign(z[0]), (z > 0).sum(axis=0), (z == 0).sum(axis=0)])
    values, which = np.unique(parts, axis=1, return_inverse=True)
    return dict(zip(map(tuple, values.T.tolist()), np.bincount(which.ravel(), chance).tolist(), strict=True))


def drawn(size: int, limit: int, count: int, seed: str) -> list[tuple[int, ...]]:
    block = PatternBlock(size, limit)
    held = sample_from(Noise("blocks", SCALE, (block,) * count), size * count, SeededSource(seed))
    return [tuple(held[at : at + size]) for at in range(0, len(held), size)]


@pytest.mark.parametrize(("size", "limit", "reach"), [(2, 2, 40), (3, 2, 30), (3, 3, 30)])
@pytest.mark.few(every=2)
def test_every_point_has_its_probability(size: int, limit: int, reach: int) -> None:
    assert p_value(drawn(size, limit, 8_000, "points"), probabilities(size, limit, reach)) > LEVEL


def any_order(word: draws.Words, size: int, limit: int) -> list[int]:
    """A permutation with any number of descents: the limit is lost."""
    return RIGHT(word, size, max(size, 1))


def never_steep(ranks: list[int]) -> int:
    """The letters of equal ranks are never told apart: words are met more than once."""
    return 0


def one_less(word: draws.Words, ranks: list[int], t: int, s: int) -> list[int]:
    """Entries above 1 are one less: too little noise."""
    held = SIDE(word, ranks, t, s)
    return held if len(held) < 2 else [x - (x > 1) for x in held]


def in_order(word: draws.Words, first: list[int], second: list[int]) -> list[int]:
    """The signs are no uniform set."""
    return [*first, *second]


RIGHT, SIDE = pattern_draws.permutation, pattern_draws.side


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("permutation", any_order), ("inverse_descents", never_steep), ("side", one_less), ("_placed", in_order)],
)
@pytest.mark.few(every=4)
def test_a_nearly_right_sampler_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, mutant: object) -> None:
    wanted = chances_of_seen(4, 2, 14)
    assert p_value([seen_of(z, 2) for z in drawn(4, 2, 4_000, "right")], wanted) > LEVEL
    monkeypatch.setattr(pattern_draws, name, mutant)
    assert p_value([seen_of(z, 2) for z in drawn(4, 2, 4_000, "mutant")], wanted) < LEVEL


@pytest.mark.parametrize("scale", [Fraction(7, 5), SCALE, Fraction(8, 5)])
@pytest.mark.few(every=2)
def test_a_nearly_right_scale_is_caught(monkeypatch: pytest.MonkeyPatch, scale: Fraction) -> None:
    _, levels, chance = grid(3, 2, 40)
    law = {(k,): float(share) for k, share in enumerate(np.bincount(levels, chance))}
    monkeypatch.setattr(f"{__name__}.SCALE", scale)
    found = p_value([(level(z, 2),) for z in drawn(3, 2, 4_000, "scale")], law)
    assert (found > LEVEL) == (scale == Fraction(3, 2))


@pytest.mark.parametrize(("size", "limit"), [(1, 3), (4, 1), (4, 2), (5, 3), (5, 5)])
def test_permutations_are_uniform(size: int, limit: int) -> None:
    word = draws.words(SeededSource("permutations"))
    allowed = [
        p for p in itertools.permutations(range(1, size + 1)) if sum(b < a for a, b in itertools.pairwise(p)) < limit
    ]
    count = 60 * len(allowed)
    seen = Counter(tuple(pattern_draws.permutation(word, size, limit)) for _ in range(count))
    assert set(seen) <= set(allowed)
    assert stats.chisquare([seen[p] for p in allowed]).pvalue > LEVEL or len(allowed) == 1


@pytest.mark.parametrize(("size", "limit"), [(2, 2), (3, 2), (4, 3)])
def test_no_unit_changes_a_probability_by_more_than_epsilon(size: int, limit: int) -> None:
    """Exactly epsilon is lost at some point, so that the charge is not too large either."""
    losses = []
    for z in itertools.product(range(-3, 4), repeat=size):
        for c in itertools.product((0, 1), repeat=size):
            if sum(c) <= limit:
                losses.append(level(tuple(np.add(z, c)), limit) - level(z, limit))
    assert max(losses) == 1
    assert min(losses) == -1


def test_variances_are_as_drawn_at_a_large_scale() -> None:
    block, scale = PatternBlock(6, 2), Fraction(4000)
    noise = Noise("blocks", scale, (block, 1, block))
    held = np.array([sample_from(noise, 13, SeededSource(f"large {i}")) for i in range(600)], dtype=float)
    z = np.concatenate([held[:, :6], held[:, 7:]]) / float(scale)
    law = law_of(block)
    assert z.var() == pytest.approx(law.variance, rel=0.08)
    assert (z.sum(axis=1) ** 2).mean() == pytest.approx(6 * law.variance + 30 * law.covariance, rel=0.15)
    assert (np.abs(z) > law.quantile(0.05)).mean() == pytest.approx(0.05, abs=0.012)
    assert noise.variances[0] == pytest.approx(law.variance * 4000.0**2, rel=1e-3)
    assert noise.variances[0] > law.variance * 4000.0**2


def test_the_scale_is_that_of_the_sensitivity() -> None:
    noise = pure_noise(64, Fraction(1, 2), (PatternBlock(3, 2),))
    assert noise.parameter == 128
    assert noise.kind == "blocks"


def test_only_whole_blocks_are_drawn() -> None:
    with pytest.raises(InternalError):
        sample_from(Noise("blocks", SCALE, (PatternBlock(3, 2),)), 4, SeededSource("short"))


@pytest.mark.parametrize("block", [PatternBlock(60, 30), 500])
def test_a_draw_that_would_hardly_be_kept_is_refused_beforehand(block: int) -> None:
    assert pure_noise(int(block), Fraction(1), (block,)).sample(int(block))
    with pytest.raises(DataError, match="drawn by rejection, which takes too long at so large an epsilon"):
        pure_noise(2, Fraction(1), (block,))
