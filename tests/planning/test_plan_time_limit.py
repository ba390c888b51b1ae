"""A plan's time limit counts from its beginning: what compiling takes is not left for the search."""

from __future__ import annotations

import math
import re
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import unwrapped

import dpsql
from dpsql.linalg import basis
from dpsql.planning import plan as plan_module
from dpsql.planning import prepare as prepare_module
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Planner
from dpsql.strategies.choose import by_source
from dpsql.strategies.choose.task import Task
from dpsql.strategies.core import reduce, simple, symmetric, time_left
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.strategies.kronecker import shared_rows
from dpsql.strategy import select
from dpsql.workloads.cells import merging as cells
from dpsql.workloads.compile import choice
from dpsql.workloads.compile import compiled as compile_module
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.expr import deadline

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
    monkeypatch.setattr(deadline, "monotonic", lambda: 0.0)
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
    assert f"has squared errors more than {100 * plan.gap:.2f} % smaller" in unwrapped(plan)


@pytest.mark.long
def test_a_long_column_beside_sums_is_planned_by_value_and_refused_by_ranges_with_its_size(tmp_path):
    private = duckdb.connect()
    private.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.replace("a = { lower = 0, upper = 60 }", "a = { lower = 0, upper = 75999 }"))
    con = dpsql.connect(private, policy=str(path), ledger=str(tmp_path / "ledger"))
    beside = "SELECT COUNT(*) FROM t; SELECT SUM(b) FROM t"
    plan = con.plan(f"SELECT a, COUNT(*) FROM t GROUP BY a; {beside}", epsilon=1.0, delta=1e-9)
    assert plan.gap < 1e-3
    ranges = "; ".join(f"SELECT COUNT(*) FROM t WHERE a < {100 * i + i * i}" for i in range(1, 120))
    sql = f"SELECT a, COUNT(*) FROM t GROUP BY a; {ranges}; SELECT b, COUNT(*) FROM t GROUP BY b"
    with pytest.raises(dpsql.Error, match=r"a has 76,00\d regions, at most 2,048 are planned .*: drop the column"):
        con.plan(sql, epsilon=1.0, delta=1e-9)


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_no_time_at_all_is_refused(con, limit):
    with pytest.raises(dpsql.Error, match="time_limit must be above 0"):
        con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=limit)


def test_a_plan_looks_for_equal_columns_as_often_for_many_parts_as_for_few(tmp_path, monkeypatch):
    calls = []
    for module in (reduce, simple, basis, cells, compile_module, shared_rows):
        if hasattr(module, "distinct_columns"):
            whole = module.distinct_columns
            monkeypatch.setattr(
                module,
                "distinct_columns",
                lambda *args, _whole=whole, _name=module.__name__, **options: (
                    calls.append(_name) or _whole(*args, **options)
                ),
            )
    found = []
    for parts in (6, 30):
        private = duckdb.connect()
        private.execute("CREATE TABLE t (a INTEGER)")
        path = tmp_path / f"{parts}.toml"
        text = POLICY.replace("b = { lower = 0, upper = 60 }\n", "")
        path.write_text(text.replace("upper = 60", f"upper = {10 * parts - 1}"))
        con = dpsql.connect(private, policy=str(path), ledger=str(tmp_path / f"ledger {parts}"))
        calls.clear()
        con.plan("SELECT a, COUNT(*) FROM t GROUP BY a; SELECT a // 10, COUNT(*) FROM t GROUP BY a // 10", epsilon=1.0)
        found.append(list(calls))
    assert found[0] == found[1]
    assert len(found[0]) <= 8


def test_a_batch_that_is_not_read_in_time_is_refused_with_how_far_it_came(con, monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(plan_module, "monotonic", lambda: 0.0)
    monkeypatch.setattr(deadline, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(dpsql.SQLError, match="the time limit ended when 7 of 14 statements were done; allow more"):
        con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=5.0)
    monkeypatch.setattr(deadline, "monotonic", lambda: float(next(ticks)) - 2.0)
    ticks = iter(range(100))
    with pytest.raises(dpsql.SQLError, match=r"the time limit ended when \d of 14 columns of results were done"):
        con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=16.0)


