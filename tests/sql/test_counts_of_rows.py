"""COUNT(t.*) and COUNT(DISTINCT (a, b)) as DuckDB counts them: rows that a join found, and rows of fields."""

from __future__ import annotations

import itertools

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

import dpsql

POLICY = policy_of("""
[tables.visits]
unit = "patient"
max_rows_per_unit = 6
references = { patient = "patients.id" }
[tables.visits.columns]
patient = {}
state = { values = ["a", "b"] }
x = { lower = 0, upper = 5 }
day = { lower = 2020-01-01, upper = 2020-12-31 }
seen = {}
price = { lower = 0, upper = 9, step = 0.01 }
weight = { lower = 0, upper = 200 }
note = {}
flag = {}
[tables.patients]
unit = "id"
key = ["id"]
max_rows_per_unit = 1
[tables.patients.columns]
id = {}
sex = { values = ["f", "m"] }
[tables.regions]
public = true
key = ["state"]
[tables.regions.columns]
state = { values = ["a", "z"] }
""")
ROWS = (
    """
CREATE TABLE visits AS SELECT i // 5 AS patient, CASE WHEN i % 4 > 0 THEN ['a', 'b'][1 + i % 2] END AS state,
    CASE WHEN i % 7 > 0 THEN i % 6 END AS x, DATE '2020-01-01' + (i % 9)::INT AS day,
    CASE WHEN i % 5 > 0 THEN TIMESTAMP '2020-01-01 10:00:00' + to_seconds(i % 3) END AS seen,
    CASE WHEN i % 6 > 0 THEN (i % 11 / 4.0)::DECIMAL(6, 2) END AS price, i / 3.0 AS weight,
    ['1:x', '1', ':1', '', NULL, '-'][1 + i % 6] AS note, CASE WHEN i % 3 > 0 THEN i % 2 = 0 END AS flag
FROM range(100) r(i)""",
    "CREATE TABLE patients AS SELECT i AS id, CASE WHEN i % 3 > 0 THEN ['f', 'm'][1 + i % 2] END AS sex "
    "FROM range(15) r(i)",
    "CREATE TABLE regions AS SELECT * FROM (VALUES ('a', 5), ('z', NULL)) v(state, people)",
)
VISITS = "visits v LEFT JOIN patients p ON v.patient = p.id"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    con = duckdb.connect()
    for statement in ROWS:
        con.execute(statement)
    return Pipeline.of(POLICY, con)


def check(sql: str, pipeline: Pipeline, keys: int = 0) -> None:
    """The result has DuckDB's rows, and beside them groups without rows alone."""
    found = {row[:keys]: row[keys:] for row in rows_of(pipeline.results(sql)[0])[1]}
    expected = {row[:keys]: row[keys:] for row in pipeline.connection.execute(sql).fetchall()}
    for key, row in found.items():
        assert row == pytest.approx(expected.get(key, (0,) * len(row))), (sql, key)
    assert expected.keys() <= found.keys()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(v.*) AS n FROM visits v",
        "SELECT COUNT(visits.*) AS n, COUNT(visits.*) FILTER (WHERE x > 2) AS some FROM visits",
        f"SELECT COUNT(p.*) AS found, COUNT(v.*) AS n, COUNT(*) AS every FROM {VISITS}",
        f"SELECT COUNT(p.*) - COUNT(*) AS missing FROM {VISITS} WHERE x > 1",
        "SELECT COUNT(p.*) AS n FROM visits v JOIN patients p ON v.patient = p.id",
        "SELECT COUNT(r.*) AS n FROM visits LEFT JOIN regions r USING (state)",
        "SELECT COUNT(r.*) AS n FROM visits LEFT JOIN (SELECT state AS s, people FROM regions) r ON state = s",
        "SELECT COUNT(b.*) AS n FROM (SELECT * FROM visits WHERE x > 2) b",
        f"SELECT COUNT(c.*) AS n FROM (SELECT p.sex FROM {VISITS}) c",
        "WITH w AS (SELECT x FROM visits) SELECT COUNT(w.*) AS n FROM w",
        "SELECT AVG(n) AS n FROM (SELECT patient, COUNT(visits.*) AS n FROM visits GROUP BY patient)",
        "SELECT AVG(n) AS n FROM (SELECT patient, COUNT(r.*) AS n FROM visits LEFT JOIN regions r USING (state) "
        "GROUP BY patient)",
        "SELECT COUNT(n.*) AS n FROM (SELECT state, COUNT(*) AS c FROM visits GROUP BY state) n",
    ],
)
def test_rows_that_a_join_found_are_counted(sql: str, pipeline: Pipeline) -> None:
    check(sql, pipeline)


