"""Functions of dates and times, with their meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3
from calendar_terms import next_month, size, within
from value_row import COLUMNS, Case, Number, Row, everywhere

from dpsql.common.numerics import DAY
from dpsql.sql.values.calendar import _DIFFERENCES, _TRUNCATED, MONTHS, PARTS
from dpsql.sql.values.civil import MICROS


def _iso(m: Row, day: Any, year: Any) -> tuple[Any, Any]:
    """Whether the ISO year of a day is this one, and the first day of its first week, which holds January 4."""

    def first(y: Any) -> Any:
        fourth = m.january(y) + 3
        return fourth - (fourth + 3) % 7

    return z3.And(first(year) <= day, day < first(year + 1)), first(year)


def _parts() -> Iterator[Case]:
    for name in (*PARTS, *SPELLINGS):
        named = SPELLINGS.get(name, name)
        texts = {
            "d": f"{name}(d)",
            "ts": f"extract({named} FROM ts)",
            "tz": f"date_part('{named}', tz)",
            "born": f"datepart('{named}', born)",
        }
        for a, text in texts.items():
            if (a == "tz" and name == "second") or (a != "d" and name in SPELLINGS):
                continue  # proved of TIMESTAMP, and of the other name

            def means(r: Number, m: Row, a: str = a, name: str = named) -> Any:
                return PART_MEANS[name](r.term, m, a)

            def defined(m: Row, a: str = a, name: str = named) -> Any:
                return m.near(a) if name in {"isoyear", "week", "yearweek"} else everywhere(m)

            yield Case(f"part {named}", text, means, defined, clamped=a == "born")


SPELLINGS = {"weekofyear": "week", "dayofmonth": "day", "weekday": "dayofweek"}


def _of_clock(name: str) -> Callable[[Any, Row, str], Any]:
    def means(n: Any, m: Row, a: str) -> Any:
        whole = {"hour": DAY, "minute": MICROS["hour"], "second": MICROS["minute"]}[name]
        past = (m.micros(a) - n * MICROS[name]) % whole  # of the unit, since it began
        return z3.And(within(n, 0, whole // MICROS[name] - 1), past < MICROS[name])

    return means


def _date(m: Row, a: str) -> tuple[Any, Any, Any]:
    found = m.terms.civil(m.day(a))
    return found.year, found.month, found.day


def _week(n: Any, m: Row, a: str) -> Any:
    day = m.day(a)
    year = m.terms.civil(day - (day + 3) % 7 + 3).year  # of its week's Thursday: some year for which all this holds
    inside, first = _iso(m, day, year)
    return z3.And(inside, first + 7 * (n - 1) <= day, day < first + 7 * n)


def _year_and_week(n: Any, m: Row, a: str) -> Any:
    """The two parts whose own meaning is above."""
    year, week = (m.terms.part(name, m.day(a), z3.IntVal(0)) for name in ("isoyear", "week"))
    return n == z3.If(year > 0, year * 100 + week, year * 100 - week)


def _parts_of(n: Any, length: int, year: Any) -> Any:
    """n is the century or millennium of a year: there is none between the first and the first before it."""
    after = z3.And(n > 0, length * (n - 1) < year, year <= length * n)
    return z3.Or(after, z3.And(n < 0, length * (-n - 1) <= -year, -year < length * -n))


PART_MEANS: dict[str, Callable[[Any, Row, str], Any]] = {
    "year": lambda n, m, a: z3.And(m.january(n) <= m.day(a), m.day(a) < m.january(n + 1)),
    "isoyear": lambda n, m, a: _iso(m, m.day(a), n)[0],
    "decade": lambda n, m, a: z3.And(
        10 * size(n) <= size(_date(m, a)[0]), size(_date(m, a)[0]) < 10 * size(n) + 10, n * _date(m, a)[0] >= 0
    ),
    "century": lambda n, m, a: _parts_of(n, 100, _date(m, a)[0]),
    "millennium": lambda n, m, a: _parts_of(n, 1000, _date(m, a)[0]),
    "quarter": lambda n, m, a: within(_date(m, a)[1], 3 * n - 2, 3 * n),
    "month": lambda n, m, a: z3.And(
        within(n, 1, 12),
        m.terms.month_start(_date(m, a)[0], n) <= m.day(a),
        z3.Or(n == 12, m.day(a) < m.terms.month_start(_date(m, a)[0], n + 1)),
    ),
    "week": _week,
    "yearweek": _year_and_week,
    "day": lambda n, m, a: z3.And(n >= 1, m.day(a) == m.terms.month_start(*_date(m, a)[:2]) + n - 1),
    "dayofyear": lambda n, m, a: m.day(a) == m.january(_date(m, a)[0]) + n - 1,
    "dayofweek": lambda n, m, a: z3.And(within(n, 0, 6), (m.day(a) - (n - 4)) % 7 == 0),
    "isodow": lambda n, m, a: z3.And(within(n, 1, 7), (m.day(a) - (n - 4)) % 7 == 0),
    **{name: _of_clock(name) for name in ("hour", "minute", "second")},
}


def _trunc_means(unit: str, n: Any, m: Row, a: str) -> Any:
    moment = m.micros(a)
    if unit in MICROS:
        length, monday = MICROS[unit], 4 * DAY  # 1970-01-05 was a Monday
        return z3.And((n - (monday if unit == "week" else 0)) % length == 0, n <= moment, moment < n + length)
    year, month, _ = _date(m, a)
    if unit == "month":
        return n == m.terms.month_start(year, month) * DAY
    if unit == "quarter":
        return n == m.terms.month_start(year, z3.If(month < 4, 1, z3.If(month < 7, 4, z3.If(month < 10, 7, 10)))) * DAY
    years = MONTHS[unit] // 12
    of = z3.Int("number of the unit")
    m.terms.axioms.append(z3.And(size(of) * years <= size(year), size(year) < (size(of) + 1) * years, of * year >= 0))
    return n == m.january(of * years) * DAY


def _truncations() -> Iterator[Case]:
    for unit in _TRUNCATED:
        for a, held in (("d", False), ("ts", False), ("born", True)):
            inner = "CAST(ts AS DATE)" if a == "ts" and unit == "year" else a
            yield Case(
                f"date_trunc {unit}",
                f"date_trunc('{unit}', {inner})",
                lambda r, m, a=a, unit=unit: _trunc_means(unit, r.term, m, a),
                lambda m, a=a: m.near(a),
                clamped=held,
            )


def _unit_number(unit: str, m: Row, a: str) -> Any:
    year, month, _ = _date(m, a)
    if unit == "month":
        return year * 12 + month
    if unit == "quarter":  # the one before the year 0 counts as that year's first
        quarter = year * 4 + z3.If(month < 4, 0, z3.If(month < 7, 1, z3.If(month < 10, 2, 3)))
        return z3.If(z3.And(quarter < 0, month % 3 != 1), quarter + 1, quarter)
    years = MONTHS[unit] // 12
    return z3.If(year >= 0, year / years, -(-year / years))


def _differences() -> Iterator[Case]:
    def boundaries(unit: str, r: Number, m: Row, a: str, b: str) -> Any:
        if unit in MICROS:
            if unit == "week":  # DuckDB counts whole weeks
                days = m.day(b) - m.day(a)
                inside = z3.And(7 * size(r.term) <= size(days), size(days) < 7 * size(r.term) + 7)
                return z3.And(inside, r.term * days >= 0)
            least = m.micros(b) - m.micros(a)
            length = MICROS[unit]
            return z3.And(size(r.term * length - least) < length, z3.Implies(least >= 0, r.term >= 0))
        return r.term == _unit_number(unit, m, b) - _unit_number(unit, m, a)

    def whole(unit: str, r: Number, m: Row, a: str, b: str) -> Any:
        n, past = r.term, m.micros(b) - m.micros(a)
        if unit in MICROS:
            length = MICROS[unit]
            inside = z3.And(size(n) * length <= size(past), size(past) < (size(n) + 1) * length)
            return z3.And(inside, z3.Implies(past > 0, n >= 0), z3.Implies(past < 0, n <= 0))
        length = MONTHS[unit]
        months = (m.terms.civil(m.day(b)).year - m.terms.civil(m.day(a)).year) * 12
        months += m.terms.civil(m.day(b)).month - m.terms.civil(m.day(a)).month
        # Months by their numbers, or one nearer to none.
        return z3.And(size(n) * length <= size(months), size(months) <= (size(n) + 1) * length)

    for function, means in (("date_diff", boundaries), ("date_sub", whole)):
        for unit in sorted(_DIFFERENCES):
            dates = [] if unit in {"hour", "minute", "second"} else [("d", "e", False), ("born", "e", True)]
            mixed = [] if function == "date_sub" and unit in MONTHS else [("d", "ts", False)]
            for a, b, held in [*dates, ("ts", "us", False), *mixed]:
                name = "datesub" if function == "date_sub" and held else function
                yield Case(
                    f"{function} {unit}",
                    f"{name}('{unit}', {a}, {b})",
                    lambda r, m, a=a, b=b, unit=unit, means=means: means(unit, r, m, a, b),
                    lambda m, a=a, b=b: m.near(a, b),
                    clamped=held,
                )


def _shifted(n: Any, m: Row, a: str, months: int) -> Any:
    """n is a moment some months later, on the last day of a month that lacks the day."""
    year, month, day = _date(m, a)
    total = year * 12 + (month - 1) + months
    year, month = total / 12, total % 12 + 1
    start, following = m.terms.month_start(year, month), m.terms.month_start(*next_month(year, month))
    past = m.micros(a) - m.day(a) * DAY
    return n == (z3.If(start + day - 1 < following, start + day - 1, following - 1)) * DAY + past


def _shifts() -> Iterator[Case]:
    for unit in (*MICROS, *MONTHS):
        most = 10_000 * 12 // MONTHS[unit] if unit in MONTHS else 3_000_000 * DAY // MICROS[unit]
        for a, amount, sign in (("d", 1, "+"), ("ts", min(most, 900_000_000), "+"), ("ts", 7, "-"), ("born", 5, "-")):
            by = amount if sign == "+" else -amount

            def means(r: Number, m: Row, a: str = a, by: int = by, unit: str = unit) -> Any:
                if unit in MICROS:
                    return r == m.micros_number(a) + by * MICROS[unit]
                return _shifted(r.term, m, a, by * MONTHS[unit])

            if unit in MONTHS and by * MONTHS[unit] * 31 > 3_652_425:
                continue
            text = f"{a} {sign} INTERVAL {amount} {unit}"
            text = f"date_add(d, INTERVAL {amount} {unit})" if a == "d" else text
            yield Case(f"+ interval of {unit}", text, means, lambda m, a=a: m.near(a), clamped=a == "born")
    for number_of_days in (1, 400, 10_000_000):
        for sign in "+-":
            by = number_of_days if sign == "+" else -number_of_days
            yield Case(
                "a date and days",
                f"d {sign} {number_of_days}",
                lambda r, m, by=by: r == m["d"] + by,
                lambda m: m.near("d"),
            )
    yield Case("a date and days", "3 + born", lambda r, m: r == m["born"] + 3, lambda m: m.near("born"), clamped=True)


def _times() -> Iterator[Case]:
    yield Case("days between dates", "d - e", lambda r, m: r == m["d"] - m["e"])
    yield Case("days between dates", "born - e", lambda r, m: r == m["born"] - m["e"], clamped=True)
    for a, b in (("ts", "us"), ("ts", "d"), ("d", "ts")):
        yield Case(
            "time between moments",
            f"epoch_us({a} - {b})",
            lambda r, m, a=a, b=b: r == m.micros_number(a) - m.micros_number(b),
            lambda m, a=a, b=b: m.near(a, b),
        )
    for a in ("d", "ts", "tz"):
        defined = (lambda m: m.near("d")) if a == "d" else everywhere
        yield Case("epoch", f"epoch({a})", lambda r, m, a=a: r * 10**6 == m.micros_number(a), defined)
        yield Case("epoch_us", f"epoch_us({a})", lambda r, m, a=a: r == m.micros_number(a), defined)
        yield Case("cast to TIMESTAMP", f"CAST({a} AS TIMESTAMP)", lambda r, m, a=a: r == m.micros_number(a), defined)
        yield Case(
            "cast to DATE",
            "date(ts)" if a == "ts" else f"CAST({a} AS DATE)",
            lambda r, m, a=a: z3.And(r.term * DAY <= m.micros(a), m.micros(a) < (r.term + 1) * DAY),
        )
        yield Case(
            "last_day",
            f"last_day({a})",
            lambda r, m, a=a: z3.And(
                r.term >= m.day(a), r.term == m.terms.month_start(*next_month(*_date(m, a)[:2])) - 1
            ),
            lambda m, a=a: m.near(a),
        )
    yield Case(
        "make_date",
        "make_date(i32, i8, u8)",
        lambda r, m: r.term == m.terms.month_start(m["i32"].term, m["i8"].term) + m["u8"].term - 1,
        lambda m: z3.And(
            within(m["i32"].term, -200_000, 200_000),
            within(m["i8"].term, 1, 12),
            m["u8"].term >= 1,
            m["u8"].term
            <= m.terms.month_start(*next_month(m["i32"].term, m["i8"].term))
            - m.terms.month_start(m["i32"].term, m["i8"].term),
        ),
    )
    for a, text, length, origin in (
        ("d", "INTERVAL '7 days', d", 7, 10_959),
        ("d", "INTERVAL 2 WEEK, d, DATE '2020-01-03'", 14, 18_264),
        ("d", "INTERVAL 3 DAY, d, INTERVAL '-1' DAY", 3, 10_958),
        ("ts", "INTERVAL '90 minutes', ts", 90 * MICROS["minute"], 10_959 * DAY),
        ("ts", "INTERVAL 1 DAY, ts, INTERVAL 6 HOUR", DAY, 10_959 * DAY + 6 * MICROS["hour"]),
    ):
        yield Case(
            "time_bucket of a fixed length",
            f"time_bucket({text})",
            lambda r, m, a=a, length=length, origin=origin: z3.And(
                (r.term - origin) % length == 0, r.term <= m[a].term, m[a].term < r.term + length
            ),
            lambda m, a=a: m.near(a),
        )
    for a, text, months, since in (
        ("d", "INTERVAL 5 MONTH, d", 5, 24_000),
        ("ts", "INTERVAL '1 year', ts", 12, 24_000),
        ("ts", "INTERVAL 1 QUARTER, ts", 3, 24_000),
        ("d", "INTERVAL 6 MONTH, d, DATE '2020-02-20'", 6, 24_241),
    ):

        def bucket(r: Number, m: Row, a: str = a, months: int = months, since: int = since) -> Any:
            year, month, _ = _date(m, a)
            start = z3.Int("first month of the bucket")
            past = year * 12 + month - 1 - start
            m.terms.axioms.append(z3.And(within(past, 0, months - 1), (start - since) % months == 0))
            return r.term == m.terms.month_start(start / 12, start % 12 + 1) * (DAY if COLUMNS[a] == "TIMESTAMP" else 1)

        yield Case("time_bucket of months", f"time_bucket({text})", bucket, lambda m, a=a: m.near(a))


CASES = tuple(case for family in (_parts, _truncations, _differences, _shifts, _times) for case in family())
