"""Sums in blocks where NULL adds what 0 adds: DuckDB's answers, fewer regions, and who is told apart all the same."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import engine_of, policy_of, sources_of, tables_of, understood

from dpsql.measure import Job, cells
from dpsql.reconstruct import ResidualAnswers
from dpsql.strategy import structured_strategy
from dpsql.workloads.compile import cut_tables
from dpsql.workloads.compile.structured import Structured, compile_structured

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = [1, 2, 3, 4], nulls = false }
h = { values = ["k", "l"] }
low = { lower = 0, upper = 5 }
around = { lower = -4, upper = 4 }
below = { lower = -7, upper = 0 }
apart = { lower = 1, upper = 5 }
halves = { lower = -0.25, upper = 1.25, step = 0.5 }
money = { lower = -10, upper = 30 }
real = { lower = -1, upper = 3, step = 0.5 }
few = { values = [0, 1, 2], lower = 0, upper = 2 }
""")
TYPES = "g INTEGER, h VARCHAR, low INTEGER, around BIGINT, below SMALLINT, apart INTEGER, halves DOUBLE, " \
        "money DECIMAL(6, 2), real DOUBLE, few INTEGER"  # fmt: skip
SUMMED = ["low", "around", "below", "money", "real"]


def filled() -> duckdb.DuckDBPyConnection:
    """Rows that keep to the policy's domains, NULL, NaN and values out of bounds among them; all is NULL in group 3."""
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t ({TYPES})")
    rng = np.random.default_rng(11)
    for number in range(160):
        g = int(rng.integers(1, 5))
        values: list[Any] = [
            *([-3, 0, 1, 5, 9, None], [-9, -1, 0, 3, None], [-9, -7, 0, None], [1, 4, 5, None], [0.25, 1.25, None]),
            *([-20, 0, 12.34, None], [float("nan"), 0.0, 0.5, 99.0, None], [0, 1, 2, None]),
        ]
        row = [None if g == 3 else held[int(rng.integers(len(held)))] for held in values]
        con.execute(f"INSERT INTO t VALUES ({', '.join('?' * 10)})", [g, ["k", "l", None][number % 3], *row])
    return con


def batch_of(sql: str, con: duckdb.DuckDBPyConnection) -> Structured:
    found = understood(sql, POLICY, tables_of(POLICY, engine_of(con)))
    return compile_structured(found.queries, found.tables)


def answers(batch: Structured, engine: Any) -> np.ndarray:
    """The numbers of a batch without noise, from what ``engine`` scans."""
    strategy = structured_strategy(batch, "gaussian")
    nothing: Any = None
    planned = strategy.planned
    job = Job(planned.layouts, strategy.measured, batch.common_steps, 1, nothing, {}, sources_of(POLICY), {})
    y = cells.observed(job, engine, [0] * strategy.shape[0])
    held = ResidualAnswers(planned.blocks, strategy.residuals, planned.sizes, planned.numbers)
    return np.asarray(held.estimate(y, batch.common_steps))


def clamped(name: str) -> str:
    policy = POLICY.tables["t"].columns[name]
    # DuckDB's least and greatest pass over NULL.
    known = f"{name} IS NOT NULL AND NOT isnan({name}::DOUBLE)"
    return f"CASE WHEN {known} THEN least(greatest({name}, {policy.lower}), {policy.upper}) END"


SQL = f"SELECT g, h, COUNT(*) AS n, {', '.join(f'SUM({c}) AS s_{c}' for c in SUMMED)} FROM t GROUP BY g, h"


def test_sums_are_those_of_duckdb_though_null_is_not_told_apart() -> None:
    con = filled()
    batch = batch_of(SQL, con)
    assert batch.names == (("g", "h"),)
    # u of NULL is that of 0, in half steps from the lower bound.
    assert [m.at_null for m in batch.layouts[0].measures] == [-5, 0, 7, -2000, -4]
    found = answers(batch, engine_of(con)).reshape(1 + len(SUMMED), 4, 3)
    for g in (1, 2, 3, 4):
        for at, h in enumerate(["k", "l", None]):
            sums = ", ".join(f"coalesce(sum({clamped(c)}), 0)" for c in SUMMED)
            sql = f"SELECT count(*), {sums} FROM t WHERE g = ? AND h IS NOT DISTINCT FROM ?"
            wanted = con.execute(sql, [g, h]).fetchall()[0]
            np.testing.assert_allclose(found[:, g - 1, at], np.array(wanted, dtype=float), atol=1e-9)


