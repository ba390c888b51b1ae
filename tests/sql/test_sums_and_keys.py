"""SUM and GROUP BY over expressions through the whole pipeline without noise, against row-wise oracles."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from helpers import exact, policy_of
from noiseless import Pipeline, rows_of

from dpsql.errors import SQLError
from dpsql.policy import Policy

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
q = { lower = -3, upper = 20 }
p = { lower = 0.5, upper = 40.0, step = 0.25 }
m = { lower = 0.0, upper = 99.99 }
x = { lower = -1.0, upper = 3.0 }
big = {}
flag = {}
age = { lower = 0, upper = 40 }
state = { values = ["NY", "NJ", "CA"], other = true }
sex = { values = ["f", "m"], nulls = false }
d = { lower = 2020-01-10, upper = 2020-04-05, other = true }
ts = { lower = 2019-11-30T00:00:00, upper = 2020-02-01T12:00:00 }
txt = {}
""")
TYPES = {
    **{"q": "SMALLINT", "p": "DOUBLE", "m": "DECIMAL(9,2)", "x": "DOUBLE", "big": "BIGINT", "flag": "BOOLEAN"},
    **{"age": "INTEGER", "state": "VARCHAR", "sex": "VARCHAR", "d": "DATE", "ts": "TIMESTAMP", "txt": "VARCHAR"},
}
Row = dict[str, Any]


def _rows() -> list[Row]:
    rng = random.Random(7)
    held: dict[str, list[Any]] = {
        "q": [-3, -2, 0, 1, 5, 20, 21, -32768, 32767, None],
        "p": [0.5, 0.75, 1.0, 39.75, 40.0, 1e300, -1e300, float("inf"), float("nan"), 0.6, 3.1, None],
        "m": ["0", "0.01", "99.99", "100.00", "-5.00", "9999999.99", "12.34", None],
        "x": [-1.0, 3.0, 0.125, 2.5, 9.0, float("nan"), None],
        "big": [2**63 - 1, -(2**63), 0, 7, -8, None],
        "flag": [True, False, None],
        "age": [0, 9, 10, 39, 40, 41, -1, 17, 18, None],
        "state": ["NY", "NJ", "CA", "TX", "", None],
        "sex": ["f", "m"],
        "d": [dt.date(2020, 1, 10), dt.date(2020, 1, 31), dt.date(2020, 2, 29), dt.date(2020, 4, 5),
              dt.date(2020, 4, 6), dt.date(2019, 1, 1), None],
        "ts": [dt.datetime(2019, 11, 30), dt.datetime(2019, 12, 31, 23, 59, 59), dt.datetime(2020, 1, 1, 5),
               dt.datetime(2020, 2, 1, 12), dt.datetime(2020, 2, 1, 13), None],
        "txt": ["a", "bc", "", None],
    }  # fmt: skip
    return [{name: rng.choice(values) for name, values in held.items()} for _ in range(300)]


ROWS = _rows()


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, kind in TYPES.items())})")
    connection.executemany(
        f"INSERT INTO t VALUES ({', '.join('?' * len(TYPES))})", [list(row.values()) for row in ROWS]
    )
    return connection


def _clamped(row: Row) -> dict[str, Fraction | None]:
    """The numbers of a row as SUM sees them: clamped, on their grids; NULL and NaN are None."""
    found: dict[str, Fraction | None] = {}
    for name in ("q", "p", "m", "x", "big", "age"):
        value = row[name]
        policy = POLICY.tables["t"].columns[name]
        if value is None or value != value:
            found[name] = None
            continue
        if policy.lower is None:
            found[name] = Fraction(value)
            continue
        lower, upper = Fraction(policy.lower), Fraction(policy.upper)  # type: ignore[arg-type]
        number = lower if value == float("-inf") else upper if value == float("inf") else Fraction(value)
        number = min(max(number, lower), upper)
        if policy.step is not None:
            number = lower + (number - lower + policy.step / 2) // policy.step * policy.step
        found[name] = number
    return found


