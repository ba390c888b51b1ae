"""A query over all replicates at once gives of each what it gives of that replicate alone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dpsql.errors import OperationalError, SQLError
from dpsql.release.columns import Coded, Numbers
from dpsql.replicates.partitioned import REPLICATE, Query, Table, parsed
from dpsql.sql.outer.sandbox import Sandbox

TIMES, GROUPS = 12, 7
# What DuckDB turns into one statement, and what runs once for each replicate.
TOGETHER = [
    "SELECT g, SUM(n) OVER w AS s FROM t WINDOW w AS (ORDER BY g)",
    "SELECT g, v / n AS r FROM t",
    "SELECT g, n / (SELECT SUM(n) FROM t) AS s FROM t ORDER BY s DESC",
    "SELECT g, n FROM t ORDER BY n DESC LIMIT 3",
    "SELECT g, RANK() OVER (ORDER BY n) AS r, n - LAG(n) OVER (ORDER BY g) AS d FROM t",
    "SELECT g % 3 AS h, SUM(n) AS s FROM t GROUP BY 1 HAVING SUM(n) > 0",
    "WITH q AS (SELECT g, n / v AS w FROM t) SELECT g, w - (SELECT AVG(w) FROM q) AS d FROM q",
    "SELECT a.g, b.n FROM t a LEFT JOIN t b ON a.g = b.g + 1",
    "SELECT n > 0 AS b, COUNT(*) AS c FROM t GROUP BY ALL",
    "SELECT g, n FROM t WHERE n > (SELECT QUANTILE_CONT(n, 0.5) FROM t) UNION ALL SELECT NULL, MAX(v) FROM t",
    "SELECT ARG_MAX(g, n) AS a FROM t",
    "SELECT g FROM t WHERE g IN (SELECT g FROM t ORDER BY v LIMIT 2)",
]
APART = [
    "SELECT g, n FROM t ORDER BY n LIMIT 40%",
    "SELECT * FROM (PIVOT (SELECT g % 2 AS h, n FROM t) ON h USING SUM(n))",
]


def table():
    rng = np.random.default_rng(1)
    which = Coded(tuple(range(TIMES)), np.repeat(np.arange(TIMES, dtype=np.int32), GROUPS))
    keys = Coded(tuple(range(GROUPS)), np.tile(np.arange(GROUPS, dtype=np.int32), TIMES))
    numbers = [Numbers(rng.normal(size=TIMES * GROUPS), rng.random(TIMES * GROUPS) < 0.1) for _ in range(2)]
    columns = [(REPLICATE, "BIGINT", which), ("g", "INTEGER", keys)]
    columns += [("n", "DOUBLE", numbers[0]), ("v", "DOUBLE", numbers[1])]
    return Table(columns, [("g", False), ("n", True), ("v", True)])


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as held:
        Query(parsed("SELECT 1 FROM t"), {"t": table()}).stack(held)
        yield held


@pytest.mark.parametrize("sql", TOGETHER + APART)
@pytest.mark.few(every=3)
def test_every_replicate_is_that_of_the_query_alone(sandbox, sql):
    held = sandbox.connection
    query = Query(parsed(sql), {"t": table()})
    ran = query.run(sandbox, "found", time.monotonic() + 60, places=True)
    listed = ", ".join(f"c{at}" for at in range(len(ran.columns)))
    assert ran.ordered is ((sql in APART) or ran.order is not None)
    for which in range(TIMES):
        held.execute(f"CREATE OR REPLACE TEMP VIEW t AS SELECT * EXCLUDE ({REPLICATE}) FROM dpsql_stack_0 "
                     f"WHERE {REPLICATE} = {which}")  # fmt: skip
        alone = held.execute(sql).fetchall()
        order = "" if ran.order is None else f" ORDER BY c{ran.order}"
        rows = held.execute(f"SELECT {listed} FROM found WHERE {REPLICATE} = {which}{order}").fetchall()
        if not ran.ordered:
            alone, rows = sorted(alone, key=repr), sorted(rows, key=repr)
        assert len(rows) == len(alone)
        for a, b in zip(rows, alone, strict=True):
            assert [x is None for x in a] == [x is None for x in b]
            assert np.allclose([x or 0 for x in a], [x or 0 for x in b])
    sandbox.drop("found")


def test_what_fails_and_what_takes_too_long_says_so(sandbox):
    with pytest.raises(SQLError, match="does not exist"):
        Query(parsed("SELECT x FROM nowhere, t"), {"t": table()}).run(sandbox, "found", time.monotonic() + 9)
    with pytest.raises(OperationalError, match="took too long"):
        Query(parsed(APART[0]), {"t": table()}).run(sandbox, "found", time.monotonic() - 1)
    with pytest.raises(SQLError, match="cannot read the query"):
        parsed("SELECT FROM WHERE (")
