"""A file that was written to under its data set's name is noticed, by the custodian alone."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from helpers import filled

import dpsql
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 4
[tables.visits]
unit = "row"
[tables.more]
unit = "row"
source = "more_*.parquet"
[tables.visits.columns]
state = { values = ["NY", "NJ"] }
"""
BATCH = "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("visits.toml").write_text(POLICY)
    with filled("visits.duckdb") as db:
        db.execute("CREATE TABLE visits AS SELECT 'NY' AS state FROM range(50)")
        db.execute("COPY (SELECT 1 AS x) TO 'more_1.parquet'")
    _written("visits.duckdb", 1)
    _written("more_1.parquet", 1)
    return tmp_path


def _written(name: str, second: int) -> None:
    """As if the file had been written to at that second: no test waits for a clock."""
    os.utime(name, (second, second))


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "dpsql"):
        yield


def test_a_changed_file_is_noticed_until_it_is_confirmed(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    con = dpsql.connect(policy="visits.toml")
    first = con.run(BATCH, epsilon=1)
    assert con.changed_files() == ()
    _written("visits.duckdb", 2)
    again = con.run(BATCH, epsilon=1)  # a connection that stays open notices, too
    assert again.cost == 0
    assert again["q1"].rows == first["q1"].rows
    [said] = _told(caplog)
    assert "the database file was written to since data set visits-1 was declared" in said
    con.run(BATCH, epsilon=1)
    assert _told(caplog) == []  # once for each connection
    Path("more_2.parquet").write_bytes(Path("more_1.parquet").read_bytes())
    _written("more_2.parquet", 1)
    later = dpsql.connect(policy="visits.toml")
    assert later.changed_files() == ("", "more")
    assert len(_told(caplog)) == 2
    later.confirm_files()
    assert later.changed_files() == ()
    dpsql.connect(policy="visits.toml")
    assert _told(caplog) == []
    _written("visits.duckdb", 1)  # back to a time that was confirmed once: what counts is the newest
    assert later.changed_files() == ("",)


def test_a_new_version_marks_the_files_anew(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    dpsql.connect(policy="visits.toml").run(BATCH, epsilon=1)
    _written("visits.duckdb", 2)
    Path("visits.toml").write_text(POLICY.replace("visits-1", "visits-2"))
    dpsql.connect(policy="visits.toml").renew("visits-1")
    assert _told(caplog) == []
    assert dpsql.connect(policy="visits.toml").changed_files() == ()
    _written("visits.duckdb", 3)
    dpsql.connect(policy="visits.toml")
    assert "visits-2" in _told(caplog)[0]


def test_a_mark_holds_no_size_and_no_time_and_answers_do_not_depend_on_it(place: Path) -> None:
    """Ledgers of a data set whose files changed and of one whose files did not are alike, up to what is random."""

    def held() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect("visits.ledger")) as ledger:
            return list(ledger.execute("SELECT place, length(salt), length(mark) FROM files ORDER BY id"))

    con = dpsql.connect(policy="visits.toml")
    con.run(BATCH, epsilon=1)
    assert held() == [("", 32, 64), ("more", 32, 64)]
    with duckdb.connect("visits.duckdb") as db:
        db.execute("INSERT INTO visits SELECT 'NJ' FROM range(200000)")
    con.run(BATCH, epsilon=1)
    dpsql.connect(policy="visits.toml").plan(BATCH, epsilon=1)
    assert len(held()) == 2  # what changed is written down by nobody but the custodian
    assert [entry.id for entry in con.releases()] == [1]
    assert con.budget.spent == 1


def test_tables_in_memory_have_no_file_and_open_files_have(place: Path) -> None:
    policy = dpsql.Policy.parse(POLICY.replace('source = "more_*.parquet"', "expected_rows = 1"))
    for database in (":memory:", "other.duckdb"):
        with duckdb.connect(database) as db:
            db.execute("CREATE TABLE visits AS SELECT 'NY' AS state; CREATE TABLE more AS SELECT 1 AS x")
            con = dpsql.connect(db, policy=policy, ledger=f"{database.strip(':')}.ledger")
            con.run(BATCH, epsilon=1)
            assert con.changed_files() == ()
            db.execute("DELETE FROM visits")
            assert con.changed_files() == (() if database == ":memory:" else ("",))


@pytest.mark.long
def test_the_command_line_warns_and_confirms(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--policy", "visits.toml", "--sql", BATCH, "--epsilon", "1"]
    assert main(["policy", "confirm", "visits.toml"]) == 1
    assert "there is no ledger" in capsys.readouterr().err
    assert main(run) == 0
    _written("visits.duckdb", 2)
    capsys.readouterr()
    assert main([*run, "--json"]) == 0
    warned = capsys.readouterr()
    assert "the database file was written to" in warned.err
    assert "written" not in warned.out  # what is handed on says nothing of it
    assert main(["policy", "confirm", "visits.toml"]) == 0
    confirmed = capsys.readouterr()
    assert confirmed.out == "The files of the database count as those of visits-1.\n"
    assert main(["policy", "confirm", "visits.toml"]) == 0
    assert capsys.readouterr().out == "No file was written to under visits-1.\n"
    assert main(run) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_second_ledger_of_a_data_set_is_noticed(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger is called after its policy file: a copy of the policy begins with a budget of its own."""
    with dpsql.connect(policy="visits.toml") as con:
        con.run(BATCH, epsilon=1)
    assert not _told(caplog)
    Path("copy.toml").write_text(POLICY)
    with dpsql.connect(policy="copy.toml") as con:
        con.run(BATCH, epsilon=1)
    (said,) = _told(caplog)
    assert "visits.ledger is a ledger of data set visits-1 already, and copy.ledger becomes a second one" in said
    Path("other.toml").write_text(POLICY.replace("visits-1", "others-1"))
    with dpsql.connect(policy="other.toml") as con:
        con.run(BATCH, epsilon=1)
    assert not _told(caplog)


def test_a_unit_that_changes_is_refused(place: Path) -> None:
    """One budget would bound neither what is known of a person nor what is known of a row."""
    by_person = POLICY.replace(
        '[tables.visits]\nunit = "row"', '[tables.visits]\nunit = "state"\nmax_rows_per_unit = 9'
    )
    Path("visits.toml").write_text(by_person)
    with dpsql.connect(policy="visits.toml") as con:
        con.run(BATCH, epsilon=1)
    Path("visits.toml").write_text(POLICY)
    with dpsql.connect(policy="visits.toml") as con:
        with pytest.raises(dpsql.IntegrityError, match=r"visits protects one row .* protected one state in release 1"):
            con.run("SELECT COUNT(*) AS n FROM visits", epsilon=1)
        assert float(con.budget.spent) == 1
    Path("visits.toml").write_text(by_person)
    with dpsql.connect(policy="visits.toml") as con:
        con.run("SELECT COUNT(*) AS n FROM visits", epsilon=1)
