"""No row decides whether a scan succeeds: values are total, and held to their ranges where a range is wrong."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
from expression_language import (
    KINDS,
    TYPES,
    day,
    decimal,
    moment,
    parsed,
    real,
    rows,
    scope_of,
    table_with,
    text,
    whole,
)
from helpers import exact, policy_of

from dpsql.errors import SQLError
from dpsql.measure.from_sql import values_of
from dpsql.sql.values import arithmetic, calendar, casts, functions, text_functions, typed
from dpsql.sql.values.expressions import registered, value_of
from dpsql.sql.values.row_cost import LONGEST_PART, MAX_WRITTEN, capped
from dpsql.sql.values.typed import Typed, settled
from dpsql.workloads.expr import total, value_sql
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import to_float
from dpsql.workloads.expr.scan import Table
from dpsql.workloads.expr.total import BASE, LONGEST_READ, read_once
from dpsql.workloads.expr.value_sql import relation_text, render
from dpsql.workloads.expr.values import Matches, Name, Stored

TABLE = table_with()

# Every function and operator, with what it takes; {whole} is a column or a number within random limits.
FUNCTIONS = """
{whole} + {whole}; {whole} - {whole}; {whole} * {whole}; {whole} // {whole}; {whole} % {whole}; - {whole};
{decimal} + {decimal}; {decimal} - {whole}; {decimal} * {decimal}; {decimal} % {decimal}; - {decimal};
abs({whole}); abs({decimal}); sign({whole}); sign({real}); floor({decimal}); ceil({decimal}); trunc({decimal});
round({decimal}); round({decimal}, 1); round({whole}, -1); floor({whole}); greatest({whole}, {whole});
least({decimal}, {whole}); coalesce({whole}, {whole}); nullif({whole}, {whole}); if({whole} > 3, {whole}, {whole});
CASE WHEN {real} > 0 THEN {decimal} END; width_bucket({whole}, 0, 100, 7); width_bucket({real}, -1, 1e40, 3);
width_bucket({decimal}, -1e30, 1e40, 5); TRY_CAST({real} AS BIGINT); TRY_CAST({real} AS TINYINT);
TRY_CAST({whole} AS SMALLINT); TRY_CAST({decimal} AS INTEGER); TRY_CAST({decimal} AS DECIMAL(6,1));
TRY_CAST({text} AS INTEGER); TRY_CAST({text} AS DECIMAL(12,2)); CAST({whole} > 3 AS INTEGER);
length({text}); strpos({text}, 'a'); strpos({text}, {text}); {day} - {day}; date_diff('hour', {moment}, {moment});
date_diff('minute', {moment}, {moment}); date_diff('second', {moment}, {moment}); year({day}); year({moment});
quarter({day}); month({moment}); week({day}); week({moment}); day({day}); dayofyear({moment}); dayofweek({day});
isodow({day}); hour({moment}); minute({moment}); second({moment}); isoyear({day}); yearweek({moment}); decade({day});
make_date({whole}, {whole}, {whole}); make_date(2020, 2, {whole}); sqrt({real}); sqrt({whole}); cbrt({decimal});
exp({real}); ln({whole}); log(2, {decimal}); log(0.5, {whole}); pow({real}, 2); pow({whole}, -3); pow({decimal}, 0.5);
pow(2, {whole}); pow({real}, {whole}); round({real}, -2); ceil({real}); CAST({real} AS INTEGER); CAST({text} AS BIGINT);
CAST({text} AS TIMESTAMP); strptime({text}, '%Y-%m-%d'); strptime({text}, '%d'); replace({text}, 'a', 'bcd');
regexp_replace({text}, '.', '\\0\\0', 'g'); regexp_extract({text}, '(a|b)+', 1); split_part({text}, 'a', 2);
strftime({moment}, '%Y-%m-%d %j %U %W %V %G'); strftime({day}, '%c'); monthname({moment}); dayname({day});
last_day({moment}); last_day({day}); time_bucket(INTERVAL 7 MONTH, {moment}); time_bucket(INTERVAL 3 DAY, {day});
time_bucket(INTERVAL 1 SECOND, {moment}); {moment} AT TIME ZONE 'America/New_York'; lpad({text}, 7, 'ä');
hour({moment} AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Kathmandu'); rpad({text}, 1000, 'ab'); {whole} || {day};
date_sub('hour', {moment}, {moment}); date_sub('second', {moment}, {moment});
decade({moment}); century({day}); century({moment}); millennium({day}); millennium({moment})
"""
UNITS = ("day", "week", "month", "quarter", "year", "decade", "century")
TEMPLATES = [
    *(part.strip() for part in FUNCTIONS.split(";")),
    *(
        f"{name}('{unit}', {{{kind}}}, {{{kind}}})"
        for name in ("date_diff", "date_sub")
        for unit in UNITS
        for kind in ("day", "moment")
    ),
]
DAYS = ["DATE '1969-12-31'", "DATE '1970-01-01'", "DATE '2000-02-29'", "DATE '2020-12-31'", "DATE '0001-01-01'",
        "DATE '9999-12-31'"]  # fmt: skip


def _argument(kind: str, rng: random.Random) -> str:
    """A column, a constant, or a column within limits, so that ranges are narrow as well as wide."""
    makes = {"whole": whole, "decimal": decimal, "real": real, "day": day, "moment": moment, "text": text}
    column = makes[kind](rng, rng.choice([0, 0, 0, 1]))
    if kind in {"day", "moment"}:
        low, high = sorted(rng.sample(DAYS, 2))
        wrapped = f"least(greatest({column}, {low}), {high})" if kind == "day" else column
        return rng.choice([column, wrapped, rng.choice(DAYS)])
    if kind == "text":
        return column
    ends = sorted(rng.choice([rng.randrange(-9, 9), rng.randrange(-(2**40), 2**40), 10 ** rng.randrange(37)])
                  for _ in range(2))  # fmt: skip
    return rng.choice([column, f"least(greatest({column}, {ends[0]}), {ends[1]})", str(rng.choice(ends))])


def _filled(template: str, rng: random.Random) -> str:
    for kind in ("whole", "decimal", "real", "day", "moment", "text"):
        while f"{{{kind}}}" in template:
            template = template.replace(f"{{{kind}}}", f"({_argument(kind, rng)})", 1)
    return template


def _typed(expression: str) -> Typed | None:
    try:
        return settled(value_of(parsed(expression), scope_of(TABLE)))
    except SQLError:
        return None


def _bare(found: Typed) -> str:
    """The value as its own forms compute it, without the net around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_sql, "_net", lambda text: text)
        return render(read_once(found.value, found.line, "v").first)


