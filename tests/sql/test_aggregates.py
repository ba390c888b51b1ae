"""The table of aggregates: DuckDB's numbers without noise, of groups and of units, refusals, and its page in docs."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import duckdb
import pytest
from helpers import policy_of, unwrapped
from noiseless import Pipeline, rows_of

import dpsql
from dpsql.sql.aggregate.table import OUTER, TABLE, Aggregate

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
POLICY = policy_of("""
[tables.t]
unit = "who"
max_rows_per_unit = 9
[tables.t.columns]
who = {}
age = { lower = 1, upper = 99 }
cost = { lower = 0.5, upper = 5000, step = 0.01 }
w = { lower = 0, upper = 9, nulls = false }
y = { lower = -3, upper = 7 }
large = { lower = -500000000000, upper = 500000000000, step = 1000 }
smoker = {}
plan = { values = ["a", "b", "c"] }
""")
ROWS = """
CREATE TABLE t AS SELECT
    i // 9 AS who,
    CASE WHEN i % 7 > 0 THEN (i * 13 % 99 + 1)::INTEGER END AS age,
    CASE WHEN i % 5 > 0 THEN (i * 17.13 % 3000 + i * 13 % 100 * 20 + 0.5)::DECIMAL(8, 2) END AS cost,
    i * 7 % 10 AS w, CASE WHEN i % 5 > 1 THEN sin(i) ** 3 * 3 + 1 END AS y,
    i * 7919 % 1000 * 400000000 * (i % 3 - 1)::BIGINT AS large,
    CASE WHEN i % 11 > 0 THEN i % 3 = 0 END AS smoker, ['a', 'b', 'c'][i * 5 % 3 + 1] AS plan
