"""Statistics of several columns: DuckDB's and scipy's numbers without noise, columns of tables, refusals."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, exact, policy_of, tables_of, understood
from noiseless import Pipeline, rows_of
from scipy import stats

import dpsql
from dpsql.workloads.expr.batch import Derived
from dpsql.workloads.expr.formulas import Quotient

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 99 }
cost = { lower = -10, upper = 5000, step = 0.01 }
w = { lower = 0, upper = 9, nulls = false }
income = { lower = 0, upper = 1000, step = 0.5, nulls = false }
smoker = {}
plan = { values = ["a", "b", "c"] }
""")
ROWS = """
CREATE TABLE t AS SELECT
    CASE WHEN i % 7 > 0 THEN (i * 13 % 100)::INTEGER END AS age,
    (i * 17.13 % 3000 + i * 13 % 100 * 20)::DECIMAL(8, 2) AS cost,
    i * 7 % 10 AS w, (i * 71 % 900)::DOUBLE + 0.5 AS income, CASE WHEN i % 11 > 0 THEN i % 3 = 0 END AS smoker,
    ['a', 'b', 'c'][i * 5 % 3 + 1] AS plan
FROM range(500) r(i)
"""


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(ROWS)
    return con


@pytest.fixture(scope="module")
def pipeline(con: duckdb.DuckDBPyConnection) -> Pipeline:
    return Pipeline.of(POLICY, con)


