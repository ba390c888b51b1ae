"""The planner keeps strategies in a folder, and shares a time limit among the ways that it plans."""

import sys

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.driver import connection as connections
from dpsql.planning import last_plans as plans
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
def tables():
    base = duckdb.connect()
    base.execute("CREATE TABLE t AS SELECT (i % 100)::INTEGER AS a FROM range(1000) r(i)")
    return base


@pytest.fixture
def connection(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["dpsql.strategies.selection"], "_WORTH", 0.0)
    monkeypatch.setenv("DPSQL_CACHE", str(tmp_path / "kept"))
    return dpsql.connect(tables, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "l.ledger")


def test_the_plan_of_another_connection_finds_both_strategies(connection, tables, tmp_path):
    lines = []
    first = connection.plan(SQL, epsilon=1, delta=1e-6)
    assert len(list((tmp_path / "kept").glob("*.npz"))) == 2
    other = dpsql.connect(tables, policy=dpsql.Policy.parse(POLICY), ledger=tmp_path / "other.ledger")
    second = other.plan(SQL, epsilon=1, delta=1e-6, progress=lines.append)
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
    connection.plan(SQL, epsilon=1, earlier=False)  # the same before earlier releases are looked at
    connection.plan(SQL, epsilon=0.5, earlier=False)
    connection.plan(f"{SQL} ", epsilon=1, earlier=False)
    assert len(made) == 3
    connection.plan(SQL, epsilon=1, earlier=False, alpha=0.1)  # another option
    assert len(made) == 4
    held = connection.plan(SQL, epsilon=1, earlier=False)
    assert len(made) == 4
    assert held.affordable
    assert connection.budget.account("pure").remaining < connection.budget.account("pure").total
    connection.run("SELECT COUNT(*) FROM t WHERE a < 3", epsilon=0.9)
    poor = connection.plan(SQL, epsilon=1, earlier=False)  # what the accounts can pay has changed
    assert len(made) > 5
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
        with dpsql.connect(held, policy=tmp_path / "p.toml", today="2024-06-01") as other:
            con, one = other, con
            fresh = plan(2)
            con = one
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


PERSONS = """
dataset = "persons-1"
[budget]
epsilon = 1000.0
delta = 1e-6
[tables.t]
unit = "person"
max_rows_per_unit = 4
expected_rows = 100000
[tables.t.columns]
person = {}
a = { lower = 0, upper = 5, nulls = false }
b = { values = ["x", "y", "z"], nulls = false }
c = { lower = 0, upper = 99, nulls = false }
d = { lower = 0, upper = 99, nulls = false }
v = { lower = 0, upper = 10 }
"""
UNLISTED = (
    "SELECT a, COUNT(*) AS n, COUNT(DISTINCT person) AS p FROM t GROUP BY a;"
    "SELECT b, COUNT(DISTINCT person) AS p FROM t GROUP BY b"
)
KINDS = {
    "unlisted": UNLISTED,
    "blocks": "SELECT c, d, COUNT(*) AS n FROM t GROUP BY CUBE (c, d); SELECT a, COUNT(*) AS n FROM t GROUP BY a",
    "line": "SELECT dp_prefixes(c), COUNT(*) AS n FROM t GROUP BY dp_prefixes(c)",
    "listed": "SELECT b, COUNT(*) AS n FROM t GROUP BY b",
}
HOW = {
    "plain": {"epsilon": 1},
    "progress": {"epsilon": 1, "progress": lambda _: None},
    "time limit": {"epsilon": 1, "time_limit": 1000},
    "total": {"epsilon": 1, "objective": "total"},
}


@pytest.fixture
def persons(tmp_path):
    with duckdb.connect() as base:
        base.execute("CREATE TABLE t (person INTEGER, a INTEGER, b VARCHAR, c INTEGER, d INTEGER, v INTEGER)")
        yield dpsql.connect(base, policy=dpsql.Policy.parse(PERSONS), ledger=tmp_path / "persons.ledger")


