"""All tables of at most three rows from 32 adversarial rows: no neighbour moves L B x by more than claimed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, policy_of, tables_of

from dpsql.engines.base import Scan
from dpsql.measure import TableSource, cells
from dpsql.measure.scan_sql import select_list
from dpsql.strategy import select
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.scan import Select, Table

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
CHOSEN = ((0, 1, 2), (5, 5, 9), (31, 17, 3), tuple(range(ROWS)))

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
    "SELECT CORR(i, d), COVAR_SAMP(i, d), REGR_SLOPE(c, f) FROM t",
    "SELECT dp_regression(d, i, f > 0.5) FROM t",
    "SELECT g, dp_ttest(c, d > 0) FROM t GROUP BY g; SELECT dp_chisq(g, never) FROM t; SELECT dp_gini(never) FROM t",
    ";".join(f"SELECT COUNT(*) FROM t WHERE i BETWEEN {a} AND {b}" for a in range(-4, 11, 3) for b in range(a, 12, 3)),
]

SEARCHED = 11


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": 1})
    con.execute(f"CREATE TABLE t (id INTEGER, {', '.join(POOL)})")
    rows = []
    for k in range(ROWS):
        # Strides prime to the pools' sizes bring every value of every column, in changing company.
        values = [pool[(k * (3 + j) + k // len(pool)) % len(pool)] for j, pool in enumerate(POOL.values())]
        rows.append(f"({k}, {', '.join(values)})")
    con.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
    alone = {f"one_{k}": (k,) for k in range(ROWS)} | {f"some_{i}": chosen for i, chosen in enumerate(CHOSEN)}
    for name, chosen in alone.items():
        con.execute(f"CREATE TABLE {name} AS SELECT t.* EXCLUDE (id) FROM t, "
                    f"(SELECT unnest({list(chosen)}) AS k) WHERE id = k")  # fmt: skip
    for column, pool in POOL.items():
        name = column.split()[0]
        assert con.execute(f"SELECT count(DISTINCT {name}) + max(CASE WHEN {name} IS NULL THEN 1 ELSE 0 END) FROM t"
                           ).fetchone()[0] >= len(pool) - 2, name  # fmt: skip
    return con


def _scanned(database: duckdb.DuckDBPyConnection, compiled: Compiled, table: str) -> list[int]:
    """L x of a table, by the one generated statement."""
    (layout,) = compiled.layouts
    columns, keys = select_list(layout)
    x = np.zeros(compiled.rows.shape[1], dtype=object)
    asked = Scan(table, (TableSource(table),), Select(columns, Table(table), group_by=keys))
    found = engine_of(database).scan(asked)
    cells.add(x, layout, found, compiled.common_steps)
    return x.tolist()


Compiling = Callable[[str], tuple[Compiled, np.ndarray]]


@pytest.fixture(scope="module")
def contributions(database: duckdb.DuckDBPyConnection) -> Compiling:
    """A batch compiled, and what each of the 32 rows adds to L x (rows, n): once for all tests."""
    tables = tables_of(POLICY, engine_of(database))

    @functools.cache
    def found(sql: str) -> tuple[Compiled, np.ndarray]:
        compiled = compiled_of(sql, POLICY, tables)
        x = np.array([_scanned(database, compiled, f"one_{k}") for k in range(ROWS)], dtype=object)
        x.flags.writeable = False
        return compiled, x

    return found


# Products of two columns by the dozen: the variance and the sum of a product above stay beside the tests of every day.
PRODUCTS = ("SELECT CORR", "SELECT dp_regression")


@pytest.mark.parametrize(
    "sql", [pytest.param(sql, marks=[pytest.mark.long] if sql.startswith(PRODUCTS) else []) for sql in BATCHES]
)
@pytest.mark.few(every=5)
def test_no_neighbour_exceeds_the_claim(
    database: duckdb.DuckDBPyConnection, contributions: Compiling, sql: str
) -> None:
    compiled, x = contributions(sql)
    L = compiled.common_steps
    # x is a sum over rows, so that a table and its neighbour differ by what one row adds: check this on
    # pairs of real tables first, then every difference at once.
    for number, chosen in enumerate(CHOSEN):
        assert _scanned(database, compiled, f"some_{number}") == sum(x[k] for k in chosen).tolist(), chosen
    # Pure plans of the last batches, of many measures, are searched for long; they rest on the same contributions.
    for noise in ("gaussian", "laplace") if sql in BATCHES[:SEARCHED] else ("gaussian",):
        strategy = select(compiled.workload(compiled.objective), noise)
        mixing = np.asarray(strategy.mixing.todense() if hasattr(strategy.mixing, "todense") else strategy.mixing)
        B = mixing.astype(object) @ strategy.basis.toarray().astype(object)
        moves = x @ B.T
        squared = [sum(v * v for v in row) for row in moves]
        absolute = [sum(abs(v) for v in row) for row in moves]
        assert max(squared) <= strategy.l2_squared * L * L, noise
        assert max(absolute) <= strategy.l1 * L, noise


@pytest.mark.parametrize("sql", BATCHES[:6])
def test_the_claim_is_attained(contributions: Compiling, sql: str) -> None:
    compiled, x = contributions(sql)
    L = compiled.common_steps
    # The workload's own rows as a strategy: a corner of the box of measures occurs among the 32 rows.
    moves = x @ compiled.rows.toarray().astype(object).T
    held = compiled.rows if compiled.contributions is None else compiled.rows @ compiled.contributions
    claimed = max(int(v) for v in abs(held).sum(axis=0))
    assert max(sum(abs(v) for v in row) for row in moves) == claimed * L


def test_every_small_table_against_every_neighbour(contributions: Compiling) -> None:
    sql = "SELECT g, COUNT(*), SUM(i), SUM(d), COUNT(d) FROM t GROUP BY g; SELECT COUNT(*) - SUM(f) FROM t WHERE i > 0"
    compiled, x = contributions(sql)
    strategy = select(compiled.workload(compiled.objective), "gaussian")
    mixing = np.asarray(strategy.mixing.todense() if hasattr(strategy.mixing, "todense") else strategy.mixing)
    moved = x @ (mixing.astype(object) @ strategy.basis.toarray().astype(object)).T
    bound = strategy.l2_squared * compiled.common_steps**2
    seen = 0
    for size in range(3):
        for chosen in itertools.combinations_with_replacement(range(0, ROWS, 2), size):
            table = sum((moved[k] for k in chosen), np.zeros(moved.shape[1], dtype=object))
            change = (table[None, :] + moved) - table[None, :]
            assert max((change**2).sum(axis=1)) <= bound
            seen += 1
    assert seen == 1 + 16 + 136
