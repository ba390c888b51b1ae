"""Adversarial rows of every type, and random expressions over them, for tests of the expression language."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import duckdb
import sqlglot
from helpers import policy_of
from sqlglot import exp

from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.relations import Relation
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope, uncapped_table
from dpsql.workloads.expr.batch import Table

TYPES = {
    "i8": "TINYINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "i128": "HUGEINT",
    "u8": "UTINYINT",
    "u64": "UBIGINT",
    "dec": "DECIMAL(9,2)",
    "wide": "DECIMAL(38,10)",
    "f64": "DOUBLE",
    "txt": "VARCHAR",
    "enm": "ENUM('zeta', 'alpha', 'Ä', '', 'a%_')",
    "flag": "BOOLEAN",
    "d": "DATE",
    "d2": "DATE",
    "ts": "TIMESTAMP",
    "tz": "TIMESTAMP WITH TIME ZONE",
}
_DAYS = ["'1970-01-01'", "'2020-02-29'", "'infinity'", "'-infinity'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'",
         "'0044-03-15 (BC)'"]  # fmt: skip
_TIMES = ["'1970-01-01 00:00:00'", "'2020-02-29 12:34:56.789012'", "'infinity'", "'-infinity'", "'0001-01-01 00:00:00'",
          "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'"]  # fmt: skip
# Where DuckDB's own functions begin to fail: no row may raise, but values are NULL there.
_FAR = {
    "d": ["'5881580-07-10'", "'5877642-06-25 (BC)'", "'200000-01-02'"],
    "ts": ["'294247-01-10 04:00:54.775806'", "'290309-12-22 (BC) 00:00:00'"],
}
_FAR["d2"] = _FAR["d"]
VALUES: dict[str, list[str]] = {
    "i8": ["-128", "127", "0", "1", "-1", "5"],
    "i32": [f"{-(2**31)}", f"{2**31 - 1}", "0", "1", "-7", "100"],
    "i64": [f"{-(2**63)}", f"{2**63 - 1}", "0", "1", "-1", "12345678901"],
    "i128": [f"{-(2**127)}", f"{2**127 - 1}", "0", "1", "-1", f"{10**30}"],
    "u8": ["0", "255", "1", "7"],
    "u64": ["0", f"{2**64 - 1}", "1", "3"],
    "dec": ["0", "-0.01", "0.01", "9999999.99", "-9999999.99", "1.50", "2.50", "-2.5", "0.05"],
    "wide": ["0", "0.0000000001", f"{'9' * 28}.{'9' * 10}", f"-{'9' * 28}.{'9' * 10}", "-1.5", "2.5"],
    "f64": ["'nan'", "'inf'", "'-inf'", "0.0", "'-0.0'", "1.5", "-7.5", "1e-300", "'5e-324'", "1e308", "-1e308", "2.5",
            "0.1"],
    "txt": ["''", "'a'", "'A b'", "'äÄß'", "'日本'", "' x '", "'12'", "'-7.5'", "'2020-02-29'", "'HIV+'", "'true'"],
    "enm": ["'zeta'", "'alpha'", "'Ä'", "''"],
    "flag": ["true", "false"],
    "d": _DAYS,
    "d2": _DAYS,
    "ts": _TIMES,
    "tz": _TIMES,
}  # fmt: skip


@functools.cache
def rows() -> tuple[duckdb.DuckDBPyConnection, frozenset[int]]:
    """A connection with the adversarial rows as table t (id and TYPES), and the ids of rows with far dates."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.execute(f"CREATE TABLE t (id INTEGER, {', '.join(f'{c} {k}' for c, k in TYPES.items())})")
    rng = random.Random(5)
    longest = max(map(len, VALUES.values()))
    written, far = [], set()
    for number in range(50):
        row = []
        for column, kind in TYPES.items():
            held = VALUES[column]
            value: str | None = held[number % len(held)] if number < longest else rng.choice(held)
            if number == longest or (number > longest and rng.random() < 0.12):
                value = None
            elif number >= 40 and column in _FAR:
                value = rng.choice(_FAR[column])
                far.add(number)
            row.append("NULL" if value is None else f"({value})::{kind}")
        written.append(f"({number}, {', '.join(row)})")
    con.execute(f"INSERT INTO t VALUES {', '.join(written)}")
    return con, frozenset(far)


