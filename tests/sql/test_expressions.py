"""Value expressions against DuckDB itself, row by row: equal where DuckDB has a value, and no row ever fails."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from expression_language import KINDS, parsed, rows, scope_of, table_with
from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.measure.from_sql import values_of
from dpsql.sql.values.admitted import check_admitted
from dpsql.sql.values.evaluation import evaluate
from dpsql.sql.values.expressions import lowered, value_of
from dpsql.sql.values.literals import fold
from dpsql.sql.values.operands import operand_of
from dpsql.sql.values.predicates import nonnull, truth
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.scan import Table
from dpsql.workloads.expr.total import BASE, read_once
from dpsql.workloads.expr.value_sql import literal, relation_text, render
from dpsql.workloads.expr.values import Name, Stored

TABLE = table_with()


def _scanned(expression: str) -> list[Any]:
    """What the scan's text gives for each row, by id."""
    found = rows()[0].execute(f"SELECT {expression} FROM t AS {BASE} ORDER BY id").fetchall()
    return [value for (value,) in found]


def _value(typed: Typed) -> list[Any]:
    """What the scan computes for each row, by id."""
    once = read_once(typed.value, typed.line, "v")
    held = relation_text(values_of([once], Table("t"), ("id", Name("id", BASE))), {"t": "t"})
    found = rows()[0].execute(f"SELECT v FROM {held} ORDER BY id").fetchall()
    return [value for (value,) in found]


def _undefined(node: exp.Expr) -> list[bool]:
    """For each row by id: whether DuckDB finds NaN in a part of the expression, which is NULL here."""
    inside = [
        f"CAST(TRY({part.sql('duckdb')}) AS VARCHAR) IN ('nan', '-nan')"
        for part in node.walk()
        if isinstance(part, exp.Binary | exp.Neg | exp.Func) and not isinstance(part, exp.Cast | exp.Predicate)
    ]
    found = rows()[0].execute(f"SELECT {' OR '.join(inside) or 'false'} FROM {CLEAN} ORDER BY id").fetchall()
    return [bool(value) for (value,) in found]


# The rows as DuckDB's own answers are asked of them: NaN is NULL wherever it is read.
CLEAN = "(SELECT * REPLACE (CASE WHEN NOT isnan(f64) THEN f64 END AS f64) FROM t)"


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(mine, Fraction):
        mine = float(mine)
    if isinstance(mine, float) and isinstance(theirs, int | Decimal):
        theirs = float(theirs)
    if mine is None and isinstance(theirs, int | Decimal) and abs(theirs) > 2**127 * (1 - 2**-39):
        return True  # so close to the end of 128 bits there is no value
    if isinstance(mine, float) and isinstance(theirs, float):
        return (math.isnan(mine) and math.isnan(theirs)) or math.isclose(mine, theirs, rel_tol=1e-15)
    return bool(mine == (Fraction(theirs) if isinstance(theirs, int | Decimal) and mine is not True else theirs))


def _check(expression: str) -> bool:
    """Hold an expression against DuckDB; False where it is refused. Asserts that no row fails."""
    node = parsed(expression)
    try:
        typed = value_of(node, scope_of(TABLE))
    except SQLError:
        return False
    check_admitted(node)
    mine = _value(typed)
    con, far = rows()
    try:
        theirs = con.execute(f"SELECT TRY({expression}) FROM {CLEAN} ORDER BY id").fetchall()
        undefined = _undefined(node)
    except duckdb.Error:
        # DuckDB cannot bind all that has a meaning: a constant beyond its column's type.
        return True
    for number, (value, (wanted,)) in enumerate(zip(mine, theirs, strict=True)):
        assert not isinstance(value, float) or not math.isnan(value), (expression, number)
        assert value is not None or typed.nulls, (expression, number)
        if typed.kind == "exact" and value is not None:
            assert typed.low <= value <= typed.high, (expression, number)
            value = typed.unit * value + typed.offset
        # DuckDB has no value where it overflows or divides by zero, and far dates are NULL here.
        if number not in far and wanted is not None and not undefined[number]:
            assert _same(value, wanted), (expression, number, value, wanted)
    return True


