"""The norm of 0/1 patterns: its two properties by brute force, its law by enumeration, and its figures."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from dpsql.common.pattern_block import PatternBlock, decoded, encoded, law_of, sizes_of
from dpsql.errors import InternalError

SMALL = [(2, 2), (3, 2), (3, 3), (4, 2), (4, 3)]


def patterns(m: int, limit: int) -> list[tuple[int, ...]]:
    """c and -c for every 0/1 vector c with 1 to ``limit`` ones."""
    ones = [c for c in itertools.product((0, 1), repeat=m) if 1 <= sum(c) <= limit]
    return [tuple(sign * x for x in c) for c in ones for sign in (1, -1)]


def level(z: tuple[int, ...], limit: int) -> int:
    """n(z)."""
    sides = [x for x in z if x > 0], [-x for x in z if x < 0]
    return sum(max(max(side, default=0), sum(side) // limit) for side in sides)


def steps(m: int, limit: int, most: int) -> dict[tuple[int, ...], int]:
    """The least number of patterns that add up to each vector, of those that at most ``most`` do: breadth first."""
    found, edge = {(0,) * m: 0}, [(0,) * m]
    for number in range(1, most + 1):
        reached = {tuple(a + b for a, b in zip(z, c, strict=True)) for z in edge for c in patterns(m, limit)}
        edge = [z for z in reached if z not in found]
        found |= dict.fromkeys(edge, number)
    return found


def points(m: int, reach: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(range(-reach, reach + 1), repeat=m)


@pytest.mark.parametrize(("m", "limit"), SMALL)
def test_a_change_takes_as_many_patterns_as_its_size(m: int, limit: int) -> None:
    found = steps(m, limit, 3)
    changes = np.array(list(found), dtype=object).T
    assert sizes_of(changes, limit).tolist() == list(found.values())
    outside = [z for z in points(m, 2) if z not in found]
    if outside:
        assert min(sizes_of(np.array(outside, dtype=object).T, limit)) > 3


@pytest.mark.parametrize(("m", "limit"), SMALL)
@pytest.mark.few("3-2", "3-3", "4-2")
def test_no_pattern_changes_the_level_by_more_than_one(m: int, limit: int) -> None:
    for z in points(m, 4 if m < 4 else 3):
        moved = [tuple(a + b for a, b in zip(z, c, strict=True)) for c in patterns(m, limit)]
        assert max(abs(level(other, limit) - level(z, limit)) for other in moved) <= 1


def test_a_pattern_of_one_more_changes_it_by_two() -> None:
    assert level((0, 0, 0), 1) == 0
    assert level((1, 1, 0), 1) == 2


@pytest.mark.parametrize(("m", "limit", "reach"), [(2, 2, 160), (3, 2, 80), (3, 3, 80)])
@pytest.mark.few("2-2-160", "3-3-80")
def test_moments_are_those_of_the_integers(m: int, limit: int, reach: int) -> None:
    scale, law = 5.0, law_of(PatternBlock(m, limit))
    z = np.meshgrid(*[np.arange(-reach, reach + 1)] * m, indexing="ij")
    sides = [np.array([np.maximum(sign * one, 0) for one in z]) for sign in (1, -1)]
    levels = sum(np.maximum(side.max(axis=0), side.sum(axis=0) // limit) for side in sides)
    chance = np.exp(-levels / scale)
    chance /= chance.sum()
    assert (chance * z[0] ** 2).sum() == pytest.approx(law.variance * scale**2, rel=4e-3)
    assert (chance * z[0] * z[1]).sum() == pytest.approx(law.covariance * scale**2, rel=2e-2, abs=0.7)
    for k in (3, 8, 15):
        beyond = chance[np.abs(z[0]) > k].sum()
        assert beyond == pytest.approx(law.beyond((k + 0.5) / scale), rel=2e-2)


@pytest.mark.parametrize(
    ("m", "limit", "total"),
    [
        (2, 2, 10 / 3),
        (4, 4, 14.0),
        (12, 12, 210.0),
        (13, 13, 260.0),
        (50, 50, 34450 / 3),
        (12, 3, 80.516),
        (50, 10, 3776.63),
        (50, 25, 10642.0),
    ],
)
def test_total_variance(m: int, limit: int, total: float) -> None:
    """In units of 2 b^2: m (m + 2)(m + 3) / 12 where the limit is m, else by the volumes of the bodies."""
    law = law_of(PatternBlock(m, limit))
    assert m * law.variance / 2 == pytest.approx(total, rel=1e-5)
    assert law.shapes.sum() == pytest.approx(1.0)
    assert 0 <= law.covariance <= law.variance
    assert law.beyond(law.quantile(0.05)) == pytest.approx(0.05)


def test_a_block_is_no_number_but_counts_as_its_size() -> None:
    block = PatternBlock(5, 2)
    assert sum((block, 3)) == 8
    assert block != 5
    assert block == PatternBlock(5, 2) != PatternBlock(5, 3)
    assert (1, 5).count(5) == 1
    assert (1, block).count(5) == 0
    assert len({block, 5, PatternBlock(5, 2)}) == 2
    assert pickle.loads(pickle.dumps(block)) == block
    assert [decoded(one) for one in json.loads(json.dumps([encoded(block), encoded(7)]))] == [block, 7]


@pytest.mark.parametrize("wrong", [[5, 6], [5, 1], [5, 2, 1], "5", [1000, 3], None, [3.0, 2.0], [True, True]])
def test_what_is_no_block_is_not_read(wrong: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        decoded(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "limit"), [(3, 4), (3, 1), (1, 1), (True, True), (10_000, 2)])
def test_what_is_no_block_is_not_made(size: int, limit: int) -> None:
    with pytest.raises(InternalError):
        PatternBlock(size, limit)


@pytest.mark.parametrize(("size", "limit"), [(256, 2), (220, 3), (256, 30), (256, 256)])
@pytest.mark.long
def test_the_law_of_large_blocks_is_finite(size: int, limit: int) -> None:
    """Of 220 numbers one order in 10^318 has fewer than three descents, which no float holds."""
    law = law_of(PatternBlock(size, limit))
    assert np.isfinite(law.shapes).all()
    assert law.shapes.sum() == pytest.approx(1.0)
    assert abs(law.covariance) < law.variance
