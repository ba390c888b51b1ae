"""Noisy tables that GROUP BY unites: one table, or no DuckDB at all, shows what thousands of tables would."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

import dpsql
from dpsql.common.quoting import identifier
from dpsql.release.columns import Coded, Numbers, coded, stacked
from dpsql.running import post_process as afterwards
from dpsql.sql.outer.relation import (
    ColumnInfo,
    Named,
    Relation,
    Selected,
    United,
    bare,
    combined,
    gathered,
    hole,
)
from dpsql.sql.outer.sandbox import Sandbox

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["x", "y"], nulls = false }
h = { values = ["x", "y"], other = true }
day = { values = [2024-01-01, 2024-01-02], nulls = false }
a = { lower = 0, upper = 3, nulls = false }
b = { lower = 0, upper = 9 }
""")

ROWS = [
    ("x", "x", "2024-01-01", 0, 1),
    ("x", "y", "2024-01-02", 1, 2),
    ("x", "z", "2024-01-01", 1, 3),
    ("y", None, "2024-01-02", 3, None),
]

UNITED = "SELECT g, h, day, COUNT(*) AS n, AVG(a) AS m FROM t GROUP BY CUBE (g, h, day)"
BATCHES = {
    "cube": UNITED,
    "marginals": "SELECT h, a, COUNT(*) FROM t GROUP BY dp_marginals(2, h, a)",
    "bits": "SELECT g, h, GROUPING(g) AS one, GROUPING(h, g) AS two, SUM(b) AS s FROM t GROUP BY ROLLUP (g, h)",
    "bits of one": "SELECT g, GROUPING(g) AS one, SUM(b) AS s FROM t GROUP BY dp_marginals(1, g)",
    "keys of CASE": "SELECT CASE WHEN a < 2 THEN 'low' ELSE 'high' END AS c, g, COUNT(*) FROM t GROUP BY CUBE (c, g)",
    "twice": f"WITH u AS ({UNITED}) SELECT u.g, v.n, u.n FROM u JOIN u v ON u.g = v.g AND u.n > v.n ORDER BY ALL",
    "sides": f"{UNITED} UNION ALL SELECT g, NULL, NULL, COUNT(*), 0 FROM t GROUP BY GROUPING SETS (g, ())",
    "within": "SELECT g, COUNT(*) AS n FROM t GROUP BY ROLLUP (g) HAVING n > (SELECT COUNT(*) FROM t WHERE a = 3)",
    "quantiles": "SELECT day, g, MEDIAN(a) AS q FROM t GROUP BY GROUPING SETS (day, g, (day, g)) ORDER BY q, g, day",
    "distinct": "SELECT DISTINCT g, a > 1 AS large FROM t GROUP BY CUBE (g, a) HAVING COUNT(*) > 0 ORDER BY ALL",
    "a later one": f"CREATE VIEW u AS {UNITED}; SELECT h, n FROM u WHERE g IS NULL ORDER BY ALL LIMIT 3",
}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (g VARCHAR, h VARCHAR, day DATE, a INTEGER, b INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", ROWS)
    return Pipeline.of(POLICY, connection)


def described(pipeline: Pipeline, batch: str) -> list[Any]:
    """Names, types and rows of every result."""
    return [(rows_of(table), [kind for _, kind, _ in table.columns]) for table in pipeline.results(batch, errors=True)]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=4)