# Each function and operator by name, on columns of each type that it takes.
EACH = """
i8 + i64; i64 - u64; i8 * i64; i64 // i8; i64 % i8; i64 % u8; i8 // 3; i64 // -1; i64 % -1; i128 % 7;
i128 // 3; -i64; -u64; dec + i32; dec - 0.005; dec * dec; dec * 2.5; wide % 3; dec % 0.3; dec / i8; wide + 1;
-wide; i32 / i8; 1 // i8; 7 % i8; f64 + i8; f64 - dec; f64 * f64; f64 / f64; i8 / f64; f64 % f64; f64 % i8;
-f64; f64 * 1e300 * 1e300; abs(i8); abs(i64); abs(dec); abs(f64); sign(f64); sign(dec); sign(i64); floor(i64);
floor(dec); floor(f64); ceil(dec); ceil(f64); trunc(dec); trunc(f64); round(dec); round(dec, 1);
round(dec, -3); round(f64); round(f64, 2); round(i32, -2); greatest(i8, i64, 3); least(dec, i32);
greatest(f64, i8); least(f64, f64); greatest(txt, 'b'); least(d, d2); greatest(ts, ts);
coalesce(d, '2020-01-01') = '2020-01-01'; coalesce(ts, DATE '2020-01-01');
CASE WHEN flag THEN d ELSE DATE '2020-01-01' END > '2019-12-31'; coalesce(i8, i32, 0); coalesce(txt, 'x');
coalesce(d, DATE '2020-01-01'); coalesce(f64, 0); ifnull(dec, 0); nullif(i8, 0); nullif(txt, '');
nullif(dec, 0); nullif(d, DATE '2020-02-29'); nullif(f64, 0);
CASE WHEN i8 > 0 THEN i64 WHEN txt = 'a' THEN 5 END; CASE i8 WHEN 1 THEN 'one' WHEN 0 THEN 'none' ELSE txt END;
if(flag, 1, 0); CASE WHEN i8 > 1 THEN 1 ELSE 2.5 END; CASE WHEN flag THEN f64 ELSE i64 END; year(d); month(d);
day(d); quarter(d); week(d); dayofweek(d); isodow(d); dayofyear(d); isoyear(d); yearweek(d); decade(d);
century(d); millennium(d); weekofyear(d); dayofmonth(d); weekday(d); hour(d); year(ts); month(ts); day(ts);
quarter(ts); week(ts); dayofweek(ts); isodow(ts); hour(ts); minute(ts); second(ts); hour(tz); month(tz);
extract(year FROM d); extract('month' FROM ts); date_part('dow', ts); datepart('year', d);
date_trunc('month', d); date_trunc('week', ts); date_trunc('hour', ts); date_trunc('quarter', d);
date_trunc('year', ts); date_trunc('decade', d); date_trunc('century', ts); date_trunc('millennium', d);
date_trunc('day', ts); date_trunc('minute', ts); date_trunc('second', ts); datetrunc('day', d); d - d2; d + 1;
d - 400; 3 + d; d + INTERVAL 1 DAY; d - INTERVAL 2 MONTH; ts + INTERVAL 90 MINUTE; ts - INTERVAL '1' YEAR;
date_add(d, INTERVAL 1 WEEK); date_diff('day', d, d2); date_diff('month', d, d2); datediff('year', d, d2);
date_diff('hour', ts, TIMESTAMP '2020-01-01 00:30:00'); date_diff('week', ts, d); date_diff('second', ts, ts);
CAST(ts AS DATE); CAST(d AS TIMESTAMP); CAST(txt AS TIMESTAMP);
CAST(txt AS DATE); CAST(txt AS INTEGER); i64::INTEGER; f64::BIGINT; i64 * i64 * i64; i128 + 1 + i128; wide * wide;
-i128 // -1; i128 * -2; i128 - i64; make_date(i32, i8, 5); make_date(i64, u8, i8); make_date(2020, 2, i8); sqrt(f64);
sqrt(i8); sqrt(dec); cbrt(f64); exp(f64); exp(i8); ln(f64); ln(u8); log(f64); log2(i64); log10(dec); log(3, f64);
log(0.5, f64); pow(f64, 2); pow(f64, -1); pow(i8, 0.5); pow(f64, 3); 2 ** i8; pow(f64, i8); pow(dec, f64); i8 ^ 2;
isnan(f64); isinf(f64); isinf(f64 * 1e300); round(f64, -2); replace(txt, 'a', 'bc'); replace(txt, '', 'x');
split_part(txt, ' ', 1); split_part(txt, 'b', 1); split_part(txt, ' ', 3); split_part(enm, 'a', 2);
regexp_matches(txt, '[A-Z]');
regexp_matches(txt, 'B', 'i'); regexp_full_match(txt, '.'); txt SIMILAR TO '[a-z].*'; txt NOT SIMILAR TO 'a.*';
regexp_extract(txt, '(\\w)(.)'); regexp_extract(txt, '(\\w)(.)', 2); regexp_extract(enm, 'A', 0, 'i');
regexp_replace(txt, '[^0-9]', '', 'g'); regexp_replace(txt, '(.)', '\\1\\1'); try_strptime(txt, '%Y-%m-%d');
strptime(txt, '%Y-%m-%d'); strptime(txt, '%d'); txt LIKE '%!_%' ESCAPE '!'; enm LIKE 'a!%!_' ESCAPE '!';
enm LIKE 'a!%%' ESCAPE '!'; enm ILIKE 'A!%_' ESCAPE '!'; enm NOT LIKE '_!%%' ESCAPE '!'; enm LIKE 'a%' ESCAPE '';
strftime(d, '%Y-%m-%d'); strftime(ts, '%a %A %w %u %d %-d %b %B %m %-m %y %-y %Y'); strftime(tz, '%H:%M %Y');
strftime(ts, '%H %-H %I %-I %p %M %-M %S %-S %f %g %j %-j %U %W %G %V %c %x %X %%'); strftime('%B', ts);
strftime(date_trunc('month', ts), '%b'); monthname(d); monthname(ts); dayname(d); dayname(ts); dayname(tz);
last_day(d); last_day(ts); last_day(tz); time_bucket(INTERVAL '7 days', d); time_bucket(INTERVAL 5 MONTH, d);
time_bucket(INTERVAL '90 minutes', ts); time_bucket(INTERVAL 1 WEEK, ts); time_bucket(INTERVAL '1 year', ts);
time_bucket(INTERVAL 2 WEEK, d, DATE '2020-01-03'); time_bucket(INTERVAL 5 MONTH, ts, TIMESTAMP '2020-02-20');
time_bucket(INTERVAL 1 DAY, ts, INTERVAL 6 HOUR); time_bucket(INTERVAL 3 DAY, d, INTERVAL '-1' DAY);
date_sub('year', d, DATE '2020-02-29'); datesub('month', d, d2); date_sub('day', ts, TIMESTAMP '2020-01-01');
date_sub('hour', TIMESTAMP '2020-01-31', ts); date_sub('decade', d, d2); date_sub('quarter', ts, ts);
tz AT TIME ZONE 'America/New_York'; ts AT TIME ZONE 'Europe/Berlin'; timezone('Asia/Kathmandu', tz);
hour(tz AT TIME ZONE 'America/St_Johns'); CAST(ts AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Tokyo' AS DATE);
d AT TIME ZONE 'UTC'; lpad(txt, 3, '0'); rpad(txt, 3, 'ab'); lpad(CAST(i8 AS VARCHAR), 2, '0'); rpad(enm, 0, 'x');
i8 || '-' || d; flag || txt; ts || ''; concat(i8, NULL, d, txt); year(d) || '-Q' || quarter(d);
CAST(tz AS TIMESTAMP); CAST(tz AS DATE); date(ts); ts::DATE;
lower(txt); upper(txt); lower(enm); length(txt); strpos(txt, 'b'); substr(txt, 1, 2); substring(txt, -2);
left(txt, 1); right(txt, -1); trim(txt); ltrim(txt); rtrim(txt); trim(txt, ' x'); txt || 'x'; txt || enm;
concat(txt, 'x', enm); starts_with(txt, 'ä'); txt ^@ 'a'; ends_with(txt, 'ß'); suffix(txt, 'b');
prefix(txt, 'A'); contains(txt, 'x'); CAST(i8 AS BIGINT); CAST(i64 AS DECIMAL(38,2)); CAST(dec AS DOUBLE);
CAST(i64 AS DOUBLE); CAST(flag AS INTEGER); CAST(i64 % 10 AS TINYINT); CAST(i8 AS VARCHAR);
CAST(flag AS VARCHAR); CAST(d AS VARCHAR); CAST(i8 AS BOOLEAN); TRY_CAST(i64 AS TINYINT);
TRY_CAST(dec AS INTEGER); TRY_CAST(dec AS DECIMAL(4,1)); TRY_CAST(wide AS BIGINT); TRY_CAST(f64 AS INTEGER);
TRY_CAST(f64 AS DECIMAL(10,3)); TRY_CAST(txt AS INTEGER); TRY_CAST(txt AS DOUBLE);
TRY_CAST(txt AS DECIMAL(5,1)); TRY_CAST(txt AS DATE); TRY_CAST(txt AS BOOLEAN); CAST(1.5 AS DOUBLE) + i8; flag;
i8 > 3; i8 IS NULL; txt LIKE '%b'; txt ILIKE 'a%'; NOT flag; i8 IN (1, 5); i8 BETWEEN 0 AND 5; flag AND i8 > 0;
i8 + i64 > u64; dec < i8 + 1; lower(txt) = txt; d + 1 > d2; i8 IS NOT DISTINCT FROM 1; f64 > i8 + 1;
i8 BETWEEN i32 AND i64; i8 + 1 IS DISTINCT FROM i32; d > DATE '2020-01-31' + INTERVAL 1 MONTH;
ts < DATE '2020-01-01' + 60; -i8 > 5; 3 - i8 <= 2.5; epoch(d); epoch(ts); epoch_us(tz); epoch_us(ts); epoch_us(d);
extract(epoch FROM ts); date_part('epoch', d); epoch(ts - TIMESTAMP '2020-01-01'); epoch(ts - d); epoch_us(tz - tz);
ts - TIMESTAMP '2020-01-01' > INTERVAL '30 minutes'; ts - d BETWEEN INTERVAL 1 HOUR AND INTERVAL 1 MONTH;
INTERVAL '13 months' >= ts - d; ts - d = d - ts; CASE WHEN flag THEN ts - d ELSE INTERVAL 1 DAY END < INTERVAL 1 YEAR;
d > ts + INTERVAL 1 DAY; d < ts; ts >= d; dec > f64; i64 < f64; i8 = dec; f64 <> i32; u64 >= dec; floor(dec / 10) * 10;
floor(i8 / 3); round(dec / 7); ceil(dec / 0.1); trunc(wide / 3); floor(i64 / 10); floor((dec - 0.5) / 2.5) * 2.5 + 0.5;
least(dec / u8, 1); strlen(txt); strlen(enm)
"""