def test_the_last_resort_of_balanced_plans_needs_no_time(con, monkeypatch):
    plan = con.plan("SELECT a, COUNT(*) FROM t GROUP BY a; SELECT COUNT(*) FROM t", epsilon=1.0, delta=1e-9)
    monkeypatch.setattr(prepare_module, "HELD", 0.0)  # as if every column were worse than one by one
    used_up = PlanOptions(time_limit=0.0, objective="balanced")
    held = prepare_module.no_worse_than_one_by_one(plan.origin.prepared, plan.strategy, used_up)
    assert held.shape[1] == plan.strategy.shape[1]


@pytest.fixture
def pure(tmp_path) -> dpsql.Connection:
    private = duckdb.connect()
    private.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    path = tmp_path / "pure.toml"
    path.write_text(POLICY.replace("delta = 1e-9\n", ""))
    return dpsql.connect(private, policy=str(path), ledger=str(tmp_path / "pure ledger"))


UNLIKE = "SELECT a // 20, AVG(b) FROM t GROUP BY a // 20; SELECT COUNT(*) FROM t WHERE b < 20; SELECT SUM(b) FROM t"
LIMIT = r"the time limit of 1e-09 s ended the search"


@pytest.mark.long
def test_a_plan_says_what_there_was_no_time_for_and_what_that_may_cost(pure):
    plan = pure.plan(UNLIKE, epsilon=1.0, time_limit=1e-9)
    (note,) = (note for note in plan.notes if "time limit" in note)
    assert re.match(f"{LIMIT} before .*p-identity.*; the mean squared error is at most ", note)
    times = float(note.split("at most ")[1].split()[0])
    best = pure.plan(UNLIKE, epsilon=1.0)
    assert plan.error > best.error * 1.1
    assert plan.error <= times * best.error
    assert note in unwrapped(plan)


def test_a_gaussian_plan_that_was_cut_short_says_so_by_its_certificate(con, monkeypatch):
    monkeypatch.setattr(deadline, "monotonic", lambda: 0.0)  # compiling is never late, however busy the machine is
    cut = con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=1e-9)
    (note,) = (note for note in cut.notes if "time limit" in note)
    least = "the least of any plan with such noise"
    assert note == f"{LIMIT}; the mean squared error is at most {1 + cut.gap:.2f} times {least}"
    assert any("time limit" in note for note in con.budget_for(SQL, 50, delta=1e-9, time_limit=1e-9).plan.notes)


@pytest.mark.parametrize("limit", [None, 1e9])
def test_a_plan_that_was_not_cut_short_says_nothing(pure, con, limit):
    for plan in (
        pure.plan(UNLIKE, epsilon=1.0, time_limit=limit),
        con.plan(SQL, epsilon=1.0, delta=1e-9, time_limit=limit),
    ):
        assert not any("time limit" in note for note in plan.notes)


@pytest.mark.parametrize("objective", ["balanced", "max", "total"])
def test_a_plan_without_time_is_no_worse_than_one_by_one(pure, objective):
    plan = pure.plan(UNLIKE, epsilon=1.0, time_limit=1e-9, objective=objective)
    asked = plan.origin.prepared.compiled
    squares, alone = (
        (errors * asked.objective / asked.scale)[asked.answered] ** 2 for errors in (plan.errors, plan.naive_errors)
    )
    if objective == "balanced":
        assert not plan.worse_than_alone
    elif objective == "max":
        assert squares.max() <= alone.max() * (1 + 1e-6)
    else:
        assert squares.sum() <= alone.sum() * (1 + 1e-6)


