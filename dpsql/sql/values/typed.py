"""Typed: a value expression with what is known of it from types, constants and declared bounds.

Integers and decimals, and doubles on a declared grid, are *exact*: the number is
``unit * core + offset`` where ``core`` is a whole number that the scan computes and whose range
``low`` to ``high`` holds for every row there can be. Ranges follow by interval arithmetic, which chooses BIGINT or
HUGEINT; what leaves 128 bits is NULL. Multiples and shifts by constants are no work for the scan at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, isfinite, lcm
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import DataError, SQLError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.lines import Line, Scalar, line_of, to_float
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Compared, Constant, Every, Number, Test, Unscaled, Value

# DuckDB's days and microseconds, the infinite ones included.
DAYS = (-(2**31) + 1, 2**31 - 1)
MOMENTS = (-(2**63) + 1, 2**63 - 1)
_LONG = 2**63
_ONE = Fraction(1)
_HUGE = 2**127
_OPERATIONS = frozenset("+-*")
# Below 2^127 by more than what the DOUBLEs of two numbers, and of their sum or product, can be off.
_ALMOST = 2.0**127 * (1 - 2.0**-40)
_TYPES = {
    "real": "DOUBLE",
    "text": "VARCHAR",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "BIGINT",
    "null": "INTEGER",
}


@dataclass(frozen=True)
class Path:
    """The core as a nondecreasing function of one column: ``function`` of whole numbers on each piece of ``domain``.

    The pieces are inclusive, disjoint and ascending; elsewhere, and on NULL, the core is NULL.
    """

    column: Column
    domain: tuple[tuple[int, int], ...]
    function: Callable[[int], int] = field(compare=False)


@dataclass(frozen=True)
class Typed:
    """A value and its type.

    ``kind`` is exact, real, text, boolean, date, timestamp, timestamptz, interval (a whole number of microseconds, of
    which nothing but comparisons and EPOCH knows) or null. ``family`` of a number is what it is
    in SQL: integer, decimal or double. ``bounds`` hold for a real number where all its inputs were clamped; where it is
    ``undefined`` it may be NaN, which stands for NULL (``settled``). ``gap`` names the columns whose whole range enters
    without declared bounds. ``sides`` are ends of a real number of which there may be one without the other.
    ``near`` is the exact number that a real one rounds, where rounding does not move it over a whole number or a half.
    ``column`` is the stored column that the core is, ``constant`` the value of a constant.
    """

    kind: str
    value: Value
    family: str = ""
    low: int = 0
    high: int = 0
    unit: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    bounds: tuple[Fraction, Fraction] | None = None
    sides: tuple[Fraction | None, Fraction | None] = (None, None)
    near: Typed | None = None
    nulls: bool = True
    undefined: bool = False
    gap: tuple[str, ...] = ()
    column: Column | None = None
    path: Path | None = None
    is_constant: bool = False
    constant: Scalar = None

    @property
    def numeric(self) -> bool:
        return self.kind in {"exact", "real"}

    @property
    def words(self) -> str:
        """What it is, in words."""
        return {
            **{"exact": "a number", "real": "a DOUBLE", "boolean": "a BOOLEAN", "null": "NULL", "text": "text"},
            **{"date": "a DATE", "timestamp": "a TIMESTAMP", "timestamptz": "a TIMESTAMPTZ"},
        }.get(self.kind, f"an {self.kind.upper()}")

    @property
    def line(self) -> Line:
        if self.kind == "exact":
            return Line("integer", type_of(self.low, self.high) or "HUGEINT", self.low, self.high)
        return line_of(_TYPES[self.kind])

    @property
    def limits(self) -> tuple[Fraction, Fraction] | None:
        """Least and greatest number, where they are known."""
        if self.kind != "exact":
            return self.bounds
        ends = sorted((self.unit * self.low + self.offset, self.unit * self.high + self.offset))
        return ends[0], ends[1]


def constant_of(value: Scalar) -> Typed:
    """A constant as it stands in SQL: 1 and 1.5 exact, 1e3 a DOUBLE, text, Booleans, dates, timestamps."""
    found = _constant(value)
    return replace(found, is_constant=True, constant=value, nulls=value is None)


def _constant(value: Scalar) -> Typed:
    if value is None:
        return Typed("null", Constant(None, "INTEGER"))
    if isinstance(value, bool):
        return Typed("boolean", Constant(value, "BOOLEAN"))
    if isinstance(value, int | Fraction):
        family = "integer" if isinstance(value, int) else "decimal"
        return Typed("exact", Constant(0, "BIGINT"), family, offset=Fraction(value))
    if isinstance(value, float):
        bounds = (Fraction(value), Fraction(value)) if isfinite(value) else None
        return Typed("real", Constant(value, "DOUBLE"), "double", bounds=bounds)
    if isinstance(value, str):
        return Typed("text", Constant(value, "VARCHAR"))
    kind = "timestamp" if hasattr(value, "hour") else "date"
    line = line_of("TIMESTAMP" if kind == "timestamp" else "DATE")
    number = int(line.place(value))
    return Typed(kind, Constant(number, line.type), low=number, high=number)


def type_of(*numbers: int) -> str | None:
    """The narrowest of BIGINT and HUGEINT that holds all of them; None beyond 128 bits."""
    if all(-_LONG <= n < _LONG for n in numbers):
        return "BIGINT"
    return "HUGEINT" if all(-_HUGE <= n < _HUGE for n in numbers) else None


def width(node: exp.Expr, *numbers: int) -> str:
    """``type_of``, or the refusal of what takes more than 128 bits."""
    found = type_of(*numbers)
    if found is None:
        raise refuse(
            f"{shown(node)} takes more than 128 bits; write CAST(... AS BIGINT) around its columns",
            node,
            code="overflow",
        )
    return found


def always_null(node: exp.Expr) -> SQLError:
    """The refusal of an expression that has no value whatever a row holds."""
    return refuse(f"{shown(node)} is always NULL; write the value it should have", node)


def whole(value: Value, kind: str) -> Value:
    """A whole number as type ``kind``, which must hold it."""
    if isinstance(value, Constant):
        return Constant(value.value, kind)
    if isinstance(value, Unscaled):
        return value if value.type == kind else Unscaled(value.this, kind)
    return value if value.type == kind else Cast(value, kind)


def clipped(value: Value, low: Constant, high: Constant, beyond: tuple[Value, Value] | None = None) -> Value:
    """A value from ``low`` to ``high``; below and above it what ``beyond`` says, or NULL."""
    below, above = beyond or (Constant(None, low.type), Constant(None, low.type))
    return CaseValue(((Compared(value, "<", low), below), (Compared(value, ">", high), above)), value, low.type)


Ranged: TypeAlias = tuple[Value, int, int]
"""A whole number with its least and greatest value."""


def integer_call(function: str, node: exp.Expr, low: int, high: int, *operands: Ranged) -> Ranged:
    """A function of whole numbers, each with its range, in a type that holds them and the result.

    What leaves 128 bits is NULL, and the range is theirs. As DOUBLEs the operands of a sum, difference or product say
    whether it does before it is computed, and a little before it would. Of other functions, only those of the least
    number do.
    """
    ends = [end for _, least, most in operands for end in (least, most)]
    spare = int(function == "*")  # DuckDB takes a product of exactly -2^127, which HUGEINT holds, for an overflow
    if type_of(low - spare, high) is not None or type_of(*ends) is None:
        kind = width(node, low - spare, high, *ends)
        return Call(function, tuple(whole(value, kind) for value, _, _ in operands), kind), low, high
    parts = tuple(whole(value, "HUGEINT") for value, _, _ in operands)
    if function in _OPERATIONS:
        near = Call(function, tuple(Cast(part, "DOUBLE") for part in parts), "DOUBLE")
        most = Constant(_ALMOST, "DOUBLE")
        inside: Test = Every((Compared(near, "<=", most), Compared(near, ">=", Constant(-_ALMOST, "DOUBLE"))))
    else:
        inside = Compared(parts[0], ">", Constant(-_HUGE, "HUGEINT"))
    value = CaseValue(((inside, Call(function, parts, "HUGEINT")),), None, "HUGEINT")
    return value, max(low, 1 - _HUGE), min(high, _HUGE - 1)


def exact(value: Value, low: int, high: int, family: str, *of: Typed, gap: bool = True, unit: Fraction = _ONE) -> Typed:
    """An exact number computed from ``of``: NULL where one of them is."""
    return Typed("exact", value, family, low, high, unit, nulls=any(t.nulls for t in of), gap=gaps(*of) if gap else ())


def gaps(*of: Typed) -> tuple[str, ...]:
    """The columns without bounds behind several values."""
    return tuple(dict.fromkeys(name for t in of for name in t.gap))


def flat(t: Typed, node: exp.Expr, unit: Fraction | None = None) -> Typed:
    """An exact number without an offset, its core a multiple of ``unit`` where one is given."""
    base = t.offset if t.is_constant else t.unit
    common = unit or fraction_gcd(base, t.offset) or Fraction(1)
    if t.is_constant:
        number = int(t.offset / common)
        value: Value = Constant(number, width(node, number))
        return Typed("exact", value, t.family, number, number, common, nulls=False)
    factor, shift = int(t.unit / common), int(t.offset / common)
    if factor == 1 and not shift:
        return replace(t, unit=common, offset=Fraction(0))
    low, high = sorted((factor * t.low + shift, factor * t.high + shift))
    value, first, last = t.value, t.low, t.high
    if factor != 1:
        value, first, last = _times(value, t.low, t.high, factor, node)
    if shift:
        by = (Constant(shift, "BIGINT"), shift, shift)
        value, first, last = integer_call("+", node, first + shift, last + shift, (value, first, last), by)
    overflows = (first, last) != (low, high)
    path = t.path
    if path is not None:
        path = stepped(path, lambda n: factor * n + shift) if factor > 0 and not overflows else None
    return replace(t, value=value, low=first, high=last, unit=common, offset=Fraction(0), column=None, path=path,
                   nulls=t.nulls or overflows)  # fmt: skip


def _times(value: Value, low: int, high: int, factor: int, node: exp.Expr) -> Ranged:
    """A whole number with its range, times a constant."""
    first, last = sorted((factor * low, factor * high))
    by = (Constant(factor, "BIGINT"), factor, factor)
    return integer_call("*", node, first, last, (value, low, high), by)


def stepped(path: Path | None, function: Callable[[int], int]) -> Path | None:
    """The path followed by one more nondecreasing function."""
    if path is None:
        return None
    inner = path.function
    return Path(path.column, path.domain, lambda n: function(inner(n)))


def fraction_gcd(*numbers: Fraction) -> Fraction:
    """The largest number of which all are whole multiples; 0 where all are 0."""
    held = [n for n in numbers if n]
    if not held:
        return Fraction(0)
    denominator = lcm(*(n.denominator for n in held))
    return Fraction(gcd(*(int(n * denominator) for n in held)), denominator)


def common_unit(*of: Typed) -> Fraction:
    """The largest unit that holds all exact numbers."""
    return fraction_gcd(*(n for t in of for n in ((t.offset,) if t.is_constant else (t.unit, t.offset)))) or Fraction(1)


def as_real(t: Typed, node: exp.Expr) -> Typed:
    """The number as a DOUBLE, as DuckDB would cast it."""
    if t.kind == "real":
        return t
    if t.kind == "null":
        return replace(t, kind="real", value=Constant(None, "DOUBLE"), family="double")
    nulls = t.nulls
    if t.is_constant:
        value: Value = Constant(to_float(t.offset), "DOUBLE")
    elif t.column is not None and t.unit == Fraction(1, 10**t.column.line.scale) and not t.offset:
        stored = t.value.this if isinstance(t.value, Unscaled) else t.value
        value = Cast(stored, "DOUBLE")
    else:
        # The quotient of two whole numbers is rounded once, as DuckDB rounds a decimal.
        level = flat(t, node)
        value, factor = level.value, level.unit.numerator
        if factor != 1:
            value, _, _ = _times(value, level.low, level.high, factor, node)
        nulls = level.nulls or type_of(factor * level.low - 1, factor * level.high) is None
        value = Cast(value, "DOUBLE")
        if level.unit.denominator != 1:
            value = Call("/", (value, Constant(float(level.unit.denominator), "DOUBLE")), "DOUBLE")
    return Typed("real", value, "double", bounds=t.limits, nulls=nulls, gap=t.gap, is_constant=t.is_constant,
                 constant=t.constant)  # fmt: skip


def settled(t: Typed) -> Typed:
    """The value with NULL where a DOUBLE is NaN.

    Sums, products and quotients hand NaN on as they hand on NULL; what would not (a comparison, COALESCE, GREATEST)
    takes its operands settled.
    """
    if not t.undefined:
        return t
    return replace(t, value=Number(t.value), nulls=True, undefined=False, column=None)


def _dated(t: Typed, kinds: set[str], node: exp.Expr) -> Typed:
    """A constant beside dates or timestamps as one of them, as DuckDB reads '2020-01-31' there."""
    if not t.is_constant or t.kind == "null":
        return t
    line = line_of("TIMESTAMP" if "timestamp" in kinds else "DATE")
    try:
        position = line.place(t.constant)
    except DataError as error:
        raise refuse(f"{shown(node)}: {error}", node, code="mixed-types") from None
    if not isinstance(position, Fraction) or position.denominator != 1:
        return t
    number = int(position)
    return replace(t, kind=line.kind, value=Constant(number, line.type), low=number, high=number)


def aligned(of: list[Typed], node: exp.Expr) -> tuple[list[Value], Typed]:
    """Values of one type and unit for all of ``of``, and what is common to them (its value and range are not set).

    Numbers become DOUBLE where one is; NULL takes the others' type. Raises SQLError on mixed kinds:
    DuckDB would cast implicitly, and implicit casts can fail on one row.
    """
    kinds = {t.kind for t in of if t.kind != "null"}
    nulls = any(t.nulls for t in of)
    if kinds <= {"exact"} and kinds:
        unit = common_unit(*(t for t in of if t.kind == "exact"))
        # What has no place among the others' numbers is refused: as NULL it would be taken for a missing one.
        width(node, *(int(end / unit) for t in of if t.kind == "exact" for end in flat(t, node).limits or ()))
        levels = [flat(t, node, unit) if t.kind == "exact" else t for t in of]
        ends = [end for t in levels if t.kind == "exact" for end in (t.low, t.high)]
        kind = width(node, *ends)
        families = [t.family for t in of if t.kind == "exact"]
        family = "double" if "double" in families else "decimal" if "decimal" in families else "integer"
        found = [whole(t.value, kind) if t.kind == "exact" else Constant(None, kind) for t in levels]
        return found, Typed("exact", found[0], family, min(ends), max(ends), unit, nulls=nulls, gap=gaps(*of))
    if kinds and kinds <= {"exact", "real"}:
        reals = [settled(as_real(t, node)) for t in of]
        known = [real.bounds for real, t in zip(reals, of, strict=True) if t.kind != "null"]
        held_bounds = [b for b in known if b is not None]
        bounds = None
        if len(held_bounds) == len(known):
            bounds = (min(b[0] for b in held_bounds), max(b[1] for b in held_bounds))
        nulls = any(t.nulls for t in reals)
        common = Typed("real", reals[0].value, "double", bounds=bounds, nulls=nulls, gap=gaps(*of))
        return [t.value for t in reals], common
    if len(kinds) > 1 and kinds <= {"date", "timestamp", "text"}:
        of = [_dated(t, kinds, node) for t in of]
        kinds = {t.kind for t in of if t.kind != "null"}
    if len(kinds) == 1:
        one = next(t for t in of if t.kind != "null")
        held = [Constant(None, one.line.type) if t.kind == "null" else t.value for t in of]
        ends = [end for t in of if t.kind != "null" for end in (t.low, t.high)]
        return held, Typed(one.kind, held[0], low=min(ends), high=max(ends), nulls=nulls, gap=gaps(*of))
    if not kinds:
        raise always_null(node)
    names = " and ".join(sorted({"exact": "numbers", "real": "numbers"}.get(k, k) for k in kinds))
    raise refuse(
        f"{shown(node)} mixes {names}, which DuckDB would cast implicitly; write values of one type, or TRY_CAST",
        node,
        code="mixed-types",
    )