@functools.cache
def _many() -> str:
    """A table of 500 rows that recombine the values of the others, column by column."""
    joins = "".join(f" JOIN t AS t{at} ON t{at}.id = CAST(hash(i, {at}) % 50 AS INTEGER)" for at in range(len(TYPES)))
    listed = ", ".join(f"t{at}.{name}" for at, name in enumerate(TYPES))
    rows()[0].execute(
        f"CREATE OR REPLACE TABLE many AS SELECT CAST(i AS INTEGER) AS id, {listed} FROM range(500) r(i){joins}"
    )
    return "many"


def _outside(found: list[Typed], shown: Callable[[Typed], str], table: str = "t") -> list[int]:
    """The places of values that fail on a row of ``table``, or leave their range on one."""
    checks = []
    for number, value in enumerate(found):
        name = f'"v{number}"'
        if value.kind == "exact":
            within = f"{name} BETWEEN CAST({value.low} AS HUGEINT) AND CAST({value.high} AS HUGEINT)"
        elif value.kind == "real":
            within = f"NOT isnan({name})"
            if value.bounds is not None:
                # DOUBLEs are rounded at each step; a sum clamps what that brings past its bounds.
                spare = max(map(abs, value.bounds)) / 2**40
                low, high = to_float(value.bounds[0] - spare), to_float(value.bounds[1] + spare)
                within += f" AND {name} BETWEEN '{low!r}'::DOUBLE AND '{high!r}'::DOUBLE"
        else:
            within = "true"
        nulls = "true" if value.nulls else "false"
        checks.append(f"bool_and(CASE WHEN {name} IS NULL THEN {nulls} ELSE {within} END)")
    inner = ", ".join(f'{shown(value)} AS "v{number}"' for number, value in enumerate(found))
    try:
        source = f"(SELECT {inner} FROM {table} AS {BASE})"
        (held,) = rows()[0].execute(f"SELECT {', '.join(checks)} FROM {source}").fetchall()
    except duckdb.Error:
        if len(found) == 1:
            return [0]
        half = len(found) // 2
        rest = _outside(found[half:], shown, table)
        return [*_outside(found[:half], shown, table), *(half + place for place in rest)]
    return [place for place, good in enumerate(held) if not good]