def test_sums_of_expressions_take_null_as_zero_too() -> None:
    con = filled()
    batch = batch_of("SELECT g, h, SUM(low - 2 * around) AS s FROM t GROUP BY g, h", con)
    assert batch.names == (("g", "h"),)
    found = answers(batch, engine_of(con))
    row = f"{clamped('low')} - 2 * {clamped('around')}"
    wanted = con.execute(f"SELECT coalesce(sum({row}), 0) FROM t WHERE g = 2 AND h = 'l'").fetchall()
    np.testing.assert_allclose(found.reshape(4, 3)[1, 1], float(wanted[0][0]), atol=1e-9)


@pytest.mark.parametrize("sql", [
    "SELECT g, h, SUM(low) AS s, COUNT(low) AS n FROM t GROUP BY g, h",
    "SELECT g, h, SUM(low) AS s, AVG(low) AS n FROM t GROUP BY g, h",
    "SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h; SELECT COUNT(*) AS n FROM t WHERE low > 2",
    "SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h; SELECT COUNT(*) AS n FROM t WHERE low > apart",
    "SELECT g, h, SUM(low) AS s, VAR_POP(low) AS n FROM t GROUP BY g, h",
    "SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h; SELECT CASE WHEN low > 2 THEN 1 ELSE 2 END AS c, COUNT(*) AS n"
    " FROM t GROUP BY c",
    "SELECT g, h, SUM(apart) AS s FROM t GROUP BY g, h",  # 0 is no value
    "SELECT g, h, SUM(halves) AS s FROM t GROUP BY g, h",  # 0 is between two steps
    "SELECT g, h, SUM(few) AS s FROM t GROUP BY g, h",  # values that are not declared count nowhere
])  # fmt: skip
@pytest.mark.few(every=8)
def test_null_is_told_apart_where_the_batch_looks_at_it(sql: str) -> None:
    con = filled()
    batch = batch_of(sql, con)
    assert all(measure_.at_null is None for layout in batch.layouts for measure_ in layout.measures)
    at = next(span for span in batch.spans if span.output.sums)
    column = next(term.column for term in at.output.terms if term.column)
    found = answers(batch, engine_of(con))[at.start : at.stop].reshape(4, 3)
    if column in ("low", "apart"):
        text = f"SELECT coalesce(sum({clamped(column)}), 0) FROM t WHERE g = 1 AND h IS NULL"
        np.testing.assert_allclose(found[0, 2], float(con.execute(text).fetchall()[0][0]), atol=1e-9)


def test_a_null_that_is_scanned_as_the_middle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    con = filled()
    batch = batch_of("SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h", con)
    right = answers(batch, engine_of(con))
    monkeypatch.setattr("dpsql.workloads.expr.measures.Measure.at_zero", property(lambda measure_: 0))
    wrong = answers(batch_of("SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h", con), engine_of(con))
    assert np.abs(wrong - right).max() > 1
    monkeypatch.undo()
    # Nor is what a condition looks at taken for what none does.
    monkeypatch.setattr(cut_tables, "distinguished_columns", lambda queries: set())
    sql = "SELECT g, h, SUM(low) AS s FROM t GROUP BY g, h; SELECT COUNT(*) AS n FROM t WHERE low > 2"
    assert any(m.at_null is not None for layout in batch_of(sql, con).layouts for m in layout.measures)


def test_a_row_of_null_moves_a_sum_by_nothing_and_the_rest_within_the_sensitivity() -> None:
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t ({TYPES})")
    batch = batch_of("SELECT g, h, COUNT(*) AS n, SUM(low) AS s FROM t GROUP BY g, h", con)
    strategy = structured_strategy(batch, "gaussian")
    nothing: Any = None
    planned, L = strategy.planned, batch.common_steps
    job = Job(planned.layouts, strategy.measured, L, 1, nothing, {}, sources_of(POLICY), {})
    held = ResidualAnswers(planned.blocks, strategy.residuals, planned.sizes, planned.numbers)
    largest = 0
    for low in (None, -3, 0, 2, 5, 8):
        con.execute("DELETE FROM t")
        con.execute("INSERT INTO t (g, h, low) VALUES (2, 'k', ?)", [low])
        y = cells.observed(job, engine_of(con), [0] * strategy.shape[0])
        wanted = np.zeros((2, 4, 3))
        wanted[:, 1, 0] = 1, 0 if low is None else min(max(low, 0), 5)
        np.testing.assert_allclose(held.estimate(y, L).reshape(2, 4, 3), wanted, atol=1e-9)
        largest = max(largest, sum(value * value for value in y))
    assert largest <= strategy.l2_squared * L**2
    assert largest > strategy.l2_squared * L**2 / 3
