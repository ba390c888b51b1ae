"""Quantiles of columns and expressions: the counts that they are read off, against DuckDB's own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import duckdb
import numpy as np
import pytest
from helpers import exact, policy_of, understood
from noiseless import Pipeline, rows_of

import dpsql
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import ResidualAnswers, rank_rows
from dpsql.reconstruct.residual_rows import ResidualRows
from dpsql.sql.aggregate import quantiles
from dpsql.strategies.kronecker.structured import structured_strategy
from dpsql.workloads.compile.structured import compile_structured
from dpsql.workloads.expr.batch import Ranked

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 40 }
cost = { lower = 0, upper = 5000, step = 0.01 }
day = { lower = 2024-01-01, upper = 2024-03-31 }
smoker = {}
weight = { lower = 0, upper = 200 }
note = {}
""")
ROWS = """
CREATE TABLE t AS SELECT
    CASE WHEN i % 7 > 0 THEN (i * 13 % 41)::INTEGER END AS age, (i * 17.13 % 5000)::DECIMAL(8, 2) AS cost,
    DATE '2024-01-01' + (i * 5 % 91)::INTEGER AS day, i % 3 = 0 AS smoker,
    sqrt(i * 71 % 500) * 8.9 AS weight, i * 1.5 AS note
FROM range(500) r(i)
"""


@pytest.mark.parametrize(
    "expression",
    ["age", "age // 10", "age + 1", "40 - age", "age % 4", "month(day)", "CASE WHEN smoker THEN age ELSE 7 END"],
)
@pytest.mark.few(every=2)
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


@pytest.mark.parametrize(
    "expression", ["age // 10 + month(day)", "age // 10 / (1 + month(day))", "month(day) * 0.5 - age // 10"]
)
def test_places_on_one_line_count_as_conditions_on_several_columns_do(
    monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    """Also of what is NULL where a part is."""
    con = duckdb.connect()
    con.execute(ROWS)
    counts, values = [], []
    for most in (10**9, 0):
        monkeypatch.setattr(quantiles, "MAX_ATOMS", most)
        found = exact(f"SELECT MEDIAN({expression}), COUNT({expression}) FROM t", POLICY, con)
        column = next(column for column in found.queries[0].cores[0].columns if isinstance(column, Ranked))
        counts.append([int(found.answers[found.compiled.spans[at].start]) for at in column.prefixes])
        values.append(column.values)
    assert counts[0] == counts[1]
    assert values[0] == values[1]
    assert counts[0][-1] == con.execute(f"SELECT COUNT({expression}) FROM t").fetchall()[0][0]


def test_a_bucket_of_a_fine_column_has_a_quantile() -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    found = exact("SELECT MEDIAN(WIDTH_BUCKET(cost, 0, 5000, 10)) FROM t", POLICY, con)
    counts = [con.execute(f"SELECT count(*) FROM t WHERE cost < {500 * k}").fetchall()[0][0] for k in range(11)]
    assert [found.answers[span.start] for span in found.compiled.spans] == [*counts, 500]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("QUANTILE_CONT(age, [0.5, 1]) + 1", "one for each share"),
        ("MEDIAN(note)", "needs its values declared"),
        ("MEDIAN(smoker)", "numbers, dates and times"),
        ("MEDIAN(smoker AND age > 3)", "numbers, dates and times"),
        ("QUANTILE_CONT(age, 1.5)", "between 0 and 1"),
        ("MEDIAN(cost / age)", "MEDIAN.* has no bounds"),
    ],
)
def test_what_has_no_order_or_too_many_values_is_refused(asked: str, said: str) -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    with pytest.raises(dpsql.SQLError, match=said):
        exact(f"SELECT {asked} FROM t", POLICY, con)


@pytest.mark.parametrize(
    ("column", "ends"),
    [
        *(("cost", (0, 5000)), ("weight", (0, 200)), ("cost + 1", (1, 5001)), ("cost * age", (0, 200000))),
        *(("100 - age * cost", (-199900, 100)), ("age * weight", (0, 8000))),
    ],
)
@pytest.mark.long
def test_many_values_are_counted_in_512_intervals(column: str, ends: tuple[int, int]) -> None:
    """500,001 values, and a DOUBLE, where no value has a next one: every row is in the interval that has its value."""
    con = duckdb.connect()
    con.execute(ROWS)
    found = exact(f"SELECT MEDIAN({column}) AS m FROM t", POLICY, con)
    (ranked,) = found.queries[0].cores[0].columns
    assert isinstance(ranked, Ranked)
    assert len(ranked.values) == 512
    assert (ranked.starts[0], ranked.values[-1]) == ends
    for start, end, span in zip(ranked.starts, ranked.values, found.compiled.spans, strict=True):
        below = con.execute(f"SELECT count(*) FROM t WHERE {column} < {start!r}").fetchall()[0][0]
        up_to = con.execute(f"SELECT count(*) FROM t WHERE {column} <= {end!r}").fetchall()[0][0]
        assert found.answers[span.start] == up_to
        assert below <= found.answers[span.start]


