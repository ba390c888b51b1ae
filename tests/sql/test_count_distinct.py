"""COUNT(DISTINCT ...) of units and of values, without noise against DuckDB itself."""

from __future__ import annotations

import duckdb
import pytest
from helpers import policy_of, understood
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError

POLICY = policy_of("""
[tables.t]
unit = "pid"
max_rows_per_unit = 50
[tables.t.columns]
pid = {}
g = { values = ["x", "y"], nulls = false }
a = { lower = 0, upper = 9 }
note = {}
f = {}
d = {}
dec = {}
""")


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Forty rows of twelve units and of nobody."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE t AS SELECT CASE WHEN i % 13 > 0 THEN i % 13 END AS pid,"
        " CASE WHEN i % 3 = 0 THEN 'x' ELSE 'y' END AS g,"
        " CAST(CASE WHEN i % 5 > 0 THEN i % 10 END AS INTEGER) AS a,"
        " CASE WHEN i % 7 > 0 THEN 'n' || i % 11 END AS note,"
        " CAST(CASE WHEN i % 4 > 0 THEN (i % 6) / 4.0 - 0.5 END AS DOUBLE) AS f,"
        " DATE '2024-01-01' + CAST(i % 9 AS INTEGER) AS d, CAST(i % 8 AS DECIMAL(9, 2)) AS dec, i AS raw"
        " FROM range(40) AS r(i)"
    )
    return Pipeline.of(POLICY, connection)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(DISTINCT CASE WHEN a > 6 THEN pid END) AS n FROM t",
        "SELECT count(DISTINCT CASE WHEN a > 6 THEN pid ELSE NULL END) AS n FROM t WHERE g = 'y'",
        "SELECT count(DISTINCT CASE WHEN a > 6 THEN NULL WHEN a > 3 THEN pid END) AS n FROM t",
        "SELECT count(DISTINCT CASE g WHEN 'x' THEN pid END) AS n FROM t",
        "SELECT count(DISTINCT if(a = 2, pid, NULL)) AS n FROM t",
        "SELECT g, count(DISTINCT CASE WHEN a IS NULL THEN pid END) AS n, count(*) AS k FROM t GROUP BY g",
        "SELECT count(DISTINCT CASE WHEN g = 'x' THEN pid END) FILTER (a < 5) AS n FROM t",
        "SELECT count(DISTINCT CASE WHEN a > 5 THEN pid END) / count(DISTINCT pid) AS share FROM t",
        "SELECT g, count(DISTINCT pid) FILTER (a < 3) AS n, count(DISTINCT pid) FILTER (a > 5) AS k FROM t GROUP BY g",
        # Values of any column or expression.
        "SELECT count(DISTINCT g) AS n, count(DISTINCT a) AS k FROM t",
        "SELECT g, count(DISTINCT a) AS n, count(*) AS c, sum(a) AS s FROM t WHERE a < 8 GROUP BY g",
        "SELECT count(DISTINCT a % 3) FILTER (g = 'x') AS n FROM t",
        "SELECT count(DISTINCT CASE WHEN a > 3 THEN g END) AS n FROM t",
        "SELECT count(DISTINCT CASE WHEN a > 1 THEN pid ELSE 0 END) AS n FROM t",
        "SELECT count(DISTINCT note) AS n, count(DISTINCT upper(note)) AS u FROM t",
        "SELECT count(*) / count(DISTINCT a) AS each FROM t",
        "SELECT g, a > 4 AS h, count(DISTINCT note) AS n FROM t WHERE a >= 0 GROUP BY ROLLUP (g, a > 4)",
        "SELECT max(n) AS most FROM (SELECT g, count(DISTINCT a) AS n FROM t GROUP BY g)",
        "SELECT count(DISTINCT f) AS n, count(DISTINCT d) AS m, count(DISTINCT dec) AS k FROM t",
    ],
)
@pytest.mark.few(every=2)
def test_counts_are_duckdbs(pipeline: Pipeline, sql: str) -> None:
    names, ours = rows_of(pipeline.results(sql)[-1])
    cursor = pipeline.connection.execute(sql)
    assert names == [column[0] for column in cursor.description]
    wanted = sorted(map(str, map(_plain, cursor.fetchall())))
    found = sorted((_plain(row) for row in ours), key=str)
    # Only declared groups without a row may be there, too.
    assert [str(row) for row in found if str(row) in wanted or row[-1]] == wanted


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value if value is None or isinstance(value, str | bool) else round(float(str(value)), 9) for value in row
    )


def test_approx_count_distinct_counts_the_units(pipeline: Pipeline) -> None:
    exact, approximate = (
        understood(f"SELECT {call} AS n FROM t WHERE a > 3", POLICY, pipeline.tables).answers[0].cores
        for call in ("count(DISTINCT pid)", "approx_count_distinct(pid)")
    )
    assert exact == approximate
    names, rows = rows_of(pipeline.results("SELECT approx_count_distinct(pid) FROM t")[0])
    assert (names, rows) == (["approx_count_distinct(pid)"], [(12.0,)])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("count(DISTINCT ((g, a), a))", "not an admitted expression"),
        ("count(DISTINCT g, a)", r"write COUNT\(DISTINCT \(g, a\)\)"),
        ("count(DISTINCT random())", "random gives another result each time"),
        ("count(DISTINCT raw)", "not declared"),
        ("sum(DISTINCT a)", "leave DISTINCT out"),
    ],
)
def test_refused(pipeline: Pipeline, call: str, said: str) -> None:
    with pytest.raises(SQLError, match=said):
        pipeline.results(f"SELECT {call} FROM t")


def test_groups_that_overlap_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(SQLError, match="groups that overlap") as refusal:
        pipeline.results("SELECT dp_ranges(a), count(DISTINCT note) FROM t GROUP BY dp_ranges(a)")
    assert refusal.value.code == "count-distinct"


@pytest.mark.parametrize(
    ("sql", "counts"),
    [
        ("SELECT g, count(DISTINCT pid) FILTER (a < 3), count(DISTINCT pid) FILTER (a > 5) FROM t GROUP BY g", 1),
        ("SELECT count(DISTINCT pid) FROM t WHERE a = 1; SELECT count(DISTINCT pid) FROM t WHERE a = 2", 1),
        ("SELECT count(DISTINCT pid) FROM t WHERE a = 1; SELECT count(DISTINCT pid) FROM t WHERE a <= 1", 2),
        ("SELECT count(DISTINCT pid) FROM t WHERE a = 1; SELECT count(DISTINCT pid) FROM t WHERE g = 'x'", 2),
        (
            "SELECT g, count(DISTINCT pid) FROM t WHERE a = 1 GROUP BY g;SELECT count(DISTINCT pid) FROM t WHERE a = 2",
            2,
        ),
        # Of a batch that counts them otherwise, too, each is by itself.
        (
            "SELECT count(DISTINCT pid) FILTER (a < 3), count(DISTINCT pid) FILTER (a > 5), count(DISTINCT pid) FROM t",
            3,
        ),
    ],
)
def test_counts_of_rows_apart_are_one(pipeline: Pipeline, sql: str, counts: int) -> None:
    found = understood(sql, pipeline.policy, pipeline.tables)
    units = {query.table for query in found.queries}
    assert len(units) == counts
    assert units == found.tables.keys()
