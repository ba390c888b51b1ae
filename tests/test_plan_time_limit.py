"""A plan's time limit counts from its beginning: what compiling takes is not left for the search."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import dpsql
from dpsql import plan as plan_module
from dpsql import prepare as prepare_module
from dpsql.strategy import select

POLICY = """
dataset = "limit-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 60 }
b = { lower = 0, upper = 60 }
"""
SQL = ";".join(f"SELECT COUNT_IF(a BETWEEN {i} AND {3 * i % 61} AND b > {7 * i % 61}) FROM t" for i in range(1, 15))


@pytest.fixture
def con(tmp_path) -> dpsql.Connection:
    private = duckdb.connect()
    private.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return dpsql.connect(private, policy=str(path), ledger=str(tmp_path / "ledger"))


def _limits(con, monkeypatch, limit: float, ticks: list[float]) -> tuple[Any, list[float]]:
    """The plan, and the limit that each selection was given, under a clock that shows ``ticks`` and then its last."""
    given = []

    def recorded(*args, **options):
        given.append(options["time_limit"])
        return select(*args, **{**options, "time_limit": None if options["time_limit"] is None else 1e9})

    left = list(ticks)
    monkeypatch.setattr(plan_module, "monotonic", lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(prepare_module, "select", recorded)
    return con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=limit), given


def test_compiling_counts(con, monkeypatch):
    _, given = _limits(con, monkeypatch, 10.0, [100.0, 107.0])
    assert given == [3.0]


def test_past_the_limit_the_rest_is_next_to_nothing(con, monkeypatch):
    _, given = _limits(con, monkeypatch, 10.0, [100.0, 115.0])
    assert given == [1e-9]


def test_a_limit_too_short_for_a_search_gives_a_simple_strategy_with_its_gap(con):
    plan = con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=1e-9)
    best = con.plan(SQL, epsilon=1.0, delta=1e-9)
    assert {name for name, _ in plan.strategy.considered} >= {"identity", "workload"}
    assert plan.gap > best.gap
    assert plan.error <= (1.0 + plan.gap) * best.error * (1.0 + 1e-9)
    assert f"certified within {plan.gap:.2%}" in str(plan)


def test_a_long_column_beside_sums_is_refused_with_its_size(tmp_path):
    private = duckdb.connect()
    private.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.replace("a = { lower = 0, upper = 60 }", "a = { lower = 0, upper = 75999 }"))
    con = dpsql.connect(private, policy=str(path), ledger=str(tmp_path / "ledger"))
    sql = "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT COUNT(*) FROM t; SELECT SUM(b) FROM t"
    with pytest.raises(dpsql.Error, match=r"a has 76,002 regions, at most 2,048 are planned .*: drop the column"):
        con.plan(sql, epsilon=1.0, delta=1e-9)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_no_time_at_all_is_refused(con, limit):
    with pytest.raises(dpsql.Error, match="time_limit must be above 0"):
        con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=limit)