@pytest.mark.parametrize(
    "asked",
    [
        *("QUANTILE_DISC(age, 0.3)", "QUANTILE(age, 0.9)", "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY age)"),
        "PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age)",
        *("MEDIAN(weight)", "QUANTILE_DISC(cost, 0.1)", "QUANTILE_DISC(day, 0.1)"),
    ],
)
@pytest.mark.parametrize("smoker", ["smoker", "NOT smoker"])
@pytest.mark.few(every=8)
def test_without_noise_they_are_duckdbs(pipeline: Pipeline, asked: str, smoker: str) -> None:
    """Of many values to half of a 512th of the range."""
    (table,) = pipeline.results(f"SELECT {asked} AS m FROM t WHERE {smoker}")
    truth = pipeline.connection.execute(f"SELECT {asked} FROM t WHERE {smoker}").fetchall()[0][0]
    found = rows_of(table)[1][0][0]
    if "day" in asked:
        assert found == truth
    else:
        close = {"weight": 200 / 1024, "cost": 5000 / 1024}
        assert found == pytest.approx(float(truth), abs=next((d for name, d in close.items() if name in asked), 0.0))


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    con = duckdb.connect()
    con.execute(ROWS)
    return Pipeline.of(POLICY, con)


def test_lists_and_descending_percentiles_are_columns() -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    pipeline = Pipeline.of(POLICY, con)
    cases = [
        ("QUANTILE_CONT(age, [0.1, 0.5]) AS q", ["q_1", "q_2"], "quantile_cont(age, [0.1, 0.5])"),
        ("QUANTILE_DISC(age, [0.25]) FILTER (WHERE smoker)", None, "quantile_disc(age, [0.25]) FILTER (WHERE smoker)"),
        ("QUANTILE_CONT(age, [0.1, 0.9])[2] AS q", ["q"], "[quantile_cont(age, 0.9)]"),
        ("list_extract(QUANTILE(age, [0.3]), 1) AS q", ["q"], "quantile(age, [0.3])"),
        ("PERCENTILE_CONT([0.2, 0.4]) WITHIN GROUP (ORDER BY age DESC) AS p", ["p_1", "p_2"],
         "[quantile_cont(age, 0.8), quantile_cont(age, 0.6)]"),
        *((f"PERCENTILE_DISC({q}) WITHIN GROUP (ORDER BY age DESC) AS p", ["p"],
           f"[percentile_disc({q}) WITHIN GROUP (ORDER BY age DESC)]") for q in (0, 0.2, 0.5, 0.99, 1)),
    ]  # fmt: skip
    for asked, names, oracle in cases:
        (result,) = pipeline.results(f"SELECT {asked} FROM t WHERE smoker IS NOT NULL")
        found, rows = rows_of(result)
        assert names is None or found == names
        ((wanted,),) = con.execute(f"SELECT {oracle} FROM t").fetchall()
        assert list(rows[0]) == pytest.approx([float(value) for value in wanted])


def test_mode_is_the_key_that_counts_most() -> None:
    con = duckdb.connect()
    con.execute(ROWS)
    con.execute(
        "INSERT INTO t (age, smoker) SELECT NULL, true FROM range(30) UNION ALL SELECT 7, true FROM range(9) "
        "UNION ALL SELECT 9, false FROM range(19)"
    )
    pipeline = Pipeline.of(POLICY, con)
    for sql in (
        "SELECT smoker, MODE(age % 7) AS m FROM t GROUP BY smoker HAVING smoker IS NOT NULL",
        "SELECT MODE(month(day)) AS m FROM t",
        "SELECT MODE(age) AS m FROM t WHERE smoker",
        "SELECT smoker AS s, MODE(age) AS m FROM t WHERE age > 3 AND smoker IS NOT NULL GROUP BY s ORDER BY s",
        "SELECT smoker, MODE(age) AS m FROM t WHERE smoker IS NOT NULL GROUP BY ALL",
    ):
        if "HAVING" in sql:
            with pytest.raises(dpsql.SQLError, match="in a statement of its own"):
                pipeline.results(sql)
            continue
        names, rows = rows_of(pipeline.results(sql)[0])
        cursor = con.execute(sql)
        assert names == [column[0] for column in cursor.description]
        assert {row for row in rows if row[0] is not None} == set(cursor.fetchall())


@pytest.mark.long
def test_counts_of_one_quantile_are_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups and values past what is one matrix: as many rows as its counts, whose errors have two columns."""
    policy = policy_of(
        """[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 149 }