Note = Callable[[str, int], None]
OF_FUNCTIONS = "values of single functions, without a net, held to their range"
OF_NESTED = "values of nested expressions, without a net, held to their range"


def _all_inside(expressions: Iterator[str], count: int, note: Note, figure: str, table: str = "t") -> None:
    """``count`` admitted expressions, each over rows of extremes: no form fails, none leaves its range."""
    texts, found = [], []
    for expression in itertools.islice(expressions, 20 * count):
        value = _typed(expression)
        if value is not None:
            texts.append(expression)
            found.append(value)
        if len(found) == count:
            break
    assert len(found) == count
    for start in range(0, count, 40):
        wrong = _outside(found[start : start + 40], _bare, table)
        assert not wrong, [(texts[start + place], found[start + place].limits) for place in wrong]
    note(figure, count * (50 if table == "t" else 500))


def _of_function(template: str, rng: random.Random) -> Iterator[str]:
    while True:
        yield _filled(template, rng)


def _nested(rng: random.Random) -> Iterator[str]:
    while True:
        yield rng.choice(KINDS)(rng, rng.choice([1, 2, 2, 3]))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.few(every=8)
def test_each_function_is_inside_its_range(template: str, assurance: Note) -> None:
    """15 choices of arguments over 50 rows of extremes."""
    _all_inside(_of_function(template, random.Random(template)), 15, assurance, OF_FUNCTIONS)


@pytest.mark.long
@pytest.mark.parametrize("template", TEMPLATES)
def test_each_function_is_inside_its_range_100_000_times(template: str, assurance: Note) -> None:
    """200 choices of arguments over 500 rows."""
    _all_inside(_of_function(template, random.Random(f"long {template}")), 200, assurance, OF_FUNCTIONS, _many())


@pytest.mark.long
def test_nested_expressions_fail_on_no_row(assurance: Note) -> None:
    """1,000 expressions over 50 rows, each of which may be the one that others lack."""
    _all_inside(_nested(random.Random(3)), 1_000, assurance, OF_NESTED)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_nested_expressions_fail_on_no_row_of_many(seed: int, assurance: Note) -> None:
    _all_inside(_nested(random.Random(f"many {seed}")), 2_500, assurance, OF_NESTED)


# --- where a range is wrong ------------------------------------------------------------------------------------


