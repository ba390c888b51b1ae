"""Numbers over groups that are empty by the statement and the policy alone are NULL; COALESCE replaces them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.policy import Policy
from dpsql.reconstruct.undefined import undefined
from dpsql.workloads.expr.formulas import Default, Leaf, Number, Quotient, Root, Sum, Variance
from dpsql.workloads.expr.statistics import Fit

POLICY = """dataset = "undefined-1"
[budget]
epsilon = 1000000.0
[tables.visits]
unit = "row"
[tables.visits.columns]
state = { values = ["NY", "NJ"], nulls = false }
qty = { lower = 0, upper = 10, nulls = false }
cost = { lower = 0, upper = 5000, step = 0.5, nulls = false }
day = { lower = 2024-01-01, upper = 2024-01-31, nulls = false }
"""
NONE = "qty > 5 AND qty < 3"
NULLS = [
    f"COUNT_IF({NONE}) / COUNT_IF({NONE})",
    f"SUM(qty) / NULLIF(COUNT_IF({NONE}), 0)",
    f"1 + AVG(cost) FILTER (WHERE {NONE})",
    f"AVG(cost) - AVG(cost) FILTER (WHERE {NONE})",
    f"STDDEV_POP(cost) FILTER (WHERE {NONE})",
    f"CORR(cost, qty) FILTER (WHERE {NONE})",
    f"MEDIAN(qty) FILTER (WHERE {NONE})",
    f"MIN(day) FILTER (WHERE {NONE})",
]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    rows = duckdb.connect()
    rows.execute(
        "CREATE TABLE visits AS SELECT ['NY', 'NJ'][1 + i % 2] AS state, (i % 11)::INTEGER AS qty, "
        "(i % 50) / 2 AS cost, DATE '2024-01-01' + (i % 31)::INTEGER AS day FROM range(500) t(i)"
    )
    return dpsql.connect(rows, policy=Policy.parse(POLICY), ledger=tmp_path_factory.mktemp("spent") / "l")


def test_a_number_over_no_rows_is_null(connection: dpsql.Connection) -> None:
    listed = ", ".join(f"{text} AS n{at}" for at, text in enumerate(NULLS))
    result = connection.run(f"SELECT {listed}, COUNT(*) AS n FROM visits", epsilon=10).only
    row = dict(zip(result.columns, result.fetchall()[0], strict=True))
    assert {name for name, value in row.items() if value is not None} == {"n", "n_stderr", "n_low", "n_high"}


@pytest.mark.long
def test_only_the_groups_that_are_empty_for_all_data_are_null(connection: dpsql.Connection) -> None:
    sql = """SELECT state, COUNT_IF(qty > 3 AND state = 'NY') / COUNT_IF(state = 'NY') AS share,
        COALESCE(AVG(cost) FILTER (WHERE state = 'NY'), 0) + 1 AS mean FROM visits GROUP BY state ORDER BY state"""
    result = connection.run(sql, epsilon=100).only
    nj, ny = (dict(zip(result.columns, row, strict=True)) for row in result.fetchall())
    assert [nj[name] for name in ("share", "share_stderr", "share_low", "share_high")] == [None] * 4
    assert [nj[name] for name in ("mean", "mean_stderr", "mean_low", "mean_high")] == [1.0, 0.0, 1.0, 1.0]
    assert 0 < ny["share"] < 1
    assert ny["mean_low"] < ny["mean"] < ny["mean_high"]


def test_an_estimate_that_happens_to_be_zero_makes_nothing_null() -> None:
    ratio = Quotient(Leaf(0), Leaf(1))
    values = np.array([[3.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
    certain = np.array([[False, False], [False, True], [True, True]])
    assert undefined(ratio, values, certain).tolist() == [False, True, False]
    for formula in (Sum((ratio, Number(1))), Root(ratio), Variance(Leaf(1), Leaf(0), Leaf(0), 1.0)):
        assert undefined(formula, values, certain).tolist() == [False, True, False]
    assert not undefined(Default(ratio), values, certain).any()
    fit = Fit((Leaf(1), *[Leaf(0)] * 5), (0.0, 0.0), (1.0, 1.0), "r2")
    assert undefined(fit, values, certain).tolist() == [False, True, False]


def test_count_if_of_a_unit_is_null_where_its_condition_is_null_in_every_row(tmp_path: Path) -> None:
    rows = duckdb.connect()
    rows.execute("CREATE TABLE v AS SELECT * FROM (VALUES (1, NULL), (1, NULL), (2, 1), (2, NULL), (3, 0)) AS t(id, x)")
    policy = """dataset = "count-if-1"
[budget]
epsilon = 1000000.0
[tables.v]
unit = "id"
max_rows_per_unit = 2
[tables.v.columns]
id = { nulls = false }
x = { lower = 0, upper = 1 }
"""
    sql = "SELECT k, COUNT(*) AS n FROM (SELECT id, COUNT_IF(x = 1) AS k FROM v GROUP BY id) GROUP BY k"
    con = dpsql.connect(rows, policy=Policy.parse(policy), ledger=tmp_path / "l")
    found = con.run(sql, epsilon=1000).only.fetchall()
    counts = {row[0]: round(row[1]) for row in found}
    assert counts == {0: 1, 1: 1, 2: 0, None: 1}
    assert {k: n for k, n in counts.items() if n} == dict(rows.execute(sql).fetchall())
