"""Arithmetic of typed values: exact numbers by interval arithmetic, doubles by IEEE 754, zero divisors by CASE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import TypeAlias

from sqlglot import exp

from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.typed import (
    Typed,
    aligned,
    always_null,
    as_real,
    common_unit,
    exact,
    flat,
    gaps,
    integer_call,
    settled,
    stepped,
    type_of,
    whole,
)
from dpsql.workloads.expr.lines import to_float
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Compared, Constant, Every, Value

Ends: TypeAlias = tuple[Fraction, Fraction]
# A range of a whole number that needs no declared bounds to be summed.
_NARROW = 2**20
# Far below the largest DOUBLE: no rounding of a number within makes it infinite.
_FINITE = 10**300


def numbers(node: exp.Expr, *of: Typed) -> None:
    """Refuse what is no number: DuckDB would cast a string implicitly."""
    for t in of:
        if t.kind == "null":
            raise always_null(node)
        if not t.numeric:
            raise refuse(
                f"{shown(node)} needs numbers, one side is {t.words}; write TRY_CAST(... AS DOUBLE)",
                node,
                code="mixed-types",
            )


def negated(t: Typed, node: exp.Expr) -> Typed:
    numbers(node, t)
    if t.kind == "exact":
        return replace(t, unit=-t.unit, offset=-t.offset, constant=None)
    bounds = None if t.bounds is None else (-t.bounds[1], -t.bounds[0])
    return _real(Call("-", (t.value,), "DOUBLE"), bounds, t, undefined=t.undefined)


def added(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    numbers(node, a, b)
    if a.kind == b.kind == "exact":
        family = _family(a, b)
        if b.is_constant:
            return replace(a, offset=a.offset + b.offset, family=family, constant=None)
        if a.is_constant:
            return replace(b, offset=a.offset + b.offset, family=family)
        unit = common_unit(replace(a, offset=Fraction(0)), replace(b, offset=Fraction(0)))
        x = flat(replace(a, offset=Fraction(0)), node, unit)
        y = flat(replace(b, offset=Fraction(0)), node, unit)
        found = _whole("+", node, (x.low + y.low, x.high + y.high), x, y, family=family, unit=unit)
        return replace(found, offset=a.offset + b.offset)
    return _of_doubles("+", a, b, node, lambda x, y: (x[0] + y[0], x[1] + y[1]))


def subtracted(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    numbers(node, a, b)
    if a.kind == b.kind == "exact":
        return added(a, negated(b, node), node)
    return _of_doubles("-", a, b, node, lambda x, y: (x[0] - y[1], x[1] - y[0]))


def multiplied(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    numbers(node, a, b)
    if a.kind == b.kind == "exact":
        family = _family(a, b)
        for t, factor in ((a, b), (b, a)):
            if factor.is_constant and (factor.offset or t.is_constant):
                return replace(t, unit=t.unit * factor.offset, offset=t.offset * factor.offset, family=family,
                               constant=None)  # fmt: skip
        x, y = flat(a, node), flat(b, node)
        ends = _product(x.low, x.high, y.low, y.high, same=x.value == y.value)
        return _whole("*", node, ends, x, y, family=family, unit=x.unit * y.unit)
    return _of_doubles("*", a, b, node, lambda x, y: _product(*x, *y, same=a.value == b.value))


def divided(a: Typed, b: Typed, node: exp.Expr, *, clamped: bool = False) -> Typed:
    """a / b as DOUBLE; where b is 0 infinite, or NULL for 0 / 0, by CASE: a setting of DuckDB decides otherwise.

    ``clamped``: for SUM, where exact numbers divided by a constant stay exact.
    """
    numbers(node, a, b)
    if b.is_constant and b.limits is not None and not b.limits[0]:
        raise refuse("division by zero", node)
    if clamped and a.kind == b.kind == "exact" and b.is_constant:
        return replace(a, unit=a.unit / b.offset, offset=a.offset / b.offset, family="double", constant=None)
    x, y = as_real(a, node), as_real(b, node)
    if a.kind == b.kind == "exact" and b.is_constant:
        near = replace(a, unit=a.unit / b.offset, offset=a.offset / b.offset, family="double", constant=None)
        found = _real(Call("/", (x.value, y.value), "DOUBLE"), _over(x.bounds, y.bounds), x, y)
        roundings = 2 if Fraction(to_float(b.offset)) == b.offset else 3
        return replace(found, near=near if _is_close(near, roundings) else None)
    bounds = _over(x.bounds, y.bounds)
    value: Value = Call("/", (x.value, y.value), "DOUBLE")
    if bounds is None and not b.is_constant:
        zero = Constant(0.0, "DOUBLE")
        at_zero: Value = Call("*", (x.value, Constant(float("inf"), "DOUBLE")), "DOUBLE")
        if b.kind == "real":
            # Only its text tells minus zero from zero.
            minus = Compared(Cast(y.value, "VARCHAR"), "=", Constant("-0.0", "VARCHAR"))
            below: Value = Call("*", (x.value, Constant(float("-inf"), "DOUBLE")), "DOUBLE")
            at_zero = CaseValue(((minus, below),), at_zero, "DOUBLE")
        value = CaseValue(((Compared(y.value, "=", zero), at_zero),), value, "DOUBLE")
    found = _real(value, bounds, x, y)
    # Beside an exact divisor, which is no minus zero, numbers from 0 give what is from 0, infinite or NULL.
    positive = b.kind == "exact" and all(ends is not None and ends[0] >= 0 for ends in (x.bounds, y.bounds))
    return replace(found, sides=(Fraction(0), None)) if positive and bounds is None else found


def _over(a: Ends | None, b: Ends | None) -> Ends | None:
    """The ends of a quotient; None where they are not known or the divisor may be 0."""
    if a is None or b is None or b[0] <= 0 <= b[1]:
        return None
    return _product(*a, *sorted((1 / b[0], 1 / b[1])))


def _is_close(t: Typed, roundings: int) -> bool:
    """Whether a DOUBLE that is rounded some times on the way to an exact number is on the same side of every half.

    Where it is not one, the number is at least a part of its denominator off; each rounding moves it by 2^-53 of
    itself at most. Rows beyond declared bounds are left out of account.
    """
    column = t.path.column if t.path is not None else None
    ends = (t.low, t.high)
    if t.path is not None and column is not None and column.policy.lower is not None:
        places = [column.line.place(end) for end in (column.policy.lower, column.policy.upper)]
        held = [place for place in places if isinstance(place, Fraction)]
        inside = [any(first <= place <= last for first, last in t.path.domain) for place in held]
        if len(held) == len(places) and all(inside):
            ends = tuple(t.path.function(int(place)) for place in held)  # type: ignore[assignment]
    most = max(abs(t.unit * end + t.offset) for end in ends) + 1
    return most * 2 * lcm(t.unit.denominator, t.offset.denominator) * roundings < 2**53


def quotient(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    """a // b of whole numbers, rounded towards zero as DuckDB rounds; NULL where b is 0."""
    numbers(node, a, b)
    if not a.family == b.family == "integer":
        # DuckDB divides others as DOUBLE, without rounding.
        raise refuse("// divides whole numbers; write FLOOR(a / b)", node)
    x, y = flat(a, node, Fraction(1)), flat(b, node, Fraction(1))
    if b.is_constant:
        if not y.low:
            raise refuse("division by zero", node)
        low, high = sorted((_towards_zero(x.low, y.low), _towards_zero(x.high, y.low)))
    else:
        most = max(abs(x.low), abs(x.high))
        low, high = (0, most) if x.low >= 0 and y.low >= 0 else (-most, most)
    found = _whole("//", node, (low, high), x, y, family="integer")
    found = replace(found, value=_unless_zero(y, found.value))
    if not b.is_constant:
        return replace(found, nulls=True) if y.low <= 0 <= y.high else found
    divisor = y.low
    return replace(found, path=stepped(x.path, lambda n: _towards_zero(n, divisor)) if divisor > 0 else None)


