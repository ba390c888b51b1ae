"""Lines: the ordered sets that column values live on, and the cuts that predicates make.

A *cut* is a place between two values of a line: ``(value, 0)`` lies just below ``value``,
``(value, 1)`` just above it. Every comparison with a constant is a union of intervals
between cuts, so the truth of all predicates of a batch is constant on the pieces between
neighbouring cuts. On a discrete line (integers, decimals, dates) cuts are normalised to
lie just below a value, so that ``x > 3`` and ``x >= 4`` make the same cut.

Values on a line are plain Python: ``int`` for discrete lines (days for DATE, microseconds
for TIMESTAMP, units of 10^-scale for DECIMAL), ``float`` for FLOAT and DOUBLE, ``str`` for
text, whose binary UTF-8 order is the order of its code points.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from dpsql.common.numerics import DAY, INFINITE_DAY, INFINITE_MOMENT
from dpsql.errors import DataError

# int, float or str, but one kind on any line, so that values of a line compare.
Value: TypeAlias = Any
Cut: TypeAlias = tuple[Value, int]
# A half-open interval of pieces, from a cut to a cut; None is the end of the line.
Interval: TypeAlias = tuple[Cut | None, Cut | None]
Scalar = bool | int | float | str | Decimal | Fraction | dt.date | dt.datetime | None

_INTEGERS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}
_INFINITE = {"date": INFINITE_DAY, "timestamp": INFINITE_MOMENT, "timestamptz": INFINITE_MOMENT}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_EPOCH = dt.date(1970, 1, 1)
_EPOCH_TIME = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_FIRST = (dt.datetime.min - _EPOCH_TIME) // _MICROSECOND
_LAST = (dt.datetime.max - _EPOCH_TIME) // _MICROSECOND
_FLOAT_MAX = float(np.finfo(np.float32).max)
# What DuckDB reads as well; fromisoformat alone would take 20200131 and 2020-W05-5.
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(?P<zone>Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)


@dataclass(frozen=True)
class Line:
    """The ordered set of values of one column type.

    ``kind`` is integer, decimal, boolean, date, timestamp, timestamptz, real, text, grid (a computed
    column that counts the steps of a sum) or opaque (only IS NULL is known of it). ``low`` and
    ``high`` bound a discrete line where its type does; ``scale`` is the decimal scale; ``single``
    marks 32-bit FLOAT, whose constants DuckDB rounds to 32 bits before it compares. ``unit`` is set
    where a computed column counts a number in whole units: the line then holds number / unit.
    """

    kind: str
    type: str
    low: int | None = None
    high: int | None = None
    scale: int = 0
    single: bool = False
    unit: Fraction | None = None

    @property
    def discrete(self) -> bool:
        """True where every value has a next one."""
        return self.kind in {"integer", "decimal", "boolean", "date", "timestamp", "timestamptz", "grid"}

    @property
    def ordered(self) -> bool:
        """True where comparisons with constants are admitted."""
        return self.kind != "opaque"

    @property
    def numeric(self) -> bool:
        """True where values can be summed."""
        return self.kind in {"integer", "decimal", "real", "grid"}

    def describe(self) -> str:
        """What a constant of this line looks like, for messages."""
        return {
            "integer": "a number",
            "decimal": "a number",
            "real": "a number",
            "boolean": "TRUE or FALSE",
            "date": "a date such as DATE '2020-01-31'",
            "timestamp": "a timestamp such as TIMESTAMP '2020-01-31 12:00:00'",
            "timestamptz": "a timestamp such as TIMESTAMPTZ '2020-01-31 12:00:00+00'",
            "text": "a string",
            "opaque": "nothing but IS [NOT] NULL",
            "grid": "a number",
        }[self.kind]

    def place(self, constant: Scalar) -> Fraction | float | str:
        """The constant as a position on this line (exact; a Fraction on discrete lines).

        Raises DataError where the constant is not of this line's kind, without naming any
        data: DuckDB would cast implicitly, and implicit casts of data can fail on one row. Raises
        it for a float on an integer or decimal line, too, where DuckDB, which casts such a column
        to DOUBLE, might find another order (``same_as_double``).
        """
        kind = self.kind
        if self.unit is not None:
            return self._counted(constant)
        if kind == "text" and isinstance(constant, str):
            return constant
        if kind == "boolean" and isinstance(constant, bool):
            return Fraction(int(constant))
        if isinstance(constant, bool):
            raise DataError(f"the column holds {self.type}; compare it with {self.describe()}")
        if kind in {"integer", "decimal"} and isinstance(constant, int | Decimal | Fraction):
            return Fraction(constant) * Fraction(10) ** self.scale
        if kind in {"integer", "decimal"} and isinstance(constant, float) and math.isfinite(constant):
            if not self.same_as_double(constant):
                raise rounds(constant, self.type)
            exact = Fraction(constant) if kind == "integer" else Fraction(Decimal(repr(constant)))
            return exact * Fraction(10) ** self.scale
        if kind == "real" and isinstance(constant, int | float | Decimal | Fraction):
            value = to_float(constant)
            # DuckDB rounds integers and decimals to FLOAT; with a DOUBLE (1e3) it widens the column.
            if self.single and not isinstance(constant, float) and abs(value) <= _FLOAT_MAX:
                value = float(np.float32(value))
            return value
        if kind == "date":
            if isinstance(constant, str):
                constant = _parse_date(constant)
            if isinstance(constant, dt.datetime):
                return Fraction(_micros(constant), DAY)
            if isinstance(constant, dt.date):
                return Fraction((constant - _EPOCH).days)
        if kind in {"timestamp", "timestamptz"}:
            if isinstance(constant, str):
                constant = _parse_timestamp(constant, zoned=kind == "timestamptz")
            if isinstance(constant, dt.datetime):
                return Fraction(_micros(constant))
            if isinstance(constant, dt.date):
                return Fraction((constant - _EPOCH).days * DAY)
        raise DataError(f"the column holds {self.type}; compare it with {self.describe()}")

    def _counted(self, constant: Scalar) -> Fraction:
        """The place of a number on a line that counts units."""
        assert self.unit is not None  # noqa: S101 - narrows the type for the checker
        if isinstance(constant, bool) or not isinstance(constant, int | float | Decimal | Fraction):
            raise DataError(f"the expression is a number; compare it with {self.describe()}")
        if isinstance(constant, float):
            narrow = self.low is not None and self.high is not None and max(-self.low, self.high) <= 2**53
            if not (math.isfinite(constant) and narrow and constant.is_integer()):
                raise rounds(constant)
        return Fraction(constant) / self.unit

    def same_as_double(self, constant: float) -> bool:
        """True where comparing this integer or decimal line's values as DOUBLE is comparing them exactly.

        The cast is monotone. Integers within 2^53 survive it; beyond, neighbours become one, but none
        comes to lie below 2^53, nor above the cast of the line's end. A decimal of at most 15 digits
        becomes the DOUBLE nearest to it, and no two of them the same: the one that becomes ``constant``, if any, is
        what ``repr`` writes, since that is the shortest.
        """
        if self.low is None or self.high is None:
            return False
        if self.kind == "integer":
            narrow = max(-self.low, self.high) <= 2**53
            return narrow or abs(constant) < 2**53 or not float(self.low) <= constant <= float(self.high)
        # Twice the range: no rounding of the cast reaches that far.
        beyond = abs(constant) > 2.0 * float(Fraction(self.high + 1, 10**self.scale))
        return constant == 0 or beyond or self.high < 10**15

    def below(self, position: Fraction | float | str) -> Cut:
        """The cut just below ``position``: ``x < position`` is all that lies before it."""
        if isinstance(position, Fraction):
            return (math.ceil(position), 0)
        return (position, 0)

    def above(self, position: Fraction | float | str) -> Cut:
        """The cut just above ``position``: ``x <= position`` is all that lies before it."""
        if isinstance(position, Fraction):
            return (math.floor(position) + 1, 0)
        return (position, 1)

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """The least and the greatest value of a discrete line, of dates and times the infinite ones; None for none."""
        infinite = _INFINITE.get(self.kind)
        return (self.low, self.high) if infinite is None else (-infinite, infinite)

    def inside(self, cuts: Sequence[Cut]) -> tuple[int, int]:
        """The places, from and up to, of those of ascending cuts that lie between two values of the type.

        A cut before them is the start of the line, one behind them its end: its value may be none of the type, and
        must not be written as a constant of it.
        """
        least, greatest = self.ends
        start = 0 if least is None else bisect_right(cuts, (least, 0))
        return start, len(cuts) if greatest is None else bisect_left(cuts, (greatest + 1, 0))

    def clip(self, interval: Interval) -> Interval | None:
        """The interval within the type's range; None where nothing is left."""
        low, high = interval
        least, greatest = self.ends
        if least is not None and low is not None and low[0] <= least:
            low = None
        if greatest is not None and high is not None and high[0] > greatest:
            high = None
        if least is not None and high is not None and high[0] <= least:
            return None
        if greatest is not None and low is not None and low[0] > greatest:
            return None
        if low is not None and high is not None and not low < high:
            return None
        return (low, high)

    def point(self, constant: Scalar) -> Interval | None:
        """The interval that holds exactly ``constant``; None where the line has no such value."""
        if type(constant) is int and self.kind == "integer" and self.unit is None:  # the same at a tenth of the cost
            return self.clip(((constant, 0), (constant + 1, 0)))
        position = self.place(constant)
        return self.clip((self.below(position), self.above(position)))


