"""Dates and times: their parts, truncation, differences and shifts, as total functions.

DuckDB's own functions fail near the ends of its calendar. Those that do are computed for the years
-200,000 to 200,000 alone; other finite values give NULL, infinite ones stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from sqlglot import exp

from dpsql.common.numerics import CYCLE, DAY, YEAR_2000
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.civil import MICROS, YEARS, day_number, plus_months, truncation
from dpsql.sql.values.evaluation import evaluate_one
from dpsql.sql.values.typed import DAYS, MOMENTS, Path, Typed, exact, flat, gaps, integer_call, stepped, whole
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Compared, Constant, Every, Test, Value

Branches: TypeAlias = tuple[tuple[Test, Value], ...]
_FARTHEST = 3_652_425 * DAY
_MOST_YEARS = 200_000
# The first days of the years -200,000 and 200,000: 400-year cycles from the year 2000.
NEAR = (YEAR_2000 - 505 * CYCLE, YEAR_2000 + 495 * CYCLE)

# Parts of a date or time: least and greatest value, and whether DuckDB fails at its calendar's ends.
PARTS: dict[str, tuple[int, int]] = {
    "year": (-300_000, 300_000),
    "isoyear": (-200_001, 200_001),
    "decade": (-30_000, 30_000),
    "century": (-3_000, 3_000),
    "millennium": (-300, 300),
    "quarter": (1, 4),
    "month": (1, 12),
    "week": (1, 53),
    "yearweek": (-20_000_153, 20_000_153),
    "day": (1, 31),
    "dayofyear": (1, 366),
    "dayofweek": (0, 6),
    "isodow": (1, 7),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}
_NAMES = {
    "dayofmonth": "day",
    "dow": "dayofweek",
    "weekday": "dayofweek",
    "doy": "dayofyear",
    "weekofyear": "week",
    "years": "year",
    "months": "month",
    "days": "day",
    "hours": "hour",
    "minutes": "minute",
    "seconds": "second",
    "quarters": "quarter",
    "weeks": "week",
    "decades": "decade",
    "centuries": "century",
    "millennia": "millennium",
}
_FAILING = {"isoyear", "week", "yearweek"}
_RISING = {"year", "decade", "century", "millennium", "isoyear"}
_TRUNCATED = ("millennium", "century", "decade", "year", "quarter", "month", "week", "day", "hour", "minute", "second")
_DIFFERENCES = {"year", "quarter", "month", "week", "day", "hour", "minute", "second", "decade", "century"}
MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}


def part_name(text: str) -> str:
    """A part's name without its other spellings."""
    folded = text.strip().lower()
    return _NAMES.get(folded, folded)


def utc(t: Typed) -> Typed:
    """A TIMESTAMPTZ as the TIMESTAMP that it is in UTC, whatever zone the connection is set to."""
    if t.kind != "timestamptz":
        return t
    micros = Call("make_timestamp", (Call("epoch_us", (t.value,), "BIGINT"),), "TIMESTAMP")
    value = CaseValue(infinities(t.value, "TIMESTAMP WITH TIME ZONE", "TIMESTAMP"), micros, "TIMESTAMP")
    return replace(t, kind="timestamp", value=value, column=None, path=None)