def remainder(a: Typed, b: Typed, node: exp.Expr) -> Typed:
    """a % b with the sign of a; NULL where b is 0."""
    numbers(node, a, b)
    if b.is_constant and b.limits is not None and not b.limits[0]:
        raise refuse("division by zero", node)
    if a.kind != "exact" or b.kind != "exact":
        x, y = as_real(a, node), as_real(b, node)
        value: Value = Call("%", (x.value, y.value), "DOUBLE")
        if not b.is_constant:
            zero = Compared(y.value, "=", Constant(0.0, "DOUBLE"))
            value = CaseValue(((zero, Constant(None, "DOUBLE")),), value, "DOUBLE")
        reach = None if y.bounds is None else max(abs(y.bounds[0]), abs(y.bounds[1]))
        return replace(
            _real(value, None if reach is None else (-reach, reach), x, y, undefined=True), nulls=True, gap=b.gap
        )
    unit = common_unit(a, b)
    x, y = flat(a, node, unit), flat(b, node, unit)
    if b.is_constant and y.low < 0:
        # The sign of the divisor does not matter, and the least number % -1 would overflow.
        y = replace(y, value=Constant(-y.low, "BIGINT"), low=-y.low, high=-y.low)
    most = max(abs(y.low), abs(y.high)) - 1
    low, high = max(min(x.low, 0), -most), min(max(x.high, 0), most)
    found = _whole("%", node, (low, high), x, y, family=_family(a, b), unit=unit)
    value = found.value
    least = Constant(-(2**63) if value.type == "BIGINT" else -(2**127), value.type)
    if not b.is_constant and y.low <= -1 <= y.high and x.low <= int(least.value or 0):
        # DuckDB fails on the least number of a type % -1; NULL % -1 stays NULL.
        minus = Compared(whole(y.value, value.type), "=", Constant(-1, value.type))
        is_least = Compared(whole(x.value, value.type), "=", least)
        value = CaseValue(((Every((minus, is_least)), Constant(0, value.type)),), value, value.type)
    found = replace(found, value=_unless_zero(y, value), gap=b.gap)
    return replace(found, nulls=True) if not b.is_constant and y.low <= 0 <= y.high else found


