"""``Cursor.dry_run``: what execute would do, for nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import filled

import dpsql

POLICY = """
dataset = "dry-1"
[budget]
epsilon = 4.0
delta = 1e-9
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b"], nulls = false }
"""
BY_G = "SELECT g, COUNT(*) AS n FROM t GROUP BY g"


@pytest.fixture
def con(tmp_path: Path) -> Iterator[dpsql.Connection]:
    with filled(tmp_path / "d.duckdb") as duck:
        duck.execute("CREATE TABLE t AS SELECT ['a', 'b'][i % 2 + 1] AS g FROM range(100) r(i)")
    (tmp_path / "p.toml").write_text(POLICY)
    with dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml") as connection:
        yield connection


def test_it_plans_and_spends_nothing(con: dpsql.Connection) -> None:
    cur = con.cursor()
    plan = cur.dry_run(BY_G, epsilon=0.5)
    assert isinstance(plan, dpsql.Plan)
    assert plan.charge.guarantee == "epsilon 0.5, delta 1e-9"
    assert not con.ledger_path.exists()
    assert (cur.release, cur.description, cur.rowcount) == (None, None, -1)


def test_it_says_which_release_answers(con: dpsql.Connection) -> None:
    con.run(BY_G, 0.5)
    for budget in ({}, {"epsilon": 0.5}):
        found = con.cursor().dry_run(BY_G, **budget)
        assert isinstance(found, dpsql.Release)
        assert (found.id, found.cost) == (1, 0.0)
    assert isinstance(con.cursor().dry_run(BY_G, epsilon=1), dpsql.Plan)
    assert len(con.releases()) == 1


@pytest.mark.parametrize("free", ["SELECT * FROM q1", "SHOW TABLES", "SELECT 1", "SELECT g FROM t LIMIT 0"])
@pytest.mark.few(every=2)
def test_what_never_costs_anything_is_none(con: dpsql.Connection, free: str) -> None:
    con.run(BY_G, 0.5)
    assert con.cursor().dry_run(free) is None


def test_it_refuses_what_execute_refuses(con: dpsql.Connection) -> None:
    cur = con.cursor()
    with pytest.raises(dpsql.ProgrammingError, match="no budget is given"):
        cur.dry_run(BY_G)
    with pytest.raises(dpsql.SQLError, match="choose from g") as caught:
        cur.dry_run("SELECT COUNT(*) FROM t WHERE h = 'a'", epsilon=1)
    assert "^" in caught.value.__notes__[0]
    with pytest.raises(dpsql.DataError):
        cur.dry_run(BY_G, epsilon=-1)


def test_names_of_results(con: dpsql.Connection) -> None:
    cur = con.cursor()
    cur.execute(f"CREATE VIEW v AS {BY_G}; {BY_G}", epsilon=0.5)
    assert cur.names == ("v", "q1")
    cur.execute("SHOW TABLES; SELECT 1")
    assert cur.names == ("q1", "q2")


def test_a_cursor_with_a_budget_and_a_level_of_its_own(con: dpsql.Connection) -> None:
    from dpsql.driver.cursor import Cursor

    cur = Cursor(con, errors=True, usual=(0.25, None, None), alpha=0.2)
    cur.execute(BY_G)
    assert cur.release is not None
    assert cur.release.guarantee == "epsilon 0.25, delta 1e-9"
    again = Cursor(con, errors=True, usual=(0.25, None, None), alpha=0.01).execute(BY_G)
    assert again.release is not None
    assert again.release.cost == 0  # an earlier answer serves whatever level its intervals have
    assert con.releases()[0].description["alpha"] == 0.2
