"""Days, months and years as terms of integer arithmetic for an SMT solver, with the functions of DuckDB's calendar."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import reduce
from typing import Any

import z3

from dpsql.common.numerics import CYCLE, DAY, YEAR_2000

_MARCH = 719_468  # days from 0000-03-01 to 1970-01-01
_JANUARY = 719_162  # days from 0001-01-01 to it
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_BEFORE = (0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337)  # days of a year from March before each month


def within(number: Any, low: int, high: int) -> Any:
    return z3.And(number >= low, number <= high)


def size(number: Any) -> Any:
    return z3.If(number >= 0, number, -number)


def choice(place: Any, numbers: tuple[int, ...]) -> Any:
    """The number at a place."""
    last = len(numbers) - 1
    return reduce(lambda rest, k: z3.If(place == k, numbers[k], rest), range(last), z3.IntVal(numbers[last]))


def towards_zero(number: Any, divisor: int) -> Any:
    """A quotient by a positive constant."""
    return z3.If(number >= 0, number / divisor, -(-number / divisor))


@dataclass(frozen=True)
class Date:
    """The date of a day number: ``year`` from January, and the month and day."""

    year: Any
    month: Any
    day: Any


def from_march(year: Any, month: Any) -> Any:
    """The day number of the first of a month, counted in years that begin in March."""
    march = z3.If(month <= 2, year - 1, year)
    return _new_year(march) + choice(z3.If(month <= 2, month + 9, month - 3), _BEFORE) - _MARCH


def from_january(year: Any, month: Any) -> Any:
    """The same from the lengths of months and the leap years before."""
    before = year - 1
    leap = z3.And(year % 4 == 0, z3.Or(year % 100 != 0, year % 400 == 0))
    days = z3.Sum([z3.If(month > k, length, 0) for k, length in enumerate(LENGTHS, 1)])
    start = 365 * before + before / 4 - before / 100 + before / 400 - _JANUARY
    return start + days + z3.If(z3.And(month > 2, leap), 1, 0)


def next_month(year: Any, month: Any) -> tuple[Any, Any]:
    return z3.If(month == 12, year + 1, year), z3.If(month == 12, 1, month + 1)


def _new_year(march: Any) -> Any:
    """Days from 0000-03-01 to the first of March of a year."""
    return 365 * march + march / 4 - march / 100 + march / 400


_INT = z3.IntSort()
_FIRST = z3.Function("first of a month", _INT, _INT, _INT)
_YEAR, _MONTH, _MARCH_YEAR = (z3.Function(f"{name} of a day", _INT, _INT) for name in ("year", "month", "March's year"))


class Calendar:
    """Dates of days over the same row; ``axioms`` define what they name.

    ``counts``: the first days of months are numbers by the rules of leap years; else all that is known of them is what
    ``civil`` says, which is enough where a function and its meaning look at the same months, and far less work.
    """

    def __init__(self, counts: bool) -> None:
        self.counts = counts
        self.axioms: list[Any] = []
        self._dates: dict[str, Date] = {}
        self._days_made: list[tuple[Any, Any]] = []

    def first_day(self, year: Any, month: Any) -> Any:
        """The day number of the first of a month."""
        return from_march(year, month) if self.counts else _FIRST(year, month)

    def month_start(self, year: Any, month: Any) -> Any:
        """The same by another count, for the meaning of a function."""
        return from_january(year, month) if self.counts else _FIRST(year, month)

    def civil(self, day: Any) -> Date:
        """The date of a day: the year, from March, is the one whose first day and the next one's are around it."""
        key = day.sexpr()
        if key in self._dates:
            return self._dates[key]
        known = z3.simplify(day)
        if z3.is_int_value(known):
            cycles, rest = divmod(known.as_long() - YEAR_2000, CYCLE)
            at = dt.date(2000, 1, 1) + dt.timedelta(rest)
            return Date(z3.IntVal(at.year + 400 * cycles), z3.IntVal(at.month), z3.IntVal(at.day))
        if self.counts:
            year = _MARCH_YEAR(day)
            past = day + _MARCH - _new_year(year)
            self.axioms += [past >= 0, day + _MARCH < _new_year(year + 1)]
            month = z3.Sum([z3.If(past >= start, 1, 0) for start in _BEFORE]) - 1
            of_month = past - choice(month, _BEFORE) + 1
            found = Date(z3.If(month >= 10, year + 1, year), z3.If(month >= 10, month - 9, month + 3), of_month)
        else:
            year, month = _YEAR(day), _MONTH(day)
            first, ending = _FIRST(year, month), _FIRST(*next_month(year, month))
            january, following = _FIRST(year, 1), _FIRST(year + 1, 1)
            self.axioms += [
                *(within(month, 1, 12), first <= day, day < ending, within(ending - first, 28, 31)),
                *(january <= first, ending <= following, within(following - january, 365, 366)),
            ]
            for other, at in self._days_made:
                inside = z3.And(_FIRST(other, at) <= day, day < _FIRST(*next_month(other, at)), within(at, 1, 12))
                self.axioms.append(z3.Implies(inside, z3.And(year == other, month == at)))
            found = Date(year, month, day - first + 1)
        self._dates[key] = found
        return found

    def part(self, name: str, day: Any, micros: Any) -> Any:
        """year, month and so on of a day, and of the microseconds past its midnight."""
        if name in {"hour", "minute", "second"}:
            length = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}[name]
            return micros / length % (24 if name == "hour" else 60)
        if name in {"dayofweek", "isodow"}:
            return (day + 4) % 7 if name == "dayofweek" else (day + 3) % 7 + 1
        if name in {"isoyear", "week", "yearweek"}:
            thursday = day - (day + 3) % 7 + 3
            year = self.civil(thursday).year
            week = (thursday - self.first_day(year, z3.IntVal(1))) / 7 + 1
            both = z3.If(year > 0, year * 100 + week, year * 100 - week)
            return {"isoyear": year, "week": week, "yearweek": both}[name]
        date = self.civil(day)
        if name == "dayofyear":
            return day - self.first_day(date.year, z3.IntVal(1)) + 1
        if name in {"century", "millennium"}:
            length = 100 if name == "century" else 1000
            return z3.If(date.year > 0, (date.year - 1) / length + 1, -(-date.year / length) - 1)
        return {
            "year": date.year, "month": date.month, "day": date.day, "quarter": (date.month - 1) / 3 + 1,
            "decade": towards_zero(date.year, 10),
        }[name]  # fmt: skip

    def start_of(self, unit: str, moment: Any) -> Any:
        """The start of the unit that holds a moment."""
        length = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": DAY}.get(unit)
        if length is not None:
            return moment - moment % length
        day = moment / DAY
        if unit == "week":
            return (day - (day + 3) % 7) * DAY
        date = self.civil(day)
        if unit in {"month", "quarter"}:
            months = 1 if unit == "month" else 3
            return self.first_day(date.year, date.month - (date.month - 1) % months) * DAY
        years = {"year": 1, "decade": 10, "century": 100, "millennium": 1000}[unit]
        return self.first_day(towards_zero(date.year, years) * years, z3.IntVal(1)) * DAY

    def boundaries(self, unit: str, start: Any, end: Any) -> Any:
        """The boundaries of a unit between two moments; of weeks, DuckDB counts the whole ones."""
        if unit == "week":
            return towards_zero(end / DAY - start / DAY, 7)

        def number(moment: Any) -> Any:
            length = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": DAY}.get(unit)
            if length is not None:
                return moment / length
            date = self.civil(moment / DAY)
            if unit in {"month", "quarter"}:
                return towards_zero(date.year * 12 + date.month - 1, 1 if unit == "month" else 3)
            return towards_zero(date.year, {"year": 1, "decade": 10, "century": 100}[unit])

        return number(end) - number(start)

    def whole_units(self, unit: str, start: Any, end: Any) -> Any:
        """The whole units between two moments, as date_sub counts them."""
        length = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": DAY, "week": 7 * DAY}
        if unit in length:
            return towards_zero(end - start, length[unit])
        months = z3.If(start > end, -self._months(end, start), self._months(start, end))
        return towards_zero(months, {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200}[unit])

    def _months(self, start: Any, end: Any) -> Any:
        """Whole months from a moment to a later one; the last day of a month ends one that began on a later day."""
        first, last = self.civil(start / DAY), self.civil(end / DAY)
        months = (last.year - first.year) * 12 + last.month - first.month
        following = self.first_day(*next_month(last.year, last.month))
        is_last = following == end / DAY + 1
        day = z3.If(z3.And(is_last, first.day > last.day), last.day, first.day)
        short = z3.Or(last.day < day, z3.And(last.day == day, end % DAY < start % DAY))
        return z3.If(short, months - 1, months)

    def plus_months(self, moment: Any, months: Any) -> Any:
        """A moment some months later, on the last day of the month where it is shorter."""
        date = self.civil(moment / DAY)
        total = date.year * 12 + date.month - 1 + months
        year, month = total / 12, total % 12 + 1
        first, following = self.first_day(year, month), self.first_day(*next_month(year, month))
        by = months.as_long()
        start = moment / DAY - (date.day - 1)
        self.axioms.append(within(first - start, *sorted((28 * by, 31 * by))))  # each month has 28 to 31 days
        self.axioms.append(within(following - first, 28, 31))
        day = z3.If(date.day > following - first, following - first, date.day)
        return (first + day - 1) * DAY + moment % DAY
