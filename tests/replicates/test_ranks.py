"""Ends of ranks that hold where true numbers tie."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.replicates.intervals import Spread, spread_of
from dpsql.replicates.ranks import with_ranks

TIMES, ROWS = 199, 6


def ranks(x):
    """1 and how many of the row are larger; (times x rows)."""
    return 1.0 + (x[:, None, :] > x[:, :, None]).sum(axis=2)


def of(moved, keys=(), alpha=0.05):
    """The errors of a column of whole numbers, with and without what is known of ranks."""
    there = np.ones((len(moved) - 1, moved.shape[1]), dtype=bool)
    plain = spread_of(moved[0], moved[1:], there, (), None, alpha, whole=True)
    return plain, with_ranks(plain, moved, keys, alpha)


@pytest.mark.parametrize("law", ["standard_normal", "laplace"])
def test_ties_are_covered_and_would_not_be_by_percentiles(law):
    """Of six numbers that tie, each of rank 1, over whole rounded noise, which ties now and then."""
    rng = np.random.default_rng(5)
    covered = []
    for _ in range(150):
        noise = np.rint(20 * getattr(rng, law)(size=(1 + TIMES, ROWS)))
        plain, wider = of(ranks(noise[0] + np.vstack([np.zeros(ROWS), noise[1:]])))
        covered.append([(found.low <= 1).mean() for found in (plain, wider)])
    percentiles, ends = np.mean(covered, axis=0)
    assert percentiles < 0.85
    assert ends >= 0.94


def test_ends_are_those_of_the_orders_of_pairs():
    """As worked out by hand: a is first but in 3 of 199 replicates, where b is; c is last in all of them."""
    moved = np.tile([1.0, 2.0, 3.0], (1 + TIMES, 1))
    moved[5:8] = [2.0, 1.0, 3.0]
    _, found = of(moved)  # c = 4: at most 4 of 199 replicates say nothing against an order
    assert (found.low.tolist(), found.high.tolist()) == ([1, 2, 3], [1, 2, 3])
    moved[8:10] = [2.0, 1.0, 3.0]  # and now 5
    plain, found = of(moved)
    assert (found.low.tolist(), found.high.tolist()) == ([1, 1, 3], [2, 2, 3])
    assert np.array_equal(found.stderr, plain.stderr)


def test_ranks_within_partitions_and_what_is_none():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1 + TIMES, 2, 4))
    within = np.concatenate([ranks(x[:, 0]), ranks(x[:, 1])], axis=1)
    year, place = np.repeat([2013.0, np.nan], 4), np.tile(np.arange(4.0), 2)
    apart = of(within[:, :4])[1]
    for keys in ([year, place], [place, year], [year, place, np.arange(8.0)]):
        assert np.array_equal(of(within, keys)[1].low[:4], apart.low)
    for other in (within, within**2, np.minimum(within, 2)):  # without its key; no ranks; DENSE_RANK of ties
        plain, found = of(other, [place])
        assert found is plain
    gone = ranks(x[:, 0])
    gone[3, 0] = np.nan
    spread = Spread(*np.zeros((3, 4)))
    assert with_ranks(spread, gone, [], 0.05) is spread
    assert of(np.ones((1 + TIMES, ROWS)))[1].high.tolist() == [1.0] * ROWS  # the same in all: no ties by noise
