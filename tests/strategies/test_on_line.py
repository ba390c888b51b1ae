"""Ranges of many cells: weighted sums that start from hats, against those that start from blocks."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql import strategy, workload
from dpsql.strategies.choose import task
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.pure import norm_blocks, on_line, p_identity
from dpsql.strategies.pure.p_identity import Objective, optimise, row_counts, starts, weighted_tree


def test_hats_overlap_by_half_and_stay_near_their_centres() -> None:
    Theta, free = on_line.hats(96, [8, 48])
    assert Theta.shape == (12 + 2, 96)
    assert np.allclose(Theta[:12, 4:92].sum(axis=0), 1.0)
    assert np.allclose(Theta[3], Theta[4, np.r_[8:96, 0:8]])
    assert not Theta[~free].any()
    assert free[:12].sum() == 10 * 24 + 2 * 16


@pytest.mark.parametrize("W", [workload.random_ranges(700, 900, 4), workload.prefix(640)], ids=lambda W: W.name)
@pytest.mark.few("prefix(640)")
def test_hats_come_below_blocks_of_as_much_work(W) -> None:
    G = W.gram()
    objective = Objective(G, None)
    assert objective.ranges
    found, Theta = p_identity.search(objective, G, np.inf, 3.0e9)
    assert found == pytest.approx(objective(Theta.ravel())[0] * objective.unit)
    p = row_counts(G.shape[0])[1]
    others = [weighted_tree(G), starts(G.shape[0], p)[0], starts(G.shape[0], p)[1]]
    assert found < min(optimise(objective, first, np.inf, 10)[0] for first in others) * objective.unit


def test_cells_of_their_own_are_measured_alone_where_no_sum_helps() -> None:
    G = np.eye(640) * 5.0
    G[0, 1] = G[1, 0] = 0.1
    value, Theta = p_identity.search(Objective(G, None), G, np.inf, 1.0e9)
    assert value == pytest.approx(5.0 * 640)
    assert value <= 5.0 * 640
    assert not Theta.any()


def test_blocks_that_are_left_out_would_not_have_come_below() -> None:
    W = workload.random_ranges(60, 200, 1)
    (block,) = reduce_workload(W)
    least = strategy.select(W, noise="pure", method="norm-blocks").expected
    assert not norm_blocks.too_large(block, least)
    assert norm_blocks.too_large(block, least / 20)
    (few,) = reduce_workload(workload.random_ranges(40, 200, 1))
    assert not norm_blocks.too_large(few, 0.0)  # may be in several blocks


def test_over_more_cells_only_ranges_have_weighted_sums(monkeypatch) -> None:
    monkeypatch.setattr(task, "CELLS_AUTO", 100)
    ranges = workload.random_ranges(120, 150, 1)
    mixed = ranges.matrix()
    mixed[0, [0, 149]] = 1.0 - mixed[0, [0, 149]]
    for W, seen in ((ranges, True), (workload.from_matrix(mixed[:, np.r_[75:150, 0:75]]), False)):
        assert ("p-identity" in dict(strategy.select(W, noise="laplace", effort=0.01).considered)) == seen
    monkeypatch.setattr(task, "_CELLS_OF_RANGES", 100)
    again = strategy.select(workload.random_ranges(120, 150, 2), noise="laplace", effort=0.01)
    assert "p-identity" not in dict(again.considered)