@pytest.mark.parametrize(
    "expression",
    [
        *("COVAR_POP(cost, age)", "COVAR_SAMP(cost, age)", "CORR(age, cost)", "REGR_SLOPE(cost, age)"),
        *("REGR_INTERCEPT(cost, age)", "REGR_R2(cost, age)", "REGR_SLOPE(cost, age) FILTER (WHERE smoker)"),
        *("2 * CORR(cost / 2, age + 1) - 1", "SUM(w * income) / SUM(w)", "CORR(age, age)"),
    ],
)
def test_pairs_are_duckdbs(expression: str, con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    _, ((found,),) = rows_of(pipeline.results(f"SELECT {expression} AS n FROM t")[0])
    ((expected,),) = con.execute(f"SELECT {expression} FROM t").fetchall()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_pairs_by_groups_are_duckdbs(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    sql = "SELECT plan, REGR_SLOPE(cost, age) AS s, COVAR_SAMP(cost, w) AS c FROM t GROUP BY plan ORDER BY plan"
    found = {row[0]: row[1:] for row in rows_of(pipeline.results(sql)[0])[1]}
    for plan, *expected in con.execute(sql).fetchall():
        assert found[plan] == pytest.approx(expected, rel=1e-6)


def test_a_regression_is_least_squares(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    sql = "SELECT dp_regression(cost, age, smoker, w) FROM t"
    names, rows = rows_of(pipeline.results(sql)[0])
    assert names == ["term", "coefficient", "total_stderr", "p_value"]
    held = con.execute(
        "SELECT cost::DOUBLE, 1, age, smoker::INT, w FROM t WHERE age IS NOT NULL AND smoker IS NOT NULL"
    ).fetchnumpy()
    y, *x = (np.ma.filled(column, np.nan).astype(float) for column in held.values())
    A = np.stack(x, axis=1)
    beta, *_ = np.linalg.lstsq(A, y, rcond=None)
    rest = y - A @ beta
    error = np.sqrt(rest @ rest / (len(y) - 4) * np.diag(np.linalg.inv(A.T @ A)))
    assert [row[0] for row in rows] == ["(intercept)", "age", "smoker", "w"]
    assert np.array([row[1] for row in rows]) == pytest.approx(beta, rel=1e-5)
    assert np.array([row[2] for row in rows]) == pytest.approx(error, rel=1e-5)
    assert np.array([row[3] for row in rows]) == pytest.approx(
        2 * stats.t.sf(np.abs(beta / error), len(y) - 4), rel=1e-3, abs=1e-12
    )


def test_a_regression_has_a_table_for_each_group(pipeline: Pipeline) -> None:
    table = pipeline.results("SELECT plan, dp_regression(cost, age) AS fit FROM t GROUP BY plan", errors=True)[0]
    names, rows = rows_of(table)
    assert names[:4] == ["plan", "fit_term", "fit_coefficient", "fit_coefficient_stderr"]
    assert [row[:2] for row in rows[:4]] == [("a", "(intercept)"), ("a", "age"), ("b", "(intercept)"), ("b", "age")]
    assert all(row[4] <= row[2] <= row[5] for row in rows if row[0] is not None)  # NULL has no rows


def test_tests_are_scipys(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    names, ((first, second, difference, t, df, p),) = rows_of(
        pipeline.results("SELECT dp_ttest(cost, smoker) FROM t")[0]
    )
    assert names == ["first", "second", "difference", "t", "df", "p_value"]
    assert (first, second) == ("false", "true")
    sides = [
        np.array(con.execute(f"SELECT cost::DOUBLE FROM t WHERE smoker = {side}").fetchall())[:, 0]
        for side in ("true", "false")
    ]
    said = stats.ttest_ind(*sides, equal_var=False)
    assert (t, df, p) == pytest.approx((said.statistic, said.df, said.pvalue), rel=1e-5)
    assert difference == pytest.approx(sides[0].mean() - sides[1].mean(), rel=1e-6)
    names, ((chisq, degrees, p),) = rows_of(pipeline.results("SELECT dp_chisq(plan, w % 4) FROM t")[0])
    counts = con.execute(
        "SELECT count_if(w % 4 = 0), count_if(w % 4 = 1), count_if(w % 4 = 2), count_if(w % 4 = 3) FROM t GROUP BY plan"
    ).fetchall()
    independent = stats.chi2_contingency(np.array(counts), correction=False)
    assert (chisq, degrees, p) == pytest.approx((independent.statistic, 6, independent.pvalue), rel=1e-6)


def test_a_table_of_two_by_two_has_an_odds_ratio(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    names, (row,) = rows_of(pipeline.results("SELECT dp_chisq(smoker, age < 50) FROM t", errors=True)[0])
    assert names == ["chisq", "df", "p_value", "odds_ratio", "odds_ratio_stderr", "odds_ratio_low", "odds_ratio_high"]
    ((a, b, c, d),) = con.execute(
        "SELECT count_if(NOT smoker AND age >= 50), count_if(NOT smoker AND age < 50), "
        "count_if(smoker AND age >= 50), count_if(smoker AND age < 50) FROM t"
    ).fetchall()
    assert row[3] == pytest.approx((a + 0.5) * (d + 0.5) / (b + 0.5) / (c + 0.5))


def test_gini_is_that_of_the_rows(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    _, ((found,),) = rows_of(pipeline.results("SELECT dp_gini(w) AS g FROM t WHERE smoker")[0])
    rows = np.array(con.execute("SELECT w FROM t WHERE smoker").fetchall())[:, 0]
    assert found == pytest.approx(np.abs(rows[:, None] - rows).mean() / 2 / rows.mean())


def test_a_weighted_mean_lies_within_the_bounds_of_what_is_weighted() -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    tables = tables_of(POLICY, engine_of(con))

    def bounds(sql: str) -> tuple[float, float] | None:
        assert compiled_of(sql, POLICY, tables).spans
        (column,) = understood(sql, POLICY, tables).answers[0].cores[0].columns
        assert isinstance(column, Derived)
        assert isinstance(column.formula, Quotient)
        return column.formula.bounds

    assert bounds("SELECT SUM(w * income) / SUM(w) FROM t") == (0.0, 1000.0)
    assert bounds("SELECT SUM(cost * w) / SUM(w) FROM t") == (-10.0, 5000.0)
    assert bounds("SELECT SUM(w * cost) / SUM(cost) FROM t") is None


@pytest.mark.parametrize(
    ("sql", "said", "column"),
    [
        ("SELECT dp_regression(cost) FROM t", "takes y and 1 to 10 columns", 8),
        ("SELECT dp_regression(cost, plan) FROM t", "plan holds VARCHAR", 28),
        ("SELECT dp_regression(cost, 3) FROM t", "3 is a constant", 28),
        ("SELECT dp_ttest(cost, plan) FROM t", "compares two groups; plan has 3", 23),
        ("SELECT dp_chisq(plan, cost) FROM t", "cost has 501,001 groups", 23),
        ("SELECT dp_chisq(plan, age, w) FROM t", "takes two columns", 8),
        ("SELECT 1 + dp_ttest(cost, smoker) FROM t", "stands for several columns", 12),
        ("SELECT COUNT(*) FROM t HAVING dp_ttest(cost, smoker) > 1", "stands for several columns", 31),
        ("SELECT dp_gini(cost) FROM t", "not negative", 8),
        ("SELECT CORR(age, plan) FROM t", "plan holds VARCHAR", 18),
        ("SELECT dp_regression(cost, age, w, income, age * w) FROM t", "summed columns meet in one cell", None),
    ],
)
def test_what_is_amiss_is_said_with_its_place(sql: str, said: str, column: int | None) -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    with pytest.raises(dpsql.SQLError, match=said) as error:
        exact(sql, POLICY, con)
    if column is not None:
        assert (error.value.line, error.value.column) == (1, column)
