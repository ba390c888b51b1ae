"""Functions of whole numbers, decimals, dates and times: ranges, results and the absence of failures, proved.

For any row that the columns' types hold, an SMT solver finds no counterexample to these: no part of the value fails
behind the CASEs around it; the result lies in the range that the plan relies on; it is what the function means, and
NULL only where it has no value. The solver stops after a number of steps, never after a time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib
import inspect
import math
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import duckdb
import number_cases
import pytest
import time_cases
import z3
from calendar_terms import from_january, from_march, next_month, size, within
from expression_language import parsed, scope_of
from helpers import policy_of
from sqlglot import exp
from value_row import COLUMNS, NO_NULLS, POLICY, Case, Number, Row
from value_terms import CALENDAR, Duty, Terms

from dpsql.common.numerics import CYCLE, INFINITE_DAY, INFINITE_MOMENT, LEAST_MOMENT
from dpsql.sql.values import functions, text_functions
from dpsql.sql.values.admitted import _READ
from dpsql.sql.values.calendar import _TRUNCATED
from dpsql.sql.values.expressions import with_intervals
from dpsql.sql.values.scope import uncapped_table
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.batch import Table
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import literal, render

STEPS = 20_000_000
"""What the solver may do for one proof, in units of its own; none takes a third of it."""
_EACH = "test_expressions::test_each_function_is_duckdbs"
_RANGES = "test_total::test_each_function_is_inside_its_range"
NOT_EXPRESSIBLE = {
    "length": _EACH,
    "strlen": _EACH,
    "strpos": _EACH,
    "strptime": _EACH,
    "cast of a text": _EACH,
    "cast of a DOUBLE": _EACH,
    "sign of a DOUBLE": _EACH,
    "width_bucket of a DOUBLE": _RANGES,
    "AT TIME ZONE": _EACH,
}
"""Functions of texts, DOUBLEs and the rules of time zones, with the fuzz test that stands for a proof."""


def _table() -> Table:
    others = "\n".join(f"{name} = {{}}" for name in COLUMNS if f"\n{name} = " not in POLICY)
    return uncapped_table(policy_of(POLICY + others).tables["t"], COLUMNS)


TABLE = _table()
CASES = (*number_cases.CASES, *time_cases.CASES)
BY_FUNCTION: dict[str, list[Case]] = defaultdict(list)
for _case in CASES:
    BY_FUNCTION[_case.function].append(_case)


def _typed(case: Case) -> Typed:
    return with_intervals(parsed(case.text), scope_of(TABLE), clamped=case.clamped)


def _counterexample(terms: Terms, duty: Duty) -> str:
    """unsat where a duty is proved, sat where it does not hold, unknown after too many steps.

    In a context of its own: what was proved before decides nothing.
    """
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.set("rlimit", STEPS)
    solver.add(*(part.translate(context) for part in (*terms.axioms, z3.Not(duty.holds))))
    return str(solver.check())


def _duties(case: Case, typed: Typed, counts: bool) -> tuple[Terms, list[Duty]]:
    """All that is to be proved of a value."""
    terms = Terms(counts)
    root, row = terms.of(typed.value), Row(terms, case.clamped)
    duties = terms.duties(typed.value)
    names = [column.name for column in tree.stored(typed.value)]
    terms.axioms += [z3.Not(row.null(name)) for name in NO_NULLS.intersection(names)]
    has_value = z3.Not(root.null)
    if typed.kind != "boolean":
        duties.append(Duty("the range", z3.Implies(has_value, within(root.number, typed.low, typed.high))))
    if not typed.nulls:
        duties.append(Duty("never NULL", has_value))
    lacking = z3.Or([row.null(name) for name in names])
    finite = z3.And([z3.Not(row.endless(name)) for name in names])
    if case.strict:
        duties.append(Duty("NULL of NULL", z3.Implies(lacking, root.null)))
        finite = z3.And(finite, z3.Not(lacking))
    scale = math.lcm(typed.unit.denominator, typed.offset.denominator)
    found = Number(root.number * int(typed.unit * scale) + int(typed.offset * scale), scale)
    duties.append(Duty("the meaning", z3.Implies(z3.And(has_value, finite), case.means(found, row))))
    duties.append(Duty("a value", z3.Implies(z3.And(root.null, finite), z3.Not(case.defined(row)))))
    return terms, duties


def _unproved(case: Case, typed: Typed) -> dict[str, str]:
    """The duties without a proof, by name, and whether there is a counterexample."""
    found = {}
    fewer, light = _duties(case, typed, counts=False)
    for number, duty in enumerate(light):
        if _counterexample(fewer, duty) != "unsat":
            terms, duties = _duties(case, typed, counts=True)
            outcome = _counterexample(terms, duties[number])
            if outcome != "unsat":
                found[duty.name] = outcome
    return found


@pytest.mark.parametrize("function", BY_FUNCTION)
@pytest.mark.few("- of one", "abs", "cast to TINYINT", "part week", "a date and days")
def test_proved_for_every_row(function: str) -> None:
    unproved = {case.id: _unproved(case, _typed(case)) for case in BY_FUNCTION[function]}
    assert not {text: duties for text, duties in unproved.items() if duties}


def test_the_calendar_repeats_after_400_years() -> None:
    """What ``Terms`` relies on for all years, of both counts of days; a cycle is held against Python's below."""
    year, month = z3.Ints("year month")
    march, january, real = from_march(year, month), from_january(year, month), within(month, 1, 12)
    for claim in (
        from_march(year + 400, month) == march + CYCLE,
        from_january(year + 400, month) == january + CYCLE,
        size(march) <= 366 * (size(year) + 1_971),
    ):
        assert _counterexample(Terms(), Duty("a count of days", z3.Implies(real, claim))) == "unsat"


