"""Statistics of several columns as formulas over counts, sums, squares and products that are measured together.

A product of two columns is summed about the middles of their bounds: (x - c)(y - d) lies within a quarter of the
product of the widths, which is the least that its sum can be bounded by. dp_regression, dp_ttest and dp_chisq stand for
several columns of a SELECT, dp_regression for several rows as well: they are columns of one core, which DuckDB lays out
after the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Protocol

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.quantiles import prefixes_of
from dpsql.sql.aggregate.sums import sum_of
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import standing_for
from dpsql.sql.values.expressions import value_of
from dpsql.sql.values.literals import is_constant
from dpsql.sql.values.predicates import not_null
from dpsql.sql.values.scope import Scope
from dpsql.sql.values.typed import Typed, flat
from dpsql.workloads.expr.batch import CaseKey, Column, Term
from dpsql.workloads.expr.conditions import TRUE, And, Condition, LineAtom, gather
from dpsql.workloads.expr.formulas import Dated, Exponential, Formula, Leaf, Negative, Product, Quotient, Root, Variance
from dpsql.workloads.expr.formulas import Number as Fixed
from dpsql.workloads.expr.formulas import Sum as Added
from dpsql.workloads.expr.lines import Scalar
from dpsql.workloads.expr.statistics import Comparison, Fit, Gini, Independence, Shape

MAX_COLUMNS = 10
MAX_CELLS = 2_500
_WHOLE = 10**7  # numbers below it have fourth powers that are summed exactly
_DECIMALS = 12
_MICROSECOND = Fraction(1, 86_400_000_000)  # of a day


class Outputs(Protocol):
    """What gathers the outputs of a core, of the rows that satisfy ``where``."""

    where: Condition
    scope: Scope

    def output_of(self, terms: dict[Term, Fraction], constant: Fraction, name: str) -> int:
        """The number of the output that these terms are."""
        ...

    def units(self, node: exp.Expression) -> int:
        """The number of the output that COUNT(DISTINCT ...) is."""
        ...


@dataclass(frozen=True)
class Shown:
    """A column that a function like dp_regression stands for.

    ``rows``: a formula each, or a text each. ``errors``: whether c_stderr, c_low and c_high stand beside it.
    """

    name: str
    rows: tuple[Formula | str | int, ...]
    errors: bool = False


def distinct(node: exp.Expression, collector: Outputs) -> Formula:
    """COUNT(DISTINCT ...): units, or values, each once."""
    return Leaf(collector.units(node))


def average(node: exp.Expression, collector: Outputs) -> Formula:
    """AVG and REGR_AVGY: sum over count, within the bounds; AVG of times in days from the middle of the bounds."""
    kind = _kind(node, collector.scope)
    if kind == "date":
        first = exp.Cast(this=exp.Literal.string("1970-01-01"), to=exp.DataType(this=exp.DType.DATE))
        days = exp.DateDiff(this=node.this.copy(), expression=first, unit=exp.Var(this="DAY"))
        return _mean_time(node, days, Fraction(1), collector)
    if kind == "timestamp":
        micros = exp.Anonymous(this="epoch_us", expressions=[node.this.copy()])
        return _mean_time(node, micros, _MICROSECOND, collector)
    column, n, one = _summed(node, collector)
    count, total = _leaf(collector, {n: Fraction(1)}), _leaf(collector, {one: Fraction(1)})
    lower, upper = column.ends
    return Quotient(total, count, (float(lower), float(upper)))


def _mean_time(node: exp.Expression, since: exp.Expression, unit: Fraction, collector: Outputs) -> Formula:
    """The mean of times since 1970, in parts of ``unit`` days: about the middle, so that sums and counts are alike."""
    column, n, one = _summed(exp.Avg(this=standing_for(since, node.this)), collector)
    lower, upper = column.ends
    middle, half = (lower + upper) / 2 * unit, float((upper - lower) / 2 * unit)
    count, total = _leaf(collector, {n: Fraction(1)}), _leaf(collector, {one: unit, n: -middle})
    return Dated(Quotient(total, count, (-half, half)), float(middle))


def _kind(node: exp.Expression, scope: Scope) -> str:
    """The kind of the value that AVG is of; empty for any other aggregate, and for what is no expression."""
    of = node.this
    if not isinstance(node, exp.Avg) or not isinstance(of, exp.Expression) or isinstance(of, exp.Distinct):
        return ""
    bare = of.unnest()
    return scope.resolve(bare).line.kind if isinstance(bare, exp.Column) else value_of(bare, scope, clamped=True).kind


def variance(
    node: exp.Expression,
    collector: Outputs,
    *,
    sample: bool = False,
    power: int = 0,
    root: bool = False,
) -> Formula:
    """VAR_*, STDDEV_*, SEM and REGR_SYY, from sums about the middle of the bounds."""
    column, n, one = _summed(node, collector)
    lower, upper = column.ends
    count = _leaf(collector, {n: Fraction(1)})
    total = _leaf(collector, {one: Fraction(1), n: -(lower + upper) / 2})
    squares = _leaf(collector, {replace(one, power=2): Fraction(1)})
    found = Variance(count, total, squares, float(upper - lower), sample, power)
    return Root(found) if root else found


def geometric_mean(node: exp.Expression, collector: Outputs) -> Formula:
    """GEOMEAN: the exponential of the mean of logarithms, of numbers above 0."""
    (argument,) = _single(node)
    lower, upper = sum_of(argument, collector.scope, called_as(node)).ends
    if lower <= 0:
        raise refuse(
            f"{called_as(node)}({shown(argument)}) multiplies numbers above 0, and its range begins at "
            f"{float(lower):g}; declare a lower bound above 0, or write {called_as(node)}(GREATEST(..., 1)) around it",
            node,
            code="no-bounds",
        )
    made = exp.Avg(this=exp.Ln(this=argument.copy()))
    _, n, one = _summed(made, collector)
    count, total = _leaf(collector, {n: Fraction(1)}), _leaf(collector, {one: Fraction(1)})
    return Exponential(Quotient(total, count, (math.log(lower), math.log(upper))))


def shape(node: exp.Expression, collector: Outputs, *, what: str) -> Formula:
    """SKEWNESS and KURTOSIS, from sums of powers up to the third or fourth about the middle of the bounds.

    Powers of whole numbers and decimals are exact where 128 bits hold them, else of DOUBLEs between -1 and 1.
    """
    (argument,) = _single(node)
    moments = _Moments([argument], collector, called_as(node))
    (centred,), (half,) = moments.centred, moments.scales
    scale = unit = Fraction(half)
    level = value_of(centred, collector.scope, clamped=True)
    if level.kind != "exact" or max(half, *map(abs, _cores(level, centred))) >= _WHOLE:
        parts = exp.Paren(this=exp.Cast(this=centred, to=exp.DataType(this=exp.DType.DOUBLE)))
        centred, scale = exp.Paren(this=exp.Div(this=parts, expression=exp.Literal.number(repr(half)))), Fraction(1)
    square = _product(centred, centred)
    powers = [_product(square, centred), *([] if what == "skewness" else [_product(square, square)])]
    sums = [
        _leaf(collector, {Term(Fraction(1), moments.summed, sum_of(power, collector.scope).name): Fraction(1)})
        for power in powers
    ]
    scales = (Fraction(1), unit, unit**2, scale**3, scale**4)
    pairs = zip((*moments.leaves, *sums), scales, strict=False)
    return Shape(tuple(Product((leaf, Fixed(1 / each))) for leaf, each in pairs), what)


def _cores(level: Typed, node: exp.Expr) -> tuple[int, int]:
    whole = flat(level, node)
    return whole.low, whole.high


def _product(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.Paren(this=exp.Mul(this=left.copy(), expression=right.copy()))


def _single(node: exp.Expression) -> list[exp.Expression]:
    """The one argument of a function, in a list."""
    given = list(node.expressions) if isinstance(node, exp.AnonymousAggFunc) else [node.this]
    if len(given) != 1 or not isinstance(given[0], exp.Expression) or isinstance(given[0], exp.Distinct):
        raise refuse(f"{called_as(node)} takes one number, without DISTINCT", node, code="aggregate")
    return given


def _summed(node: exp.Expression, collector: Outputs) -> tuple[Column, Term, Term]:
    """The column that an aggregate sums, its first argument, with the terms of its count and its sum.

    Of two arguments, over the rows where neither is NULL.
    """
    given = [node.this, node.args.get("expression")]
    if isinstance(node, exp.AnonymousAggFunc):
        given = list(_single(node))
    if not isinstance(given[0], exp.Expression):
        raise refuse(f"{called_as(node)} takes numbers, without DISTINCT", node, code="aggregate")
    parts = [part for part in given if part is not None]
    column, *others = (sum_of(part, collector.scope, called_as(node)) for part in parts)
    where = gather(And, collector.where, *map(not_null, others))
    return column, Term(Fraction(1), gather(And, where, not_null(column))), Term(Fraction(1), where, column.name)


def paired(node: exp.Expression, collector: Outputs, *, what: str, at: int) -> Formula:
    """CORR, COVAR_*, REGR_*: number ``at`` of ``what`` of the fit of y on x."""
    if node.expression is None:
        raise refuse(
            f"{called_as(node)}(DISTINCT ...) is not answered; leave DISTINCT out", node, code="count-distinct"
        )
    moments = _Moments([node.expression, node.this], collector, called_as(node))
    return Fit(moments.leaves, moments.centres, moments.scales, what, at)


def gini(node: exp.Expression, collector: Outputs) -> Formula:
    """dp_gini(x): of a column with declared values that are not negative."""
    (argument,) = _arguments(node, "dp_gini", 1, 1)
    found = prefixes_of(argument, collector.scope, "dp_gini")
    if found.type != "DOUBLE" or found.values[0] < 0:
        raise refuse("dp_gini takes numbers that are not negative", node)
    if found.values[-1] == 0:
        raise refuse("dp_gini needs a declared value above 0", node)
    leaves = tuple(
        _leaf(collector, {Term(Fraction(1), gather(And, collector.where, condition)): Fraction(1)})
        for condition in found.below
    )
    return Gini(leaves, found.values)


def weighted(node: exp.Div, scope: Scope) -> tuple[float, float] | None:
    """The bounds of SUM(w * x) / SUM(w) for weights that are not negative: those of x, and 0 where x may be NULL."""
    top, bottom = node.this.unnest(), node.expression.unnest()
    if not (isinstance(top, exp.Sum) and isinstance(bottom, exp.Sum) and isinstance(top.this.unnest(), exp.Mul)):
        return None
    product, weight = top.this.unnest(), bottom.this.unnest()
    for one, other in ((product.this, product.expression), (product.expression, product.this)):
        if one.unnest() == weight and not is_constant(other) and not is_constant(weight):
            held, column = sum_of(weight, scope), sum_of(other, scope)
            if held.ends[0] < 0:
                return None
            lower, upper = _bounds(column, other)
            if not_null(column) != TRUE:
                lower, upper = min(lower, Fraction(0)), max(upper, Fraction(0))
            return float(lower), float(upper)
    return None


def several_columns(node: exp.Expression, name: str) -> SQLError:
    """The refusal of a function that stands for columns where one number must."""
    return refuse(
        f"{name} stands for several columns: it is an item of SELECT by itself, with FILTER if need be, and what it "
        "gives is queried afterwards",
        node,
        code="aggregate",
    )


def regression(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
    """The columns of dp_regression, a row for each coefficient."""
    y, *x = _arguments(node, "dp_regression", 2, MAX_COLUMNS + 1)
    moments = _Moments([*x, y], collector)
    terms = ("(intercept)", *(part.sql("duckdb", comments=False) for part in x))

    def of(what: str, at: int = 0) -> Formula:
        return Fit(moments.leaves, moments.centres, moments.scales, what, at)

    every = range(len(terms))
    yield Shown("term", terms)
    yield Shown("coefficient", tuple(of("coefficient", at) for at in every), True)
    yield Shown("total_stderr", tuple(of("stderr", at) for at in every))
    yield Shown("p_value", tuple(of("p_value", at) for at in every))


def ttest(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
    """The columns of dp_ttest: the difference of two means and Welch's test."""
    x, by = _arguments(node, "dp_ttest", 2, 2)
    groups = _groups(by, collector)
    if len(groups) != 2:
        raise refuse(f"dp_ttest compares two groups; {shown(by)} has {len(groups)}", by)
    column = sum_of(x, collector.scope)
    lower, upper = _bounds(column, x)
    centre = (lower + upper) / 2
    parts, means = [], []
    for _, condition in groups:
        where = gather(And, collector.where, condition, not_null(column))
        n, one = Term(Fraction(1), where), Term(Fraction(1), where, column.name)
        square = Term(Fraction(1), where, column.name, 2)
        leaves = [_leaf(collector, {n: Fraction(1)}), _leaf(collector, {one: Fraction(1), n: -centre}),
                  _leaf(collector, {square: Fraction(1)})]  # fmt: skip
        parts.append((leaves[0], leaves[1], leaves[2]))
        means.append(Quotient(leaves[1], leaves[0], (float(lower - centre), float(upper - centre))))
    yield Shown("first", (_text(groups[0][0]),))
    yield Shown("second", (_text(groups[1][0]),))
    yield Shown("difference", (Added((means[1], Negative(means[0]))),), True)
    for what in ("t", "df", "p_value"):
        yield Shown(what, (Comparison((parts[0], parts[1]), float(upper - lower), what),))