@pytest.fixture
def made(monkeypatch):
    """What is planned from now on, whichever way."""
    texts = []
    make, find = plans.make_plan, connections.find_budget
    monkeypatch.setattr(plans, "make_plan", lambda sql, *more: texts.append(sql) or make(sql, *more))
    monkeypatch.setattr(
        connections,
        "find_budget",
        lambda prepared, *more, **how: texts.append(prepared.sql) or find(prepared, *more, **how),
    )
    return texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [*HOW, pytest.param("wanted error", marks=pytest.mark.long)])
def test_a_plan_and_its_run_are_planned_once(persons, made, kind, how):
    sql, options = KINDS[kind], HOW.get(how, {"max_error": 500})
    first = persons.plan(sql, **options)
    assert len(made) == 1
    again = persons.plan(sql, **options)
    released = persons.run(sql, **options)
    assert len(made) == 1
    assert str(again) == str(first)
    assert released.cost == first.charge.amount
    persons.plan(f"{sql} ", **options)
    assert len(made) == 2


def test_the_fixture_has_the_slow_kinds(persons):
    found = {kind: persons.plan(sql, epsilon=1).compiled for kind, sql in KINDS.items()}
    assert not found["unlisted"].units.listable
    assert found["blocks"].blocks
    assert found["listed"].units.listable


def test_a_cursor_that_was_asked_for_the_plan_runs_it(persons, made):
    cursor = persons.cursor()
    planned = cursor.dry_run(UNLISTED, epsilon=1)
    cursor.execute(UNLISTED, epsilon=1)
    assert made == [UNLISTED]
    assert cursor.release.cost == planned.charge.amount


def test_a_plan_beside_earlier_releases_is_made_once_between_two_charges(persons, monkeypatch):
    persons.run("SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=1)
    combined, plain = [], persons._past.with_earlier
    monkeypatch.setattr(persons._past, "with_earlier", lambda plan: combined.append(plan) or plain(plan))
    sql = "SELECT b, COUNT(*) AS n FROM t GROUP BY b"
    first = persons.plan(sql, epsilon=1)
    assert str(persons.plan(sql, epsilon=1)) == str(first)
    assert len(combined) == 1
    persons.run("SELECT c, COUNT(*) AS n FROM t GROUP BY c", epsilon=1)
    combined.clear()
    persons.plan(sql, epsilon=1)
    assert len(combined) == 1


def test_a_plan_under_a_limit_serves_that_limit_alone_and_one_without_serves_all(persons, made):
    for limit in (1000, 2000, 1000, 2000, None, 3000):
        persons.plan(UNLISTED, epsilon=1, time_limit=limit)
    assert len(made) == 3
    with pytest.raises(dpsql.DataError, match="time_limit"):
        persons.plan(UNLISTED, epsilon=1, time_limit=0)


def test_wanted_errors_that_the_caller_changes_are_planned_anew(connection):
    wanted = {"q1": 100.0}
    sql = "SELECT COUNT(*) AS n FROM t"
    first = connection.plan(sql, max_error=wanted)
    wanted["q1"] = 10.0
    assert connection.plan(sql, max_error=wanted).charge.amount > 5 * first.charge.amount
    assert connection.plan(sql, max_error={"q1": 100.0}).charge == first.charge


def test_of_plans_of_large_matrices_the_last_is_kept(persons, made, monkeypatch):
    monkeypatch.setattr(plans, "_LARGE", 0)
    for _ in range(2):
        persons.plan(UNLISTED, epsilon=1)
        persons.plan(KINDS["listed"], epsilon=1)
        persons.run(KINDS["listed"], epsilon=1)
    assert made == [UNLISTED, KINDS["listed"]] * 2


def test_options_without_one_truth_are_planned_anew():
    numbers = np.arange(2)
    assert not plans._equal((1, numbers), (1, np.arange(2)))
    assert plans._equal((1, numbers), (1, numbers))
