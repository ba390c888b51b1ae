"""Thousands of random conditions over adversarial rows: DuckDB's count against the pipeline's exact count."""

from __future__ import annotations

import random

import duckdb
import pytest
from helpers import Exact, engine_of, exact, policy_of, tables_of, understood

from dpsql.errors import SQLError

TYPES = {
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "i128": "HUGEINT",
    "u8": "UTINYINT",
    "u16": "USMALLINT",
    "u32": "UINTEGER",
    "u64": "UBIGINT",
    "u128": "UHUGEINT",
    "dec": "DECIMAL(9,2)",
    "wide": "DECIMAL(38,10)",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "txt": "VARCHAR",
    "enm": "ENUM('zeta', 'alpha', 'Ä', '', 'a%_')",
    "flag": "BOOLEAN",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "tz": "TIMESTAMPTZ",
}
INTEGERS = {"i8": (8, True), "i16": (16, True), "i32": (32, True), "i64": (64, True), "i128": (128, True)}
INTEGERS |= {"u8": (8, False), "u16": (16, False), "u32": (32, False), "u64": (64, False), "u128": (128, False)}

FLOATS = ["'nan'", "'inf'", "'-inf'", "0.0", "'-0.0'", "1.5", "-7.5", "1e-300", "0.1", "'5e-324'", "1e30", "100",
          "0.3"]  # fmt: skip
TEXTS = ["", "a", "A", "ab", "abc", "b", "ä", "Ä", "日本", "😀", "a%", "a_b", "axb", "a.b", "a\\b", "it''s", "[x]",
         "a*", "\U0010ffff", "a\nb"]  # fmt: skip
DAYS = ["1970-01-01", "2020-02-29", "infinity", "-infinity", "0001-01-01", "9999-12-31", "2020-03-01", "1969-12-31"]
TIMES = ["1970-01-01 00:00:00", "2020-02-29 12:00:00.000001", "infinity", "-infinity", "0001-01-01 00:00:00",
         "9999-12-31 23:59:59.999999", "2020-02-29 12:00:00", "1969-12-31 23:59:59.999999"]  # fmt: skip


def _integers(name: str) -> list[int]:
    bits, signed = INTEGERS[name]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = [low, low + 1, high - 1, high, 0, 1, 2, 3, 5, 7, 100]
    return near + ([-1, -2, -100] if signed else [])


def _values(name: str) -> list[str]:
    """SQL literals of adversarial values of a column."""
    if name in INTEGERS:
        found = [f"{v}" for v in _integers(name)]
    elif name == "dec":
        found = ["0", "-0.01", "0.01", "9999999.99", "-9999999.99", "1.50", "2", "0.1"]
    elif name == "wide":
        found = ["0", "1e-10::DECIMAL(38,10)", "9999999999999999999999999999.9999999999", "-1.5", "0.1", "2"]
    elif name in {"f32", "f64"}:
        found = [v if name == "f64" or v not in {"1e-300", "'5e-324'"} else "0.2" for v in FLOATS]
    elif name == "txt":
        found = [f"'{v}'" for v in TEXTS]
    elif name == "enm":
        found = ["'zeta'", "'alpha'", "'Ä'", "''", "'a%_'"]
    elif name == "flag":
        found = ["TRUE", "FALSE"]
    else:
        found = [f"'{v}'" for v in (DAYS if name == "day" else TIMES)]
    return [f"({v})::{TYPES[name]}" for v in found] + [f"NULL::{TYPES[name]}"]


