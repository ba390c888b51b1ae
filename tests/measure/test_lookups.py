"""Regions by lookup: the same as by comparisons, for every value that a column may hold."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest
from helpers import compiled_of, engine_of, exact, policy_of, tables_of

from dpsql.measure.scan_sql import _stays_within, select_list, summed
from dpsql.policy import Policy
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.measures import measure_of
from dpsql.workloads.expr.total import VALUES
from dpsql.workloads.expr.value_sql import render
from dpsql.workloads.expr.values import Stored


def _policy(column: str) -> Policy:
    return policy_of(f"[tables.t]\nunit = 'row'\n[tables.t.columns]\nv = {column}\n")


def _select(sql: str, policy: Policy, con: duckdb.DuckDBPyConnection) -> str:
    compiled = compiled_of(sql, policy, tables_of(policy, engine_of(con)))
    return " ".join(render(value) for _, value in select_list(compiled.layouts[0])[0])


def _same(con: duckdb.DuckDBPyConnection, policy: Policy, conditions: list[str]) -> None:
    """Counts as DuckDB has them."""
    batch = "SELECT " + ", ".join(f"COUNT_IF({c}) AS n{i}" for i, c in enumerate(conditions)) + " FROM t"
    wanted = con.execute(batch).fetchone()
    assert exact(batch, policy, con).answers == list(wanted or ())


@pytest.mark.parametrize("kind", ["VARCHAR", "VARCHAR COLLATE NOCASE", "ENUM('', 'a', 'A', 'b''c', 'é', '], [', 'zz')"])
def test_text_among_constants(kind: str) -> None:
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t (v {kind})")
    con.execute("INSERT INTO t VALUES (''), ('a'), ('A'), ('A'), ('b''c'), ('é'), ('], ['), ('zz'), (NULL)")
    policy = _policy("{ values = ['a', 'A', \"b'c\", 'é', '], ['], other = true }")
    batch = "SELECT v, COUNT(*) FROM t GROUP BY v"
    assert "list_position" in _select(batch, policy, con)
    # In the policy's order, then other values and NULL.
    assert sorted(map(int, exact(batch, policy, con).answers)) == [1, 1, 1, 1, 1, 2, 2]


def test_text_by_order_is_compared() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT unnest(['', 'a', 'ab', 'b', 'c', 'd', 'ze', NULL]) AS v")
    policy, conditions = _policy("{}"), ["v = 'a'", "v = 'b'", "v = 'd'", "v > 'ab'", "v IS NULL", "NOT v = 'b'"]
    _same(con, policy, conditions)
    assert "list_position" not in _select(
        f"SELECT COUNT_IF({conditions[0]}), COUNT_IF({conditions[3]}) FROM t", policy, con
    )
    _same(con, policy, ["v = 'a'", "v = 'b'", "v IN ('c', 'b')", "v <> 'd'"])


def test_days_by_their_number() -> None:
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE t AS SELECT DATE '2019-12-30' + i::INTEGER AS v FROM range(800) r(i) UNION ALL SELECT unnest(["
        "'infinity', '-infinity', '5877642-06-25 (BC)', '5881580-07-10', '0001-01-01', '9999-12-31', NULL]::DATE[])"
    )
    policy = _policy("{ lower = 2020-01-01, upper = 2021-12-31 }")
    batch = "SELECT v, COUNT(*) FROM t GROUP BY v"
    assert "list_extract" not in _select(batch, policy, con)  # they count up
    assert [int(n) for n in exact(batch, policy, con).answers].count(1) == 366 + 365 + 1
    days = ("2020-01-01", "2020-02-29", "2021-07-01", "2021-12-31")
    _same(con, policy, [f"v {c} DATE '{day}'" for day in days for c in ("<", ">=", "=")] + ["v IS NULL"])
    far = _policy("{}")
    _same(con, far, ["v > DATE '9999-12-30'", "v < DATE '0001-01-02'", "v < DATE '2020-01-01'"])


@pytest.mark.parametrize("kind", ["TINYINT", "BIGINT", "UTINYINT", "UBIGINT", "HUGEINT", "UHUGEINT"])
def test_numbers_that_count_up(kind: str) -> None:
    con = duckdb.connect()
    unsigned = kind.startswith("U")
    least, most = 0 if unsigned else -(2**7), 2**7 - 1
    con.execute(f"CREATE TABLE t AS SELECT i::{kind} AS v FROM range({least}, {most + 1}) r(i) UNION ALL SELECT NULL")
    if not kind.endswith("TINYINT"):
        con.execute(f"INSERT INTO t VALUES (9223372036854775807), ({0 if unsigned else -9223372036854775808})")
    low, high = (1, 99) if unsigned else (-3, 99)
    policy = _policy(f"{{ lower = {low}, upper = {high}, other = true }}")
    batch = "SELECT v, COUNT(*) FROM t GROUP BY v"
    assert "list_extract" not in _select(batch, policy, con)
    wanted = con.execute(f"SELECT count(*) FROM t WHERE NOT v BETWEEN {low} AND {high}").fetchone()
    counts = [int(n) for n in exact(batch, policy, con).answers]
    assert counts == [1] * (high - low + 1) + [wanted[0], 1]  # type: ignore[index]
    _same(con, policy, ["v < 7", "v >= 98", "v = 0", "v IS NULL"])


@pytest.mark.long
def test_a_sum_that_needs_no_clamp_stays_within_its_bounds() -> None:
    draw, con, shown = random.Random(25), duckdb.connect(), 0
    for number in range(200):
        lower = Fraction(draw.randrange(-(10**6), 10**6), draw.choice([1, 3, 7, 10, 100, 2**20]))
        grid, step = (
            draw.choice([1, 2, 9, 1000, 2**20, 2**30 + 1]),
            Fraction(draw.randrange(1, 99), 10 ** draw.randrange(9)),
        )
        if number % 10 == 0:  # hardly a double lies between
            lower, step = Fraction(10**18 + draw.randrange(100)), Fraction(1)
        measure = measure_of("v", line_of("DOUBLE"), lower, lower + grid * step, step, "v")
        shown += _stays_within(measure)
        ends, width = (float(measure.lower), float(measure.upper)), float(measure.upper - measure.lower)
        near = [math.nextafter(end, to) for end in ends for to in (-math.inf, math.inf)]
        values = [*ends, *near, *(ends[0] + width * draw.random() for _ in range(20)), math.inf, -math.inf, 1e300]
        text = render(summed(measure, {"v": Stored("v", "DOUBLE", VALUES)})).replace(f'"{VALUES}".', "")
        con.execute("CREATE OR REPLACE TABLE t AS SELECT unnest(?::DOUBLE[]) AS v", [values])
        found = [row[0] for row in con.execute(f"SELECT {text} FROM t").fetchall()]
        assert all(u is not None and 0 <= u <= 2 * grid and u % 2 == 0 for u in found)
    assert 150 < shown < 200


@pytest.mark.parametrize("kind", ["SMALLINT", "BIGINT", "UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT"])
@pytest.mark.long
def test_many_cuts_are_worth_a_long_list(kind: str) -> None:
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t AS SELECT (i * 7)::{kind} AS v FROM range(4000) r(i) UNION ALL SELECT NULL")
    con.execute(f"INSERT INTO t SELECT {'32767' if kind == 'SMALLINT' else '4294967295'}::{kind}")
    ends = [100 + 41 * i for i in range(300)]
    conditions = [f"v < {end}" for end in ends] + ["v IS NULL", "v > 20000"]
    policy = _policy("{}")
    assert "list_extract" in _select(
        f"SELECT {', '.join(f'COUNT_IF({c})' for c in conditions[:-1])} FROM t", policy, con
    )
    _same(con, policy, conditions)


def test_a_column_of_a_file_is_looked_up_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    duckdb.connect().execute(
        f"COPY (SELECT ['x', 'y', 'z'][1 + i % 3] AS v FROM range(9) r(i)) TO '{path}' (FORMAT parquet)"
    )
    table = f"[tables.t]\nunit = 'row'\nsource = '{path}'\n[tables.t.columns]\n"
    policy = policy_of(f"{table}v = {{ values = ['x', 'y', 'w'], nulls = false }}\n")
    assert exact("SELECT v, COUNT(*) FROM t GROUP BY v", policy, None).answers == [3, 3, 0]
