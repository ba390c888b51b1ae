"""Every admitted function and cast, on values at all edges: Spark's result is DuckDB's."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
from expression_language import KINDS, parsed, scope_of
from helpers import policy_of
from spark_tables import carry

from dpsql.errors import NotSupportedError, SQLError
from dpsql.extensions.spark import layers
from dpsql.extensions.spark.engine import Source, _select
from dpsql.extensions.spark.session import private_session
from dpsql.extensions.spark.values import date_constant, moment_constant, string
from dpsql.sql.values.comparisons import fits
from dpsql.sql.values.expressions import value_of
from dpsql.sql.values.scope import uncapped_table
from dpsql.workloads.expr import scan
from dpsql.workloads.expr.batch import Table
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import render
from dpsql.workloads.expr.values import Constant, Like, Name, Numbers, Value, bare

pytestmark = pytest.mark.spark

TEXTS = ["", " ", "a", "A", "a ", " a", "ab", "aXb", "Äa", "ß", "İi", "ΑΣ", "日本語", "😀a", "it's", "\\", "a\\_b", "%",
         "a%b", "\t", "\u00a0x\u2003", "e\u0301", "\ud7ff", "\U0010ffff", "${x}", "a\nb", "x" * 100, None]  # fmt: skip
DOUBLES = [0.0, -0.0, 5e-324, -5e-324, 0.49999999999999994, 0.5, -0.5, 1.5, 2.5, -2.5, 4503599627370495.5,
           4503599627370497.0, 9007199254740993.0, -9007199254740993.0, 9.223372036854775e18, 9.3e18, -9.3e18, 1e300,
           math.inf, -math.inf, math.nan, 0.1, -3.7, 126.5, 127.5, None]  # fmt: skip
DAYS = ["1969-12-31", "1970-01-01", "2000-02-29", "1900-02-28", "2020-12-31", "2021-01-03", "0001-01-01", "9999-12-31",
        "0001-12-31 (BC)", "0001-01-01 (BC)", "0401-03-01 (BC)", "200001-01-01", "150000-06-30", "190000-02-28 (BC)",
        "2005-01-01", "2008-12-29", None]  # fmt: skip
TIMES = ["1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2021-03-28 01:30:00", "2021-03-28 02:30:00",
         "2021-10-31 02:30:00.5", "2000-02-29 12:34:56.789", "0001-01-01 00:00:00", "0044-03-15 (BC) 11:00:00.25",
         "9999-12-31 23:59:59.999999", "180000-12-31 23:59:59", None]  # fmt: skip
LONGS = [0, 1, -1, 7, 10, -10, 2**31 - 1, -(2**31), 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]
DECIMALS = ["0", "0.01", "-0.01", "9999999999999.99", "-9999999999999.99", "1.10", "123456.78", None]


TYPES = {
    **{"i8": "TINYINT", "i16": "SMALLINT", "i32": "INTEGER", "i64": "BIGINT", "j64": "BIGINT", "flag": "BOOLEAN"},
    **{"txt": "VARCHAR", "enm": "VARCHAR", "f64": "DOUBLE", "single": "FLOAT", "d": "DATE", "d2": "DATE"},
    **{"ts": "TIMESTAMP", "ts2": "TIMESTAMP", "dec": "DECIMAL(15,2)", "wide": "DECIMAL(38,18)", "mid": "DECIMAL(18,2)"},
    "long": "DECIMAL(38,0)",
}
ROWS = 400


def _at(values: Sequence[Any], n: int) -> Any:
    """The n-th of a list that begins again, each time one place further on."""
    return values[(n + n // len(values)) % len(values)]


def _row(n: int) -> list[Any]:
    number, decimal = _at(LONGS, n), _at(DECIMALS, n)
    held = [None if number is None else max(-(2**b), min(2**b - 1, number)) for b in (7, 15, 31)]
    real = _at(DOUBLES, n)
    return [n, *held, number, _at(LONGS, 3 * n + 1), [True, False, None][n % 3], _at(TEXTS, n), _at(TEXTS, 5 * n + 2),
            real, None if real is not None and 1e39 < abs(real) < math.inf else real, _at(DAYS, n),
            _at(DAYS, 2 * n + 3), _at(TIMES, n), _at(TIMES, 5 * n + 1), decimal, decimal, decimal, number]  # fmt: skip


@pytest.fixture(scope="module")
def duck(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """A table "odd" of odd values in DuckDB, and in Spark."""
    con = duckdb.connect()
    con.execute(f"CREATE TABLE odd (id INTEGER, {', '.join(f'{name} {kind}' for name, kind in TYPES.items())})")
    marks = ", ".join(f"CAST(? AS {kind})" for kind in ("INTEGER", *TYPES.values()))
    con.executemany(f"INSERT INTO odd VALUES ({marks})", [_row(n) for n in range(ROWS)])
    carry(con, spark, "odd", tmp_path_factory.mktemp("odd"))
    return con


@pytest.fixture(scope="module")
def far(duck: duckdb.DuckDBPyConnection, spark: Any) -> None:
    """A table of Spark alone: the odd rows twice, with days and moments that DuckDB cannot store."""
    days = [2**31 - 1, -(2**31), 2**31 - 2, 106_000_001, -106_000_001, 0]
    moments = [2**63 - 1, -(2**63) + 1, 2**62, -(2**62), 2**53, 0]
    listed = {name: name for name in ("id", *TYPES)}
    for name, step in (("d", 1), ("d2", 5)):
        listed[name] = f"element_at(array({', '.join(date_constant(n).text for n in days)}), 1 + id * {step} % 6)"
    for name, step in (("ts", 1), ("ts2", 5)):
        listed[name] = f"element_at(array({', '.join(moment_constant(n).text for n in moments)}), 1 + id * {step} % 6)"
    shown = ", ".join(f"{text} AS {name}" for name, text in listed.items())
    odd = "spark_catalog.default.odd"
    spark.sql(f"CREATE TABLE spark_catalog.default.far USING parquet AS SELECT {shown} FROM {odd} "
              f"UNION ALL SELECT * FROM {odd}")  # fmt: skip


def _table() -> Table:
    policy = policy_of('[tables.odd]\nunit = "row"\n[tables.odd.columns]\n' + "".join(f"{c} = {{}}\n" for c in TYPES))
    return uncapped_table(policy.tables["odd"], {"id": "INTEGER", **TYPES})


EACH = """
i64 + 1.5; i32 * i32; i32 - i64; i64 * j64; i64 // 7; i64 // -3; i64 % 7; i64 % j64; i32 // i16; -i64; i32 % i8;
abs(i64); sign(i64); sign(f64); abs(f64); -f64; f64 + 1; f64 * 3e0; f64 - 0.1e0; f64 / 3; f64 / i16; 1 / f64; f64 / f64;
f64 % 2.5e0; i64 / i16; floor(f64); ceil(f64); trunc(f64); round(f64); floor(i32 / 10); round(dec); 1 / floor(f64);
1 / round(f64); 1 / trunc(f64); 1 / ceil(f64); floor(dec); round(dec, 1); ceil(dec); trunc(dec); round(i32, -2);
greatest(i32, i16, 5); least(f64, 1e0); greatest(f64, 5e-1); least(txt, 'a'); greatest(d, d2); greatest(ts, ts2);
coalesce(i16, i64); nullif(i32, 1); coalesce(txt, 'none'); if(flag, 1, 0); CASE WHEN f64 > 1 THEN i32 ELSE i64 END;
CASE WHEN txt = 'a' THEN 1 WHEN txt LIKE 'a%' THEN 2 END; width_bucket(f64, 0, 10, 4);
CASE WHEN flag THEN d ELSE d2 END;
length(txt); txt || 'x'; concat(txt, 'x', enm); substring(txt, 1, 1); substring(txt, 2); substring(txt, 2, 0);
left(txt, 1); right(txt, 1); left(txt, 0); right(txt, 0); right(txt, 200); trim(txt); ltrim(txt); rtrim(txt);
trim(txt, 'ax'); lower(txt); upper(txt); strpos(txt, 'a'); strpos(txt, ''); starts_with(txt, 'a');
ends_with(txt, 'a'); contains(txt, 'a'); contains(txt, ''); starts_with(txt, enm);
CAST(i8 AS VARCHAR); CAST(i64 AS VARCHAR); CAST(flag AS VARCHAR); CAST(flag AS BIGINT); CAST(i64 AS DOUBLE);
TRY_CAST(f64 AS BIGINT); TRY_CAST(round(f64) AS BIGINT); TRY_CAST(f64 AS TINYINT); TRY_CAST(f64 AS INTEGER);
TRY_CAST(i64 AS TINYINT);
CAST(dec AS DOUBLE); CAST(mid AS DOUBLE); CAST(i32 AS BOOLEAN); CAST(ts AS DATE); CAST(d AS TIMESTAMP); dec + mid;
dec * 3; dec - 0.005; -wide; abs(dec); TRY_CAST(dec AS INTEGER);
year(d); quarter(d); month(d); week(d); day(d); dayofyear(d); dayofweek(d); isodow(d); isoyear(d); yearweek(d);
decade(d); century(d); millennium(d); hour(d); year(ts); quarter(ts); month(ts); week(ts); day(ts); dayofyear(ts);
dayofweek(ts); isodow(ts); isoyear(ts); yearweek(ts); decade(ts); century(ts); millennium(ts); hour(ts); minute(ts);
second(ts); date_trunc('day', d); date_trunc('week', d); date_trunc('month', d); date_trunc('quarter', d);
date_trunc('year', d); date_trunc('decade', d); date_trunc('century', d); date_trunc('millennium', d);
date_trunc('day', ts); date_trunc('week', ts); date_trunc('month', ts); date_trunc('quarter', ts);
date_trunc('year', ts); date_trunc('decade', ts); date_trunc('century', ts); date_trunc('millennium', ts);
date_trunc('hour', ts); date_trunc('minute', ts); date_trunc('second', ts); date_diff('day', d, d2);
date_diff('month', d, d2); date_diff('quarter', d, d2); date_diff('year', d, d2);
date_diff('decade', d, d2); date_diff('century', d, d2); date_diff('day', ts, ts2);
date_diff('month', ts, ts2); date_diff('quarter', ts, ts2); date_diff('year', ts, ts2); d - d2; d + 40; d - 400;
d + INTERVAL 1 MONTH; ts - INTERVAL 5 YEAR; ts + INTERVAL 90 SECOND; ts - INTERVAL 36 HOUR; ts + INTERVAL 13 MONTH;
d + INTERVAL 2 WEEK; coalesce(ts, DATE '2020-01-01')
"""
# Comparisons, as conditions of a CASE.
CONDITIONS = """
txt LIKE 'a_b'; txt LIKE '%\\_%'; txt LIKE '_'; txt LIKE ''; txt LIKE '%a%b%'; txt ILIKE 'Ä%'; txt < 'a'; txt >= '日';
txt = 'a '; txt = ''; f64 > 0.1; single < 0.5; f64 = 0; f64 >= 1e300; d < d2; ts >= ts2; i64 <= 5; i8 < i64;
dec > 1.1; wide > 0.5; flag; txt = enm; f64 IS NULL; d > DATE '2000-02-29'; ts < TIMESTAMP '2021-10-31 02:30:00.5';
i64 = 9223372036854775807; i64 > -9223372036854775808; txt IN ('a', 'ß', '')
"""
# Refused by a rule of docs/spark.md, though DuckDB answers them.
REFUSED = """
long + i64; round(f64, 2); left(txt, -1); right(txt, -1); substring(txt, -2); substring(txt, 0, 2);
CAST(d AS VARCHAR); CAST(ts AS VARCHAR); TRY_CAST(txt AS INTEGER); TRY_CAST(txt AS DOUBLE); TRY_CAST(txt AS DATE);
TRY_CAST(txt AS BOOLEAN); TRY_CAST(f64 AS DECIMAL(10,2)); date_diff('hour', ts, ts2); date_diff('week', d, d2);
CAST(wide AS DOUBLE); TRY_CAST(wide AS BIGINT);
trim(txt, enm); strpos(txt, enm); contains(txt, enm)
"""


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _value(expression: str) -> Value:
    """An expression as a scan holds it."""
    return value_of(parsed(expression), scope_of(_table())).value


def _condition(expression: str) -> str:
    return f"CASE WHEN {expression} THEN 1 WHEN NOT ({expression}) THEN 0 END"


def _selected(values: Sequence[Value]) -> scan.Select:
    """A SELECT of id and of values c0, c1, ... over the table "odd"."""
    columns = (("id", Name("id", BASE)), *((f"c{n}", value) for n, value in enumerate(values)))
    return scan.Select(columns, scan.Table("odd"))


def _written(values: Sequence[Value], table: str = "odd") -> tuple[str, list[str]]:
    """Spark's text of a SELECT of id and of values c0, c1, ... over a table, and the types of the values."""
    source = Source(f"`spark_catalog`.`default`.`{table}`", {"id": "INTEGER", **TYPES})
    shown, columns, _ = _select(_selected(values), {"odd": source})
    return shown, [columns[f"c{n}"].type for n in range(len(values))]