def _constant(name: str, rng: random.Random) -> str:
    """A constant to compare the column with, in one of the spellings that are admitted."""
    if rng.random() < 0.05:
        return "NULL"
    if name in INTEGERS:
        value = rng.choice(_integers(name)) + rng.choice([0, 0, 0, 1, -1])
        # DuckDB refuses constants that its cast of the column cannot hold; dpsql compares them exactly.
        bits, signed = INTEGERS[name]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        value = min(max(value, low), high)
        if bits < 64 and rng.random() < 0.2:
            return f"{value}.5"
        return f"({value} + 0)" if bits < 64 and rng.random() < 0.1 else f"{value}"
    if name == "dec":
        return rng.choice(["0", "0.01", "-0.01", "0.005", "1.5", "9999999.99", "9999999", "-9999999.99", "2", "-3"])
    if name == "wide":
        return rng.choice(["0", "0.0000000001", "-1.5", "0.1", "2", "9999999999999999999999999999.9999999999"])
    if name == "f32":
        return rng.choice(["0", "0.1", "1e-1", "1.5", "-7.5", "0.3", "100", "1e300", "-1e300", "0.2", "2e-1"])
    if name == "f64":
        return rng.choice(["0", "0.1", "1e-1", "1.5", "-7.5", "1e-300", "100", "1e300", "-0.0", "-1e308", "0.3"])
    if name == "txt":
        return "'" + rng.choice(TEXTS) + "'"
    if name == "enm":
        return rng.choice(["'zeta'", "'alpha'", "'Ä'", "''", "'b'"])
    if name == "flag":
        return rng.choice(["TRUE", "FALSE"])
    finite = [v for v in (DAYS if name == "day" else TIMES) if "inf" not in v]
    if name == "day":
        spelt = rng.choice(["DATE '{0}'", "'{0}'", "'{0}'::DATE", "CAST('{0}' AS DATE)", "TIMESTAMP '{0} 00:00:01'"])
    elif name == "ts":
        spelt = rng.choice(["TIMESTAMP '{0}'", "'{0}'", "'{0}'::TIMESTAMP"])
    else:
        spelt = rng.choice(["TIMESTAMPTZ '{0}+00'", "'{0}+00'::TIMESTAMPTZ", "'{0}+00'"])
    return spelt.format(rng.choice(finite))


def _pattern(rng: random.Random) -> str:
    return rng.choice(["a%", "%", "_", "%b", "a_b", "a.b", "%.%", "", "ä%", "日_", "__", "%%", "a\\%", "[x]", "a*", "a",
                       "it''s", "%''%", "\U0010ffff%", "A%", "_%", "%a%b%", "a%_"])  # fmt: skip


def atom(columns: list[str], rng: random.Random) -> str:
    """One random condition over one column, or two of one type."""
    name = rng.choice(columns)
    kind = rng.random()
    if kind < 0.08:
        return f"{name} IS {rng.choice(['', 'NOT '])}NULL"
    if name == "flag" and kind < 0.5:
        return rng.choice(["flag", "NOT flag", "flag IS TRUE", "flag IS NOT FALSE", "flag IS NOT TRUE"])
    if name in {"txt", "enm"} and kind < 0.5:
        return f"{name} {rng.choice(['', 'NOT '])}LIKE '{_pattern(rng)}'"
    if kind < 0.2:
        low, high = _constant(name, rng), _constant(name, rng)
        return f"{name} {rng.choice(['', 'NOT '])}BETWEEN {low} AND {high}"
    if kind < 0.4:
        listed = ", ".join(_constant(name, rng) for _ in range(rng.randint(1, 4)))
        return f"{name} {rng.choice(['', 'NOT '])}IN ({listed})"
    if kind < 0.5:
        return f"{name} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {_constant(name, rng)}"
    operator = rng.choice(["=", "<>", "<", "<=", ">", ">=", "!=", "=="])
    if kind < 0.6:
        return f"{_constant(name, rng)} {operator} {name}"
    return f"{name} {operator} {_constant(name, rng)}"


