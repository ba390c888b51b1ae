"""Stars with EXCLUDE, REPLACE, RENAME and LIKE, and COLUMNS(...), over rows and over results, against DuckDB itself."""

from __future__ import annotations

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
a = { lower = 0, upper = 9 }
b = { lower = 0, upper = 9 }
""")
BY_G = "(SELECT g, count(*) AS n, sum(a) AS na, sum(b) AS nb FROM t GROUP BY g)"
ROWS = [("x", 1, 2, "p"), ("x", 3, None, "q"), ("y", 5, 6, None), ("y", 0, 9, "p")]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """Four rows; the column ``raw`` is not declared."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (g VARCHAR, a INTEGER, b INTEGER, raw VARCHAR)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", ROWS)
    return Pipeline.of(POLICY, connection)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT COLUMNS(*) FROM {BY_G}",
        f"SELECT g, COLUMNS('n.+') FROM {BY_G} ORDER BY ALL",
        f"SELECT max(COLUMNS(* EXCLUDE (g))) FROM {BY_G}",
        f"SELECT COLUMNS(['nb', 'n']) FROM {BY_G}",
        f"SELECT COLUMNS(lambda c: c LIKE 'n_' OR c = 'g') FROM {BY_G}",
        f"SELECT COLUMNS('^n$') / 2 + COLUMNS('^n$') FROM {BY_G}",
        f"SELECT round(COLUMNS('^n$')) AS k FROM {BY_G}",
        f"SELECT * REPLACE (n * 2 AS n) FROM {BY_G}",
        f"SELECT * RENAME (n AS m) FROM {BY_G}",
        f"SELECT * EXCLUDE (na) REPLACE (nb + 1 AS nb) RENAME (g AS h) FROM {BY_G}",
        f"SELECT * LIKE 'n_' FROM {BY_G}",
        f"SELECT * NOT LIKE 'n%' FROM {BY_G}",
        f"SELECT z.* SIMILAR TO '(g|nb)' FROM {BY_G} AS z",
        f"SELECT p.*, q.* EXCLUDE (g, n, na) RENAME (nb AS mb) FROM {BY_G} AS p JOIN {BY_G} AS q USING (g)",
        # Over rows of private tables each column is one aggregate more.
        "SELECT sum(COLUMNS('^[ab]$')) FROM t",
        "SELECT g, avg(COLUMNS(['a', 'b'])), count(*) AS n FROM t GROUP BY g",
        "SELECT COLUMNS('g'), count(*) AS n FROM t GROUP BY ALL",
        "SELECT sum(COLUMNS('^.$')) FROM (SELECT a, b + 1 AS b FROM t WHERE a > 0)",
        "SELECT sum(a) AS s FROM (SELECT * REPLACE (a + 1 AS a) FROM t)",
        "SELECT sum(c) AS s FROM (SELECT * EXCLUDE (b) RENAME (a AS c) FROM t)",
        "SELECT count(a) AS s FROM (SELECT * LIKE 'a' FROM t)",
    ],
)
@pytest.mark.few(every=2)
def test_stars_are_duckdbs(pipeline: Pipeline, sql: str) -> None:
    names, ours = rows_of(pipeline.results(sql)[-1])
    cursor = pipeline.connection.execute(sql)
    assert names == [column[0] for column in cursor.description]
    assert sorted(map(str, (tuple(map(_plain, row)) for row in ours))) == sorted(
        map(str, (tuple(map(_plain, row)) for row in cursor.fetchall()))
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str) else round(float(str(value)), 9)


def test_a_column_that_is_passed_on_keeps_its_errors(pipeline: Pipeline) -> None:
    names, _ = rows_of(pipeline.results(f"SELECT * LIKE 'n' FROM {BY_G}", errors=True)[-1])
    assert names == ["n", "n_stderr", "n_low", "n_high"]
    names, _ = rows_of(pipeline.results(f"SELECT * REPLACE (n + 1 AS n) LIKE 'n' FROM {BY_G}")[-1])
    assert names == ["n"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (f"SELECT COLUMNS('zz') FROM {BY_G}", "means no column"),
        (f"SELECT * LIKE 'zz' FROM {BY_G}", "means no column"),
        (f"SELECT * EXCLUDE (zz) FROM {BY_G}", "no column zz"),
        (f"SELECT * EXCLUDE (g, n, na, nb) FROM {BY_G}", "leaves no column"),
        (f"SELECT COLUMNS('n.') AS m FROM {BY_G}", "would name 2 columns alike"),
        (f"SELECT COLUMNS('na') + COLUMNS('nb') FROM {BY_G}", "one COLUMNS"),
        (f"SELECT COLUMNS(lambda c: repeat(c, 9) = 'n') FROM {BY_G}", "compares the name with texts"),
        (f"SELECT * FROM {BY_G} WHERE COLUMNS('n') > 1", "in SELECT alone"),
        ("SELECT count(COLUMNS(*)) FROM t", "raw of t is not declared"),
        ("SELECT * LIKE 'a' FROM t", "has no aggregate"),
    ],
)
def test_what_a_star_does_not_mean(pipeline: Pipeline, sql: str, said: str) -> None:
    with pytest.raises(SQLError, match=said):
        pipeline.results(sql)
