"""Rows of units: queries that group by the unit, and IN and EXISTS over its rows, beside what DuckDB answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import engine_of, exact_answers, policy_of, understood
from noiseless import Pipeline, rows_of

import dpsql
from dpsql.errors import InternalError, SQLError
from dpsql.planning import prepare
from dpsql.privacy.noise import Noise
from dpsql.workloads.compile.compiled import compile_batch
from dpsql.workloads.compile.structured import compile_structured
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.rows import OfPlace, RowSource, Windows
from dpsql.workloads.expr.values import Stored

POLICY = """
[tables.visits]
unit = "pid"
max_rows_per_unit = 12
references = { pid = "people.person" }
[tables.visits.columns]
pid = {}
ward = { values = ["a", "b", "c"] }
cost = { lower = 0, upper = 100 }
price = { lower = 0, upper = 50 }
day = { lower = 2020-01-01, upper = 2020-01-31 }
mass = { lower = 0.0, upper = 70.0 }
[tables.people]
unit = "person"
max_rows_per_unit = 1
key = ["person"]
[tables.people.columns]
person = {}
sex = { values = ["f", "m"] }
age = { lower = 0, upper = 100 }
[tables.stays]
unit = "row"
[tables.stays.columns]
ward = { values = ["a", "b", "c"] }
[tables.wards]
public = true
[tables.wards.columns]
kind = { values = ["x", "y"] }
[tables.rates]
public = true
key = ["w"]
"""


@pytest.fixture(scope="module")
def visits() -> Pipeline:
    con = duckdb.connect()
    con.execute(
        """CREATE TABLE visits AS SELECT CASE WHEN i % 17 = 0 THEN NULL ELSE i % 37 END AS pid,
        (['a', 'b', 'c'])[1 + i % 3] AS ward, i * 7 % 101 AS cost, (i * 13 % 50 / 4)::DECIMAL(9,2) AS price,
        DATE '2020-01-01' + (i % 31)::INT AS day, i / 3.0::DOUBLE AS mass FROM range(200) r(i)"""
    )
    con.execute(
        "CREATE TABLE people AS SELECT i AS person, (['f', 'm'])[1 + i % 2] AS sex, 7 * i % 101 AS age"
        " FROM range(30) r(i)"
    )
    con.execute("CREATE TABLE wards (w VARCHAR, kind VARCHAR)")
    con.execute("INSERT INTO wards VALUES ('a', 'x'), ('a', 'y'), ('c', 'x'), (NULL, 'x')")
    con.execute(
        "CREATE TABLE rates AS SELECT (['a', 'b'])[i] AS w, 10 * i AS cost, 3 - i AS floor FROM range(1, 3) r(i)"
    )
    con.execute("CREATE TABLE stays AS SELECT 'a' AS ward")
    return Pipeline.of(policy_of(POLICY), con)


ANSWERED = [
    "SELECT AVG(n) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid)",
    "SELECT n, COUNT(*) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY ALL) GROUP BY n",
    "SELECT COUNT(*) AS c FROM (SELECT pid FROM visits GROUP BY pid HAVING SUM(cost) > 200)",
    "SELECT SUM(s) AS c FROM (SELECT pid, SUM(cost) AS s FROM visits WHERE ward = 'a' GROUP BY 1)",
    "SELECT SUM(s) AS c FROM (SELECT pid, SUM(price) AS s FROM visits GROUP BY 1)",
    "SELECT SUM(s) AS c FROM (SELECT pid, 2 * SUM(cost + 1) - COUNT(*) AS s FROM visits GROUP BY 1)",
    "SELECT COUNT(*) AS c FROM (SELECT pid, SUM(price) AS s FROM visits GROUP BY 1) WHERE s > 20.25",
    "SELECT w, COUNT(*) AS c FROM (SELECT pid, MIN(ward) AS w FROM visits GROUP BY 1) GROUP BY w",
    """SELECT d, COUNT(*) AS c FROM (SELECT pid, MAX(day) FILTER (WHERE cost > 60) AS d FROM visits GROUP BY 1)
        GROUP BY d""",
    "SELECT COUNT(*) AS c FROM (SELECT pid, MAX(mass) AS m FROM visits GROUP BY pid) WHERE m < 62.5",
    "SELECT COUNT(*) AS c FROM (SELECT pid, AVG(cost) AS m FROM visits GROUP BY pid) WHERE m > 50",
    "SELECT COUNT(DISTINCT pid) AS c FROM (SELECT pid, COUNT(cost) AS n FROM visits GROUP BY pid) WHERE n > 4",
    "SELECT AVG(x) AS c FROM (SELECT pid, LEAST(COUNT(*), 4) AS x FROM visits GROUP BY pid)",
    "SELECT MEDIAN(n) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid)",
    """SELECT COUNT(*) AS c FROM (SELECT pid, STDDEV(cost) AS d FROM visits GROUP BY pid HAVING COUNT(*) > 1)
        WHERE d > 20""",
    "SELECT COUNT_IF(v > 400.5) AS c FROM (SELECT pid, VAR_POP(cost) AS v FROM visits GROUP BY pid)",
    """SELECT COUNT_IF(v > 9.5) AS c, COUNT_IF(v IS NULL) AS z FROM (SELECT pid,
        VARIANCE(price) FILTER (WHERE ward <> 'b') AS v FROM visits GROUP BY pid)""",
    "SELECT COUNT_IF(m > 40.5) AS c FROM (SELECT pid, MEDIAN(cost) AS m FROM visits GROUP BY pid)",
    """SELECT floor(m) AS k, COUNT(*) AS c FROM (SELECT pid, MEDIAN(price) FILTER (WHERE cost > 20) AS m FROM visits
        GROUP BY pid) GROUP BY k""",
    "SELECT COUNT_IF(d > 25) AS c FROM (SELECT pid, STDDEV_POP(cost) AS d FROM visits GROUP BY pid)",
    """SELECT COUNT(*) AS c FROM (SELECT pid FROM visits WHERE ward = 'a' AND pid IS NOT NULL
        INTERSECT SELECT pid FROM visits WHERE cost > 60)""",
    """SELECT COUNT(*) AS c FROM (SELECT pid AS u FROM visits WHERE ward = 'a' AND pid IS NOT NULL
        EXCEPT SELECT pid FROM visits WHERE cost > 90)""",
    """SELECT COUNT(*) AS c FROM (SELECT pid FROM visits WHERE ward = 'a' AND cost < 20
        UNION SELECT pid FROM visits WHERE cost > 90)""",
    """WITH c AS (SELECT pid FROM visits WHERE pid > 3 INTERSECT (SELECT pid FROM visits WHERE cost > 60
        EXCEPT SELECT pid FROM visits WHERE ward = 'c' AND cost > 70)) SELECT COUNT(*) AS n FROM c""",
    """SELECT sex, COUNT(*) AS c FROM people p JOIN (SELECT person FROM people INTERSECT SELECT pid FROM visits
        WHERE cost > 50) v ON p.person = v.person GROUP BY sex""",
    """SELECT COUNT(*) AS c FROM visits v
        WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day > v.day)""",
    """SELECT COUNT(*) AS c FROM visits v WHERE pid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM visits w
        WHERE w.pid = v.pid AND w.ward = 'a' AND v.cost + 10 >= w.cost)""",
    """SELECT ward, COUNT(*) AS c FROM visits v WHERE EXISTS (SELECT 1 FROM visits w
        WHERE w.pid = v.pid AND w.cost < v.cost) OR ward = 'b' GROUP BY ward""",
    """SELECT CASE WHEN n > 5 THEN 'many' ELSE 'few' END AS k, COUNT(*) AS c FROM (SELECT pid, COUNT(*) AS n,
        MAX(cost) - MIN(cost) AS r FROM visits GROUP BY pid) WHERE r > 10 GROUP BY 1""",
    """WITH t AS (SELECT pid AS u, BOOL_OR(ward = 'a' AND cost > 30) AS a, BOOL_AND(cost < 99) AS b,
        COUNT(*) FILTER (WHERE cost > 50) AS k FROM visits GROUP BY u) SELECT a, b, SUM(k) AS c FROM t GROUP BY a, b""",
    """SELECT sex, SUM(n) AS c FROM (SELECT pid, sex, COUNT(*) AS n FROM visits JOIN people ON pid = person
        GROUP BY pid, sex) GROUP BY sex""",
    """SELECT sex, SUM(n) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY 1) v JOIN people p
        ON v.pid = p.person GROUP BY sex""",
    """SELECT COALESCE(n, 0) AS m, COUNT(*) AS c FROM people p LEFT JOIN (SELECT pid, COUNT(*) AS n FROM visits
        WHERE ward = 'b' GROUP BY 1 HAVING COUNT(*) > 1) v ON v.pid = p.person GROUP BY 1""",
    """SELECT ward, COUNT(*) AS c FROM visits x JOIN (SELECT pid, MIN(day) AS d FROM visits GROUP BY 1) v
        ON v.pid = x.pid WHERE x.day > v.d GROUP BY ward""",
    """SELECT COUNT(*) AS c FROM (SELECT pid, MIN(day) AS d FROM visits WHERE ward = 'a' GROUP BY 1) v JOIN
        (SELECT pid, MIN(day) AS e FROM visits WHERE ward = 'b' GROUP BY 1) w ON v.pid = w.pid WHERE w.e > v.d""",
    """SELECT ward, COUNT(*) AS c FROM visits v WHERE EXISTS (SELECT 1 FROM visits d WHERE d.pid = v.pid AND
        d.cost > 95) GROUP BY ward""",
    "SELECT sex, COUNT(*) AS c FROM people WHERE person IN (SELECT pid FROM visits WHERE ward = 'a') GROUP BY sex",
    """SELECT sex, COUNT(*) AS c FROM people WHERE person NOT IN (SELECT pid FROM visits WHERE ward = 'a'
        AND cost < 30 AND pid IS NOT NULL) GROUP BY sex""",
    """SELECT sex, COUNT_IF(EXISTS (SELECT * FROM visits v WHERE v.pid = p.person AND v.ward = 'b')) AS c
        FROM people p GROUP BY sex""",
    """SELECT COUNT(*) AS c FROM people p WHERE NOT EXISTS (SELECT * FROM visits v WHERE p.person = v.pid
        AND v.cost > 90) AND sex = 'f'""",
    # A column beside the unit, of a table where it follows from the unit.
    "SELECT COUNT(*) AS c FROM visits v WHERE pid IN (SELECT person FROM people p WHERE p.age = v.cost)",
    """SELECT COUNT(*) AS c FROM main.visits WHERE (main.visits.pid, cost) IN (SELECT person, main.people.age
        FROM main.people)""",
    """SELECT COUNT(*) AS c FROM visits v WHERE pid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM people p
        WHERE p.person = v.pid AND p.age = v.cost)""",
    # Whole numbers of two types.
    """SELECT COUNT(*) AS c FROM visits v JOIN (SELECT pid, MIN(day(day)) AS d FROM visits GROUP BY 1) u
        ON v.pid = u.pid WHERE v.cost::SMALLINT > u.d""",
    """SELECT COUNT(*) AS c FROM visits v JOIN (SELECT pid, MAX(cost % 9 * 4) AS d FROM visits GROUP BY 1) u
        ON v.pid = u.pid WHERE v.cost >= u.d""",
    """SELECT sex, COUNT(*) AS c FROM people WHERE person IN (SELECT pid FROM visits GROUP BY pid
        HAVING COUNT(*) > 5) GROUP BY sex""",
    """SELECT AVG(n) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits WHERE pid IN (SELECT person FROM people
        WHERE sex = 'f') GROUP BY pid)""",
    """SELECT n, COUNT(*) AS c FROM (SELECT person, COUNT(v.pid) AS n FROM people p LEFT JOIN visits v
        ON p.person = v.pid AND v.cost > 80 GROUP BY person) GROUP BY n""",
    """SELECT sex, SUM(n) AS c FROM (SELECT person, sex, COUNT(v.pid) AS n, MAX(v.cost) AS m FROM people p
        LEFT JOIN visits v ON v.pid = p.person GROUP BY 1, 2
        HAVING MAX(v.cost) > 70 OR SUM(v.cost) IS NULL) GROUP BY sex""",
    # Units without a row that WHERE holds for count nowhere: no group, no unit, no NULL, and no match of a join.
    "SELECT COUNT(*) AS c FROM (SELECT pid FROM visits WHERE cost > 90 GROUP BY pid)",
    """SELECT COUNT(DISTINCT pid) AS c FROM (SELECT pid, COUNT(*) AS n FROM visits WHERE cost > 80 GROUP BY pid)
        WHERE n < 3""",
    """SELECT w, COUNT(*) AS c FROM (SELECT pid, MIN(ward) FILTER (WHERE day < DATE '2020-01-09') AS w FROM visits
        WHERE cost > 90 GROUP BY pid) GROUP BY w""",
    """SELECT m, COUNT(*) AS c FROM (SELECT pid, SUM(n) AS m FROM (SELECT pid, COUNT(*) AS n FROM visits WHERE cost > 80
        GROUP BY pid) GROUP BY pid) GROUP BY m""",
    """SELECT v.pid IS NULL AS a, n IS NULL AS b, s > 170 AS d, COUNT(*) AS c FROM people p LEFT JOIN (SELECT pid,
        COUNT(*) AS n, SUM(cost) AS s FROM visits WHERE cost > 80 GROUP BY 1 HAVING pid > 3) v ON v.pid = p.person
        GROUP BY 1, 2, 3""",
    "SELECT COUNT(*) AS c FROM visits WHERE ward IN (SELECT w FROM wards WHERE kind = 'x')",
    "SELECT COUNT(*) AS c FROM visits v WHERE NOT EXISTS (SELECT 1 FROM wards u WHERE u.w = v.ward AND kind LIKE 'y%')",
    # Groups of a public table, and groups of these.
    "WITH k AS (SELECT DISTINCT w AS x FROM wards) SELECT COUNT(*) AS c FROM visits WHERE ward IN (SELECT x FROM k)",
    "SELECT COUNT(*) AS c FROM visits WHERE ward IN (FROM (SELECT DISTINCT w FROM wards WHERE kind = 'y'))",
    """WITH k AS (SELECT w, COUNT(*) AS n, MAX(kind) AS kind FROM wards GROUP BY w HAVING COUNT(*) = 1)
        SELECT COUNT(*) AS c FROM visits v WHERE NOT EXISTS (SELECT 1 FROM k WHERE k.w = v.ward AND kind = 'x')""",
    """SELECT COUNT(*) AS c FROM visits WHERE pid IN (SELECT n FROM (SELECT w, COUNT(*) AS n FROM wards
        WHERE kind = 'x' GROUP BY w) WHERE w > 'a')""",
    """WITH k AS (SELECT w, COUNT(*) AS n FROM wards GROUP BY w), m AS (SELECT n, MIN(w) AS x FROM k GROUP BY n)
        SELECT ward, COUNT(*) AS c FROM visits WHERE ward IN (SELECT x FROM m) GROUP BY ward""",
    """WITH k AS (SELECT w, COUNT(*) AS n FROM wards WHERE kind = 'x' GROUP BY w), l AS (SELECT w, COUNT(*) AS n
        FROM wards WHERE kind = 'y' GROUP BY w), m AS (SELECT n, MIN(w) AS x FROM k GROUP BY n), o AS (SELECT n,
        MAX(w) AS x FROM l GROUP BY n) SELECT ward IN (SELECT x FROM m) AS a, ward IN (SELECT x FROM o) AS b,
        COUNT(*) AS c FROM visits WHERE ward IS NOT NULL GROUP BY 1, 2""",
    """WITH k AS (SELECT w, COUNT(*) AS n FROM wards GROUP BY w) SELECT COUNT(*) AS c FROM visits WHERE
        (ward, cost % 3) IN (SELECT w, n FROM k WHERE w < 'd')""",
    """SELECT COUNT(*) AS c FROM visits v WHERE (SELECT MAX(n) FROM (SELECT w, COUNT(*) AS n FROM wards GROUP BY w) k
        WHERE k.w = v.ward) > 1""",
    """SELECT sex, COUNT(*) AS c FROM people WHERE person IN (SELECT pid FROM visits WHERE ward IN
        (SELECT w FROM (SELECT DISTINCT w FROM wards WHERE kind = 'y'))) GROUP BY sex""",
    # Several columns of a public table, found by its key; the row's own columns have the same names.
    """SELECT COUNT(*) AS c FROM visits WHERE (cost // 10 * 10, ward) IN (SELECT d, x FROM
        (SELECT w AS x, cost AS d FROM rates))""",
    "SELECT COUNT(*) AS c FROM visits WHERE (ward, cost // 10 * 10) IN (SELECT w, cost FROM rates)",
    """SELECT COUNT(*) AS c FROM visits WHERE ward < 'c' AND (ward, cost // 50) NOT IN (SELECT w, floor FROM rates
        WHERE cost < 15)""",
    """SELECT ward, COUNT(*) AS c FROM visits v WHERE NOT EXISTS (SELECT 1 FROM rates AS r WHERE r.w = v.ward
        AND r.cost < v.cost AND v.pid > 3) GROUP BY ward""",
    # One equality of a column that does not hold the unit.
    """SELECT ward, COUNT(*) AS c FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid
        AND w.day = v.day AND w.ward <> 'a') GROUP BY ward""",
    """SELECT COUNT(*) AS c FROM visits WHERE (pid, day) NOT IN (SELECT pid, day + 3 FROM visits WHERE pid > 0)
        AND pid > 0""",
    "SELECT n, COUNT(*) AS c FROM (SELECT pid, COUNT(DISTINCT ward) AS n FROM visits GROUP BY pid) GROUP BY n",
    """SELECT SUM(n) AS c FROM (SELECT pid, COUNT(DISTINCT cost) FILTER (WHERE ward = 'a') AS n FROM visits
        GROUP BY 1)""",
    "SELECT COUNT(*) AS c FROM (SELECT pid FROM visits GROUP BY 1 HAVING COUNT(DISTINCT ward) = 2)",
    "SELECT SUM(x) AS c FROM (SELECT pid, ARG_MAX(cost, mass) AS x FROM visits GROUP BY pid)",
    "SELECT SUM(x) AS c FROM (SELECT pid, MIN_BY(cost, mass) AS x FROM visits GROUP BY pid)",
    """SELECT w, COUNT(*) AS c FROM (SELECT pid, FIRST(ward ORDER BY mass DESC) AS w FROM visits GROUP BY pid)
        GROUP BY w""",
    """SELECT w, COUNT(*) AS c FROM (SELECT pid, LAST(ward ORDER BY mass) FILTER (WHERE cost > 30) AS w FROM visits
        GROUP BY pid) GROUP BY w""",
    "SELECT COUNT(*) AS c FROM (SELECT DISTINCT pid FROM visits WHERE cost > 90)",
    """SELECT sex, COUNT(v.pid) AS c FROM people p LEFT JOIN (SELECT DISTINCT pid FROM visits WHERE cost > 90) v
        ON v.pid = p.person GROUP BY sex""",
    """SELECT sex, COUNT(*) AS c FROM (SELECT pid, ANY_VALUE(sex) AS sex FROM visits JOIN people ON pid = person
        GROUP BY 1) GROUP BY 1""",
    """SELECT kind, COUNT(*) AS c FROM visits v JOIN (SELECT w, MAX(kind) AS kind FROM wards GROUP BY w) u
        ON u.w = v.ward GROUP BY kind""",
    # Days between rows, a subquery within another, and values of a unit's rows.
    """SELECT COUNT(*) AS c FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid
        AND w.day - v.day BETWEEN 1 AND 9)""",
    """SELECT EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day - v.day BETWEEN 1 AND 9) AS k,
        COUNT_IF(EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day - v.day BETWEEN 1 AND 9)) AS c
        FROM visits v GROUP BY k""",
    """SELECT COUNT(*) AS c FROM visits v JOIN people ON pid = person WHERE EXISTS (SELECT 1 FROM visits w
        WHERE w.pid = v.pid AND date_diff('day', w.day, v.day) < 9 AND date_diff('day', w.day, v.day) > 3
        AND sex = 'f')""",
    """SELECT sex, COUNT(*) AS c FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.person
        AND ward = 'a' AND EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.cost BETWEEN v.cost AND v.cost + 20
        AND w.ward = 'b')) GROUP BY sex""",
    "SELECT COUNT(*) AS c FROM visits v WHERE cost > (SELECT AVG(w.cost) FROM visits w WHERE w.pid = v.pid)",
    """SELECT SUM((SELECT COUNT(*) FROM visits v WHERE v.pid = p.person AND v.cost > 60)) AS c FROM people p
        WHERE (SELECT MAX(v.day) FROM visits v WHERE v.pid = p.person) > DATE '2020-01-20'""",
    """SELECT COUNT(*) AS c FROM visits v WHERE (SELECT MIN(kind) FROM wards WHERE w = v.ward) = 'x'""",
    # Windows within a unit; the orders that decide are total.
    """SELECT COUNT(*) AS c FROM (SELECT date_diff('day', LAG(day) OVER (PARTITION BY pid ORDER BY day), day) AS gap
        FROM visits) WHERE gap < 9""",
    """SELECT w, COUNT(*) AS c FROM (SELECT pid, LEAD(ward, 2) OVER (PARTITION BY pid ORDER BY mass DESC) AS w
        FROM visits WHERE cost > 20) GROUP BY w""",
    """SELECT ward, SUM(cost) AS c FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY cost DESC, mass) AS k
        FROM visits) WHERE k <= 2 GROUP BY ward""",
    """WITH f AS (SELECT * FROM visits WHERE ward <> 'c' WINDOW w AS (PARTITION BY pid ORDER BY mass)
        QUALIFY ROW_NUMBER() OVER w = 1) SELECT sex, COUNT(*) AS c FROM f JOIN people ON pid = person
        GROUP BY sex""",
    """SELECT k, COUNT(*) AS c FROM (SELECT DENSE_RANK() OVER (PARTITION BY pid, ward ORDER BY cost // 4) AS k
        FROM visits) GROUP BY k""",
    """SELECT SUM(n) AS c FROM (SELECT pid, COUNT_IF(ward <> before) AS n FROM (SELECT pid, ward, LAG(ward) OVER
        (PARTITION BY pid ORDER BY mass) AS before FROM visits) GROUP BY pid)""",
    """SELECT f, RANK() OVER (ORDER BY f) AS k, COUNT(*) AS c FROM (SELECT FIRST_VALUE(ward) OVER
        (PARTITION BY pid ORDER BY mass) AS f FROM visits) GROUP BY f""",
]


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:-1], round(float(row[-1] or 0), 9))


@pytest.mark.parametrize("sql", ANSWERED)
@pytest.mark.few(every=6)
def test_as_duckdb_answers(visits: Pipeline, sql: str) -> None:
    """Groups without rows are 0 beside DuckDB's."""
    found = {_plain(row) for row in rows_of(visits.results(sql)[0])[1]}
    wanted = {_plain(row) for row in visits.connection.execute(sql).fetchall()}
    assert wanted <= found
    assert all(row[-1] == 0 for row in found - wanted)


TOGETHER = [
    ("AVG(cost)", "SUM(cost)"),
    ("MIN(cost)", "MAX(cost)"),
    ("COUNT(*)", "COUNT_IF(cost > 50)"),
    ("COUNT(cost)", "COUNT(DISTINCT day)"),
    ("BOOL_OR(cost > 60)", "BOOL_AND(cost > 20)"),
]


@pytest.mark.parametrize("aggregates", TOGETHER, ids=" ".join)
def test_aggregates_with_several_filters_are_kept_apart(visits: Pipeline, aggregates: tuple[str, str]) -> None:
    """Each under two conditions and under none in one SELECT; an average comes before the sum that it has within."""
    filters = (" FILTER (WHERE cost < 40)", "", " FILTER (WHERE ward = 'b')")
    asked = [f"{aggregate}{condition}" for aggregate in aggregates for condition in filters]
    inner = ", ".join(f"{item} AS x{at}" for at, item in enumerate(asked))
    outer = ", ".join(f"{'COUNT_IF' if 'BOOL' in item else 'SUM'}(x{at}) AS c{at}" for at, item in enumerate(asked))
    sql = f"SELECT {outer} FROM (SELECT pid, {inner} FROM visits GROUP BY pid)"
    ((found,), (wanted,)) = rows_of(visits.results(sql)[0])[1], visits.connection.execute(sql).fetchall()
    assert found == pytest.approx([float(value) for value in wanted], rel=1e-6)
    assert wanted[0] != wanted[2]
    assert wanted[3] != wanted[5]


def test_bounds_are_those_of_so_many_rows(visits: Pipeline) -> None:
    """A count is clamped to the declared rows of a unit, a sum to so many values."""
    (result,) = visits.results("SELECT COUNT(*) AS c, SUM(n) AS s FROM (SELECT COUNT(*) AS n FROM visits GROUP BY pid)")
    assert rows_of(result)[1] == [(38.0, 200.0)]
    policy = policy_of(POLICY.replace("max_rows_per_unit = 12", "max_rows_per_unit = 3"))
    (result,) = Pipeline.of(policy, visits.connection).results(
        "SELECT SUM(n) AS n, SUM(s) AS s FROM (SELECT COUNT(*) AS n, SUM(price) AS s FROM visits GROUP BY pid)"
    )
    wanted = visits.connection.execute(
        "SELECT sum(least(n, 3)), sum(least(s, 150)) FROM "
        "(SELECT count(*) AS n, sum(price) AS s FROM visits GROUP BY pid)"
    ).fetchall()
    assert [tuple(map(float, row)) for row in wanted] == rows_of(result)[1]


ZONED = "(SELECT *, CAST(day AS TIMESTAMP) AT TIME ZONE 'UTC' AS t FROM visits)"
REFUSED = [
    (
        "SELECT AVG(n) FROM (SELECT pid, day, COUNT(*) AS n FROM visits GROUP BY pid, ROLLUP (day))",
        "may have several rows of a",
    ),
    ("SELECT AVG(n) FROM (SELECT pid, cost AS n FROM visits GROUP BY pid)", "write MIN, MAX or another aggregate"),
    ("SELECT AVG(n) FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid LIMIT 3)", "looks at several units"),
    (
        "SELECT AVG(n) FROM (SELECT pid, CORR(cost, cost) AS n FROM visits GROUP BY pid)",
        "over the rows of a unit is not",
    ),
    ("SELECT AVG(n) FROM (SELECT pid, SUM(mass) AS n FROM visits GROUP BY pid)", "whole numbers and decimals alone"),
    ("SELECT AVG(n) FROM (SELECT pid, SUM(pid) AS n FROM visits GROUP BY pid)", "needs bounds"),
    ("SELECT AVG(n) FROM (SELECT /*+ WEIGHT(2) */ pid, COUNT(*) AS n FROM visits GROUP BY pid)", "a hint is for what"),
    ("SELECT COUNT(*) FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.cost = 3)", "nothing ties EXISTS"),
    ("SELECT COUNT(*) FROM people WHERE person IN (SELECT cost FROM visits)", "rows of the same unit alone"),
    ("SELECT COUNT(*) FROM stays WHERE ward IN (SELECT ward FROM visits)", "rows of the same unit alone"),
    ("SELECT COUNT(*) FROM stays WHERE ward IN (SELECT ward FROM stays)", "rows of the same unit alone"),
    (
        """SELECT COUNT(*) FROM people p WHERE EXISTS (SELECT 1 FROM visits v WHERE v.pid = p.person
            AND v.cost BETWEEN p.person AND p.person + 3 AND v.price > p.person)""",
        "tied to the row by equalities of columns",
    ),
    (
        "SELECT COUNT(*) FROM visits v WHERE cost > (SELECT AVG(w.cost) FROM visits w WHERE w.ward = v.ward)",
        "rows of the same unit alone",
    ),
    (
        """SELECT COUNT(*) FROM visits v WHERE cost > (SELECT AVG(w.cost) FROM visits w WHERE w.pid = v.pid
            AND w.day < v.day)""",
        "by equalities of columns alone",
    ),
    (
        "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.ward = v.ward)",
        "numbers, dates and times alone",
    ),
    (
        """SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day = v.day
            AND w.cost = v.cost)""",
        "w.day is no column that holds the unit",
    ),
    ("SELECT COUNT(*) FROM visits WHERE (cost, pid) IN (SELECT cost, floor FROM rates)", "by their key; compare w too"),
    ("SELECT COUNT(*) FROM visits WHERE (ward, cost) IN (SELECT w, nosuch FROM rates)", "nosuch"),
    (
        "SELECT COUNT(*) FROM visits WHERE (ward, cost) IN (SELECT w, cost FROM rates WHERE floor > (SELECT 1))",
        "SELECT in the subquery of IN or EXISTS is not answered",
    ),
    (
        """SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM (SELECT w, COUNT(*) AS n FROM wards GROUP BY w) k
            WHERE k.n = v.cost AND k.n = v.pid)""",
        "by their key; compare w too",
    ),
    (
        "SELECT COUNT(*) FROM visits WHERE ward IN (SELECT x FROM (SELECT DISTINCT ON (kind) w AS x FROM wards))",
        "wards is",
    ),
    ("SELECT COUNT(*) FROM visits WHERE cost > (SELECT MAX(cost) FROM rates)", "ask DuckDB for it"),
    ("SELECT COUNT(*) FROM visits WHERE (ward, ward) IN (SELECT w, kind FROM wards)", "share as its key"),
    ("SELECT COUNT(*) FROM people WHERE person IN (SELECT pid FROM visits LIMIT 2)", "LIMIT in the subquery"),
    ("SELECT COUNT(*) FROM people WHERE person IN (SELECT pid, cost FROM visits)", "select as many"),
    (
        """SELECT COUNT(*) FROM (SELECT LAG(b) OVER (PARTITION BY pid ORDER BY day) AS z FROM (SELECT pid, day,
            LAG(cost) OVER (PARTITION BY pid ORDER BY day) AS b FROM visits)) WHERE z > 2""",
        "write all windows in one SELECT",
    ),
    (
        "SELECT AVG(s) FROM (SELECT SUM(cost) OVER (PARTITION BY pid ORDER BY day) AS s FROM visits)",
        "in a subquery that groups by the unit",
    ),
    ("SELECT AVG(s) FROM (SELECT LAG(cost) OVER (PARTITION BY pid) AS s FROM visits)", "add ORDER BY to OVER"),
    (
        "SELECT AVG(s) FROM (SELECT LAG(cost, 1, 0) OVER (PARTITION BY pid ORDER BY day) AS s FROM visits)",
        "write COALESCE(..., default) around it",
    ),
    (
        "SELECT AVG(s) FROM (SELECT LAG(cost) OVER (PARTITION BY pid ORDER BY day NULLS FIRST) AS s FROM visits)",
        "NULLS FIRST within a window",
    ),
    (
        """SELECT AVG(s) FROM (SELECT LAG(cost) OVER (PARTITION BY pid ORDER BY day) AS s FROM visits JOIN people
            ON pid = person)""",
        "a window over joined rows",
    ),
    (
        "SELECT COUNT(*) FROM visits JOIN (SELECT person, COUNT(*) AS n FROM people GROUP BY 1) p ON cost = p.person",
        "pid = p.person",
    ),
    # A moment with a zone: one message, with the cure.
    *(
        (sql, "holds TIMESTAMP WITH TIME ZONE, by which the rows of a unit are not compared; write CAST(")
        for sql in (
            f"SELECT COUNT(*) FROM (SELECT pid, ARG_MIN(ward, t) AS f FROM {ZONED} GROUP BY pid) WHERE f = 'a'",
            f"SELECT COUNT(*) FROM (SELECT LEAD(t) OVER (PARTITION BY pid ORDER BY t) n FROM {ZONED}) WHERE n = n",
            f"SELECT COUNT(*) FROM (SELECT pid, MIN(t) AS f FROM {ZONED} GROUP BY pid) WHERE f IS NULL",
            f"SELECT COUNT(*) FROM (SELECT pid, COUNT(DISTINCT t) AS f FROM {ZONED} GROUP BY pid) WHERE f = 2",
        )
    ),
    # What the batch computes has no place in the policy.
    (
        "SELECT f, COUNT(*) FROM (SELECT pid, MAX(sqrt(mass)) AS f FROM visits GROUP BY pid) GROUP BY f",
        "GROUP BY f needs its groups declared: write a CASE with constant results around it",
    ),
    (
        "SELECT SUM(f) FROM (SELECT pid, MAX(epoch(day)) AS f FROM visits GROUP BY pid)",
        "write SUM(LEAST(GREATEST(..., 0), 100)) around it",
    ),
    # Names are those of the text.
    (
        "SELECT COUNT(*) FROM people p WHERE (SELECT MIN(ward) FROM visits v WHERE v.pid = p.person) > 3",
        "(SELECT MIN(ward) FROM visits v WHERE v.pid = p.person): the column holds VARCHAR",
    ),
    (
        "SELECT COUNT(*) FROM (SELECT pid, SUM(cost) AS f FROM visits GROUP BY pid) WHERE f + 1 > 'x'",
        "f + 1: the expression is a number",
    ),
]


@pytest.mark.parametrize(("sql", "words"), REFUSED)
def test_refused(visits: Pipeline, sql: str, words: str) -> None:
    with pytest.raises(SQLError) as caught:
        visits.results(sql)
    assert words in str(caught.value)
    assert "#" not in str(caught.value).split("\n")[0]


OF_ONE_UNIT = """
SELECT w, COUNT(*) FROM (SELECT pid, ARG_MAX(ward, day) AS w FROM visits GROUP BY pid) GROUP BY w;
SELECT w, COUNT(*) FROM (SELECT pid, ARG_MIN(ward, mass) AS w FROM visits WHERE cost > 20 GROUP BY pid) GROUP BY w;
SELECT w, COUNT(*) FROM (SELECT pid, FIRST(ward ORDER BY day) AS w FROM visits GROUP BY pid) GROUP BY w;
SELECT w, COUNT(*) FROM (SELECT pid, LAST(ward ORDER BY cost) FILTER (WHERE day > DATE '2020-01-01') AS w FROM visits
    GROUP BY pid) GROUP BY w;
SELECT s, COUNT(*) FROM (SELECT pid, LAST(1 / mass ORDER BY day) > 0 AS s FROM visits GROUP BY pid) GROUP BY s;
SELECT n, COUNT(*) FROM (SELECT pid, COUNT(DISTINCT ward) AS n FROM visits GROUP BY pid) GROUP BY n;
SELECT SUM(n) FROM (SELECT pid, COUNT(DISTINCT mass) AS n FROM visits GROUP BY pid);
SELECT COUNT(*) FROM (SELECT DISTINCT pid FROM visits WHERE ward = 'a');
SELECT COUNT(*) FROM (SELECT pid FROM visits WHERE ward = 'a' INTERSECT SELECT pid FROM visits WHERE cost > 10);
SELECT COUNT(*) FROM (SELECT pid FROM visits WHERE ward = 'a' EXCEPT SELECT pid FROM visits WHERE cost > 10);
SELECT COUNT(*) FROM (SELECT pid FROM visits WHERE ward = 'a' UNION SELECT pid FROM visits WHERE cost > 10);
SELECT COUNT_IF(d > 4.5) FROM (SELECT pid, STDDEV(cost) AS d FROM visits GROUP BY pid);
SELECT m, COUNT(*) FROM (SELECT pid, floor(MEDIAN(cost)) AS m FROM visits GROUP BY pid) GROUP BY m;
SELECT COUNT(*) FROM (SELECT pid, VAR_POP(cost) AS v FROM visits WHERE ward <> 'b' GROUP BY pid) WHERE v > 30.5;
SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day > v.day);
SELECT ward, COUNT(*) FROM visits v WHERE NOT EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.mass <= v.mass)
    GROUP BY ward;
SELECT COUNT(*) FROM (SELECT pid, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY day) AS k FROM visits) WHERE k = 1;
SELECT w, COUNT(*) FROM (SELECT ward AS w, cost FROM visits WHERE cost > 0 QUALIFY ROW_NUMBER() OVER
    (PARTITION BY pid ORDER BY mass DESC) = 2) GROUP BY w;
SELECT w, COUNT(*) FROM (SELECT LAG(ward) OVER (PARTITION BY pid ORDER BY day) AS w FROM visits) GROUP BY w;
SELECT COUNT(*) FROM (SELECT LEAD(mass) OVER (PARTITION BY pid, ward ORDER BY cost DESC) AS m FROM visits) WHERE m > 1;
SELECT COUNT(*) FROM (SELECT RANK() OVER (PARTITION BY pid ORDER BY mass) AS k FROM visits) WHERE k < 4;
SELECT COUNT(*) FROM visits v WHERE (pid, mass) IN (SELECT pid, mass FROM visits WHERE ward = 'b');
"""


@pytest.mark.parametrize("worlds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_one_unit_moves_its_own_row_alone(worlds: int) -> None:
    """Neighbours, in any order of rows, over values with many ties, NULL, both zeros, NaN and infinity."""
    random = np.random.default_rng(19)
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE visits (pid INTEGER, ward VARCHAR, cost INTEGER, price DECIMAL(9,2), day DATE, mass DOUBLE)"
    )
    con.execute("CREATE TABLE people (person INTEGER, sex VARCHAR, age INTEGER)")
    con.execute("CREATE TABLE stays (ward VARCHAR)")
    con.execute("CREATE TABLE wards (w VARCHAR, kind VARCHAR)")
    con.execute("CREATE TABLE rates (w VARCHAR)")
    policy = policy_of(POLICY)
    pipeline = Pipeline.of(policy, con)
    found = understood(OF_ONE_UNIT, policy, pipeline.tables)
    compiled = compile_batch(found.queries, found.tables)
    asked = np.concatenate([np.full(span.stop - span.start, span.query) for span in compiled.spans])

    def counted(rows: list[tuple[Any, ...]]) -> Any:
        con.execute("DELETE FROM visits")
        if rows:
            con.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", rows)
        return np.array([float(answer) for answer in exact_answers(compiled, policy, engine_of(con))[1]])

    days = [None, "2020-01-01", "2020-01-02"]
    masses = [None, 0.0, -0.0, float("nan"), float("inf"), 2.5]
    for _ in range(worlds):
        units, wards = random.choice([None, 1, 2, 3, 4], 40), random.choice([None, "a", "b", "c", "z"], 40)
        costs, when, how = random.integers(0, 4, 40) * 10, random.choice(days, 40), random.choice(masses, 40)
        rows = list(zip(units, wards, costs.tolist(), [1] * 40, when, how, strict=True))
        whole = counted(rows)
        random.shuffle(rows)
        assert (counted(rows) == whole).all()
        for unit in (None, 1, 2):
            moved = whole - counted([row for row in rows if row[0] != unit])
            assert (moved >= 0).all()
            by_statement = np.bincount(asked, weights=moved)
            # A sum adds at most the values of 12 rows, which all count where no row is chosen.
            assert (by_statement <= [*[1] * 6, 12, *[1] * 7, 12, 12, 1, 1, 12, 12, 12, 12]).all()


def test_rows_with_windows_come_first_in_from() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE visits (id INTEGER, pid INTEGER, day DATE)")
    con.execute("CREATE TABLE bills (visit INTEGER, pid INTEGER)")
    policy = policy_of(
        """[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 4\nkey = ["id"]\n[tables.visits.columns]
        id = {}\nday = { lower = 2020-01-01, upper = 2020-01-31 }\n[tables.bills]\nunit = "visits.pid"
        max_rows_per_unit = 4\nreferences = { visit = "visits.id" }\n[tables.bills.columns]\nvisit = {}"""
    )
    nth = "(SELECT id, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY day) AS k FROM visits) v"
    with pytest.raises(SQLError, match="v has windows and is joined to bills"):
        Pipeline.of(policy, con).plan(f"SELECT COUNT(*) FROM bills JOIN {nth} ON bills.visit = v.id WHERE k = 1")


def test_rows_numbered_by_a_key_on_the_way_to_the_unit_all_count() -> None:
    """Two visits of a person have a first bill each."""
    con = duckdb.connect()
    con.execute("CREATE TABLE visits AS SELECT i AS id, i // 2 AS pid FROM range(6) r(i)")
    con.execute("CREATE TABLE bills AS SELECT i // 2 AS visit, i AS cost FROM range(12) r(i)")
    policy = policy_of(
        """[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 2\nkey = ["id"]\n[tables.visits.columns]\nid = {}
        [tables.bills]\nunit = "visits.pid"\nmax_rows_per_unit = 4\nreferences = { visit = "visits.id" }
        [tables.bills.columns]\nvisit = {}\ncost = { lower = 0, upper = 20 }"""
    )
    numbered = "SELECT ROW_NUMBER() OVER (PARTITION BY visit ORDER BY cost) AS k FROM bills"
    (result,) = Pipeline.of(policy, con).results(f"SELECT k, COUNT(*) AS c FROM ({numbered}) GROUP BY k")
    assert rows_of(result)[1] == [(1, 6.0), (2, 6.0), (3, 0.0), (4, 0.0)]


def test_rows_that_where_leaves_out_take_no_number_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks do not tell which rows WHERE leaves out when a unit's rows are chosen."""
    monkeypatch.setattr(prepare, "compile_any", lambda queries, tables, *_: compile_structured(queries, tables))
    monkeypatch.setattr(Noise, "sample", lambda _, count: [0] * count)
    raw = duckdb.connect()
    raw.execute("CREATE TABLE visits AS SELECT i // 4 AS pid, i % 5 AS day, i % 3 AS cost FROM range(200) r(i)")
    (tmp_path / "p.toml").write_text(
        """dataset = "w"\n[budget]\nepsilon = 9\n[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 4
        [tables.visits.columns]\nday = { lower = 0, upper = 4 }\ncost = { lower = 0, upper = 2 }"""
    )
    numbered = "SELECT ROW_NUMBER() OVER (PARTITION BY pid ORDER BY day) AS k FROM visits WHERE cost = 1 OR day > 2"
    sql = f"SELECT k, COUNT(*) AS n FROM ({numbered}) GROUP BY k"
    found = dpsql.connect(raw, policy=tmp_path / "p.toml").run(sql, epsilon=1, errors=False).only.fetchall()
    wanted = dict(raw.execute(sql).fetchall())
    assert {k: round(n, 9) for k, n in found} == {k: wanted.get(k, 0) for k in range(1, 5)}


def test_windows_tell_units_apart_that_are_no_numbers() -> None:
    """NaN, NULL, infinity and an infinite number of days are units of their own, and say nothing of each other."""
    con = duckdb.connect()
    con.execute("CREATE TABLE visits (pid DOUBLE, ward VARCHAR, day DATE)")
    policy = policy_of(
        """[tables.visits]\nunit = "pid"\nmax_rows_per_unit = 4\n[tables.visits.columns]
        ward = { values = ["a", "b"] }\nday = {}"""
    )
    lag = "SELECT LAG(ward) OVER (PARTITION BY pid ORDER BY day) AS w FROM visits"
    compiled = None
    found = []
    units = (None, float("nan"), float("inf"), 0.0)
    for gone in (units, *((unit,) for unit in units)):
        con.execute("DELETE FROM visits")
        kept = units if gone is units else [unit for unit in units if unit is not gone[0]]
        rows = [(unit, ward, f"2020-01-0{day}") for unit in kept for day, ward in enumerate("ab", 1)]
        con.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
        if compiled is None:
            asked = understood(f"SELECT w, COUNT(*) FROM ({lag}) GROUP BY w", policy, Pipeline.of(policy, con).tables)
            compiled = compile_batch(asked.queries, asked.tables)
        found.append([float(answer) for answer in exact_answers(compiled, policy, engine_of(con))[1]])
    assert found == [[4.0, 0.0, 4.0], *[[3.0, 0.0, 3.0]] * 4]


def test_a_window_over_several_units_is_no_column() -> None:
    pid, day = Stored("pid", "INTEGER"), Stored("day", "DATE")
    line = line_of("DATE")
    for apart in ((), ((day, line),)):
        lag = OfPlace("before", "lag", (day, line), 1, line, apart, ((day, line, False),))
        with pytest.raises(InternalError, match="a window holds rows of several units"):
            RowSource("visits", unit=pid, limit=3, protects="pid", windows=Windows((lag,), (pid, day)))


def test_a_unit_column_that_is_not_declared_is_refused_in_having(visits: Pipeline) -> None:
    policy = policy_of(POLICY.replace("pid = {}\n", "").replace('references = { pid = "people.person" }\n', ""))
    for sql in (
        "SELECT COUNT(*) FROM (SELECT pid, COUNT(*) AS n FROM visits GROUP BY pid HAVING pid > 3)",
        "SELECT COUNT(*) FROM (SELECT pid, COUNT(*) AS n FROM visits WHERE pid > 3 GROUP BY pid)",
    ):
        with pytest.raises(SQLError, match=r"column pid of visits is not declared in the policy"):
            Pipeline.of(policy, visits.connection).plan(sql)
