"""Releases renamed, dropped and shown again: the ledger decides, a rebuild agrees, nothing is refunded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.free_sql import limits

POLICY = """
dataset = "shown-1"
[budget]
epsilon = 4
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
"""
BATCH = """
CREATE VIEW everybody AS SELECT COUNT(*) AS n FROM t;
CREATE VIEW low AS SELECT COUNT(*) AS n FROM t WHERE k < 5;
"""
OTHER = "CREATE OR REPLACE VIEW low AS SELECT COUNT(*) AS n FROM t WHERE k < 3"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("k\n" + "".join(f"{i % 10}\n" for i in range(50)))
    (tmp_path / "p.toml").write_text(POLICY)
    return tmp_path


def connect(place: Path, **options: Any) -> dpsql.Connection:
    return dpsql.connect(policy=place / "p.toml", **options)


def content(con: dpsql.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every view of dp and every table of every release, as a plain duckdb reads them."""
    with duckdb.connect(str(con.releases_path), read_only=True) as plain:
        listed = plain.sql(
            "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal "
            "UNION ALL SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL"
        ).fetchall()
        return {f"{s}.{n}": plain.sql(f'SELECT * FROM "{s}"."{n}" ORDER BY ALL').fetchall() for s, n in listed}


def rebuilt_alike(con: dpsql.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """The content, which is the same after a rebuild."""
    held = content(con)
    con.releases_path.unlink()
    con.rebuild()
    assert content(con) == held
    return held


@pytest.mark.long
def test_a_renamed_result_stays_so(place: Path) -> None:
    con = connect(place)
    first = con.run(BATCH, 0.5)
    con.rename("Everybody", "all rows")
    held = rebuilt_alike(con)
    assert set(held) == {"dp.all rows", "dp.low", "dp.releases", "main.releases", "r1.all rows", "r1.low"}
    assert con.sql('SELECT n FROM "all rows"').fetchall() == [first["everybody"].fetchone()[:1]]
    with pytest.raises(dpsql.SQLError, match="no release is called"):
        con.sql("FROM everybody")
    assert con.sql("SELECT names FROM releases").fetchall() == [(["all rows", "low"],)]
    assert con.budget.spent == 0.5
    # The old name is free for another batch, the new one is taken.
    with pytest.raises(dpsql.IntegrityError, match="all rows exists already"):
        con.run('CREATE VIEW "all rows" AS SELECT COUNT(*) AS n FROM t', 0.25)
    con.run("CREATE VIEW everybody AS SELECT COUNT(*) AS n FROM t WHERE k > 2", 0.25)
    rebuilt_alike(con)


@pytest.mark.long
def test_one_release_of_a_name(place: Path) -> None:
    con = connect(place)
    first = con.run(BATCH, 0.5)["low"].fetchall()
    second = con.run(OTHER, 0.5)["low"].fetchall()
    con.rename("low", "lowest", release=2)
    assert con.sql("FROM low").fetchall() == first  # the earlier release of the name shows again
    assert con.sql("FROM lowest").fetchall() == second
    rebuilt_alike(con)
    con.drop("lowest", "low")
    assert set(rebuilt_alike(con)) == {"dp.everybody", "dp.releases", "main.releases", "r1.everybody"}


@pytest.mark.long
def test_a_dropped_batch_answers_again_for_free_and_is_shown_again(place: Path) -> None:
    con = connect(place)
    first = con.run(BATCH, 0.5)
    con.drop(release=1)
    assert set(rebuilt_alike(con)) == {"dp.releases", "main.releases"}
    assert con.budget.spent == 0.5
    assert [entry.views for entry in con.releases()] == [()]
    # A cursor's question that the release answers is free as before, and brings no view back.
    cursor = con.cursor().execute("SELECT COUNT(*) AS n FROM t")
    assert cursor.fetchone() == first["everybody"].fetchone()[:1]
    assert cursor.release is not None
    assert cursor.release.cost == 0
    assert "dp.everybody" not in content(con)
    again = con.run(BATCH, 0.5)
    assert (again.id, again.cost) == (1, 0)
    assert again["low"] == first["low"]
    assert set(rebuilt_alike(con)) == {
        *("dp.everybody", "dp.low", "dp.releases", "main.releases", "r1.everybody", "r1.low"),
    }


def test_the_same_batch_gives_its_first_names_back(place: Path) -> None:
    con = connect(place)
    con.run(BATCH, 0.5)
    con.rename("low", "lower half")
    con.run(BATCH, 0.5)
    assert {"dp.low", "r1.low"} <= set(rebuilt_alike(con))
    assert con.budget.spent == 0.5


def test_a_busy_releases_file_catches_up(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    con = connect(place)
    con.run(BATCH, 0.5)
    with duckdb.connect(str(con.releases_path)):
        con.drop("low")
        assert "the ledger has the new names, the releases file not yet" in caplog.text
    assert connect(place).sql("SELECT names FROM releases").fetchall() == [(["everybody"],)]
    assert "dp.low" not in content(con)


def test_what_is_refused(place: Path) -> None:
    con = connect(place)
    with pytest.raises(dpsql.LedgerError, match="nothing was released yet"):
        con.drop("low")
    con.run(BATCH, 0.5)
    with pytest.raises(dpsql.IntegrityError, match="kept for dpsql itself"):
        con.rename("low", "q7")
    with pytest.raises(dpsql.IntegrityError, match="T is a table or view of the policy"):
        con.rename("low", "T")
    with pytest.raises(dpsql.ProgrammingError, match="no release shows a result lo: did you mean low"):
        con.rename("lo", "x")
    with pytest.raises(dpsql.InterfaceError, match="needs the names"):
        con.drop()
    con.close()
    for call in (lambda: con.rename("low", "x"), lambda: con.drop("low")):
        with pytest.raises(dpsql.InterfaceError, match="closed"):
            call()


def test_an_open_connection_sees_the_new_names(place: Path) -> None:
    with duckdb.connect(":memory:") as mine:
        mine.execute("CREATE TABLE t AS SELECT i % 10 AS k FROM range(50) r(i)")
        policy = dpsql.Policy.parse(POLICY.replace('source = "t.csv"\n', "").replace(', type = "INTEGER"', ""))
        con = dpsql.connect(mine, policy=policy, ledger=place / "open.ledger")
        con.run(BATCH, 0.5)
        con.rename("low", "lower half")
        assert (
            mine.sql('SELECT n FROM dpsql_releases.dp."lower half"').fetchall()
            == con.sql('SELECT n FROM "lower half"').fetchall()
        )


@pytest.mark.long
def test_queries_over_releases_have_a_limit_of_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    monkeypatch.setattr(limits, "CALL", 0)
    endless = "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range % 7 = b.range"
    con = connect(place, query_timeout=0.2)
    with pytest.raises(dpsql.OperationalError, match=r"stopped after 0\.2 s"):
        con.cursor().execute(endless)  # before there is a releases file
    con.run(BATCH, 0.5)
    for ask in (con.sql, con.cursor().execute):
        with pytest.raises(dpsql.OperationalError, match=r"stopped after 0\.2 s; narrow it"):
            ask(endless)
    assert con.sql("SELECT 1").fetchall() == [(1,)]
    assert connect(place, query_timeout=None).sql("SELECT 1").fetchall() == [(1,)]
    for wrong in (0, -1, float("nan"), True, "60"):
        with pytest.raises(dpsql.DataError, match="query_timeout must be a positive number"):
            connect(place, query_timeout=wrong)
