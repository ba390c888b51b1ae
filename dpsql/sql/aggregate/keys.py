"""Keys: the groups of GROUP BY over an expression, from types, constants and the policy alone.

A CASE has the groups of its results, an expression of a column with declared values or bounds those that
it takes on them, a condition FALSE, TRUE and NULL, and an expression whose range is small by
itself (``month(ts)``, ``x % 7``) all of that range. Anything else has no public groups and is refused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.policy.values import shown as show
from dpsql.sql.aggregate.evaluated import of_several, pieced, repeated, taken
from dpsql.sql.aggregate.groups import MAX_GROUPS, Groups, label_of, rank, released, too_many
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import expressions, predicates
from dpsql.sql.values.evaluation import result_type
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.operands import operand_of
from dpsql.sql.values.scope import Scope, declaring, key_domain
from dpsql.sql.values.typed import Typed, flat
from dpsql.workloads.expr.batch import CaseKey, Column, Key, constant
from dpsql.workloads.expr.conditions import (
    FALSE,
    TRUE,
    And,
    Condition,
    LineAtom,
    Or,
    complement,
    gather,
    negate,
    union,
)
from dpsql.workloads.expr.lines import Scalar, line_of
from dpsql.workloads.expr.regions import KeyDomain, LabelColumn
from dpsql.workloads.expr.values import stored
from dpsql.workloads.expr.within import Within

# Groups of an expression whose range is finite by itself.
MAX_RANGE = 1_000
# Labels of parts that repeat, such as the minutes of a day.
MAX_REPEATED = 2_000
_WIDER = ("SMALLINT", "INTEGER", "BIGINT", "HUGEINT")


def key_of(node: exp.Expr, scope: Scope) -> Key:
    """The groups of one GROUP BY item, without those that WHERE (``scope.within``) rules out for any data.

    Where it rules out all, all of them: that they hold no row is there for everybody to see. Raises SQLError where the
    groups are not public and finite.
    """
    node = node.unnest()
    if is_constant(node):
        raise refuse("GROUP BY takes a column or an expression over columns, not a constant", node)
    split = isinstance(node, exp.Case | exp.If | exp.Coalesce) or predicates.is_condition(node)
    if isinstance(node, exp.Column):
        result: Groups | KeyDomain = _column_groups(node, scope)
    else:
        result = _groups(node, scope) if split else _finite(node, scope)
    every = _domain(result) if isinstance(result, KeyDomain) else result.joined()
    if isinstance(result, KeyDomain) and scope.within.on(result.column) == TRUE:
        return result
    left = _within(every, scope.within)
    if isinstance(result, KeyDomain) and left == every:
        return result
    groups = [(label, condition, False) for label, condition in left.labelled]
    label = left.other_label
    groups += [(label, left.other, label is None), (None, FALSE if _never(left.null, scope) else left.null, False)]
    groups = [group for group in groups if group[1] != FALSE]
    if not groups:
        raise refuse(f"GROUP BY {shown(node)} has no groups; correct its conditions", node)
    if len(groups) > MAX_GROUPS:
        raise too_many(node)
    labels, conditions, others = zip(*groups, strict=True)
    text = node.sql("duckdb", comments=False)
    kind = _type(node, labels, scope)
    if isinstance(result, KeyDomain):
        text, kind = result.column, result.type
    columns = [LabelColumn(text, kind, tuple(released(kind, label) for label in labels))]
    if any(others):
        columns.append(LabelColumn("other", "BOOLEAN", others))
    return CaseKey(text, tuple(columns), conditions)


def _never(null: Condition, scope: Scope) -> bool:
    """Whether a group is that of a column's NULL, which the policy rules out."""
    if not isinstance(null, LineAtom) or null.intervals:
        return False
    return not scope.column(null.column).policy.nulls


def _within(groups: Groups, within: Within) -> Groups:
    """The groups that rows of ``within`` can be in; all where there is none."""
    labelled = tuple((label, condition) for label, condition in groups.labelled if not within.excludes(condition))
    null, other = (FALSE if within.excludes(condition) else condition for condition in (groups.null, groups.other))
    left = replace(groups, labelled=labelled, null=null, other=other)
    return left if labelled or (null, other) != (FALSE, FALSE) else groups


def _column_groups(node: exp.Column, scope: Scope) -> Groups | KeyDomain:
    """The groups of a column; of many whole numbers or days only those that WHERE leaves."""
    column = scope.resolve(node)
    policy = column.policy
    long = policy.values is None and policy.lower is not None and (policy.size(column.type) or 0) > MAX_GROUPS
    if column.line.unit is not None or (long and scope.within.on(column.name) != TRUE):
        return _finite(node, scope)
    return _stored_domain(node, scope)


def _stored_domain(node: exp.Column, scope: Scope) -> KeyDomain:
    column = scope.resolve(node)
    return scope.computed.domain(column, lambda: key_domain(column, scope.computed.base, node))


