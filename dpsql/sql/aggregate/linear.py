"""Linear aggregates: COUNT, COUNT_IF and SUM as multiples of rows, and of sums, where a condition holds."""

from __future__ import annotations

import math
from fractions import Fraction

from sqlglot import exp

from dpsql.common.notes import BIAS, ERROR, Note
from dpsql.sql.aggregate.sums import exactly, sum_of
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.spellings import fields_of
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import standing_for
from dpsql.sql.values.expressions import branches_of, value_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import nonnull, truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import Column, Term
from dpsql.workloads.expr.conditions import TRUE, And, Condition, gather, negate

BOUNDED = "and SUM / COUNT is not the mean of the rows"
"""How the note ends that says of a sum that it is within bounds."""


class Linear:
    """A linear expression over counts and sums, collected into terms of coefficient 1."""

    def __init__(self, where: Condition, scope: Scope, *, by_unit: bool = True) -> None:
        self.where = where
        self.scope = scope
        self.by_unit = by_unit  # whether sums may be of what each unit adds
        self.terms: dict[Term, Fraction] = {}
        self.of_units: dict[tuple[Condition, Column], Fraction] = {}  # sums that a bound on one unit's holds
        self.constant = Fraction(0)

    def term(self, condition: Condition, column: str | None, coefficient: Fraction) -> None:
        """Add a multiple of the rows where a condition holds, or of the sum of a column over them."""
        key = Term(Fraction(1), condition, column)
        self.terms[key] = self.terms.get(key, Fraction(0)) + coefficient

    def count(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        """COUNT(*) or COUNT(x)."""
        argument = node.this
        if node.expressions:
            raise refuse("COUNT takes one argument", node)
        if isinstance(argument, exp.Star) and any(argument.args.values()):
            raise refuse("COUNT takes *, without EXCLUDE, REPLACE or RENAME", node)
        while isinstance(argument, exp.Paren):
            argument = argument.this
        if isinstance(argument, exp.Star) or argument is None:
            self.term(where, None, scale)
        elif is_constant(argument):
            if fold(argument) is not None:
                self.term(where, None, scale)
        else:
            self.term(gather(And, where, nonnull(argument, self.scope)), None, scale)

    def count_if(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        """COUNT_IF(condition)."""
        self.term(gather(And, where, truth(node.this, self.scope).true), None, scale)

    def pairs(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        """REGR_COUNT(y, x): the rows where neither is NULL."""
        for part in (node.this, node.expression):
            if part is None or not value_of(part, self.scope).numeric:
                raise refuse("REGR_COUNT takes two numbers, without DISTINCT", node, code="aggregate")
            where = gather(And, where, nonnull(part, self.scope))
        self.term(where, None, scale)

    def sum(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        """SUM(x)."""
        self._sum(node.this, scale, where)

    def _sum(self, argument: exp.Expr, scale: Fraction, where: Condition) -> None:
        while isinstance(argument, exp.Paren):
            argument = argument.this
        if isinstance(argument, exp.Case | exp.If):
            self._case(argument, scale, where)
        elif isinstance(argument, exp.Distinct):
            raise refuse(
                "SUM(DISTINCT ...) is not linear in the rows; leave DISTINCT out", argument, code="count-distinct"
            )
        elif is_constant(argument):
            if fold(argument) is not None:
                self.term(where, None, scale * factor_of(argument))
        elif isinstance(argument, exp.Add | exp.Sub) and (offset := _as_offset(argument)) is not None:
            other, by, sign = offset  # SUM(x + c) is SUM(x) and c for each row that has a value
            self._sum(other, scale * sign, where)
            if by:
                self.term(gather(And, where, nonnull(other, self.scope)), None, scaled(scale, by, argument))
        else:
            self._column(argument, scale, where)

    def _column(self, argument: exp.Expr, scale: Fraction, where: Condition) -> None:
        """SUM of one column, or of what each unit adds to it where the policy bounds that."""
        column, base = sum_of(argument, self.scope), self.scope.computed.base
        if self.by_unit and base.sums:
            column = exactly(column, argument, self.scope)
        bounded = self.by_unit and bool(base.bounds_on(column))
        if bounded:
            note = _of_rows_note if base.policy.is_spark else _of_units_note
            self.scope.computed.notes[note(argument, self.scope)] = None
        if bounded and not base.policy.is_spark:
            self.of_units[where, column] = self.of_units.get((where, column), Fraction(0)) + scale
        else:
            self.term(where, column.name, scale)

    def _case(self, node: exp.Case | exp.If, scale: Fraction, where: Condition) -> None:
        """SUM over CASE: each branch is a sum over the rows that reach it."""
        reached = where
        for condition, branch in branches_of(node):
            holds = TRUE if condition is None else truth(condition, self.scope).true
            self._sum(branch, scale, gather(And, reached, holds))
            reached = gather(And, reached, negate(holds))


def _of_units_note(argument: exp.Expr, scope: Scope) -> Note:
    """What a reader of sums of units should know."""
    source = scope.computed.base.source
    unit = "unit" if source is None or source.unit is None else source.unit.name
    return Note(
        f"SUM({shown(argument)}) adds up what each {unit} has, within at_most of {scope.computed.base.policy.name}: of "
        f"more each group keeps its share, {BOUNDED}",
        BIAS,
    )


def _of_rows_note(argument: exp.Expr, scope: Scope) -> Note:
    """That scans of Spark, which do not add up by unit, leave a bound unused."""
    name = scope.computed.base.policy.name
    return Note(
        f"SUM({shown(argument)}) has larger errors than at_most of {name} would allow: on Spark it is the sum of the "
        "rows that count, at most max_rows_per_unit of a unit",
        ERROR,
    )


def in_parts(argument: exp.Expr) -> bool:
    """Whether SUM of an expression is worked out of other sums: of a CASE, or where a constant is added."""
    bare = argument.unnest()
    return isinstance(bare, exp.Case | exp.If) or (isinstance(bare, exp.Add | exp.Sub) and _as_offset(bare) is not None)


def _as_offset(node: exp.Add | exp.Sub) -> tuple[exp.Expr, Fraction, int] | None:
    """(x, c, sign) where ``node`` is sign x + c for a constant number c and some x that is none; None elsewhere."""
    for x, other, sign in ((node.this, node.expression, 1), (node.expression, node.this, -1)):
        if is_constant(other) and not is_constant(x):
            value = fold(other)
            if isinstance(value, bool) or not isinstance(value, int | Fraction) or abs(Fraction(value)) > 10**12:
                return None
            c, minus = Fraction(value), isinstance(node, exp.Sub)
            return x, -c if minus and sign > 0 else c, sign if minus else 1
    return None


def distinct_value(node: exp.Expression, scope: Scope) -> exp.Expr:
    """What COUNT(DISTINCT ...) tells apart, as one expression: that of (a, b) is a text of both, with their lengths.

    A row of NULLs is no NULL, as in DuckDB. Raises SQLError for several expressions without parentheses, and for
    fields that have no text.
    """
    given = node.this.expressions if isinstance(node.this, exp.Distinct) else [node.this]
    if len(given) != 1:
        raise refuse(
            f"COUNT(DISTINCT a, b) is not DuckDB's; write COUNT(DISTINCT ({', '.join(map(shown, given))}))",
            node,
            code="count-distinct",
        )
    fields: list[exp.Expr] = fields_of(given[0].unnest()) or [given[0]]
    if len(fields) == 1:
        return fields[0]
    joined: exp.Expression = exp.Literal.string("")
    for field in fields:
        if not is_constant(field):
            joined = exp.DPipe(this=joined, expression=exp.Paren(this=_field(field, scope)), safe=True)
    return standing_for(joined, given[0])


def _field(field: exp.Expr, scope: Scope) -> exp.Expression:
    """A field as a text after its length and a colon, "-" for NULL: no two rows of fields are joined to one text."""
    value, text = field.copy(), exp.DataType(this=exp.DType.VARCHAR)
    level = value_of(field, scope)
    if level.kind == "exact" and level.family == "decimal":
        parts = exp.Literal.number(math.lcm(level.unit.denominator, level.offset.denominator))
        whole = exp.Mul(this=exp.Paren(this=value), expression=parts)
        value = exp.Cast(this=exp.Paren(this=whole), to=exp.DataType(this=exp.DType.INT128))
    written = exp.Cast(this=value, to=text)
    size = exp.Cast(this=exp.Length(this=written.copy()), to=text.copy())
    marked = exp.DPipe(this=size, expression=exp.Literal.string(":"), safe=True)
    null = exp.Is(this=field.copy(), expression=exp.Null())
    shown_as = exp.DPipe(this=marked, expression=written, safe=True)
    return exp.Case(ifs=[exp.If(this=null, true=exp.Literal.string("-"))], default=shown_as)


def factor_of(node: exp.Expr) -> Fraction:
    """The number that a constant beside an aggregate is."""
    value = fold(node)
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise refuse("only numbers can be added to or multiplied with an aggregate", node)
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse("a constant beside an aggregate overflows to infinity; write a coefficient of at most 1e12", node)
    exact = Fraction(value).limit_denominator(10**12) if isinstance(value, float) else Fraction(value)
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("a coefficient lies between 1e-12 and 1e12 and has at most 12 decimals", node)
    return exact


def scaled(scale: Fraction, factor: Fraction, node: exp.Expression) -> Fraction:
    """A product of coefficients, held to what ``factor_of`` allows one of them."""
    exact = scale * factor
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("the coefficients of an aggregate multiply to beyond 1e12 or finer than 1e-12", node)
    return exact