_COLLAPSE = "org.apache.spark.sql.catalyst.optimizer.CollapseProject"
_FIRST, _LAST = "'200000-01-01 (BC) 00:00:00'", "'200000-01-01 00:00:00'"
_AS_NUMBER = {
    "DATE": ("CAST({0} - DATE '1970-01-01' AS BIGINT)", "unix_date({0})"),
    # Clamped alike: the infinite moments of guards have no number in Spark.
    "TIMESTAMP": (
        f"epoch_us(least(greatest({{0}}, {_FIRST}::TIMESTAMP), {_LAST}::TIMESTAMP))",
        "unix_micros(CAST(least(greatest({0}, TIMESTAMP_NTZ'-199999-01-01 00:00:00'), "
        "TIMESTAMP_NTZ'+200000-01-01 00:00:00') AS TIMESTAMP))",
    ),
    "HUGEINT": ("{0}", "CAST({0} AS STRING)"),
}


def _admitted(expressions: Sequence[str]) -> tuple[dict[str, tuple[Value, str]], list[str]]:
    """The value and Spark's type of each expression that Spark is given, and the expressions that are refused."""
    kept, refused = {}, []
    for expression in expressions:
        try:
            value = _value(expression)
        except SQLError:
            continue  # no batch has it
        try:
            kept[expression] = (value, _written([value])[1][0])
        except NotSupportedError:
            refused.append(expression)
    return kept, refused


