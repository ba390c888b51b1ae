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
from math import isfinite

from sqlglot import exp

from dpsql.sql.aggregate.quantiles import QUANTILES, prefixes_of, quantile_of
from dpsql.sql.aggregate.statistics import PAIRED, TABLES, gini, misplaced, name_of, paired, weighted
from dpsql.sql.aggregate.sums import sum_of
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.refusals import not_an_aggregate
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.expressions import branches_of, column_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import known, not_null, truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import Output, Ranked, Term
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, LineAtom, Or, gather, negate
from dpsql.workloads.expr.formulas import (
    Default,
    Formula,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Sum,
    Variance,
)
from dpsql.workloads.expr.rows import Each
from dpsql.workloads.expr.values import Stored

CONSTANT, LINEAR, FORMULA, RANKED, OUTER = range(5)

_LINEAR = (exp.Count, exp.CountIf, exp.Sum)
_MOMENTS = (exp.Avg, exp.Variance, exp.VariancePop, exp.Stddev, exp.StddevPop, exp.StddevSamp)
_PLAIN_CASTS = frozenset({exp.DType.DOUBLE, exp.DType.FLOAT})


def kind(node: exp.Expression) -> int:
    """CONSTANT, LINEAR, FORMULA, RANKED or OUTER; cost linear in the expression.

    RANKED is a quantile by itself; any arithmetic with one is OUTER.
    """
    if isinstance(rank_of(node), QUANTILES):
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
        elif isinstance(part, exp.ApproxDistinct) or (
            isinstance(part, exp.Count) and isinstance(part.this, exp.Distinct)
        ):
            found = max(found, FORMULA)
        elif isinstance(part, _LINEAR):
            found = max(found, LINEAR)
        elif isinstance(part, (*_MOMENTS, *PAIRED)) or name_of(part):
            found = max(found, FORMULA)
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
    count the privacy units with a row that satisfies it, or the values of a column in such rows.
    """

    def __init__(self, where: Condition, scope: Scope, is_unit: Callable[[exp.Expr], bool]) -> None:
        self.where = where
        self.scope = scope
        self.is_unit = is_unit
        self.outputs: list[Output] = []
        self.apart: dict[int, tuple[Condition, Each | None]] = {}
        self._known: dict[tuple[object, ...], int] = {}

    def output(self, node: exp.Expression, name: str = "") -> int:
        """The number of the output that a LINEAR expression is."""
        linear = _Linear(self.where, self.scope)
        linear.add(node, Fraction(1))
        return self.kept(linear.terms, linear.constant, name)

    def formula(self, node: exp.Expression) -> Formula:
        """The formula that a LINEAR or FORMULA expression, or a constant, is."""
        inside = _plain(node)
        if kind(inside) == FORMULA and _is_coalesced(node):
            return Default(self.formula(inside))
        node = inside
        if is_constant(node):
            return Number(_factor(node))
        if kind(node) == LINEAR:
            return Leaf(self.output(node))
        if isinstance(node, exp.Neg):
            return Negative(self.formula(node.this))
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
                    found = self.formula(part)
                    parts.append(Negative(found) if minus else found)
            return Sum(tuple(parts))
        if isinstance(node, exp.Mul):
            return Product((self.formula(node.this), self.formula(node.expression)))
        if isinstance(node, exp.Div):
            return self._quotient(node)
        if isinstance(node, exp.Filter):
            return self.filtered(node).formula(node.this)
        if isinstance(node, exp.Count | exp.ApproxDistinct):
            return Leaf(self._units(node))
        if name_of(node) in TABLES:
            raise misplaced(node)
        if name_of(node) or isinstance(node, tuple(PAIRED)):
            return gini(node, self) if name_of(node) else paired(node, self)
        return self._moment(node)

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
        prefixes = tuple(self.kept({term: Fraction(1)}, Fraction(0), "", series) for term in terms)
        # Between two days there are hours.
        between = found.type == "DATE" and not (discrete or isinstance(node, exp.Min | exp.Max))
        kind = "TIMESTAMP" if between else found.type
        return Ranked("", q, found.starts, found.values, prefixes, kind, discrete=discrete)

    def _units(self, node: exp.Count | exp.ApproxDistinct) -> int:
        """COUNT(DISTINCT unit), DISTINCT CASE WHEN ... THEN unit END, or of other values, as a term of one number."""
        what = node.this.expressions if isinstance(node.this, exp.Distinct) else [node.this]
        counted = self._rows_with(what[0], self.is_unit) if len(what) == 1 else None
        each: Each | None = None
        if counted is None:
            if len(what) != 1:
                raise refuse("COUNT(DISTINCT ...) counts the values of one expression", node, code="count-distinct")
            counted, each = self._values_of(what[0])
        where = gather(And, self.where, counted)
        key = ("units", where, each)
        if key not in self._known:
            self._known[key] = len(self.outputs)
            self.apart[len(self.outputs)] = where, each
            self.outputs.append(Output("", (Term(Fraction(1), where),)))
        return self._known[key]

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
        not_null = known(node, self.scope)
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
            divisor = _factor(node.expression)
            if not divisor:
                raise refuse("division by zero", node)
            return Product((self.formula(node.this), Number(1 / divisor)))
        top, bottom = _Linear(self.where, self.scope), _Linear(self.where, self.scope)
        if kind(node.this) == LINEAR and kind(node.expression) == LINEAR:
            top.add(node.this, Fraction(1))
            bottom.add(node.expression, Fraction(1))
            # A part of the rows over all of them lies between 0 and 1.
            scale = _share(top, bottom)
            if scale is not None:
                share = Quotient(
                    Leaf(self.kept(_divided(top.terms, scale), Fraction(0), "")),
                    Leaf(self.kept(bottom.terms, bottom.constant, "")),
                    (0.0, 1.0),
                )
                return share if scale == 1 else Product((share, Number(scale)))
            bounds = weighted(node, self.scope)
            if bounds is None and _not_negative(top) and _not_negative(bottom):
                bounds = 0.0, math.inf
            return Quotient(self.formula(node.this), self.formula(node.expression), bounds)
        return Quotient(self.formula(node.this), self.formula(node.expression), weighted(node, self.scope))

    def _moment(self, node: exp.Expression) -> Formula:
        if not isinstance(node, _MOMENTS) or not isinstance(node.this, exp.Expression):
            raise not_an_aggregate(node)
        named = called_as(node)
        if isinstance(node.this, exp.Distinct):
            raise refuse(
                f"{named}(DISTINCT ...) is not linear in the rows; leave DISTINCT out",
                node,
                code="count-distinct",
            )
        column = sum_of(node.this, self.scope, named)
        lower, upper = Fraction(column.policy.lower), Fraction(column.policy.upper)  # type: ignore[arg-type]
        where = gather(And, self.where, not_null(column))
        count = Leaf(self.kept({Term(Fraction(1), where): Fraction(1)}, Fraction(0), ""))
        one = Term(Fraction(1), self.where, column.name)
        if isinstance(node, exp.Avg):
            total = Leaf(self.kept({one: Fraction(1)}, Fraction(0), ""))
            return Quotient(total, count, (float(lower), float(upper)))
        centre = (lower + upper) / 2
        about = {one: Fraction(1), Term(Fraction(1), where): -centre}
        total = Leaf(self.kept(about, Fraction(0), ""))
        squares = Leaf(self.kept({replace(one, power=2): Fraction(1)}, Fraction(0), ""))
        sample = not isinstance(node, exp.VariancePop | exp.StddevPop)
        variance = Variance(count, total, squares, float(upper - lower), sample)
        return variance if isinstance(node, exp.Variance | exp.VariancePop) else Root(variance)

    def kept(self, terms: dict[Term, Fraction], constant: Fraction, name: str, part_of: str = "") -> int:
        """The number of the output that these terms are; a new one where there is none yet."""
        kept = tuple(
            term if term.coefficient == coefficient else replace(term, coefficient=coefficient)
            for term, coefficient in terms.items()
            if coefficient and term.condition != FALSE
        )
        key = (kept, constant)
        if key not in self._known:
            self._known[key] = len(self.outputs)
            self.outputs.append(Output(name, kept, constant, part_of))
            return self._known[key]
        at = self._known[key]
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


def _share(top: _Linear, bottom: _Linear) -> Fraction | None:
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


def _not_negative(side: _Linear) -> bool:
    """Whether a linear expression is at least 0 whatever the rows are."""
    lowers = [side.scope.column(term.column).policy.lower for term in side.terms if term.column is not None]
    known = all(isinstance(lower, Fraction) and lower >= 0 for lower in lowers)
    return known and side.constant >= 0 and all(coefficient >= 0 for coefficient in side.terms.values())


def _divided(terms: dict[Term, Fraction], factor: Fraction) -> dict[Term, Fraction]:
    return {term: coefficient / factor for term, coefficient in terms.items()}


class _Linear:
    """A linear expression over counts and sums, collected into terms of coefficient 1."""

    def __init__(self, where: Condition, scope: Scope) -> None:
        self.where = where
        self.scope = scope
        self.terms: dict[Term, Fraction] = {}
        self.constant = Fraction(0)

    def add(self, node: exp.Expression, factor: Fraction) -> None:
        """Add ``factor`` times the expression ``node``."""
        stack = [(node, factor)]
        while stack:
            part, scale = stack.pop()
            # Sums are taken apart before anything asks for constants, which would walk a long chain at every link.
            part = _plain(part)
            if isinstance(part, exp.Neg):
                stack.append((part.this, -scale))
            elif isinstance(part, exp.Add):
                stack.extend([(part.expression, scale), (part.this, scale)])
            elif isinstance(part, exp.Sub):
                stack.extend([(part.expression, -scale), (part.this, scale)])
            elif isinstance(part, exp.Mul) and is_constant(part.expression):
                stack.append((part.this, _scaled(scale, _factor(part.expression), part)))
            elif isinstance(part, exp.Mul) and is_constant(part.this):
                stack.append((part.expression, _scaled(scale, _factor(part.this), part)))
            elif isinstance(part, exp.Div) and is_constant(part.expression):
                divisor = _factor(part.expression)
                if not divisor:
                    raise refuse("division by zero", part)
                stack.append((part.this, _scaled(scale, 1 / divisor, part)))
            elif is_constant(part):
                self.constant += scale * _factor(part)
            else:
                self._aggregate(part, scale, self.where)

    def _term(self, condition: Condition, column: str | None, coefficient: Fraction) -> None:
        key = Term(Fraction(1), condition, column)
        self.terms[key] = self.terms.get(key, Fraction(0)) + coefficient

    def _aggregate(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        if isinstance(node, exp.Filter):
            kept = truth(node.expression.this, self.scope).true
            self._aggregate(_plain(node.this), scale, gather(And, where, kept))
        elif isinstance(node, exp.Count):
            self._count(node, scale, where)
        elif isinstance(node, exp.CountIf):
            self._term(gather(And, where, truth(node.this, self.scope).true), None, scale)
        elif isinstance(node, exp.Sum):
            self._sum(node.this, scale, where)
        else:
            raise not_an_aggregate(node)

    def _count(self, node: exp.Count, scale: Fraction, where: Condition) -> None:
        argument = node.this
        if node.expressions:
            raise refuse("COUNT takes one argument", node)
        if isinstance(argument, exp.Star) and any(argument.args.values()):
            raise refuse("COUNT takes *, without EXCLUDE, REPLACE or RENAME", node)
        while isinstance(argument, exp.Paren):
            argument = argument.this
        if isinstance(argument, exp.Star) or argument is None:
            self._term(where, None, scale)
        elif is_constant(argument):
            if fold(argument) is not None:
                self._term(where, None, scale)
        else:
            self._term(gather(And, where, known(argument, self.scope)), None, scale)

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
                self._term(where, None, scale * _factor(argument))
        elif isinstance(argument, exp.Add | exp.Sub) and (moved := _moved(argument)) is not None:
            other, by, sign = moved  # SUM(x + c) is SUM(x) and c for each row that has a value
            self._sum(other, scale * sign, where)
            self._term(gather(And, where, known(other, self.scope)), None, _scaled(scale, by, argument))
        else:
            self._term(where, sum_of(argument, self.scope).name, scale)

    def _case(self, node: exp.Case | exp.If, scale: Fraction, where: Condition) -> None:
        """SUM over CASE: each branch is a sum over the rows that reach it."""
        reached = where
        for condition, branch in branches_of(node):
            holds = TRUE if condition is None else truth(condition, self.scope).true
            self._sum(branch, scale, gather(And, reached, holds))
            reached = gather(And, reached, negate(holds))


def _moved(node: exp.Add | exp.Sub) -> tuple[exp.Expr, Fraction, int] | None:
    """(x, c, sign) where ``node`` is sign x + c for a constant number c and some x that is none; None elsewhere."""
    for x, other, sign in ((node.this, node.expression, 1), (node.expression, node.this, -1)):
        if is_constant(other) and not is_constant(x):
            value = fold(other)
            if isinstance(value, bool) or not isinstance(value, int | Fraction) or abs(Fraction(value)) > 10**12:
                return None
            c, minus = Fraction(value), isinstance(node, exp.Sub)
            return x, -c if minus and sign > 0 else c, sign if minus else 1
    return None


def _factor(node: exp.Expr) -> Fraction:
    value = fold(node)
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise refuse("only numbers can be added to or multiplied with an aggregate", node)
    if isinstance(value, float) and not isfinite(value):
        raise refuse("a constant beside an aggregate overflows to infinity; write a coefficient of at most 1e12", node)
    exact = Fraction(value).limit_denominator(10**12) if isinstance(value, float) else Fraction(value)
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("a coefficient lies between 1e-12 and 1e12 and has at most 12 decimals", node)
    return exact


def _scaled(scale: Fraction, factor: Fraction, node: exp.Expression) -> Fraction:
    """A product of coefficients, held to what ``_factor`` allows one of them."""
    exact = scale * factor
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("the coefficients of an aggregate multiply to beyond 1e12 or finer than 1e-12", node)
    return exact