def table_with(declared: str = "") -> Table:
    """The table t by a policy that declares every column, or the columns that ``declared`` (TOML) says."""
    listed = declared or "\n".join(f"{column} = {{}}" for column in TYPES)
    policy = policy_of(f'[tables.t]\nunit = "row"\n[tables.t.columns]\n{listed}\n')
    return uncapped_table(policy.tables["t"], TYPES)


def scope_of(table: Table) -> Scope:
    """A scope of one statement over the table."""
    rows = RowScope.alone(Relation(table.name, table, exp.to_table(table.name)))
    return Scope(rows.find, Computed(table), truth)


def parsed(text: str) -> exp.Expr:
    """An SQL expression as a tree."""
    return sqlglot.parse_one(f"SELECT {text}", dialect="duckdb").expressions[0]


Make = Callable[[random.Random, int], str]


def _pick(rng: random.Random, *ways: Callable[[], str]) -> str:
    return rng.choice(ways)()


def whole(rng: random.Random, depth: int) -> str:
    """A random expression of whole numbers."""
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(["i8", "i32", "i64", "u8", "u64", "i128", "0", "1", "2", "3", "7", "-1", "-2", "100"])
    a, b, less = whole(rng, depth - 1), whole(rng, depth - 1), depth - 1
    unit = rng.choice(["day", "month", "year", "week", "quarter"])
    return _pick(
        rng,
        lambda: f"({a} {rng.choice(['+', '-', '*', '//', '%'])} {b})",
        lambda: f"({a} {rng.choice(['+', '-', '*', '//', '%'])} {b})",
        lambda: f"(- {a})",
        lambda: f"abs({a})",
        lambda: f"sign({number(rng, less)})",
        lambda: f"{rng.choice(['greatest', 'least', 'coalesce', 'nullif'])}({a}, {b})",
        lambda: f"CASE WHEN {condition(rng, less)} THEN {a} {rng.choice(['', f'ELSE {b} '])}END",
        lambda: f"if({condition(rng, less)}, {a}, {b})",
        lambda: part(rng, less),
        lambda: f"length({text(rng, less)})",
        lambda: f"strpos({text(rng, less)}, 'a')",
        lambda: f"TRY_CAST({number(rng, less)} AS {rng.choice(['INTEGER', 'BIGINT', 'TINYINT', 'UINTEGER'])})",
        lambda: f"{rng.choice(['TRY_CAST', 'CAST'])}({text(rng, less)} AS INTEGER)",
        lambda: f"CAST({condition(rng, less)} AS INTEGER)",
        lambda: f"round({a}{rng.choice(['', ', -1'])})",
        lambda: "(d - d2)",
        lambda: f"date_diff('{unit}', {day(rng, less)}, {day(rng, less)})",
        lambda: f"date_diff('{rng.choice(['hour', 'second', unit])}', {moment(rng, less)}, {moment(rng, less)})",
    )


def part(rng: random.Random, depth: int) -> str:
    """A random part of a date or time."""
    if rng.random() < 0.3:
        return f"extract({rng.choice(['hour', 'minute', 'second', 'year', 'doy'])} FROM {moment(rng, depth)})"
    name = rng.choice(["year", "month", "day", "quarter", "dayofweek", "isodow", "dayofyear", "week", "isoyear",
                       "decade", "century", "millennium", "yearweek"])  # fmt: skip
    return f"{name}({rng.choice([day(rng, depth), moment(rng, depth), 'tz'])})"