def _compared(expressions: Sequence[str], con: duckdb.DuckDBPyConnection, spark: Any) -> tuple[int, list[str]]:
    """How many expressions are equal on both engines, row by row, and those that are refused. Asserts the rest.

    They stand in one statement, so that what they share is computed once, below them, on every row.
    """
    kept, refused = _admitted(expressions)
    ways = [_AS_NUMBER.get(kind, ("{0}", "{0}")) for _, kind in kept.values()]
    ours = [mine.format(render(value)) for (mine, _), (value, _) in zip(ways, kept.values(), strict=True)]
    theirs = ", ".join(f"{other.format(f'c{n}')} AS c{n}" for n, (_, other) in enumerate(ways))
    session = private_session(spark)
    statement, _ = _written([value for value, _ in kept.values()])
    found = session.sql(f"SELECT id, {theirs} FROM ({statement}) ORDER BY id").collect()
    wanted = con.execute(f"SELECT id, {', '.join(ours)} FROM odd AS {BASE} ORDER BY id").fetchall()
    wrong = [
        (expression, _row(mine[0]), mine[at + 1], other[at + 1])
        for at, expression in enumerate(kept)
        for mine, other in zip(found, wanted, strict=True)
        if _plain(mine[at + 1]) != _plain(other[at + 1])
    ]
    firsts = {expression: (row, mine, other) for expression, row, mine, other in reversed(wrong)}
    assert not firsts, "\n".join(
        f"{key}: Spark {mine!r}, DuckDB {other!r} of {row}" for key, (row, mine, other) in firsts.items()
    )
    return len(kept), refused


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_each_admitted_function_is_duckdbs(duck: duckdb.DuckDBPyConnection, spark: Any) -> None:
    count, refused = _compared(_listed(EACH), duck, spark)
    assert not refused
    assert count == len(_listed(EACH))