def _finite(node: exp.Expr, scope: Scope) -> Groups | KeyDomain:
    """The groups of a value expression: on its column's declared domain, else all values that its type allows."""
    t = expressions.value_of(node, scope)
    base = _declared(t, scope)
    groups = None if base is None else taken(t, base, node, scope.within)
    if groups is not None:
        return _by_value(groups, t, node, scope)
    if t.kind == "boolean":
        return _condition(node, scope)
    if t.kind != "exact" or t.high - t.low > MAX_RANGE:
        return _computed(t, base, node, scope)
    level = flat(t, node)
    column = expressions.registered(t, node, scope)
    values = tuple(label_of(level, n, node) for n in range(level.low, level.high + 1))
    points = tuple(((n, 0), (n + 1, 0)) for n in range(level.low, level.high + 1))
    kind = _type(node, values, scope)
    return KeyDomain(column.name, kind, tuple(released(kind, value) for value in values), points, False, t.nulls)


def _computed(t: Typed, base: Column | None, node: exp.Expr, scope: Scope) -> Groups | KeyDomain:
    """The groups of an expression by its values: on pieces of its columns, or on moments that stand for all."""
    parts = stored(t.value)
    if t.kind != "timestamptz" and parts:
        groups: Groups | None = None
        columns = [scope.computed.holding(part) for part in parts]
        registered = [column for column in columns if column is not None]
        if base is not None:
            groups = pieced(t, base, node, scope.within)
        elif 1 < len(registered) == len(columns):
            groups = of_several(t, registered, node, scope.within)
        atoms = [atom for _, atom in groups.labelled if isinstance(atom, LineAtom)] if groups is not None else []
        pieces = sum(len(atom.intervals) for atom in atoms)
        values = None
        if len(parts) == 1 and (groups is None or pieces > MAX_RANGE):
            values = repeated(t, parts[0], line_of(parts[0].type), node)
        if values is not None and len(values) <= MAX_REPEATED:
            return _computed_domain(t, values, node, scope)
        if groups is not None:
            if pieces > MAX_GROUPS:
                raise too_many(node)
            return _by_value(groups, t, node, scope)
    raise _endless(t, node, scope)


def _by_value(groups: Groups, t: Typed, node: exp.Expr, scope: Scope) -> Groups:
    """The groups with all rows that have their values, as conditions find them, where OTHER is a group.

    The values are those of the declared domain; a row outside of it may have one of them, too. All others are OTHER,
    and NULL is where no declared value gives it.
    """
    if groups.other == FALSE:
        return groups
    operand, parts = operand_of(node, scope), stored(t.value)
    column = operand.column
    by_value = tuple(
        (label, operand.within(operand.compared("=", constant(label), node)).true) for label, _ in groups.labelled
    )
    null = FALSE if groups.null == FALSE else operand.null
    other = negate(gather(Or, *(condition for _, condition in by_value), null))
    if isinstance(other, LineAtom):
        rest = tuple(part for part in other.intervals if column.line.clip(part) is not None)
        on_null = other.on_null and column.policy.nulls
        other = LineAtom(column.name, rest, on_null) if rest or on_null else FALSE
    columns = [scope.computed.holding(part) for part in parts]
    labels = {column.policy.other_label for column in columns if column is not None and column.policy.other}
    label = labels.pop() if len(labels) == 1 and t.kind == "text" else None
    return Groups(by_value, null, other, label)


def _computed_domain(t: Typed, values: Sequence[Scalar], node: exp.Expr, scope: Scope) -> KeyDomain:
    """The groups of a computed column by all of its values."""
    column = expressions.registered(t, node, scope)
    values = values if t.kind == "text" else sorted(values, key=rank)
    points = tuple(column.line.point(value) for value in values)
    return KeyDomain(column.name, _type(node, values, scope), tuple(values), points, False, t.nulls)


def _groups(node: exp.Expr, scope: Scope) -> Groups:
    node = node.unnest()
    if is_constant(node):
        value = fold(node)
        return Groups((), TRUE) if value is None else Groups(((value, TRUE),))
    if isinstance(node, exp.Case | exp.If):
        return _case(node, scope)
    if isinstance(node, exp.Coalesce):
        return _coalesce(node, scope)
    if isinstance(node, exp.Column):
        groups = _column_groups(node, scope)
        return _domain(groups) if isinstance(groups, KeyDomain) else groups
    if predicates.is_condition(node):
        return _condition(node, scope)
    groups = _finite(node, scope)
    return _domain(groups) if isinstance(groups, KeyDomain) else groups


def _endless(t: Typed, node: exp.Expr, scope: Scope) -> Exception:
    parts = stored(t.value)
    column = scope.computed.holding(parts[0]) if len(parts) == 1 else None
    if column is not None and isinstance(column.policy.lower, Fraction) and column.policy.upper is not None:
        ends = f"{show(column.policy.lower)}, {show(column.policy.upper)}"
        remedy = f"group by WIDTH_BUCKET({column.name}, {ends}, 10), or by CASE"
    elif column is not None:
        kind = column.line.kind
        case = "CASE or WIDTH_BUCKET" if column.line.numeric else "a CASE with constant results"
        what = "values" if kind == "text" else "values, or lower and upper,"
        declared = declaring(what, column.policy, "")
        remedy = f"{declared}, or group by {case}" if declared else f"group by {case}"
    else:
        remedy = "group by each of its columns, or by a CASE with constant results"
    return refuse(f"GROUP BY {shown(node)} has no finite public groups: {remedy}", node, code="unknown-groups")


