"""Lowering: a condition over columns as a test over what they compute, for CASE inside values."""

from __future__ import annotations

from dpsql.sql.values.scope import Scope
from dpsql.workload.expr.batch import Column
from dpsql.workload.expr.conditions import And, Condition, Constant, Like, LineAtom, OpaqueAtom
from dpsql.workload.expr.values import Compared, Every, Is, Matches, Some, Stored, Test, Value, Within


def lowered(condition: Condition, scope: Scope) -> Test:
    """A test that is TRUE where the condition holds, and FALSE or NULL elsewhere."""
    if isinstance(condition, Constant):
        return Every(()) if condition.truth else Some(())
    if isinstance(condition, LineAtom):
        column = scope.column(condition.column)
        return Within(_value(column), column.line, condition.intervals, condition.on_null)
    if isinstance(condition, OpaqueAtom):
        predicate = condition.predicate
        if isinstance(predicate, Like):
            return Is(Matches(_value(scope.column(predicate.column)), predicate.pattern), condition.truths)
        left, right = scope.column(predicate.left), scope.column(predicate.right)
        return Is(Compared(_value(left), predicate.operator, _value(right)), condition.truths)
    parts = tuple(lowered(part, scope) for part in condition.operands)
    return Every(parts) if isinstance(condition, And) else Some(parts)


def _value(column: Column) -> Value:
    return column.value if column.value is not None else Stored(column.name, column.type)
