"""What DuckDB does after the noise, by hand: companions, names, order, results that read results, refusals."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["x", "y"], nulls = false }
h = { values = ["x", "y"], other = true, nulls = false }
a = { lower = 0, upper = 3, nulls = false }
b = { lower = 0, upper = 9 }
""")

# Three rows in x, one in y; b is 1, 2, 3 and NULL; h has one row outside its list.
ROWS = [("x", "x", 0, 1), ("x", "y", 1, 2), ("x", "z", 1, 3), ("y", "x", 3, None)]

BY_G = "CREATE VIEW r AS SELECT g, count(*) AS n FROM t GROUP BY g; "
ONE = "CREATE VIEW r AS SELECT count(*) AS n FROM t; "
THREE = ("_stderr", "_low", "_high")


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Four rows."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (g VARCHAR, h VARCHAR, a INTEGER, b INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", ROWS)
    return Pipeline.of(POLICY, connection)


def last(pipeline: Pipeline, batch: str, *, errors: bool = True) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a batch's last result."""
    return rows_of(pipeline.results(batch, errors=errors)[-1])


def with_errors(*names: str) -> list[str]:
    """The names, each followed by its three companions."""
    return [name + suffix for name in names for suffix in ("", *THREE)]


# -- columns and their companions --------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        # An item that is a private number has companions, whatever else the statement does.
        ("SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) > 1 ORDER BY n", ["g", *with_errors("n")]),
        ("SELECT round(count(*), 0) AS n FROM t", with_errors("n")),
        ("SELECT sqrt(count(*)) AS n FROM t", ["n"]),
        ("SELECT h, count(*) AS n FROM t GROUP BY h LIMIT 9", ["h", "h_other", *with_errors("n")]),
        ("SELECT g, sum(count(*)) OVER () AS s FROM t GROUP BY g", ["g", "s"]),
        ("SELECT DISTINCT count(*) AS n FROM t GROUP BY g", ["n"]),
        # A column that is passed on keeps them, under its new name.
        (ONE + "SELECT n AS m FROM r", with_errors("m")),
        (ONE + "SELECT n + 0 AS m FROM r", ["m"]),
        (ONE + "SELECT * FROM r", with_errors("n")),
        (ONE + "SELECT k.* FROM r AS k", with_errors("n")),
        (BY_G + "SELECT * EXCLUDE (g) FROM r", with_errors("n")),
        (BY_G + "SELECT g, n FROM r WHERE n > 0 QUALIFY row_number() OVER (ORDER BY n) = 1", ["g", *with_errors("n")]),
        (BY_G + "SELECT max(n) AS m FROM r", ["m"]),
        (BY_G + "SELECT n FROM r GROUP BY n", ["n"]),
        (BY_G + "SELECT DISTINCT n FROM r", ["n"]),
        (BY_G + "SELECT p.n AS m, q.n AS k FROM r AS p JOIN r AS q USING (g)", with_errors("m", "k")),
        (BY_G + "SELECT g, m FROM (SELECT g, n AS m FROM r) AS s", ["g", *with_errors("m")]),
        ("WITH w(k, m) AS (SELECT g, count(*) FROM t GROUP BY g) SELECT m, k FROM w", [*with_errors("m"), "k"]),
        (BY_G + "CREATE VIEW s(k) AS SELECT n, g FROM r", [*with_errors("k"), "g"]),
        # Under UNION ALL those that both sides have; other set operations compare whole rows.
        (ONE + "SELECT n FROM r UNION ALL SELECT count(*) FROM t", with_errors("n")),
        (ONE + "SELECT n FROM r UNION ALL SELECT n + 1 FROM r", ["n"]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g UNION ALL SELECT h, count(*) FROM t GROUP BY h",
         ["g", *with_errors("n")]),
        ("SELECT h, count(*) AS n FROM t GROUP BY h UNION ALL SELECT h, sum(a) FROM t GROUP BY h",
         ["h", "h_other", *with_errors("n")]),
        (ONE + "SELECT n FROM r UNION SELECT n FROM r", ["n"]),
        (ONE + "SELECT n FROM r EXCEPT SELECT n FROM r", ["n"]),
        (ONE + "SELECT n FROM r UNION ALL BY NAME SELECT n FROM r", ["n"]),
    ],
)  # fmt: skip
@pytest.mark.few(every=4)
def test_companions(pipeline: Pipeline, sql: str, names: list[str]) -> None:
    found, rows = last(pipeline, sql)
    assert found == names
    plain, same = last(pipeline, sql, errors=False)
    assert plain == [name for name in names if not name.endswith(THREE)]
    assert [tuple(v for v, name in zip(row, names, strict=True) if name in plain) for row in rows] == same


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT sqrt(count(*)) AS n_stderr, count(*) AS n FROM t", ["n_stderr", "n", "n_stderr_1", "n_low", "n_high"]),
        ("SELECT count(*) AS n, abs(sum(a)) AS N_HIGH FROM t", ["n", "n_stderr", "n_low", "n_high_1", "N_HIGH"]),
        (ONE + "SELECT n AS m, n + 1 AS m_low FROM r", ["m", "m_stderr", "m_low_1", "m_high", "m_low"]),
        (ONE + "SELECT n, n_stderr FROM r", ["n", "n_stderr_1", "n_low", "n_high", "n_stderr"]),
        ("SELECT h, sqrt(count(*)) AS h_other FROM t GROUP BY h", ["h", "h_other_1", "h_other"]),
        (ONE + "SELECT n AS k, n + 1 AS k FROM r", ["k", "k_stderr", "k_low", "k_high", "k_1"]),
    ],
)  # fmt: skip
def test_names_of_the_user_come_first(pipeline: Pipeline, sql: str, names: list[str]) -> None:
    assert last(pipeline, sql)[0] == names


