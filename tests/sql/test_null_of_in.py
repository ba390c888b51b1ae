"""IN and NOT IN over subqueries have three values, beside what DuckDB answers: of texts made at random, and by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of
from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.resolve import semi_joins
from dpsql.sql.resolve.null_of_in import lookups, or_null

POLICY = """
[tables.rows]
unit = "person"
max_rows_per_unit = 90
references = { person = "people.id" }
[tables.rows.columns]
a = { values = [0, 1, 2, 3] }
b = { lower = 0, upper = 3 }
[tables.people]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.people.columns]
id = {}
sex = { values = ["f", "m"] }
[tables.sets]
public = true
[tables.pairs]
public = true
key = ["p", "q"]
[tables.marks]
public = true
key = ["k"]
[tables.empty]
public = true
"""


def _made(seed: int) -> Pipeline:
    """Small tables with many NULLs; a row's person, and some of its columns, are in no policy."""
    rng = random.Random(seed)

    def some(*values: Any) -> list[Any]:
        return [rng.choice((*values, None)) for _ in range(90)]

    con = duckdb.connect()
    con.execute("CREATE TABLE rows (person INTEGER, a INTEGER, b INTEGER, c INTEGER, t VARCHAR)")
    columns = some(*range(9)), some(0, 1, 2, 3), some(0, 1, 2, 3), some(0, 1, 2, 9), some("x", "y", "z")
    con.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", list(zip(*columns, strict=True)))
    con.execute("CREATE TABLE people AS SELECT i AS id, (['f', 'm'])[1 + i % 2] AS sex FROM range(7) r(i)")
    con.execute("CREATE TABLE sets (x INTEGER, y INTEGER, g INTEGER, t VARCHAR)")
    found = zip(some(0, 1), some(1, 2), (0, 0, 1, 1, 2), "xyxyx", strict=False)
    con.executemany("INSERT INTO sets VALUES (?, ?, ?, ?)", list(found))
    con.execute("CREATE TABLE pairs (p INTEGER, q INTEGER, r INTEGER)")
    keys = rng.sample([(p, q) for p in (0, 1, 2, None) for q in (0, 1, 3, None)], 5)
    con.executemany("INSERT INTO pairs VALUES (?, ?, ?)", [(p, q, rng.choice([0, 1, None])) for p, q in keys])
    con.execute("CREATE TABLE marks AS FROM (VALUES (0, 0), (1, NULL), (2, 1), (3, 1), (NULL, 1)) AS marks(k, m)")
    con.execute("CREATE TABLE empty (x INTEGER)")
    return Pipeline.of(policy_of(POLICY), con)


def _subqueries(rng: random.Random) -> list[str]:
    """IN of each kind of subquery, over public tables but for the last."""
    other = rng.choice("ab")
    column = rng.choice([name for name in "abc" if name != other])
    where = rng.choice(["", " WHERE g = 0", " WHERE g <= 1 AND x IS NOT NULL", " WHERE y IS NOT NULL", " WHERE g > 7"])
    return [
        f"{column} IN (SELECT {rng.choice('xy')} FROM sets{where})",
        f"t IN (SELECT t FROM sets{where})",
        f"{column} IN (SELECT x FROM empty)",
        f"{column} IN (SELECT DISTINCT x FROM sets{where})",
        f"{column} IN (SELECT y FROM sets{where} GROUP BY y HAVING COUNT(*) > {rng.choice([0, 1])})",
        f"{column} IN (SELECT z FROM (SELECT g, MAX(x) AS z FROM sets GROUP BY g) WHERE g < {rng.choice([1, 3])})",
        f"{column} IN (SELECT x FROM sets WHERE sets.g < rows.{other})",
        f"{column} IN (SELECT x FROM sets WHERE y > 1 AND rows.{other} > 0)",
        f"({column}, {other}) IN (SELECT p, q FROM pairs)",
        f"({column}, {other}) IN (SELECT q, p FROM pairs WHERE r = 0)",
        "(a, b, a) IN (SELECT p, q, r FROM pairs)",
        f"({column}, {other} // 2) IN (SELECT k, m FROM (SELECT k, m FROM marks WHERE k < 3 OR k IS NULL))",
        "person IN (SELECT id FROM people WHERE sex = 'f')",
    ]  # fmt: skip