FROM range(500) r(i)
"""
NUMBERS = ("age", "cost", "w", "y", "age + w", "cost / 2")
PAIRS = ("cost, age", "w, y", "age * 2, cost")
ONE = ("GEOMEAN", "SEM", "SKEWNESS", "KURTOSIS", "KURTOSIS_POP")
TWO = ("REGR_COUNT", "REGR_AVGX", "REGR_AVGY", "REGR_SXX", "REGR_SYY")
CALLS = (
    *(f"{name}({x})" for name in ONE for x in NUMBERS if name != "GEOMEAN" or x in ("age", "cost", "age + w")),
    *(f"{name}({pair})" for name in TWO for pair in PAIRS),
    *("SEM(age) FILTER (WHERE smoker)", "2 * SKEWNESS(w) - 1", "REGR_COUNT(cost, age) / COUNT(*)"),
)


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(ROWS)
    return con


@pytest.fixture(scope="module")
def pipeline(con: duckdb.DuckDBPyConnection) -> Pipeline:
    return Pipeline.of(POLICY, con)


def same(one: object, other: object, tolerance: float = 2e-5) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.few(every=3)
def test_a_number_is_duckdbs(call: str, con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    """Of all rows, of those of WHERE, and of groups: NULL is left out, of two numbers where either is."""
    for clause in ("", " WHERE smoker", " WHERE plan = 'a' OR age > 50"):
        sql = f"SELECT {call} AS n FROM t{clause}"
        ((found,),) = rows_of(pipeline.results(sql)[0])[1]
        ((expected,),) = con.execute(sql).fetchall()
        assert same(found, expected), (sql, found, expected)
    sql = f"SELECT plan, {call} AS n FROM t GROUP BY plan"
    expected_rows = dict(con.execute(sql).fetchall())
    found_rows = dict(rows_of(pipeline.results(sql)[0])[1])
    assert expected_rows.keys() <= found_rows.keys()
    assert all(same(found_rows[plan], n) for plan, n in expected_rows.items()), (sql, found_rows, expected_rows)


@pytest.mark.parametrize("name", ["SKEWNESS", "KURTOSIS"])
def test_powers_past_all_whole_numbers_are_those_of_doubles(
    name: str, con: duckdb.DuckDBPyConnection, pipeline: Pipeline
) -> None:
    sql = f"SELECT {name}(large) AS n FROM t"
    ((found,),) = rows_of(pipeline.results(sql)[0])[1]
    assert same(found, con.execute(sql).fetchall()[0][0], 1e-3)


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_over_no_rows_it_is_null_as_in_duckdb(name: str, con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    sql = f"SELECT {name}({'age' if name in ONE else 'cost, age'}) AS n FROM t WHERE false"
    assert rows_of(pipeline.results(sql)[0])[1] == con.execute(sql).fetchall()


@pytest.mark.parametrize("call", ["SEM(age)", *(f"{name}(cost, age)" for name in TWO), "SEM(w) FILTER (WHERE smoker)"])
@pytest.mark.few(every=2)
def test_a_number_of_each_unit_is_duckdbs(call: str, con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> None:
    units = f"(SELECT who, {call} AS n FROM t GROUP BY who)"
    sql = f"SELECT SUM(CASE WHEN n > 1 THEN 1 ELSE 0 END), COUNT(n), AVG(n) FROM {units}"
    (found,) = rows_of(pipeline.results(sql)[0])[1]
    (expected,) = con.execute(sql).fetchall()
    assert all(same(a, b) for a, b in zip(found, expected, strict=True)), (found, expected)


@pytest.mark.parametrize(
    ("sql", "said", "column"),
    [
        ("SELECT GEOMEAN(w) FROM t", "its range begins at 0; declare a lower bound above 0, or write GEOMEAN", 8),
        ("SELECT GEOMETRIC_MEAN(y) FROM t", "its range begins at -3", 8),
        ("SELECT GEOMEAN(DISTINCT age) FROM t", "without DISTINCT", 8),
        ("SELECT SEM(DISTINCT age) FROM t", "without DISTINCT", 8),
        ("SELECT KURTOSIS(DISTINCT age) FROM t", "without DISTINCT", 8),
        ("SELECT SEM(age, w) FROM t", "takes one number", 8),
        ("SELECT SKEWNESS(plan) FROM t", "plan holds VARCHAR", 17),
        ("SELECT REGR_COUNT(plan, age) FROM t", "takes two numbers", 8),
        ("SELECT SKEWNESS(3) FROM t", "3 is a constant", 17),
        ("SELECT MAD(age) FROM t", "is not an admitted aggregate; use one of COUNT", 8),
        ("SELECT AVG(n) FROM (SELECT who, SKEWNESS(age) AS n FROM t GROUP BY who)", "of a unit is not answered", 33),
        ("SELECT AVG(n) FROM (SELECT who, SEM(DISTINCT age) AS n FROM t GROUP BY who)", "without DISTINCT", 33),
    ],
)
def test_what_is_not_answered_is_refused_with_its_place(sql: str, said: str, column: int, pipeline: Pipeline) -> None:
    with pytest.raises(dpsql.SQLError, match=said) as refusal:
        pipeline.plan(sql)
    assert (refusal.value.line, refusal.value.column) == (1, column)


EXTREME = """
CREATE TABLE t AS SELECT i // 9 AS who, [1, -2147483648, 2147483647, NULL, 99, 0][1 + i % 6]::INTEGER AS age,
    [0.5, -999999.99, 999999.99, NULL, 5000][1 + i % 5]::DECIMAL(8, 2) AS cost,
    [0, -9223372036854775807, 9223372036854775807, 9][1 + i % 4]::BIGINT AS w,
    ['nan', 'inf', '-inf', '1e308', '-1e308', '5e-324', NULL, '-3', '7'][1 + i % 9]::DOUBLE AS y,
    [9223372036854775807, -9223372036854775807, 0][1 + i % 3]::BIGINT AS large,
    NULL::BOOLEAN AS smoker, 'a' AS plan