def test_a_statement_may_read_the_errors_of_a_result_even_where_they_are_left_out(pipeline: Pipeline) -> None:
    sql = ONE + "SELECT n, n_stderr AS e, n_low <= n AS below FROM r WHERE n_high >= n"
    assert last(pipeline, sql, errors=False) == (["n", "e", "below"], [(4.0, 0.0, True)])
    assert last(pipeline, ONE + "SELECT n_stderr FROM r", errors=False) == (["n_stderr"], [(0.0,)])


def test_names_with_quotes_and_spaces(pipeline: Pipeline) -> None:
    sql = (
        'CREATE VIEW "a ""b" AS SELECT count(*) AS "n ""m" FROM t; SELECT "n ""m" AS "p q" FROM "a ""b" ORDER BY "p q"'
    )
    assert last(pipeline, sql, errors=False) == (["p q"], [(4.0,)])


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY 2, 1", [("y", 1.0), ("x", 3.0)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY 2 DESC LIMIT 1", [("x", 3.0)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY 1 LIMIT 50%", [("x", 3.0)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY ALL DESC", [("y", 1.0), ("x", 3.0)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY sum(a) DESC", [("y", 1.0), ("x", 3.0)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY n OFFSET 1", [("x", 3.0)]),
        (BY_G + "SELECT n, g FROM r ORDER BY 2 DESC", [(1.0, "y"), (3.0, "x")]),
        (BY_G + "SELECT g, n FROM r ORDER BY ALL LIMIT 1", [("x", 3.0)]),
        (BY_G + "SELECT g, n / sum(n) OVER () AS share FROM r ORDER BY g", [("x", 0.75), ("y", 0.25)]),
        (BY_G + "SELECT g FROM r WHERE n > (SELECT avg(n) FROM r)", [("x",)]),
        (BY_G + "SELECT g, (SELECT max(n) FROM r AS k WHERE k.n < r.n) AS m FROM r ORDER BY g",
         [("x", 1.0), ("y", None)]),
        ("SELECT g FROM t GROUP BY g HAVING count(*) > "
         "(SELECT max(n) - 1 FROM (SELECT a, count(*) AS n FROM t GROUP BY a))", [("x",)]),
        ("SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) IN (SELECT count(*) FROM t GROUP BY a) ORDER BY g",
         [("y", 1.0)]),
        ("SELECT n FROM (SELECT count(*) AS n FROM t) AS s UNION ALL SELECT 10 * sum(a) FROM t ORDER BY 1 DESC",
         [(50.0,), (4.0,)]),
        ("WITH w AS (SELECT count(*) AS n FROM t) SELECT p.n + q.n AS s FROM w AS p CROSS JOIN w AS q", [(8.0,)]),
        ("SELECT g, h, count(*) AS n, GROUPING(g, h) AS l FROM t WHERE a = 3 GROUP BY ROLLUP (g, h) "
         "HAVING count(*) > 0 ORDER BY l", [("y", "x", 1.0, 0), ("y", None, 1.0, 1), (None, None, 1.0, 3)]),
        ("SELECT g, string_agg(h, '+' ORDER BY h) AS l FROM (SELECT g, h FROM (SELECT g, h, count(*) AS n FROM t "
         "GROUP BY g, h) AS s WHERE n > 0 AND h IS NOT NULL) AS s GROUP BY g ORDER BY g", [("x", "x+y"), ("y", "x")]),
    ],
)  # fmt: skip
@pytest.mark.few(every=2)
def test_rows(pipeline: Pipeline, sql: str, rows: list[tuple[Any, ...]]) -> None:
    names, found = last(pipeline, sql, errors=False)
    keep = [at for at, name in enumerate(names) if not name.endswith("_other")]
    assert [tuple(row[at] for at in keep) for row in found] == rows


