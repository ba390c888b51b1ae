"""Functions of DOUBLEs, as a table: where each has a value, and the stretches on which it rises or falls.

Elsewhere it is NULL, in every version of DuckDB. Bounds are DuckDB's own values at the ends of each stretch that the
operand reaches, widened by more than its rounding: a help for sums, never what a scan rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import TypeAlias

from sqlglot import exp

from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.arithmetic import numbers
from dpsql.sql.values.evaluation import known
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.typed import Typed, as_real, gaps, settled, shown
from dpsql.workload.expr.lines import to_float
from dpsql.workload.expr.values import Call, CaseValue, Compared, Constant, Test, Value

Inner: TypeAlias = Callable[[exp.Expr], Typed]
Stretches: TypeAlias = tuple[tuple[float, float], ...]
"""Closed intervals on each of which a function rises or falls; it has no value between them."""
_SPARE = Fraction(1, 2**40)  # of a bound's size: libraries of mathematics are right to 2^-50
_TINY = 5e-324  # the least positive DOUBLE
_LINE: Stretches = ((-inf, inf),)
_RIGHT: Stretches = ((0.0, inf),)


@dataclass(frozen=True)
class Real:
    """A function of one DOUBLE.

    ``least``: below it some versions of DuckDB raise instead of giving NaN; ``at_zero`` is the value at zero where
    they do so there, too.
    """

    made: Callable[[Value], Value]
    stretches: Stretches = _LINE
    least: float | None = None
    at_zero: float | None = None


def _named(function: str, *first: Constant) -> Callable[[Value], Value]:
    return lambda x: Call(function, (*first, x), "DOUBLE")


RULES: Mapping[type[exp.Expr], Real] = {
    exp.Sqrt: Real(_named("sqrt"), _RIGHT, 0.0),
    exp.Cbrt: Real(_named("cbrt")),
    exp.Exp: Real(_named("exp")),
    exp.Ln: Real(_named("ln"), _RIGHT, _TINY, -inf),
}
_TESTS: Mapping[type[exp.Expr], str] = {exp.IsNan: "isnan", exp.IsInf: "isinf"}


def real_function(node: exp.Expr, inner: Inner) -> Typed | None:
    """The value of a function of DOUBLEs; None for any other node."""
    if isinstance(node, exp.Log):
        return _logarithm(node, inner)
    if isinstance(node, exp.Pow):
        return _power(node, inner)
    if isinstance(node, exp.IsNan | exp.IsInf):
        x = settled(_real(inner(node.this), node))
        return Typed("boolean", Call(_TESTS[type(node)], (x.value,), "BOOLEAN"), nulls=x.nulls)
    rule = RULES.get(type(node))
    return None if rule is None else _over(rule, inner(node.this), node)


def _logarithm(node: exp.Log, inner: Inner) -> Typed:
    """LOG(x) to base 10, LOG(base, x) to a constant base."""
    base, part = (10.0, node.this) if node.expression is None else (_constant(node.this), node.expression)
    if base is None or base <= 0.0 or base == 1.0:
        raise refuse(f"{shown(node)} takes a positive constant base other than 1, as in log(2, x)", node)
    function = {2.0: "log2", 10.0: "log10"}.get(base)
    made = _named("log", _double(base)) if function is None else _named(function)
    return _over(Real(made, _RIGHT, _TINY, -inf if base > 1.0 else inf), inner(part), node)


def _power(node: exp.Pow, inner: Inner) -> Typed:
    """x to the y, by IEEE 754: NULL where a negative number has no such power."""
    base, exponent = _constant(node.this), _constant(node.expression)
    if exponent is not None:
        stretches = ((-inf, 0.0), *_RIGHT) if exponent.is_integer() else _RIGHT
        made = lambda x: Call("pow", (x, _double(exponent)), "DOUBLE")  # noqa: E731 - one of three alike
        return _over(Real(made, stretches), inner(node.this), node)
    if base is not None and base > 0.0:
        return _over(Real(_named("pow", _double(base))), inner(node.expression), node)
    x, y = (settled(_real(inner(part), node)) for part in (node.this, node.expression))
    value = Call("pow", (x.value, y.value), "DOUBLE")
    return Typed("real", value, "double", undefined=True, gap=gaps(x, y))


def _over(rule: Real, t: Typed, node: exp.Expr) -> Typed:
    """A function of a number, NULL where it has no value."""
    x = _real(t, node)
    value = rule.made(x.value)
    if rule.least is not None:
        branches: list[tuple[Test, Value]] = []
        if rule.at_zero is not None:
            branches.append((Compared(x.value, "=", _double(0.0)), _double(rule.at_zero)))
        inside = rule.made(Call("greatest", (x.value, _double(rule.least)), "DOUBLE"))
        branches.append((Compared(x.value, ">=", _double(rule.least)), inside))
        value = CaseValue(tuple(branches), None, "DOUBLE")
    bounds = _bounds(rule, x)
    undefined = bounds is None or x.undefined
    return Typed("real", value, "double", bounds=bounds, nulls=x.nulls or undefined, undefined=undefined, gap=gaps(t))


def _bounds(rule: Real, x: Typed) -> tuple[Fraction, Fraction] | None:
    """The least and greatest value over the operand's own bounds; None where it may have none, or is infinite."""
    if x.bounds is None:
        return None
    low, high = (to_float(end) for end in x.bounds)
    if low < rule.stretches[0][0] or high > rule.stretches[-1][1]:
        return None
    found: list[float] = []
    for first, last in rule.stretches:
        if first <= high and low <= last:
            for end in (max(first, low), min(last, high)):
                at_zero = rule.at_zero if end == 0.0 else None
                found.append(known(rule.made(_double(end)), "real") if at_zero is None else at_zero)
    if not all(map(isfinite, found)):
        return None
    spare = max(abs(Fraction(value)) for value in found) * _SPARE
    return Fraction(min(found)) - spare, Fraction(max(found)) + spare


def _real(t: Typed, node: exp.Expr) -> Typed:
    numbers(node, t)
    return as_real(t, node)


def _double(value: float) -> Constant:
    return Constant(value, "DOUBLE")


def _constant(part: exp.Expr) -> float | None:
    """A finite constant number; None for anything else."""
    value = fold(part) if is_constant(part) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        return None
    found = to_float(Fraction(value)) if not isinstance(value, float) else value
    return found if isfinite(found) else None
