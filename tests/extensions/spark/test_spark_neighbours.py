"""Neighbours on Spark: one odd row, or one unit of them, never decides success and moves the integers by its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, job_of, policy_of, tables_of
from spark_tables import carry, x_of
from test_spark_functions import ROWS, TYPES, _row

from dpsql.extensions.spark.engine import SparkEngine
from dpsql.measure import cells
from dpsql.measure.reading import scan_of
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import Name

pytestmark = pytest.mark.spark

DECLARED = """
i8 = { lower = -5, upper = 5 }
i16 = { lower = -100, upper = 100 }
i32 = { lower = -1000, upper = 1000 }
i64 = { lower = -9000000000, upper = 9000000000, step = 1000000000 }
f64 = { lower = -1.5, upper = 2.5, step = 0.5 }
dec = { lower = 0, upper = 100, step = 0.01 }
mid = { lower = -1, upper = 100 }
txt = { values = ["", "a", "ß", "😀a"], other = true }
flag = { values = [true, false] }
d = { lower = 1999-01-01, upper = 2021-12-31 }
ts = { lower = 2021-01-01T00:00:00, upper = 2021-12-31T00:00:00 }
"""
BATCHES = [
    "SELECT txt, COUNT(*), SUM(f64), SUM(dec), SUM(i64), SUM(mid) FROM odd GROUP BY txt",
    "SELECT flag, COUNT(*), SUM(i8 * i16), SUM(f64 / 3), VAR_POP(i8) FROM odd WHERE year(d) > 2000 GROUP BY flag",
    "SELECT month(d) AS m, COUNT(*) FROM odd WHERE LOWER(txt) LIKE '%a%' OR f64 * i32 > 10 GROUP BY m",
    "SELECT COUNT_IF(i32 // i8 > 3), COUNT_IF(date_trunc('quarter', ts) < TIMESTAMP '2021-07-01'),"
    " COUNT_IF(1 / f64 < 0), COUNT_IF(d + INTERVAL 1 MONTH > ts), COUNT_IF(TRY_CAST(f64 AS INTEGER) = 2) FROM odd",
    "SELECT i16, COUNT(*) FROM odd GROUP BY i16",
]  # fmt: skip


def _made(name: str, rows: list[list[Any]]) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    columns = ", ".join(f"{column} {kind}" for column, kind in TYPES.items())
    con.execute(f"CREATE TABLE {name} (id INTEGER, {columns})")
    marks = ", ".join(f"CAST(? AS {kind})" for kind in ("INTEGER", *TYPES.values()))
    con.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    return con


def _table(spark: Any, folder: Path, name: str, rows: list[list[Any]]) -> duckdb.DuckDBPyConnection:
    con = _made(name, rows)
    carry(con, spark, name, folder)
    return con


@pytest.fixture(scope="module")
def copies(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """Copies of a table: copy 0 has each fifth row, copy k row k - 1 in addition."""
    con = _made("every", [_row(n) for n in range(ROWS)])
    con.execute(
        f"CREATE TABLE copies AS WITH rows AS (FROM every SELECT *, row_number() OVER () AS n) "
        f"SELECT rows.* EXCLUDE (n), CAST(k AS INTEGER) AS dpsql_copy FROM rows, range({ROWS} + 1) copies(k) "
        f"WHERE n % 5 = 1 UNION ALL SELECT rows.* EXCLUDE (n), CAST(n AS INTEGER) FROM rows"
    )
    carry(con, spark, "copies", tmp_path_factory.mktemp("copies"))
    return con


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_an_odd_row_moves_one_cell_by_its_bound_and_never_fails(
    number: int, spark: Any, copies: duckdb.DuckDBPyConnection
) -> None:
    """All copies are counted in one statement, so that none may fail."""
    con, batch = copies, BATCHES[number].replace("FROM odd", "FROM copies")
    policy = policy_of(f'[tables.copies]\nunit = "row"\n[tables.copies.columns]\n{DECLARED}')
    compiled = compiled_of(batch, policy, tables_of(policy, engine_of(con)))
    job = job_of(compiled, policy)
    (layout,) = job.layouts
    found = SparkEngine(spark).scan(scan_of(layout, job.sources, ("dpsql_copy", Name("dpsql_copy", BASE))))
    vectors = []
    for copy in range(ROWS + 1):
        x = np.zeros(compiled.rows.shape[1], dtype=object)
        mine = found["dpsql_copy"] == copy
        cells.add(x, layout, {name: column[mine] for name, column in found.items()}, job.common_steps)
        vectors.append(x)
    moved = [vector - vectors[0] for vector in vectors[1:]]
    counted = sum(any(change) for change in moved)
    assert counted >= 3
    width = 1 + len(layout.measures)
    for change in moved:
        assert np.count_nonzero(change) <= width
        assert max(map(abs, change)) <= job.common_steps


def test_a_unit_of_odd_rows_moves_at_most_its_rows(spark: Any, tmp_path: Path) -> None:
    policy = policy_of(f'[tables.odd]\nunit = "id"\nmax_rows_per_unit = 3\n[tables.odd.columns]\n{DECLARED}')
    base = [[n % 7, *_row(n)[1:]] for n in range(0, ROWS, 3)]
    unit = [[99, *_row(n)[1:]] for n in range(40)]
    batch = "SELECT txt, flag, COUNT(*), SUM(f64) FROM odd GROUP BY txt, flag"
    found = []
    for rows in (base, base + unit):
        con = _table(spark, tmp_path, "odd", rows)
        found.append(np.array(x_of(batch, policy, SparkEngine(spark), con), dtype=object))
    compiled = compiled_of(batch, policy, tables_of(policy, engine_of(con)))
    change = found[1] - found[0]
    assert any(change)
    assert sum(map(abs, change)) <= 3 * 2 * compiled.common_steps  # three rows, a count and a sum each
    counts = np.abs(change).max()
    assert counts <= 3 * compiled.common_steps


def test_units_count_once_in_a_cell_and_in_few_cells(spark: Any, tmp_path: Path) -> None:
    policy = policy_of(f'[tables.odd]\nunit = "id"\nmax_rows_per_unit = 2\n[tables.odd.columns]\n{DECLARED}')
    rows = [[n % 5 if n % 11 else None, *_row(n)[1:]] for n in range(ROWS)]
    con = _table(spark, tmp_path, "odd", rows)
    batch = "SELECT flag, COUNT(DISTINCT id) FROM odd GROUP BY flag"
    ours, theirs = (x_of(batch, policy, engine, con) for engine in (SparkEngine(spark), engine_of(con)))
    # Five units in at most two of three cells each; which two, each engine's hash decides.
    assert sum(ours) == sum(theirs) == 10
    assert max(ours) <= 5


STAYS = """
[tables.stays]
unit = "patient"
max_rows_per_unit = {most}
at_most = [{caps}]
[tables.stays.columns]
ward = {{ values = ["a", "b", "c"] }}
day = {{ lower = 1, upper = 6 }}
cost = {{ lower = -2, upper = 4 }}
"""
BY_DAY, WARDS = '{ rows = 1, per = "day" }', '{ groups = 2, per = "ward" }'
FEW = [(1, "a", 1, 4.0), (1, "b", 2, 0.0), (2, "a", 1, -2.0), (3, "c", 6, 1.0), (None, "b", 3, 2.0)]
# Five rows a day of the first patient, who is in all wards, and many that are in none.
MANY = [*((1, "abc"[n % 3], 1 + n % 6, 1.0) for n in range(30)), *((1, "x", 9, 4.0) for _ in range(40)), *FEW[2:]]


TOGETHER = """SELECT ward, COUNT(*), COUNT(DISTINCT patient) FROM stays GROUP BY ward;
SELECT ward, day, COUNT(DISTINCT patient) FROM stays GROUP BY ward, day;
SELECT COUNT(DISTINCT patient) FROM stays"""


@pytest.mark.parametrize(
    ("most", "caps", "rows", "batch"),
    [
        (6, f"{BY_DAY}, {WARDS}", FEW, "SELECT ward, day, COUNT(*), SUM(cost) FROM stays GROUP BY ward, day"),
        (6, f"{BY_DAY}, {WARDS}", FEW, "SELECT ward, COUNT(DISTINCT patient) FROM stays GROUP BY ward"),
        (6, f"{BY_DAY}, {WARDS}", FEW, "SELECT ward, COUNT(*) FROM stays WHERE day = 1 GROUP BY ward"),
        (9, BY_DAY, MANY, "SELECT day, COUNT(*) FROM stays GROUP BY day"),
        (9, BY_DAY, MANY, "SELECT day, COUNT(DISTINCT patient) FROM stays GROUP BY day"),
        (30, "", MANY, "SELECT ward, COUNT(*) FROM stays GROUP BY ward"),
        (
            9,
            "",
            MANY,
            "SELECT w, COUNT(*) FROM (SELECT LAG(ward) OVER (PARTITION BY patient ORDER BY day, cost DESC) AS w, day "
            "FROM stays WHERE cost > 0 QUALIFY ROW_NUMBER() OVER (PARTITION BY patient ORDER BY day DESC) < 5) "
            "WHERE day < 7 GROUP BY w",
        ),
        (80, "", MANY, TOGETHER),
    ],
)  # fmt: skip
def test_rows_within_the_caps_are_those_of_duckdb(
    most: int, caps: str, rows: list[tuple[Any, ...]], batch: str, spark: Any, tmp_path: Path
) -> None:
    policy, con = policy_of(STAYS.format(most=most, caps=caps)), _stays(spark, tmp_path, rows)
    ours, theirs = (x_of(batch, policy, engine, con) for engine in (SparkEngine(spark), engine_of(con)))
    assert any(ours)
    assert ours == theirs


def test_caps_hold_what_is_more_than_they_allow(spark: Any, tmp_path: Path) -> None:
    con = _stays(spark, tmp_path, MANY[:70])
    policy = policy_of(STAYS.format(most=9, caps=WARDS))
    for engine in (SparkEngine(spark), engine_of(con)):
        # Wards are two of three, and none that does not count.
        assert sum(x_of("SELECT ward, COUNT(DISTINCT patient) FROM stays GROUP BY ward", policy, engine, con)) == 2
        assert sum(x_of("SELECT ward, COUNT(*) FROM stays GROUP BY ward", policy, engine, con)) == 9


def test_counts_over_the_same_rows_keep_no_more_than_count(spark: Any, tmp_path: Path) -> None:
    con = _stays(spark, tmp_path, MANY[:30])
    for most in (2, 9):  # of six pairs of a ward and a day, each of which has five rows
        policy = policy_of(STAYS.format(most=most, caps=""))
        compiled = compiled_of(TOGETHER, policy, tables_of(policy, engine_of(con)))
        assert all(layout.together is not None for layout in compiled.layouts)
        for engine in (SparkEngine(spark), engine_of(con)):
            x = np.array(x_of(TOGETHER, policy, engine, con), dtype=object)
            found = {
                (layout.source.distinct, len(layout.cells.axes)): sum(x[np.unique(layout.entry[layout.entry >= 0])])
                for layout in compiled.layouts
            }
            assert found[True, 0] == 1
            assert found[True, 1] in ({1, 2} if most == 2 else {3})
            assert found[True, 2] == min(most, 6)
            assert found[False, 1] == most


def _stays(spark: Any, folder: Path, rows: list[tuple[Any, ...]]) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE stays (patient INTEGER, ward VARCHAR, day INTEGER, cost DOUBLE)")
    con.executemany("INSERT INTO stays VALUES (?, ?, ?, ?)", rows)
    carry(con, spark, "stays", folder)
    return con