def test_each_comparison_is_duckdbs(duck: duckdb.DuckDBPyConnection, spark: Any) -> None:
    count, refused = _compared([_condition(text) for text in _listed(CONDITIONS)], duck, spark)
    assert not refused
    assert count == len(_listed(CONDITIONS))


@pytest.mark.parametrize("seed", range(2))
def test_random_expressions_are_duckdbs_or_refused(seed: int, duck: duckdb.DuckDBPyConnection, spark: Any) -> None:
    rng = random.Random(seed)
    texts = [
        re.sub(r"\bu8\b", "i16", re.sub(r"\b(u64|i128)\b", "j64", rng.choice(KINDS[:-1])(rng, 2))) for _ in range(120)
    ]
    count, refused = _compared(texts, duck, spark)
    assert count > 40
    assert len(refused) < 80


def _read(spark: Any, name: str, shown: Sequence[str], items: Sequence[Value]) -> list[list[Any]]:
    """The ``items`` over a table of Spark with a column txt, a row for each text ``shown``, which Spark reads."""
    values = ", ".join(f"({at}, {text})" for at, text in enumerate(shown))
    table = f"spark_catalog.default.{name}"
    spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT * FROM VALUES {values} AS t(id, txt)")
    text, _, _ = _select(_selected(items), {"odd": Source(table, {"id": "INTEGER", "txt": "VARCHAR"})})
    found = private_session(spark).sql(f"SELECT * FROM ({text}) ORDER BY id").collect()
    return [list(row)[1:] for row in found]


