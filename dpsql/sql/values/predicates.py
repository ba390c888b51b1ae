"""Predicates: an SQL Boolean expression as the pair "is TRUE" / "is FALSE" of conditions.

The expression is admitted node by node; whatever is not listed here is refused. All atoms
are total: they compare a raw value, or a total expression over raw values, with a constant of its
own kind, so that no row can make the scan fail. Kleene's logic is in how the pairs combine.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import expressions
from dpsql.sql.values.comparisons import (
    between,
    between_constants,
    comparison,
    in_list,
    like,
    note_undeclared,
    starts,
    without_escape,
)
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.operands import Operand, operand_of, plain_operand, typed_operand
from dpsql.sql.values.scope import OF_IN, Scope, Truth
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, Or, conjunction, disjunction, gather, negate

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def not_null(column: Column) -> Condition:
    """``column IS NOT NULL``; TRUE where the policy rules NULL out."""
    return plain_operand(column).nonnull


def nonnull(node: exp.Expr, scope: Scope) -> Condition:
    """The rows where an expression or a condition is not NULL."""
    while isinstance(node, exp.Paren):
        node = node.this
    if is_constant(node):
        return FALSE if fold(node) is None else TRUE
    if is_condition(node):
        pair = truth(node, scope)
        return disjunction(pair.true, pair.false)
    return operand_of(node, scope).nonnull


def is_never_null(node: exp.Expr, scope: Scope) -> bool:
    """Whether a condition is TRUE or FALSE in every row, as far as each of its operands shows it."""
    node = node.unnest()
    if isinstance(node, exp.Is | exp.NullSafeEQ | exp.NullSafeNEQ | exp.Boolean):
        return True
    if isinstance(node, exp.And | exp.Or | exp.Not):
        return all(is_never_null(part, scope) for part in node.iter_expressions())
    if isinstance(node, exp.Between | exp.In) or type(node) in _OPERATORS:
        return all(is_never_null(part, scope) for part in node.iter_expressions())
    return not is_condition(node) and not isinstance(node, _REFUSED) and nonnull(node, scope) == TRUE


def is_condition(node: exp.Expr) -> bool:
    """True for nodes that can only be conditions."""
    return isinstance(node, _LOGIC) or type(node) in _OPERATORS


_LOGIC = (
    *(exp.And, exp.Or, exp.Not, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.In, exp.Like, exp.ILike),
    *(exp.Escape, exp.Boolean, exp.StartsWith, exp.EndsWith, exp.Contains),
)


def truth(node: exp.Expr, scope: Scope) -> Truth:
    """The pair of conditions of a Boolean expression. Raises SQLError on anything not admitted."""
    if not isinstance(node, exp.Expr):
        raise refuse("a function or operator of the statement lacks an operand; write it", code="syntax")
    if isinstance(node, exp.Paren):
        return truth(node.this, scope)
    if isinstance(node, exp.And | exp.Or):
        return _connective(node, scope)
    if isinstance(node, exp.Not):
        inner = truth(node.this, scope)
        return Truth(inner.false, inner.true)
    if isinstance(node, exp.Boolean):
        return Truth(TRUE, FALSE) if node.this else Truth(FALSE, TRUE)
    if isinstance(node, exp.Null):
        return Truth(FALSE, FALSE)
    if isinstance(node, exp.Column):
        return _boolean(plain_operand(scope.resolve(node), node), node)
    if isinstance(node, exp.Is):
        return _is(node, scope)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return _distinct(node, scope)
    if isinstance(node, exp.Between):
        return between(node, scope)
    if isinstance(node, exp.In):
        return in_list(node, scope)
    if isinstance(node, exp.Like | exp.ILike):
        return like(node, scope)
    if isinstance(node, exp.Escape):
        return truth(without_escape(node), scope)
    if isinstance(node, exp.Case | exp.If):
        return _case(node, scope)
    if isinstance(node, exp.StartsWith) and is_constant(node.expression):
        return starts(node, scope)
    operator = _OPERATORS.get(type(node))
    if operator is not None:
        return comparison(node, operator, scope)
    if isinstance(node, _REFUSED):
        raise _not_admitted(node)
    typed = expressions.value_of(node, scope)
    if typed.kind == "boolean":
        return _boolean(typed_operand(typed, node, scope), node)
    raise refuse(f"{shown(node)} is {typed.words} and no condition; compare it with a constant", node)


_REFUSED = (exp.Subquery, exp.Exists, exp.Select, exp.AggFunc, exp.Window, exp.Glob)


def _not_admitted(node: exp.Expr) -> SQLError:
    if isinstance(node, exp.Subquery | exp.Exists | exp.Select):
        return refuse(
            "a subquery depends on other rows, so it is not private; split it into views of its own",
            node,
            code="subquery",
        )
    if isinstance(node, exp.AggFunc | exp.Window):
        return refuse(
            "an aggregate in a condition depends on other rows; filter the released view instead",
            node,
            code="aggregate-of-rows",
        )
    return refuse(f"{node.key.upper()} is not admitted; write LIKE with a constant pattern", node, code="function")


def _connective(node: exp.And | exp.Or, scope: Scope) -> Truth:
    # Long chains parse into left-deep trees: walk them without recursion.
    parts, stack = [], [node.this, node.expression][::-1]
    while stack:
        part = stack.pop()
        if type(part) is type(node):
            stack.extend([part.expression, part.this])
        else:
            parts.append(truth(part, scope))
    every, some = [p.true for p in parts], [p.false for p in parts]
    if isinstance(node, exp.And):
        return Truth(gather(And, *every), gather(Or, *some))
    return Truth(gather(Or, *every), gather(And, *some))


def _case(node: exp.Case | exp.If, scope: Scope) -> Truth:
    """CASE between conditions: each branch counts for the rows that reach it."""
    reached: Condition = TRUE
    true: list[Condition] = []
    false: list[Condition] = []
    for condition, branch in expressions.branches_of(node):
        inner = truth(branch, scope)
        holds = TRUE if condition is None else truth(condition, scope).true
        here = gather(And, reached, holds)
        true.append(gather(And, here, inner.true))
        false.append(gather(And, here, inner.false))
        reached = gather(And, reached, negate(holds))
    return Truth(gather(Or, *true), gather(Or, *false))


def _boolean(operand: Operand, node: exp.Expr) -> Truth:
    if operand.line.kind != "boolean":
        raise refuse(f"{operand.name} holds {operand.column.type}; a condition compares it with a constant", node)
    return operand.within(operand.compared("=", True, node))


def _is(node: exp.Is, scope: Scope) -> Truth:
    """IS [NOT] NULL of a value or condition, IS [NOT] TRUE or FALSE of a condition: never NULL."""
    wanted = node.expression
    if isinstance(wanted, exp.Null):
        subject = node.this.unnest()
        if is_condition(subject) or isinstance(subject, exp.Null):
            inner = truth(subject, scope)
            holds: Condition = conjunction(negate(inner.true), negate(inner.false))
        elif is_constant(subject):
            holds = TRUE if fold(subject) is None else FALSE
        elif OF_IN in node.meta and isinstance(subject, exp.Column):
            column = scope.resolve(subject)
            if column.value is not None and column not in scope.computed.base.columns.values():
                column = scope.computed.column(column.value, column.line, column.type, column.name)
            holds = plain_operand(column).null
        else:
            holds = operand_of(subject, scope).null
    elif isinstance(wanted, exp.Boolean):
        inner = truth(node.this, scope)
        holds = inner.true if wanted.this else inner.false
    else:
        raise refuse("IS takes NULL, TRUE or FALSE", node)
    return Truth(holds, negate(holds))


def _distinct(node: exp.Expr, scope: Scope) -> Truth:
    left, right = node.this, node.expression
    if is_constant(left):
        left, right = right, left
    if is_constant(left):
        values = fold(left), fold(right)
        alike = values == (None, None) or (
            None not in values and between_constants(left, "=", right, node) == Truth(TRUE, FALSE)
        )
        pair = Truth(TRUE, FALSE) if alike else Truth(FALSE, TRUE)
        return pair if isinstance(node, exp.NullSafeEQ) else Truth(pair.false, pair.true)
    if not is_constant(right):
        equal = comparison(node, "=", scope)
        nulls = [operand_of(side, scope).null for side in (left, right)]
        same: Condition = disjunction(equal.true, conjunction(*nulls))
    else:
        operand = operand_of(left, scope)
        value = fold(right)
        if value is not None:
            note_undeclared(operand, value, node, scope)
        same = operand.null if value is None else operand.within(operand.compared("=", value, node)).true
    pair = Truth(same, negate(same))
    return pair if isinstance(node, exp.NullSafeEQ) else Truth(pair.false, pair.true)
