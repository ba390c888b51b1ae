"""Aggregates of the rows of each unit, as expressions over columns of a table of units.

Counts, sums and values of a row are columns that a scan computes (``UnitRows``); means and spreads follow from them,
exact until they are divided, and held to bounds.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Protocol

from sqlglot import exp

from dpsql.sql.aggregate.linear import distinct_value
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import as_they_are
from dpsql.sql.values.predicates import nonnull, truth
from dpsql.sql.values.scope import Scope
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr.conditions import TRUE, And, Condition, gather, negate


class UnitRows(Protocol):
    """The table of units that a SELECT is read into: each method adds a column, one for equal ones, and names it.

    ``whole`` is the call with its FILTER, ``where`` the condition of the rows of a unit that enter.
    """

    scope: Scope

    @property
    def most(self) -> int:
        """The most rows of a unit."""
        ...

    def counted(self, whole: exp.Expression, where: Condition, what: str = "") -> exp.Expression: ...
    def summed(self, whole: exp.Expression, argument: exp.Expression, where: Condition) -> exp.Expression: ...
    def distinct(self, whole: exp.Expression, argument: exp.Expr, where: Condition) -> exp.Expression: ...
    def middle(self, whole: exp.Expression, level: Typed, where: Condition) -> exp.Expression: ...
    def one_row(
        self,
        whole: exp.Expression,
        argument: exp.Expression,
        by: exp.Expression | None,
        where: Condition,
        function: str,
    ) -> exp.Expression: ...
    def whole_number(self, argument: exp.Expression, called: str) -> Typed:
        """The argument as a multiple of a whole number, clamped in each row; SQLError where it is none."""
        ...


def count(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """COUNT(*), COUNT(x), COUNT(t.*) and REGR_COUNT(y, x)."""
    if isinstance(node.this, exp.Column) and isinstance(node.this.this, exp.Star):
        return rows.counted(whole, gather(And, where, nonnull(node.this, rows.scope)))
    given = [part for part in (node.this, node.args.get("expression")) if part and not isinstance(part, exp.Star)]
    return rows.counted(whole, _with_value(rows, where, *given))


def count_if(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """COUNT_IF, NULL where the condition is NULL in every row."""
    pair = truth(node.this, rows.scope)
    if where != TRUE or pair.false != negate(pair.true):
        return rows.summed(whole, node.this, where)
    return rows.counted(whole, pair.true)


def total(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """SUM."""
    return rows.summed(whole, node.this, where)


def distinct(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """How many values the rows of a unit have."""
    return rows.distinct(whole, distinct_value(node, rows.scope), where)


def median(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """MEDIAN of whole numbers, which may lie between two of them."""
    level = rows.whole_number(node.this, called_as(node))
    found = rows.middle(whole, level, where)
    return found if level.unit == 1 else exp.Paren(this=exp.Mul(this=found, expression=number(level.unit)))


def average(rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """AVG and REGR_AVGY as sum over count, within the bounds."""
    argument, level, n, where = _numbers(rows, node, whole, where)
    mean = exp.Div(this=_added(rows, argument, whole, where), expression=n.copy(), typed=False)
    held = _within(mean, level.low * level.unit, level.high * level.unit)
    return as_they_are(exp.Case(ifs=[exp.If(this=exp.GT(this=n, expression=number(0)), true=held)]))


def spread(
    rows: UnitRows,
    node: exp.Expression,
    whole: exp.Expression,
    where: Condition,
    *,
    least: int = 0,
    power: int = 0,
    root: bool = False,
) -> exp.Expression:
    """VAR, STDDEV, SEM and REGR_SYY, within what values between the bounds can have.

    (n q - s^2) n^power / (n (n - least)) for n rows with the sum s and the sum of squares q; ``least`` is 1 of a
    sample. At most half or a quarter of the width squared, times the most rows for the power 1.
    """
    argument, level, n, where = _numbers(rows, node, whole, where)
    square = exp.Mul(this=exp.Paren(this=argument.copy()), expression=exp.Paren(this=argument.copy()))
    s, q = (_added(rows, part, whole, where) for part in (argument, square))
    width = (level.high - level.low) * level.unit
    above = exp.Sub(this=exp.Mul(this=n.copy(), expression=q), expression=exp.Mul(this=s, expression=s.copy()))
    others = exp.Paren(this=exp.Sub(this=n.copy(), expression=number(least)))
    below = functools.reduce(
        lambda left, right: exp.Mul(this=left, expression=right),
        [n.copy(), *([others] if power == 0 else []), *([n.copy(), n.copy()] if power < 0 else [])],
    )
    quotient = exp.Div(this=exp.Paren(this=above), expression=exp.Paren(this=below), typed=False)
    found = _within(quotient, Fraction(0), width**2 / (2 if least else 4) * (rows.most if power > 0 else 1))
    if root:
        most = width * Fraction(7072, 10000) if least else width / 2  # a little above the root of a half
        found = _within(exp.Sqrt(this=found), Fraction(0), most)
    return as_they_are(exp.Case(ifs=[exp.If(this=exp.GT(this=n, expression=number(least)), true=found)]))


def _numbers(
    rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition
) -> tuple[exp.Expression, Typed, exp.Expression, Condition]:
    """The first argument, the whole number that it is, how many rows have all arguments, and which these are."""
    given = node.expressions if isinstance(node, exp.AnonymousAggFunc) else [node.this, node.args.get("expression")]
    several = [part for part in given if part is not None]
    argument = several[0] if several else None
    if argument is None or isinstance(argument, exp.Distinct) or len(given) > 2:
        raise refuse(f"{called_as(node)} takes numbers, without DISTINCT", node, code="per-unit")
    level = rows.whole_number(argument, called_as(node))
    complete = _with_value(rows, where, *several)
    return argument, level, rows.counted(whole, complete, "rows"), complete if len(several) > 1 else where


def of_one_row(
    rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition, *, function: str
) -> exp.Expression:
    """A value that a row of the unit has: MIN, MAX, ANY_VALUE, ARG_MIN and ARG_MAX."""
    return rows.one_row(whole, node.this, node.args.get("expression"), where, function)


def in_order(
    rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition, *, first: bool
) -> exp.Expression:
    """FIRST(x ORDER BY y) and LAST; rows where y is NULL have no place."""
    order = node.this
    if not isinstance(order, exp.Order) or len(order.expressions) != 1:
        raise refuse(
            f"{shown(node)} depends on the order of rows; write FIRST(x ORDER BY y), by one column or expression",
            node,
            code="per-unit",
        )
    (by,) = order.expressions
    function = "arg_min_null" if first != bool(by.args.get("desc")) else "arg_max_null"
    return rows.one_row(whole, order.this, by.this, where, function)


def logical(
    rows: UnitRows, node: exp.Expression, whole: exp.Expression, where: Condition, *, decides: bool
) -> exp.Expression:
    """BOOL_OR and BOOL_AND: TRUE or FALSE where a row has the truth that decides, else the other, NULL of no row."""
    pair = truth(node.this, rows.scope)
    first, second = (pair.true, pair.false) if decides else (pair.false, pair.true)
    counts = (
        rows.counted(whole, gather(And, where, first), "decides"),
        rows.counted(whole, gather(And, where, second), "else"),
    )
    one, other = (exp.GT(this=count, expression=number(0)) for count in counts)
    return exp.Case(
        ifs=[
            exp.If(this=one, true=exp.Boolean(this=decides)),
            exp.If(this=other, true=exp.Boolean(this=not decides)),
        ]
    )


def _with_value(rows: UnitRows, where: Condition, *arguments: exp.Expression) -> Condition:
    """The rows of a condition in which no argument is NULL."""
    tests = (exp.Not(this=exp.Is(this=part.copy(), expression=exp.Null())) for part in arguments)
    return gather(And, where, *(truth(test, rows.scope).true for test in tests))


def _added(rows: UnitRows, argument: exp.Expression, whole: exp.Expression, where: Condition) -> exp.Expression:
    """The sum of a part of an aggregate over the aggregate's rows."""
    added: exp.Expression = exp.Sum(this=argument.copy())
    if isinstance(whole, exp.Filter):
        added = exp.Filter(this=added, expression=whole.expression.copy())
    return rows.summed(added, argument, where)


def _within(node: exp.Expression, low: Fraction, high: Fraction) -> exp.Expression:
    return exp.Least(this=exp.Greatest(this=node, expressions=[number(low)]), expressions=[number(high)])


def number(value: int | Fraction) -> exp.Expression:
    """A number as SQL writes it exactly."""
    value = Fraction(value)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole_part = abs(value * 10**digits).numerator
    text = str(whole_part).rjust(digits + 1, "0")
    literal = exp.Literal.number(f"{text[:-digits]}.{text[-digits:]}" if digits else text)
    return exp.Neg(this=literal) if value < 0 else literal