def decimal(rng: random.Random, depth: int) -> str:
    """A random expression of decimals."""
    if depth <= 0 or rng.random() < 0.3:
        return rng.choice(["dec", "dec", "wide", "1.5", "0.25", "-2.75"])
    pair = [decimal(rng, depth - 1), rng.choice([decimal, whole])(rng, depth - 1)]
    rng.shuffle(pair)
    a, b = pair
    return _pick(
        rng,
        lambda: f"({a} {rng.choice('+-*%')} {b})",
        lambda: f"{rng.choice(['abs', 'round'])}({a})",
        lambda: f"{rng.choice(['floor', 'ceil', 'trunc'])}(dec)",
        lambda: "round(dec, 1)",
        lambda: f"{rng.choice(['greatest', 'coalesce'])}({a}, {b})",
        lambda: f"TRY_CAST({number(rng, depth - 1)} AS DECIMAL(12,3))",
        lambda: f"CASE WHEN {condition(rng, depth - 1)} THEN {a} ELSE {b} END",
        lambda: f"(- {a})",
    )


def real(rng: random.Random, depth: int) -> str:
    """A random expression of doubles."""
    if depth <= 0 or rng.random() < 0.3:
        return rng.choice(["f64", "f64", "1e0", "-2.5e0", "1e300"])
    pair = [real(rng, depth - 1), number(rng, depth - 1)]
    rng.shuffle(pair)
    a, b = pair
    return _pick(
        rng,
        lambda: f"({a} {rng.choice('+-*/%')} {b})",
        lambda: f"({a} {rng.choice('+-*/%')} {b})",
        lambda: f"{rng.choice(['abs', 'floor', 'round', 'trunc'])}(f64)",
        lambda: "round(f64, 2)",
        lambda: f"ceil({real(rng, depth - 1)})",
        lambda: f"greatest({a}, {b})",
        lambda: f"CAST({number(rng, depth - 1)} AS DOUBLE)",
        lambda: f"TRY_CAST({text(rng, depth - 1)} AS DOUBLE)",
        lambda: f"CASE WHEN {condition(rng, depth - 1)} THEN {a} ELSE {b} END",
        lambda: f"{rng.choice(['sqrt', 'ln', 'exp', 'cbrt', 'log2'])}({a})",
        lambda: f"pow({a}, {rng.choice(['2', '-1', '0.5', b])})",
        lambda: "(i32 / i8)",
        lambda: "floor(i32)",
    )


def number(rng: random.Random, depth: int) -> str:
    """A random number."""
    return rng.choice([whole, whole, decimal, real])(rng, depth)


def day(rng: random.Random, depth: int) -> str:
    """A random date."""
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(["d", "d2", "DATE '2020-01-31'"])
    return _pick(
        rng,
        lambda: f"({day(rng, depth - 1)} {rng.choice(['+ 1', '+ -3', '+ 400', '- 7'])})",
        lambda: f"CAST({moment(rng, depth - 1)} AS DATE)",
        lambda: f"TRY_CAST({text(rng, depth - 1)} AS DATE)",
        lambda: f"coalesce({day(rng, depth - 1)}, {day(rng, depth - 1)})",
        lambda: "CAST(tz AS DATE)",
        lambda: f"make_date({whole(rng, depth - 1)}, {part(rng, depth - 1)}, {rng.choice(['i8', '29', '31'])})",
    )


def moment(rng: random.Random, depth: int) -> str:
    """A random timestamp."""
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(["ts", "ts", "TIMESTAMP '2020-03-01 10:00:00'"])
    inner = rng.choice([day, moment])(rng, depth - 1)
    unit = rng.choice(["year", "month", "day", "hour", "week", "quarter", "minute", "decade", "century", "millennium"])
    span = rng.choice(["1 DAY", "3 MONTH", "2 YEAR", "5 HOUR", "1 WEEK"])
    return _pick(
        rng,
        lambda: f"date_trunc('{unit}', {inner})",
        lambda: f"({inner} {rng.choice('+-')} INTERVAL {span})",
        lambda: f"CAST({day(rng, depth - 1)} AS TIMESTAMP)",
        lambda: "CAST(tz AS TIMESTAMP)",
        lambda: f"strptime({text(rng, depth - 1)}, '%Y-%m-%d')",
    )


