"""Workloads so wide that they are not reduced are planned as they would be if they were."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy, workload
from dpsql.strategies.choose import task
from dpsql.strategies.choose.very_wide import least_sizes
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.workload import Workload


def two_axes() -> Workload:
    """Single values of 260 and 280, and ranges of the second, in parts of one axis each."""
    ones = [sparse.csr_array(np.ones((1, n), dtype=np.int64)) for n in (260, 280)]
    first = sparse.kron(sparse.eye_array(260, dtype=np.int64, format="csr")[:100], ones[1])
    second = sparse.kron(ones[0], workload.random_ranges(12, 280, 3).span)
    rows = sparse.vstack([first, second, sparse.kron(ones[0], ones[1])])
    return Workload.from_rows(rows, np.ones(113), groups=np.repeat([0, 1, 1], [100, 12, 1]))


def test_the_sizes_of_a_sample_are_no_larger_than_those_of_all() -> None:
    W = two_axes()
    rank, cells = least_sizes(W)
    (block,) = reduce_workload(W)
    assert rank == block.rank == 113
    assert 1 < cells <= block.columns.shape[1]
    assert least_sizes(workload.random_ranges(9, 50, 1)) == (0, 0)


def test_sizes_are_not_told_of_what_falls_apart() -> None:
    apart = Workload.from_rows(sparse.kron(sparse.eye_array(2), np.ones((1, 40_000))).astype(np.int64), np.ones(2))
    assert least_sizes(apart) == (0, 0)


@pytest.mark.long
def test_what_is_very_wide_is_planned_alike_reduced_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_CELLS_ASKED", 1000)
    monkeypatch.setattr(task, "_IN_BLOCKS", 2**17)
    monkeypatch.setattr(task, "_ROOM", 2.0e6)
    W = two_axes()
    quick = strategy.select(W, "laplace")
    assert "blocks" not in W._cache
    monkeypatch.setattr(task, "least_sizes", lambda W: (0, 0))
    again = two_axes()
    slow = strategy.select(again, "laplace")
    assert "blocks" in again._cache
    assert (quick.method, quick.considered) == (slow.method, slow.considered)
