"""All tables of at most three rows from 32 adversarial rows: no neighbour moves L B x by more than claimed."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, job_of, policy_of, tables_of

from dpsql import measure
from dpsql.measure.scan_sql import select_list
from dpsql.strategy import select
from dpsql.workload.compile.compiled import Compiled

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b"], other = true }
i = { lower = -3, upper = 10 }
u = { lower = -4, upper = 9 }
d = { lower = -1.5, upper = 2, step = 0.5 }
f = { lower = 0, upper = 1 }
c = { lower = 1, upper = 3, step = 0.01 }
fixed = { lower = 5, upper = 5 }
never = { lower = 0, upper = 4, nulls = false }
""")

# Values below, on, between and above the bounds, with NULL, NaN, infinities and the ends of the types.
POOL = {
    "g VARCHAR": ["'a'", "'b'", "'zz'", "NULL", "''"],
    "i BIGINT": ["-3", "10", "0", "NULL", "9223372036854775807", "-9223372036854775808", "11", "-4"],
    "u UHUGEINT": ["0", "9", "NULL", "340282366920938463463374607431768211455", "10"],
    "d DOUBLE": ["'nan'", "'inf'", "'-inf'", "NULL", "-1.5", "2", "0.25", "1e308", "-7.5", "'5e-324'", "'-0.0'"],
    "f FLOAT": ["0", "1", "'nan'", "NULL", "'-inf'", "'inf'", "0.3", "3e38"],
    "c DECIMAL(18,3)": ["1", "3", "NULL", "999999999999999.999", "-999999999999999.999", "2.005", "0.999"],
    "fixed INTEGER": ["5", "NULL", "6", "-1"],
    "never INTEGER": ["0", "4", "NULL", "2147483647", "1"],
}
ROWS = 32

