"""Forms of DuckDB's SQL that mean a plainer one, without noise against DuckDB itself."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError
from dpsql.sql.rules.parse import parse

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["x", "y"] }
a = { lower = 0, upper = 3 }
f = {}
""")

ROWS = [("x", 0, True), ("x", 1, None), ("x", 3, False), ("y", 3, None), ("y", None, True), (None, None, False)]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Six rows, NULLs in every column."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (g VARCHAR, a INTEGER, f BOOLEAN)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
    return Pipeline.of(POLICY, connection)


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    plain = [tuple(float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in row) for row in rows]
    return sorted(plain, key=lambda row: [(value is None, str(value)) for value in row])


def test_a_name_with_its_schema_is_that_of_a_query_around() -> None:
    tied = "FROM {0}t WHERE EXISTS (SELECT 1 FROM {0}u WHERE {0}u.k = {0}t.k AND {0}t.a > (SELECT max(a) FROM {0}v))"
    for written in ("main.", "shop.main."):
        (statement,) = parse(f"SELECT count(*) {tied.format(written)}")
        plain = "SELECT count(*) " + tied.format("").replace("FROM ", "FROM main.")
        assert statement.text == parse(plain)[0].text
    hidden = "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM u AS t WHERE t.k = main.t.k)"
    assert "main.t.k" in parse(hidden)[0].text  # which of the two would t.k be?


def agrees(pipeline: Pipeline, sql: str) -> None:
    """The result of ``sql`` is DuckDB's, with its names; only declared groups without a row may be there, too."""
    names, ours = rows_of(pipeline.results(sql)[-1])
    cursor = pipeline.connection.execute(sql)
    assert names == [column[0] for column in cursor.description]
    theirs = _sorted(cursor.fetchall())
    found = _sorted(ours)
    assert [row for row in found if row in theirs or row[-1]] == theirs


