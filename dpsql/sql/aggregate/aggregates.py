"""Aggregates: the expressions of a SELECT as linear outputs to be measured, and formulas over them.

An expression is linear where it is a sum of multiples of counts and sums, a formula where it adds,
multiplies or divides those and AVG, VAR and the like. Everything else is left to the outer SQL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.sql.aggregate.linear import Linear, distinct_value, factor_of, scaled
from dpsql.sql.aggregate.quantiles import prefixes_of, quantile_of
from dpsql.sql.aggregate.statistics import weighted
from dpsql.sql.aggregate.table import CONSTANT, FORMULA, LINEAR, OUTER, RANKED, aggregate_of, misplaced
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.expressions import branches_of, column_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import nonnull, truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import Column, Output, Ranked, Term, unit_sum_name
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, LineAtom, Or, gather, negate
from dpsql.workloads.expr.formulas import (
    Dated,
    Default,
    Formula,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Sum,
)
from dpsql.workloads.expr.rows import Each
from dpsql.workloads.expr.values import Stored

_PLAIN_CASTS = frozenset({exp.DType.DOUBLE, exp.DType.FLOAT})


def kind(node: exp.Expression) -> int:
    """CONSTANT, LINEAR, FORMULA, RANKED or OUTER; cost linear in the expression.

    RANKED is a quantile by itself; any arithmetic with one is OUTER.
    """
    ranked = aggregate_of(rank_of(node))
    if ranked is not None and ranked.ranked:
        return RANKED
    found = CONSTANT
    stack = [node]
    while stack:
        part = _plain(stack.pop())
        if isinstance(part, exp.Neg):
            stack.append(part.this)
        elif isinstance(part, exp.Add | exp.Sub):
            stack.extend([part.expression, part.this])
        elif isinstance(part, exp.Mul | exp.Div):
            found = max(found, _product_kind(part))
        elif isinstance(part, exp.Filter):
            inner = kind(part.this)
            found = max(found, OUTER if inner == RANKED else inner)
        elif (aggregate := aggregate_of(part)) is not None:
            found = max(found, OUTER if aggregate.ranked else aggregate.kind)
        elif not is_constant(part):
            return OUTER
        if found == OUTER:
            return OUTER
    return found


def _product_kind(node: exp.Mul | exp.Div) -> int:
    left, right = kind(node.this), kind(node.expression)
    if max(left, right) >= RANKED:
        return OUTER
    if isinstance(node, exp.Mul):
        return max(left, right) if CONSTANT in (left, right) else FORMULA
    return left if right == CONSTANT else FORMULA


def _plain(node: exp.Expression) -> exp.Expression:
    """Without parentheses, casts to DOUBLE, and guards against nothing that noisy numbers do not need.

    COUNT and SUM over nothing are 0, so COALESCE(SUM(x), 0) is SUM(x); a ratio to a number that is surely 0 is NULL by
    itself, so x / NULLIF(COUNT(*), 0) is x / COUNT(*).
    """
    while True:
        if (
            isinstance(node, exp.Paren)
            or (
                isinstance(node, exp.Cast)
                and not is_constant(node)
                and node.to.this in _PLAIN_CASTS
                and not node.to.expressions
            )
            or (isinstance(node, exp.Coalesce) and len(node.expressions) == 1 and _is_zero(node.expressions[0]))
            or (isinstance(node, exp.Nullif) and _is_zero(node.expression))
        ):
            node = node.this
        else:
            return node


def _is_coalesced(node: exp.Expression) -> bool:
    """Whether COALESCE(..., 0) is among what ``_plain`` takes away."""
    inside = _plain(node)
    while node is not inside:
        if isinstance(node, exp.Coalesce):
            return True
        node = node.this
    return False


def rank_of(node: exp.Expression) -> exp.Expression:
    """The aggregate inside parentheses and FILTER."""
    while isinstance(node, exp.Paren | exp.Filter):
        node = node.this
    return node


def _is_null(node: exp.Expr) -> bool:
    return is_constant(node) and fold(node) is None


def _is_zero(node: exp.Expression) -> bool:
    return is_constant(node) and fold(node) == 0


class Collector:
    """Gathers the outputs of one core; equal ones are measured once.

    ``outputs`` are over the rows, but for the numbers in ``apart`` (by number: a condition, and what is counted): those
    count the privacy units with a row that satisfies it, or the values of a column in such rows, or add up what each
    unit has of a column there.
    """

    def __init__(self, where: Condition, scope: Scope, is_unit: Callable[[exp.Expr], bool]) -> None:
        self.where = where
        self.scope = scope
        self.is_unit = is_unit
        self.by_unit = True  # groups do not overlap, so that bounds on what one unit adds to a sum can be used
        self.outputs: list[Output] = []
        self.separate: dict[int, tuple[Condition, Each | Column | None]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    def linear(self, node: exp.Expression, name: str = "") -> Formula:
        """The output that a LINEAR expression is, or where bounds hold one unit's sums, a sum of several."""
        found = self._linear(node)
        sums = [Leaf(self._of_units(*asked, by)) for asked, by in found.of_units.items() if by]
        if found.terms or found.constant or not sums:
            sums.append(Leaf(self.output_of(found.terms, found.constant, name)))
        return Sum(tuple(sums)) if len(sums) > 1 else sums[0]

    def _of_units(self, where: Condition, column: Column, coefficient: Fraction) -> int:
        """The number of an output: what units add to a sum, each within its bounds."""
        return self._separate(("sum", where, column.name, coefficient), where, column, Term(coefficient, where))

    def _separate(self, key: tuple[object, ...], where: Condition, what: Each | Column | None, term: Term) -> int:
        if isinstance(what, Column):
            term = replace(term, column=unit_sum_name(what))
        if key not in self._numbers:
            self._numbers[key] = len(self.outputs)
            self.separate[len(self.outputs)] = where, what
            self.outputs.append(Output("", (term,)))
        return self._numbers[key]

    def formula(self, node: exp.Expression) -> Formula:
        """The formula that a LINEAR or FORMULA expression, or a constant, is."""
        inside = _plain(node)
        if kind(inside) == FORMULA and _is_coalesced(node):
            return Default(self._number(inside))
        node = inside
        if is_constant(node):
            return Number(factor_of(node))
        if kind(node) == LINEAR:
            return self.linear(node)
        if isinstance(node, exp.Neg):
            return Negative(self._number(node.this))
        if isinstance(node, exp.Add | exp.Sub):
            parts: list[Formula] = []
            stack = [(node.expression, isinstance(node, exp.Sub)), (node.this, False)]
            while stack:
                part, minus = stack.pop()
                inside = _plain(part)
                if isinstance(inside, exp.Add | exp.Sub) and not _is_coalesced(part):
                    stack.append((inside.expression, minus != isinstance(inside, exp.Sub)))
                    stack.append((inside.this, minus))
                else:
                    found = self._number(part)
                    parts.append(Negative(found) if minus else found)
            return Sum(tuple(parts))
        if isinstance(node, exp.Mul):
            return Product((self._number(node.this), self._number(node.expression)))
        if isinstance(node, exp.Div):
            return self._quotient(node)
        if isinstance(node, exp.Filter):
            return self.filtered(node).formula(node.this)
        aggregate = aggregate_of(node)
        if aggregate is None or aggregate.formula is None:
            raise misplaced(node)
        return aggregate.formula(node, self)

    def _number(self, node: exp.Expression) -> Formula:
        """A part of an expression, which must be a number."""
        found = self.formula(node)
        if isinstance(found, Dated):
            raise refuse(
                f"{shown(node)} is a time, which nothing is added to or divided by here; write it as a column of its "
                "own, and what follows from it in a query over the result",
                node,
            )
        return found

    def _linear(self, node: exp.Expression) -> Linear:
        """A LINEAR expression as terms."""
        out = Linear(self.where, self.scope, by_unit=self.by_unit)
        stack = [(node, Fraction(1), self.where)]
        while stack:
            part, scale, where = stack.pop()
            # Sums are taken apart before anything asks for constants, which would walk a long chain at every link.
            part = _plain(part)
            if isinstance(part, exp.Neg):
                stack.append((part.this, -scale, where))
            elif isinstance(part, exp.Add | exp.Sub):
                other = -scale if isinstance(part, exp.Sub) else scale
                stack.extend([(part.expression, other, where), (part.this, scale, where)])
            elif isinstance(part, exp.Mul) and is_constant(part.expression):
                stack.append((part.this, scaled(scale, factor_of(part.expression), part), where))
            elif isinstance(part, exp.Mul) and is_constant(part.this):
                stack.append((part.expression, scaled(scale, factor_of(part.this), part), where))
            elif isinstance(part, exp.Div) and is_constant(part.expression):
                divisor = factor_of(part.expression)
                if not divisor:
                    raise refuse("division by zero", part)
                stack.append((part.this, scaled(scale, 1 / divisor, part), where))
            elif isinstance(part, exp.Filter):
                kept = truth(part.expression.this, self.scope).true
                stack.append((part.this, scale, gather(And, where, kept)))
            elif is_constant(part):
                out.constant += scale * factor_of(part)
            else:
                aggregate = aggregate_of(part)
                if aggregate is None or aggregate.terms is None:
                    raise misplaced(part)
                aggregate.terms(out, part, scale, where)
        return out

    def filtered(self, node: exp.Filter) -> Collector:
        """The same outputs, of the rows that FILTER leaves."""
        kept = copy.copy(self)  # the same lists, other rows
        kept.where = gather(And, self.where, truth(node.expression.this, self.scope).true)
        return kept

    def ranked(self, node: exp.Expression) -> Ranked:
        """MIN, MAX, MEDIAN or QUANTILE_CONT over the declared values of a column: a prefix count for each."""
        where = self.where
        while isinstance(node, exp.Paren | exp.Filter):
            if isinstance(node, exp.Filter):
                where = gather(And, where, truth(node.expression.this, self.scope).true)
            node = node.this
        q, argument, discrete = quantile_of(node)
        found = prefixes_of(argument, self.scope, called_as(node))
        terms = [Term(Fraction(1), gather(And, where, condition)) for condition in found.below]
        series = f"quantile {len(self.outputs)}"
        prefixes = tuple(self.output_of({term: Fraction(1)}, Fraction(0), "", series) for term in terms)
        # Between two days there are hours.
        between = found.type == "DATE" and not (discrete or isinstance(node, exp.Min | exp.Max))
        kind = "TIMESTAMP" if between else found.type
        return Ranked("", q, found.starts, found.values, prefixes, kind, discrete=discrete)

    def units(self, node: exp.Expression) -> int:
        """COUNT(DISTINCT unit), DISTINCT CASE WHEN ... THEN unit END, or of other values, as a term of one number."""
        what = distinct_value(node, self.scope)
        counted = self._rows_with(what, self.is_unit)
        each: Each | None = None
        if counted is None:
            counted, each = self._values_of(what)
        where = gather(And, self.where, counted)
        return self._separate(("units", where, each), where, each, Term(Fraction(1), where))

    def _values_of(self, node: exp.Expr) -> tuple[Condition, Each]:
        """The rows where an expression is not NULL, and its values, each of which counts once."""
        source = self.scope.computed.base.source
        if source is not None and source.of is not None:
            raise refuse("COUNT(DISTINCT ...) of rows of units counts units alone", node, code="count-distinct")
        value = _first_value(node)
        where = self._rows_with(node, lambda part: part == value)  # CASE of one expression and of NULL counts that
        node, where = (node, TRUE) if where is None else (value, where)
        column = column_of(node, self.scope)
        if column.line.kind == "opaque":
            raise refuse(f"the values of {shown(node)} ({column.type}) are not told apart", node, code="count-distinct")
        not_null = nonnull(node, self.scope)
        if not_null == TRUE and isinstance(column.value, Stored | None):
            # Rows that hold what the policy rules out do not count, and how many values there are is known.
            not_null = LineAtom(column.name, ((None, None),))
        return gather(And, where, not_null), Each(column.name, column.line, column.value)

    def _rows_with(self, node: exp.Expr, is_it: Callable[[exp.Expr], bool]) -> Condition | None:
        """The rows where an expression ``is_it``, NULL in all others; None where it may be something else."""
        node = node.unnest()
        if is_it(node):
            return TRUE
        if not isinstance(node, exp.Case | exp.If):
            return None
        reached: Condition = TRUE
        found: list[Condition] = []
        for condition, branch in branches_of(node):
            holds = TRUE if condition is None else truth(condition, self.scope).true
            inner = FALSE if _is_null(branch) else self._rows_with(branch, is_it)
            if inner is None:
                return None
            found.append(gather(And, reached, holds, inner))
            reached = gather(And, reached, negate(holds))
        return gather(Or, *found)

    def _quotient(self, node: exp.Div) -> Formula:
        if is_constant(node.expression):
            divisor = factor_of(node.expression)
            if not divisor:
                raise refuse("division by zero", node)
            return Product((self._number(node.this), Number(1 / divisor)))
        if kind(node.this) == LINEAR and kind(node.expression) == LINEAR:
            top, bottom = self._linear(node.this), self._linear(node.expression)
            if top.of_units or bottom.of_units:
                return Quotient(self._number(node.this), self._number(node.expression), None)
            # A part of the rows over all of them lies between 0 and 1.
            scale = _share(top, bottom)
            if scale is not None:
                share = Quotient(
                    Leaf(self.output_of(_divided(top.terms, scale), Fraction(0), "")),
                    Leaf(self.output_of(bottom.terms, bottom.constant, "")),
                    (0.0, 1.0),
                )
                return share if scale == 1 else Product((share, Number(scale)))
            bounds = weighted(node, self.scope)
            if bounds is None and _not_negative(top) and _not_negative(bottom):
                bounds = 0.0, math.inf
            return Quotient(self._number(node.this), self._number(node.expression), bounds)
        return Quotient(self._number(node.this), self._number(node.expression), weighted(node, self.scope))

    def output_of(self, terms: dict[Term, Fraction], constant: Fraction, name: str, part_of: str = "") -> int:
        """The number of the output that these terms are; a new one where there is none yet."""
        terms_in_use = tuple(
            term if term.coefficient == coefficient else replace(term, coefficient=coefficient)
            for term, coefficient in terms.items()
            if coefficient and term.condition != FALSE
        )
        key = (terms_in_use, constant)
        if key not in self._numbers:
            self._numbers[key] = len(self.outputs)
            self.outputs.append(Output(name, terms_in_use, constant, part_of))
            return self._numbers[key]
        at = self._numbers[key]
        if not part_of:  # a column by itself, whatever else it is a part of
            self.outputs[at] = replace(self.outputs[at], name=self.outputs[at].name or name, part_of="")
        return at