@pytest.mark.long
def test_blocks_that_are_no_proven_match_stay_where_no_time_is_left(con, monkeypatch):
    monkeypatch.setattr(choice, "LONG", 0.0)  # as if one matrix took long
    sql = "SELECT a, COUNT(*) FROM t GROUP BY a; SELECT b, COUNT(*) FROM t GROUP BY b; SELECT COUNT(*) FROM t"
    matched = []
    monkeypatch.setattr(Planner, "matches", lambda *_: matched.append(1) and False)
    monkeypatch.setattr(TimeLeft, "fits", lambda *_: False)  # no step over the matrix
    plan = con.plan(sql, epsilon=1.0, delta=1e-9, time_limit=1e3)
    assert matched
    assert isinstance(plan.compiled, Structured)


UNITS = """
dataset = "units-1"
[budget]
epsilon = 10.0
delta = 1e-6
[tables.t]
unit = "person"
max_rows_per_unit = 6
[tables.t.columns]
person = {}
a = { lower = 0, upper = 5, nulls = false }
b = { values = ["x", "y", "z"], nulls = false }
"""
UNLISTED = (
    "SELECT a, COUNT(*) AS n, COUNT(DISTINCT person) AS p FROM t GROUP BY a;"
    "SELECT b, COUNT(DISTINCT person) AS p FROM t GROUP BY b"
)


@pytest.fixture
def units(tmp_path) -> dpsql.Connection:
    private = duckdb.connect()
    private.execute("CREATE TABLE t (person INTEGER, a INTEGER, b VARCHAR)")
    return dpsql.connect(private, policy=dpsql.Policy.parse(UNITS), ledger=tmp_path / "units.ledger")


def test_no_other_way_is_tried_once_the_time_is_over_and_a_plan_is_there(units, monkeypatch):
    tried, plain = [], Planner.by_best_payment
    monkeypatch.setattr(Planner, "by_best_payment", lambda mine, *which: tried.append(which) or plain(mine, *which))
    units.plan(UNLISTED, epsilon=1, time_limit=1000)
    assert len(tried) > 1
    tried.clear()
    monkeypatch.setattr(Planner, "late", True)
    plan = units.plan(UNLISTED, epsilon=1, time_limit=2000)
    assert len(tried) == 1
    assert any("the time limit of 2000 s ended the search" in note for note in plan.notes)


def test_a_strategy_that_cannot_be_finished_in_time_is_not_begun_beside_another_plan(units, monkeypatch):
    W = units.plan(UNLISTED, epsilon=1).origin.prepared.compiled.weighted
    assert time_left.unlisted_seconds(W) > 0
    monkeypatch.setattr(by_source, "unlisted_seconds", lambda _: 10.0)
    begun, plain = [], by_source.plan_by_source
    monkeypatch.setattr(by_source, "plan_by_source", lambda task: begun.append(task.time) or plain(task))
    late = time_left.TimeLeft.within(5.0)

    def task(known):
        return Task(W, "gaussian", 1e-3, late, lambda _: None, known=known)

    with pytest.raises(dpsql.DataError, match="no time for a further one"):
        by_source.strategy_by_source(task(1e300))
    assert begun == []
    assert by_source.strategy_by_source(task(math.inf)).expected > 0
    assert begun[0].deadline == pytest.approx(late.last - 10.0)


def test_rounds_of_generated_orbits_end_where_the_next_would_be_late(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(symmetric, "monotonic", lambda: float(next(ticks)))

    def rounds(deadline):
        asked = []

        def worst(metrics):
            asked.append(metrics)
            return [np.eye(3)[:1] * (2.0 + len(asked))]

        symmetric.solve([symmetric.Part(1.0, np.eye(3), np.eye(3))], 1e-3, deadline, worst=worst)
        return len(asked)

    assert rounds(np.inf) == symmetric._ROUNDS - 1
    ticks = iter(range(1000))
    assert rounds(5.5) == 4