cost = { lower = 0, upper = 500 }
smoker = {}
day = { lower = 2024-01-01, upper = 2024-03-31 }
"""
    )
    con = duckdb.connect()
    con.execute(ROWS)
    pipeline = Pipeline.of(policy, con)
    sql = "SELECT day, MEDIAN(age), MAX(age) FILTER (WHERE smoker) FROM t WHERE cost > 50 GROUP BY day"
    found = understood(sql, policy, pipeline.tables)
    compiled = compile_structured(found.queries, found.tables)
    plain = replace(compiled, blocks=tuple(one for block in compiled.blocks for one in block.split))
    assert len(compiled.blocks) == 2
    assert len(plain.blocks) == 300
    strategy = structured_strategy(compiled, "gaussian", time_limit=1.0)
    noise = Noise.gaussian(Fraction(50))
    answers = strategy.answers_of(compiled)
    slow = ResidualAnswers(plain.blocks, answers.residuals, answers.sizes, answers.numbers)
    assert answers.errors(noise, 1) == pytest.approx(slow.errors(noise, 1))
    parts = [slice(at * 92, (at + 1) * 92) for at in (0, 70, 148, 149)]
    few, whole = (rows.reshape(4, 92, -1) for rows in (rank_rows(answers, parts, noise), slow.rows(parts, noise)))
    assert few.shape[2] == 2
    assert np.einsum("kgp,kgp->kg", few, few) == pytest.approx(np.einsum("kgp,kgp->kg", whole, whole), abs=1e-9)
    assert np.einsum("kgp,gp->kg", few, few[-1]) == pytest.approx(np.einsum("kgp,gp->kg", whole, whole[-1]), abs=1e-9)
    monkeypatch.setattr("dpsql.reconstruct.residual_answers.MOST", 0)  # rows of Laplace noise are too many at once
    assert rank_rows(answers, parts, Noise.laplace(Fraction(50))) == pytest.approx(1.42 * few.reshape(-1, 2))


@pytest.mark.long
def test_counts_of_a_quantile_and_of_an_average_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a group are in a block of their own where an average counts them, too: products are of two blocks."""
    policy = policy_of(
        """[tables.t]
unit = "row"
[tables.t.columns]
age = { lower = 0, upper = 149 }
cost = { lower = 0, upper = 500 }
day = { lower = 2024-01-01, upper = 2024-01-31 }
"""
    )
    con = duckdb.connect()
    con.execute(ROWS)
    pipeline = Pipeline.of(policy, con)
    sql = "SELECT day, AVG(age), MEDIAN(age) FROM t WHERE cost > 50 GROUP BY day"
    found = understood(sql, policy, pipeline.tables)
    compiled = compile_structured(found.queries, found.tables)
    assert [(block.start // 32, block.outputs) for block in compiled.blocks] == [(0, 1), (1, 1), (1, 1), (2, 149)]
    parts = [slice(at * 32, (at + 1) * 32) for at in (2, 71, 150, 0)]
    noise = Noise.gaussian(Fraction(50))
    answers = structured_strategy(compiled, "gaussian", time_limit=1.0).answers_of(compiled)
    few, whole = (rows.reshape(4, 32, -1) for rows in (rank_rows(answers, parts, noise), answers.rows(parts, noise)))
    assert np.einsum("kgp,kgp->kg", few, few) == pytest.approx(np.einsum("kgp,kgp->kg", whole, whole), abs=1e-9)
    assert np.einsum("kgp,gp->kg", few, few[-1]) == pytest.approx(np.einsum("kgp,gp->kg", whole, whole[-1]), abs=1e-9)
    monkeypatch.setattr(ResidualRows, "_product", lambda *_: None)  # as where conditions are over several columns
    assert rank_rows(answers, parts, noise).reshape(4, 32, 2) == pytest.approx(few, abs=1e-9)


def test_quantiles_of_dates_are_of_duckdbs_types() -> None:
    """Between two days there are hours: MEDIAN and QUANTILE_CONT are TIMESTAMPs, MIN, MAX and QUANTILE_DISC dates."""
    con = duckdb.connect()
    con.execute(f"{ROWS} WHERE i < 8")
    columns = "MEDIAN(day), QUANTILE_CONT(day, 0.1), QUANTILE_DISC(day, 0.1), MIN(day), MAX(day)"
    (result,) = Pipeline.of(POLICY, con).results(f"SELECT {columns} FROM t")
    (row,) = rows_of(result)[1]
    wanted = con.execute(f"SELECT {columns} FROM t").fetchone()
    assert wanted is not None
    assert [(type(value), value) for value in row] == [(type(value), value) for value in wanted]
    assert wanted[0].hour == 12