def rounds(constant: float, type_: str = "the number") -> DataError:
    """The refusal of a DOUBLE beside exact numbers, which may be a float that was given for a parameter."""
    return DataError(
        f"DuckDB compares {type_} with {scientific(constant)} as DOUBLE, which rounds; write {plain(constant)} instead "
        f"of {scientific(constant)}, or pass a Decimal for the parameter"
    )


def plain(constant: float) -> str:
    """A float as SQL's exact literal without an exponent, for messages."""
    text = format(Decimal(repr(constant)), "f").removesuffix(".0")
    return text if len(text) <= 40 else "a number without exponent"


def scientific(constant: float) -> str:
    """A float as SQL's DOUBLE literal, for messages: 1e-1."""
    return f"{Decimal(repr(constant)).normalize():e}".replace("e+", "e")


def line_of(type_name: str) -> Line:
    """The line of a DuckDB column type; types without a portable order are opaque."""
    name = type_name.upper()
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        return Line("integer", name, low, high)
    match = _DECIMAL.fullmatch(name)
    if match:
        precision, scale = int(match[1]), int(match[2])
        bound = 10**precision - 1
        return Line("decimal", name, -bound, bound, scale)
    if name in {"DOUBLE", "FLOAT"}:
        return Line("real", name, single=name == "FLOAT")
    if name == "VARCHAR" or name.startswith("ENUM("):
        return Line("text", "VARCHAR" if name == "VARCHAR" else "ENUM")
    if name == "BOOLEAN":
        return Line("boolean", name, 0, 1)
    if name == "DATE":
        return Line("date", name)
    if name == "TIMESTAMP":
        return Line("timestamp", name)
    if name == "TIMESTAMP WITH TIME ZONE":
        return Line("timestamptz", name)
    return Line("opaque", type_name)