def _first_value(node: exp.Expr) -> exp.Expr:
    """What the first branch of CASE gives that is not NULL, through CASE within CASE; else the expression itself."""
    while isinstance(node := node.unnest(), exp.Case | exp.If):
        found = next((branch for _, branch in branches_of(node) if not _is_null(branch)), None)
        if found is None:
            break
        node = found
    return node


def _share(top: Linear, bottom: Linear) -> Fraction | None:
    """The factor f with top = f x a part of what bottom counts or sums, none of it negative; None where it is none."""
    parts, wholes = ([pair for pair in side.terms.items() if pair[1]] for side in (top, bottom))
    if top.constant or bottom.constant or len(parts) != 1 or len(wholes) != 1:
        return None
    (part, factor), (whole, one) = *parts, *wholes
    if part.column != whole.column or one != 1 or factor <= 0:
        return None
    if whole.column is not None:
        lower = bottom.scope.column(whole.column).policy.lower
        if not isinstance(lower, Fraction) or lower < 0:
            return None
    return factor if gather(And, whole.condition, part.condition) == part.condition else None


def _not_negative(side: Linear) -> bool:
    """Whether a linear expression is at least 0 whatever the rows are."""
    lowers = [side.scope.column(term.column).policy.lower for term in side.terms if term.column is not None]
    bounded = all(isinstance(lower, Fraction) and lower >= 0 for lower in lowers)
    return bounded and side.constant >= 0 and all(coefficient >= 0 for coefficient in side.terms.values())


def _divided(terms: dict[Term, Fraction], factor: Fraction) -> dict[Term, Fraction]:
    return {term: coefficient / factor for term, coefficient in terms.items()}