def test_empty_groups_are_zero_and_their_averages_null(pipeline: Pipeline) -> None:
    items = "count(*) AS n, sum(b) AS s, avg(b) AS m, count_if(b > 0) / count(*) AS q"
    sql = f"SELECT g, {items} FROM t WHERE a = 2 GROUP BY g"
    assert last(pipeline, sql, errors=False)[1] == [("x", 0.0, 0.0, None, None), ("y", 0.0, 0.0, None, None)]


def test_an_alias_in_having_means_its_item_as_in_duckdb(pipeline: Pipeline) -> None:
    """A column of its name is a raw value there; a key of GROUP BY comes first."""
    for sql in (
        "SELECT g, sum(b) AS b FROM t GROUP BY g HAVING b > 4 ORDER BY g",
        "SELECT g, sum(b) AS g FROM t GROUP BY g HAVING g = 'x'",
    ):
        found = last(pipeline, sql, errors=False)[1]
        theirs = pipeline.connection.execute(sql).fetchall()
        assert [row[:2] for row in found] == [tuple(float(v) if isinstance(v, int) else v for v in r) for r in theirs]
    with pytest.raises(SQLError, match="b is a raw value"):
        last(pipeline, "SELECT g, sum(b) AS b FROM t GROUP BY g HAVING t.b > 4", errors=False)


def test_other_and_null_rows_are_told_apart(pipeline: Pipeline) -> None:
    rows = last(pipeline, "SELECT h, count(*) AS n FROM t GROUP BY h ORDER BY n, h", errors=False)[1]
    assert rows == [("y", False, 1.0), (None, True, 1.0), ("x", False, 2.0)]


# -- what is measured --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "cores"),
    [
        ("WITH w AS (SELECT g, count(*) AS n FROM t GROUP BY g) SELECT a.n FROM w AS a JOIN w AS b USING (g)", 1),
        ("WITH w AS (SELECT g, count(*) AS n FROM t GROUP BY g) SELECT n FROM w WHERE n > (SELECT avg(n) FROM w)", 1),
        ("WITH w AS (SELECT * FROM t WHERE a > 0) SELECT count(*) FROM w UNION ALL SELECT sum(a) FROM w", 2),
        ("SELECT g, count(*) FROM t GROUP BY CUBE (g, h)", 4),
        (BY_G + "SELECT * FROM r", 0),
        (BY_G + "SELECT n FROM r WHERE n > (SELECT count(*) FROM t)", 1),
    ],
)
def test_how_often_rows_are_measured(pipeline: Pipeline, sql: str, cores: int) -> None:
    plan, _ = pipeline.plan(sql)
    assert len(plan.queries[-1].cores) == cores


def test_one_number_is_one_output(pipeline: Pipeline) -> None:
    plan, _ = pipeline.plan(
        "SELECT g, count(*) AS n FROM t GROUP BY g HAVING count(*) > 1 AND sum(a) > 0 ORDER BY sum(a)"
    )
    (core,) = plan.queries[0].cores
    assert len(core.outputs) == 2


def test_noisy_tables_have_names_that_no_result_has(pipeline: Pipeline) -> None:
    first = 'CREATE VIEW "q1#1" AS SELECT count(*) AS n FROM t; '
    sql = first + 'SELECT sqrt(count(*)) AS s, (SELECT n FROM "q1#1") AS n FROM t'
    assert last(pipeline, sql, errors=False)[1] == [(2.0, 4.0)]
    sql = 'SELECT sqrt(count(*)) AS s FROM t; CREATE VIEW "Q1#1" AS SELECT sum(a) AS m FROM t; SELECT m FROM "q1#1"'
    assert last(pipeline, sql, errors=False)[1] == [(5.0,)]


# -- numbers that the outer SQL does not survive ------------------------------------------------


def test_numbers_outlive_outer_sql_that_fails_on_them(pipeline: Pipeline) -> None:
    sql = "SELECT g, CAST('a' || count(*) AS INTEGER) AS k, sum(a) AS s FROM t GROUP BY g"
    names, rows = last(pipeline, sql)
    assert names == ["g", *with_errors("COUNT(*)", "s")]
    assert [(row[0], row[1], row[5]) for row in rows] == [("x", 3.0, 2.0), ("y", 1.0, 3.0)]
    assert last(pipeline, sql, errors=False) == (["g", "COUNT(*)", "s"], [("x", 3.0, 2.0), ("y", 1.0, 3.0)])
    names, rows = last(pipeline, BY_G + "SELECT CAST(g AS INTEGER) AS k FROM r")
    assert names == ["g", *with_errors("n")]
    assert [row[:2] for row in rows] == [("x", 3.0), ("y", 1.0)]


