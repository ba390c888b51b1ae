"""Whatever a strategy keeps, it answers the protocol: against B and R written out, or in closed form beyond that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.marginals.marginal_strategy import block_strategy, residual_strategy

SMALL = workload.marginals((2, 3, 4), sets=[(0, 1), (1, 2), (2,), ()], weights=[1.0, 3.0, 0.5, 2.0])
MADE = {
    "gaussian": lambda: strategy.select(workload.all_range(12)),
    "laplace": lambda: strategy.select(workload.prefix(9), "laplace"),
    "max": lambda: strategy.select(workload.all_range(8), objective="max"),
    "residuals": lambda: residual_strategy(SMALL),
    "blocks": lambda: block_strategy(SMALL),
}


@pytest.mark.parametrize("name", MADE)
def test_every_method_against_dense_algebra(name: str) -> None:
    S = MADE[name]()
    assert isinstance(S, strategy.Strategy)
    W, B = S.planned, S.matrix()
    R = S.reconstruction(W)
    R = R.toarray() if hasattr(R, "toarray") else np.asarray(R)
    assert np.allclose(R @ B, W.matrix())
    assert np.allclose(R, W.matrix() @ np.linalg.pinv(B))
    norms = np.sqrt((B * B).sum(axis=0)) if S.noise == "gaussian" else np.abs(B).sum(axis=0)
    assert S.sensitivity == pytest.approx(norms.max())
    squares = S.sensitivity**2 * (R * R).sum(axis=1)
    assert S.variances(W) == pytest.approx(squares)
    assert S.error(W) == pytest.approx(squares.sum())
    assert S.largest(W) == pytest.approx(squares.max())
    assert S.value == pytest.approx(squares.max() if S.objective == "max" else squares.sum())
    assert S.expected == pytest.approx(squares.sum())
    assert S.shape == B.shape
    assert S.independent >= np.linalg.matrix_rank(B)
    assert S.singular_bound(bounds.svd_bound) == bounds.svd_bound(W)
    if S.noise == "gaussian":
        assert S.lower_bound is not None
        gap = None if S.objective == "max" else pytest.approx(S.value / S.lower_bound - 1.0, abs=1e-12)
        assert S.gap == gap
    else:
        assert (S.gap, S.lower_bound) == (None, None)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.few("laplace")
def test_marginals_over_ten_to_the_33_cells(noise: str) -> None:
    """Every method works without a cell, and a measurement without noise gives the tables back."""
    W = workload.marginals([7] * 40, order=2) if noise == "gaussian" else workload.marginals([7] * 40, order=1)
    S = strategy.select(W, noise)
    assert isinstance(S, strategy.Strategy)
    assert S.error(W) == S.value == S.expected
    assert S.variances(W).sum() == pytest.approx(S.expected)
    assert S.largest(W) == pytest.approx(S.variances(W).max())
    assert S.shape[1] == 7**40
    if noise == "gaussian":
        # All pairs of k attributes of d values: c_T of Li and Miklau 2013, Thm 5.5, by hand.
        k, d = 40, 7
        c = [k * (k - 1) / 2 / d**2, (k - 1) * (d - 1) / d, (d - 1) ** 2]
        p = [1.0, (d - 1) / d, ((d - 1) / d) ** 2]
        least = (np.sqrt(c[0] * p[0]) + k * np.sqrt(c[1] * p[1]) + k * (k - 1) / 2 * np.sqrt(c[2] * p[2])) ** 2
        assert S.lower_bound == pytest.approx(least)
        assert 0 <= S.gap <= 1e-3
        assert S.expected == pytest.approx((1 + S.gap) * S.lower_bound)
        assert S.sensitivity**2 == pytest.approx(S.l2_squared)
        with pytest.raises(DataError, match="entries"):
            S.reconstruction(W)
    else:
        assert S.gap is None
        assert S.sensitivity == S.l1
    few = workload.marginals([7] * 40, sets=[W.sets[0], W.sets[3]])
    R = S.reconstruction(few)
    assert R.shape == (few.shape[0], S.shape[0])
    assert S.variances(few) == pytest.approx(S.sensitivity**2 * (R * R).sum(axis=1))
    assert S.error(few) == pytest.approx(S.variances(few).sum())
    assert S.error(workload.marginals([7] * 40, sets=[W.sets[0], (1, 2, 3)])) == float("inf")
    rows = np.random.default_rng(0).integers(0, 7, size=(500, 40))
    tables = {}
    for T in S.maximal:
        table = np.zeros((7,) * len(T), dtype=np.int64)
        np.add.at(table, tuple(rows[:, i] for i in T), 1)
        tables[T] = table
    y = S.integers(tables)
    assert len(y) == S.measured.shape[0] == S.shape[0]
    found = S.solve(y)
    assert set(found) == set(W.sets)
    first = W.sets[0]
    assert np.allclose(found[first].ravel(), R[: 7 ** len(first)] @ np.array(y, dtype=float))
    for T in W.sets:
        direct = np.zeros((7,) * len(T))
        np.add.at(direct, tuple(rows[:, i] for i in T), 1.0)
        assert np.allclose(found[T], direct, atol=1e-6)
    with pytest.raises(DataError, match="measured"):
        S.matrix()
    with pytest.raises(DataError, match="sizes"):
        S.error(workload.marginals([7] * 39, order=1))
    assert 0 < strategy.select(W, noise, objective="max").value <= S.largest(W) * (1 + 1e-3)


PLANNED = """
import sys, duckdb, dpsql
from dpsql import strategy, workload
strategy.select(workload.all_range(8), "laplace")
database = duckdb.connect()
database.execute("CREATE TABLE t AS SELECT range % 5 AS a FROM range(100)")
lines = ['dataset = "p"', "[budget]", "epsilon = 2", "[tables.t]", 'unit = "row"', "[tables.t.columns]"]
policy = dpsql.Policy.parse("\\n".join([*lines, "a = { lower = 0, upper = 4, nulls = false }"]))
with dpsql.connect(database, policy=policy, ledger="ledger") as con:
    con.run("SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=0.5)
rooms = ("dpsql.extensions.papers.", "dpsql.extensions.adaptive.")
loaded = [name for name in sys.modules if name.startswith(rooms)]
assert not loaded, loaded
strategy.select(workload.all_range(8), "laplace", "haar")
assert "dpsql.extensions.papers.haar" in sys.modules
"""


def test_planning_a_batch_imports_no_published_method(tmp_path: Path) -> None:
    """Methods that nothing selects, and MWEM, are imported where they are named."""
    subprocess.run([sys.executable, "-c", PLANNED], check=True, cwd=tmp_path)
