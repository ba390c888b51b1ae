"""The planner keeps strategies in a folder, and shares a time limit among the ways that it plans."""

import sys

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.planning import plan as plans
from dpsql.planning import prepare as planning

POLICY = """
dataset = "t-1"
[budget]
epsilon = 4.0
delta = 1e-6
pure_epsilon = 2.0
[tables.t]
unit = "row"
[tables.t.columns]
a = { lower = 0, upper = 99, nulls = false }
"""
SQL = ";".join(f"SELECT COUNT(*) FROM t WHERE a BETWEEN {low} AND {low + 30}" for low in range(0, 60, 7))


@pytest.fixture
def connection(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["dpsql.strategies.selection"], "_WORTH", 0.0)
    monkeypatch.setenv("DPSQL_CACHE", str(tmp_path / "kept"))
    base = duckdb.connect()
    base.execute("CREATE TABLE t AS SELECT (i % 100)::INTEGER AS a FROM range(1000) r(i)")
    return dpsql.connect(base, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "l.ledger")


def test_the_second_plan_finds_both_strategies(connection, tmp_path):
    lines = []
    first = connection.plan(SQL, epsilon=1, delta=1e-6)
    assert len(list((tmp_path / "kept").glob("*.npz"))) == 2
    second = connection.plan(SQL, epsilon=1, delta=1e-6, progress=lines.append)
    assert sum("kept from an earlier selection" in line for line in lines) == 2
    assert np.array_equal(first.strategy.matrix(), second.strategy.matrix())
    assert np.allclose(first.errors, second.errors, rtol=1e-9)
    assert str(first) == str(second)
    assert first.gap is None or second.gap == pytest.approx(first.gap, abs=1e-6)


def test_the_cache_can_be_switched_off(connection, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSQL_CACHE", "off")
    connection.plan(SQL, epsilon=1)
    assert not (tmp_path / "kept").exists()


@pytest.mark.long
def test_an_unusable_folder_never_fails_a_plan(connection, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPSQL_CACHE", str(tmp_path / "file" / "below"))
    assert connection.plan(SQL, epsilon=1).stderr["q1"] > 0


def test_a_plan_cut_short_is_whole_and_not_kept(connection, tmp_path):
    plan = connection.plan(SQL, epsilon=1, delta=1e-6, time_limit=1e-6)
    assert (plan.errors > 0).all()
    assert not (tmp_path / "kept").exists()


def test_a_time_limit_is_shared(connection, monkeypatch):
    limits = []
    select = planning.select

    def watched(*arguments, time_limit=None, **options):
        limits.append(time_limit)
        return select(*arguments, time_limit=time_limit, **options)

    monkeypatch.setattr(planning, "select", watched)
    connection.plan(SQL, epsilon=1, delta=1e-6, time_limit=100)
    assert len(limits) == 2
    assert 45 < limits[0] <= 50
    assert limits[0] < limits[1] <= 100


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "soon", True])
def test_time_limits_out_of_range_are_refused(connection, limit):
    with pytest.raises(dpsql.DataError, match="time_limit"):
        connection.plan(SQL, epsilon=1, time_limit=limit)


def test_the_same_text_is_planned_once_as_long_as_nothing_has_changed(connection, monkeypatch):
    made, plain = [], plans.make_plan
    monkeypatch.setattr(plans, "make_plan", lambda *asked: made.append(asked) or plain(*asked))
    first = connection.plan(SQL, epsilon=1)
    again = connection.plan(SQL, epsilon=1)
    assert len(made) == 1
    assert str(first) == str(again)
    release = connection.run(again)
    connection.plan(SQL, epsilon=1, earlier=False)  # another option
    connection.plan(SQL, epsilon=0.5, earlier=False)
    connection.plan(f"{SQL} ", epsilon=1, earlier=False)
    assert len(made) == 4
    held = connection.plan(SQL, epsilon=1, earlier=False)
    assert len(made) == 4
    assert held.affordable
    assert connection.budget.account("pure").remaining < connection.budget.account("pure").total
    connection.run("SELECT COUNT(*) FROM t WHERE a < 3", epsilon=0.9)
    poor = connection.plan(SQL, epsilon=1, earlier=False)  # what the accounts can pay has changed
    assert len(made) > 4
    assert not poor.affordable
    assert release.views


GROWING = """
dataset = "growing-1"
[budget]
epsilon = 2.0
delta = 1e-9
pure_epsilon = 1.0
[tables.visits]
unit = "row"
periods = { column = "day", every = "1 month", first = 2024-01-01 }
[tables.visits.columns]
day = {}
ward = { values = ["a", "b"], nulls = false }
"""


def test_a_batch_of_another_period_has_the_strategy_of_the_last_one(tmp_path):
    (tmp_path / "p.toml").write_text(GROWING)
    with duckdb.connect() as held:
        held.execute("CREATE TABLE visits (day DATE, ward VARCHAR)")
        con = dpsql.connect(held, policy=tmp_path / "p.toml", today="2024-06-01")

        def plan(month, more="", **how):
            days = f"day >= '2024-0{month}-01' AND day < '2024-0{month + 1}-01'"
            return con.plan(
                f"SELECT ward, COUNT(*) AS n FROM visits WHERE {days}{more} GROUP BY ward", epsilon=1, **how
            )

        first, second = plan(1), plan(2)
        assert second.strategy is first.strategy
        assert (first.reads.read, second.reads.read) == (("2024-01-01",), ("2024-02-01",))
        assert second.compiled is not first.compiled
        fresh = plan(2, progress=lambda _: None)
        assert fresh.strategy is not first.strategy
        assert np.array_equal(fresh.errors, second.errors)
        assert str(fresh) == str(second)
        con.run(second)
        # Another workload, and accounts that can pay for less, are planned anew.
        assert plan(3, " AND ward = 'a'").strategy is not first.strategy
        assert plan(3).strategy is first.strategy
        spent = plan(2, earlier=False)
        assert spent.strategy is not first.strategy
        assert spent.charge.account != first.charge.account or not spent.affordable