@pytest.mark.parametrize("count", [1, 2, 5, 300])
def test_the_place_of_a_text_among_constants_is_found_by_its_hash(count: int, spark: Any) -> None:
    held = [text for text in TEXTS if text is not None] + [f"{'Ä' * (n % 9)}{n}" for n in range(300)]
    random.Random(7).shuffle(held)
    constants = held[:count]
    listed = bare("list_value", *(Constant(text, "VARCHAR") for text in constants), type="VARCHAR[]")
    place = bare("list_position", listed, Name("txt", BASE))
    numbers = Numbers(tuple(range(7, 7 + count)), "SMALLINT")
    shown = [*(string(text).text for text in held), "NULL", "CAST(X'ff' AS STRING)", "repeat('a', 60000)"]
    found = _read(spark, f"places{count}", shown, [bare("list_extract", numbers, place, type="SMALLINT")])
    wanted = [constants.index(text) + 7 if text in constants else None for text in held]
    assert [row[0] for row in found] == [*wanted, None, None, None]


def test_like_is_duckdbs_and_takes_no_long_time_on_any_text(spark: Any) -> None:
    """Patterns that a regular expression with steps back would follow for years on the last texts."""
    rng = random.Random(11)
    letters = ["a", "b", "%", "_", "%", "_", ".", "\\", "[", "^", "$", "\n", "Ä", "😀", "'", "}"]
    patterns = ["".join(rng.choices(letters, k=rng.randrange(9))) for _ in range(150)]
    patterns += ["%a%a%a%b", "%a%a%a%a%a%a%a%_b", "a%", "%a", "%a%", "a", "", "%", "%%", "_", "%_", "_%_", "%ab_%b",
                 "a%b", "____%____", "%" * 50 + "b", "%a" * 50, "_" * 150 + "%"]  # fmt: skip
    held = ["".join(rng.choices([*letters, "a", "b"], k=rng.randrange(12))) for _ in range(60)]
    held += ["", "a" * 20_000, "ab" * 10_000, "ba" * 10_000 + "b"]
    items = [Like(Name("txt", BASE), pattern) for pattern in patterns]
    found = _read(spark, "likes", [string(text).text for text in held], items)
    wrong = [
        (pattern, text[:20])
        for text, row in zip(held, found, strict=True)
        for pattern, hit in zip(patterns, row, strict=True)
        if hit != fits(text, pattern)
    ]
    assert not wrong
    assert sum(map(sum, found)) > 300


