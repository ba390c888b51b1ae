"""Periods: a table that grows, cut by a column of days into stretches that are released one by one.

``periods = { column = "day", every = "1 month", first = 2024-01-01 }`` puts every row into one period at most, by what
the row itself says: period i begins ``every`` times i after ``first`` and ends where the next begins. Rows before
``first`` and rows without a day are in none, and are never counted. A period is closed once its end is ``wait`` days
past; rows of closed ones alone are counted, so that no row is expected any more.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from dpsql.errors import PolicyError, nearest
from dpsql.policy.settings import fix, text
from dpsql.policy.values import dotted, fold, kind_of, shown

_EVERY = re.compile(r"(?:([1-9][0-9]{0,3}) )?(day|week|month|quarter|year)s?")
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
EXAMPLE = '{ column = "day", every = "1 month", first = 2024-01-01 }'


@dataclass(frozen=True)
class Periods:
    """Which period a row of a table is in. ``every`` is a number of days, weeks, months, quarters or years.

    A period is named by its first day, as ISO 8601 writes it. Numbers of periods count from 0.
    """

    column: str
    every: str
    first: dt.date
    wait: int = 0

    def __post_init__(self) -> None:
        text("periods.column", self.column)
        found = _EVERY.fullmatch(self.every.strip().lower()) if isinstance(self.every, str) else None
        if found is None:
            raise PolicyError(
                f"periods.every is {shown_or_kind(self.every)}; write a number of days, weeks, months, quarters or "
                'years, such as "1 month"'
            )
        fix(self, "every", f"{found[1] or '1'} {found[2]}")
        if isinstance(self.first, dt.datetime) or not isinstance(self.first, dt.date):
            raise PolicyError(
                f"periods.first is {kind_of(self.first)}; write the first day of the first period, such as 2024-01-01, "
                "without a time or a time zone"
            )
        if self._months and self.first.day > 28:
            raise PolicyError(
                f"periods.first is {self.first}, and not every month has a day {self.first.day}; begin on a day from 1 "
                "to 28"
            )
        if isinstance(self.wait, bool) or not isinstance(self.wait, int) or not 0 <= self.wait <= 366:
            raise PolicyError("periods.wait is how many days rows may be late; write a whole number from 0 to 366")
        if self._start(1) is None:
            raise PolicyError("periods.every leads beyond the year 9999; write a shorter one")

    @classmethod
    def of(cls, where: str, given: object) -> Periods:
        """The periods that a policy declares at the key ``where``; PolicyError with what to write."""
        if isinstance(given, Periods):
            return given
        if not isinstance(given, Mapping):
            raise PolicyError(f"{where} is {kind_of(given)}; write {EXAMPLE}")
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise PolicyError(f"{where}.{dotted(name)} is not a setting; {nearest(name, known)}")
        for name in known[:3]:
            if name not in given:
                raise PolicyError(f"{where}.{name} is missing; write {EXAMPLE}")
        failure = ""
        try:
            return cls(**given)
        except PolicyError as error:
            failure = str(error)
        raise PolicyError(f"{where.removesuffix('periods')}{failure}")

    @cached_property
    def _months(self) -> int:
        """How many months a period has; 0 where it has days."""
        number, unit = self.every.split()
        return int(number) * _MONTHS.get(unit, 0)

    @cached_property
    def _days(self) -> int:
        number, unit = self.every.split()
        return int(number) * _DAYS.get(unit, 0)

    def _start(self, number: int) -> dt.date | None:
        """The first day of a period; None beyond the year 9999."""
        try:
            if self._days:
                return self.first + dt.timedelta(days=self._days * number)
            month = self.first.year * 12 + self.first.month - 1 + self._months * number
            return dt.date(month // 12, month % 12 + 1, self.first.day)
        except (OverflowError, ValueError):
            return None

    def start(self, number: int) -> dt.date:
        """The first day of a period; the last day that there is beyond the year 9999."""
        return self._start(number) or dt.date.max

    def number(self, day: dt.date) -> int | None:
        """The period that a day lies in; None before the first."""
        if day < self.first:
            return None
        if self._days:
            return (day - self.first).days // self._days
        months = (day.year - self.first.year) * 12 + day.month - self.first.month - (day.day < self.first.day)
        return months // self._months

    def closed(self, today: dt.date) -> int:
        """How many periods are closed: the numbers below."""
        waited = today.toordinal() - self.wait
        return (self.number(dt.date.fromordinal(waited)) or 0) if waited >= 1 else 0

    def named(self, name: str) -> int | None:
        """The number of the period of that name; None where no period is called so."""
        try:
            day = dt.date.fromisoformat(name)
        except ValueError:
            return None
        number = self.number(day)
        return number if number is not None and self.start(number) == day else None

    @property
    def rule(self) -> dict[str, str]:
        """What must not change once a period was released, as the ledger keeps it."""
        return {"column": fold(self.column), "every": self.every, "first": self.first.isoformat()}

    def __str__(self) -> str:
        late = f", closed {self.wait} days after its end" if self.wait else ""
        return f"every {self.every} of {self.column} from {self.first}{late}"


def shown_or_kind(value: object) -> str:
    """A string as the policy has it, and of anything else what it is."""
    return shown(value) if isinstance(value, str) else kind_of(value)
