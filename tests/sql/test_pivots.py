"""PIVOT of rows over declared values and of results, against DuckDB itself."""

from __future__ import annotations

import duckdb
import pytest
from helpers import policy_of, understood
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["x", "y"], nulls = false }
f = { nulls = false }
a = { lower = 1, upper = 12, nulls = false }
d = { lower = 2024-01-01, upper = 2024-01-02, nulls = false }
b = { lower = 0, upper = 9 }
big = { lower = 0, upper = 5000 }
free = {}
""")
BY = "(SELECT g, f, count(*) AS n, sum(b) AS s FROM t GROUP BY ALL)"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """A row for each value and combination of values."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE t AS SELECT CASE WHEN i % 2 = 0 THEN 'x' ELSE 'y' END AS g, (i // 2) % 2 = 0 AS f,"
        " CAST(i % 12 + 1 AS INTEGER) AS a, DATE '2024-01-01' + CAST((i // 3) % 2 AS INTEGER) AS d,"
        " CAST(CASE WHEN i % 7 > 0 THEN i % 10 END AS INTEGER) AS b, CAST(i AS INTEGER) AS big, 'q' AS free"
        " FROM range(96) AS r(i)"
    )
    return Pipeline.of(POLICY, connection)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | bool) else round(float(str(value)), 9)


@pytest.mark.parametrize(
    "sql",
    [
        # Declared values are columns in DuckDB's order, that of their texts.
        "PIVOT t ON g USING count(*) GROUP BY f",
        "PIVOT t ON a USING count(*) AS n GROUP BY g",
        "PIVOT t ON f USING sum(b), avg(b) AS mean GROUP BY g",
        "PIVOT t ON g, f USING count(*) GROUP BY a",
        "PIVOT t ON d GROUP BY g",
        "PIVOT t ON strftime(d, '%d') USING count(b) GROUP BY g",
        "PIVOT t ON g USING count(*) FILTER (b > 3) GROUP BY f",
        # What follows a PIVOT belongs to the query, wherever one stands.
        "PIVOT t ON f USING count(*) AS n, sum(b) AS s GROUP BY g ORDER BY g DESC LIMIT 1 OFFSET 1",
        "PIVOT_WIDER t ON g USING count(*) GROUP BY f UNION ALL PIVOT t ON g USING count(*) GROUP BY f ORDER BY f",
        "(PIVOT t ON g USING count(*) GROUP BY f ORDER BY f)",
        "SELECT f, x FROM (PIVOT t ON g IN ('x', 'y') USING sum(b) GROUP BY f ORDER BY f LIMIT 1)",
        "WITH w AS MATERIALIZED (SELECT * FROM t WHERE b > 1) PIVOT w ON g USING count(*) GROUP BY f ORDER BY f",
        "WITH p AS (PIVOT t ON g IN ('x', 'y') GROUP BY f ORDER BY f DESC LIMIT 1) FROM p",
        "SELECT count(*) AS pivot FROM (SELECT * FROM t)",
        # A list of values, under names of their own.
        "PIVOT t ON a IN (3, 1) USING count(*) GROUP BY g",
        "PIVOT t ON b IN (1, NULL) USING count(*) GROUP BY g",
        "SELECT * FROM t PIVOT (count(*) FOR g IN ('x' AS ex, 'y') GROUP BY f)",
        "PIVOT t ON g IN ('x' AS ex, 'y') USING count(*) GROUP BY f ORDER BY f",
        "PIVOT t ON g IN ('x' \"an x\", 'y' AS 'a y'), f IN (true yes) USING count(*) AS n, count(b) GROUP BY a",
        "PIVOT (SELECT * FROM t WHERE a IN (1, 2, 3)) ON a IN (1 AS one, 2 two, 3) USING max(b) GROUP BY g",
        "SELECT p.f, p.x_n FROM t PIVOT (count(*) AS n FOR g IN ('x', 'y') GROUP BY f) AS p WHERE p.x_n > 0",
        "WITH p AS (PIVOT t ON g IN ('x', 'y') USING sum(b) GROUP BY f) SELECT f, x + y AS both FROM p",
        "PIVOT (SELECT g, f, b * 2 AS c FROM t WHERE b > 1) ON g USING sum(c) GROUP BY f",
        # Results: what is not named is a group.
        f"PIVOT {BY} ON f USING sum(n)",
        f"PIVOT {BY} ON g IN ('x') USING max(n) AS n, min(s) AS s GROUP BY f",
        f"SELECT g, \"true\" / \"false\" AS r FROM (PIVOT {BY} ON f USING sum(n) GROUP BY g)",
        f"SELECT * FROM {BY} PIVOT (sum(n), sum(s) FOR g IN ('x', 'y'))",
    ],
)  # fmt: skip
@pytest.mark.few(every=4)
def test_pivots_are_duckdbs(pipeline: Pipeline, sql: str) -> None:
    names, ours = rows_of(pipeline.results(sql)[-1])
    cursor = pipeline.connection.execute(sql)
    assert names == [column[0] for column in cursor.description]
    theirs = cursor.fetchall()
    assert sorted(str(tuple(map(_plain, row))) for row in ours) == sorted(
        str(tuple(map(_plain, row))) for row in theirs
    )


