"""Compiling batches: sizes, rows of W, caps."""

from __future__ import annotations

from fractions import Fraction

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, exact, policy_of, tables_of

from dpsql.errors import PolicyError, SQLError
from dpsql.workloads.compile import compiled as compile_module
from dpsql.workloads.compile.compiled import Compiled

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 120 }
sex = { values = ["f", "m"] }
day = { lower = 2000-01-01, upper = 2200-01-01 }
a1 = { lower = 0, upper = 1 }
a2 = { lower = 0, upper = 1 }
a3 = { lower = 0, upper = 1 }
a4 = { lower = 0, upper = 1 }
a5 = { lower = 0, upper = 1 }
a6 = { lower = 0, upper = 1 }
a7 = { lower = 0, upper = 1 }
odd = { lower = 0.1, upper = 1.0000001 }
far = { lower = 1000000000000, upper = 1000000000001 }
""")


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (age INTEGER, sex VARCHAR, day DATE, a1 INT, a2 INT, a3 INT, a4 INT, a5 INT, a6 INT, "
                "a7 INT, odd DOUBLE, far BIGINT)")  # fmt: skip
    con.execute("INSERT INTO t SELECT i % 121, CASE i % 3 WHEN 0 THEN 'f' WHEN 1 THEN 'm' END, DATE '2000-01-01', "
                "0, 1, 0, 1, 0, 1, 0, 0.5, 1000000000000 FROM range(5000) r(i)")  # fmt: skip
    return con


def _compile(sql: str, con: duckdb.DuckDBPyConnection) -> Compiled:
    return compiled_of(sql, POLICY, tables_of(POLICY, engine_of(con)))


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.long)])
def test_ten_thousand_statements(con: duckdb.DuckDBPyConnection, step: int) -> None:
    ranges = [(i % 100, i % 100 + 1 + i // 100) for i in range(0, 10_000, step)]
    batch = ";\n".join(f"SELECT COUNT(*) FROM t WHERE age >= {low} AND age < {high}" for low, high in ranges)
    found = exact(batch, POLICY, con)
    compiled = found.compiled
    counts = np.bincount(np.arange(5000) % 121, minlength=300)
    assert found.answers == [int(counts[low:high].sum()) for low, high in ranges]
    # Every row of W counts each age of its range once: bounds do not clip, so that ages past 120 are cells too.
    sums = compiled.rows.sum(axis=1)
    assert compiled.rows.shape == (10_000 // step, len({cut for pair in ranges for cut in pair}) - 1)
    assert sums.tolist() == [high - low for low, high in ranges]
    assert set(compiled.rows.data.tolist()) == {1}
    assert compiled.contributions is None


def test_rows_are_primitive_and_scales_exact(con: duckdb.DuckDBPyConnection) -> None:
    found = exact("SELECT 6 * COUNT_IF(age > 5) - 4 * COUNT_IF(age > 50), COUNT(*) / 4, SUM(age) FROM t", POLICY, con)
    for row in found.compiled.rows.toarray():
        assert np.gcd.reduce(np.abs(row[row != 0])) == 1
    assert found.compiled.scale[:2].tolist() == [2.0, 0.25]
    assert found.answers[1] == Fraction(5000, 4)


def test_what_is_asked_again_is_compiled_once(con: duckdb.DuckDBPyConnection) -> None:
    asked = (
        "SELECT sex, COUNT(*) AS n, SUM(age) AS s FROM t GROUP BY sex",
        "SELECT COUNT(*) FROM t WHERE age < 7",
        "SELECT sex, SUM(age) AS s, AVG(age) AS a FROM t WHERE true GROUP BY sex",
        "SELECT COUNT(*) AS n FROM t WHERE age <= 6",
        "SELECT COUNT(*) + 3 AS n FROM t WHERE age < 7",
    )
    apart = [_compile(one, con) for one in asked]  # of the third the number of ages known alone is new
    together = _compile(";".join(asked), con)
    assert (together.numbers, together.once.rows.shape[0]) == (sum(one.numbers for one in apart), 10)
    rows, scale = together.once.rows[together.once.place], together.once.scale[together.once.place]
    assert abs(rows - together.rows).sum() == 0
    assert np.array_equal(scale, together.scale)
    weights = np.arange(1.0, 1.0 + together.numbers)
    every, once = together.workload(weights), together.total(weights)
    assert once.shape[0] == 10 < every.shape[0]
    assert np.allclose(once.gram(), every.gram())


def test_equal_cells_are_merged(con: duckdb.DuckDBPyConnection) -> None:
    assert _compile("SELECT COUNT(*) FROM t WHERE age > 5 OR sex = 'f'", con).cells == 1
    assert _compile("SELECT sex, COUNT(*) FROM t GROUP BY sex", con).cells == 3
    assert _compile("SELECT sex, age, COUNT(*) FROM t GROUP BY ALL", con).cells == 3 * 122
    # A condition that cannot hold makes no cell, and a row of zeros.
    compiled = _compile("SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM t WHERE age > 5 AND age < 3", con)
    assert compiled.cells == 1
    assert compiled.answered.tolist() == [0]


def test_weights_scale_the_objective_alone(con: duckdb.DuckDBPyConnection) -> None:
    compiled = _compile("SELECT /*+ WEIGHT(4) */ COUNT(*) FROM t; SELECT COUNT_IF(age > 3) FROM t", con)
    assert compiled.objective.tolist() == [4.0, 1.0]
    assert compiled.scale.tolist() == [1.0, 1.0]


def test_sums_are_compared_by_their_sensitivity(con: duckdb.DuckDBPyConnection) -> None:
    compiled = _compile("SELECT SUM(age), COUNT(*) FROM t", con)
    reach = np.abs(compiled.rows @ compiled.contributions).max(axis=1).toarray().ravel() * compiled.objective
    assert reach.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT SUM(far) FROM t", "differ too finely"),
        ("SELECT COUNT(*) * 123456789.987654 - COUNT_IF(age > 2) * 0.000001 FROM t", "differ too finely"),
        ("SELECT age, a1, a2, a3, a4, a5, a6, a7, COUNT(*) FROM t GROUP BY ALL", "at most 200,000 numbers"),
        pytest.param("SELECT day, age, COUNT(*) FROM t GROUP BY ALL", "200,000 numbers", marks=pytest.mark.long),
        pytest.param("SELECT SUM(a1) FROM t;" + ";".join(
            f"SELECT COUNT(*) FROM t WHERE age < {i}; SELECT COUNT(*) FROM t WHERE far < {i}; "
            f"SELECT COUNT(*) FROM t WHERE a1 < {i}" for i in range(400)), "split the batch", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_too_much_is_refused(con: duckdb.DuckDBPyConnection, sql: str, message: str) -> None:
    with pytest.raises((SQLError, PolicyError), match=message):
        _compile(sql, con)


def test_the_cap_on_numbers_is_public(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "MAX_NUMBERS", 2)
    with pytest.raises(SQLError, match="the batch has 3 numbers, at most 2"):
        _compile("SELECT COUNT(*), COUNT(age), COUNT(sex) FROM t", con)


def test_columns_made_to_share_a_linear_hash_stay_apart():
    # Coefficients found by lattice reduction against fixed hash codes: only an exact comparison tells the cells apart.
    found = (-264339, -110163, -135268, 197283, 60167, 53320, 117131)
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\na = { values = [1, 2, 3], nulls = false }')
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT unnest([1, 1, 1, 2, 3]) AS a")
    sql = ";".join(f"SELECT {abs(c)} * count_if(a = {1 if c > 0 else 2}) + count_if(a = 3) FROM t" for c in found)
    held = exact(sql, policy, connection)
    assert held.compiled.cells == 3


def test_widths_without_a_common_multiple_are_refused():
    primes = (1099511627689, 1099511627609, 1099511627581, 1099511627573, 1099511627563, 1099511627491)
    columns = "\n".join(f"c{i} = {{ lower = 0, upper = {p}, nulls = false }}" for i, p in enumerate(primes))
    policy = policy_of(f'[tables.t]\nunit = "row"\n[tables.t.columns]\n{columns}')
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t ({', '.join(f'c{i} BIGINT' for i in range(6))})")
    sql = ";".join(f"SELECT sum(c{i}) FROM t" for i in range(6))
    with pytest.raises(SQLError, match="no common multiple"):
        exact(sql, policy, connection)