FROM range({rows}) r(i)
"""


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 60])
@pytest.mark.few("2")
def test_no_row_decides_whether_there_is_an_answer(rows: int) -> None:
    """Rows beyond all bounds, NaN and infinities count as the nearest bound or as NULL; nothing fails."""
    con = duckdb.connect()
    con.execute(EXTREME.format(rows=rows))
    pipeline = Pipeline.of(POLICY, con)
    for call in (*CALLS, "KURTOSIS(large)"):
        sql = f"SELECT {call} AS n FROM t; SELECT plan, {call} AS n FROM t GROUP BY plan"
        for result in pipeline.results(sql, errors=True):
            for row in rows_of(result)[1]:
                numbers = [value for value in row if isinstance(value, float)]
                assert all(map(math.isfinite, numbers)), (sql, row)


@pytest.mark.long
def test_released_numbers_of_few_rows_stay_within_what_they_can_be(tmp_path: Path) -> None:
    """Noise that hides the rows widens intervals to all that is possible; each value lies within its own."""
    con = duckdb.connect()
    con.execute(EXTREME.format(rows=4))
    dp = dpsql.connect(con, policy=POLICY, ledger=tmp_path / "a.ledger", releases=tmp_path / "a.duckdb")
    calls = ", ".join(f"{call} AS n{at}" for at, call in enumerate(("GEOMEAN(age)", "SEM(age)", "KURTOSIS(age)")))
    for seed in range(3):
        release = dp.run(f"SELECT plan, {calls} FROM t WHERE w > {seed} GROUP BY plan", epsilon=0.5)
        for row in release["q1"].df().to_dict("records"):
            for at, (low, high) in enumerate(((1, 99), (0, 49), (-6, math.inf))):
                assert low - 1e-9 <= row[f"n{at}"] <= high + 1e-9
                assert row[f"n{at}_low"] <= row[f"n{at}"] <= row[f"n{at}_high"]


# -- dates and times -----------------------------------------------------------------------------------

TIMES = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
day = { lower = 2020-01-01, upper = 2024-12-31 }
seen = { lower = 2020-01-01T00:00:00, upper = 2024-12-31T23:59:59 }
zoned = { lower = 2020-01-01T00:00:00Z, upper = 2024-12-31T23:59:59Z }
g = { values = ["a", "b"], nulls = false }
free = {}
""")
DAYS = """
CREATE TABLE t AS SELECT CASE WHEN i % 7 > 0 THEN DATE '2020-01-01' + (i * 37 % 1800)::INT END AS day,
    CASE WHEN i % 5 > 0 THEN '2020-01-01'::TIMESTAMP + to_microseconds(i * 79190150461 % 150000000000000) END AS seen,
    TIMESTAMPTZ '2022-02-02 12:00:00+00' AS zoned, ['a', 'b'][1 + i % 2] AS g,
    DATE '2020-01-01' AS free
FROM range(300) r(i)
"""
BEYOND = """
CREATE TABLE t AS SELECT
    [DATE '0001-01-01', '9999-12-31', 'infinity', '-infinity', NULL, '290000-01-01'][1 + i % 6]::DATE AS day,
    ['-infinity', 'infinity', '0001-01-01', '9999-12-31', NULL, '290000-01-01'][1 + i % 6]::TIMESTAMP AS seen,
    NULL::TIMESTAMPTZ AS zoned, 'a' AS g, NULL::DATE AS free
FROM range({rows}) r(i)
"""
OF_TIMES = ("AVG(day)", "AVG(seen)", "MEAN(day)", "AVG(day + INTERVAL 36 HOUR)", "AVG(date_trunc('month', seen))",
            "AVG(day) FILTER (WHERE seen > '2020-03-01')", "MEDIAN(day)")  # fmt: skip


@pytest.fixture(scope="module")
def times() -> Pipeline:
    con = duckdb.connect()
    con.execute(DAYS)
    return Pipeline.of(TIMES, con)