@pytest.mark.parametrize("expression", [part.strip() for part in EACH.split(";")])
@pytest.mark.few(every=2)
def test_each_function_is_duckdbs(expression: str) -> None:
    assert _check(expression)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.few("0")
def test_random_expressions_are_duckdbs_and_never_fail(seed: int) -> None:
    rng = random.Random(seed)
    answered = sum(_check(rng.choice(KINDS)(rng, rng.choice([1, 2, 2, 3]))) for _ in range(110))
    assert answered > 85


def test_division_by_zero_is_null_and_overflow_is_exact() -> None:
    by_id = dict(zip(_scanned("id"), _value(value_of(parsed("i8 // (i8 - i8)"), scope_of(TABLE))), strict=True))
    assert set(by_id.values()) == {None}
    typed = value_of(parsed("i64 * 4 + i64"), scope_of(TABLE))
    found = dict(zip(_scanned('"dpsql_base".i64'), _value(typed), strict=True))
    assert all(n is None or typed.unit * found[n] + typed.offset == 5 * n for n in found)
    negated = value_of(parsed("-i128"), scope_of(TABLE))
    assert negated.limits == (1 - 2**127, 2**127)


def test_the_remainder_of_null_is_null_and_of_the_least_number_by_minus_one_is_zero() -> None:
    rests = _value(value_of(parsed("i64 % CASE WHEN i8 IS NULL THEN 1 ELSE -1 END"), scope_of(TABLE)))
    found = dict(zip(_scanned('"dpsql_base".i64'), rests, strict=True))
    assert found[None] is None
    assert found[-(2**63)] == 0


