"""Pure plans at a large epsilon: small integers, whose geometric noise has less variance than 2 / epsilon^2."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pytest

import dpsql

POLICY = """
dataset = "fine-1"
[budget]
epsilon = 100.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 11 }
"""
RANGES = "; ".join(f"SELECT COUNT_IF(a BETWEEN {low} AND {low + 6}) AS n FROM t" for low in range(6))


@pytest.fixture
def con(tmp_path):
    (tmp_path / "policy.toml").write_text(POLICY)
    held = duckdb.connect()
    held.execute("CREATE TABLE t AS SELECT range % 12 AS a FROM range(100)")
    return dpsql.connect(held, policy=tmp_path / "policy.toml", ledger=tmp_path / "l", releases=tmp_path / "r.duckdb")


@pytest.mark.parametrize("epsilon", [2, 4])
def test_counts_have_geometric_noise(con, epsilon):
    plan = con.plan("SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=epsilon)
    assert plan.noise.parameter == pytest.approx(1 / epsilon)
    errors = np.unique(np.asarray(plan.stderr["q1"]).round(12))
    assert errors.tolist() == pytest.approx([1 / (math.sqrt(2) * math.sinh(epsilon / 2))], rel=1e-9)
    assert errors[0] ** 2 < (0.73 if epsilon == 2 else 0.31) * 2 / epsilon**2


def total(plan):
    return sum(float(np.sum(np.square(values))) for values in plan.stderr.values())


def test_small_integers_win_where_epsilon_is_large(con, monkeypatch):
    """The same batch at a small epsilon keeps its weights; at a large one it is measured by whole cells."""
    small = con.plan(RANGES, epsilon=0.5, objective="total")
    large = con.plan(RANGES, epsilon=6, objective="total")
    monkeypatch.setattr("dpsql.planning.plan.finest", lambda prepared, charge, found, options: found)
    without = con.plan(f"{RANGES} ", epsilon=6, objective="total")  # another text, as the same is planned once
    assert without.strategy.method == small.strategy.method != large.strategy.method
    assert total(large) < 0.75 * total(without)
    assert {name for name, _ in without.strategy.considered} <= {name for name, _ in large.strategy.considered}