def chisq(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
    """The columns of dp_chisq: the test of independence, and the odds ratio of two by two groups."""
    sides = [_groups(part, collector) for part in _arguments(node, "dp_chisq", 2, 2)]
    rows, columns = map(len, sides)
    for part, groups in zip(node.expressions, sides, strict=True):
        if len(groups) < 2:
            raise refuse(f"dp_chisq needs two groups at least; {shown(part)} has {len(groups)}", part)
    if rows * columns > MAX_CELLS:
        raise refuse(
            f"dp_chisq makes {rows * columns:,} cells, at most {MAX_CELLS:,} are tested: take coarser groups",
            node,
            code="too-many-groups",
        )
    counts = tuple(
        _leaf(collector, {Term(Fraction(1), gather(And, collector.where, a, b)): Fraction(1)})
        for _, a in sides[0]
        for _, b in sides[1]
    )
    test = Independence(counts, rows, "chisq")
    yield Shown("chisq", (test,))
    yield Shown("df", (test.degrees,))
    yield Shown("p_value", (Independence(counts, rows, "p_value"),))
    if rows == columns == 2:
        # Half a row more in each cell: the odds ratio has less bias, and a value where one is empty (Haldane 1956).
        a, b, c, d = (Added((count, Fixed(Fraction(1, 2)))) for count in counts)
        yield Shown("odds_ratio", (Quotient(Product((a, d)), Product((b, c)), (0.0, float("inf"))),), True)


class _Moments:
    """The sums of z_i z_j, i <= j, for z = (1, columns about their centres), over the rows where none is NULL."""

    def __init__(self, nodes: Sequence[exp.Expr], collector: Outputs, called: str = "SUM") -> None:
        self.collector = collector
        self.nodes = [_number(node, collector) for node in nodes]
        self.columns = [sum_of(node, collector.scope, called) for node in self.nodes]
        ends = [_bounds(column, node) for column, node in zip(self.columns, nodes, strict=True)]
        self.middles = [(lower + upper) / 2 for lower, upper in ends]
        held = [_written(middle, upper - lower) for middle, (lower, upper) in zip(self.middles, ends, strict=True)]
        self.at = [Fraction(text) for text in held]
        self.literals = held
        self.centres = tuple(map(float, self.at))
        self.scales = tuple(float((upper - lower) / 2) for lower, upper in ends)
        self.where = gather(And, collector.where, *map(not_null, self.columns))
        self.n = Term(Fraction(1), self.where)
        self.summed = self.where if len(nodes) > 1 else collector.where  # of one column the sum leaves NULL out
        self.centred = [self._centred(i) for i in range(len(nodes))]
        pairs = combinations_with_replacement(range(len(nodes) + 1), 2)
        self.leaves = tuple(_leaf(collector, self._terms(i - 1, j - 1)) for i, j in pairs)

    def _terms(self, i: int, j: int) -> dict[Term, Fraction]:
        """The sum of z_i z_j; -1 is the column of ones."""
        if j < 0:
            return {self.n: Fraction(1)}
        one = Term(Fraction(1), self.summed, self.columns[j].name)
        if i < 0:
            return {one: Fraction(1), self.n: -self.at[j]}
        if self.columns[i].name == self.columns[j].name:
            if is_two_valued(self.columns[j]):
                return {self.n: (self.middles[j] - self.columns[j].ends[0]) ** 2}
            # (v - c)^2 from (v - m)^2, m the middle of the bounds, which c is a short number for.
            off = self.middles[j] - self.at[j]
            square = replace(one, power=2)
            return {square: Fraction(1), one: 2 * off, self.n: off * off - 2 * off * self.middles[j]}
        product = exp.Mul(this=self.centred[i], expression=self.centred[j].copy())
        return {Term(Fraction(1), self.where, sum_of(product, self.collector.scope).name): Fraction(1)}

    def _centred(self, i: int) -> exp.Expr:
        literal = exp.Literal.number(self.literals[i].removeprefix("-"))
        kind = exp.Add if self.at[i] < 0 else exp.Sub
        return exp.Paren(this=kind(this=self.nodes[i].copy(), expression=literal))


def _number(node: exp.Expr, collector: Outputs) -> exp.Expr:
    """A column or expression as a number: a condition as 0 or 1."""
    bare = node.unnest()
    if is_constant(bare):
        raise refuse(f"{shown(bare)} is a constant; name a column or an expression of columns", node)
    if value_of(bare, collector.scope, clamped=True).kind == "boolean":
        return exp.Cast(this=exp.Paren(this=bare.copy()), to=exp.DataType(this=exp.DType.INT))
    return bare


def _bounds(column: Column, node: exp.Expr) -> tuple[Fraction, Fraction]:
    lower, upper = column.ends
    if lower == upper:
        raise refuse(f"{shown(node)} is {float(lower):g} in every row by its bounds; leave it out", node)
    return lower, upper


def is_two_valued(column: Column) -> bool:
    """Whether the bounds are all that there is: (v - c)^2 is one number then, and nothing to measure."""
    lower, upper = column.ends
    step = column.policy.step or (1 if column.line.kind == "integer" and column.line.unit is None else None)
    return step is not None and upper - lower == Fraction(step)


def _written(middle: Fraction, width: Fraction) -> str:
    """A short decimal at the middle of bounds, or near it."""
    for digits in range(_DECIMALS + 1):
        steps = round(middle * 10**digits)
        if digits == _DECIMALS or abs(Fraction(steps, 10**digits) - middle) * 10**6 <= width:
            break
    return f"{Decimal(steps).scaleb(-digits):f}"


def _groups(node: exp.Expr, collector: Outputs) -> list[tuple[Scalar, Condition]]:
    """The groups of GROUP BY ``node`` but NULL and OTHER, as a test has them."""
    key = key_of(node, collector.scope)
    if isinstance(key, CaseKey):
        others = key.labels[1].values if len(key.labels) > 1 else (False,) * len(key)
        found = zip(key.labels[0].values, key.conditions, others, strict=True)
        return [(label, condition) for label, condition, other in found if label is not None and not other]
    pairs = zip(key.values, key.points, strict=True)
    return [(value, LineAtom(key.column, (point,))) for value, point in pairs if point is not None]


def _arguments(node: exp.Expression, name: str, least: int, most: int) -> list[exp.Expression]:
    given = list(node.expressions)
    if not least <= len(given) <= most:
        usage = {
            "dp_regression": f"y and 1 to {MAX_COLUMNS} columns: dp_regression(y, x1, x2)",
            "dp_ttest": "a number and what has two groups: dp_ttest(x, g)",
            "dp_chisq": "two columns with declared groups: dp_chisq(a, b)",
            "dp_gini": "one column with declared values: dp_gini(x)",
        }
        raise refuse(f"{name} takes {usage[name]}", node)
    return given


def _leaf(collector: Outputs, terms: dict[Term, Fraction]) -> Leaf:
    return Leaf(collector.output_of(terms, Fraction(0), ""))


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