# Rising functions of one column are cut on the column's own line, wherever DuckDB's calendar may end.
RISING = ["i8 // 3", "i64 // 10 + 1", "5 - i32", "i32 * 2 - 7", "dec * 3", "round(dec)", "floor(dec)", "ceil(dec / 1)",
          "year(d)", "year(ts)", "decade(d)", "century(ts)", "millennium(d)", "isoyear(d)", "d + 5", "CAST(ts AS DATE)",
          "CAST(d AS TIMESTAMP)", "date_trunc('month', d)", "date_trunc('week', ts)", "date_trunc('decade', ts)",
          "date_trunc('century', d)", "date_trunc('quarter', d)", "ts + INTERVAL 1 MONTH", "d - INTERVAL 3 HOUR",
          "last_day(d)", "last_day(ts)", "time_bucket(INTERVAL 5 MONTH, d)", "time_bucket(INTERVAL 90 MINUTE, ts)",
          "time_bucket(INTERVAL 1 DAY, ts, INTERVAL 6 HOUR)", "time_bucket(INTERVAL 3 WEEK, d, DATE '2020-01-03')",
          "epoch(ts)", "epoch(d) / 60 - 1", "epoch_us(ts)", "floor(dec / 10)", "round(i8 / 3) * 3",
          "year(CAST(ts AS DATE))", "year(d + 5)", "trunc(dec)", "date_trunc('hour', ts)"]  # fmt: skip


