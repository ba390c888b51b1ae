"""Strategies over boxes against those over all their columns, and the limits of their search."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from scipy import sparse

import dpsql
from dpsql import strategy
from dpsql.errors import DataError
from dpsql.linalg.norms import column_norms
from dpsql.strategies.many_cells.box_strategy import BoxStrategy, Effort, box_strategy
from dpsql.workload import Workload
from dpsql.workloads.cells import merging as cells_module
from dpsql.workloads.cells.boxes import Boxes, BoxWorkload
from dpsql.workloads.compile import histograms as histograms_module


def _boxes(m=24, states=60, regions=30, seed=0) -> Boxes:
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(0, regions, size=(m, 2)), axis=1)
    at = np.arange(regions)
    holds = (ends[:, :1] <= at) & (at <= ends[:, 1:])
    return Boxes((), (), rng.random((m, states)) < 0.3, holds)


def _over(boxes: Boxes, scale=None) -> BoxWorkload:
    m = len(boxes)
    rows = sparse.csr_array(np.eye(m, dtype=np.int64))
    return BoxWorkload.over(boxes, rows, np.ones(m) if scale is None else scale, np.zeros(m, dtype=np.int64))


def _listed(boxes: Boxes, scale=None) -> Workload:
    columns = boxes.columns(np.arange(boxes.pairs))
    return Workload.from_rows(sparse.csr_array(columns), np.ones(len(boxes)) if scale is None else scale)


def _silent(_: str) -> None:
    return None


@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum_is_that_over_all_columns(weighted):
    boxes = _boxes()
    scale = np.linspace(1.0, 3.0, len(boxes)) if weighted else None
    W = _over(boxes, scale)
    S = strategy.select(W, tolerance=2e-3)
    listed = strategy.select(_listed(boxes, scale), tolerance=1e-4)
    assert isinstance(S, BoxStrategy)
    assert S.method == "optimal"
    assert S.gap <= 2e-3
    assert S.lower_bound <= listed.expected
    assert listed.lower_bound <= S.expected * (1 + 1e-9)
    # Sensitivity and error once more, from all columns.
    B = np.asarray(S.mixing @ S.basis.toarray())
    l1, l2 = column_norms(B, boxes.columns(np.arange(boxes.pairs)))
    assert S.l2_squared == l2
    assert S.l1 >= l1
    answers = np.diag(W.inner.scale) @ W.span.toarray() @ np.linalg.inv(B.astype(float))
    assert S.expected == pytest.approx(l2 * (answers**2).sum(), rel=1e-6)
    assert S.reconstruction(W) @ B == pytest.approx(np.diag(W.inner.scale), abs=1e-8)


def test_blocks_that_depend_on_each_other():
    boxes = _boxes(m=12)
    both = np.vstack([boxes.alive, boxes.alive[:3]])
    # Blocks 0 to 2 are cut in two along the last axis; the halves add up to them.
    half = np.arange(30) < 15
    holds = np.vstack([boxes.holds, boxes.holds[:3] & half])
    holds = np.vstack([holds, boxes.holds[:3] & ~half])
    boxes = Boxes((), (), np.vstack([both, boxes.alive[:3]]), holds)
    S = strategy.select(_over(boxes), tolerance=5e-3)
    listed = strategy.select(_listed(boxes), tolerance=1e-4)
    assert S.gap <= 1e-2
    assert listed.lower_bound <= S.expected * (1 + 1e-9)
    assert S.lower_bound <= listed.expected
    _, l2 = column_norms(np.asarray(S.mixing @ S.basis.toarray()), boxes.columns(np.arange(boxes.pairs)))
    assert S.l2_squared == l2


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_every_block_alone(noise):
    boxes = _boxes()
    S = strategy.select(_over(boxes), noise, method="workload")
    depth = int(boxes.sets(np.arange(boxes.pairs)).sum(axis=0).max())
    assert (S.method, S.l1, S.l2_squared) == ("workload", depth, depth)
    assert S.expected == pytest.approx(len(boxes) * (depth if noise == "gaussian" else depth**2))
    assert (S.gap is None) == (noise == "laplace")
    assert strategy.select(_over(boxes), "laplace").method == "workload"


def test_combinations_of_blocks():
    boxes = _boxes(m=10)
    rows = sparse.csr_array(np.array([[1, -1] + [0] * 8, [0, 0, 2, 1] + [0] * 6, [0] * 4 + [1] * 6], dtype=np.int64))
    W = BoxWorkload.over(boxes, rows, np.array([1.0, 0.5, 2.0]), np.zeros(3, dtype=np.int64))
    S = strategy.select(W, tolerance=5e-3)
    columns = rows @ boxes.columns(np.arange(boxes.pairs))
    listed = strategy.select(Workload.from_rows(sparse.csr_array(columns), [1.0, 0.5, 2.0]), tolerance=1e-4)
    assert S.shape[0] == 3
    assert listed.lower_bound * (1 - 1e-9) <= S.expected <= listed.expected * (1 + 6e-3)
    assert S.lower_bound <= listed.expected


class Clock:
    """A clock that goes on by one at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_limit_ends_the_search_with_an_honest_gap():
    boxes = _boxes(m=40, states=300, regions=60, seed=2)
    W = _over(boxes)
    looks, errors = [], []
    for limit in (0.0, 30.0, 1e9):
        clock = Clock()
        S = box_strategy(W, "gaussian", "auto", Effort(1e-3, limit, _silent, clock))
        looks.append(clock.now)
        errors.append(S.expected)
        B = np.asarray(S.mixing @ S.basis.toarray())
        assert S.l2_squared == column_norms(B, boxes.columns(np.arange(boxes.pairs)))[1]
        assert S.gap == pytest.approx(S.expected / S.lower_bound - 1.0)
    least = strategy.select(_listed(boxes), tolerance=1e-3)
    assert errors[0] >= errors[1] >= errors[2] >= least.lower_bound
    assert errors[0] == W.shape[0] * boxes.norms(np.eye(40, dtype=np.int64))[1]  # no time: every block alone
    assert looks[1] <= 30.0 + 15.0  # what follows the search looks no more than a few times


