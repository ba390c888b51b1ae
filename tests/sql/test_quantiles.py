"""Quantiles of columns and expressions: the counts that they are read off, against DuckDB's own."""

from __future__ import annotations

import duckdb
import pytest
from helpers import exact, policy_of

import dpsql
from dpsql.workload.expr.batch import Ranked

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 40 }
cost = { lower = 0, upper = 5000, step = 0.01 }
day = { lower = 2024-01-01, upper = 2024-03-31 }
smoker = {}
""")
ROWS = """
CREATE TABLE t AS SELECT
    CASE WHEN i % 7 > 0 THEN (i * 13 % 41)::INTEGER END AS age, (i * 17.13 % 5000)::DECIMAL(8, 2) AS cost,
    DATE '2024-01-01' + (i * 5 % 91)::INTEGER AS day, i % 3 = 0 AS smoker
FROM range(500) r(i)
"""


@pytest.mark.parametrize(
    "expression",
    ["age", "age // 10", "age + 1", "40 - age", "age % 4", "month(day)", "CASE WHEN smoker THEN age ELSE 7 END"],
)
def test_counts_up_to_each_value_are_duckdbs(expression: str) -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    found = exact(f"SELECT MEDIAN({expression}) FROM t", POLICY, con)
    (column,) = found.queries[0].cores[0].columns
    assert isinstance(column, Ranked)
    counts = [
        con.execute(f"SELECT count(*) FROM t WHERE {expression} <= {value}").fetchall()[0][0] for value in column.values
    ]
    assert [found.answers[span.start] for span in found.compiled.spans] == counts
    assert list(column.values) == sorted(set(column.values))


def test_a_bucket_of_a_fine_column_has_a_quantile() -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    found = exact("SELECT MEDIAN(WIDTH_BUCKET(cost, 0, 5000, 10)) FROM t", POLICY, con)
    counts = [con.execute(f"SELECT count(*) FROM t WHERE cost < {500 * k}").fetchall()[0][0] for k in range(11)]
    assert [found.answers[span.start] for span in found.compiled.spans] == [*counts, 500]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("MEDIAN(cost)", "500,001 values.*WIDTH_BUCKET"),
        ("MEDIAN(smoker)", "numbers and dates"),
        ("MEDIAN(smoker AND age > 3)", "numbers and dates"),
        ("QUANTILE_CONT(age, 1.5)", "between 0 and 1"),
        ("MEDIAN(cost + 1)", "at most 4,096|groups"),
    ],
)
def test_what_has_no_order_or_too_many_values_is_refused(asked: str, said: str) -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    with pytest.raises(dpsql.SQLError, match=said):
        exact(f"SELECT {asked} FROM t", POLICY, con)
