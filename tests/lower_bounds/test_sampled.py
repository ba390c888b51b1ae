"""The bound of a sample of columns: below the optimum, near it, and enough to end a search that cannot win."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest
from scipy import sparse

import dpsql
from dpsql import strategy, workload
from dpsql.lower_bounds.sampled import sampled_bound
from dpsql.workload import Workload

POLICY = """
dataset = "d"
[budget]
epsilon = 4
delta = 1e-9
pure_epsilon = 1
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 99, nulls = false }
b = { lower = 0, upper = 99, nulls = false }
c = { lower = 0, upper = 99, nulls = false }
"""
BATCH = "; ".join(
    [f"SELECT count(*) AS n FROM t WHERE b <= {i}" for i in range(10)]
    + [f"SELECT count(*) AS n FROM t WHERE c <= {i}" for i in range(10)]
    + ["SELECT a, count(*) AS n FROM t GROUP BY a"]
)


def two_axes(moves: bool = False) -> Workload:
    """Ranges and single cells over 97 x 101 cells, half of the cells moved together with another where asked."""
    first, second = workload.random_ranges(14, 97, 1).span, workload.random_ranges(9, 101, 2).span
    ones = [sparse.csr_array(np.ones((1, n), dtype=np.int64)) for n in (97, 101)]
    rows = sparse.vstack([sparse.kron(first, ones[1]), sparse.kron(ones[0], second), sparse.kron(ones[0], ones[1])])
    n = rows.shape[1]
    pairs = sparse.eye_array(n, dtype=np.int64) + sparse.eye_array(n, k=5000, dtype=np.int64)
    return Workload.from_rows(rows, np.linspace(1, 3, rows.shape[0]), contributions=pairs if moves else None)


@pytest.mark.parametrize("moves", [False, True])
def test_a_sample_bounds_the_optimum_from_below_and_nearly_reaches_it(moves: bool) -> None:
    W = two_axes(moves)
    best = strategy.select(W, tolerance=1e-3)
    assert best.lower_bound is not None
    assert 0.9 * best.lower_bound <= sampled_bound(W) <= best.lower_bound * (1 + 1e-3)


@pytest.mark.parametrize("moves", [False, True])
def test_equal_weights_bound_batches_of_large_rank(moves: bool) -> None:
    W = workload.random_ranges(300, 400, 1)
    if moves:
        pairs = sparse.eye_array(400, dtype=np.int64) + sparse.eye_array(400, k=200, dtype=np.int64)
        W = Workload.from_rows(W.span, np.ones(W.shape[0]), contributions=pairs)
    best = strategy.select(W, tolerance=1e-3)
    assert best.lower_bound is not None
    assert 0.9 * best.lower_bound <= sampled_bound(W) <= best.lower_bound * (1 + 1e-3)


def test_small_batches_have_no_bound_of_their_own() -> None:
    assert sampled_bound(workload.random_ranges(5, 100, 1)) == 0.0


@pytest.mark.long
def test_gaussian_noise_that_cannot_win_is_bounded_and_searched_where_it_alone_can_pay(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "d.duckdb")) as made:
        made.execute(
            "CREATE TABLE t AS SELECT (i % 100)::INTEGER AS a, 1::INTEGER AS b, 2::INTEGER AS c FROM range(9) r(i)"
        )
    (tmp_path / "p.toml").write_text(POLICY)
    con = dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml")
    plan = con.plan(BATCH, 1, 1e-9)
    (other,) = plan.alternatives
    assert (plan.noise.kind, other.charge.noise, other.at_least) == ("laplace", "gaussian", True)
    assert f"at least {(other.error / plan.error) ** 0.5:.2f} times the error" in " ".join(str(plan).split())
    con.run("SELECT count(*) AS n FROM t", 0.5)
    searched = con.plan(BATCH, 1, 1e-9)
    assert searched.noise.kind == "gaussian"
    assert 0.9 * searched.error < other.error <= searched.error