def _towards_zero(a: Fraction, b: int) -> Fraction:
    return Fraction(int(abs(a) // b)) * (1 if a >= 0 else -1)


Oracle = Callable[[dict[str, Any], Row], Fraction | int | None]
SUMS: list[tuple[str, Oracle]] = [
    ("q * p", lambda c, r: c["q"] * c["p"]),
    ("q * m", lambda c, r: c["q"] * c["m"]),
    ("q + age", lambda c, r: c["q"] + c["age"]),
    ("2 * q - 3 * m + 1", lambda c, r: 2 * c["q"] - 3 * c["m"] + 1),
    ("p * (1 - 0.1) * (1 + 0.05)", lambda c, r: c["p"] * Fraction(9, 10) * Fraction(105, 100)),
    ("-q", lambda c, r: -c["q"]),
    ("abs(q)", lambda c, r: abs(c["q"])),
    ("q * q", lambda c, r: c["q"] ** 2),
    ("q // 4", lambda c, r: _towards_zero(c["q"], 4)),
    ("big % 10", lambda c, r: int(abs(c["big"]) % 10) * (1 if c["big"] >= 0 else -1)),
    ("m / 4", lambda c, r: c["m"] / 4),
    ("floor(m)", lambda c, r: c["m"] // 1),
    ("greatest(q, 5)", lambda c, r: 5 if c["q"] is None else max(c["q"], 5)),
    ("coalesce(q, 7)", lambda c, r: 7 if c["q"] is None else c["q"]),
    ("nullif(age, 0)", lambda c, r: c["age"] or None),
    ("CASE WHEN age > 17 THEN q * 2 ELSE m END",
     lambda c, r: (None if c["q"] is None else c["q"] * 2) if (r["age"] or 0) > 17 else c["m"]),
    ("CASE WHEN big > 5 THEN 1 WHEN flag THEN q END",
     lambda c, r: 1 if (r["big"] or 0) > 5 else c["q"] if r["flag"] else None),
    ("CASE WHEN state = 'NY' THEN p END", lambda c, r: c["p"] if r["state"] == "NY" else None),
    ("month(ts)", lambda c, r: None if r["ts"] is None else min(max(r["ts"], dt.datetime(2019, 11, 30)),
                                                              dt.datetime(2020, 2, 1, 12)).month),
    ("flag", lambda c, r: None if r["flag"] is None else int(r["flag"])),
    ("least(length(state), 3)", lambda c, r: 3 if r["state"] is None else len(r["state"])),
    ("greatest(least(TRY_CAST(txt AS INTEGER), 5), 0)", lambda c, r: 5),
    ("CAST(age >= 18 AS INTEGER)", lambda c, r: None if r["age"] is None else int(r["age"] >= 18)),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "oracle"), SUMS, ids=[e for e, _ in SUMS])
@pytest.mark.few(every=2)
def test_sums_of_expressions_are_exact(expression: str, oracle: Oracle, con: duckdb.DuckDBPyConnection) -> None:
    sql = f"SELECT SUM({expression}), COUNT(*) FROM t WHERE big < 100 OR big IS NULL"
    total: Fraction | int = 0
    for row in ROWS:
        clamped = _clamped(row)
        if (row["big"] or 0) >= 100:
            continue
        try:
            value = oracle(clamped, row)
        except TypeError:  # a column of it is NULL
            value = None
        total += value or 0
    assert exact(sql, POLICY, con).answers[0] == total


def test_quotients_are_sums_of_doubles_on_a_grid(con: duckdb.DuckDBPyConnection) -> None:
    (found,) = exact("SELECT SUM(x / p) FROM t", POLICY, con).answers
    pairs = [(c["x"], c["p"]) for c in map(_clamped, ROWS)]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    # Bounds -2 to 6 in about 2^20 steps.
    assert abs(found - sum(ratios)) <= len(ratios) * Fraction(8, 2**20)


@pytest.mark.parametrize(
    ("expression", "words"),
    [("big + 1", "add lower and upper to tables.t.columns.big"), ("txt || 'x'", "SUM needs a number"),
     ("q / age", "NULLIF"), ("big * q", "tables.t.columns.big"), ("q + txt", "needs numbers"), ("year(d) * big", "big"),
     (" * ".join(["q"] * 30), "128 bits"), ("length(txt)", "LEAST(GREATEST"),
     ("TRY_CAST(txt AS INTEGER)", "LEAST(GREATEST"), ("TRY_CAST(upper(txt) AS INTEGER)", "LEAST(GREATEST"),
     ("year(TRY_CAST(txt AS DATE))", "LEAST(GREATEST"), ("TRY_CAST(CAST(big AS VARCHAR) AS INTEGER)", "columns.big")],
)  # fmt: skip
def test_sums_without_bounds_are_refused(expression: str, words: str, con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(SQLError) as caught:
        exact(f"SELECT SUM({expression}) FROM t", POLICY, con)
    assert words in str(caught.value)


OF_MOMENTS = [
    "date_diff('day', {a}, {b})",
    "epoch({b} - {a})",
    "year(coalesce({b}, {a}))",
    "CAST({b} AS DATE) - DATE '2024-01-01'",
    "date_diff('hour', {a}, {b} AT TIME ZONE 'Europe/Berlin')",
    "date_diff('minute', {b}, {b} AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Berlin')",
]


@pytest.mark.parametrize("expression", OF_MOMENTS)
@pytest.mark.parametrize(("kind", "zone"), [("TIMESTAMP", ""), ("TIMESTAMPTZ", "Z")])
@pytest.mark.few(every=3)
def test_sums_of_moments_need_bounds_and_keep_to_them(expression: str, kind: str, zone: str) -> None:
    first, last = f"2024-01-01T00:00:00{zone}", f"2024-03-31T00:00:00{zone}"
    moments = [f"2024-01-02T03:04:05.678{zone}", f"2024-03-30T01:30:00{zone}", first, last]
    outside = [f"2023-12-01T00:00:00{zone}", "-infinity", f"2024-05-01T00:00:00{zone}", "infinity"]
    pairs = zip(moments + outside, outside[::-1] + moments, strict=True)
    clamped = zip([*moments, first, first, last, last], [last, last, first, first, *moments], strict=True)
    held, kept = (", ".join(f"({kind} '{a}', {kind} '{b}')" for a, b in each) for each in (pairs, clamped))
    bounds, declared = f"{{ lower = {first}, upper = {last} }}", '[tables.t]\nunit = "row"\n[tables.t.columns]\n'
    sql = f"SELECT SUM({expression.format(a='a', b='b')}) FROM"
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = 'UTC'; CREATE TABLE t AS FROM (VALUES {held}, (NULL, NULL)) AS held(a, b)")
        with pytest.raises(SQLError, match=r"add lower and upper to tables\.t\.columns\.b in the policy"):
            exact(f"{sql} t", policy_of(f"{declared}a = {bounds}\nb = {{}}\n"), connection)
        (ours,) = exact(f"{sql} t", policy_of(f"{declared}a = {bounds}\nb = {bounds}\n"), connection).answers
        row = connection.execute(f"{sql} (VALUES {kept}) AS kept(a, b)").fetchone()
    assert row is not None
    assert float(ours) == row[0]


# The declared domains as conditions; NULL is in those that may have it.
DOMAIN = {
    "age": "age BETWEEN 0 AND 40 OR age IS NULL",
    "sex": "sex IN ('f', 'm')",
    "state": "state IN ('NY', 'NJ', 'CA') OR state IS NULL",
    "d": "d BETWEEN '2020-01-10' AND '2020-04-05' OR d IS NULL",
    "ts": "ts BETWEEN '2019-11-30' AND '2020-02-01 12:00:00' OR ts IS NULL",
    "p": "p BETWEEN 0.5 AND 40 OR p IS NULL",
    "x": "x BETWEEN -1 AND 3 OR x IS NULL",
}
# NaN is NULL wherever it is read.
CLEAN = "(SELECT * REPLACE (CASE WHEN NOT isnan(p) THEN p END AS p, CASE WHEN NOT isnan(x) THEN x END AS x) FROM t)"
BOTH = f"({DOMAIN['sex']}) AND ({DOMAIN['ts']})"

# (expression, the column whose declared domain its groups come from, or none)
KEYS = [
    ("age // 10", "age"),
    ("age % 7", "age"),
    ("floor(age / 10)", "age"),
    ("age >= 18", None),
    ("abs(age - 20)", "age"),
    ("CASE WHEN age < 18 THEN 'minor' WHEN age >= 40 THEN 'old' ELSE 'adult' END", None),
    ("CASE WHEN age < 18 THEN 1 WHEN flag THEN 2 END", None),
    ("CASE sex WHEN 'f' THEN 'x' WHEN 'm' THEN 'x' END", None),
    ("CASE WHEN flag THEN sex ELSE 'none' END", None),
    ("if(big > 0, 'high', 'low')", None),
    ("substr(sex, 1, 1)", "sex"),
    ("upper(sex)", "sex"),
    ("date_trunc('month', d)", "d"),
    ("month(d)", "d"),
    ("date_trunc('month', ts)", "ts"),
    ("CAST(ts AS DATE)", "ts"),
    ("year(ts)", "ts"),
    ("month(ts)", None),
    ("hour(ts)", None),
    ("dayofweek(ts)", None),
    ("extract('quarter' FROM ts)", None),
    ("big % 3", None),
    ("sign(big)", None),
    ("flag", None),
    ("flag AND age > 5", None),
    ("coalesce(state, 'none')", "state"),
    ("coalesce(flag, false)", None),
    ("age IS NULL", None),
    ("txt LIKE 'b%'", None),
    ("d > DATE '2020-02-01'", None),
    # Labels of time: on the pieces of the declared range, or all that there are.
    ("strftime(ts, '%Y-%m')", "ts"),
    ("strftime(d, '%B %Y')", "d"),
    ("strftime(ts, '%Y-%m-%d %H:00')", "ts"),
    ("monthname(ts)", "ts"),
    ("dayname(d)", "d"),
    ("dayname(ts)", "ts"),
    ("last_day(ts)", "ts"),
    ("time_bucket(INTERVAL '7 days', ts)", "ts"),
    ("strftime(time_bucket(INTERVAL 10 DAY, d), '%m/%d')", "d"),
    ("make_date(year(ts), month(ts), 1)", "ts"),
    ("year(ts) || '-Q' || quarter(ts)", "ts"),
    ("year(ts) * 100 + month(ts)", "ts"),
    ("date_diff('week', ts, TIMESTAMP '2020-06-01')", "ts"),
    ("2021 - year(d)", "d"),
    ("date_trunc('week', ts AT TIME ZONE 'UTC' AT TIME ZONE 'America/New_York')", "ts"),
    ("strftime(ts AT TIME ZONE 'Europe/Berlin' AT TIME ZONE 'Asia/Tokyo', '%Y-%m-%d')", "ts"),
    ("strftime(ts - INTERVAL 1 MONTH, '%Y-%m-%d')", "ts"),
    ("strftime(ts + INTERVAL 90 MINUTE, '%a')", "ts"),
    ("strftime(ts, '%H:%M')", None),
    # Numbers: rounded DOUBLEs between their bounds.
    ("floor(p)", "p"),
    ("round(p)", "p"),
    ("CAST(p AS INTEGER)", "p"),
    ("ceil(p / 10) * 10", "p"),
    ("trunc(x / -2)", "x"),
    ("CAST(floor(p / 4) AS INTEGER) || '+'", "p"),
    ("least(CAST(x AS INTEGER), 2)", "x"),
]
SEVERAL = [
    ("sex || year(ts)", BOTH),
    ("concat(sex, '/', strftime(ts, '%b'))", BOTH),
    ("q + age", "(q BETWEEN -3 AND 20 OR q IS NULL) AND (age BETWEEN 0 AND 40 OR age IS NULL)"),
]


@pytest.mark.parametrize(("expression", "column"), KEYS, ids=[e for e, _ in KEYS])
@pytest.mark.few(every=4)
def test_groups_of_expressions_are_duckdbs(expression: str, column: str | None, con: duckdb.DuckDBPyConnection) -> None:
    found = exact(f"SELECT {expression} AS k, COUNT(*) AS n FROM t GROUP BY k", POLICY, con).rows(0)
    has_other = column is not None and POLICY.tables["t"].columns[column].other
    inside = "TRUE" if column is None or has_other else DOMAIN[column]
    theirs = dict(
        con.execute(f"SELECT TRY({expression}) AS k, COUNT(*) FROM {CLEAN} WHERE {inside} GROUP BY 1").fetchall()
    )
    mine: dict[Any, Fraction] = {}
    others = Fraction(0)
    for key, count in found:
        kind, value = key
        if kind == "null" and value in mine:
            others = mine[value]  # OTHER stands before NULL, under the same label
        mine[value] = count
    if has_other:  # a row is in the group of its own value where a declared value gives it, else in OTHER
        others = others if [value for (_, value), _ in found].count(None) > 1 else mine.pop(None)
        theirs = {value: count for value, count in theirs.items() if value in mine}
        assert others == len(ROWS) - sum(theirs.values())
    assert {key: count for key, count in mine.items() if count} == theirs
    values = [key for key in mine if key is not None]
    if not any(word in expression for word in ("CASE", "if(", "coalesce", "name(", "strftime")):
        assert values == sorted(values)


MESSY = ["F", "f ", "M", "m", "U", "", "12", "(other)", " M", None, "F", None]
# Of messy texts the keys that the declared F and M give, and whether NULL is one of them.
OF_MESSY = [
    ("sex", ["F", "M"], True),
    ("upper(trim(sex))", ["F", "M"], True),
    ("nullif(sex, 'F')", ["M"], True),
    ("left(sex, 1)", ["F", "M"], True),
    ("sex || g", ["Fa", "Fb", "Ma", "Mb"], True),
    ("coalesce(upper(trim(sex)), 'none')", ["F", "M", "none"], False),
    ("CASE WHEN g = 'a' THEN 'x' ELSE upper(sex) END", ["x", "F", "M"], True),
    ("upper(sex) || '!'", ["F!", "M!"], True),
]


@pytest.mark.parametrize(("expression", "keys", "null"), OF_MESSY, ids=[e for e, _, _ in OF_MESSY])
def test_a_row_is_in_the_group_of_its_own_value(expression: str, keys: list[str], null: bool) -> None:
    """Beside WHERE in the same batch; what no declared value gives is one group, called as the policy says."""
    policy = policy_of("""[tables.t]\nunit = "row"\n[tables.t.columns]
        sex = { values = ["F", "M"], other = "(other)" }\ng = { values = ["a", "b"], nulls = false }""")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT UNNEST($1) AS sex, UNNEST($2) AS g", [MESSY, ["a", "b", "a"] * 4])
        sql = f"SELECT {expression} AS k, COUNT(*) AS n FROM t GROUP BY k"
        asked = [f"{expression} = '{key}'" for key in keys] + [f"{expression} IS NULL"]
        batch = ";".join([sql, *(f"SELECT COUNT(*) AS n FROM t WHERE {condition}" for condition in asked)])
        results = Pipeline.of(policy, connection).results(batch)
        grouped, counts = rows_of(results[0])[1], [rows_of(result)[1][0][0] for result in results[1:]]
        theirs = dict(connection.execute(sql).fetchall())
    assert counts == [theirs.get(key, 0) for key in (*keys, None)]
    left = len(MESSY) - sum(counts)
    expected = dict(zip([*keys, None], counts, strict=True)) | {"(other)": left}
    assert dict(grouped) == {key: count for key, count in expected.items() if null or key is not None}
    assert len(grouped) == len(keys) + 1 + null


def test_the_rest_is_in_the_group_of_its_name() -> None:
    policy = policy_of("""[tables.t]\nunit = "row"\n[tables.t.columns]
        sex = { values = ["F", "M"], other = "(other)" }""")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT UNNEST($1) AS sex", [MESSY])
        sql = "SELECT coalesce(trim(sex), '(other)') AS k, length(sex) AS n, COUNT(*) AS c FROM t GROUP BY ALL"
        (result,) = Pipeline.of(policy, connection).results(sql)
    names, rows = rows_of(result)
    assert names == ["k", "n", "n_other", "c"]
    assert {row for row in rows if row[-1]} == {
        *(("F", 1, False, 2.0), ("M", 1, False, 1.0), ("M", None, True, 1.0), ("(other)", 1, False, 2.0)),
        *(("(other)", None, True, 4.0), ("(other)", None, False, 2.0)),
    }


@pytest.mark.parametrize(("expression", "inside"), SEVERAL, ids=[e for e, _ in SEVERAL])
def test_groups_of_several_columns_are_duckdbs(expression: str, inside: str, con: duckdb.DuckDBPyConnection) -> None:
    found = exact(f"SELECT {expression} AS k, COUNT(*) AS n FROM t GROUP BY k", POLICY, con).rows(0)
    theirs = dict(con.execute(f"SELECT {expression} AS k, COUNT(*) FROM t WHERE {inside} GROUP BY 1").fetchall())
    assert {value: count for (_, value), count in found if count} == theirs


def test_labels_of_time_stand_in_its_order(con: duckdb.DuckDBPyConnection) -> None:
    found = exact("SELECT monthname(ts) AS k, COUNT(*) FROM t GROUP BY k", POLICY, con).rows(0)
    assert [value for (_, value), _ in found] == ["November", "December", "January", "February", None]


def test_a_clock_that_goes_back_has_each_hour_once(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "CREATE OR REPLACE TABLE moments AS SELECT unnest([TIMESTAMPTZ '2020-11-01 05:30:00+00',"
        " TIMESTAMPTZ '2020-11-01 06:30:00+00', TIMESTAMPTZ '2020-11-01 07:30:00+00']) AS tz"
    )
    policy = policy_of(
        '[tables.moments]\nunit = "row"\n[tables.moments.columns]\n'
        "tz = { lower = 2020-10-31T00:00:00Z, upper = 2020-11-02T00:00:00Z, nulls = false }\n"
    )
    local = "tz AT TIME ZONE 'America/New_York'"
    found = exact(f"SELECT strftime({local}, '%d %H') AS k, COUNT(*) FROM moments GROUP BY k", policy, con).rows(0)
    assert {value: int(count) for (_, value), count in found if count} == {"01 01": 2, "01 02": 1}


@pytest.mark.parametrize(
    ("expression", "words"),
    [("txt || 'x'", "no finite public groups"), ("big + 1", "tables.t.columns.big"),
     ("txt || q", "each of its columns"),
     ("x * 2", "no finite public groups"), ("lower(txt)", "tables.t.columns.txt"),
     ("big // 10", "no finite public groups"),
     ("CASE WHEN flag THEN txt ELSE 'x' END", "needs its groups declared"), ("p", "needs its groups declared")],
)  # fmt: skip
def test_groups_that_are_not_public_are_refused(expression: str, words: str, con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(SQLError) as caught:
        exact(f"SELECT {expression} AS k, COUNT(*) FROM t GROUP BY k", POLICY, con)
    assert words in str(caught.value)


def test_too_many_groups_are_refused(con: duckdb.DuckDBPyConnection) -> None:
    wide = Policy.parse('dataset = "w-1"\n[budget]\nepsilon = 1.0\n[tables.t]\nunit = "row"\n[tables.t.columns]\n'
                        "ts = { lower = 1900-01-01T00:00:00, upper = 2020-01-01T00:00:00 }\n")  # fmt: skip
    with pytest.raises(SQLError, match="more than 20,000 groups"):
        exact("SELECT date_trunc('hour', ts) AS k, COUNT(*) FROM t GROUP BY k", wide, con)


def test_width_bucket(con: duckdb.DuckDBPyConnection) -> None:
    found = exact("SELECT width_bucket(age, 0, 40, 4) AS k, COUNT(*) FROM t GROUP BY k", POLICY, con).rows(0)
    ages = [row["age"] for row in ROWS]
    wanted = {k: sum(a is not None and 0 <= a <= 40 and min(a // 10, 4) + 1 == k for a in ages) for k in range(1, 6)}
    assert {key[1]: count for key, count in found if key[1] is not None} == wanted
    found = exact("SELECT width_bucket(x, -1.0, 3.0, 2) AS k, COUNT(*) FROM t GROUP BY k", POLICY, con).rows(0)
    xs = [row["x"] for row in ROWS if row["x"] is not None and row["x"] == row["x"]]
    counts = dict.fromkeys(range(4), 0)
    for value in xs:
        counts[0 if value < -1 else 3 if value >= 3 else 1 + (value >= 1)] += 1
    assert {key[1]: count for key, count in found if key[1] is not None} == counts
    assert dict(found)["null", None] == len(ROWS) - len(xs)


@pytest.mark.parametrize(
    ("key", "nulls"),
    [("big < 40", False), ("big < 40 AND NOT q IN (3, 4)", True), ("age < 40 OR big = 3", True), ("age IS NULL", False),
     ("big BETWEEN 1 AND 20 OR age IS NULL", False), ("big IN (1, NULL)", True), ("big % 7 = 3", False),
     ("big // big > 0", True), ("CASE WHEN big > 9 THEN 'a' WHEN big <= 9 THEN 'b' END", False),
     ("CASE WHEN q > 3 THEN 1 WHEN q <= 3 THEN 0 END", True), ("CASE WHEN big > 9 THEN 'a' END", True)],
)  # fmt: skip
def test_a_condition_has_a_null_group_only_where_it_can_be_null(key: str, nulls: bool) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (big INTEGER, q INTEGER, age INTEGER)")
    declared = "big = { lower = 0, upper = 90, nulls = false }\nq = { lower = 0, upper = 9 }\nage = {}"
    policy = policy_of(f'[tables.t]\nunit = "row"\n[tables.t.columns]\n{declared}')
    found = exact(f"SELECT {key} AS k, COUNT(*) AS n FROM t GROUP BY k", policy, con).rows(0)
    assert (("null", None) in [group for group, _ in found]) == nulls


def test_refusals_name_the_aggregate_that_was_asked(con: duckdb.DuckDBPyConnection) -> None:
    for aggregate in ("AVG", "STDDEV", "VAR_POP"):
        with pytest.raises(SQLError, match=rf"^{aggregate}\(big\) needs bounds"):
            exact(f"SELECT {aggregate}(big) FROM t", POLICY, con)