@pytest.mark.parametrize(
    "sql",
    [
        # Names with their schema.
        'SELECT "main"."t"."g", count(*) FROM "main"."t" GROUP BY "main"."t"."g"',
        "SELECT main.t.g, sum(MAIN.T.a) AS s FROM t WHERE main.t.g IS NOT NULL GROUP BY 1 ORDER BY main.t.g",
        "SELECT s.d FROM (SELECT count(main.t.a) AS d FROM main.t) AS s",
        # Other names of an aggregate, which the result keeps.
        "SELECT mean(a) FROM t",
        "SELECT Mean( a ) FILTER (a > 0), count_star() FROM t",
        "SELECT g, mean(a) AS m FROM t WHERE a IS NOT NULL GROUP BY g HAVING count_star() > 0",
        # Rows in parentheses are compared field by field, and NULL is the same as NULL.
        "SELECT count(*) FROM t WHERE (g, a) IN (('x', 1), ('y', NULL))",
        "SELECT count(*) FROM t WHERE (g, a) NOT IN (('x', 1), ('y', 3))",
        "SELECT count(*) FROM t WHERE (g, a) = ('y', NULL)",
        "SELECT count(*) FROM t WHERE (g, f) <> ('x', true)",
        "SELECT count(*) FROM t WHERE ROW(g, a) IN (ROW('x', 3))",
        "SELECT count_if((g, a) IN (('x', 1))) FROM t",
        # Lists, with the NULLs of each form.
        "SELECT count(*) FROM t WHERE g = ANY(['x', 'z'])",
        "SELECT count(*) FROM t WHERE NOT (g = ANY(['x', NULL]))",
        "SELECT count(*) FROM t WHERE g <> ALL(ARRAY['x', 'z'])",
        "SELECT count(*) FROM t WHERE (g <> ALL(['y', NULL])) IS NULL",
        "SELECT count(*) FROM t WHERE a > ALL([0, 2]) OR a < SOME([1])",
        "SELECT count(*) FROM t WHERE a = ANY([])",
        "SELECT count(*) FROM t WHERE a <> ALL([])",
        "SELECT count(*) FROM t WHERE list_contains(['x', NULL], g)",
        "SELECT count(*) FROM t WHERE NOT array_has(['x', NULL], g)",
        # Clauses.
        "SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY n DESC, g FETCH FIRST 2 ROWS ONLY",
        "SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY n DESC, g OFFSET 1 ROW FETCH NEXT ROW ONLY",
        "SELECT g, sum(count(*)) OVER w AS s FROM t GROUP BY g WINDOW w AS (ORDER BY g)",
        "SELECT g, sum(count(*)) OVER (w ROWS UNBOUNDED PRECEDING) AS s FROM t GROUP BY g WINDOW w AS (ORDER BY g)",
        "SELECT g, rank() OVER v AS s FROM t GROUP BY g WINDOW w AS (PARTITION BY g), v AS (w ORDER BY count(*))",
        "SELECT g, n, sum(n) OVER w AS s FROM (SELECT g, count(*) AS n FROM t GROUP BY g) WINDOW w AS (ORDER BY g)",
        # Aliases of the same SELECT; a column of that name comes first.
        "SELECT count(*) FROM (SELECT a // 2 AS d, d + 1 AS e FROM t) WHERE e = 2",
        "SELECT sum(e) AS s FROM (SELECT a AS d, a + 1 AS k, k + d AS e FROM t WHERE k > 1 AND d < 9 ORDER BY k)",
        "SELECT sum(b) AS s FROM (SELECT a + 1 AS g, coalesce(g, 'x') = 'x' AS h, if(h, 1, 2) AS b FROM t)",
        "SELECT a // 2 AS d, count(d) AS n, n * 2 AS m FROM t WHERE d < 1 GROUP BY d",
        "SELECT a // 2 AS d, d + 1 AS e, count(*) FILTER (d = 0) AS n FROM t GROUP BY ALL",
        "SELECT g AS a, count(*) FILTER (a = 1) AS n FROM t GROUP BY ALL",
        # Expressions within CUBE and ROLLUP.
        "SELECT coalesce(g, 'z') AS b, a > 1 AS c, count(*) AS n FROM t GROUP BY CUBE (coalesce(g, 'z'), a > 1)",
        "SELECT g, a > 1 AS c, count(*) AS n FROM t WHERE a >= 0 AND g IN ('x', 'y') GROUP BY ROLLUP (g, (a > 1))",
        "SELECT g IS NULL AS b, count(*) AS n FROM t GROUP BY GROUPING SETS (CUBE (g IS NULL), (a > 1))",
        "SELECT a > 1 AS b, g, count(*) AS n FROM t GROUP BY GROUPING SETS (a > 1, (g), (a > 1, g), (a) > 1 AND f)",
        "SELECT b, max(n) AS m FROM (SELECT g AS b, count(*) AS n FROM t GROUP BY g) GROUP BY ROLLUP (upper(b), b)",
    ],
)
@pytest.mark.few(every=2)
def test_other_spellings(pipeline: Pipeline, sql: str) -> None:
    agrees(pipeline, sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        # An alias hides the table's name, in DuckDB too; and another schema is another table.
        ("SELECT count(main.t.a) FROM t AS s", "write a column as name or table.name"),
        ("SELECT count(other.t.a) FROM t", "write a column as name or table.name"),
        ("SELECT count(*) FROM t WHERE (g, a) < ('x', 1)", "is not an admitted expression"),
        ("SELECT count(*) FROM t WHERE (g, a) = ('x', 1, 2)", "is not an admitted expression"),
        ("SELECT count(*) FROM t WHERE a = ANY([SELECT 1])", "syntax error"),
        ("SELECT count(*) FROM t WHERE a = ANY(SELECT 1)", "a subquery depends on other rows"),
        ("SELECT g, sum(count(*)) OVER (w ORDER BY g) AS s FROM t GROUP BY g WINDOW w AS (ORDER BY g)", "WINDOW"),
        ("SELECT g, sum(count(*)) OVER v AS s FROM t GROUP BY g WINDOW w AS (ORDER BY g)", "WINDOW"),
        ("SELECT count(e) FROM (SELECT d + 1 AS e, a AS d FROM t)", "has no column d"),
        ("SELECT count(*) AS n FROM t WHERE n > 1", "an aggregate inside an expression depends on other rows"),
        ("SELECT a AS d, count(*) FROM t GROUP BY d // 2", "has no column d"),
        ("SELECT count(*) FROM t FETCH FIRST 1 ROWS WITH TIES", "LIMIT takes a constant"),
        ("SELECT count(*) FROM t WHERE a = ANY(/*+ WEIGHT(2) */ [1])", "the hint"),
    ],
)
def test_what_only_looks_like_one_is_refused(pipeline: Pipeline, sql: str, said: str) -> None:
    with pytest.raises(SQLError, match=said.replace("(", r"\(")):
        pipeline.results(sql)


def test_aliases_that_double_are_refused_before_they_are_written_out(pipeline: Pipeline) -> None:
    doubled = ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(60))
    with pytest.raises(SQLError, match="aliases of the SELECT") as refusal:
        pipeline.results(f"SELECT sum(a60) FROM (SELECT a AS a0, {doubled} FROM t)")
    assert refusal.value.code == "too-large"


def test_the_statement_is_kept_in_the_plainer_form() -> None:
    (statement,) = parse("SELECT mean(main.t.a) FROM t FETCH FIRST 1 ROW ONLY")
    assert statement.text == "SELECT AVG(t.a) FROM t LIMIT 1"
    assert statement.items == ("mean(main.t.a)",)
