"""What noise reaches of a query, by what the query says."""

from __future__ import annotations

import pytest
from sqlglot import parse_one

from dpsql.replicates.lineage import lineage
from dpsql.sql.routing import named_tables

TABLE = [("g", False), ("h", False), ("n", True), ("v", True)]
# query, noisy columns (x: noise reaches it), whether noise decides its rows, divisors
CASES = [
    ("SELECT * FROM t", "..xx", False, []),
    ("FROM t", "..xx", False, []),
    ("SELECT g, v / n AS r FROM t", ".x", False, ["n"]),
    ("SELECT g || 'x' AS p, ROUND(100.0 * v / NULLIF(n, 0), 1) AS r FROM dp.t", ".x", False, ["NULLIF(n, 0)"]),
    ("SELECT t.g, t.n FROM t WHERE t.h > 2", ".x", False, []),
    ("SELECT g, n FROM t WHERE n > 2", ".x", True, []),
    ("SELECT g FROM t ORDER BY n LIMIT 2", ".", True, []),
    ("SELECT g FROM t ORDER BY g LIMIT 2", ".", False, []),
    ("SELECT g, n AS m FROM t ORDER BY m LIMIT 2", ".x", True, []),
    ("SELECT ARG_MAX(g, n) AS a, COUNT(*) AS c FROM t", "x.", False, []),
    ("SELECT COUNT(*) AS c FROM t WHERE n > 10", "x", False, []),
    ("SELECT g, COUNT(*) AS c FROM t GROUP BY g", "..", False, []),
    ("SELECT g, SUM(n) AS s FROM t GROUP BY g HAVING SUM(n) > 3", ".x", True, []),
    ("SELECT CASE WHEN n > 5 THEN 'a' END AS k, COUNT(*) AS c FROM t GROUP BY ALL", "xx", True, []),
    ("SELECT n > 5 AS k, COUNT(*) AS c FROM t GROUP BY 1", "xx", True, []),
    ("SELECT g, RANK() OVER (ORDER BY n) AS r FROM t", ".x", False, []),
    ("SELECT g, ROW_NUMBER() OVER (ORDER BY g) AS r FROM t", "..", False, []),
    ("SELECT g, ROW_NUMBER() OVER (ORDER BY g) AS r FROM t WHERE v > 1", ".x", True, []),
    ("SELECT g, n FROM t QUALIFY RANK() OVER (ORDER BY n) <= 2", ".x", True, []),
    ("SELECT a.g, a.n - b.n AS d FROM t a JOIN t b USING (g)", ".x", False, []),
    ("SELECT a.g FROM t a JOIN t b ON a.n > b.n", ".", True, []),
    ("WITH q AS (SELECT g, n + v AS w FROM t) SELECT g, w FROM q", ".x", False, []),
    ("WITH q AS (SELECT g FROM t WHERE n > 1) SELECT COUNT(*) AS c FROM q", "x", False, []),
    ("SELECT g, h FROM (SELECT g, h FROM t ORDER BY v LIMIT 1) q", "..", True, []),
    ("SELECT g, n FROM t UNION ALL SELECT 'all', SUM(n) FROM t", ".x", False, []),
    ("SELECT g, h FROM t UNION SELECT g, h FROM t WHERE n > 2", "..", True, []),
    ("SELECT g, n FROM t EXCEPT SELECT g, v FROM t", ".x", True, []),
    ("SELECT DISTINCT n > 5 AS b FROM t", "x", True, []),
    ("SELECT g, (SELECT MAX(n) FROM t b WHERE b.g <= a.g) AS m FROM t a", ".x", False, []),
    ("SELECT g FROM t WHERE g IN (SELECT g FROM t WHERE n > 2)", ".", True, []),
    ("SELECT g, EXISTS (SELECT 1 FROM t b WHERE b.n > 2) AS e FROM t", ".x", False, []),
    ("SELECT * EXCLUDE (n) FROM t", "..x", False, []),
    ("SELECT g, SUM(n / v) AS s FROM t GROUP BY g", ".x", False, []),
    # Not understood: by names.
    ("SELECT COLUMNS('g|n') FROM t", ".x", True, []),
]


@pytest.mark.parametrize(("sql", "noisy", "rows", "divisors"), CASES, ids=[case[0] for case in CASES])
def test_lineage(sql, noisy, rows, divisors):
    tree = parse_one(sql, dialect="duckdb")
    names = {"SELECT COLUMNS('g|n') FROM t": ["g", "n"], "SELECT * FROM t": "ghnv"}.get(sql, ["x"] * len(noisy))
    found = lineage(tree, [(node, TABLE) for node in named_tables(tree)], names)
    assert "".join(".x"[is_noisy] for is_noisy in found.noisy) == noisy
    assert found.rows is rows
    assert [text for mine in found.divisors for text in mine] == divisors