@pytest.mark.parametrize("expression", RISING)
@pytest.mark.few(every=12)
def test_rising_functions_are_cut_where_they_change(expression: str) -> None:
    typed = value_of(parsed(expression), scope_of(TABLE))
    if typed.kind == "date":
        constants = ["DATE '2020-02-29'", "DATE '9999-12-31'"]
    elif typed.kind == "timestamp":
        constants = ["TIMESTAMP '2020-02-29 12:34:56'", "TIMESTAMP '0001-01-01'"]
    else:
        constants = ["-3", "2.5", "2020"]
    for constant in constants:
        for operator in ("=", "<>", "<", "<=", ">", ">="):
            scope = scope_of(TABLE)
            pair = truth(parsed(f"{expression} {operator} {constant}"), scope)
            if typed.path is not None:
                assert not scope.computed.table().columns.keys() - TABLE.columns.keys()
            # The same comparison of the computed value, with no inverse.
            column = operand_of(parsed(expression), scope, reduced=False)
            plain = column.within(column.compared(operator, fold(parsed(constant)), parsed(constant)))
            for reduced, computed in ((pair.true, plain.true), (pair.false, plain.false)):
                assert [v is True for v in _scanned(render(lowered(reduced, scope)))] == [
                    v is True for v in _scanned(render(lowered(computed, scope)))
                ], (expression, operator, constant)
    scope = scope_of(TABLE)
    there = _scanned(render(lowered(nonnull(parsed(expression), scope), scope)))
    assert [v is True for v in there] == [v is not None for v in _value(typed)]


CLOSED = """
txt = { values = ["a", "A b", "äÄß", "12"] }
i8 = { values = [-128, 0, 5, 127] }
flag = {}
"""


@pytest.mark.parametrize(
    "condition",
    ["upper(txt) = 'A'", "length(txt) > 1",
     "txt || 'x' < 'b'", "abs(i8) > 4", "i8 % 2 = 1", "substr(txt, 1, 1) IN ('a', 'A')",
     "TRY_CAST(txt AS INTEGER) IS NULL", "i8 * i8 >= 25"],
)  # fmt: skip
def test_closed_domains_are_computed_beforehand(condition: str) -> None:
    table = table_with(CLOSED)
    scope = scope_of(table)
    pair = truth(parsed(condition), scope)
    assert scope.computed.table() is table
    con, _ = rows()
    inside = "txt IN ('a', 'A b', 'äÄß', '12')" if "txt" in condition else "i8 IN (-128, 0, 5, 127)"
    for held, wanted in ((pair.true, "TRUE"), (pair.false, "FALSE")):
        mine = con.execute(f"SELECT id FROM t AS {BASE} WHERE {render(lowered(held, scope))} AND {inside} ORDER BY 1")
        found = mine.fetchall()
        theirs = con.execute(f"SELECT id FROM t WHERE TRY({condition}) IS {wanted} AND {inside} ORDER BY 1").fetchall()
        # abs(-128) and i8 * i8 overflow in DuckDB and are exact here.
        assert set(theirs) <= set(found)
        assert len(found) == len(theirs) or "i8" in condition