def test_work_ends_a_search_without_a_limit():
    W = _over(_boxes(m=40, states=300, regions=60, seed=2))
    said: list[str] = []
    S = box_strategy(W, "gaussian", "auto", Effort(1e-6, np.inf, said.append, work=1.0))
    assert S.gap > 1e-6
    assert sum("round" in line for line in said) <= 1
    again = box_strategy(W, "gaussian", "auto", Effort(1e-6, np.inf, _silent, work=1.0))
    assert np.array_equal(S.mixing, again.mixing)  # counted in work, not in time: the same every time


def test_what_is_not_planned_over_boxes_is_refused():
    W = _over(_boxes())
    with pytest.raises(DataError, match="p-identity is not planned over 1,800 sets of rows"):
        strategy.select(W, method="p-identity")
    with pytest.raises(DataError, match="optimal is not planned"):
        strategy.select(W, "laplace", method="optimal")
    with pytest.raises(DataError, match="the largest error is not planned over 1,800 sets of rows"):
        strategy.select(W, objective="max")


POLICY = """
dataset = "boxes-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.t]
unit = "row"
expected_rows = 600
[tables.t.columns]
a = { lower = 0, upper = 30 }
b = { lower = 0, upper = 30 }
c = { lower = 0, upper = 30 }
"""


def _connection(tmp_path, name) -> dpsql.Connection:
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT CAST(i % 31 AS INTEGER) a, CAST(i * 7 % 31 AS INTEGER) b, "
                "CAST(i * 11 % 31 AS INTEGER) c FROM range(600) r(i)")  # fmt: skip
    path = tmp_path / f"{name}.toml"
    path.write_text(POLICY)
    return dpsql.connect(con, policy=str(path), ledger=str(tmp_path / f"{name}.ledger"))


def _sql(number: int) -> str:
    rng = np.random.default_rng(5)
    found = []
    for i in range(number):
        ends = [sorted(rng.integers(0, 31, size=2).tolist()) for _ in "abc"]
        parts = [f"{column} BETWEEN {low} AND {high}" for column, (low, high) in zip("abc", ends, strict=True)]
        found.append(f"COUNT_IF({' AND '.join(parts)}) AS n{i}")
    return f"SELECT {', '.join(found)} FROM t"


def test_a_plan_over_boxes_is_that_over_cells_and_runs(tmp_path, monkeypatch):
    sql = _sql(30)
    cells = _connection(tmp_path, "cells").plan(sql, epsilon=1.0, delta=1e-9)
    monkeypatch.setattr(cells_module, "BOXES_FROM", 10)
    monkeypatch.setattr(histograms_module, "MAX_HISTOGRAM", 100)
    con = _connection(tmp_path, "boxes")
    plan = con.plan(sql, epsilon=1.0, delta=1e-9)
    assert isinstance(plan.strategy, BoxStrategy)
    assert plan.gap <= 1e-3
    assert plan.error == pytest.approx(cells.error, rel=2e-3)
    assert plan.sensitivity == plan.strategy.l2_squared
    release = con.run(plan)
    held = con.sql("SELECT * FROM q1").fetchall()[0]
    assert len(release.views) == 1
    exact = np.array(duckdb.connect().execute(
        "WITH t AS (SELECT CAST(i % 31 AS INTEGER) a, CAST(i * 7 % 31 AS INTEGER) b, CAST(i * 11 % 31 AS INTEGER) c "
        "FROM range(600) r(i)) " + sql).fetchone(), dtype=float)  # fmt: skip
    noisy = np.array(held[0 : 4 * len(exact) : 4], dtype=float)
    # Twelve standard errors: further away by chance once in 10^30 numbers.
    assert np.all(np.abs(noisy - exact) <= 12.0 * plan.stderr["q1"].ravel())