def _conditions(rng: random.Random, asked: str) -> list[str]:
    """Conditions in which NULL and FALSE are not the same."""
    return [
        asked,
        asked.replace(" IN ", " NOT IN ", 1),
        f"NOT ({asked})",
        f"({asked}) IS NULL",
        f"({asked}) IS NOT FALSE",
        f"NOT ({asked} AND b > 1)",
        f"NOT ({asked} OR {rng.choice(_subqueries(rng))})",
        f"CASE WHEN {asked} THEN b = 1 WHEN NOT ({asked}) THEN b = 2 ELSE b = 3 END",
        f"CASE {asked} WHEN TRUE THEN b > 1 WHEN FALSE THEN b > 0 ELSE TRUE END",
        f"COALESCE({asked}, b > 1)",
        f"({asked}) = (b > 1)",
    ]  # fmt: skip


def _statements(condition: str) -> list[str]:
    return [
        f"SELECT COUNT(*) AS n FROM rows WHERE {condition}",
        f"SELECT COUNT_IF({condition}) AS n FROM rows",
        f"SELECT COUNT(*) FILTER (WHERE {condition}) AS n FROM rows",
        f"SELECT {condition} AS k, COUNT(*) AS n FROM rows GROUP BY k",
        f"SELECT SUM(CASE WHEN {condition} THEN 2 ELSE 1 END) AS n FROM rows",
        f"SELECT a, COUNT(*) AS n FROM (SELECT * FROM rows WHERE {condition}) AS rows GROUP BY a",
        f"SELECT COUNT(*) AS n FROM rows JOIN people ON person = id WHERE {condition}",
    ]  # fmt: skip


def _compared(pipeline: Pipeline, sql: str) -> None:
    """Groups without rows are 0 beside DuckDB's."""
    wanted = {(*row[:-1], float(row[-1] or 0)) for row in pipeline.connection.execute(sql).fetchall()}
    found = {(*row[:-1], float(row[-1])) for row in rows_of(pipeline.results(sql)[0])[1]}
    assert wanted <= found, sql
    assert all(row[-1] == 0 for row in found - wanted), sql


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 5))])
def test_random_conditions_are_duckdbs(seed: int) -> None:
    """Each kind of subquery in each condition, once a seed, in the statements by turns: each kind, as each condition,
    meets every statement.
    """
    pipeline, rng, number = _made(seed), random.Random(seed), 0
    for kind in range(len(_subqueries(rng))):
        for how in range(len(_conditions(rng, ""))):
            number += 1
            if seed > 1 or number % 18 == 0:
                condition = _conditions(rng, _subqueries(rng)[kind])[how]
                _compared(pipeline, _statements(condition)[(kind + how + seed) % 7])


