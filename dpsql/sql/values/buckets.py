"""Buckets of time: time_bucket and last_day, which rise with the date or time that they are of."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from dpsql.common.numerics import DAY
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.calendar import (
    MONTHS,
    if_near,
    interval_of,
    moment,
    narrowed,
    near,
    rising,
    utc,
    zoneless,
)
from dpsql.sql.values.civil import MICROS, civil, day_number, plus_months
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr.values import Call, Constant, Value

_MONDAY = day_number(2000, 1, 3) * DAY
"""Where DuckDB counts buckets of a fixed length from."""
_JANUARY = 2000 * 12 + 1
"""The month that it counts buckets of months from: January 2000."""
_MOST = 10_000 * 366 * DAY


def last_day(t: Typed, node: exp.Expr) -> Typed:
    """The last day of the month that holds t, as DATE; NULL for infinite dates."""
    t = moment(utc(t), node)
    day = 1 if t.kind == "date" else DAY

    def end(n: int) -> int:
        year, month, _ = civil(n // day)
        return day_number(year + (month == 12), month % 12 + 1) - 1

    domain = near(t.kind)
    value = if_near(t, Call("last_day", (t.value,), "DATE"), "DATE")
    low, high = (end(min(max(n, domain[0]), domain[1])) for n in (t.low, t.high))
    nulls = t.nulls or not (domain[0] <= t.low and t.high <= domain[1])
    return Typed("date", value, low=low, high=high, nulls=nulls, gap=t.gap, path=narrowed(t, (domain,), end))


def bucket(interval: exp.Expr, t: Typed, origin: Typed | exp.Interval | None, node: exp.Expr) -> Typed:
    """time_bucket(interval, t [, origin or offset]): the start of the bucket that holds t, of t's own type."""
    if not isinstance(interval, exp.Interval):
        raise refuse(f"{shown(node)} takes a constant interval first, such as INTERVAL '7 days'", node)
    amount, unit = interval_of(interval)
    t = moment(zoneless(t, node), node)
    months, size = MONTHS.get(unit, 0) * amount, MICROS.get(unit, 0) * amount
    if not 0 < months * 31 * DAY + size <= _MOST:
        raise refuse(f"{shown(node)} takes an interval of more than nothing and at most 10,000 years", node)
    if t.kind == "date" and size % DAY:
        raise refuse(f"{shown(node)}: buckets of dates are whole days; CAST the date AS TIMESTAMP", node)
    step = (
        Call("to_months", (Constant(months, "INTEGER"),), "INTERVAL")
        if months
        else Call("to_microseconds", (Constant(size, "BIGINT"),), "INTERVAL")
    )
    start, written = _origin(origin, t.kind, bool(months), node)
    kind = "DATE" if t.kind == "date" else "TIMESTAMP"
    per_step = DAY if t.kind == "date" else 1
    value: Value = Call("time_bucket", (step, t.value, *written), kind)

    reach = (months * 31 * DAY + size) // per_step + 1
    return rising(t, kind, value, _first(months, size, start, per_step), (t.low - reach, t.high))


def starts_of(call: Call) -> tuple[Callable[[int], int], Callable[[int], int]] | None:
    """The start of the bucket of a number, and of the next one, for a call of time_bucket as ``bucket`` makes it."""
    step, _, *origin = call.arguments
    if not isinstance(step, Call) or not isinstance(step.arguments[0], Constant):
        return None
    length = int(step.arguments[0].value or 0)
    months, size = (length, 0) if step.function == "to_months" else (0, length)
    per_step = DAY if call.type == "DATE" else 1
    given = origin[0] if origin else None
    if isinstance(given, Constant):
        start = int(given.value or 0) * per_step
        year, month, _ = civil(start // DAY)
        start = year * 12 + month if months else start
    else:
        start = _JANUARY if months else _MONDAY
    first = _first(months, size, start, per_step)

    def after(n: int) -> int:
        return (plus_months(first(n) * per_step, months) if months else first(n) * per_step + size) // per_step

    return first, after


def _first(months: int, size: int, start: int, per_step: int) -> Callable[[int], int]:
    """The start of the bucket of a number: of ``months``, or of ``size`` microseconds, counted from ``start``."""

    def first(n: int) -> int:
        if not months:
            return (start + (n * per_step - start) // size * size) // per_step
        year, month, _ = civil(n * per_step // DAY)
        number = (year * 12 + month - start) // months * months + start - 1
        return day_number(number // 12, number % 12 + 1) * DAY // per_step

    return first


def _origin(
    origin: Typed | exp.Interval | None, kind: str, months: bool, node: exp.Expr
) -> tuple[int, tuple[Constant, ...]]:
    """Where buckets count from, in microseconds (months: the number of the month), and as DuckDB's third argument."""
    if origin is None:
        return (_JANUARY, ()) if months else (_MONDAY, ())
    per_step = DAY if kind == "date" else 1
    if isinstance(origin, exp.Interval):
        amount, unit = interval_of(origin)
        if months or unit in MONTHS or MICROS[unit] * amount % per_step or abs(MICROS[unit] * amount) > _MOST:
            raise refuse(f"{shown(node)} takes an offset of days or less with buckets of days or less", node)
        start = _MONDAY + MICROS[unit] * amount
    elif origin.is_constant and origin.kind in {"date", "timestamp"}:
        start = origin.low * (DAY if origin.kind == "date" else 1)
        if start % per_step:
            raise refuse(f"{shown(node)}: buckets of dates count from a date", node)
    else:
        raise refuse(f"{shown(node)} takes a constant date, time or interval to count from", node)
    written = Constant(start // per_step, "DATE" if kind == "date" else "TIMESTAMP")
    if not months:
        return start, (written,)
    year, month, _ = civil(start // DAY)
    return year * 12 + month, (written,)
