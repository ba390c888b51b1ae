"""Groups that WHERE rules out for any data are no groups: they are not measured, not shown, and nothing sees them."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, LineAtom, Or, conjunction, disjunction, negate
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.within import Within

POLICY = """
[tables.visits]
unit = "row"
[tables.visits.columns]
e = { values = ["x", "y", "z"], other = true }
m = { lower = 0, upper = 4 }
seen = { lower = 2024-01-01T00:00:00, upper = 2026-12-31T00:00:00 }
big = { lower = 0, upper = 1_000_000 }
"""


@pytest.fixture(scope="module")
def visits() -> Pipeline:
    connection = duckdb.connect()
    connection.execute(
        """CREATE TABLE visits AS SELECT (['x', 'y', 'z', 'w', NULL])[1 + i % 5] AS e, i % 3 AS m,
        TIMESTAMP '2024-01-01' + INTERVAL 1 MINUTE * (i * 377 % 500000) AS seen, i * 7919 % 1000000 AS big
        FROM range(1000) r(i)"""
    )
    return Pipeline.of(policy_of(POLICY), connection)


def tables(visits: Pipeline, batch: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each result, without noise."""
    return [rows_of(table)[1] for table in visits.results(batch)]


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        ("e IN ('x', 'y')", ["x", "y"]),
        ("e <> 'x'", ["y", "z", None]),  # OTHER, and not NULL
        ("e IS NOT NULL", ["x", "y", "z", None]),
        ("e IS NULL", [None]),
        ("e = 'x' AND m = 1 OR e = 'y' AND m = 2", ["x", "y"]),
        ("e = 'x' OR m = 1", ["x", "y", "z", None, None]),
        ("NOT (e = 'x' OR e = 'y' OR e IS NULL)", ["z", None]),
        ("e LIKE 'x%' AND m < 3", ["x", None]),
        ("e = 'x' AND e = 'y' OR e = 'q'", [None]),  # OTHER
    ],
)
def test_groups_that_where_leaves(visits: Pipeline, where: str, groups: list[str | None]) -> None:
    (rows,) = tables(visits, f"SELECT e, COUNT(*) AS n FROM visits WHERE {where} GROUP BY e")
    assert [row[0] for row in rows] == groups


def test_other_has_the_name_that_the_policy_gives(visits: Pipeline) -> None:
    """OTHER is told from NULL in the key itself, without a companion; WHERE leaves it or not."""
    named = Pipeline.of(policy_of(POLICY.replace("other = true", 'other = "(other)"')), visits.connection)
    for where, groups in (("true", ["x", "y", "z", "(other)", None]), ("e <> 'x'", ["y", "z", "(other)"])):
        (found,) = named.results(f"SELECT e, COUNT(*) AS n FROM visits WHERE {where} GROUP BY e")
        assert rows_of(found) == (["e", "n"], [(group, 200.0) for group in groups])
    (found,) = named.results("SELECT e FROM (SELECT e, COUNT(*) AS n FROM visits GROUP BY e) WHERE e = '(other)'")
    assert rows_of(found)[1] == [("(other)",)]


def test_what_follows_does_not_see_them(visits: Pipeline) -> None:
    """The average over two groups is not halved by two zeros."""
    found = tables(
        visits,
        "SELECT AVG(n) AS a, MIN(n) AS low FROM (SELECT e, COUNT(*) AS n FROM visits WHERE e IN ('x', 'y') GROUP BY e)",
    )
    assert found == [[(200.0, 200.0)]]


