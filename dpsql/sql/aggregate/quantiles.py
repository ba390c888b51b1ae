"""Quantiles: MIN, MAX, MEDIAN and QUANTILE_CONT as counts of the rows up to each value that there can be.

The values of a column are its declared ones; those of an expression are what it has as a key of GROUP BY. Of a
column of very many, neighbours count as one: its quantiles are told to a 512th of the range, and the plan says so.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.common.notes import ERROR, Note
from dpsql.errors import SQLError
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.sums import sum_of
from dpsql.sql.parse.quoted import called_as, shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.expressions import column_of, value_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import not_null
from dpsql.sql.values.scope import Scope, refuse_unit
from dpsql.workloads.expr.batch import CaseKey, Column, constant
from dpsql.workloads.expr.conditions import FALSE, Condition, LineAtom, Or, atoms, gather
from dpsql.workloads.expr.lines import Cut

MAX_PREFIXES = 2_000
# Parts of the conditions up to each value, all together, beyond which values are places on a line of their own.
MAX_ATOMS = 20_000
# How many intervals the values of a longer domain are gathered into.
PARTS = 512
_LITTLE = 1e-12


@dataclass(frozen=True)
class Prefixes:
    """The values that a quantile can have in order, as numbers, and the condition "at most that value" for each.

    Dates and times are days since 1970-01-01. ``starts[i]`` is the first value that counts as ``values[i]``. ``type``
    is DOUBLE, DATE or TIMESTAMP.
    """

    starts: tuple[float, ...]
    values: tuple[float, ...]
    below: list[Condition]
    type: str


_EPOCH = dt.date(1970, 1, 1)


QUANTILES = (
    *(exp.Min, exp.Max, exp.Median, exp.PercentileCont, exp.PercentileDisc),
    *(exp.Quantile, exp.ApproxQuantile, exp.WithinGroup),
)
_DISCRETE = (exp.PercentileDisc, exp.Quantile)  # DuckDB's QUANTILE is QUANTILE_DISC


def quantile_of(node: exp.Expression) -> tuple[float, exp.Expression, bool]:
    """Which quantile of what an aggregate is, and whether it is one of the values: MIN 0, MEDIAN 0.5, MAX 1."""
    share, argument = node.args.get("expression") or node.args.get("quantile"), node.this
    discrete, descending = isinstance(node, _DISCRETE), False
    if not isinstance(node, exp.Min | exp.Max) and isinstance(argument, exp.Distinct):
        raise refuse(
            f"{called_as(node)}(DISTINCT ...) depends on which values there are; leave DISTINCT out",
            node,
            code="count-distinct",
        )
    if isinstance(node, exp.Min | exp.Max | exp.Median):
        if node.args.get("expressions"):
            raise refuse(f"{called_as(node)} takes one column", node)
        return {exp.Min: 0.0, exp.Max: 1.0}.get(type(node), 0.5), _plain(argument), False
    if isinstance(node, exp.WithinGroup):
        ordered = node.expression.expressions if isinstance(node.expression, exp.Order) else []
        if not isinstance(node.this, exp.PercentileCont | exp.PercentileDisc) or len(ordered) != 1:
            raise refuse("WITHIN GROUP is read with PERCENTILE_CONT or PERCENTILE_DISC over one column", node)
        share, argument, discrete = node.this.this, ordered[0].this, isinstance(node.this, exp.PercentileDisc)
        descending = bool(ordered[0].args.get("desc"))
    if isinstance(share, exp.Array):
        raise refuse(
            "a list of quantiles is an item by itself, in a SELECT without positions in GROUP BY and ORDER BY; write "
            "one for each share: QUANTILE_CONT(column, 0.25)",
            node,
        )
    value = fold(share) if share is not None and is_constant(share) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not 0 <= value <= 1:
        raise refuse("a quantile takes a column and one constant between 0 and 1", node)
    return _ascending(float(value), discrete) if descending else float(value), _plain(argument), discrete


def _ascending(share: float, discrete: bool) -> float:
    """The share in ascending order of one in descending order.

    The value of rank ceil(q n) from above has the rank n - ceil(q n) + 1 from below, which is ceil(p n) for p a little
    above 1 - q.
    """
    return min(1 - share + _LITTLE, 1.0) if discrete and share < 1 else 1 - share


def _plain(argument: exp.Expression) -> exp.Expression:
    """Without parentheses and DISTINCT, which leaves the least and the greatest value as they are."""
    while isinstance(argument, exp.Distinct | exp.Paren):
        argument = argument.expressions[0] if isinstance(argument, exp.Distinct) else argument.this
    return argument


def prefixes_of(argument: exp.Expression, scope: Scope, aggregate: str) -> Prefixes:
    """The values of ``argument`` in order. Values below the declared ones count as the first, those above as the last.

    An expression of numbers with more than 2,000 values is read as SUM reads it, its columns within their bounds; so
    is one of several columns whose values are told apart on a line of its own (``_on_one_line``). ``aggregate``: what
    is asked of it, for messages. Raises SQLError where the values are not public or no numbers or dates.
    """
    if isinstance(argument, exp.Column):
        return _of_column(column_of(argument, scope), argument, scope)
    try:
        key = key_of(argument, scope)
    except SQLError as error:
        endless = error.code in {"unknown-groups", "too-many-groups"}
        if not endless or not value_of(argument, scope, clamped=True).numeric:
            raise
        return _of_sum(sum_of(argument, scope, aggregate), argument, scope)
    if isinstance(key, CaseKey):
        labels, type_ = key.labels[0].values, key.labels[0].type
        found = list(zip(labels, key.conditions, strict=True))
    else:
        type_ = key.type
        found = [
            (value, FALSE if point is None else LineAtom(key.column, (point,)))
            for value, point in zip(key.values, key.points, strict=True)
        ]
    # NULL and OTHER have no place in the order.
    known = [(_number(value, argument), condition) for value, condition in found if value is not None]
    if len(known) > MAX_PREFIXES:
        return _of_sum(sum_of(argument, scope, aggregate), argument, scope)
    known.sort(key=lambda pair: pair[0])
    type_ = type_ if type_ in ("DATE", "TIMESTAMP") else "DOUBLE"
    if type_ == "DOUBLE" and _on_one_line([condition for _, condition in known], scope):
        return _of_values([value for value, _ in known], sum_of(argument, scope, aggregate))
    below: list[Condition] = []
    for _, condition in known:
        below.append(gather(Or, below[-1], condition) if below else condition)
    values = tuple(value for value, _ in known)
    return Prefixes(values, values, below, type_)


def _on_one_line(conditions: Sequence[Condition], scope: Scope) -> bool:
    """Whether values of several columns together are best told apart by a column of their own.

    Where these are of no other use, as what AVG of a unit is made of, and where the conditions would be long: that up
    to a value has those of all values below it.
    """
    parts = [atom for condition in conditions for atom in atoms(condition)]
    columns = {atom.column if isinstance(atom, LineAtom) else "" for atom in parts}
    if len(columns) < 2 or "" in columns:
        return False
    return len(conditions) * len(parts) > MAX_ATOMS or not any(
        scope.column(column).policy.declared for column in columns
    )


def _of_values(values: Sequence[float], column: Column) -> Prefixes:
    """The listed values that a computed number can have, ascending, as places on the line of what SUM adds up."""
    low, step = column.ends[0], column.policy.step or Fraction(1)
    ends: list[Cut] = []
    for value in values[:-1]:
        if column.line.kind == "grid":
            ends.append((round((Fraction(value) - low) / step) + 1, 0))
        else:
            ends.append(column.line.above(column.line.place(value)))
    below: list[Condition] = [LineAtom(column.name, ((None, end),)) for end in ends]
    return Prefixes(tuple(values), tuple(values), [*below, not_null(column)], "DOUBLE")


def _of_column(column: Column, node: exp.Expression, scope: Scope) -> Prefixes:
    if column.policy.values is None and (column.policy.lower is None or column.policy.upper is None):
        refuse_unit(f"a quantile of {column.name}", column, scope.computed.base, node)
    starts, values = _intervals(column, node)
    if starts != values:
        _note(column, scope)
    below: list[Condition] = [
        LineAtom(column.name, ((None, column.line.above(column.line.place(value))),)) for value in values[:-1]
    ]
    firsts, lasts = (tuple(_number(value, node) for value in ends) for ends in (starts, values))
    type_ = {"date": "DATE", "timestamp": "TIMESTAMP"}.get(column.line.kind, "DOUBLE")
    return Prefixes(firsts, lasts, [*below, not_null(column)], type_)


def _of_sum(column: Column, node: exp.Expression, scope: Scope) -> Prefixes:
    """The same of what SUM adds up: on a grid it counts steps from its lower bound."""
    if column.line.kind != "grid":
        return _of_column(column, node, scope)
    size = (column.line.high or 0) + 1
    parts = PARTS if size > MAX_PREFIXES else size
    if parts < size:
        _note(column, scope)
    cuts = [part * size // parts for part in range(parts + 1)]
    low, step = column.policy.lower, column.policy.step or 0
    firsts, lasts = (tuple(float(low + step * at) for at in ends) for ends in (cuts[:-1], [c - 1 for c in cuts[1:]]))  # type: ignore[operator]
    below: list[Condition] = [LineAtom(column.name, ((None, (cut, 0)),)) for cut in cuts[1:-1]]
    return Prefixes(firsts, lasts, [*below, not_null(column)], "DOUBLE")


def _note(column: Column, scope: Scope) -> None:
    note = Note(
        f"quantiles of {column.name} are rounded to a {PARTS}th of its declared range, which their errors include; "
        "narrower bounds in the policy make them finer",
        ERROR,
    )
    scope.computed.notes[note] = None


def _intervals(column: Column, node: exp.Expression) -> tuple[list[Any], list[Any]]:
    """The first and the last values of intervals over all that are declared, ascending: each value one, or 512."""
    if column.line.kind not in {"integer", "decimal", "real", "date", "timestamp", "grid"}:
        raise refuse(f"MIN, MAX and quantiles are of numbers, dates and times; {shown(node)} holds {column.type}", node)
    policy = column.policy
    low, high, size = policy.lower, policy.upper, policy.size(column.type)
    if policy.values is None and (low is None or high is None):
        declared = "lower and upper, or values, in the policy"
        remedy = declared if policy.declared else "write LEAST(GREATEST(..., 0), 100) around it"
        raise refuse(
            f"a quantile of {shown(node)} needs its values declared: {remedy}",
            node,
            code="no-bounds",
        )
    if size is None and policy.step is not None:
        size = int((high - low) / policy.step) + 1  # type: ignore[operator]
    if policy.values is not None or (size is not None and size <= MAX_PREFIXES and policy.step is None):
        listed: list[Any] = sorted(constant(value) for value in policy.domain(column.type) or ())
        every: Callable[[int], Any] = listed.__getitem__
        size = len(listed)
    elif size is not None and isinstance(low, dt.date):
        every = functools.partial(_day, low)
    elif size is not None:
        step = policy.step or (high - low) / (size - 1)  # type: ignore[operator]
        every = functools.partial(_step, low, step)
    else:  # no value has a next one: an interval ends where the next begins
        ends = [low + (high - low) * part / PARTS for part in range(PARTS + 1)]  # type: ignore[operator]
        return ends[:-1], ends[1:]
    parts = PARTS if size > MAX_PREFIXES else size
    cuts = [part * size // parts for part in range(parts + 1)]
    return [every(at) for at in cuts[:-1]], [every(at - 1) for at in cuts[1:]]


def _day(first: dt.date, at: int) -> dt.date:
    return first + dt.timedelta(days=at)


def _step(first: Any, step: Any, at: int) -> Any:
    return first + at * step


def _number(value: object, node: exp.Expression) -> float:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return (value - dt.datetime.combine(_EPOCH, dt.time())) / dt.timedelta(days=1)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return float((value - _EPOCH).days)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise refuse(f"MIN, MAX and quantiles are of numbers, dates and times; {shown(node)} is none", node)
    return float(value)