def text(rng: random.Random, depth: int) -> str:
    """A random text."""
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(["txt", "txt", "'ab'", "enm"])
    a = text(rng, depth - 1)
    return _pick(
        rng,
        lambda: f"{rng.choice(['lower', 'upper', 'trim', 'ltrim', 'rtrim'])}({a})",
        lambda: f"substr({a}, {rng.choice([1, 0, -2, 3])}, {rng.choice([1, 2, -1, 0])})",
        lambda: f"substr({a}, 2)",
        lambda: f"{rng.choice(['left', 'right'])}({a}, {rng.choice([1, -1, 0, 5])})",
        lambda: f"trim({a}, 'x')",
        lambda: f"split_part({a}, {rng.choice(['b', ' ', 'a'])!r}, {rng.choice([1, 2, 3])})",
        lambda: f"replace({a}, 'a', {rng.choice(['', 'bb'])!r})",
        lambda: f"regexp_extract({a}, '([a-z]+)(.)', {rng.choice([0, 1, 2])})",
        lambda: f"regexp_replace({a}, '[^0-9]', {rng.choice(['', 'x'])!r}, 'g')",
        lambda: f"({a} || {text(rng, depth - 1)})",
        lambda: f"{rng.choice(['concat', 'coalesce', 'greatest'])}({a}, {text(rng, depth - 1)})",
        lambda: f"CAST({rng.choice([whole(rng, depth - 1), 'd'])} AS VARCHAR)",
    )


_CONSTANTS: dict[Make, list[str]] = {
    whole: ["0", "3", "-7", "100", "2.5", "9223372036854775807"],
    decimal: ["0", "2.5", "0.05", "-7"],
    real: ["0", "1.5", "-7.5", "1e300", "0.1"],
    day: ["DATE '2020-01-31'", "DATE '2020-01-01' + 7"],
    moment: ["TIMESTAMP '2020-03-01 10:00:00'", "DATE '2019-01-01' + INTERVAL 1 YEAR"],
    text: ["'a'", "'ab'", "'ä'", "''"],
}


def condition(rng: random.Random, depth: int) -> str:
    """A random condition."""
    kind = rng.random()
    if depth > 0 and kind < 0.2:
        return f"({condition(rng, depth - 1)} {rng.choice(['AND', 'OR'])} {condition(rng, depth - 1)})"
    if depth > 0 and kind < 0.28:
        return f"NOT ({condition(rng, depth - 1)})"
    make = rng.choice([whole, whole, decimal, real, day, moment, text])
    a, c = make(rng, max(depth - 1, 0)), rng.choice(_CONSTANTS[make])
    operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    if kind < 0.35:
        return f"({a}) IS {rng.choice(['', 'NOT '])}NULL"
    if make is text and kind < 0.5:
        return rng.choice([f"regexp_matches({a}, '^[a-z]')", f"{a} SIMILAR TO '.*[0-9]'", f"{a} LIKE '%!_' ESCAPE '!'",
                           f"starts_with({a}, 'a')", f"contains({a}, 'b')", f"ends_with({a}, 'b')", f"{a} LIKE 'a%'",
                           f"{a} ILIKE '%A%'", f"{a} NOT LIKE '_'"])  # fmt: skip
    if make is real and kind < 0.5:
        return f"{rng.choice(['isnan', 'isinf'])}({a})"
    if kind < 0.55:
        return f"{a} {operator} {make(rng, max(depth - 1, 0))}"
    if kind < 0.62:
        return f"{a} {rng.choice(['', 'NOT '])}IN ({c}, {rng.choice(_CONSTANTS[make])})"
    if kind < 0.68:
        return f"{a} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {c}"
    if kind < 0.74:
        return f"{a} BETWEEN {c} AND {rng.choice(_CONSTANTS[make])}"
    return f"{a} {operator} {c}"


KINDS: tuple[Make, ...] = (whole, decimal, real, day, moment, text, condition)
