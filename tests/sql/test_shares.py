"""Shares: a part over its whole has bounds 0 and 1, for sums only where no row can be negative."""

from __future__ import annotations

import functools

import duckdb
import pytest
from helpers import compiled_of, engine_of, policy_of, tables_of, understood

from dpsql.workloads.expr.batch import Derived
from dpsql.workloads.expr.batch import Table as Known
from dpsql.workloads.expr.formulas import Product, Quotient

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
cost = { lower = 0, upper = 10 }
debt = { lower = -5, upper = 10 }
smoker = {}
""")


@functools.cache
def tables() -> dict[str, Known]:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (cost INTEGER, debt INTEGER, smoker BOOLEAN)")
    return tables_of(POLICY, engine_of(con))


def bounds_of(expression: str) -> tuple[float, float] | None:
    sql = f"SELECT {expression} FROM t"
    assert compiled_of(sql, POLICY, tables()).spans
    (column,) = understood(sql, POLICY, tables()).answers[0].cores[0].columns
    assert isinstance(column, Derived)
    formula = column.formula
    if isinstance(formula, Product):
        formula = formula.parts[0]
    assert isinstance(formula, Quotient)
    return formula.bounds


@pytest.mark.parametrize(
    "expression",
    [
        "COUNT_IF(smoker) / COUNT(*)",
        "100.0 * COUNT_IF(smoker) / COUNT(*)",
        "SUM(cost) FILTER (WHERE smoker) / SUM(cost)",
        "SUM(CASE WHEN smoker THEN cost ELSE 0 END) / SUM(cost)",
        "100 * SUM(CASE WHEN smoker THEN cost ELSE 0 END) / SUM(cost)",
    ],
)
def test_a_part_over_its_whole_lies_between_0_and_1(expression: str) -> None:
    assert bounds_of(expression) == (0.0, 1.0)


@pytest.mark.parametrize(
    "expression",
    [
        "SUM(debt) FILTER (WHERE smoker) / SUM(debt)",
        "SUM(cost) / SUM(cost) FILTER (WHERE smoker)",
        "SUM(cost) FILTER (WHERE smoker) / COUNT(*)",
        "SUM(CASE WHEN smoker THEN cost ELSE 1 END) / SUM(cost)",
        "(SUM(cost) FILTER (WHERE smoker) + 1) / SUM(cost)",
    ],
)
def test_any_other_ratio_does_not(expression: str) -> None:
    assert bounds_of(expression) != (0.0, 1.0)