@pytest.mark.parametrize("call", OF_TIMES)
@pytest.mark.few(every=4)
def test_the_mean_of_times_is_a_time(call: str, times: Pipeline) -> None:
    """To a second: times are summed to a 2^40th of their range, and medians of noise of no size."""
    for sql in (f"SELECT {call} AS n FROM t", f"SELECT {call} AS n FROM t GROUP BY g ORDER BY g"):
        (result,) = times.results(sql)
        assert [kind for _, kind, _ in result.columns] == ["TIMESTAMP"]
        expected = times.connection.execute(sql).fetchall()
        for (found,), (exact,) in zip(rows_of(result)[1], expected, strict=True):
            assert abs(found - exact) <= dt.timedelta(seconds=1), sql


@pytest.mark.long
def test_a_quantile_of_times_is_a_512th_of_the_range_off_at_most(times: Pipeline) -> None:
    for call in ("MEDIAN(seen)", "QUANTILE_DISC(seen, 0.9)", "MIN(seen)", "MAX(seen)"):
        sql = f"SELECT {call} AS n FROM t"
        (row,) = rows_of(times.results(sql, errors=True)[0])[1]
        ((exact,),) = times.connection.execute(sql).fetchall()
        assert abs(row[0] - exact) <= dt.timedelta(days=5 * 366 / 512)
        assert row[2] <= exact <= row[3]


def test_errors_of_times_are_days_and_their_ends_times(times: Pipeline) -> None:
    (result,) = times.results("SELECT AVG(seen) AS n FROM t", errors=True)
    assert [kind for _, kind, _ in result.columns] == ["TIMESTAMP", "DOUBLE", "TIMESTAMP", "TIMESTAMP"]
    ((value, stderr, low, high),) = rows_of(result)[1]
    assert low <= value <= high
    assert 0 <= stderr < 1


def test_conditions_and_functions_of_mean_times_are_duckdbs(times: Pipeline) -> None:
    for sql in (
        "SELECT g FROM t GROUP BY g HAVING AVG(day) > DATE '2021-01-01' ORDER BY g",
        "SELECT year(AVG(seen)) AS y, AVG(day) > DATE '2021-01-01' AS later FROM t",
        "SELECT AVG(day) AS n FROM t WHERE false",
    ):
        assert rows_of(times.results(sql)[0])[1] == times.connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("sql", "said", "column"),
    [
        ("SELECT AVG(day) + 1 FROM t", "AVG.day. is a time", 8),
        ("SELECT COALESCE(AVG(day), 0) FROM t", "AVG.day. is a time", 17),
        ("SELECT COUNT(*) / AVG(seen) FROM t", "AVG.seen. is a time", 19),
        ("SELECT AVG(zoned) FROM t", "zoned holds TIMESTAMP WITH TIME ZONE", 12),
        ("SELECT MEDIAN(zoned) FROM t", "numbers, dates and times; zoned holds", 15),
        ("SELECT AVG(DISTINCT day) FROM t", "leave DISTINCT out", 21),
        ("SELECT SUM(day) FROM t", "day holds DATE", 12),
        ("SELECT AVG(free) FROM t", "AVG.free. needs bounds: add lower and upper", 12),
        ("SELECT SKEWNESS(day(free)) FROM t WHERE 1 = 2 AND SKEWNESS(day) > 1", "an aggregate inside", 51),
    ],
)
def test_what_no_time_is_for_is_refused(sql: str, said: str, column: int, times: Pipeline) -> None:
    with pytest.raises(dpsql.SQLError, match=said) as refusal:
        times.plan(sql)
    assert refusal.value.column == column


@pytest.mark.parametrize("rows", [0, 1, 12])
@pytest.mark.few("1")
def test_times_beyond_all_bounds_count_as_the_nearest_or_as_null(rows: int) -> None:
    con = duckdb.connect()
    con.execute(BEYOND.format(rows=rows))
    pipeline = Pipeline.of(TIMES, con)
    for call in (*OF_TIMES, "MEDIAN(seen)"):
        for row in rows_of(pipeline.results(f"SELECT {call} AS n FROM t", errors=True)[0])[1]:
            assert row[0] is None or dt.datetime(2019, 12, 1) <= row[0] <= dt.datetime(2025, 1, 3)


