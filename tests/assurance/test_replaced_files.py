"""Files exchanged or held under a connection: the private database, the ledger, the releases."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from assurance_world import BATCH, EPSILON, POLICY, connect, make, release
from helpers import filled

import dpsql
from dpsql.privacy import chain
from dpsql.privacy.noise import Noise

IN_A_DATABASE = POLICY.replace('source = "t.csv"\n', "").replace('type = "INTEGER", ', "")


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    """A connection to a database file, with one release."""
    make(tmp_path, IN_A_DATABASE)
    fill(tmp_path / "d.duckdb", "SELECT (i % 10)::INTEGER AS k FROM range(50) r(i)")
    con = dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml")
    release(con)
    return con


def fill(path: Path, rows: str) -> Path:
    with filled(path) as duck:
        duck.execute(f"CREATE TABLE t AS {rows}")
    return path


def garbage(path: Path) -> Path:
    path.write_bytes(b"no database at all" * 1000)
    return path


REPLACEMENTS: dict[str, Callable[[Path], Path | None]] = {
    "another type": lambda path: fill(path, "SELECT i::BIGINT AS k FROM range(50) r(i)"),
    "text": lambda path: fill(path, "SELECT 'HIV+' AS k"),
    "another column": lambda path: fill(path, "SELECT 1 AS k, 2 AS more"),
    "no table": lambda path: (duckdb.connect(str(path)).close(), path)[1],
    "garbage": garbage,
    "nothing": lambda path: None,
}


def exchange(con: dpsql.Connection, kind: str) -> None:
    folder = con.ledger_path.parent
    other = REPLACEMENTS[kind](folder / "other.duckdb")
    if other is None:
        (folder / "d.duckdb").unlink()
    else:
        os.replace(other, folder / "d.duckdb")


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.few("another column")
def test_a_database_replaced_after_the_plan_costs_nothing(
    con: dpsql.Connection, kind: str, record_assurance: Any
) -> None:
    plan = con.plan(BATCH, EPSILON)
    exchange(con, kind)
    with pytest.raises(dpsql.Error) as caught:
        con.run(plan, fresh=True)
    assert "\n" not in str(caught.value)
    assert "HIV" not in str(caught.value)
    assert con.budget.spent == EPSILON
    assert len(con.releases()) == 1
    record_assurance(f"faults.database_replaced.{kind}", {"injected": 1, "survived": 1})


@pytest.mark.parametrize("kind", [kind for kind in REPLACEMENTS if kind not in ("another type", "another column")])
@pytest.mark.few("text")
def test_a_database_replaced_after_the_charge_releases_nothing(
    con: dpsql.Connection, kind: str, monkeypatch: pytest.MonkeyPatch, record_assurance: Any
) -> None:
    plan = con.plan(BATCH, EPSILON)
    real = Noise.sample

    def sample(self: Noise, count: int) -> list[int]:
        exchange(con, kind)
        return real(self, count)

    monkeypatch.setattr(Noise, "sample", sample)
    with pytest.raises(dpsql.OperationalError) as caught:
        con.run(plan, fresh=True)
    assert "HIV" not in str(caught.value)
    assert caught.value.__context__ is None
    assert con.budget.spent == 2 * EPSILON
    assert [entry.id for entry in con.budget.unreleased] == [2]
    assert con._books.ledger().verify() == 5
    record_assurance(f"faults.database_replaced_late.{kind}", {"injected": 1, "survived": 1})


def test_a_database_of_other_rows_is_the_same_data_set_until_it_is_declared_new(con: dpsql.Connection) -> None:
    path = con.ledger_path.parent / "other.duckdb"
    os.replace(fill(path, "SELECT 3 AS k FROM range(900)"), con.ledger_path.parent / "d.duckdb")
    assert con.run(BATCH, EPSILON).cost == 0  # contents are never compared: no charge, no message, the same answer


LEDGERS = ("another", "older", "missing", "garbage")


@pytest.mark.parametrize("kind", LEDGERS)
@pytest.mark.few("older")
def test_a_ledger_replaced_under_the_connection_is_refused(
    con: dpsql.Connection, tmp_path: Path, kind: str, record_assurance: Any
) -> None:
    older = shutil.copy(con.ledger_path, tmp_path / "older")
    plan = con.plan(BATCH, EPSILON)
    con.run(plan, fresh=True)
    newest = con.ledger_path.read_bytes()
    if kind == "another":
        other = dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml", ledger=tmp_path / "other.ledger")
        other.run(BATCH, EPSILON)
        os.replace(tmp_path / "other.ledger", con.ledger_path)
    elif kind == "older":
        os.replace(older, con.ledger_path)
    elif kind == "garbage":
        garbage(con.ledger_path)
    else:
        con.ledger_path.unlink()
    for use in (lambda: con.run(plan, fresh=True), lambda: con._books.ledger().state(), lambda: con.budget):
        with pytest.raises(dpsql.LedgerError):
            use()
    con.ledger_path.write_bytes(newest)
    assert con.budget.spent == 2 * EPSILON
    record_assurance(f"faults.ledger_replaced.{kind}", {"injected": 1, "survived": 1})


def test_a_ledger_replaced_while_it_is_written_is_an_error(
    con: dpsql.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_assurance: Any
) -> None:
    plan = con.plan(BATCH, EPSILON)
    copy = shutil.copy(con.ledger_path, tmp_path / "copy")
    real = chain.append

    def append(*arguments: Any) -> None:
        real(*arguments)
        if Path(copy).exists():
            os.replace(copy, con.ledger_path)

    monkeypatch.setattr(chain, "append", append)
    with pytest.raises(dpsql.LedgerError, match="was replaced while it was written"):
        con.run(plan, fresh=True)
    record_assurance("faults.ledger_replaced.while_written", {"injected": 1, "survived": 1})


HOLD = """
import duckdb, sys
held = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reader")
held.execute("SELECT * FROM dp.releases").fetchall()
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["reader", "writer"])
@pytest.mark.few(every=2)
def test_another_process_that_holds_the_releases_file_loses_no_answer(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, record_assurance: Any
) -> None:
    make(tmp_path)
    con = connect(tmp_path)
    release(con)
    command = [sys.executable, "-c", HOLD, str(con.releases_path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with caplog.at_level(logging.WARNING, "dpsql"):
            found = release(con)
        assert len(found["q2"]) == 1
        assert con.budget.spent == 2 * EPSILON
        assert ("not registered" in caplog.text) == (kind == "writer")
        holder.stdin.close()
        holder.wait(30)
    # The next question over the releases finds them all, in a new process at the latest.
    assert connect(tmp_path).sql("SELECT * FROM r2.q2") == found["q2"]
    record_assurance(f"faults.releases_held.{kind}", {"injected": 1, "survived": 1})
