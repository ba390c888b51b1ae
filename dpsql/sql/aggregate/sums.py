"""Sums: what SUM and the moments add up for each row, with bounds derived from declared ones.

Every column enters clamped to its declared bounds, before any arithmetic; what the expression can
be then follows by interval arithmetic. Whole numbers, decimals and doubles with a declared step
stay exact: the scan counts steps from the lower bound. Other doubles are rounded to a 2^-20 part of
their width, like a column without a step. A row where a column
of the expression is NULL adds nothing, unless the expression itself gives NULL a value.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy.values import DIGITS
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import name_of
from dpsql.sql.values.expressions import value_of
from dpsql.sql.values.literals import is_constant
from dpsql.sql.values.row_cost import check_size
from dpsql.sql.values.scope import Scope, refuse_unit
from dpsql.sql.values.typed import Typed, exact, flat, integer_call, settled, type_of, whole, width
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.lines import Line, line_of
from dpsql.workloads.expr.measures import DEFAULT_STEPS, MAX_STEPS
from dpsql.workloads.expr.values import Cast, Constant, Value


def sum_of(node: exp.Expr, scope: Scope, aggregate: str = "SUM") -> Column:
    """The column that SUM(node) adds up: a stored one with bounds, or a computed one with derived bounds.

    Its policy has ``lower``, ``upper`` and ``step``. ``aggregate``: what is worked out of the sum, for messages. Raises
    SQLError where bounds are missing.
    """
    bare = node.unnest()
    if isinstance(bare, exp.Column):
        column = scope.resolve(bare)
        if column.line.kind != "boolean" and column.line.unit is None:
            return _bounded(column, bare, scope, aggregate)
    if is_constant(bare):
        sums = aggregate == "SUM"
        why = "sums a constant; write a multiple of COUNT(*)" if sums else "is of a constant; leave it out"
        raise refuse(f"{aggregate}({shown(bare)}) {why}", bare)
    if isinstance(bare, exp.Distinct):
        raise refuse(
            f"{aggregate}(DISTINCT ...) is not linear in the rows; leave DISTINCT out", bare, code="count-distinct"
        )
    column = _summed(_number(bare, scope, aggregate), bare, scope, aggregate)
    scope.computed.summed.setdefault(column.name, bare)
    return column


def exactly(column: Column, node: exp.Expr, scope: Scope) -> Column:
    """The column that SUM(node) adds up, with its exact number in each row where it has one."""
    t = value_of(node, scope, clamped=True)
    return replace(column, exact=(t.value, t.unit, t.offset)) if t.kind == "exact" and t.unit else column


def _bounded(column: Column, node: exp.Expr, scope: Scope, aggregate: str) -> Column:
    if not column.line.numeric:
        raise refuse(f"{aggregate} needs a number; {shown(node)} holds {column.type}", node)
    if column.policy.lower is None or column.policy.upper is None:
        refuse_unit(f"{aggregate}({shown(node)})", column, scope.computed.base, node)
        raise _unbounded(column, node, aggregate)
    return column


def _unbounded(column: Column, node: exp.Expr, aggregate: str) -> SQLError:
    asked = f"{aggregate}({shown(node)})"
    if column.line.kind == "text" or not column.policy.declared:
        return refuse(
            f"{asked} has no bounds but its type's; write {aggregate}(LEAST(GREATEST(..., 0), 100)) around it",
            node,
            code="no-bounds",
        )
    return refuse(
        f"{asked} needs bounds: add lower and upper to {column.policy.where} in the policy", node, code="no-bounds"
    )


def _number(node: exp.Expr, scope: Scope, aggregate: str) -> Typed:
    t = value_of(node, scope, clamped=True)
    if t.kind == "boolean":
        t = exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t)
    if not t.numeric:
        raise refuse(f"{aggregate} needs a number; {shown(node)} is {t.words}", node)
    if t.gap:
        raise _unbounded(scope.column(t.gap[0]), node, aggregate)
    return t


def _summed(t: Typed, node: exp.Expr, scope: Scope, aggregate: str) -> Column:
    text, t = name_of(node), settled(t)
    if t.kind == "exact":
        value, lower, step, steps = _steps(t, node)
        check_size(value, node)
        line = Line("grid", value.type, 0, steps)
        bounds = _within_reach(lower, lower + step * steps, node, aggregate)
        summed = (*bounds, step if steps else None)
        return scope.computed.column(value, line, _released(t), text, nulls=t.nulls, summed=summed)
    if t.bounds is None:
        raise refuse(
            f"{aggregate}({shown(node)}) has no bounds: it divides by what may be 0, or takes the logarithm, root or "
            f"power of what may leave no bounds; write {aggregate}(LEAST(GREATEST(..., 0), 100)), or divide by "
            "NULLIF(x, 0) of whole numbers from 0",
            node,
            code="no-bounds",
        )
    check_size(t.value, node)
    lower, upper, quantum = _outward(*t.bounds)
    _within_reach(lower, upper, node, aggregate)
    summed = lower, upper, quantum if upper > lower else None
    return scope.computed.column(t.value, line_of("DOUBLE"), "DOUBLE", text, nulls=t.nulls, summed=summed)


def _within_reach(lower: Fraction, upper: Fraction, node: exp.Expr, aggregate: str) -> tuple[Fraction, Fraction]:
    """These bounds; SQLError for what no policy could declare, which would blame a column that nobody declared."""
    if max(abs(lower), abs(upper)) >= 10**DIGITS:
        raise refuse(
            f"{aggregate}({shown(node)}) adds up values that may reach 1e{DIGITS} or more; write "
            f"{aggregate}(LEAST(GREATEST(x, 0), 100)) of a column x, or smaller constants",
            node,
            code="no-bounds",
        )
    return lower, upper


def _released(t: Typed) -> str:
    return "BIGINT" if t.family == "integer" else "DOUBLE"


def _steps(t: Typed, node: exp.Expr) -> tuple[Value, Fraction, Fraction, int]:
    """An exact number as steps from its lower bound: (steps of a row, lower, step, most steps)."""
    if t.high - t.low > MAX_STEPS:
        return _coarse_steps(flat(t, node), node)
    spread = t.high - t.low
    width(node, spread)
    if t.unit > 0:
        value = t.value
        if t.low:
            ends = (value, t.low, t.high), (Constant(t.low, "BIGINT"), t.low, t.low)
            value, _, _ = integer_call("-", node, 0, spread, *ends)
    else:
        top = (Constant(t.high, "BIGINT"), t.high, t.high)
        value, _, _ = integer_call("-", node, 0, spread, top, (t.value, t.low, t.high))
    lower = min(t.unit * t.low, t.unit * t.high) + t.offset
    return whole(value, value.type), lower, abs(t.unit), spread


def _coarse_steps(t: Typed, node: exp.Expr) -> tuple[Value, Fraction, Fraction, int]:
    """``_steps`` of a number with too many of its own: rounded to multiples of a larger step, the lower bound one."""
    stride = -(-max(t.high - t.low, abs(t.low), abs(t.high)) // (MAX_STEPS // 2))
    first, last = t.low // stride, -(-t.high // stride)
    # The nearest multiple: below it by less than half a step.
    shift = stride // 2 - first * stride
    ends = t.low + shift, t.high + shift
    up, _, _ = integer_call(
        "+", node, *ends, (t.value, t.low, t.high), (Constant(shift, type_of(shift) or "HUGEINT"), shift, shift)
    )
    by = Constant(stride, type_of(stride) or "HUGEINT")
    value, _, _ = integer_call("//", node, 0, last - first, (up, *ends), (by, stride, stride))
    return whole(value, value.type), t.unit * stride * first, t.unit * stride, last - first


def _outward(lower: Fraction, upper: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Bounds on a binary grid of about 2^20 steps that hold the given ones, and the grid."""
    width = upper - lower
    if not width:
        return lower, upper, Fraction(0)
    # What is finer than 1e-300 has one step, of that.
    exponent = math.floor(math.log2(float(max(width, Fraction(1, 10**300))))) if width < 10**300 else 996
    quantum = Fraction(2) ** exponent / DEFAULT_STEPS
    return lower // quantum * quantum, -(-upper // quantum) * quantum, quantum