def absolute(t: Typed, node: exp.Expr) -> Typed:
    numbers(node, t)
    if t.kind == "real":
        bounds = None
        if t.bounds is not None:
            least, most = t.bounds
            bounds = (max(least, -most, Fraction(0)), max(-least, most))
        return _real(Call("abs", (t.value,), "DOUBLE"), bounds, t, undefined=t.undefined)
    x = flat(t, node)
    low, high = max(x.low, -x.high, 0), max(-x.low, x.high)
    return _whole("abs", node, (low, high), x, family=t.family, unit=x.unit)


def sign(t: Typed, node: exp.Expr) -> Typed:
    numbers(node, t)
    x = settled(t) if t.kind == "real" else flat(t, node)
    return exact(Cast(Call("sign", (x.value,), "TINYINT"), "BIGINT"), -1, 1, "integer", x, gap=False)


def rounded(function: str, t: Typed, node: exp.Expr, digits: int = 0) -> Typed:
    """floor, ceil, trunc or round (half away from zero) to ``digits`` decimals."""
    numbers(node, t)
    if t.near is not None and not digits:
        t = t.near
    if t.kind == "real":
        arguments = (t.value,) if function != "round" or not digits else (t.value, Constant(digits, "INTEGER"))
        bounds = None
        if t.bounds is not None:
            step = Fraction(10) ** -digits
            bounds = (t.bounds[0] - step, t.bounds[1] + step)
        return _real(Call(function, arguments, "DOUBLE"), bounds, t, undefined=t.undefined)
    # In DuckDB floor and ceil of a whole number are DOUBLE.
    family = "double" if t.family == "integer" and function in {"floor", "ceil"} else t.family
    step = Fraction(10) ** -digits
    if t.is_constant:
        t = flat(t, node)
    if (t.unit / step).denominator == 1 and (t.offset / step).denominator == 1:
        return replace(t, family=family)
    x = flat(t, node)
    # The core in parts of a step: number = step * n / parts.
    ratio = x.unit / step
    if ratio.numerator != 1:
        x = flat(t, node, x.unit / ratio.numerator)
        ratio = x.unit / step
    divisor = ratio.denominator
    work = _ROUNDINGS[function]
    low, high = work(x.low, divisor), work(x.high, divisor)
    value = _rounding(function, x, divisor, node)
    found = exact(value, low, high, family, x, unit=step)
    if type_of(x.low - divisor, x.high + divisor) is None:
        return replace(found, nulls=True)
    return replace(found, path=stepped(x.path, lambda n: work(n, divisor)))


def extreme(function: str, of: list[Typed], node: exp.Expr) -> Typed:
    """greatest or least, which skip NULL; NaN is the greatest double."""
    values, common = aligned(of, node)
    kind = values[0].type if common.kind == "exact" else common.line.type
    value = values[0] if len(values) == 1 else Call(function, tuple(values), kind)
    nulls = all(t.nulls for t in of)
    if common.kind == "exact":
        levels = [flat(t, node, common.unit) for t in of if t.kind == "exact"]
        low, high = common.low, common.high
        # One that is never NULL bounds the result on its side; a NULL leaves the others.
        if function == "greatest":
            low = max([low, *(t.low for t in levels if not t.nulls)])
        else:
            high = min([high, *(t.high for t in levels if not t.nulls)])
        # Within ends that constants give, it does not matter that a column has none.
        gap = common.gap if high - low > _NARROW else ()
        return replace(common, value=value, low=low, high=high, nulls=nulls, gap=gap)
    if common.kind != "real":
        return replace(common, value=value, nulls=nulls)
    least, most = _sides(function, [as_real(t, node) for t in of if t.numeric])
    if least is None or most is None or least > most:
        return replace(common, value=value, nulls=nulls, sides=(least, most))
    return replace(common, value=value, nulls=nulls, bounds=(least, most), gap=())