def condition(columns: list[str], rng: random.Random, depth: int) -> str:
    """A random Boolean combination, with redundant parentheses and IS on conditions."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return atom(columns, rng)
    if kind < 0.4:
        return f"NOT ({condition(columns, rng, depth - 1)})"
    if kind < 0.5:
        wanted = rng.choice(["TRUE", "FALSE", "NULL", "NOT TRUE", "NOT FALSE", "NOT NULL"])
        return f"({condition(columns, rng, depth - 1)}) IS {wanted}"
    parts = [condition(columns, rng, depth - 1) for _ in range(rng.randint(2, 3))]
    joined = f" {rng.choice(['AND', 'OR'])} ".join(parts)
    return f"({joined})" if rng.random() < 0.5 else joined


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    """160 rows in which every adversarial value of every column occurs."""
    rng = random.Random(20)
    con = duckdb.connect()
    con.execute("CREATE TABLE t (" + ", ".join(f"{n} {t}" for n, t in TYPES.items()) + ", i33 INTEGER, t2 VARCHAR)")
    pools = {name: _values(name) for name in TYPES}
    pools["i33"], pools["t2"] = pools["i32"], pools["txt"]
    rows = [
        "(" + ", ".join(pool[k % len(pool)] if k < 40 else rng.choice(pool) for pool in pools.values()) + ")"
        for k in range(160)
    ]
    con.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
    return con


POLICY = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\n' + "".join(f"{n} = {{}}\n" for n in TYPES)
                   + "i33 = {}\nt2 = {}\n")  # fmt: skip


# NaN is NULL wherever it is read.
CLEAN = (
    f"(SELECT * REPLACE ({', '.join(f'CASE WHEN NOT isnan({n}) THEN {n} END AS {n}' for n in ('f32', 'f64'))}) FROM t)"
)


def _compare(database: duckdb.DuckDBPyConnection, conditions: list[str]) -> None:
    # FILTER asks DuckDB the same question many times in one scan.
    listed = ", ".join(f"count(*) FILTER (WHERE {c})" for c in conditions)
    wanted = database.execute(f"SELECT {listed} FROM {CLEAN}").fetchone()
    forms = [
        "SELECT COUNT(*) FROM t WHERE {}",
        "SELECT COUNT_IF({}) FROM t",
        "SELECT COUNT(*) FILTER (WHERE {}) FROM t",
    ]
    batch = ";\n".join(forms[i % 3].format(c) for i, c in enumerate(conditions))
    found: Exact = exact(batch, POLICY, database)
    wrong = [(c, w, f) for c, w, f in zip(conditions, wanted, found.answers, strict=True) if w != f]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.few(every=10)
def test_conditions_over_one_column(database: duckdb.DuckDBPyConnection, name: str) -> None:
    rng = random.Random(f"one {name}")
    columns = [name]
    _compare(database, [condition(columns, rng, 2) for _ in range(70)])


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 8))])
@pytest.mark.few("0")
def test_conditions_over_three_columns(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    rng = random.Random(f"three {seed}")
    columns = rng.sample([n for n in TYPES if n != "txt"], 3)
    _compare(database, [condition(columns, rng, 3) for _ in range(60)])


@pytest.mark.parametrize(
    ("left", "right"),
    [("i32", "i33"), ("i8", "i64"), ("i64", "u64"), ("i128", "u64"), ("u8", "u128"), ("txt", "t2"), ("i32", "i32"),
     ("u64", "u128"), ("i128", "i8"), ("f64", "f64"), ("f32", "f32"), ("ts", "ts"), ("day", "day"), ("wide", "wide")],
)  # fmt: skip
@pytest.mark.few(every=8)
def test_two_columns_compared(database: duckdb.DuckDBPyConnection, left: str, right: str) -> None:
    pairs = [f"{left} {operator} {right}" for operator in ["=", "<>", "<", "<=", ">", ">="]]
    conditions = pairs + [f"NOT ({p})" for p in pairs] + [f"({p}) IS NULL" for p in pairs]
    conditions += [f"{pairs[2]} OR {left} IS NULL", f"{pairs[0]} AND {right} IS NOT NULL"]
    _compare(database, conditions)


def test_precedence_is_that_of_duckdb(database: duckdb.DuckDBPyConnection) -> None:
    _compare(
        database,
        [
            "i32 = 1 IS NULL",
            "i32 > 1 IS FALSE",
            "i32 > 1 IS NOT TRUE",
            "i32 = 1 OR i32 > 2 AND flag",
            "flag OR flag AND NOT flag",
            "NOT flag AND flag OR flag IS NULL",
            "NOT i32 = 1 AND flag",
            "NOT flag IS NULL",
            "NOT flag IS TRUE OR flag",
            "i32 BETWEEN 1 AND 3 AND flag",
            "NOT i32 BETWEEN 1 AND 3 OR flag",
            "i32 NOT BETWEEN 1 AND 3 IS NULL",
            "i32 IN (1, 2) IS NOT TRUE",
            "txt LIKE 'a%' IS NULL",
            "NOT txt LIKE 'a%' AND flag",
            "i32 IS DISTINCT FROM 1 AND flag",
            "- 1 < i32",
            "i32 < - 1 + 3 * 2",
            "NULL IS NULL",
            "flag = TRUE",
            "flag <> FALSE",
            "flag < TRUE",
            "flag IN (TRUE, NULL)",
            "NULL",
            "TRUE AND NULL",
            "FALSE AND NULL",
            "NOT (NULL OR flag)",
        ],
    )


@pytest.mark.long
def test_doubles_beside_exact_columns() -> None:
    """What is not refused is answered as DuckDB answers it, which casts these columns to DOUBLE."""
    con = duckdb.connect()
    near = [2**53 + k for k in range(-3, 4)]
    values = ", ".join(
        f"({k % 100}, {v}, {v if k % 2 else -v}, {k % 40 - 20}::DECIMAL(9,2) / 10, {v}.{k % 10}::DECIMAL(38,10))"
        for k, v in enumerate([*near, 2**63 - 1, 2**63 - 2, 0, 1, 3, 10**15, 10**15 + 1] * 3)
    )
    con.execute("CREATE TABLE t (a INTEGER, b BIGINT, h HUGEINT, d DECIMAL(9,2), w DECIMAL(38,10))")
    con.execute(f"INSERT INTO t VALUES {values}")
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\n' + "".join(f"{n} = {{}}\n" for n in "abhdw"))
    constants = ["1e0", "-1e0", "0e0", "3.5e0", "9007199254740991e0", "9007199254740992e0", "9007199254740993",
                 "9223372036854775808e0", "1e30", "-1e30", "1e-1", "0.3", "2", "1e15", "9.3e18",
                 "0.3000000000000000000000000000000000000000001"]  # fmt: skip
    forms = [f"{{0}} {operator} {{1}}" for operator in ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM"]]
    forms += ["{0} IN ({1}, {2})", "{0} BETWEEN {1} AND {2}", "{0} NOT BETWEEN {2} AND {1}"]
    rng = random.Random(3)
    refused = 0
    answered: dict[str, list[str]] = {}
    tables = tables_of(policy, engine_of(con))
    for name in "abhdw":
        for constant in constants:
            for form in rng.sample(forms, 5):
                condition = form.format(name, constant, rng.choice(constants))
                try:
                    understood(f"SELECT COUNT(*) FROM t WHERE {condition}", policy, tables)
                except SQLError:
                    refused += 1
                else:
                    answered.setdefault(name, []).append(condition)
    for conditions in answered.values():  # a batch for each column: together they have cells by the hundred thousand
        listed = ", ".join(f"count(*) FILTER (WHERE {c})" for c in conditions)
        wanted = con.execute(f"SELECT {listed} FROM t").fetchone()
        found = exact("; ".join(f"SELECT COUNT(*) FROM t WHERE {c}" for c in conditions), policy, con)
        assert [(c, w) for c, w, f in zip(conditions, wanted, found.answers, strict=True) if w != f] == []
    assert sum(map(len, answered.values())) > 150
    assert refused > 50