BATCHES = [
    "SELECT COUNT(*) FROM t",
    "SELECT SUM(i) FROM t",
    "SELECT SUM(u) FROM t; SELECT COUNT(u) FROM t",
    "SELECT COUNT(*), SUM(d) FROM t WHERE d > 0 OR d IS NULL",
    "SELECT COUNT(*), SUM(i), SUM(d), SUM(f), SUM(c) FROM t",
    "SELECT g, COUNT(*), SUM(i) FROM t GROUP BY g; SELECT COUNT(*) FROM t",
    "SELECT COUNT_IF(i > 0) - COUNT_IF(i <= 0), COUNT_IF(i > 5) - 2 * COUNT_IF(d > 1) FROM t",
    "SELECT SUM(i) - SUM(d), SUM(i) + SUM(d), 3 * COUNT(*) FROM t",
    "SELECT COUNT(*) - SUM(never) FROM t",
    "SELECT SUM(fixed), SUM(never), COUNT(never) FROM t",
    "SELECT SUM(CASE WHEN i > 0 THEN d WHEN f > 0.5 THEN i ELSE 2 END), COUNT(*) FROM t",
    "SELECT g, SUM(c), COUNT(c) FROM t WHERE NOT (f > 0.5) GROUP BY g; SELECT SUM(f) FROM t WHERE c <= 2",
    "SELECT VAR_POP(i * never), AVG(f), COUNT(*) FROM t WHERE d > 0",
    "SELECT SUM(i * never), SUM(IF(d > 0, i, 3)), SUM(c / 3) FROM t",
    "SELECT g, never, COUNT(*), SUM(i) FROM t GROUP BY ROLLUP (g, never); SELECT MEDIAN(never) FROM t",
    ";".join(f"SELECT COUNT(*) FROM t WHERE i BETWEEN {a} AND {b}" for a in range(-4, 11, 3) for b in range(a, 12, 3)),
]


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t (id INTEGER, {', '.join(POOL)})")
    rows = []
    for k in range(ROWS):
        # Strides prime to the pools' sizes bring every value of every column, in changing company.
        values = [pool[(k * (3 + j) + k // len(pool)) % len(pool)] for j, pool in enumerate(POOL.values())]
        rows.append(f"({k}, {', '.join(values)})")
    con.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
    for column, pool in POOL.items():
        name = column.split()[0]
        assert con.execute(f"SELECT count(DISTINCT {name}) + max(CASE WHEN {name} IS NULL THEN 1 ELSE 0 END) FROM t"
                           ).fetchone()[0] >= len(pool) - 2, name  # fmt: skip
    return con


def _contributions(database: duckdb.DuckDBPyConnection, compiled: Compiled) -> np.ndarray:
    """What each of the 32 rows adds to L x, by the one generated statement, grouped by row besides: (rows, n)."""
    found = []
    engine = engine_of(database)
    job = job_of(compiled, POLICY)
    (layout,) = compiled.layouts
    columns, keys = select_list(layout)
    for k in range(ROWS):
        database.execute(f"CREATE OR REPLACE TABLE one AS SELECT * EXCLUDE (id) FROM t WHERE id = {k}")
        x = np.zeros(compiled.rows.shape[1], dtype=object)
        source = measure.TableSource("one")
        measure._add(x, layout, engine.scan(source, columns, keys), job.common_steps)
        found.append(x.tolist())
    return np.array(found, dtype=object)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sql", BATCHES)
def test_no_neighbour_exceeds_the_claim(database: duckdb.DuckDBPyConnection, sql: str, noise: str) -> None:
    engine = engine_of(database)
    tables = tables_of(POLICY, engine)
    compiled = compiled_of(sql, POLICY, tables)
    strategy = select(compiled.workload(compiled.objective), noise)
    mixing = np.asarray(strategy.mixing.todense() if hasattr(strategy.mixing, "todense") else strategy.mixing)
    B = mixing.astype(object) @ strategy.basis.toarray().astype(object)
    L = compiled.common_steps
    x = _contributions(database, compiled)
    # x is a sum over rows, so that a table and its neighbour differ by what one row adds: check this on
    # pairs of real tables first, then every difference at once.
    assert _additive(database, compiled, x)
    moves = x @ B.T
    squared = [sum(v * v for v in row) for row in moves]
    absolute = [sum(abs(v) for v in row) for row in moves]
    assert max(squared) <= strategy.l2_squared * L * L
    assert max(absolute) <= strategy.l1 * L


def _additive(database: duckdb.DuckDBPyConnection, compiled: Compiled, x: np.ndarray) -> bool:
    engine, (layout,) = engine_of(database), compiled.layouts
    columns, keys = select_list(layout)
    for chosen in [(0, 1, 2), (5, 5, 9), (31, 17, 3), tuple(range(ROWS))]:
        database.execute("CREATE OR REPLACE TABLE one AS SELECT t.* EXCLUDE (id) FROM t, "
                         f"(SELECT unnest({list(chosen)}) AS k) WHERE id = k")  # fmt: skip
        held = np.zeros(compiled.rows.shape[1], dtype=object)
        scanned = engine.scan(measure.TableSource("one"), columns, keys)
        measure._add(held, layout, scanned, compiled.common_steps)
        if held.tolist() != sum(x[k] for k in chosen).tolist():
            return False
    return True


@pytest.mark.parametrize("sql", BATCHES[:6])
def test_the_claim_is_attained(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    engine = engine_of(database)
    compiled = compiled_of(sql, POLICY, tables_of(POLICY, engine))
    x = _contributions(database, compiled)
    L = compiled.common_steps
    # The workload's own rows as a strategy: a corner of the box of measures occurs among the 32 rows.
    moves = x @ compiled.rows.toarray().astype(object).T
    held = compiled.rows if compiled.contributions is None else compiled.rows @ compiled.contributions
    claimed = max(int(v) for v in abs(held).sum(axis=0))
    assert max(sum(abs(v) for v in row) for row in moves) == claimed * L


def test_every_small_table_against_every_neighbour(database: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT g, COUNT(*), SUM(i), SUM(d), COUNT(d) FROM t GROUP BY g; SELECT COUNT(*) - SUM(f) FROM t WHERE i > 0"
    compiled = compiled_of(sql, POLICY, tables_of(POLICY, engine_of(database)))
    strategy = select(compiled.workload(compiled.objective), "gaussian")
    x = _contributions(database, compiled)
    mixing = np.asarray(strategy.mixing.todense() if hasattr(strategy.mixing, "todense") else strategy.mixing)
    moved = x @ (mixing.astype(object) @ strategy.basis.toarray().astype(object)).T
    bound = strategy.l2_squared * compiled.common_steps**2
    seen = 0
    for size in range(3):
        for chosen in itertools.combinations_with_replacement(range(ROWS), size):
            table = sum((moved[k] for k in chosen), np.zeros(moved.shape[1], dtype=object))
            change = (table[None, :] + moved) - table[None, :]
            assert max((change**2).sum(axis=1)) <= bound
            seen += 1
    assert seen == 1 + 32 + 528
