"""The table of aggregates: what each measures, what it is for one unit, and the words for both.

Queries (``aggregates``), tables of units (``resolve.per_unit``), the guard against unread arguments (``cores``),
refusals and docs/sql.md read it. A new aggregate is a line here and, where no formula gives it yet, a function of
``statistics`` and a class of ``workloads.expr``, which carries its value, its range and the words that explain prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.sql.aggregate import of_units, statistics
from dpsql.sql.aggregate.linear import Linear
from dpsql.sql.aggregate.of_units import UnitRows
from dpsql.sql.aggregate.statistics import Outputs, Shown
from dpsql.sql.parse import refusals
from dpsql.workloads.expr.conditions import Condition
from dpsql.workloads.expr.formulas import Formula

CONSTANT, LINEAR, FORMULA, RANKED, OUTER = range(5)
"""What an expression over the rows of a group is; RANKED is a quantile, OUTER what is left to DuckDB."""

Terms: TypeAlias = Callable[[Linear, exp.Expression, Fraction, Condition], None]
OfGroup: TypeAlias = Callable[[exp.Expression, Outputs], Formula]
Several: TypeAlias = Callable[[exp.Expression, Outputs], Iterable[Shown]]
OfUnit: TypeAlias = Callable[[UnitRows, exp.Expression, exp.Expression, Condition], exp.Expression]

_X = frozenset({"this"})
_TWO = frozenset({"this", "expression"})
_LIST = frozenset({"this", "expressions"})  # of a function that the parser knows by its name alone


@dataclass(frozen=True)
class Aggregate:
    """One aggregate.

    ``node``: the parser's class of its calls, or its folded name where the parser knows it as a function of some name.
    ``arguments``: those of the node that are read; a call with others is refused.
    ``terms`` adds it to a linear expression, times a factor, over the rows of a condition; ``formula`` is what it is of
    measured numbers; ``columns`` are those that it stands for. One of them is set, or none for quantiles (``ranked``)
    and for what is answered for units alone. ``unit`` is the expression over columns of a table of units, whose second
    node is the call with its FILTER. ``measured`` and ``interval`` say in docs/sql.md what the scan adds up and how
    the interval is made.
    """

    name: str
    node: type[exp.Expr] | str
    arguments: frozenset[str]
    measured: str = ""
    interval: str = "exact"
    terms: Terms | None = None
    formula: OfGroup | None = None
    columns: Several | None = None
    ranked: bool = False
    unit: OfUnit | None = None

    @property
    def kind(self) -> int:
        """How a query reads it."""
        if self.ranked:
            return RANKED
        return LINEAR if self.terms else FORMULA if self.formula or self.columns else OUTER

    def reads(self, node: exp.Expr) -> bool:
        """Whether every argument that a call has is one that is read, and none of them is DISTINCT."""
        given = {name for name, value in node.args.items() if value}
        return given <= self.arguments and (self is DISTINCT or not isinstance(node.this, exp.Distinct))


_QUOTIENT, _ABOUT_MEAN = "Fieller's, within the bounds", "Fieller's, about the estimated mean"
_ROOT, _EXPONENTIAL = "the roots of the variance's ends", "the exponentials of the mean's ends"
_RANKS, _LINEARISED = "of ranks", "Fieller's, linearised"
_OWN_LAW = "none: the law of a test has the noise in it"
_SQUARES, _PRODUCTS = "count, sum, sum of squares", "count, sums, squares, product"
_PREFIXES = "a count up to each declared value"

DISTINCT = Aggregate(
    *("COUNT(DISTINCT)", exp.Count, frozenset({"this", "big_int"}), "units, or values, each once"),
    formula=statistics.distinct,
    unit=of_units.distinct,
)


def _variance(name: str, node: type[exp.Expr], *, sample: bool, root: bool = False) -> Aggregate:
    return Aggregate(
        *(name, node, _X, _SQUARES, _ROOT if root else _ABOUT_MEAN),
        formula=partial(statistics.variance, sample=sample, root=root),
        unit=partial(of_units.spread, least=int(sample), root=root),
    )


def _fit(name: str, node: type[exp.Expr], what: str, at: int = 0) -> Aggregate:
    formula = partial(statistics.paired, what=what, at=at)
    return Aggregate(name, node, _TWO, _PRODUCTS, _LINEARISED, formula=formula)


def _quantile(name: str, node: type[exp.Expr], arguments: frozenset[str], unit: OfUnit | None = None) -> Aggregate:
    return Aggregate(name, node, arguments, _PREFIXES, _RANKS, ranked=True, unit=unit)


def _both(x: str, y: str, measured: str, interval: str, formula: OfGroup, unit: OfUnit) -> tuple[Aggregate, Aggregate]:
    """What is of y in rows where neither of (y, x) is NULL, and the same of x."""

    def turned(node: exp.Expression) -> exp.Expression:
        out = node.copy()
        out.set("this", node.expression.copy() if node.expression is not None else None)
        out.set("expression", node.this.copy())
        return out

    return (
        Aggregate(
            *(x, exp.FUNCTION_BY_NAME[x], _TWO, measured, interval),
            formula=lambda node, collector: formula(turned(node), collector),
            unit=lambda rows, node, whole, where: unit(rows, turned(node), whole, where),
        ),
        Aggregate(y, exp.FUNCTION_BY_NAME[y], _TWO, measured, interval, formula=formula, unit=unit),
    )


def _shape(name: str, node: type[exp.Expr] | str) -> Aggregate:
    measured = f"count, sums of powers up to {3 if name == 'SKEWNESS' else 4}"
    formula = partial(statistics.shape, what=name.lower())
    return Aggregate(name, node, _LIST if isinstance(node, str) else _X, measured, _LINEARISED, formula=formula)


def _several(name: str, measured: str, interval: str, columns: Several) -> Aggregate:
    return Aggregate(name, name, _LIST, measured, interval, columns=columns)


TABLE: tuple[Aggregate, ...] = (
    Aggregate("COUNT", exp.Count, frozenset({"this", "big_int"}), "a count", terms=Linear.count, unit=of_units.count),
    DISTINCT,
    Aggregate(
        *("APPROX_COUNT_DISTINCT", exp.ApproxDistinct, _X, DISTINCT.measured),
        formula=statistics.distinct,
        unit=of_units.distinct,
    ),
    Aggregate("COUNT_IF", exp.CountIf, _X, "a count", terms=Linear.count_if, unit=of_units.count_if),
    Aggregate("SUM", exp.Sum, _X, "a sum", terms=Linear.sum, unit=of_units.total),
    Aggregate("AVG", exp.Avg, _X, "count, sum", _QUOTIENT, formula=statistics.average, unit=of_units.average),
    *(
        Aggregate(
            name, name.lower(), _LIST, "count, sum of logarithms", _EXPONENTIAL, formula=statistics.geometric_mean
        )
        for name in ("GEOMEAN", "GEOMETRIC_MEAN")
    ),
    _variance("VAR_SAMP", exp.Variance, sample=True),
    _variance("VAR_POP", exp.VariancePop, sample=False),
    _variance("STDDEV", exp.Stddev, sample=True, root=True),
    _variance("STDDEV_SAMP", exp.StddevSamp, sample=True, root=True),
    _variance("STDDEV_POP", exp.StddevPop, sample=False, root=True),
    Aggregate(
        *("SEM", "sem", _LIST, _SQUARES, _ROOT),
        formula=partial(statistics.variance, power=-1, root=True),
        unit=partial(of_units.spread, power=-1, root=True),
    ),
    _shape("SKEWNESS", exp.Skewness),
    _shape("KURTOSIS", exp.Kurtosis),
    _shape("KURTOSIS_POP", "kurtosis_pop"),
    _quantile("MIN", exp.Min, _X, partial(of_units.of_one_row, function="min")),
    _quantile("MAX", exp.Max, _X, partial(of_units.of_one_row, function="max")),
    _quantile("MEDIAN", exp.Median, _X, of_units.median),
    _quantile("QUANTILE_CONT", exp.PercentileCont, _TWO),
    _quantile("QUANTILE_DISC", exp.PercentileDisc, _TWO),
    _quantile("QUANTILE", exp.Quantile, frozenset({"this", "quantile"})),
    _quantile("APPROX_QUANTILE", exp.ApproxQuantile, frozenset({"this", "quantile"})),
    _quantile("WITHIN GROUP", exp.WithinGroup, _TWO),
    _fit("COVAR_POP", exp.CovarPop, "covar_pop"),
    _fit("COVAR_SAMP", exp.CovarSamp, "covar_samp"),
    _fit("CORR", exp.Corr, "corr"),
    _fit("REGR_SLOPE", exp.RegrSlope, "coefficient", 1),
    _fit("REGR_INTERCEPT", exp.RegrIntercept, "coefficient"),
    _fit("REGR_R2", exp.RegrR2, "r2"),
    Aggregate("REGR_COUNT", exp.RegrCount, _TWO, "a count", terms=Linear.pairs, unit=of_units.count),
    *_both("REGR_AVGX", "REGR_AVGY", "count, sum", _QUOTIENT, statistics.average, of_units.average),
    *_both(
        *("REGR_SXX", "REGR_SYY", _SQUARES, _ABOUT_MEAN),
        *(partial(statistics.variance, power=1), partial(of_units.spread, power=1)),
    ),
    Aggregate("dp_gini", "dp_gini", _LIST, _PREFIXES, _LINEARISED, formula=statistics.gini),
    _several("dp_regression", "count, sums, squares, products", _LINEARISED, statistics.regression),
    _several("dp_ttest", "count, sum, squares of both groups", _OWN_LAW, statistics.ttest),
    _several("dp_chisq", "a count for each cell", _OWN_LAW, statistics.chisq),
    Aggregate("ANY_VALUE", exp.AnyValue, _X, unit=partial(of_units.of_one_row, function="min")),
    Aggregate("ARG_MIN", exp.ArgMin, _TWO, unit=partial(of_units.of_one_row, function="arg_min")),
    Aggregate("ARG_MAX", exp.ArgMax, _TWO, unit=partial(of_units.of_one_row, function="arg_max")),
    Aggregate("FIRST", exp.First, _X, unit=partial(of_units.in_order, first=True)),
    Aggregate("LAST", exp.Last, _X, unit=partial(of_units.in_order, first=False)),
    Aggregate("BOOL_OR", exp.LogicalOr, _X, unit=partial(of_units.logical, decides=True)),
    Aggregate("BOOL_AND", exp.LogicalAnd, _X, unit=partial(of_units.logical, decides=False)),
)
_BY_NODE = {aggregate.node: aggregate for aggregate in TABLE if aggregate is not DISTINCT}
ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    **{node: aggregate.arguments for node, aggregate in _BY_NODE.items() if isinstance(node, type)},
    exp.AnonymousAggFunc: _LIST,
    exp.Tuple: frozenset({"expressions"}),
}
"""The arguments that are read of each node."""


def aggregate_of(node: exp.Expr) -> Aggregate | None:
    """The aggregate that a node is a call of; None for any other node."""
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct):
        return DISTINCT
    return _BY_NODE.get(fold(str(node.this)) if isinstance(node, exp.AnonymousAggFunc) else type(node))


def misplaced(node: exp.Expression) -> SQLError:
    """The refusal of an aggregate where it is not answered, or of what is none."""
    aggregate = aggregate_of(node)
    if aggregate is not None and aggregate.columns is not None:
        return statistics.several_columns(node, aggregate.name)
    return refusals.not_an_aggregate(node, answered(units=False))


def answered(*, units: bool) -> str:
    """The names of the aggregates of rows, or of the rows of each unit, for messages: those of one stem together."""
    chosen = [each.name for each in TABLE if (each.unit is not None if units else each.kind != OUTER)]
    stems = [name.rpartition("_")[0] for name in chosen]
    return ", ".join(
        dict.fromkeys(
            f"{stem}_*" if stem and stems.count(stem) > 1 else name for name, stem in zip(chosen, stems, strict=True)
        )
    )