def _sides(function: str, of: list[Typed]) -> tuple[Fraction | None, Fraction | None]:
    """The ends of greatest or least of DOUBLEs: what all of them have, and what one gives that is never NULL."""
    every = [t.bounds or t.sides for t in of]
    never = [ends for ends, t in zip(every, of, strict=True) if not (t.nulls or t.undefined)]
    lows, highs = [low for low, _ in every if low is not None], [high for _, high in every if high is not None]
    low = min(lows) if len(lows) == len(every) else None
    high = max(highs) if len(highs) == len(every) else None
    if function == "greatest":
        low = max((end for end in (low, *(one for one, _ in never)) if end is not None), default=None)
    else:
        high = min((end for end in (high, *(one for _, one in never)) if end is not None), default=None)
    return low, high


def _whole(
    function: str, node: exp.Expr, ends: tuple[int, int], *of: Typed, family: str, unit: Fraction = Fraction(1)
) -> Typed:
    """A function of whole numbers whose result is between ``ends``, NULL where it leaves 128 bits."""
    value, low, high = integer_call(function, node, *ends, *((t.value, t.low, t.high) for t in of))
    found = exact(value, low, high, family, *of, unit=unit)
    return found if (low, high) == ends else replace(found, nulls=True)


def _rounding(function: str, x: Typed, divisor: int, node: exp.Expr) -> Value:
    """n over divisor, rounded: a quotient towards zero of a shifted numerator."""
    by = Constant(divisor, "BIGINT")

    def over(shift: int) -> Value:
        value, low, high = x.value, x.low, x.high
        if shift:
            low, high = low + shift, high + shift
            moved = (Constant(shift, "BIGINT"), shift, shift)
            value, low, high = integer_call("+", node, low, high, (value, x.low, x.high), moved)
        return integer_call("//", node, low, high, (value, low, high), (by, divisor, divisor))[0]

    if function == "trunc":
        return over(0)
    below, above = {"floor": (1 - divisor, 0), "ceil": (0, divisor - 1)}.get(function, (-(divisor // 2), divisor // 2))
    low, high = over(below), over(above)
    # Both branches in one type.
    kind = max(low.type, high.type, key=lambda name: ("BIGINT", "HUGEINT").index(name))
    zero = Constant(0, x.value.type)
    return CaseValue(((Compared(x.value, "<", zero), whole(low, kind)),), whole(high, kind), kind)


def _half_away(n: int, divisor: int) -> int:
    return _towards_zero(n + (divisor // 2 if n >= 0 else -(divisor // 2)), divisor)


def _towards_zero(n: int, divisor: int) -> int:
    found = abs(n) // abs(divisor)
    return found if (n >= 0) == (divisor > 0) else -found


_ROUNDINGS: dict[str, Callable[[int, int], int]] = {
    "floor": lambda n, divisor: n // divisor,
    "ceil": lambda n, divisor: -(-n // divisor),
    "trunc": _towards_zero,
    "round": _half_away,
}


def _of_doubles(operator: str, a: Typed, b: Typed, node: exp.Expr, bounds: Callable[[Ends, Ends], Ends]) -> Typed:
    """An operator of DOUBLEs; ``bounds`` gives the ends of the result from those of its sides."""
    x, y = as_real(a, node), as_real(b, node)
    found = None if x.bounds is None or y.bounds is None else bounds(x.bounds, y.bounds)
    return _real(Call(operator, (x.value, y.value), "DOUBLE"), found, x, y)


def _unless_zero(divisor: Typed, value: Value) -> Value:
    if not divisor.low <= 0 <= divisor.high:
        return value
    zero = Compared(divisor.value, "=", Constant(0, divisor.value.type))
    return CaseValue(((zero, Constant(None, value.type)),), value, value.type)


def _product(
    a: Fraction | int, b: Fraction | int, c: Fraction | int, d: Fraction | int, *, same: bool = False
) -> tuple:  # type: ignore[type-arg]
    """The ends of a product of numbers from a to b and from c to d; ``same``: of a number with itself."""
    every = (a * a, b * b) if same else (a * c, a * d, b * c, b * d)
    return 0 * a if same and a < 0 < b else min(every), max(every)


def _family(a: Typed, b: Typed) -> str:
    families = {a.family, b.family}
    return "double" if "double" in families else "decimal" if "decimal" in families else "integer"


def _real(value: Value, bounds: Ends | None, *of: Typed, undefined: bool | None = None) -> Typed:
    """A DOUBLE; without bounds it may be made of infinite ones, so that it is ``undefined`` unless that is said."""
    if undefined is None:
        undefined = bounds is None or max(map(abs, bounds)) > _FINITE or any(t.undefined for t in of)
    nulls = undefined or any(t.nulls for t in of)
    return Typed("real", value, "double", bounds=bounds, nulls=nulls, undefined=undefined, gap=gaps(*of))