@pytest.mark.long
def test_each_month_of_a_cycle_begins_on_pythons_day() -> None:
    year, month = z3.Ints("year month")
    counts = [from_march(year, month), from_january(year, month)]
    epoch = dt.date(1970, 1, 1)
    for y in range(2000, 2400):
        for m in range(1, 13):
            place = (year, z3.IntVal(y)), (month, z3.IntVal(m))
            found = {z3.simplify(z3.substitute(count, *place)).as_long() for count in counts}
            assert found == {(dt.date(y, m, 1) - epoch).days}
            following = [z3.simplify(z3.substitute(part, *place)).as_long() for part in next_month(year, month)]
            assert following == [y + m // 12, m % 12 + 1]


# What is no function of numbers or times, or of texts and DOUBLEs that give others; DuckDB's parser makes no DateSub.
_STRUCTURE = {exp.From, exp.Where, exp.Star, exp.Filter, exp.Alias, exp.TableAlias, exp.Table, exp.Distinct, exp.Order,
              exp.Ordered, exp.Null, exp.Boolean, exp.Escape, exp.SimilarTo,
              exp.DateSub}  # fmt: skip
_OF_TEXT = {exp.Pad, exp.SplitPart, exp.TimeToStr, exp.Monthname, exp.Dayname, "prefix", "suffix"}
_OF_DOUBLES = {*functions.RULES, exp.Log, exp.Pow, exp.IsNan, exp.IsInf}
_LISTED = {
    exp.Length: "length", "strlen": "strlen", exp.StrPosition: "strpos", exp.StrToTime: "strptime",
    "try_strptime": "strptime", exp.AtTimeZone: "AT TIME ZONE", "timezone": "AT TIME ZONE",
}  # fmt: skip


def test_each_admitted_function_is_proved_or_listed() -> None:
    seen: set[object] = set()
    for case in CASES:
        for node in parsed(case.text).walk():
            seen.add(str(node.this).lower() if isinstance(node, exp.Anonymous) else type(node))
    texts = {kind for kind, rule in text_functions.RULES.items() if rule.gives in {"VARCHAR", "BOOLEAN"}}
    elsewhere = _STRUCTURE | _OF_TEXT | _OF_DOUBLES | texts
    conditions = {kind for kind in _READ if issubclass(kind, exp.Predicate | exp.Connector | exp.Not)}
    admitted = {*_READ, *functions.NAMED} - {exp.Anonymous}
    assert admitted - seen - elsewhere - conditions - set(_LISTED) == set()
    assert set(_LISTED.values()) <= set(NOT_EXPRESSIBLE)


def test_nine_of_ten_are_proved_and_a_fuzz_test_stands_for_each_other() -> None:
    assert not set(NOT_EXPRESSIBLE) & set(BY_FUNCTION)
    assert len(BY_FUNCTION) >= 0.9 * (len(BY_FUNCTION) + len(NOT_EXPRESSIBLE))
    for named in NOT_EXPRESSIBLE.values():
        module, _, test = named.partition("::")
        assert inspect.isfunction(getattr(importlib.import_module(module), test))


# The terms beside DuckDB.
_FALSE = z3.BoolVal(False)
DAY_UNITS = ("day", "week", "month", "quarter", "year", "decade", "century")
_ENDS = {
    "DATE": (-INFINITE_DAY, -INFINITE_DAY + 1, -719_529, -1, 0, 18_321, 2_932_896, 80_000_000, INFINITE_DAY),
    "TIMESTAMP": (-INFINITE_MOMENT, LEAST_MOMENT, -62_135_596_800_000_000, -1, 0, 1_582_979_696_789_012,
                  253_402_300_799_999_999, INFINITE_MOMENT - 1, INFINITE_MOMENT),
}  # fmt: skip
_ENDS["TIMESTAMP WITH TIME ZONE"] = _ENDS["TIMESTAMP"]


def _places(rng: random.Random, kind: str) -> int:
    """A value of a type: at its ends, near 0, or anywhere."""
    if kind in _ENDS:
        usual = rng.randint(-400_000, 400_000) * (1 if kind == "DATE" else 86_400_000_000)
        return rng.choice(
            [usual, usual + (0 if kind == "DATE" else rng.randrange(86_400_000_000)), rng.choice(_ENDS[kind])]
        )
    low, high = line_of(kind).ends
    assert low is not None
    assert high is not None
    return rng.choice([low, high, rng.randint(low, high), max(low, min(high, rng.randint(-20, 20)))])


@functools.cache
def _rows() -> tuple[duckdb.DuckDBPyConnection, list[dict[str, int | None]]]:
    rng = random.Random(11)
    rows = [
        {name: None if rng.random() < 0.05 else _places(rng, kind) for name, kind in COLUMNS.items()}
        for _ in range(150)
    ]
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.execute(f"CREATE TABLE t (id INTEGER, {', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
    for number, row in enumerate(rows):
        shown = (
            f"CAST({'NULL' if row[name] is None else literal(line_of(kind), row[name])} AS {kind})"
            for name, kind in COLUMNS.items()
        )
        con.execute(f"INSERT INTO t VALUES ({number}, {', '.join(shown)})")
    return con, rows


def _numbers(typed: Typed) -> list[int | None]:
    """The scan's number of a value in each row."""
    shown = {
        "date": "CAST({0} - DATE '1970-01-01' AS BIGINT)",
        "timestamp": "CASE WHEN isinf({0}) THEN CASE WHEN {0} > TIMESTAMP '2000-01-01' THEN 9223372036854775807 ELSE "
        "-9223372036854775807 END ELSE epoch_us({0}) END",
    }.get(typed.kind, "CAST({0} AS HUGEINT)")
    text = shown.format("v")
    found = _rows()[0].execute(
        f"SELECT {text} FROM (SELECT id, {render(typed.value)} AS v FROM t AS {BASE}) ORDER BY id"
    )
    return [value for (value,) in found.fetchall()]


@pytest.mark.parametrize("function", BY_FUNCTION)
@pytest.mark.few("abs")
def test_terms_are_what_duckdb_computes(function: str) -> None:
    """On given rows the axioms leave one number, and DuckDB computes it."""
    rng = random.Random(function)
    for case in BY_FUNCTION[function]:
        typed = _typed(case)
        assert _counterexample(_duties(case, typed, counts=False)[0], Duty("a contradiction", _FALSE)) != "unsat"
        terms = Terms()
        root, names = terms.of(typed.value), [column.name for column in tree.stored(typed.value)]
        computed = _numbers(typed)
        for at in rng.sample(range(len(computed)), 4):
            row = _rows()[1][at]
            solver = z3.Solver()
            solver.add(*terms.axioms)
            for name in names:
                solver.add(z3.Bool(f"{name} is NULL") == (row[name] is None), z3.Int(name) == (row[name] or 0))
            assert solver.check() == z3.sat, (case.id, row)
            null = z3.is_true(solver.model().eval(root.null, model_completion=True))
            number = solver.model().eval(root.number, model_completion=True).as_long()
            assert (None if null else number) == computed[at], (case.id, {name: row[name] for name in names})


@pytest.mark.parametrize("day", CALENDAR)
def test_the_calendar_of_the_terms_is_within_duckdbs(day: int) -> None:
    """No function fails at its ends, of which the terms say so."""
    at = f"(DATE '1970-01-01' + CAST({day} AS INTEGER))"
    calls = [f"{name}({at})" for name in ("isoyear", "week", "yearweek", "last_day", "epoch_us")]
    calls += [f"date_trunc('{unit}', CAST({at} AS TIMESTAMP))" for unit in _TRUNCATED]
    calls += [f"{name}('{unit}', {at}, DATE '1970-01-01')" for name in ("date_diff", "date_sub") for unit in DAY_UNITS]
    calls += [f"time_bucket(INTERVAL {length}, {at})" for length in ("7 DAY", "5 MONTH", "1000 YEAR")]
    for call in calls:
        assert duckdb.execute(f"SELECT {call}").fetchall() != [(None,)], call


# Mutants: a value or a claim that is wrong, for which there must be a counterexample.
Change = Callable[[Any], Any]


def _changed(node: Any, change: Change) -> Any:
    """A tree with each node changed, from the leaves up."""
    if isinstance(node, tuple):
        return tuple(_changed(part, change) for part in node)
    if not dataclasses.is_dataclass(node) or isinstance(node, type) or not tree.parts(node):  # type: ignore[arg-type]
        return node
    fields = {field.name: _changed(getattr(node, field.name), change) for field in dataclasses.fields(node)}
    return change(dataclasses.replace(node, **fields))


def _unguarded(node: Any) -> Any:
    """Without CASE: what it guards."""
    if not isinstance(node, tree.CaseValue):
        return node
    return node.branches[-1][1] if node.default is None else node.default


def _narrow(node: Any) -> Any:
    return dataclasses.replace(node, type="BIGINT") if getattr(node, "type", "") == "HUGEINT" else node


def _wrong(text: str, change: Callable[[Typed], Typed], clamped: bool = False) -> dict[str, str]:
    case = next(case for case in CASES if case.text == text and case.clamped == clamped)
    return _unproved(case, change(_typed(case)))


@pytest.mark.parametrize(
    "text",
    ["i8 + i64", "i64 // 7", "abs(i64)", "round(dec, 1)", "CAST(dec AS INTEGER)", "i64 % i8", "year(d)", "month(d)",
     "d - e", "make_date(i32, i8, u8)"],
)  # fmt: skip
@pytest.mark.few("abs(i64)", "month(d)")
def test_a_range_that_is_too_narrow_by_one_is_refuted(text: str) -> None:
    low = _wrong(text, lambda typed: dataclasses.replace(typed, low=typed.low + 1))
    high = _wrong(text, lambda typed: dataclasses.replace(typed, high=typed.high - 1))
    assert low == high == {"the range": "sat"}


@pytest.mark.parametrize(
    ("text", "duty"),
    [("i64 // i8", "// of HUGEINT"), ("i64 % j64", "% of BIGINT"), ("i128 + j128", "+ of HUGEINT"),
     ("i128 * j128", "* of HUGEINT"), ("abs(i128)", "abs of HUGEINT"), ("CAST(i128 AS TINYINT)", "the range"),
     ("week(d)", "week of BIGINT"), ("date_trunc('month', d)", "cast of TIMESTAMP"), ("d + 400", "+ of DATE"),
     ("date_diff('month', ts, us)", "date_diff of BIGINT")],
    ids=lambda part: part,
)  # fmt: skip
@pytest.mark.few("i64 % j64-% of BIGINT", "week(d)-week of BIGINT", "d + 400-+ of DATE")
def test_a_guard_that_is_left_out_is_refuted(text: str, duty: str) -> None:
    found = _wrong(text, lambda typed: dataclasses.replace(typed, value=_changed(typed.value, _unguarded)))
    assert found[duty] == "sat"


@pytest.mark.long
@pytest.mark.parametrize("text", ["i64 + j64", "i64 - j64", "i64 * j64", "u64 + u64", "abs(i64)"])
def test_a_type_that_is_too_narrow_is_refuted(text: str) -> None:
    found = _wrong(text, lambda typed: dataclasses.replace(typed, value=_changed(typed.value, _narrow)))
    assert "sat" in {outcome for duty, outcome in found.items() if duty.endswith("of BIGINT")}


@pytest.mark.long
def test_a_bound_that_is_not_clamped_is_refuted() -> None:
    found = _wrong(
        "small + span", lambda typed: dataclasses.replace(typed, value=_changed(typed.value, _unguarded)), True
    )
    assert found["the range"] == "sat"
