"""The Gregorian calendar without ends: days and microseconds from 1970 to years and back, as DuckDB counts them.

Python's calendar ends in 9999 and starts in 1; it repeats after 400 years, which is all that is needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from dpsql.common.numerics import CYCLE, DAY

MICROS = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": DAY, "week": 7 * DAY}
"""Microseconds of a unit of fixed length."""
_EPOCH = dt.date(1970, 1, 1).toordinal()


def civil(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a day number; the year before 1 is 0."""
    cycles, rest = divmod(days, CYCLE)
    found = dt.date.fromordinal(_EPOCH + rest)
    return found.year + 400 * cycles, found.month, found.day


def day_number(year: int, month: int, day: int = 1) -> int:
    cycles, rest = divmod(year - 2000, 400)
    return dt.date(2000 + rest, month, day).toordinal() - _EPOCH + cycles * CYCLE


def century(year: int, length: int) -> int:
    """The century (or millennium) of a year: 1 to 100 are the first, 0 to -99 the first before."""
    return (year - 1) // length + 1 if year > 0 else -((-year) // length + 1)


def iso_year(days: int) -> int:
    """The year of the ISO week that holds a day."""
    # The ISO year of a day is the year of its week's Thursday; day 0 was a Thursday.
    return civil(days - (days + 3) % 7 + 3)[0]


def decade(year: int) -> int:
    """The decade of a year, rounded towards zero."""
    return year // 10 if year >= 0 else -((-year) // 10)


YEARS: dict[str, Callable[[int], int]] = {
    "year": lambda days: civil(days)[0],
    "isoyear": iso_year,
    "decade": lambda days: decade(civil(days)[0]),
    "century": lambda days: century(civil(days)[0], 100),
    "millennium": lambda days: century(civil(days)[0], 1000),
}


def truncation(unit: str) -> Callable[[int], int]:
    """The start of the unit that holds a moment, in microseconds."""
    if unit in {"second", "minute", "hour", "day"}:
        size = MICROS[unit]
        return lambda n: n - n % size
    if unit == "week":
        return lambda n: (n // DAY - (n // DAY + 3) % 7) * DAY
    if unit in {"month", "quarter"}:
        size = 1 if unit == "month" else 3

        def month_start(n: int) -> int:
            year, month, _ = civil(n // DAY)
            return day_number(year, month - (month - 1) % size) * DAY

        return month_start
    span = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}[unit]

    def year_start(n: int) -> int:
        year = civil(n // DAY)[0]
        start = abs(year) // span * span
        return day_number(start if year >= 0 else -start, 1) * DAY

    return year_start


def plus_months(n: int, months: int) -> int:
    """A moment moved by months; the day is cut to the month's last."""
    days, micros = divmod(n, DAY)
    year, month, day = civil(days)
    total = year * 12 + month - 1 + months
    year, month = total // 12, total % 12 + 1
    following = day_number(year + (month == 12), month % 12 + 1)
    first = day_number(year, month)
    return (first + min(day, following - first) - 1) * DAY + micros