def test_rows_that_a_join_found_are_counted_in_groups(pipeline: Pipeline) -> None:
    check(f"SELECT state, COUNT(p.*) AS n, COUNT(*) AS every FROM {VISITS} GROUP BY state", pipeline, 1)
    check("SELECT r.state, COUNT(v.*) AS n FROM regions r LEFT JOIN visits v ON v.state = r.state GROUP BY r.state",
          pipeline, 1)  # fmt: skip


FIELDS = ("state", "x", "day", "seen", "price", "note", "flag", "x + 1", "upper(note)", "NULL")


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FIELDS, 2)))
@pytest.mark.few(every=3)
def test_rows_of_two_fields_are_counted_once(one: str, other: str, pipeline: Pipeline) -> None:
    """NULL is a value of a field, and texts that run into each other stay apart."""
    check(f"SELECT COUNT(DISTINCT ({one}, {other})) AS n FROM visits", pipeline)


def test_rows_of_fields_are_counted_in_groups_of_rows_and_of_units(pipeline: Pipeline) -> None:
    check(
        "SELECT COUNT(DISTINCT (note, x, day)) AS n, COUNT(DISTINCT row(x, flag)) AS m FROM visits WHERE x > 1",
        pipeline,
    )
    check("SELECT state, COUNT(DISTINCT (note, x)) AS n FROM visits GROUP BY state", pipeline, 1)
    check("SELECT COUNT(DISTINCT (x)) AS n, COUNT(DISTINCT (x, flag)) FILTER (WHERE flag) AS m FROM visits", pipeline)
    check(
        "SELECT SUM(n) AS n FROM (SELECT patient, COUNT(DISTINCT (x, flag)) AS n FROM visits GROUP BY patient)",
        pipeline,
    )


@pytest.mark.parametrize(
    ("sql", "said", "column"),
    [
        ("SELECT COUNT(DISTINCT x, state) FROM visits", r"write COUNT\(DISTINCT \(x, state\)\)", 8),
        ("SELECT COUNT(DISTINCT (x, weight)) FROM visits", "the text of such a value is not fixed", 23),
        ("SELECT COUNT(DISTINCT ((x, day), state)) FROM visits", "is not an admitted expression", 25),
        ("SELECT COUNT(DISTINCT (x, secret)) FROM visits", "has no column secret", 27),
        ("SELECT SUM(DISTINCT (x, state)) FROM visits", "leave DISTINCT out", 22),
        ("SELECT COUNT((x, state)) FROM visits", "not an admitted", 15),
        ("SELECT COUNT(q.*) FROM visits v", "q is no table", 14),
        ("SELECT SUM(v.*) FROM visits v", "is a whole row", 12),
        ("SELECT COUNT(DISTINCT v.*) FROM visits v", "is a whole row", 23),
        ("SELECT COUNT(v.* EXCLUDE (x)) FROM visits v", "is a whole row", 14),
        ("SELECT COUNT(*) FROM visits v WHERE v.* IS NULL", "is a whole row", 37),
        ("SELECT r.state, COUNT(r.*) FROM regions r LEFT JOIN visits v ON v.state = r.state GROUP BY r.state",
         "counts rows of r without any of v", 17),
    ],
)  # fmt: skip
def test_other_rows_are_refused_with_their_places(sql: str, said: str, column: int, pipeline: Pipeline) -> None:
    with pytest.raises(dpsql.SQLError, match=said) as refusal:
        pipeline.plan(sql)
    assert refusal.value.column == column
