"""Quantiles: MIN, MAX, MEDIAN and QUANTILE_CONT as counts of the rows up to each value that there can be.

The values of a column are its declared ones; those of an expression are what it has as a key of GROUP BY.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.policy.values import shown as show
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.expressions import column_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import not_null
from dpsql.sql.values.scope import Scope
from dpsql.sql.values.typed import shown
from dpsql.workload.expr.batch import CaseKey, Column, constant
from dpsql.workload.expr.conditions import FALSE, Condition, LineAtom, Or, gather

MAX_PREFIXES = 4096

Prefixes = tuple[tuple[float, ...], list[Condition], str]

_EPOCH = dt.date(1970, 1, 1)


def quantile_of(node: exp.Expression) -> tuple[float, exp.Expression]:
    """Which quantile of what an aggregate is: MIN 0, MEDIAN 0.5, MAX 1."""
    share, argument = node.args.get("expression"), node.this
    if isinstance(node, exp.Min | exp.Max | exp.Median):
        if node.args.get("expressions"):
            raise refuse(f"{node.key.upper()} takes one column", node)
        return {exp.Min: 0.0, exp.Max: 1.0}.get(type(node), 0.5), _plain(argument)
    if isinstance(node, exp.WithinGroup):
        ordered = node.expression.expressions if isinstance(node.expression, exp.Order) else []
        if not isinstance(node.this, exp.PercentileCont) or len(ordered) != 1:
            raise refuse("WITHIN GROUP is read with PERCENTILE_CONT or QUANTILE_CONT over one column", node)
        share, argument = node.this.this, ordered[0].this
        if ordered[0].args.get("desc"):
            raise refuse("WITHIN GROUP (... DESC) is not answered; take 1 minus the share, ascending", node)
    value = fold(share) if share is not None and is_constant(share) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not 0 <= value <= 1:
        raise refuse("QUANTILE_CONT takes a column and one constant between 0 and 1", node)
    return float(value), _plain(argument)


def _plain(argument: exp.Expression) -> exp.Expression:
    """Without DISTINCT, which leaves the extremes of a set as they are, and parentheses."""
    while isinstance(argument, exp.Distinct | exp.Paren):
        argument = argument.expressions[0] if isinstance(argument, exp.Distinct) else argument.this
    return argument


def prefixes_of(argument: exp.Expression, scope: Scope) -> Prefixes:
    """The values of ``argument`` in order as numbers, the condition "at most that value" for each, and their type.

    Dates are days since 1970-01-01. Values below the declared ones count as the first, those above as the last. Raises
    SQLError where the values are not public, no numbers or dates, or more than 4,096.
    """
    if isinstance(argument, exp.Column):
        return _of_column(column_of(argument, scope), argument)
    key = key_of(argument, scope)
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
        raise _too_many(shown(argument), len(known), argument)
    known.sort(key=lambda pair: pair[0])
    below: list[Condition] = []
    for _, condition in known:
        below.append(gather(Or, below[-1], condition) if below else condition)
    return tuple(value for value, _ in known), below, "DATE" if type_ == "DATE" else "DOUBLE"


def _of_column(column: Column, node: exp.Expression) -> Prefixes:
    values = _declared(column, node)
    below: list[Condition] = [
        LineAtom(column.name, ((None, column.line.above(column.line.place(value))),)) for value in values[:-1]
    ]
    type_ = "DATE" if column.line.kind == "date" else "DOUBLE"
    return tuple(_number(value, node) for value in values), [*below, not_null(column)], type_


def _number(value: object, node: exp.Expression) -> float:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return float((value - _EPOCH).days)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise refuse(f"quantiles are of numbers and dates; {shown(node)} is neither", node)
    return float(value)


def _declared(column: Column, node: exp.Expression) -> Sequence[Any]:
    """The declared values of a column in ascending order."""
    kinds = {"integer", "decimal", "real", "date", "grid"}
    if column.line.kind not in kinds:
        raise refuse(f"quantiles are of numbers and dates; {column.name} holds {column.type}", node)
    policy = column.policy
    size = policy.size(column.type)
    listed = size is not None
    if size is None and policy.step is not None and policy.lower is not None:
        size = int((policy.upper - policy.lower) / policy.step) + 1  # type: ignore[operator]
    if size is None:
        raise refuse(
            f"a quantile of {column.name} needs its values declared: lower and upper, and a step where it is no "
            "whole number or date, in the policy",
            node,
            code="no-bounds",
        )
    if size > MAX_PREFIXES:
        numbers = isinstance(policy.lower, Fraction) and isinstance(policy.upper, Fraction)
        ends = f"{show(policy.lower)}, {show(policy.upper)}" if numbers else ""  # type: ignore[arg-type]
        coarser = f"WIDTH_BUCKET({column.name}, {ends}, 100)" if numbers else f"year({column.name})"
        raise _too_many(column.name, size, node, f", or ask for the quantile of {coarser}")
    if listed:
        return sorted(constant(value) for value in policy.domain(column.type) or ())
    return [policy.lower + k * policy.step for k in range(size)]  # type: ignore[operator]


def _too_many(name: str, size: int, node: exp.Expression, instead: str = "") -> Exception:
    return refuse(
        f"{name} has {size:,} values, at most {MAX_PREFIXES:,} are counted for a quantile: take coarser ones{instead}",
        node,
        code="too-many-groups",
    )