@pytest.mark.long
def test_a_released_mean_time_lies_within_its_bounds(tmp_path: Path) -> None:
    con = duckdb.connect()
    con.execute(DAYS)
    dp = dpsql.connect(con, policy=TIMES, ledger=tmp_path / "a.ledger", releases=tmp_path / "a.duckdb")
    dp.run("CREATE VIEW v AS SELECT g, AVG(day) AS n FROM t WHERE day < DATE '2020-03-01' GROUP BY g", epsilon=0.3)
    for n, low, high in dp.sql("SELECT n, n_low, n_high FROM v").fetchall():
        assert dt.datetime(2020, 1, 1) <= low <= n <= high <= dt.datetime(2024, 12, 31)
    found = dp.sql("SELECT max(n) AS latest FROM v", errors=True)
    assert found.fetchall()[0][0] <= dt.datetime(2024, 12, 31)


def test_a_plan_explains_what_an_aggregate_is_made_of(tmp_path: Path) -> None:
    """Equal sums are measured once: SEM, SKEWNESS and KURTOSIS of one column share them."""
    con = duckdb.connect()
    con.execute(ROWS)
    dp = dpsql.connect(con, policy=POLICY, ledger=tmp_path / "a.ledger", releases=tmp_path / "a.duckdb")
    text = dp.plan(
        "SELECT SEM(w) AS s, SKEWNESS(w) AS k, KURTOSIS(w) AS u, GEOMEAN(age) AS g FROM t", epsilon=1
    ).explain()
    text = unwrapped(text)
    for line in (
        "s = sqrt(variance of the mean from ([1], [2], [3])); the roots of the ends of the variance's interval",
        "k = skewness from [1] to [4]; Fieller's interval of the ratio that it is, linearised",
        "u = kurtosis from [1] to [5]; Fieller's interval of the ratio that it is, linearised",
        "g = exp([7] / [6]); the exp of the ends of an interval",
    ):
        assert line in text


@pytest.mark.long
def test_mean_times_are_planned_beside_other_sums(tmp_path: Path) -> None:
    con = duckdb.connect()
    con.execute(DAYS)
    dp = dpsql.connect(con, policy=TIMES, ledger=tmp_path / "a.ledger", releases=tmp_path / "a.duckdb")
    plan = dp.plan("SELECT AVG(day) AS d, AVG(seen) AS s, SUM(hour(seen)) AS h FROM t GROUP BY g", epsilon=1)
    assert "d = ([2] / [1]) days after 2022-07-02" in plan.explain()


# -- the page ----------------------------------------------------------------------------------------


def documented() -> str:
    """The table of docs/sql.md: ``PYTHONPATH=tests/shared python tests/sql/test_aggregates.py`` prints it."""
    lines = ["| aggregate | the scan adds up | interval | of each unit |", "|---|---|---|---|"]
    for each in TABLE:
        measured, interval = (each.measured, each.interval) if each.kind != OUTER else ("", "")
        lines.append(f"| `{each.name}` | {measured} | {interval} | {'yes' if each.unit else ''} |")
    return "\n".join(lines)


def test_the_page_has_every_aggregate() -> None:
    assert documented() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("aggregate", TABLE, ids=lambda each: each.name)
def test_an_aggregate_has_one_way_to_be_answered(aggregate: Aggregate) -> None:
    ways = [aggregate.terms, aggregate.formula, aggregate.columns, aggregate.ranked or None]
    assert sum(way is not None for way in ways) == (aggregate.kind != OUTER)
    assert aggregate.kind != OUTER or aggregate.unit is not None
    assert bool(aggregate.measured) == (aggregate.kind != OUTER)


def test_names_and_calls_are_each_of_one_aggregate() -> None:
    assert len({each.name for each in TABLE}) == len(TABLE)
    assert len({each.node for each in TABLE}) == len(TABLE) - 1  # COUNT and COUNT(DISTINCT)


if __name__ == "__main__":
    print(documented())
