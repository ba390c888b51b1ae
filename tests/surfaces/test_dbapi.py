"""Cursors: what is free, what is charged, what is refused, and PEP 249's ways around all that."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from helpers import filled

import dpsql
from dpsql.engines import duckdb as duckdb_engine
from dpsql.running.earlier.same_question import most_precise, question_keys

POLICY = """
dataset = "d-1"
[budget]
epsilon = 100.0
delta = 1e-9
pure_epsilon = 50.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b"], nulls = false }
k = { lower = 0, upper = 9, nulls = false }
v = { lower = 0, upper = 10 }
e = { values = ["x"] }
[tables.codes]
public = true
key = ["g"]
[views]
low = { sql = "SELECT * FROM t WHERE k < 5" }
"""
N = 400
COUNT = "SELECT count(*) AS n FROM t"
BY_G = "CREATE OR REPLACE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g"


def database(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with filled(folder / "d.duckdb") as duck:
        duck.execute("CREATE TABLE codes (g VARCHAR, name VARCHAR); CREATE TYPE secret AS ENUM ('x', 'HIV+')")
        duck.execute(
            "CREATE TABLE t AS SELECT CASE i % 4 WHEN 0 THEN 'b' ELSE 'a' END AS g, (i % 10)::INTEGER AS k, "
            f"i % 11 AS v, 'x'::secret AS e, i AS hidden FROM range({N}) r(i)"
        )
    (folder / "p.toml").write_text(POLICY)
    return folder / "d.duckdb"


def connected(folder: Path, **options: Any) -> dpsql.Connection:
    return dpsql.connect(folder / "d.duckdb", policy=folder / "p.toml", **options)


@pytest.fixture
def con(tmp_path: Path) -> Iterator[dpsql.Connection]:
    database(tmp_path)
    with connected(tmp_path) as connection:
        yield connection


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    """A connection with one release, for tests that charge nothing."""
    folder = tmp_path_factory.mktemp("dbapi")
    database(folder)
    connection = connected(folder)
    connection.run(f"{BY_G}; {COUNT}", 10)
    return connection


@pytest.fixture
def free(shared: dpsql.Connection) -> Iterator[dpsql.Cursor]:
    """A cursor with which nothing may be charged."""
    spent = shared.budget.spent
    with shared.cursor() as cur:
        yield cur
    assert shared.budget.spent == spent


def refused(kind: type[dpsql.Error], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def charges(connection: dpsql.Connection) -> int:
    return len(connection.releases())


# -- the module ------------------------------------------------------------------------------------


def test_the_globals() -> None:
    assert (dpsql.apilevel, dpsql.threadsafety, dpsql.paramstyle) == ("2.0", 2, "qmark")
    assert dpsql.Date(2002, 12, 25) == dt.date(2002, 12, 25)
    assert dpsql.Time(13, 45, 30) == dt.time(13, 45, 30)
    assert dpsql.Timestamp(2002, 12, 25, 13, 45, 30) == dt.datetime(2002, 12, 25, 13, 45, 30)
    ticks = time.mktime((2002, 12, 25, 13, 45, 30, 0, 0, -1))
    assert dpsql.TimestampFromTicks(ticks) == dt.datetime(2002, 12, 25, 13, 45, 30)
    assert (dpsql.DateFromTicks(ticks), dpsql.TimeFromTicks(ticks)) == (dt.date(2002, 12, 25), dt.time(13, 45, 30))
    assert dpsql.Binary(b"x") == b"x"


@pytest.mark.parametrize(
    ("kind", "equal"),
    [
        ("VARCHAR", "STRING"),
        ("ENUM('a', 'NUMBER(')", "STRING"),
        ("DECIMAL(18,2)", "NUMBER"),
        ("DOUBLE", "NUMBER"),
        ("BOOLEAN", "NUMBER"),
        ("TIMESTAMP", "DATETIME"),
        ("TIMESTAMP WITH TIME ZONE", "DATETIME"),
        ("BLOB", "BINARY"),
        ("VARCHAR[]", None),
        ("STRUCT(a INTEGER)", None),
    ],
)
def test_a_type_equals_its_kind(kind: str, equal: str | None) -> None:
    found = [
        o.name
        for o in (dpsql.STRING, dpsql.BINARY, dpsql.NUMBER, dpsql.DATETIME, dpsql.ROWID)
        if kind == o and o == kind
    ]
    assert found == ([] if equal is None else [equal])
    assert dpsql.STRING != dpsql.NUMBER
    assert len({dpsql.STRING, dpsql.STRING, dpsql.NUMBER}) == 2


# -- free ------------------------------------------------------------------------------------------


def test_a_cursor_has_no_side_effects(tmp_path: Path) -> None:
    database(tmp_path)
    before = sorted(os.listdir(tmp_path))
    con = connected(tmp_path)
    cur = con.cursor()
    assert (cur.description, cur.rowcount, cur.rownumber, cur.arraysize, cur.lastrowid) == (None, -1, None, 1, None)
    assert cur.connection is con
    cur.setinputsizes([1])
    cur.setoutputsize(1, 2)
    cur.close()
    cur.close()
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.long
def test_percentiles_within_a_group_are_answered_again(tmp_path: Path) -> None:
    """In any writing, beside what a release holds of the column, and for shares that are parameters."""
    database(tmp_path)
    with connected(tmp_path, epsilon_per_release=1) as con, con.cursor() as cur:
        cur.execute("SELECT quantile_cont(v, 0.5) AS m FROM t")
        for function in ("percentile_cont", "percentile_disc"):
            for share in (0.5, 0.9):
                asked = f"SELECT {function}(?) WITHIN GROUP (ORDER BY v) AS m FROM t"
                assert [column.names for column in cur.columns(asked, [share])] == [["m"]]
                again = f'SELECT {function}({share}) WITHIN GROUP (ORDER BY "v") AS k FROM t'
                for statement, given in ((asked, [share]), (again, None)):
                    ((value,),) = cur.execute(statement, given).fetchall()
                    assert abs(value - 10 * share) < 4


def test_a_pivot_is_a_query_of_a_cursor(tmp_path: Path) -> None:
    database(tmp_path)
    asked = "PIVOT t ON g USING count(*) AS n GROUP BY k ORDER BY k LIMIT 2"
    with connected(tmp_path, epsilon_per_release=10) as con, con.cursor() as cur:
        assert [column.names for column in cur.columns(asked)] == [["k", "a_n", "b_n"]]
        rows = cur.execute(f"CREATE VIEW v AS {asked}").fetchall()
        assert [row[0] for row in rows] == [0, 1]
        assert cur.execute(asked).fetchall() == rows
        assert cur.execute("PIVOT dp.v ON k IN (0, 1) USING max(a_n)").fetchall()[0] is not None
        assert "write PIVOT ... ON column IN" in refused(dpsql.SQLError, lambda: cur.execute("PIVOT dp.v ON k"))


PROBES = [
    ("SELECT 1", [("1", "INTEGER")], [(1,)]),
    ("SELECT ? AS x", [("x", "INTEGER")], [(1,)]),
    ("\ufeffSELECT 1", [("1", "INTEGER")], [(1,)]),
    ("VALUES (1)", [("col0", "INTEGER")], [(1,)]),
    ("SELECT * FROM t WHERE 1=0", [("g", "VARCHAR"), ("k", "INTEGER"), ("v", "BIGINT"), ("e", "VARCHAR")], []),
    ("SELECT k, v FROM t LIMIT 0", [("k", "INTEGER"), ("v", "BIGINT")], []),
    ("SELECT * FROM low WHERE FALSE", [("g", "VARCHAR"), ("k", "INTEGER"), ("v", "BIGINT"), ("e", "VARCHAR")], []),
    ("SELECT g, count(*) AS n FROM t WHERE k < 5 AND 1 = 0 GROUP BY g", [("g", "VARCHAR"), ("n", "DOUBLE")], []),
    ("SELECT * FROM (SELECT g, count(*) AS n FROM t GROUP BY g) q WHERE 0=1", [("g", "VARCHAR"), ("n", "DOUBLE")], []),
    ("SELECT * FROM (SELECT avg(v) AS m FROM t) LIMIT 0", [("m", "DOUBLE")], []),
    ("SELECT count(*) AS n, avg(v) AS m FROM t WHERE FALSE", [("n", "DOUBLE"), ("m", "DOUBLE")], [(0.0, None)]),
    ("SELECT count(*) AS n FROM t WHERE NULL LIMIT 0", [("n", "DOUBLE")], []),
    ("CREATE VIEW w AS SELECT count(*) AS n FROM t WHERE 1 > 2", [("n", "DOUBLE")], [(0.0,)]),
]


@pytest.mark.parametrize(("sql", "columns", "rows"), PROBES, ids=[p[0] for p in PROBES])
@pytest.mark.few(every=3)
def test_a_probe_costs_nothing_and_scans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, columns: list[tuple[str, str]], rows: list[Any]
) -> None:
    database(tmp_path)
    monkeypatch.setattr(duckdb_engine, "_scan", lambda *_: pytest.fail("a probe scanned the table"))
    before = sorted(os.listdir(tmp_path))
    with connected(tmp_path) as con, con.cursor() as cur:
        cur.execute(sql, [1] if "?" in sql else None)
        assert cur.description is not None
        assert [column[:2] for column in cur.description] == columns
        assert cur.fetchall() == rows
        assert cur.release is None
    assert sorted(os.listdir(tmp_path)) == before


def test_what_is_no_probe(free: dpsql.Cursor) -> None:
    # One row each, and it depends on the data.
    for sql in (
        "SELECT count(*) + (SELECT count(*) FROM t WHERE k < 3) AS x FROM t WHERE FALSE",
        "SELECT count(*) AS n FROM t WHERE k < 4 OR FALSE",
        "SELECT count(*) AS n FROM t WHERE k < 4 LIMIT 1",
    ):
        assert "no budget is given" in refused(dpsql.ProgrammingError, lambda sql=sql: free.execute(sql))
    assert "no column nope" in refused(dpsql.SQLError, lambda: free.execute("SELECT nope FROM t WHERE 1=0"))
    refused(dpsql.SQLError, lambda: free.execute("SELECT hidden FROM t LIMIT 0"))


def test_a_probe_has_the_columns_of_a_release(free: dpsql.Cursor, shared: dpsql.Connection) -> None:
    sql = "SELECT g, count(*) AS n FROM t GROUP BY g"
    for errors in (False, True):
        with shared.cursor(errors=errors) as cur:
            real = cur.execute(sql).description
            probe = cur.execute(f"SELECT * FROM ({sql}) WHERE 1=0").description
            assert probe == real
            assert (len(real or ()) == 5) == errors


def test_releases_are_read_for_nothing(free: dpsql.Cursor, shared: dpsql.Connection) -> None:
    whole = shared.sql("SELECT * FROM by_g ORDER BY g").fetchall()
    for sql in ("SELECT * FROM by_g ORDER BY g", "FROM dp.by_g ORDER BY g", "SELECT * FROM r1.by_g ORDER BY ALL"):
        assert free.execute(sql).fetchall() == whole
    assert free.execute("SELECT n FROM by_g WHERE g = :g", {"g": "a"}).fetchall() == [(whole[0][1],)]
    assert free.execute("WITH t AS (SELECT n FROM by_g) SELECT count(*) FROM t").fetchall() == [(2,)]
    free.execute("SELECT sum(n) FROM by_g; SELECT 1 AS one; FROM range(2)")
    assert free.nextset()
    assert (free.fetchall(), free.nextset(), free.fetchall(), free.nextset()) == ([(1,)], True, [(0,), (1,)], None)
    assert free.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'by_g'").rowcount > 2
    assert free.execute("SELECT names FROM releases WHERE release_id = 1").fetchall() == [(["by_g", "q1"],)]
    assert free.execute("SUMMARIZE by_g").rowcount == 5


def test_what_there_is_to_ask(free: dpsql.Cursor) -> None:
    assert free.execute("SHOW TABLES").fetchall() == [
        *(("by_g", "released"), ("q1", "released"), ("t", "private"), ("codes", "public"), ("low", "private view"))
    ]
    assert [row[:2] for row in free.execute("DESCRIBE t")] == [
        *(("g", "VARCHAR"), ("k", "INTEGER"), ("v", "BIGINT"), ("e", "VARCHAR"))  # no hidden column, no ENUM's members
    ]
    assert [row[0] for row in free.execute("DESCRIBE by_g")][:2] == ["g", "n"]


@pytest.mark.long
def test_an_earlier_answer_is_free_at_any_budget(con: dpsql.Connection) -> None:
    cur = con.cursor()
    rel = con.run(COUNT, 1)
    (value,) = rel["q1"].column("n")
    assert cur.execute("select  count(*) as n from t -- again").fetchall() == [(value,)]
    assert cur.release is not None
    assert (cur.release.id, cur.release.cost) == (1, 0)
    assert cur.execute(COUNT, epsilon=0.5).fetchone() == (value,)
    assert cur.execute(COUNT, epsilon=1).fetchone() == (value,)
    assert charges(con) == 1
    # More precision than there is must be paid for, and the best is what is found from then on.
    better = cur.execute(COUNT, epsilon=4).fetchone()
    assert cur.release is not None
    assert (cur.release.id, cur.release.cost, charges(con)) == (2, 4, 2)
    con.run(COUNT, 2, fresh=True)
    assert cur.execute(COUNT).fetchone() == better
    assert (
        cur.execute("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=?) count(*) AS n FROM t", [3]).fetchone()
        == better
    )
    with connected(con.ledger_path.parent, epsilon_per_release=3) as usual:  # a default names a budget, too
        assert usual.cursor().execute(COUNT).fetchone() == better
    assert charges(con) == 3
    with connected(con.ledger_path.parent, epsilon_per_release=9) as usual:
        cur = usual.cursor().execute(COUNT)
        assert cur.release is not None
        assert (cur.release.cost, cur.messages, charges(con)) == (9, [], 4)


def test_a_statement_of_an_earlier_batch_is_free(free: dpsql.Cursor, shared: dpsql.Connection) -> None:
    (known,) = shared.sql("SELECT n FROM q1").fetchall()[0]
    free.execute("SELECT count(*) AS n FROM t")
    assert free.fetchall() == [(shared.sql("SELECT n FROM q1").fetchall()[0][0],)]
    free.execute("SELECT count(*) AS n FROM t; SELECT g, count(*) AS n FROM t GROUP BY g")
    assert (free.rowcount, free.nextset(), free.rowcount) == (1, True, 2)
    assert free.release is not None
    assert free.release.cost == 0
    # Other names for what is known are free as well, and other rows another question.
    (other,) = free.execute("SELECT count(*) AS m FROM t").fetchall()
    assert free.release is not None
    assert (free.release.cost, free.release.guarantee.split()[0]) == (0, "free,")
    assert other[0] == pytest.approx(known)
    for sql in ("SELECT count(*) AS n FROM low", "SELECT sum(v) AS s FROM low"):
        refused(dpsql.ProgrammingError, lambda sql=sql: free.execute(sql))


def test_a_view_asked_again_shows_its_answer_again(con: dpsql.Connection) -> None:
    cur = con.cursor()
    first = cur.execute(BY_G, epsilon=1).fetchall()
    other = BY_G.replace("FROM t", "FROM low")
    cur.execute(other, epsilon=1)
    assert con.sql("SELECT g, n FROM by_g ORDER BY g").fetchall() != first
    assert cur.execute(BY_G).fetchall() == first
    assert con.sql("SELECT g, n FROM by_g ORDER BY g").fetchall() == first
    assert charges(con) == 2


def test_what_a_question_is(con: dpsql.Connection) -> None:
    plan = con.plan(f"{COUNT}; SELECT n + 1 AS m FROM q1; {BY_G}", 1)
    text = con.policy.to_toml()
    keys = question_keys(text, plan.queries)
    assert len(set(keys)) == 3
    assert question_keys(text.replace("epsilon = 100", "epsilon = 200"), plan.queries) == keys
    for old, new in (("d-1", "d-2"), ("upper = 9", "upper = 99"), ("k < 5", "k < 6")):
        assert old in text
        assert not set(question_keys(text.replace(old, new), plan.queries)) & set(keys)
    other = con.plan("SELECT count(*) AS n FROM low; SELECT n + 1 AS m FROM q1", 1)
    assert question_keys(text, other.queries)[1] not in keys  # the same words about another result
    assert most_precise([], keys, None, None, {}) is None
    # The name of a data version may look like the head of the budget.
    odd = [text.replace("d-1", f"d[budget]{number}") for number in (1, 2)]
    assert not set(question_keys(odd[0], plan.queries)) & set(question_keys(odd[1], plan.queries))


@pytest.mark.long
def test_a_column_of_another_type_is_another_question(tmp_path: Path) -> None:
    file = database(tmp_path)
    with connected(tmp_path) as con:
        con.cursor().execute(COUNT, epsilon=1)
        con.cursor().execute(BY_G, epsilon=1)
    with duckdb.connect(str(file)) as duck:
        duck.execute("ALTER TABLE t ALTER v TYPE DOUBLE")
    with connected(tmp_path) as con:
        for sql in (COUNT, BY_G):
            refused(dpsql.ProgrammingError, lambda sql=sql: con.cursor().execute(sql))
        assert charges(con) == 2


def test_error_columns(con: dpsql.Connection) -> None:
    con.run(COUNT, 1, errors=False)
    with con.cursor(errors=True) as cur:
        cur.execute(COUNT)  # what was measured has errors, though the first release did not show them
        assert cur.release is not None
        assert cur.release.cost == 0
        assert [column[0] for column in cur.description or ()] == ["n", "n_stderr", "n_low", "n_high"]
    con.run("SELECT sum(v) AS s FROM t", 1, alpha=0.1)
    with con.cursor() as cur:
        assert cur.execute("SELECT sum(v) AS s FROM t").rowcount == 1
    with con.cursor(errors=True) as cur:  # intervals of another level
        assert cur.execute("SELECT sum(v) AS s FROM t").rowcount == 1
        assert cur.release is not None
        assert (cur.release.cost, cur.release.guarantee) == (0, "free, from releases 1, 3")
    with connected(con.ledger_path.parent, cursor_errors=True) as wide:
        assert len(wide.cursor().execute(COUNT).description or ()) == 4
        assert len(wide.cursor(errors=False).execute(COUNT).description or ()) == 1


@pytest.mark.long
def test_a_cursor_shows_the_columns_that_are_selected_and_the_mark_of_other_on_request(tmp_path: Path) -> None:
    file = database(tmp_path)
    (tmp_path / "p.toml").write_text(POLICY.replace('["a", "b"], nulls', '["a"], other = true, nulls'))
    batches = {
        "SELECT g, count(*) AS n FROM t GROUP BY g": (["g", "n"], ["g", "g_other", "n", "n_stderr", "n_low", "n_high"]),
        "SELECT count(*) AS n, g FROM t GROUP BY g LIMIT 5": (
            ["n", "g"],
            ["n", "n_stderr", "n_low", "n_high", "g", "g_other"],
        ),
    }
    with dpsql.connect(file, policy=tmp_path / "p.toml") as con:
        for sql, (selected, shown) in batches.items():
            assert [row[0] for row in con.cursor().execute(f"SELECT * FROM ({sql}) WHERE 1 = 0").description or ()] == (
                selected
            )
            release = con.run(sql, epsilon=10)
            assert list(release["q1"].columns) == shown  # which keeps them
            for errors, names in ((False, selected), (True, shown)):
                cur = con.cursor(errors=errors).execute(sql)
                assert [column[0] for column in cur.description or ()] == names
                assert len(cur.fetchall()[0]) == len(names)
        ranges = "SELECT g, dp_ranges(k) AS r, count(*) AS n FROM t GROUP BY g, r"
        for errors in (False, True):
            cur = con.cursor(errors=errors).execute(ranges, epsilon=10)
            assert any(column[0] == "g_other" for column in cur.description or ()) == errors


# -- charged ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_where_a_budget_comes_from(con: dpsql.Connection) -> None:
    said = refused(dpsql.ProgrammingError, lambda: con.cursor().execute(COUNT))
    assert all(way in said for way in ("epsilon=", "epsilon_per_release", "OPTIONS"))
    folder = con.ledger_path.parent
    with connected(folder, epsilon_per_release="0.25", delta_per_release=1e-9) as usual:
        cur = usual.cursor()
        cur.execute(COUNT)
        assert cur.release is not None
        assert cur.release.guarantee == "epsilon 0.25 (pure)"
        cur.execute("SELECT count(*) FROM t WHERE k < ?", [3], epsilon=1)
        assert cur.release.cost == 1
        cur.execute("SELECT count(*) FROM t WHERE k < 4", delta=1e-10)
        assert cur.release.cost == 0.25
        cur.execute("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=0.5) count(*) FROM t WHERE k < 5")
        assert cur.release.cost == 0.5
        cur.execute("SELECT count(*) FROM t WHERE k < 6", rho=0.01)
        assert cur.release.guarantee == "rho 0.01 (zCDP)"
        spent = usual.budget.spent
        both = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=0.5) count(*) FROM t WHERE k < 7"
        refused(dpsql.DataError, lambda: cur.execute(both, epsilon=1))
        refused(dpsql.BudgetError, lambda: cur.execute("SELECT count(*) FROM t WHERE k < 7", epsilon=1000))
        assert usual.budget.spent == spent
    for bad in (
        {"epsilon_per_release": 0},
        {"delta_per_release": 1e-9},
        {"rho_per_release": 1, "epsilon_per_release": 1},
    ):
        refused(dpsql.DataError, lambda bad=bad: connected(folder, **bad))


def test_several_statements_are_one_batch(con: dpsql.Connection) -> None:
    cur = con.cursor()
    cur.execute(f"{BY_G};\n SELECT n FROM by_g WHERE g = ?; SELECT sum(v) AS s FROM t;", ["a"], epsilon=20)
    assert (charges(con), con.budget.spent) == (1, 20)
    assert [column[0] for column in cur.description or ()] == ["g", "n"]
    rows = cur.fetchall()
    assert cur.fetchall() == []
    assert cur.nextset() is True
    assert cur.fetchall() == [rows[0][1:]]
    assert cur.nextset() is True
    assert [column[0] for column in cur.description or ()] == ["s"]
    assert cur.nextset() is None
    assert cur.rowcount == 1  # still at the last result


def test_executemany_is_one_batch_with_one_result(con: dpsql.Connection) -> None:
    cur = con.cursor()
    sql = "SELECT ? AS below, count(*) AS n FROM t WHERE k < ? -- rows"
    cur.executemany(sql, ((k, k) for k in (2, 5, 8)), epsilon=20)
    assert (charges(con), con.budget.spent, cur.rowcount) == (1, 20, 3)
    rows = cur.fetchall()
    assert [row[0] for row in rows] == [2, 5, 8]
    assert all(abs(n - k * N / 10) < 40 for k, n in rows)
    assert cur.nextset() is None
    assert cur.executemany(sql, [[5, 5]]).fetchall() == [rows[1]]  # a statement of that batch
    cur.executemany("SELECT ? AS a; SELECT ? AS b", [[1, 2], [3, 4]])
    assert (cur.fetchall(), cur.nextset(), cur.fetchall()) == ([(1,), (3,)], True, [(2,), (4,)])
    cur.executemany("SELECT :k AS k", [{"k": 1}, {"k": None}])
    assert cur.fetchall() == [(1,), (None,)]
    cur.executemany(sql, [])
    assert (cur.description, cur.rowcount) == (None, 0)
    refused(dpsql.ProgrammingError, cur.fetchone)
    refused(dpsql.ProgrammingError, lambda: cur.executemany(sql, [[1]], epsilon=1))
    refused(dpsql.ProgrammingError, lambda: cur.executemany(sql, 5))
    refused(dpsql.ProgrammingError, lambda: cur.executemany(sql, {"k": 1}))
    assert "two results" in refused(
        dpsql.SQLError, lambda: cur.executemany(BY_G + " HAVING n > ?", [[1], [2]], epsilon=1)
    )
    assert charges(con) == 1


# -- results ---------------------------------------------------------------------------------------


def test_fetching(free: dpsql.Cursor) -> None:
    refused(dpsql.ProgrammingError, free.fetchone)
    refused(dpsql.ProgrammingError, free.nextset)
    assert free.execute("FROM range(7)") is free
    assert (free.rowcount, free.rownumber) == (7, 0)
    assert free.fetchone() == (0,)
    assert free.fetchmany() == [(1,)]
    free.arraysize = 2
    assert free.fetchmany() == [(2,), (3,)]
    assert free.fetchmany(0) == free.fetchmany(-1) == []
    assert free.rownumber == 4
    assert next(free) == (4,)
    assert list(free) == [(5,), (6,)]
    assert (free.fetchone(), free.fetchmany(3), free.fetchall()) == (None, [], [])
    free.execute("SELECT 1.50::DECIMAL(5,2) AS d")
    assert free.description == (("d", "DECIMAL(5,2)", None, None, 5, 2, True),)
    refused(dpsql.SQLError, lambda: free.execute("SELECT nope"))
    assert (free.description, free.rowcount) == (None, 0)
    refused(dpsql.ProgrammingError, free.fetchall)


def test_closing(tmp_path: Path) -> None:
    database(tmp_path)
    con = connected(tmp_path)
    cur, other = con.cursor().execute("SELECT 1"), con.cursor().execute("SELECT 1")
    with cur as same:
        assert same is cur
    for call in (cur.fetchone, cur.fetchall, cur.nextset, lambda: cur.execute("SELECT 1"), lambda: next(cur)):
        refused(dpsql.InterfaceError, call)
    con.close()
    con.close()
    for call in (other.fetchone, lambda: other.execute("SELECT 1"), con.cursor, con.commit, con.rollback):
        refused(dpsql.InterfaceError, call)
    other.close()
    refused(dpsql.InterfaceError, other.__enter__)


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "/* hi */ update t SET k = 1",
        "DELETE FROM t",
        "CREATE TABLE x (a INTEGER)",
        "CREATE OR REPLACE TEMP TABLE x AS SELECT 1",
        "CREATE MACRO m() AS 1",
        "DROP VIEW by_g",
        "TRUNCATE t",
        "ALTER TABLE t ADD COLUMN x INTEGER",
        "COPY t TO 'out.csv'",
        "ATTACH 'x.db'",
        "PRAGMA table_info('t')",
        "SET threads = 1",
        "BEGIN",
        "COMMIT",
        "EXPLAIN SELECT count(*) FROM t",
        "CALL duckdb_tables()",
        "SELECT count(*) FROM t; DROP TABLE t",
        "SUMMARIZE t",
        "TABLE t",
        "DESCRIBE SELECT * FROM t",
    ],
)
def test_statements_that_change_or_show_something_are_not_supported(free: dpsql.Cursor, sql: str) -> None:
    refused(dpsql.NotSupportedError, lambda: free.execute(sql, epsilon=1))
    refused(dpsql.NotSupportedError, lambda: free.callproc("lower", ["FOO"]))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM by_g JOIN t USING (g)", "one statement reads the one or the other"),
        ("SELECT (SELECT max(n) FROM by_g) AS x, count(*) FROM t", "one statement reads the one or the other"),
        ("SELECT count(*) FROM t; SELECT * FROM by_g", "execute them one after the other"),
        ("SELECT count(*) FROM tt", "did you mean t"),
        ("SELECT * FROM main.ttt", "no released view is called main.ttt"),
        ("SELECT * FROM by_gg", "did you mean by_g"),
        ("CREATE VIEW x AS SELECT * FROM by_g", "only what is measured becomes a view"),
        ("SELECT * FROM dp.t", "t"),
        ("SELECT * FROM r99.by_g", "r99"),
        ("SELECT g FROM t", ""),
        ("SELECT * FROM codes", "public"),
        ("SELECT FROM WHERE t", "syntax error"),
        ("SELEC 1", "SELECT"),
        ("SELECT * FROM 'data.csv'", "data.csv"),
        ("SELECT * FROM read_csv('/etc/passwd')", ""),
        ("WITH x AS (INSERT INTO dp.by_g VALUES (1)) SELECT 1", ""),
        ("SHOW databases; SELECT count(*) FROM t", "execute them"),
        ("SELECT 'a", "quotes"),
        ("", "empty"),
        (";; -- nothing", "empty"),
        (None, "string"),
    ],
)
def test_other_refusals(free: dpsql.Cursor, sql: Any, said: str) -> None:
    assert said in refused(dpsql.SQLError, lambda: free.execute(sql, epsilon=1))


def test_a_refusal_points_into_the_text_with_its_parameters(free: dpsql.Cursor) -> None:
    with pytest.raises(dpsql.SQLError) as caught:
        free.execute("SELECT count(*) FROM t WHERE k = ? AND nope = 1", ["it's"])
    (note,) = caught.value.__notes__
    assert "'it''s' AND nope = 1" in note or "'it''s'" in note
    assert "^" in note


# -- tools and threads -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy")
def test_pandas_reads_through_a_connection(tmp_path: Path) -> None:
    database(tmp_path)
    with connected(tmp_path, epsilon_per_release=20) as con:
        frame = pd.read_sql("SELECT g, count(*) AS n FROM t WHERE k < ? GROUP BY g", con, params=[5])
        assert list(frame.columns) == ["g", "n"]
        assert frame["n"].sum() == pytest.approx(N / 2, abs=20)
        again = pd.read_sql("SELECT g, count(*) AS n FROM t WHERE k < 5 GROUP BY g", con)
        assert again.equals(frame)
        assert charges(con) == 1
        with pytest.raises((dpsql.SQLError, pd.errors.DatabaseError), match="raw rows are private"):
            pd.read_sql("SELECT * FROM t", con)


@pytest.mark.long
def test_threads_share_a_connection(con: dpsql.Connection) -> None:
    failures: list[BaseException] = []
    answers: list[tuple[Any, ...] | None] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            start.wait()
            with con.cursor() as cur:
                answers.append(cur.execute(COUNT, epsilon=1).fetchone())
                cur.execute("SELECT count(*) AS n FROM t WHERE k < ?", [number % 3 + 1], epsilon=1)
                assert cur.execute("SELECT count(*) FROM dp.q1").fetchone() == (1,)
        except BaseException as error:  # noqa: BLE001 - to be seen in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(answers)) == 1  # all but the first had the earlier answer
    assert charges(con) == 4
    assert con.budget.spent == pytest.approx(4)


@pytest.mark.long
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    shutil.copy(root / "sql_examples" / "rand_hie.toml", tmp_path)
    shutil.copytree(root / "sql_examples" / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(
        r"```python\n(.*?)```", (root / "docs" / "dbapi.md").read_text(encoding="utf-8"), re.DOTALL
    ):
        exec(block, names)
    assert capsys.readouterr().out.endswith("\n0.0\n")
    assert len(names["by_health"]) == 4
    assert names["everyone"] == pytest.approx(sum(n for _, n in names["by_health"]))
    assert charges(names["con"]) == 3