# Beside what DuckDB answers to another text: what is of no unit, or of another one, says nothing.
OF_UNITS = [
    ("id NOT IN (SELECT person FROM rows WHERE a = 1)",
     "id NOT IN (SELECT person FROM rows WHERE a = 1 AND person IS NOT NULL)"),
    ("(id IN (SELECT person FROM rows GROUP BY person HAVING COUNT(*) > 9)) IS NULL", "FALSE"),
]  # fmt: skip
OF_ROWS = [
    ("person NOT IN (SELECT id FROM people WHERE sex = 'z')", "person IS NOT NULL"),
    ("(person, a) NOT IN (SELECT person, b FROM rows WHERE b > 1 AND a > 0)", "person IS NOT NULL AND "
     "((SELECT BOOL_OR(i.b = rows.a) FROM rows i WHERE i.person = rows.person AND i.b > 1 AND i.a > 0) IS FALSE OR "
     "NOT EXISTS (SELECT 1 FROM rows i WHERE i.person = rows.person AND i.b > 1 AND i.a > 0))"),
    ("a NOT IN (SELECT b FROM rows i WHERE i.person = rows.person AND i.a > 1)", None),
    ("person NOT IN (SELECT person FROM rows i WHERE i.b > rows.b)",
     "person IS NOT NULL AND NOT EXISTS (SELECT 1 FROM rows i WHERE i.person = rows.person AND i.b > rows.b)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "asked", "meant"), [("people", *one) for one in OF_UNITS] + [("rows", *one) for one in OF_ROWS]
)
@pytest.mark.few(every=2)
def test_rows_of_other_units_say_nothing(table: str, asked: str, meant: str | None) -> None:
    pipeline = _made(3)
    (wanted,) = pipeline.connection.execute(f"SELECT COUNT(*) FROM {table} WHERE {meant or asked}").fetchall()
    (found,) = rows_of(pipeline.results(f"SELECT COUNT(*) AS n FROM {table} WHERE {asked}")[0])[1]
    assert found == wanted


def test_except_is_no_not_in() -> None:
    """NULL among the rows that go takes none away."""
    _compared(_made(3), "SELECT COUNT(*) FROM (SELECT id FROM people WHERE id IS NOT NULL EXCEPT SELECT x FROM sets)")


def test_names_of_a_subquery_mean_nothing_outside() -> None:
    """Its table has columns of the names of the aliases, and of no column of the rows."""
    pipeline = _made(4)
    _compared(pipeline, "SELECT (a, b) IN (SELECT p, q FROM pairs) AS r, COUNT(*) AS n FROM rows GROUP BY r")
    _compared(pipeline, "SELECT t IN (SELECT t FROM sets) AS found, COUNT(*) AS n FROM rows GROUP BY found")
    with pytest.raises(SQLError, match="rows has no column g"):
        pipeline.results("SELECT COUNT(*) FROM rows WHERE t IN (SELECT t FROM sets) AND g = 1")


def test_what_cannot_be_looked_up_is_refused() -> None:
    sql = "SELECT COUNT(*) FROM rows WHERE (a, b, a, b) {} IN (SELECT p, q, r, q FROM pairs)"
    pipeline = _made(5)
    with pytest.raises(SQLError, match="NULL in so many columns") as caught:
        pipeline.results(sql.format("NOT"))
    assert caught.value.code == "subquery"
    assert rows_of(pipeline.results(sql.format(""))[0])[1] == pipeline.connection.execute(sql.format("")).fetchall()


PAIRS = "(a, b) NOT IN (SELECT p, q FROM pairs)"
FAULTS = {
    "NULL is FALSE": ("or_null", lambda found, _: found),
    "all contexts alike": ("counts_as_false", lambda _: True),
    "only one side is NULL": ("lookups", lambda *given: [replace(one, without=[]) for one in lookups(*given)]),
    "one column at a time": ("lookups", lambda *given: [one for one in lookups(*given) if len(one.without) == 1]),
    "no NULL among the rows": ("or_null", lambda found, nulls: or_null(found, [_without_counts(one) for one in nulls])),
}


def _without_counts(node: exp.Expression) -> exp.Expression:
    """Whatever a lookup finds, nothing of it is NULL."""
    return node.transform(lambda part: exp.false() if isinstance(part, exp.GT) and "found1" in part.sql() else part)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few(every=2)
def test_a_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants of what says where IN is NULL."""
    monkeypatch.setattr(semi_joins, *FAULTS[fault])
    asked = "a NOT IN (SELECT x FROM sets WHERE x >= 0)", "b NOT IN (SELECT y FROM sets)", PAIRS
    with pytest.raises(AssertionError):
        _compared(_made(3), f"SELECT {', '.join(asked)}, COUNT(*) AS n FROM rows GROUP BY ALL")