def _domain(key: KeyDomain) -> Groups:
    labelled = tuple(
        (
            constant(value) if not isinstance(value, str) else value,
            FALSE if point is None else LineAtom(key.column, (point,)),
        )
        for value, point in zip(key.values, key.points, strict=True)
    )
    inside = union([point for point in key.points if point is not None])
    other = LineAtom(key.column, complement(inside)) if key.other else FALSE
    return Groups(labelled, LineAtom(key.column, (), True) if key.nulls else FALSE, other, key.other_label)


def _condition(node: exp.Expr, scope: Scope) -> Groups:
    pair = predicates.truth(node, scope)
    neither = gather(And, negate(pair.true), negate(pair.false))
    return Groups(((False, pair.false), (True, pair.true)), FALSE if predicates.is_never_null(node, scope) else neither)


def _case(node: exp.Case | exp.If, scope: Scope) -> Groups:
    """The groups of all branches, each for the rows that reach it; equal labels are one group."""
    merged = _Merged()
    reached: Condition = TRUE
    for condition, branch in expressions.branches_of(node):
        holds = TRUE if condition is None else predicates.truth(condition, scope).true
        merged.add(gather(And, reached, holds), _groups(branch, scope))
        reached = gather(And, reached, negate(holds))
    merged.null.append(reached)
    return merged.groups()


def _coalesce(node: exp.Coalesce, scope: Scope) -> Groups:
    merged = _Merged()
    reached: Condition = TRUE
    for part in (node.this, *node.expressions):
        inner, nonnull = _groups(part, scope), predicates.nonnull(part, scope)
        merged.add(reached, replace(inner, null=FALSE, other=gather(And, inner.other, nonnull)))
        reached = gather(And, reached, negate(nonnull))
    merged.null.append(reached)
    return merged.groups()


class _Merged:
    """Groups collected over branches."""

    def __init__(self) -> None:
        self.labelled: dict[tuple[str, Scalar], list[Condition]] = {}
        self.null: list[Condition] = []
        self.other: list[Condition] = []
        self.labels: set[str | None] = set()

    def add(self, reached: Condition, groups: Groups) -> None:
        """The groups of a branch, for the rows that reach it."""
        for label, condition in groups.labelled:
            # 1 and TRUE are equal in Python.
            key = ("bool" if isinstance(label, bool) else "value", label)
            self.labelled.setdefault(key, []).append(gather(And, reached, condition))
            if len(self.labelled) > MAX_GROUPS:
                return
        self.null.append(gather(And, reached, groups.null))
        self.other.append(gather(And, reached, groups.other))
        self.labels |= {groups.other_label} if groups.other != FALSE else set()

    def groups(self) -> Groups:
        """The groups, equal labels joined."""
        labelled = tuple((label, gather(Or, *conditions)) for (_, label), conditions in self.labelled.items())
        label = self.labels.pop() if len(self.labels) == 1 else None
        return Groups(labelled, gather(Or, *self.null), gather(Or, *self.other), label)


def _declared(t: Typed, scope: Scope) -> Column | None:
    """The one column of an expression, where the policy declares its values or bounds."""
    parts = stored(t.value)
    column = t.path.column if t.path is not None else scope.computed.holding(parts[0]) if len(parts) == 1 else None
    if column is None:
        return None
    policy = column.policy
    return column if policy.values is not None or policy.lower is not None or column.line.kind == "boolean" else None


def _holds(kind: str, ends: Sequence[Scalar]) -> bool:
    """Whether a type is none of whole numbers, or holds both of these."""
    line = line_of(kind)
    return line.kind != "integer" or all(line.clip(((end, 0), (end, 1))) is not None for end in ends)


def _type(node: exp.Expr, labels: Sequence[Scalar], scope: Scope) -> str:
    """The DuckDB type of the labels: what DuckDB says of the expression, or a wider one that holds them all, else by
    their values. The negative of a TINYINT may be 128.
    """
    columns = {}
    for part in node.find_all(exp.Column):
        columns[part.sql("duckdb")] = scope.resolve(part).type
    type_name = result_type(node, tuple(columns.items()))
    given = [label for label in labels if label is not None]
    kinds = {type(label) for label in given}
    if type_name is not None and not type_name.startswith("ENUM"):
        if kinds != {int}:
            return type_name
        ends = min(given), max(given)
        return next((kind for kind in (type_name, *_WIDER) if _holds(kind, ends)), type_name)
    if kinds == {str}:
        return "VARCHAR"
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    if kinds == {dt.date}:
        return "DATE"
    return "TIMESTAMP" if kinds == {dt.datetime} else "DOUBLE" if kinds else "VARCHAR"