REFUSED = [
    # Implicit casts.
    ("txt + 1", "needs numbers"),
    ("txt = 7", "compare it with a string"),
    ("i8 + '1'", "needs numbers"),
    ("lower(i8)", "takes text"),
    ("coalesce(i8, 'x')", "mixes"),
    ("CASE WHEN flag THEN 1 ELSE 'x' END", "mixes"),
    ("year(txt)", "needs a DATE"),
    ("txt || dec > 'a'", "not fixed"),
    # Not total, not row-local, not known.
    ("random()", "another result each time"),
    ("now()", "another result each time"),
    ("error('x')", "not an admitted expression"),
    ("sin(f64)", "not an admitted expression"),
    ("log(f64, 2)", "a positive constant base"),
    ("sqrt(txt)", "needs numbers"),
    ("make_date(d)", "takes a year, a month and a day"),
    ("make_date(f64, 1, 1)", "takes whole numbers"),
    # Patterns, formats and counts are constants that DuckDB takes.
    ("txt ~ 'a'", "differs between versions"),
    ("regexp_matches(txt, enm)", "takes one constant text for its pattern"),
    ("regexp_matches(txt, '(')", "is not run by DuckDB: missing )"),
    ("regexp_matches(txt, 'a', 'q')", "is not run by DuckDB: Unrecognized"),
    ("regexp_extract(txt, 'a', ['x'])", "whole-number constants"),
    ("regexp_replace(txt, 'a')", "lacks an operand"),
    (f"regexp_matches(txt, '{'b' * 60}a{{1000}}')", "too many steps for a row"),
    ("regexp_matches(i8, 'a')", "takes text"),
    (f"split_part(txt, '{'x' * 1025}', 1)", "at most 1,024 bytes"),
    ("split_part(txt, '', 1)", "a constant to split at"),
    ("split_part(txt, ' ', -1)", "from 1 to 100"),
    (r"regexp_replace(txt, '\C', 'x')", "a part of a character"),
    ("strptime(txt, txt)", "takes one constant text for its format"),
    ("strptime(txt, '%q')", "is not run by DuckDB"),
    ("strptime(txt, '%Y %z')", "without a time zone"),
    ("txt LIKE 'a!' ESCAPE '!' = true", "ends with the escape sign"),
    ("txt LIKE 'a' ESCAPE 'ab' = true", "a sign such as"),
    ("txt LIKE enm ESCAPE '!' = true", "takes constants"),
    ("(SELECT max(i8) FROM t)", "a subquery depends on other rows"),
    ("max(i8)", "depends on other rows"),
    ("rank() OVER ()", "depends on other rows"),
    ("i8 / 0", "division by zero"),
    ("i8 % 0", "division by zero"),
    ("i8 // 0", "division by zero"),
    ("dec // 2", "divides whole numbers"),
    ("ts - ts", "is an interval"),
    ("tz - TIMESTAMPTZ '2000-01-01'", "is an interval"),
    ("d + i8", "adds a column"),
    ("d + 100000000", "leaves the calendar"),
    ("ts + INTERVAL 99999 YEAR", "leaves the calendar"),
    ("ts + INTERVAL '1 day 3 hours'", "whole number of one unit"),
    ("date_trunc('month', tz)", "time zone"),
    ("date_trunc(txt, d)", "date_trunc takes one of"),
    ("date_part('eon', ts)", "is not answered"),
    ("ts - d > 30", "is an interval"),
    ("hour(ts - d)", "needs a DATE or TIMESTAMP"),
    ("(ts - d) * 2", "needs numbers"),
    ("substr(txt, i8, 1)", "whole-number constants"),
    ("round(f64, i8)", "whole-number constants"),
    ("CAST(f64 AS VARCHAR)", "not fixed"),
    ("f64 || 'x'", "not fixed"),
    ("strftime(d, txt)", "one constant format"),
    ("strftime(d, '%Q')", "strftime has no %Q"),
    ("strftime(d, '%Y%')", "strftime has no its last sign"),
    ("strftime(txt, '%Y')", "needs a DATE or TIMESTAMP"),
    ("monthname(i8)", "needs a DATE or TIMESTAMP"),
    ("time_bucket(INTERVAL 0 DAY, d)", "an interval of more than nothing"),
    ("time_bucket(INTERVAL 5 HOUR, d)", "whole days"),
    ("time_bucket(INTERVAL 5 HOUR, ts, d)", "a constant date, time or interval"),
    ("time_bucket(INTERVAL 1 MONTH, ts, INTERVAL 1 DAY)", "an offset of days or less"),
    ("time_bucket(INTERVAL 1 DAY, tz)", "depends on a time zone"),
    ("ts AT TIME ZONE 'Nowhere'", "knows no time zone 'Nowhere'"),
    ("ts AT TIME ZONE txt", "a constant time zone"),
    ("date_sub('eon', d, d2)", "date_sub takes one of"),
    ("lpad(txt, i8, '0')", "a constant length"),
    ("lpad(txt, 2000, '0')", "a constant length"),
    ("rpad(txt, 3, '')", "constant characters"),
    ("CAST(i8 AS TIME)", "is not cast to"),
    ("floor(f64, 2)", "takes one number"),
    ("NULL + i8", "always NULL"),
    ("+".join(["abs(i8)"] * 3000), "2,000 parts"),
    ("(i8 % i32) % (i8 % i32) % (i8 % (i32 % (i8 % (i32 % (i64 % (i8 % (i32 % (i64 % (i8 % i32)))))))))", "2,000"),
]


