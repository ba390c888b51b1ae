"""A source that fails is charged once; what is cheap is checked before a batch is planned."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.engines import duckdb as engine
from dpsql.engines.files import state_of, without_sizes
from dpsql.errors import BudgetError, LedgerError, OperationalError
from dpsql.extensions.server.service import Service
from dpsql.planning import plan as planning
from dpsql.privacy.ledger import Ledger
from dpsql.surfaces.cli import main

POLICY = """
dataset = "f-1"
[budget]
epsilon = 4
delta = 1e-6
[tables.visits]
unit = "row"
source = "visits.parquet"
[tables.others]
unit = "row"
source = "others.parquet"
[tables.visits.columns]
state = { values = ["NY", "NJ"] }
age = { lower = 0, upper = 99 }
[tables.others.columns]
state = { values = ["NY", "NJ"] }
"""
COUNT = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
ANOTHER = "SELECT state, SUM(age) AS n FROM visits GROUP BY state"
OTHERS = "SELECT state, COUNT(*) AS n FROM others GROUP BY state"
BUDGET = {"epsilon": 0.5, "delta": 1e-9}
REFUSED = "the scan of visits failed for release 1 and its files have not changed since"


def _written(damaged: bool) -> None:
    """Parquet whose footer is sound; the pages of a damaged one are not."""
    for name in ("others", "visits"):
        with duckdb.connect() as con:
            con.execute(
                f"COPY (SELECT 'NY' AS state, (hash(range) % 90)::INTEGER AS age FROM range(5000)) TO '{name}.parquet'"
            )
    if damaged:
        held = bytearray(Path("visits.parquet").read_bytes())
        held[4 : len(held) // 2] = b"\xff" * (len(held) // 2 - 4)
        Path("visits.parquet").write_bytes(held)


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpsql.Connection:
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(POLICY)
    _written(damaged=True)
    return dpsql.connect(policy="p.toml")


def _fails(con: dpsql.Connection) -> None:
    with pytest.raises(OperationalError, match="the scan of visits failed inside DuckDB"):
        con.run(COUNT, **BUDGET)


def _unplanned(patch: pytest.MonkeyPatch) -> None:
    """Let no strategy be chosen."""

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("planned")

    patch.setattr(planning, "prepare", refuse)


def test_a_failed_scan_is_charged_once_by_whatever_connection(con: dpsql.Connection) -> None:
    plan = con.plan(ANOTHER, **BUDGET)
    _fails(con)
    spent = con.budget.spent
    other = dpsql.connect(policy="p.toml")
    with pytest.MonkeyPatch.context() as patch:
        _unplanned(patch)
        for held in (con, other):  # another process sees no more than the ledger
            with pytest.raises(OperationalError, match=REFUSED):
                held.run(ANOTHER, **BUDGET)
            with pytest.raises(OperationalError, match=REFUSED):
                held.cursor().execute(COUNT, **BUDGET)
        assert main(["run", "--policy", "p.toml", "--sql", ANOTHER, "--epsilon", "0.5", "--delta", "1e-9"]) == 1
    with pytest.raises(OperationalError, match=REFUSED):
        other.run(plan)
    assert (con.budget.spent, len(con.budget.charges)) == (spent, 1)
    other.run(OTHERS, **BUDGET)  # another table is not in its way
    with pytest.raises(OperationalError, match=REFUSED):
        Service(con).check()
    _written(damaged=False)
    Service(con).check()
    assert con.run(ANOTHER, **BUDGET).id == 3


def test_the_custodian_lets_a_failed_source_be_charged_again(con: dpsql.Connection) -> None:
    _fails(con)
    assert main(["policy", "confirm", "p.toml"]) == 0
    Service(con).check()
    _fails(con)
    assert len(con.budget.charges) == 2
    with pytest.raises(OperationalError, match="the scan of visits failed for release 2"):
        con.run(COUNT, **BUDGET)
    assert con._books.ledger().verify()


@pytest.mark.parametrize("outcome", ["late", "short of memory"])
def test_a_limit_says_nothing_against_a_source(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    _written(damaged=False)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_within", lambda *_: ({}, outcome))
        with pytest.raises(OperationalError, match="What was charged stays charged"):
            dpsql.connect(policy="p.toml", scan_timeout=600).run(COUNT, **BUDGET)
    assert con.run(COUNT, **BUDGET).id == 2


def test_a_mark_tells_neither_name_nor_size(con: dpsql.Connection) -> None:
    _fails(con)
    failed = con._books.ledger().failed_scans()["visits"]
    with closing(sqlite3.connect(con.ledger_path)) as held:
        text = str(held.execute("SELECT details FROM events").fetchall())
    assert failed.mark in text
    assert "parquet" not in text
    [state] = state_of([Path("visits.parquet")]) or ()
    assert without_sizes((state,)) == without_sizes(((*state[:3], 1, *state[4:]),))
    assert failed.is_of(without_sizes(state_of([Path("visits.parquet").absolute()])))


@pytest.mark.long
def test_an_empty_account_is_noticed_before_planning(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    _written(damaged=False)
    first = con.run(COUNT, epsilon=4, delta=1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(planning.Planner, "of_least_error", None)
        for ask in (con.run, con.cursor().execute):
            with pytest.raises(BudgetError, match="it is spent"):
                ask(ANOTHER, **BUDGET)
        assert main(["run", "--policy", "p.toml", "--sql", ANOTHER, "--epsilon", "0.5", "--delta", "1e-9"]) == 1
        with pytest.raises(BudgetError, match="it is spent"):
            con.run(COUNT, **BUDGET, fresh=True)
    # What is free stays so: the same batch, and what the release determines.
    assert con.run(COUNT, epsilon=4, delta=1e-6).id == first.id
    assert con.run("SELECT COUNT(*) AS n FROM visits WHERE state = 'NY'", **BUDGET).cost == 0
    assert con.cursor().execute(COUNT, **BUDGET).fetchall()
    assert con.plan(ANOTHER, **BUDGET).affordable is False  # a plan costs nothing


@pytest.mark.parametrize("hint", [False, True])
def test_a_failed_source_is_noticed_before_a_budget_is_searched(con: dpsql.Connection, hint: bool) -> None:
    _fails(con)
    sql, wish = (ANOTHER.replace("SELECT", "SELECT /*+ MAX_ERROR(50) */"), {}) if hint else (ANOTHER, {"max_error": 50})
    with pytest.MonkeyPatch.context() as patch:
        _unplanned(patch)
        patch.setattr("dpsql.driver.connection.prepare", None)
        with pytest.raises(OperationalError, match=REFUSED):
            con.run(sql, **wish)


def test_a_batch_that_finds_its_groups_is_checked_before_planning(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fails(con)
    Path("q.toml").write_text(POLICY.replace('{ values = ["NY", "NJ"] }', '{ groups = "discover" }'))
    other = dpsql.connect(policy="q.toml", ledger=con.ledger_path)
    monkeypatch.setattr("dpsql.extensions.discovery.find_first.make_plan", None)
    _unplanned(monkeypatch)
    with pytest.raises(OperationalError, match=REFUSED):
        other.run(ANOTHER, **BUDGET)
    _written(damaged=False)
    with pytest.raises(BudgetError):
        other.run(ANOTHER, epsilon=40, delta=1e-6)


def test_a_plan_is_checked_before_its_result_is_laid_out(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = con.plan(ANOTHER, **BUDGET)
    _fails(con)
    monkeypatch.setattr("dpsql.running.run.release_tables", None)
    with pytest.raises(OperationalError, match=REFUSED):
        con.run(plan)
    _written(damaged=False)
    dear = con.plan(ANOTHER, epsilon=4, delta=1e-6)
    with pytest.raises(BudgetError):
        con.run(dear)


def test_a_locked_ledger_is_noticed_before_planning(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    _written(damaged=False)
    books = con._books
    con.run(OTHERS, **BUDGET)
    books._ledger = Ledger.open(con.ledger_path, "f-1", books.budget, timeout=0.0)
    with closing(sqlite3.connect(con.ledger_path, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        _unplanned(monkeypatch)
        with pytest.raises(LedgerError, match="is locked by another process"):
            con.run(ANOTHER, **BUDGET, fresh=True)