def _lying(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Ranges that are wrong now and then, too narrow on either side."""
    real_exact = typed.exact

    def lie(value: Any, low: int, high: int, *rest: Any, **more: Any) -> Typed:
        if rng.random() < 0.3:
            width = high - low
            low, high = low + width // rng.choice([2, 3, 10**6]), high - width // rng.choice([3, 4, 10**6])
        return real_exact(value, min(low, high), max(low, high), *rest, **more)

    for module in (arithmetic, calendar, casts, functions, text_functions):
        monkeypatch.setattr(module, "exact", lie)


def _lies(count: int, seed: int) -> list[Typed]:
    rng = random.Random(f"lies {seed}")
    found: list[Typed] = []
    while len(found) < count:
        value = _typed(whole(rng, 3))
        if value is not None and value.kind == "exact":
            found.append(value)
    return found


def _held(found: list[Typed]) -> list[list[Any]]:
    """The columns of a scan, through the one way that scans go."""
    once = [read_once(value.value, value.line, f"v{number}") for number, value in enumerate(found)]
    held = relation_text(values_of(once, Table("t"), ("id", Name("id", BASE))), {"t": "t"})
    return [list(row) for row in rows()[0].execute(f"SELECT * FROM {held} ORDER BY id").fetchall()]


def _is_held(found: list[Typed]) -> bool:
    for row in _held(found):
        for value, result in zip(found, row[1:], strict=True):
            if result is not None and not value.low <= result <= value.high:
                return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 5, 6])
def test_a_wrong_range_never_fails_and_never_leaves_what_the_plan_relies_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lying(monkeypatch, random.Random(seed))
    found = _lies(250, seed)
    assert _is_held(found)
    # The lies are such that neither the net nor the limits could be left out.
    assert _outside(found, _bare)
    with monkeypatch.context() as patch:
        patch.setattr(value_sql, "_net", lambda text: text)
        with pytest.raises(duckdb.Error):
            _held(found)
    with monkeypatch.context() as patch:
        patch.setattr(total, "_in_range", lambda *_: None)
        assert not _is_held(found)


def test_each_part_has_a_net_of_its_own() -> None:
    """Versions of DuckDB compute a part that stands twice below the projection, and so outside of a TRY around more."""
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT range AS m FROM range(14)")
    part = tree.Call("make_date", (tree.Constant(3, "BIGINT"), tree.Stored("m", "BIGINT"), tree.whole(1)), "DATE")
    texts = [render(tree.Call(function, (part,), "BIGINT")) for function in ("month", "year")]
    assert all(text.count("TRY(") == 2 for text in texts)
    rows = con.execute(f"SELECT {', '.join(texts)} FROM t AS {BASE}").fetchall()
    assert rows == [(m, 3) if 1 <= m <= 12 else (None, None) for m in range(14)]


# --- what was broken once --------------------------------------------------------------------------------------

PEOPLE = policy_of(
    '[tables.p]\nunit = "row"\n[tables.p.columns]\nid = {}\nname = {}\nbig = {}\n'
    "day = { lower = 1990-01-01, upper = 2010-12-31 }\ni = {}\nv = { lower = 0, upper = 10, step = 0.5 }\n"
)


@functools.cache
def _people(*, eve: bool) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE p (id INTEGER, name VARCHAR, big BIGINT, day DATE, i INTEGER, v DOUBLE)")
    con.execute("INSERT INTO p VALUES (1, 'ann', 5, '2000-02-29', 3, 2), (2, 'bob', 6, '1990-01-31', 4, 2)")
    if eve:
        con.execute("INSERT INTO p VALUES (3, 'eve', 7, '2020-02-29', 5, 'nan')")
    return con


def _outcome(batch: str, *, eve: bool) -> str:
    try:
        exact(batch, PEOPLE, _people(eve=eve))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
        return repr(error)
    return "done"


BROKEN = [
    "(CASE WHEN name = 'eve' THEN date_diff('month', DATE '1970-01-01', DATE '2020-02-29') - 653 ELSE 0 END)"
    " * 10000000000000000000000000000000000000 + id > 0",
    "(CASE WHEN name = 'eve' THEN date_diff('month', DATE '1970-01-01', DATE '2020-02-29') - 653 ELSE 0 END)"
    " * 100000000000000000000000000000000000 + id > 0",
    "TRY_CAST(CASE WHEN name = 'eve' THEN '-9223372036854775808' ELSE '0' END AS BIGINT)"
    " * (CASE WHEN big = 7 THEN 18446744073709551616 ELSE 1 END) < -1",
    "width_bucket(i, 0, 1e40, 3) = 1",
    "width_bucket(i, -1e40, 1e40, 3) = 2",
    "width_bucket(v, 0, 1e40, 3) = 1",
]


@pytest.mark.parametrize("condition", BROKEN)
def test_nobody_decides_an_outcome(condition: str) -> None:
    batch = f"SELECT COUNT(*) FROM p WHERE {condition}"
    assert _outcome(batch, eve=True) == _outcome(batch, eve=False)


def test_a_range_that_is_wrong_again_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar, "evaluate_one", lambda *_: 653)
    for condition in BROKEN:
        batch = f"SELECT COUNT(*) FROM p WHERE {condition}"
        assert _outcome(batch, eve=True) == _outcome(batch, eve=False)
    assert _outcome(f"SELECT COUNT(*) FROM p WHERE {BROKEN[0]}", eve=True) == "done"


@pytest.mark.parametrize("unit", UNITS)
def test_differences_of_dates_are_summed_right(unit: str) -> None:
    con = _people(eve=False)
    (answer,) = exact(f"SELECT SUM(date_diff('{unit}', DATE '1900-01-01', day)) FROM p", PEOPLE, con).answers
    wanted = con.execute(f"SELECT SUM(date_diff('{unit}', DATE '1900-01-01', day)) FROM p").fetchone()
    assert (answer,) == wanted


def test_width_buckets_end_where_their_type_does() -> None:
    con = _people(eve=False)
    for low, high, bucket in (("0", "1e40", 1), ("-1e40", "1e40", 2), ("-1e40", "0", 4), ("1e39", "1e40", 0)):
        batch = f"SELECT COUNT_IF(width_bucket(i, {low}, {high}, 3) = {bucket}) FROM p"
        assert exact(batch, PEOPLE, con).answers == [2], (low, high)


def test_nan_is_null_wherever_it_is_read() -> None:
    batch = (
        "SELECT SUM(v), COUNT(v), COUNT_IF(v > 5), COUNT_IF(v IS NULL), COUNT_IF(v * 2 > 5),"
        " COUNT_IF(coalesce(v, 0) = 0), SUM(v + 1), COUNT_IF(v - v IS NULL), COUNT_IF(greatest(v, 1) = 1),"
        " COUNT_IF(v / (i - i) > 1) FROM p"
    )
    assert exact(batch, PEOPLE, _people(eve=True)).answers == [4, 2, 0, 1, 0, 1, 6, 1, 1, 2]


def test_past_128_bits_a_value_is_null_and_its_row_still_counts() -> None:
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\nh = { nulls = false }\nk = { nulls = false }\n')
    con = duckdb.connect()
    con.execute("CREATE TABLE t (h HUGEINT, k BIGINT)")
    con.execute(f"INSERT INTO t VALUES ({10**38}, 1), (2, 1), ({-(2**127)}, 1), ({2**127 - 1}, -1)")
    batch = (
        "SELECT COUNT(*), COUNT_IF(h * 3 + 1 > k), COUNT_IF(CAST(h * 3 + 1 AS VARCHAR) = '7'), COUNT_IF(h > -k),"
        " COUNT_IF((h * 3 + 1) / 2 > 3e0), COUNT_IF(round(h * 0.3) IS NULL), COUNT_IF(h - 5 < k + k),"
        " COUNT_IF(CAST(h * 3 + 1 AS BOOLEAN)) FROM t"
    )
    # 3 h + 1 and 3 h have a value in one row, h - 5 in three; sides that are compared need no difference that has one.
    assert exact(batch, policy, con).answers == [4, 1, 1, 3, 1, 3, 1, 1]


def test_what_may_be_null_says_so() -> None:
    """A computed column that claims to have no NULL would take its rows out of every answer."""
    con, table = rows()[0], table_with("\n".join(f"{name} = {{ nulls = false }}" for name in TYPES))
    held = " AND ".join(f"{name} IS NOT NULL" for name in TYPES)
    con.execute(f"CREATE OR REPLACE TABLE whole AS SELECT * FROM {_many()} WHERE {held} AND NOT isnan(f64)")
    rng, claimed = random.Random(11), []
    for _ in range(600):
        node, scope = parsed(rng.choice(KINDS)(rng, rng.choice([1, 2, 2, 3]))), scope_of(table)
        with contextlib.suppress(SQLError):
            column = registered(value_of(node, scope), node, scope)
            if column.value is not None and not column.policy.nulls:
                claimed.append((node.sql("duckdb"), read_once(column.value, column.line, f"v{len(claimed)}")))
    listed = ", ".join(f"count(*) - count({once.name})" for _, once in claimed)
    found = con.execute(
        f"SELECT {listed} FROM {relation_text(values_of([v for _, v in claimed], Table('whole')), {'whole': 'whole'})}"
    ).fetchone()
    assert len(claimed) > 80
    assert [text for (text, _), nulls in zip(claimed, found or (), strict=True) if nulls] == []


# --- texts ------------------------------------------------------------------------------------------------------


def like(name: str, pattern: str) -> str:
    """DuckDB's text of LIKE."""
    return render(Matches(Name(name), pattern))


def test_like_reads_a_text_once() -> None:
    """DuckDB's own LIKE where it does not step back; RE2 where it would, with the same answers."""
    assert '"~~"' in like("v", "a%b%c")
    assert '"~~"' in like("v", "a__b")
    assert "regexp_full_match" in like("v", "%_a%")
    rng = random.Random(8)
    letters = ["a", "b", "%", "_", "%", "_", ".", "\\", "[", "(", "^", "$", "\n", "Ä", "😀", "'", "}", " ", "*", "|"]
    patterns = {"".join(rng.choices(letters, k=rng.randrange(2, 9))) for _ in range(300)}
    texts = ["".join(rng.choices([*letters, "a", "b"], k=rng.randrange(9))) for _ in range(80)]
    con = duckdb.connect()
    con.execute("CREATE TABLE x (v VARCHAR)")
    con.executemany("INSERT INTO x VALUES (?)", [[v] for v in texts])
    asked = sorted(pattern for pattern in patterns if "_" in pattern and "%" in pattern)
    for pattern in asked:
        listed = f"bool_and(({like('v', pattern)}) = (v LIKE '{pattern.replace(chr(39), 2 * chr(39))}'))"
        assert con.execute(f"SELECT {listed} FROM x").fetchone() == (True,), pattern


def test_a_long_pattern_reads_shorter_texts() -> None:
    """RE2 takes a step for each byte and sign where its states run out: all of both would be a second for a row."""
    for signs in (5, 20, 100, 1000):
        for sign, few in (("_", total.MOST_STATES), ("a", total.MOST_STEPS)):
            cap = int(like("v", "%" + sign * (signs - 1)).split("<= ")[1].split(")")[0])
            most = few if signs > total.FEW_SIGNS else total.MOST_STEPS
            assert cap == min(LONGEST_READ, most // signs)


def test_long_texts_have_no_value_where_they_are_read() -> None:
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\ns = {}\n')
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT unnest(['a', repeat('a', 5000), repeat('a', 70000)]) AS s")
    batch = (
        "SELECT COUNT_IF(s LIKE '%a_%a%'), COUNT_IF(s LIKE '%a'), COUNT_IF(lower(s) > ''), COUNT_IF(length(s) > 0),"
        " COUNT_IF(s || 'x' > ''), COUNT_IF(s > ''), COUNT_IF(length(s) IS NULL), COUNT_IF(contains(s, 'a')) FROM t"
    )
    assert exact(batch, policy, con).answers == [1, 2, 2, 2, 1, 3, 1, 2]


def test_what_a_row_may_build_is_refused_before_anything_is_read() -> None:
    policy = policy_of('[tables.t]\nunit = "row"\n[tables.t.columns]\ns = {}\n')
    con = duckdb.connect()
    con.execute("CREATE TABLE t (s VARCHAR)")
    long = "x" * LONGEST_PART
    for condition, words in [
        (f"concat(s, '{long}x') = 'a'", "a constant of at most 4,096 bytes"),
        (f"s LIKE '%{'_' * 1024}%'", "a pattern has at most 1,024 bytes"),
        (f"contains(s, '{'x' * 1025}')", "a constant of at most 1,024 bytes"),
        (f"concat({', '.join(['s'] * 17)}) = 'a'", "joins texts of up to 69,632 bytes"),
        (" OR ".join(f"s || '{k}{long[1:]}' = 'a'" for k in range(5)), f"at most {MAX_WRITTEN:,} may be"),
    ]:
        with pytest.raises(SQLError, match=words):
            exact(f"SELECT COUNT(*) FROM t WHERE {condition}", policy, con)
    chosen = ";".join(
        f"SELECT COUNT(*) FROM t WHERE lower(CASE WHEN s = 'a' THEN '{k}{'x' * 60_000}' END) = 'b'" for k in range(5)
    )
    with pytest.raises(SQLError, match="that CASE and COALESCE choose from"):
        exact(chosen, policy, con)
    for searched in ("s LIKE '%{}{}%'", "regexp_matches(s, '{}{}')"):
        each = [f"SELECT COUNT(*) FROM t WHERE {searched.format('a' * 40, k)}" for k in range(80)]
        with pytest.raises(SQLError, match="looks for so many words and patterns"):
            exact(";".join(each), policy, con)


def test_a_cap_is_not_put_on_twice() -> None:
    once = capped(Stored("s", "VARCHAR"), LONGEST_READ)
    assert capped(once, LONGEST_READ) is once
    assert capped(once, LONGEST_PART) is not once