@pytest.mark.parametrize(
    ("key", "where", "count"),
    [
        ("date_trunc('minute', seen)", "seen >= TIMESTAMP '2024-03-01' AND seen < TIMESTAMP '2024-03-02'", 1440),
        ("date_trunc('month', seen)", "seen >= TIMESTAMP '2024-03-01' AND seen < TIMESTAMP '2024-05-02'", 3),
        ("date_trunc('year', seen)", "year(seen) = 2025", 1),
        ("big", "big BETWEEN 500 AND 520", 21),
        ("big", "big > 500 AND big < 503", 2),
        ("m > 2", "m > 3", 1),
        ("CASE WHEN m > 2 THEN 'high' ELSE 'low' END", "m IN (0, 1)", 1),
        ("coalesce(m, -1)", "m IS NOT NULL", 5),
    ],
)
def test_expressions(visits: Pipeline, key: str, where: str, count: int) -> None:
    """One day of minutes is 1,440 groups, however many days are declared."""
    text = f"SELECT {key} AS k, COUNT(*) AS n FROM visits WHERE {where} GROUP BY 1"
    (rows,) = tables(visits, text)
    assert len(rows) == count
    wanted = visits.connection.execute(text).fetchall()
    assert {row for row in rows if row[1]} == set(wanted)


def test_groups_stay_where_none_is_left(visits: Pipeline) -> None:
    """No row is in any of them, as everybody can see: they are 0, and NULL's with them."""
    batch = "SELECT m, COUNT(*) AS n FROM visits WHERE m > 7 GROUP BY m; SELECT COUNT(*) FROM visits"
    assert [row[1] for row in tables(visits, batch)[0]] == [0] * 6


def test_each_statement_has_its_own(visits: Pipeline) -> None:
    """One batch groups by a column whole, in part, and beside a join of conditions."""
    found = tables(
        visits,
        "SELECT e, m, COUNT(*) AS n FROM visits WHERE e < 'y' AND m >= 3 GROUP BY e, m; "
        "SELECT e, COUNT(*) AS n FROM visits GROUP BY e; "
        "SELECT e, m, COUNT(*) AS n FROM visits WHERE m = 1 GROUP BY ROLLUP (e, m)",
    )
    assert [len(rows) for rows in found] == [2 * 2, 5, 5 + 5 + 1]


# -- soundness, by trying every row ------------------------------------------------------------------

LINES = {"a": line_of("INTEGER"), "b": line_of("INTEGER")}
VALUES = [None, *range(6)]


def _atom(rng: random.Random) -> LineAtom:
    inside = sorted(rng.sample(range(6), rng.choice([0, 1, 1, 2])))
    return LineAtom(rng.choice("ab"), tuple(((n, 0), (n + 1, 0)) for n in inside), rng.random() < 0.3)


def _condition(rng: random.Random, depth: int) -> Condition:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([_atom(rng), _atom(rng), negate(_atom(rng)), TRUE, FALSE][: rng.choice([3, 5])])
    parts = [_condition(rng, depth - 1) for _ in range(2)]
    return rng.choice([conjunction, disjunction])(*parts)


def _holds(condition: Condition, row: dict[str, int | None]) -> bool:
    if isinstance(condition, And):
        return all(_holds(part, row) for part in condition.operands)
    if isinstance(condition, Or):
        return any(_holds(part, row) for part in condition.operands)
    if not isinstance(condition, LineAtom):
        return condition == TRUE
    value = row[condition.column]
    if value is None:
        return condition.on_null
    return any(
        (low is None or low[0] <= value) and (high is None or value < high[0]) for low, high in condition.intervals
    )


@pytest.mark.long
def test_no_group_with_a_row_is_excluded() -> None:
    """Over all rows of two columns: what is excluded holds no row; with one column, all that holds none is excluded."""
    rng = random.Random(7)
    rows = [{"a": a, "b": b} for a in VALUES for b in VALUES]
    excluded = 0
    for _ in range(600):
        within = Within(_condition(rng, 3))
        left = [row for row in rows if _holds(within.condition, row)]
        for _ in range(4):
            group = _condition(rng, 1)
            if within.excludes(group):
                excluded += 1
                assert not any(_holds(group, row) for row in left), (within.condition, group)
        atom = _atom(rng)
        only = [row for row in left if _holds(within.on(atom.column), row)]
        assert only == left
        first, last = within.places(atom.column, 0, 5)
        values = {row[atom.column] for row in left} - {None}
        assert (first, last) == (0, 5) or values <= set(range(first, last + 1))
    assert excluded > 300
