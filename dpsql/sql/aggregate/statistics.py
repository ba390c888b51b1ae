"""Statistics of several columns as formulas over counts, sums, squares and products that are measured together.

A product of two columns is summed about the middles of their bounds: (x - c)(y - d) lies within a quarter of the
product of the widths, which is the least that its sum can be bounded by. dp_regression, dp_ttest and dp_chisq stand for
several columns of a SELECT, dp_regression for several rows as well: they are columns of one core, which DuckDB lays out
after the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Protocol

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.quantiles import prefixes_of
from dpsql.sql.aggregate.sums import sum_of
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.expressions import value_of
from dpsql.sql.values.literals import is_constant
from dpsql.sql.values.predicates import not_null
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import CaseKey, Column, Term
from dpsql.workloads.expr.conditions import TRUE, And, Condition, LineAtom, gather
from dpsql.workloads.expr.formulas import (
    Comparison,
    Fit,
    Formula,
    Gini,
    Independence,
    Leaf,
    Negative,
    Product,
    Quotient,
)
from dpsql.workloads.expr.formulas import Number as Fixed
from dpsql.workloads.expr.formulas import Sum as Added
from dpsql.workloads.expr.lines import Scalar

PAIRED: dict[type[exp.Expr], tuple[str, int]] = {
    exp.CovarPop: ("covar_pop", 0),
    exp.CovarSamp: ("covar_samp", 0),
    exp.Corr: ("corr", 0),
    exp.RegrSlope: ("coefficient", 1),
    exp.RegrIntercept: ("coefficient", 0),
    exp.RegrR2: ("r2", 0),
}
"""Aggregates of (y, x), and which number of the fit of y on x they are."""
TABLES = frozenset({"dp_regression", "dp_ttest", "dp_chisq"})
MAX_COLUMNS = 10
MAX_CELLS = 2_500
_DECIMALS = 12


class Outputs(Protocol):
    """What gathers the outputs of a core, of the rows that satisfy ``where``."""

    where: Condition
    scope: Scope

    def kept(self, terms: dict[Term, Fraction], constant: Fraction, name: str) -> int:
        """The number of the output that these terms are."""
        ...


@dataclass(frozen=True)
class Shown:
    """A column that a function like dp_regression stands for.

    ``rows``: a formula each, or a text each. ``errors``: whether c_stderr, c_low and c_high stand beside it.
    """

    name: str
    rows: tuple[Formula | str | int, ...]
    errors: bool = False


def paired(node: exp.Expression, collector: Outputs) -> Formula:
    """CORR, COVAR_*, REGR_*."""
    what, at = PAIRED[type(node)]
    if node.expression is None:
        raise refuse(
            f"{called_as(node)}(DISTINCT ...) is not answered; leave DISTINCT out", node, code="count-distinct"
        )
    moments = _Moments([node.expression, node.this], collector)
    return Fit(moments.leaves, moments.centres, moments.scales, what, at)


def gini(node: exp.Expression, collector: Outputs) -> Formula:
    """dp_gini(x): of a column with declared values that are not negative."""
    (argument,) = _arguments(node, "dp_gini", 1, 1)
    found = prefixes_of(argument, collector.scope, "dp_gini")
    if found.type == "DATE" or found.values[0] < 0:
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
            if Fraction(held.policy.lower) < 0:  # type: ignore[arg-type]
                return None
            lower, upper = _bounds(column, other)
            if not_null(column) != TRUE:
                lower, upper = min(lower, Fraction(0)), max(upper, Fraction(0))
            return float(lower), float(upper)
    return None


def shown_by(node: exp.Expression, collector: Outputs) -> tuple[Shown, ...]:
    """The columns that dp_regression, dp_ttest or dp_chisq stands for; SQLError with the place of what is amiss."""
    made = {"dp_regression": _regression, "dp_ttest": _ttest, "dp_chisq": _chisq}
    return tuple(made[name_of(node)](node, collector))


def name_of(node: exp.Expr) -> str:
    """The folded name of a function of dpsql's own; empty for anything else."""
    return fold(str(node.this)) if isinstance(node, exp.AnonymousAggFunc) else ""


def misplaced(node: exp.Expression) -> SQLError:
    """The refusal of a function that stands for columns where one number must."""
    return refuse(
        f"{name_of(node)} stands for several columns: it is an item of SELECT by itself, with FILTER if need be, "
        "and what it gives is queried afterwards",
        node,
        code="aggregate",
    )


def _regression(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
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


def _ttest(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
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


def _chisq(node: exp.Expression, collector: Outputs) -> Iterator[Shown]:
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

    def __init__(self, nodes: Sequence[exp.Expr], collector: Outputs) -> None:
        self.collector = collector
        self.nodes = [_number(node, collector) for node in nodes]
        self.columns = [sum_of(node, collector.scope) for node in self.nodes]
        ends = [_bounds(column, node) for column, node in zip(self.columns, nodes, strict=True)]
        self.middles = [(lower + upper) / 2 for lower, upper in ends]
        held = [_written(middle, upper - lower) for middle, (lower, upper) in zip(self.middles, ends, strict=True)]
        self.at = [Fraction(text) for text in held]
        self.literals = held
        self.centres = tuple(map(float, self.at))
        self.scales = tuple(float((upper - lower) / 2) for lower, upper in ends)
        self.where = gather(And, collector.where, *map(not_null, self.columns))
        self.n = Term(Fraction(1), self.where)
        pairs = combinations_with_replacement(range(len(nodes) + 1), 2)
        self.leaves = tuple(_leaf(collector, self._terms(i - 1, j - 1)) for i, j in pairs)

    def _terms(self, i: int, j: int) -> dict[Term, Fraction]:
        """The sum of z_i z_j; -1 is the column of ones."""
        if j < 0:
            return {self.n: Fraction(1)}
        one = Term(Fraction(1), self.where, self.columns[j].name)
        if i < 0:
            return {one: Fraction(1), self.n: -self.at[j]}
        if self.columns[i].name == self.columns[j].name:
            if is_two_valued(self.columns[j]):
                return {self.n: (self.middles[j] - Fraction(self.columns[j].policy.lower)) ** 2}  # type: ignore[arg-type]
            # (v - c)^2 from (v - m)^2, m the middle of the bounds, which c is a short number for.
            off = self.middles[j] - self.at[j]
            square = Term(Fraction(1), self.where, self.columns[j].name, 2)
            return {square: Fraction(1), one: 2 * off, self.n: off * off - 2 * off * self.middles[j]}
        product = exp.Mul(this=self._centred(i), expression=self._centred(j))
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
    lower, upper = Fraction(column.policy.lower), Fraction(column.policy.upper)  # type: ignore[arg-type]
    if lower == upper:
        raise refuse(f"{shown(node)} is {float(lower):g} in every row by its bounds; leave it out", node)
    return lower, upper


def is_two_valued(column: Column) -> bool:
    """Whether the bounds are all that there is: (v - c)^2 is one number then, and nothing to measure."""
    lower, upper = Fraction(column.policy.lower), Fraction(column.policy.upper)  # type: ignore[arg-type]
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
    return Leaf(collector.kept(terms, Fraction(0), ""))


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