def test_one_table_shows_what_the_union_of_all_tables_does(
    pipeline: Pipeline, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = described(pipeline, BATCHES[name])

    def apart(relation: Relation) -> tuple[Relation, dict[str, United]]:
        return relation, {}

    with monkeypatch.context() as patched:
        patched.setattr(afterwards, "gathered", apart)
        patched.setattr(Selected, "shown", lambda _: None)
        assert described(pipeline, BATCHES[name]) == found


def test_what_only_shows_noisy_tables_needs_no_duckdb(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = pipeline.plan(f"{UNITED}; {UNITED} ORDER BY n; {BATCHES['bits']}")
    plain, ordered, bits = (answer.outer for answer in plan.queries)
    assert isinstance(plain, Selected)
    assert isinstance(bits, Selected)
    assert isinstance(ordered, Selected)
    columns = ["g", "h", "h_other", "day", *(c + s for c in "nm" for s in ("", "_stderr", "_low", "_high"))]
    assert [name for name, _ in plain.shown() or ()] == columns
    assert ("one", "g0") in (bits.shown() or ())
    assert ordered.shown() is None

    def never(*_: object) -> None:
        raise AssertionError("a DuckDB was opened")

    monkeypatch.setattr(Sandbox, "connection", property(never))
    noisy = {name: [("k0", "VARCHAR", coded(["x"]))] for name in ("q#1.1", "q#1.2")}
    both = tuple(Named(name, (ColumnInfo("k0"),)) for name in noisy)
    shown = Selected(plain.items[:1], f"FROM {hole(0)}", (United("q#1", both),))
    running = afterwards.OuterSQL()
    assert afterwards.after_the_noise(shown, noisy, {}, 2, running) == ([("g", "VARCHAR", coded(["x", "x"]))], "", 2)
    said = afterwards.after_the_noise(shown, noisy, {}, 1, running)[1]
    assert said.startswith("makes 2 rows with 2 bytes of text, at most")
    monkeypatch.setattr(afterwards, "MOST_SHOWN", 1)
    assert afterwards.after_the_noise(shown, noisy, {}, 2, running)[:2] == (
        None, "makes 2 rows with 2 bytes of text, at most 1 and 2 fit",
    )  # fmt: skip


def test_the_same_question_over_equal_tables_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def noted(box: Sandbox, statement: str, seconds: float) -> bool:
        runs.append(statement)
        return run(box, statement, seconds)

    run = Sandbox.run
    monkeypatch.setattr(Sandbox, "run", noted)

    def table(name: str, *numbers: float) -> dict[str, list[tuple[str, str, Any]]]:
        return {name: [("n", "DOUBLE", Numbers(np.array(numbers)))]}

    with afterwards.OuterSQL() as running:
        for label, least, told in [("q1#1", 1, 1), ("q2#1", 1, 1), ("q3#1", 2, 2), ("q4#1", 1, 2)]:
            asked = f"""SELECT n, '"{label}"' AS t FROM "{label}" WHERE n >= {least} ORDER BY n"""
            columns, _, size = running.run(asked.replace(f""", '"{label}"' AS t""", ""), table(label, 3.0, 1.0), 100)
            assert columns == [("n", "DOUBLE", (1.0, 3.0) if least == 1 else (3.0,))]
            assert (size, len(runs)) == (0, told)
        del runs[:]
        for label in ("q1#1", "q2#1"):  # a text that is a table's name is none
            named = running.run(f"""SELECT '"{label}"' AS t, n FROM "{label}" """, table(label, 1.0), 100)[0]
            assert named == [("t", "VARCHAR", (f'"{label}"',)), ("n", "DOUBLE", (1.0,))]
        assert len(runs) == 2
        assert running.run('SELECT n FROM "q1#1"', table("q1#1", 1.0), 9)[0] == [("n", "DOUBLE", (1.0,))]
        assert running.run('SELECT n FROM "q2#1"', table("q2#1", 2.0), 9)[0] == [("n", "DOUBLE", (2.0,))]
        text = """SELECT 'abc' AS t FROM "q1#1" """
        assert running.run(text, table("q1#1", 1.0), 3)[1:] == ("", 3)
        assert running.run(text, table("q1#1", 1.0), 2)[1].startswith("makes 1 rows with 3 bytes")
        assert running.run("SELECT CAST('x' AS DATE) AS d FROM \"q1#1\"", table("q1#1", 1.0), 9) == (None, "", 0)


def test_what_takes_too_long_leaves_those_after_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "SELECT sum(a.i * b.i) AS s FROM range(1000000) a(i), range(1000000) b(i)"
    monkeypatch.setattr(afterwards, "OUTER_SECONDS", 0.05)
    with afterwards.OuterSQL() as running:
        before = running._sandbox.connection
        assert running.run(endless, {}, 9)[1] == "takes longer than 0 s"
        monkeypatch.setattr(afterwards, "OUTER_SECONDS", 60.0)
        assert running.run("SELECT 1 AS a", {}, 9)[0] == [("a", "INTEGER", (1,))]
        assert running._sandbox.connection is not before


def test_an_instance_that_an_error_left_unusable_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(box: Sandbox, statement: str, seconds: float) -> bool:
        box.connection.execute("ROLLBACK")  # so that there is nothing left to roll back
        raise duckdb.FatalException("the database has been invalidated")

    with afterwards.OuterSQL() as running:
        before = running._sandbox.connection
        with monkeypatch.context() as patched:
            patched.setattr(Sandbox, "run", broken)
            assert running.run("SELECT 1 AS a", {}, 9) == (None, "", 0)
        assert running.run("SELECT 2 AS a", {}, 9)[0] == [("a", "INTEGER", (2,))]
        assert running._sandbox.connection is not before


def test_unions_are_gathered_wherever_they_stand() -> None:
    tables = tuple(Named(f"q#1.{at}", (ColumnInfo("k0"), ColumnInfo(f"c{at}"))) for at in (1, 2))
    union, single = United("q#1", tables, (("g0", (0, 1)),)), United("q#2", tables[:1])
    assert [column.name for column in union.columns] == ["k0", "c1", "c2", "g0"]
    inner = Selected((), f"FROM {hole(0)}, {hole(1)}", (union, single))
    relation, found = gathered(combined(inner, "EXCEPT", bare(union)))
    assert found == {"q#1": union}
    text = relation.sql(True)
    assert text.count('FROM "q#1"') == 2
    assert text.count('"q#1.1"') == 1  # of the union of one table, which is read as it is
    assert '"q#1.2"' not in text
    assert union.sql(True).count(" UNION ALL BY NAME ") == 1


def test_tables_are_stacked_column_by_column() -> None:
    day = dt.date(2024, 1, 1)
    first = [("k", "BIGINT", Coded((1, 2), np.array([0, 1], dtype=np.int32))), ("n", "DOUBLE", Numbers(np.ones(2)))]
    second = [
        ("n", "DOUBLE", Numbers(np.array([3.0, 0.0]), np.array([False, True]))),
        ("d", "DATE", coded([day, None])),
    ]
    found = stacked([first, second, first])
    assert [(name, kind, tuple(values)) for name, kind, values in found] == [
        ("k", "BIGINT", (1, 2, None, None, 1, 2)),
        ("n", "DOUBLE", (1.0, 1.0, 3.0, None, 1.0, 1.0)),
        ("d", "DATE", (None, None, day, None, None, None)),
    ]
    mixed = stacked([[("k", "BIGINT", coded([1]))], [("k", "BIGINT", coded([True]))]])[0][2]
    assert [type(value) for value in mixed] == [int, bool]


@pytest.mark.long
def test_many_groupings_are_released(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(16)]
    domains = "\n".join(f"{name} = {{ values = [0, 1], nulls = false }}" for name in names)
    with duckdb.connect(tmp_path / "wide.duckdb") as raw:
        raw.execute(f"CREATE TABLE t AS SELECT {', '.join(f'range % 2 AS {name}' for name in names)} FROM range(100)")
    policy = (
        'dataset = "w-1"\n[budget]\nepsilon = 1000.0\ndelta = 1e-3\n[tables.t]\nunit = "row"\n'
        f"[tables.t.columns]\n{domains}"
    )
    con = dpsql.connect(tmp_path / "wide.duckdb", policy=dpsql.Policy.parse(policy), ledger=tmp_path / "wide.ledger")
    listed = ", ".join(identifier(name) for name in names)
    select = f"SELECT {listed}, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, {listed})"
    release = con.run(f"{select}; {select} ORDER BY n DESC LIMIT 5", epsilon=900.0, delta=1e-6)
    rows = release["q1"].fetchall()
    assert len(rows) == 16 * 2 + 16 * 15 // 2 * 4  # 136 groupings
    assert rows[0][:3] == (0, None, None)
    assert rows[-1][14:16] == (1, 1)
    assert len(release["q2"].fetchall()) == 5
