"""Queries with their one source written into them: the same answers, and divisions in the outermost SELECT."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import scratch
from replicate_world import connect
from sqlglot import parse_one

from dpsql.replicates.merging import merged

MERGED = [
    "WITH r AS (SELECT g, s / n AS r FROM t) SELECT g, 2 * r AS twice FROM r ORDER BY twice",
    "SELECT q.g, q.r + 1 AS m FROM (SELECT g, s / n AS r FROM t WHERE n > 1) q WHERE q.r < 9 ORDER BY 1",
    "WITH r AS (SELECT g, s / n AS r FROM t) SELECT SUM(r) AS total FROM r",
    "SELECT r FROM (SELECT g, r FROM (SELECT g, s / n AS r FROM t) a) b ORDER BY r LIMIT 2",
    "WITH r AS (SELECT a.g, a.n / b.n AS r FROM t a JOIN t b USING (g)) SELECT g, r AS share FROM r ORDER BY g",
    "SELECT 2 * r AS n FROM (SELECT s / n AS r FROM t) x ORDER BY n",
    "SELECT g, RANK() OVER (ORDER BY r) AS k FROM (SELECT g, s / n AS r FROM t) x ORDER BY g",
]
LEFT = [
    "SELECT g, s / n AS r FROM t ORDER BY g",
    "WITH r AS (SELECT SUM(s) / SUM(n) AS r FROM t) SELECT 2 * r AS twice FROM r",
    "WITH r AS (SELECT g, s / n AS r FROM t LIMIT 3) SELECT COUNT(*) AS n FROM r",
    "WITH r AS (SELECT g, s / n AS r FROM t) SELECT a.r - b.r AS d FROM r a, r b ORDER BY d",
    "SELECT r * 2 AS r FROM (SELECT s / n AS r FROM t) x ORDER BY r",
    "SELECT * FROM (SELECT g, s / n AS r FROM t) x ORDER BY g",
    "SELECT 2 * r AS n, n + 1 AS more FROM (SELECT s / n AS r FROM t) x ORDER BY 1",
    "SELECT 2 * r AS n FROM (SELECT s / n AS r FROM t) x WHERE n > 4 ORDER BY 1",
    "SELECT 2 * r AS n FROM (SELECT s / n AS r FROM t) x ORDER BY n + 0",
    "SELECT q + 1 AS m FROM (SELECT s / n AS r, 2 * r AS q FROM t) x ORDER BY m",
    "SELECT r + 1 AS m FROM (SELECT s / n AS r FROM t WHERE r > 2) x ORDER BY m",
    "SELECT r, (SELECT MAX(n) FROM t) AS most FROM (SELECT s / n AS r FROM t) x ORDER BY r",
]


@pytest.mark.parametrize("sql", MERGED + LEFT)
def test_answers_stay(sql: str) -> None:
    con = scratch()
    con.execute(
        "CREATE TEMP TABLE t AS "
        "SELECT 'g' || i AS g, (i * 7 % 5 + 1)::DOUBLE AS n, (i + 2)::DOUBLE AS s FROM range(5) r(i)"
    )
    tree = parse_one(sql, dialect="duckdb")
    found = merged(tree)
    assert (found is tree) == (sql in LEFT)
    again, first = con.execute(found.sql("duckdb")), con.execute(sql)
    assert [d[0] for d in again.description] == [d[0] for d in first.description]
    assert con.execute(found.sql("duckdb")).fetchall() == con.execute(sql).fetchall()


def test_a_ratio_within_has_fiellers_interval(tmp_path) -> None:
    con = connect(tmp_path)
    con.run("CREATE VIEW b AS SELECT g, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY g", epsilon=0.05, delta=1e-9)
    plain = con.sql("SELECT g, 2 * (s / n) AS twice FROM b", errors=True)
    within = con.sql("WITH r AS (SELECT g, s / n AS r FROM b) SELECT g, 2 * r AS twice FROM r", errors=True)
    assert within.columns == plain.columns
    for end in ("", "_stderr", "_low", "_high"):
        assert np.allclose(np.array(within.column(f"twice{end}")), np.array(plain.column(f"twice{end}")), rtol=1e-6)
