"""What a row holds, and cases of SQL's functions with their meaning, for proofs about value trees.

A case is an expression over ``COLUMNS``, what its result must be (``means``), written from the function's definition
and not from the code, and where it has one (``defined``) beside rows in which a column that it reads is NULL or
infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import z3
from calendar_terms import size, within
from value_terms import Terms

from dpsql.common.numerics import DAY, INFINITE_DAY, INFINITE_MOMENT
from dpsql.sql.values.calendar import NEAR
from dpsql.workloads.expr.lines import line_of

COLUMNS = {
    **{"i8": "TINYINT", "i16": "SMALLINT", "i32": "INTEGER", "i64": "BIGINT", "j64": "BIGINT", "i128": "HUGEINT"},
    **{"j128": "HUGEINT", "u8": "UTINYINT", "u32": "UINTEGER", "u64": "UBIGINT", "dec": "DECIMAL(9,2)"},
    **{"wide": "DECIMAL(38,10)", "small": "BIGINT", "span": "INTEGER", "sure": "BIGINT", "price": "DECIMAL(12,2)"},
    **{"flag": "BOOLEAN", "d": "DATE", "e": "DATE", "born": "DATE", "ts": "TIMESTAMP", "us": "TIMESTAMP"},
    **{"tz": "TIMESTAMP WITH TIME ZONE"},
}
BOUNDS = {"small": (0, 100), "span": (-7, 9), "sure": (-7, 9), "price": (0, 100_000), "born": (-25_567, 16_801)}
"""Declared ends, in units of the column; those of dates are 1900-01-01 and 2016-01-01."""
NO_NULLS = {"sure"}
POLICY = """
[tables.t]
unit = "row"
[tables.t.columns]
small = { lower = 0, upper = 100 }
span = { lower = -7, upper = 9 }
sure = { lower = -7, upper = 9, nulls = false }
price = { lower = 0, upper = 1000, step = 0.25 }
born = { lower = 1900-01-01, upper = 2016-01-01 }
"""
_FITS = 2**127 - 2**88


@dataclass(frozen=True, eq=False)
class Number:
    """A rational number: a term over a positive whole number."""

    term: Any
    scale: int = 1

    def beside(self, other: Number | int | Fraction) -> tuple[Any, Any, int]:
        """The terms of both over one scale."""
        if not isinstance(other, Number):
            other = number(other)
        return self.term * other.scale, other.term * self.scale, self.scale * other.scale

    def __add__(self, other: Number | int | Fraction) -> Number:
        a, b, scale = self.beside(other)
        return Number(a + b, scale)

    def __sub__(self, other: Number | int | Fraction) -> Number:
        a, b, scale = self.beside(other)
        return Number(a - b, scale)

    def __mul__(self, other: Number | int | Fraction) -> Number:
        other = other if isinstance(other, Number) else number(other)
        return Number(self.term * other.term, self.scale * other.scale)

    def __neg__(self) -> Number:
        return Number(-self.term, self.scale)

    def __abs__(self) -> Number:
        return Number(size(self.term), self.scale)

    def __eq__(self, other: object) -> Any:
        a, b, _ = self.beside(other)  # type: ignore[arg-type]
        return a == b

    def __le__(self, other: Number | int | Fraction) -> Any:
        a, b, _ = self.beside(other)
        return a <= b

    def __lt__(self, other: Number | int | Fraction) -> Any:
        a, b, _ = self.beside(other)
        return a < b

    def __ge__(self, other: Number | int | Fraction) -> Any:
        a, b, _ = self.beside(other)
        return a >= b

    def __gt__(self, other: Number | int | Fraction) -> Any:
        a, b, _ = self.beside(other)
        return a > b

    def multiple(self, step: Fraction | int = 1) -> Any:
        """Whether it is a whole multiple of a step."""
        step = Fraction(step)
        return (self.term * step.denominator) % (self.scale * step.numerator) == 0


def number(value: int | Fraction) -> Number:
    """A constant."""
    return Number(z3.IntVal(Fraction(value).numerator), Fraction(value).denominator)


class Row:
    """What a row holds: the number in each column, clamped to its declared bounds where that is asked for."""

    def __init__(self, terms: Terms, clamped: bool) -> None:
        self.terms = terms
        self.clamped = clamped

    def __getitem__(self, written: str) -> Number:
        """A column or a constant."""
        if written not in COLUMNS:
            return number(Fraction(written))
        term = z3.Int(written)
        if self.clamped and written in BOUNDS:
            low, high = BOUNDS[written]
            term = z3.If(term < low, low, z3.If(term > high, high, term))
        return Number(term, 10 ** line_of(COLUMNS[written]).scale)

    def null(self, name: str) -> Any:
        return z3.Bool(f"{name} is NULL")

    def day(self, name: str) -> Any:
        """The day of a date or moment."""
        return self[name].term if COLUMNS[name] == "DATE" else self[name].term / DAY

    def micros(self, name: str) -> Any:
        """A date or moment in microseconds."""
        return self[name].term * DAY if COLUMNS[name] == "DATE" else self[name].term

    def micros_number(self, name: str) -> Number:
        return Number(self.micros(name))

    def endless(self, name: str) -> Any:
        end = INFINITE_DAY if COLUMNS[name] == "DATE" else INFINITE_MOMENT
        return size(z3.Int(name)) == end if COLUMNS[name] in ("DATE", "TIMESTAMP", COLUMNS["tz"]) else z3.BoolVal(False)

    def january(self, year: Any) -> Any:
        """The day number of the first of January."""
        return self.terms.month_start(year, z3.IntVal(1))

    def near(self, *names: str) -> Any:
        """The years in which all functions of the calendar have values."""
        return z3.And(
            [
                within(self[n].term, *NEAR)
                if COLUMNS[n] == "DATE"
                else within(self[n].term, NEAR[0] * DAY, NEAR[1] * DAY)
                for n in names
            ]
        )


Means: TypeAlias = Callable[..., Any]
"""Of the result and the row."""
Defined: TypeAlias = Callable[..., Any]
"""Of the row."""


def everywhere(_: Row) -> Any:
    return z3.BoolVal(True)


@dataclass(frozen=True)
class Case:
    """``function`` in the list of what is proved; ``strict``: NULL where one of its columns is."""

    function: str
    text: str
    means: Means
    defined: Defined = everywhere
    strict: bool = True
    clamped: bool = False

    @property
    def id(self) -> str:
        return f"{self.text} clamped" if self.clamped else self.text


def fits(found: Number, unit: int = 1) -> Any:
    """Whether a number, in units, is away from the ends of 128 bits."""
    return abs(found * unit) <= _FITS
