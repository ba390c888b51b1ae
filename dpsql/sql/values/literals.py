"""Literals: constant expressions of the user's text folded to exact Python values."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from sqlglot import exp

from dpsql.common.numerics import DAY
from dpsql.errors import DataError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import nodes
from dpsql.sql.values.calendar import add_interval, interval_of
from dpsql.workloads.expr.lines import Scalar, line_of, to_float

_CASTS = {
    exp.DType.DATE: "DATE",
    exp.DType.TIMESTAMP: "TIMESTAMP",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
}

MOST = 2**1100  # of exact numbers, and of their denominators: no DOUBLE is larger, or finer

_FOLDED = (
    *(exp.Literal, exp.Boolean, exp.Null, exp.Neg, exp.Paren, exp.Cast, exp.DataType),
    *(exp.Add, exp.Sub, exp.Mul, exp.Interval, exp.Var),
)


def is_literal_cast(node: exp.Cast) -> bool:
    """True for DATE '...' and TIMESTAMP '...', which are literals."""
    return node.to.this in _CASTS and not isinstance(node, exp.TryCast)


def is_constant(node: exp.Expr) -> bool:
    """True where the expression names no column and calls nothing: literals, signs, casts, intervals, + - *."""
    if not isinstance(node, _FOLDED):
        return False
    return all(isinstance(part, _FOLDED) and not isinstance(part, exp.TryCast) for part in nodes(node))


def fold(node: exp.Expr) -> Scalar:
    """The value of a constant expression; integers and decimals exactly, 1e3 and decimals past 38 digits as DOUBLE.

    A DOUBLE that overflows is infinite, as in DuckDB, and one that has no value (NaN) is NULL. Exact numbers that no
    type of DuckDB could hold are refused, whatever is done with them.
    """
    if isinstance(node, exp.Paren):
        return fold(node.this)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Neg):
        value = fold(node.this)
        return None if value is None else -_numeric(value, node)
    if isinstance(node, exp.Add | exp.Sub | exp.Mul):
        if isinstance(node.expression, exp.Interval) and not isinstance(node, exp.Mul):
            return _add_interval(fold(node.this), node)
        left, right = fold(node.this), fold(node.expression)
        if left is None or right is None:
            return None
        if isinstance(left, dt.date):
            return _dated(left, right, node)
        a, b = _numeric(left, node), _numeric(right, node)
        if isinstance(a, float) or isinstance(b, float):
            a, b = to_float(a), to_float(b)
        found = a + b if isinstance(node, exp.Add) else a - b if isinstance(node, exp.Sub) else a * b
        if isinstance(found, float):
            return None if math.isnan(found) else found
        check_exact(Fraction(found), node)
        return found
    raise refuse(f"{shown(node)} is not a constant that dpsql folds; write its value", node)


def check_exact(number: Fraction, node: exp.Expr) -> None:
    """SQLError where an exact number is larger, or finer, than any DOUBLE."""
    if max(abs(number.numerator), number.denominator) > MOST:
        raise refuse(
            "the constants here come to a number that is larger, or finer, than any DOUBLE; write a nearer one", node
        )


def _add_interval(start: Scalar, node: exp.Add | exp.Sub) -> Scalar:
    """A date or timestamp plus or minus an interval: a timestamp, as in DuckDB."""
    if start is None:
        return None
    if not isinstance(start, dt.date):
        raise refuse("an interval is added to a DATE or TIMESTAMP; write DATE '2020-01-31' + INTERVAL 1 MONTH", node)
    amount, unit = interval_of(node.expression)
    return _moment(add_interval(_micros(start), amount if isinstance(node, exp.Add) else -amount, unit, node), node)


def _dated(left: dt.date, right: Scalar, node: exp.Expr) -> Scalar:
    """A date plus or minus whole days, or the days between two dates."""
    plain = not isinstance(left, dt.datetime)
    if plain and isinstance(right, int) and not isinstance(right, bool) and not isinstance(node, exp.Mul):
        days = right if isinstance(node, exp.Add) else -right
        moment = _moment(_micros(left) + days * DAY, node) if abs(days) < 10_000_000 else None
        if moment is not None:
            return moment.date()
    if plain and isinstance(node, exp.Sub) and isinstance(right, dt.date) and not isinstance(right, dt.datetime):
        return (left - right).days
    raise refuse("a constant date takes + or - of whole days or an INTERVAL; write the date itself", node)


def _micros(moment: dt.date) -> int:
    if isinstance(moment, dt.datetime):
        return (moment.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    return (moment - dt.date(1970, 1, 1)).days * DAY


def _moment(micros: int, node: exp.Expr) -> dt.datetime:
    try:
        return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    except OverflowError:
        pass
    raise refuse("a constant date leaves the years 1 to 9999; write a nearer one", node)


def _number(node: exp.Literal) -> int | Fraction | float:
    text = str(node.this).replace("_", "")
    try:
        digits = len(text.replace(".", ""))
        # DuckDB has no DECIMAL of more digits.
        if "e" in text.lower() or ("." in text and 38 < digits <= 60):
            value = float(text)
            if math.isfinite(value):
                return value
        else:
            decimal = Decimal(text)
            if decimal.is_finite() and len(text) <= 60:
                return int(text) if text.isdigit() else Fraction(decimal)
    except (InvalidOperation, ValueError):
        pass
    raise refuse(f"{text[:20]} is not a number that dpsql reads; write at most 60 digits", node)


def _numeric(value: Scalar, node: exp.Expr) -> int | Fraction | float:
    if isinstance(value, bool) or not isinstance(value, int | Fraction | float):
        raise refuse("only numbers can be added, multiplied or negated in a constant", node)
    return value


def _cast(node: exp.Cast) -> Scalar:
    value = fold(node.this)
    kind = _CASTS.get(node.to.this)
    if kind is None:
        raise refuse(f"a constant is not cast to {node.to.sql('duckdb')}; write it as a plain literal", node)
    if value is None:
        return None
    line = line_of(kind)
    if not isinstance(value, str | dt.date | dt.datetime):
        raise refuse(f"only a string is cast to {kind}; write {line.describe()}", node)
    try:
        position = line.place(value)
    except DataError as error:
        raise refuse(str(error), node) from None
    assert isinstance(position, Fraction)  # noqa: S101 - a date's or timestamp's place is a whole number
    if kind == "DATE":
        return dt.date(1970, 1, 1) + dt.timedelta(days=math.floor(position))
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(position))