def test_a_view_is_a_pivot(pipeline: Pipeline) -> None:
    for query in ("PIVOT t ON g IN ('x') GROUP BY f ORDER BY f", "(PIVOT t ON g IN ('x') GROUP BY f)"):
        assert rows_of(pipeline.results(f"/* one */ CREATE OR REPLACE VIEW v AS {query}")[-1]) == rows_of(
            pipeline.results(query)[-1]
        )


def test_a_pivot_of_rows_keeps_its_errors(pipeline: Pipeline) -> None:
    names, _ = rows_of(pipeline.results("PIVOT t ON g USING count(*) GROUP BY f", errors=True)[-1])
    assert names == ["f", "x", "x_stderr", "x_low", "x_high", "y", "y_stderr", "y_low", "y_high"]


@pytest.mark.parametrize("sql", [f"PIVOT {BY} ON f USING sum(n)", "PIVOT t ON a USING count(*) GROUP BY g"])
def test_what_is_read_is_measured_once(pipeline: Pipeline, sql: str) -> None:
    (answer,) = understood(sql, POLICY, pipeline.tables).answers
    assert len(answer.cores) == 1
    (again,) = understood(answer.text, POLICY, pipeline.tables).answers
    assert again.cores == answer.cores


def test_a_view_can_be_a_pivot_and_an_earlier_result_pivoted(pipeline: Pipeline) -> None:
    batch = f"CREATE VIEW v AS SELECT * FROM {BY}; PIVOT v ON f IN (true) USING sum(n) GROUP BY g"
    names, rows = rows_of(pipeline.results(batch)[-1])
    assert names == ["g", "true"]
    assert sorted(rows) == [("x", 24.0), ("y", 24.0)]


@pytest.mark.parametrize(
    ("sql", "said", "code"),
    [
        ("PIVOT t ON g USING count(*)", "write GROUP BY with those that you want", "not-answered"),
        ("PIVOT t ON free USING count(*) GROUP BY g", "needs its groups declared", "unknown-groups"),
        pytest.param(
            "PIVOT t ON big USING count(*) GROUP BY g", "makes 5,001 columns", "too-many-groups", marks=pytest.mark.long
        ),
        ("PIVOT t ON g IN (f) USING count(*) GROUP BY a", "takes constants", "not-answered"),
        (f"PIVOT {BY} ON n USING max(s)", r"write ON n IN \(...\)", "unknown-groups"),
        (f"CREATE VIEW v AS SELECT * FROM {BY}; PIVOT v ON f USING sum(n)", "needs its values", "unknown-groups"),
        (f"SELECT * FROM (UNPIVOT {BY} ON n, s INTO NAME k VALUE v)", "UNPIVOT is not answered", "not-answered"),
        ("PIVOT t ON g USING b GROUP BY f", "takes aggregates", "not-answered"),
    ],
)
def test_refused(pipeline: Pipeline, sql: str, said: str, code: str) -> None:
    with pytest.raises(SQLError, match=said) as refusal:
        pipeline.results(sql)
    assert refusal.value.code == code