@pytest.mark.parametrize(
    ("function", "constant_text"),
    [
        ("LIKE", "%" + "a_" * 100),
        ("LIKE", f"%{'a' * 201}%"),
        ("contains", "a" * 201),
        ("strpos", "a" * 201),
        ("trim", "a" * 51),
    ],
)
def test_a_long_constant_that_is_compared_at_every_place_is_refused(function: str, constant_text: str) -> None:
    node = Name("txt", BASE)
    value = (
        Like(node, constant_text) if function == "LIKE" else bare(function, node, Constant(constant_text, "VARCHAR"))
    )
    with pytest.raises(NotSupportedError, match=r"has more than (200|50) characters"):
        _written([value])


def test_no_text_is_too_long_for_spark(spark: Any) -> None:
    """300 times ten million bytes would end the task: a long text has no value where it is read or joined to others."""
    asked = ["length(txt || txt)", "length(concat(txt, txt, 'x'))", "length(trim(txt))", "length(lower(txt))",
             "length(upper(txt))", "strpos(txt, 'b')", "txt LIKE '%a_%'"]  # fmt: skip
    items = [_value(text) for text in asked]
    found = _read(spark, "long", ["repeat('a', 10000000)", "repeat('a', 60000)", "'b'", "NULL"], items)
    assert found == [
        [None, 1, None, None, None, None, None],
        [None, 1, 60_000, 60_000, 60_000, 0, True],
        [2, 3, 1, 1, 1, 1, False],
        [None, 1, None, None, None, None, None],
    ]


def test_what_has_another_meaning_is_refused() -> None:
    for expression in _listed(REFUSED):
        value = _value(expression)
        with pytest.raises(NotSupportedError, match=r"^Spark: .*\(nothing was charged\)$"):
            _written([value])


@pytest.mark.parametrize("part", range(4))
def test_no_value_fails_on_any_row_though_nothing_guards_it(part: int, far: None, spark: Any) -> None:
    """Every value of every expression in a column of its own, on the farthest days, moments and numbers of Spark.

    A subquery computes values on rows on which the CASE that they stand in would not have: none may fail there.
    """
    expressions = _listed(EACH) + [_condition(text) for text in _listed(CONDITIONS)]
    rng = random.Random(5)
    expressions += [rng.choice(KINDS[:-1])(rng, 3) for _ in range(160)]
    kept, _ = _admitted(expressions[part::4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "SHARED", 1)
        statement, kinds = _written([value for value, _ in kept.values()], "far")
    assert statement.count("(SELECT ") > 3
    shown = ", ".join(_AS_NUMBER.get(kind, ("", "{0}"))[1].format(f"c{n}") for n, kind in enumerate(kinds))
    session = private_session(spark)
    # Else what is used once goes back into the CASE that guards it.
    rules = [session.conf.get("spark.sql.optimizer.excludedRules"), _COLLAPSE]
    session.conf.set("spark.sql.optimizer.excludedRules", ",".join(rules))
    assert len(session.sql(f"SELECT {shown} FROM ({statement})").collect()) == 2 * ROWS
