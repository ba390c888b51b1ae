"""Pieces: what a summed expression is in which rows, so that the counts behind a number can be judged.

``AVG(CASE WHEN g = 'c' THEN 1 ELSE 0 END)`` is a share, however it is written. CASE, COALESCE, NULLIF and conditions
are taken out of the expression, wherever they stand in it, until each of its pieces is a constant or varies from row to
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isfinite

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.parse.trees import nodes
from dpsql.sql.values.expressions import branches_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.predicates import is_condition, nonnull, not_null, truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import Piece
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, gather, negate

MOST_PIECES = 64
_BRANCHING = (exp.Case, exp.If, exp.Coalesce, exp.Nullif)
_ARITHMETIC = frozenset(
    {exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Cast, exp.DataType}
)


def pieces_of(node: exp.Expr, scope: Scope) -> tuple[Piece, ...] | None:
    """The pieces of a summed expression, in rows that exclude each other; it is NULL in all other rows.

    None where there are more than ``MOST_PIECES``, or where dpsql cannot say in which rows one of them is.
    """
    pieces: list[Piece] = []
    waiting: list[tuple[Condition, exp.Expr]] = [(TRUE, node)]
    try:
        while waiting:
            where, part = waiting.pop()
            if len(pieces) + len(waiting) >= MOST_PIECES:
                return None
            inner = next((each for each in part.walk() if _is_branching(each, scope)), None)
            if inner is not None:
                for condition, branch in _branches(inner, scope):
                    both = gather(And, where, condition)
                    if both != FALSE:
                        waiting.append((both, _with(part, inner, branch)))
            elif isinstance(part.unnest(), exp.Null):
                continue
            elif (value := _number(part)) is not None:
                pieces.append(Piece(where, value))
            elif not any(isinstance(each, exp.Column) for each in nodes(part)):
                # A constant that is not worked out here: it differs from others, that is all.
                pieces.append(Piece(where, varying=part.sql("duckdb", comments=False)))
            else:
                here = gather(And, where, _nonnull(part, scope))
                if here != FALSE:
                    pieces.append(Piece(here, varying=part.unnest().sql("duckdb", comments=False)))
    except SQLError:  # a piece by itself is no expression of a row that dpsql admits
        return None
    return tuple(pieces)


def makes_steps(node: exp.Expr) -> bool:
    """Whether many values may become one, so that the mean of few values tells which rows have a rare one."""
    return any(
        isinstance(part, exp.Func | exp.Div | exp.IntDiv | exp.Mod) and not _branches_alone(part)
        for part in nodes(node)
    )


def _branches_alone(node: exp.Expr) -> bool:
    return isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nullif | exp.And | exp.Or)


def _number(node: exp.Expr) -> Fraction | None:
    """The value of a constant number; None for anything else."""
    node = node.unnest()
    if isinstance(node, exp.Cast) and node.to.this in exp.DataType.NUMERIC_TYPES:
        number = _number(node.this)
        return number if number is not None and number.denominator == 1 else None
    if isinstance(node, exp.Neg):
        number = _number(node.this)
        return None if number is None else -number
    if isinstance(node, exp.Add | exp.Sub | exp.Mul):
        left, right = _number(node.this), _number(node.expression)
        if left is None or right is None:
            return None
        return left * right if isinstance(node, exp.Mul) else left + right * (1 if isinstance(node, exp.Add) else -1)
    value = fold(node) if is_constant(node) else None
    return Fraction(value) if isinstance(value, int | float | Fraction) and isfinite(value) else None


def _nonnull(node: exp.Expr, scope: Scope) -> Condition:
    """Where an expression without branches is not NULL: arithmetic is NULL where one of its columns is."""
    if all(type(part) in _ARITHMETIC for part in nodes(node)):
        columns = (scope.resolve(part) for part in nodes(node) if isinstance(part, exp.Column))
        return gather(And, *map(not_null, columns))
    return nonnull(node, scope)


def _is_branching(node: exp.Expr, scope: Scope) -> bool:
    if isinstance(node, exp.Column):
        return scope.resolve(node).line.kind == "boolean"
    return isinstance(node, _BRANCHING) or (is_condition(node) and not isinstance(node, exp.Boolean))


def _branches(node: exp.Expr, scope: Scope) -> Iterator[tuple[Condition, exp.Expr]]:
    """(the rows, the value) of each branch of a node; NULL elsewhere."""
    if isinstance(node, exp.Coalesce):
        reached: Condition = TRUE
        for part in (node.this, *node.expressions):
            there = nonnull(part, scope)
            yield gather(And, reached, there), part
            reached = gather(And, reached, negate(there))
    elif isinstance(node, exp.Nullif):
        equal = truth(exp.EQ(this=node.this.copy(), expression=node.expression.copy()), scope)
        yield negate(equal.true), node.this
    elif isinstance(node, exp.Case | exp.If):
        reached = TRUE
        for condition, branch in branches_of(node):
            holds = TRUE if condition is None else truth(condition, scope).true
            yield gather(And, reached, holds), branch
            reached = gather(And, reached, negate(holds))
    else:
        pair = truth(node, scope)
        yield pair.true, exp.Literal.number(1)
        yield pair.false, exp.Literal.number(0)


def _with(node: exp.Expr, inner: exp.Expr, branch: exp.Expr) -> exp.Expr:
    """The expression with a branch in place of ``inner``, which is a part of it."""
    if node is inner:
        return exp.Paren(this=branch.copy())

    def rewritten(value: object) -> object:
        if isinstance(value, list):
            return [rewritten(part) for part in value]
        return _with(value, inner, branch) if isinstance(value, exp.Expr) else value

    return type(node)(**{key: rewritten(value) for key, value in node.args.items()})