@pytest.mark.parametrize(("expression", "words"), REFUSED, ids=[e[:40] for e, _ in REFUSED])
def test_refused_with_what_to_write(expression: str, words: str) -> None:
    read = truth if any(sign in expression for sign in "=><") else value_of
    with pytest.raises(SQLError) as caught:
        read(parsed(expression), scope_of(TABLE))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 800


def test_deep_trees_are_refused() -> None:
    node = parsed("i8")
    for _ in range(150):
        node = exp.Abs(this=node)
    with pytest.raises(SQLError, match="nests deeper"):
        value_of(node, scope_of(TABLE))


def test_equal_values_are_one_column_and_names_are_unique() -> None:
    scope = scope_of(TABLE)
    truth(parsed("abs(i8) > 3 AND abs(I8) < 100 AND abs(i32) > 3"), scope)
    added = scope.computed.table().columns.keys() - TABLE.columns.keys()
    assert added == {"abs(i8)", "abs(i32)"}
    quoted = table_with('i8 = {}\n"i32" = {}\n')
    other = scope_of(quoted)
    first = operand_of(parsed("i8 * i8"), other).column
    second = operand_of(parsed("(i8) * (i8)"), other).column
    assert first == second


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("TINYINT", (-128, 0, 127)),
        ("BIGINT", (-(2**63), 2**63 - 1)),
        ("BOOLEAN", (0, 1)),
        ("DECIMAL(9,2)", (-999_999_999, 1, 50)),
        ("DOUBLE", (-0.0, 0.1, 5e-324, -1e300, math.inf, math.nan)),
        ("FLOAT", (0.1, 1 + 2**-24)),
        ("VARCHAR", ("", "it's", "-infinity", "é")),
        ("DATE", (-(2**31) + 2, -719_529, 0, 20_000, 2**31 - 1)),
        ("TIMESTAMP", (-(2**63) + 2, -1, 0, 2**63 - 1)),
    ],
)
def test_places_are_the_constants_of_a_scan(kind: str, places: tuple[Any, ...]) -> None:
    line = line_of(kind)
    column = Stored("a", kind)
    found = evaluate(Name("a", BASE), line.kind, column, line, (None, *places))
    shown = {"date": "CAST({0} - DATE '1970-01-01' AS BIGINT)", "timestamp": "epoch_us({0})"}.get(line.kind, "{0}")
    listed = ", ".join(shown.format(f"CAST({literal(line, place)} AS {kind})") for place in places)
    assert list(map(repr, found)) == list(map(repr, (None, *rows()[0].execute(f"SELECT {listed}").fetchone())))