def test_later_statements_read_what_is_left_of_a_failed_one(pipeline: Pipeline) -> None:
    sql = "CREATE VIEW f AS SELECT CAST('a' || count(*) AS INTEGER) AS k FROM t; SELECT k + 1 AS m FROM f"
    # The second statement fails in its turn, as the first has no k; both show the numbers.
    assert [rows_of(table) for table in pipeline.results(sql, errors=False)] == [(["COUNT(*)"], [(4.0,)])] * 2


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "fragment"),
    [
        ("SELECT count(*) * random() FROM t", "random gives another result each time"),
        ("SELECT count(*), now() FROM t", "now gives another result"),
        ("SELECT count(*), current_date FROM t", "current_date gives another result"),
        ("SELECT count(*) FROM t HAVING count(*) > random()", "random gives another result"),
        ("SELECT g, count(*) FROM t GROUP BY g ORDER BY random()", "random gives another result"),
        (ONE + "SELECT uuid() AS u FROM r", "uuid gives another result"),
        (ONE + 'SELECT "random"() AS u FROM r', "random gives another result"),
        (ONE + "SELECT getenv('HOME') AS h FROM r", "getenv gives another result"),
        ("SELECT {'n': count(*)} FROM t", "cast it to a plain type"),
        ("SELECT [count(*)] FROM t", "cast it to a plain type"),
        (ONE + "SELECT map {'a': n} AS m FROM r", "cast it to a plain type"),
        (ONE + "SELECT NULL AS z FROM r", "cast it to a plain type"),
        (ONE + "SELECT m FROM r", "no result that it reads has a column m"),
        (ONE + "SELECT k.n FROM r", 'Referenced table "k" not found'),
        (ONE + "SELECT nope(n) FROM r", "the function nope is not among those"),
        (ONE + "SELECT n || [1] FROM r", "after the noise"),
        ("SELECT n FROM r", "the policy has no table r"),
        ("SELECT n FROM r; " + ONE, "the policy has no table r"),
        (ONE + "SELECT count(*) FROM t JOIN r ON t.a = r.n", "private rows are joined with results"),
        ("SELECT x.n FROM (SELECT count(*) AS n FROM t) AS x JOIN t ON true", "private rows are joined with results"),
        (ONE + "SELECT n FROM r WHERE EXISTS (SELECT 1 FROM t)", "has no aggregate"),
        (ONE + "SELECT n FROM r WHERE n > ANY (SELECT count(*) FROM t)", "ANY and ALL over a query"),
        (ONE + "SELECT n FROM r ORDER BY 2", "ORDER BY 2 is not a position"),
        (ONE + "SELECT n FROM r ORDER BY 0", "ORDER BY 0 is not a position"),
        ("SELECT g, count(*) FROM t GROUP BY g ORDER BY 3", "ORDER BY 3 is not a position"),
        ("SELECT g, count(*) FROM t GROUP BY g LIMIT (SELECT count(*) FROM t)", "LIMIT takes a constant"),
        (BY_G + "SELECT DISTINCT ON (g) g, n FROM r", "DISTINCT ON is not answered"),
        (BY_G + "SELECT * FROM r NATURAL JOIN r AS s", "NATURAL JOIN depends on all names"),
        (BY_G + "SELECT n FROM r WHERE COLUMNS('n') > 0", "COLUMNS(...) stands in SELECT alone"),
        (BY_G + "SELECT n FROM r USING SAMPLE 1", "SAMPLE over results"),
        (BY_G + "SELECT * FROM r TABLESAMPLE 10%", "SAMPLE in FROM"),
        (BY_G + "SELECT n FROM r, range(3)", "FROM takes tables of the policy"),
        (BY_G + "SELECT n FROM r WHERE n IN (SELECT 1 FROM '/etc/passwd')", "the policy has no table /etc/passwd"),
        (BY_G + "SELECT (FROM read_text('/etc/passwd')) AS x FROM r", "FROM takes tables of the policy"),
        ("WITH RECURSIVE w AS (SELECT count(*) AS n FROM t) SELECT n FROM w", "WITH RECURSIVE is not answered"),
        ("WITH w AS (SELECT 1 AS n) SELECT n FROM w", "reads no table"),
        (BY_G + "SELECT /*+ WEIGHT(4) */ n FROM r", "WEIGHT belongs to a SELECT over private rows"),
        ("SELECT g, count(*), rank() OVER w FROM t GROUP BY g WINDOW v AS (ORDER BY g)", "WINDOW is not answered"),
    ],
)  # fmt: skip
def test_refused(pipeline: Pipeline, sql: str, fragment: str) -> None:
    with pytest.raises(SQLError) as error:
        pipeline.plan(sql)
    assert fragment in str(error.value)
    assert "#" not in str(error.value).replace("q1#1)", "")  # names of noisy tables stay inside