def part(name: str, t: Typed, node: exp.Expr) -> Typed:
    """year(t), month(t) and so on; NULL for infinite dates."""
    name = part_name(name)
    if name not in PARTS:
        parts = ", ".join(sorted(PARTS))
        raise refuse(f"the part {name[:30]} is not answered; known are {parts}", node)
    t = moment(utc(t), node)
    low, high = PARTS[name]
    if t.kind == "date" and name == "year":
        low, high = -6_000_000, 6_000_000
    elif t.kind == "date" and name in {"decade", "century", "millennium"}:
        low, high = 20 * low, 20 * high
    found: Value = Call(name, (t.value,), "BIGINT")
    domain = (_finite(t),)
    if name in _FAILING:
        found, domain = if_near(t, found, "BIGINT"), (near(t.kind),)
    path = None
    if name in _RISING:
        work = YEARS[name]
        path = narrowed(t, domain, lambda n: work(n if t.kind == "date" else n // DAY))
        first, last = max(t.low, domain[0][0]), min(t.high, domain[0][1])
        if first <= last:
            low, high = (work(end if t.kind == "date" else end // DAY) for end in (first, last))
    finite = domain[0][0] <= t.low and t.high <= domain[0][1]
    result = exact(found, low, high, "integer", t, gap=name in _RISING or name == "yearweek")
    return replace(result, path=path, nulls=t.nulls or not finite)


def truncated(unit: str, t: Typed, node: exp.Expr) -> Typed:
    """date_trunc: the start of the unit that holds t, as TIMESTAMP."""
    unit = part_name(unit)
    if unit not in _TRUNCATED:
        raise refuse(f"date_trunc takes one of {', '.join(_TRUNCATED)}, not {unit[:30]}", node)
    t = moment(zoneless(t, node), node)
    day = 1 if t.kind == "timestamp" else DAY
    as_moment = t.value if t.kind == "timestamp" else Cast(t.value, "TIMESTAMP")
    value = Call("date_trunc", (Constant(unit, "VARCHAR"), as_moment), "TIMESTAMP")
    start = truncation(unit)
    low, high = (start(n * day) if _is_near(n, t.kind) else n * day for n in (t.low, t.high))
    return rising(t, "TIMESTAMP", value, lambda n: start(n * day), (low, high))


def day_of(t: Typed, node: exp.Expr) -> Typed:
    """The date of a timestamp, as CAST(t AS DATE) gives it."""
    t = moment(utc(t), node)
    if t.kind == "date":
        return t

    def day(n: int) -> int:
        return _infinite(n, True, DAYS) or n // DAY

    low, high = day(t.low), day(t.high)
    value: Value = Cast(t.value, "DATE")
    if low == DAYS[0] or high == DAYS[1]:
        # Some versions move a comparison of the bare cast to the other side, where an infinite date is none.
        value = CaseValue(infinities(t.value, "TIMESTAMP", "DATE"), value, "DATE")
    return Typed("date", value, low=low, high=high, nulls=t.nulls, gap=t.gap, path=stepped(t.path, day))


def moment_of(t: Typed, node: exp.Expr) -> Typed:
    """CAST(t AS TIMESTAMP), midnight of a date; a TIMESTAMPTZ in UTC."""
    t = moment(utc(t), node)
    if t.kind == "timestamp":
        return t
    return rising(t, "TIMESTAMP", Cast(t.value, "TIMESTAMP"), lambda n: n * DAY, (t.low * DAY, t.high * DAY))


def difference(unit: str, start: Typed, end: Typed, node: exp.Expr, function: str = "date_diff") -> Typed:
    """date_diff(unit, start, end): the boundaries of the unit between the two; NULL for infinite ones.

    ``function`` may be date_sub, the whole units between the two.
    """
    unit = part_name(unit)
    if unit not in _DIFFERENCES:
        raise refuse(f"{function} takes one of {', '.join(sorted(_DIFFERENCES))}, not {unit[:30]}", node)
    a, b = _same(start, end, node)
    call: Value = Call(function, (Constant(unit, "VARCHAR"), a.value, b.value), "BIGINT")
    if a.kind == "date" and unit not in {"day", "week", "month", "quarter", "year", "decade", "century"}:
        raise refuse("a difference of dates goes by day at least; write date_diff('day', ...) * 24", node)
    value = if_near(a, if_near(b, call, "BIGINT"), "BIGINT")
    # It falls with the start and rises with the end.
    own, (first, last) = line_type(a.kind), near(a.kind)
    (a_low, a_high), (b_low, b_high) = (
        tuple(Constant(min(max(n, first), last), own) for n in (t.low, t.high)) for t in (a, b)
    )
    low, high = (
        int(evaluate_one(Call(function, (Constant(unit, "VARCHAR"), start, end), "BIGINT"), "exact"))
        for start, end in ((a_high, b_low), (a_low, b_high))
    )
    found = exact(value, low, high, "integer", a, b)
    return replace(found, nulls=a.nulls or b.nulls or not (all_near(a) and all_near(b)))


def time_between(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    """a - b: of two dates in days, infinite ones as DuckDB's day numbers; else an interval, counted in microseconds."""
    if a.kind == b.kind == "date":
        days = Call("-", (a.value, b.value), "BIGINT")
        return exact(days, a.low - b.high, a.high - b.low, "integer", a, b)
    x, y = (replace(_micros(t, node), path=None) for t in (a, b))
    parts = ((t.value, t.low, t.high) for t in (x, y))
    value, low, high = integer_call("-", node, x.low - y.high, x.high - y.low, *parts)
    return replace(exact(value, low, high, "integer", x, y), kind="interval", nulls=True)


def interval(node: exp.Interval) -> Typed:
    """A constant INTERVAL in microseconds; a month has 30 days, as where DuckDB compares intervals."""
    amount, unit = interval_of(node)
    micros = amount * (30 * DAY * MONTHS[unit] if unit in MONTHS else MICROS[unit])
    return Typed("interval", Constant(micros, "BIGINT"), low=micros, high=micros, nulls=False)


def micros_of(t: Typed) -> Typed:
    """An interval as a whole number of microseconds."""
    return replace(t, kind="exact", family="integer")


def epoch(t: Typed, node: exp.Expr, unit: Fraction) -> Typed:
    """The time since 1970, or an interval, in parts of ``unit`` microseconds; NULL for infinite dates.

    A DOUBLE in DuckDB where it is in seconds, here exact.
    """
    found = micros_of(t) if t.kind == "interval" else _micros(t, node)
    return replace(found, unit=1 / unit, family="integer" if unit == 1 else "double")


def _micros(t: Typed, node: exp.Expr) -> Typed:
    t = moment_of(t, node)
    value = Call("epoch_us", (t.value,), "BIGINT")
    path = narrowed(t, (_finite(t),), lambda n: n)
    return replace(exact(value, t.low, t.high, "integer", t), path=path, nulls=t.nulls or not all_near(t))


def made(year: Typed, month: Typed, day: Typed, node: exp.Expr) -> Typed:
    """make_date(year, month, day); NULL where there is no such day."""
    for t in (year, month, day):
        if t.kind != "exact" or t.family != "integer":
            raise refuse(f"{shown(node)} takes whole numbers, not {t.words}", node, code="mixed-types")
    y, m, d = (flat(t, node, Fraction(1)) for t in (year, month, day))
    held: list[Value] = []
    tests: list[Test] = []
    for t, least, most in ((y, -_MOST_YEARS, _MOST_YEARS), (m, 1, 12), (d, 1, 31)):
        own = t.value.type
        inside = Call("greatest", (t.value, Constant(least, own)), own) if t.low < least else t.value
        inside = Call("least", (inside, Constant(most, own)), own) if t.high > most else inside
        held.append(whole(inside, "BIGINT"))
        tests.append(Compared(inside, "=", t.value))
    one = Constant(1, "BIGINT")
    first = Call("make_date", (held[0], held[1], one), "DATE")
    # Counted from the first of the month, a day that the month lacks is one of the next.
    found = Call("+", (first, Cast(Call("-", (held[2], one), "BIGINT"), "INTEGER")), "DATE")
    tests.append(Compared(Call("month", (found,), "BIGINT"), "=", held[1]))
    value = CaseValue(((Every(tuple(tests)), found),), None, "DATE")
    years = [min(max(end, -_MOST_YEARS), _MOST_YEARS) for end in (y.low, y.high)]
    low, high = day_number(years[0], 1, 1), day_number(years[1], 12, 31)
    return Typed("date", value, low=low, high=high, gap=gaps(y, m, d))


def shifted_days(t: Typed, days: Typed, node: exp.Expr, *, forward: bool) -> Typed:
    """A date plus or minus whole days; NULL past the year 200,000."""
    if days.kind != "exact" or days.family != "integer":
        raise refuse(f"{shown(node)} adds {days.words} to a date; add whole days or an INTERVAL constant", node)
    if not days.is_constant:
        raise refuse(f"{shown(node)} adds a column to a date; compare date_diff('day', ...) with the column", node)
    number = int(days.offset) * (1 if forward else -1)
    if abs(number) > 10_000_000:
        raise refuse(f"{shown(node)} leaves the calendar; add at most 10,000,000 days", node, code="function")
    # Within the near years no shift of this size leaves DuckDB's calendar.
    value = Call("+", (t.value, Constant(number, "INTEGER")), "DATE")
    low, high = (_infinite(n, False, DAYS) or n + number for n in (t.low, t.high))
    return rising(t, "DATE", value, lambda n: n + number, (low, high))


def shifted_by(t: Typed, interval: exp.Interval, node: exp.Expr, *, forward: bool) -> Typed:
    """A date or timestamp plus or minus a constant INTERVAL, as TIMESTAMP."""
    amount, unit = interval_of(interval)
    t = moment_of(zoneless(t, node), node)
    amount = amount if forward else -amount
    add_interval(0, amount, unit, node)  # refuses what is too far
    months = MONTHS.get(unit)
    if months is not None:
        step: Value = Call("to_months", (Constant(months * amount, "INTEGER"),), "INTERVAL")
        reach = abs(months * amount) * 31 * DAY
    else:
        step = Call("to_microseconds", (Constant(MICROS[unit] * amount, "BIGINT"),), "INTERVAL")
        reach = MICROS[unit] * abs(amount)
    value = Call("+", (t.value, step), "TIMESTAMP")
    return rising(t, "TIMESTAMP", value, lambda n: add_interval(n, amount, unit, node), (t.low - reach, t.high + reach))


def add_interval(micros: int, amount: int, unit: str, node: exp.Expr) -> int:
    """A moment plus an interval of ``interval_of``, in microseconds."""
    months = MONTHS.get(unit)
    if abs(amount) * (MICROS.get(unit) or 31 * DAY * (months or 1)) > _FARTHEST:
        raise refuse(f"{shown(node)} leaves the calendar; add at most 10,000 years", node, code="function")
    return micros + amount * MICROS[unit] if months is None else plus_months(micros, amount * months)


def interval_of(node: exp.Interval) -> tuple[int, str]:
    """(amount, unit) of a constant INTERVAL; SQLError for one of mixed or broken units."""
    unit = part_name(str(node.args["unit"].name)) if node.args.get("unit") is not None else ""
    number = node.this
    sign = 1
    while isinstance(number, exp.Paren | exp.Neg):
        sign = -sign if isinstance(number, exp.Neg) else sign
        number = number.this
    text = str(number.this) if isinstance(number, exp.Literal) else ""
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) > 9 or unit not in {*MICROS, *MONTHS}:
        raise refuse("an interval is a whole number of one unit; write INTERVAL 3 MONTH", node)
    return sign * int(text), unit


def zoneless(t: Typed, node: exp.Expr) -> Typed:
    """The value; SQLError for a TIMESTAMPTZ."""
    if t.kind != "timestamptz":
        return t
    raise refuse(
        f"{shown(node)} depends on a time zone; write CAST(... AS TIMESTAMP), which is UTC", node, code="function"
    )


def moment(t: Typed, node: exp.Expr) -> Typed:
    if t.kind not in {"date", "timestamp"}:
        raise refuse(
            f"{shown(node)} needs a DATE or TIMESTAMP, not {t.words}; write TRY_CAST(... AS DATE)",
            node,
            code="mixed-types",
        )
    return t


def _same(a: Typed, b: Typed, node: exp.Expr) -> tuple[Typed, Typed]:
    a, b = moment(utc(a), node), moment(utc(b), node)
    if a.kind != b.kind:
        return moment_of(a, node), moment_of(b, node)
    return a, b


def line_type(kind: str) -> str:
    return line_of("DATE" if kind == "date" else "TIMESTAMP").type


def near(kind: str) -> tuple[int, int]:
    return (NEAR[0], NEAR[1]) if kind == "date" else (NEAR[0] * DAY, NEAR[1] * DAY)


def _is_near(n: int, kind: str) -> bool:
    low, high = near(kind)
    return low <= n <= high


def all_near(t: Typed) -> bool:
    return _is_near(t.low, t.kind) and _is_near(t.high, t.kind)


def _finite(t: Typed) -> tuple[int, int]:
    low, high = _ends(line_type(t.kind))
    return low + 1, high - 1


def _ends(kind: str) -> tuple[int, int]:
    """The infinite days or moments of a type."""
    return DAYS if kind == "DATE" else MOMENTS


def infinities(value: Value, source: str, kind: str) -> Branches:
    """An infinity of type ``kind`` for each infinity of a value of type ``source``."""
    ends = zip(_ends(source), _ends(kind), strict=True)
    return tuple((Compared(value, "=", Constant(end, source)), Constant(to, kind)) for end, to in ends)


def if_near(t: Typed, value: Value, kind: str, infinities: Branches = ()) -> Value:
    """The value for near years, ``infinities`` at infinite ones, NULL elsewhere."""
    if all_near(t) or isinstance(t.value, Constant):
        return value
    own, null = line_type(t.kind), Constant(None, kind)
    low, high = (Constant(end, own) for end in near(t.kind))
    outside = (Compared(t.value, "<", low), null), (Compared(t.value, ">", high), null)
    return CaseValue((*infinities, *outside), value, kind)


def rising(t: Typed, kind: str, value: Value, function: Callable[[int], int], ends: tuple[int, int]) -> Typed:
    """``value``, which is ``function`` of t's number, as a date or timestamp: infinite where t is, NULL in far years.

    The function does not fall; ``ends`` are the least and greatest number that it gives.
    """
    own, to = _ends(line_type(t.kind)), _ends(kind)
    low, high = (max(to[0], min(to[1], end)) for end in ends)
    pieces = (own[0], own[0]), near(t.kind), (own[1], own[1])
    path = narrowed(t, pieces, lambda n: _infinite(n, t.kind == "timestamp", to) or function(n))
    found = if_near(t, value, kind, infinities(t.value, line_type(t.kind), kind))
    return Typed(line_of(kind).kind, found, low=low, high=high, nulls=t.nulls or not all_near(t), gap=t.gap, path=path)


def _infinite(n: int, micros: bool, to: tuple[int, int]) -> int | None:
    """The infinity that an infinite day or moment becomes; None for a finite one."""
    low, high = MOMENTS if micros else DAYS
    return to[0] if n <= low else to[1] if n >= high else None


def narrowed(t: Typed, pieces: tuple[tuple[int, int], ...], function: Callable[[int], int]) -> Path | None:
    """The path of a function that has values on ``pieces`` of t's own numbers alone.

    Only for a plain column (whose path is the identity): elsewhere the pieces' preimages may be anything.
    """
    if t.path is None or t.column is None:
        return stepped(t.path, function) if t.path is not None and all_near(t) else None
    return Path(t.path.column, pieces, function)