def to_float(constant: int | float | Decimal | Fraction) -> float:
    """The nearest DOUBLE, infinite beyond its range."""
    try:
        return float(constant)
    except OverflowError:
        return math.inf if constant > 0 else -math.inf


def _micros(moment: dt.datetime) -> int:
    offset = moment.utcoffset() or dt.timedelta(0)
    # Not astimezone, which fails where UTC leaves the years 1 to 9999.
    micros = (moment.replace(tzinfo=None) - _EPOCH_TIME - offset) // _MICROSECOND
    if not _FIRST <= micros <= _LAST:
        raise DataError("a timestamp leaves the years 1 to 9999 in UTC; write a nearer time")
    return micros


def _parse_date(text: str) -> dt.date:
    # DuckDB drops the time of a string that it reads as a date: refused, as a comparison would surprise.
    found = _DATE.fullmatch(text.strip()) and _date_or_none(text.strip())
    if not found:
        raise DataError(f"{text[:40]!r} is not a date; write it as '2020-01-31'")
    return found


def _date_or_none(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _parse_timestamp(text: str, *, zoned: bool) -> dt.datetime:
    match = _TIME.fullmatch(text.strip())
    if match and match["zone"] and not zoned:
        # DuckDB drops the offset, which a reader would not expect.
        raise DataError(f"{text[:40]!r} has a time zone and the column has none; write the local time alone")
    try:
        if match:
            return dt.datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    raise DataError(f"{text[:40]!r} is not a timestamp; write it as '2020-01-31' or '2020-01-31 12:00:00'")
