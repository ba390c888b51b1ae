"""Keys: the groups of GROUP BY over an expression, from types, constants and the policy alone.

A CASE has the groups of its results, an expression of a column with declared values or bounds those that
it takes on them, a condition FALSE, TRUE and NULL, and an expression whose range is small by
itself (``month(ts)``, ``x % 7``) all of that range. Anything else has no public groups and is refused.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import PolicyError
from dpsql.policy import ColumnPolicy
from dpsql.policy.values import shown as show
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import expressions, predicates
from dpsql.sql.values.evaluation import evaluate, result_type
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.operands import least
from dpsql.sql.values.scope import Scope, key_domain
from dpsql.sql.values.typed import Path, Typed, flat, shown
from dpsql.workload.expr.batch import CaseKey, Column, Key, LabelColumn, constant
from dpsql.workload.expr.conditions import (
    FALSE,
    TRUE,
    And,
    Condition,
    LineAtom,
    Or,
    complement,
    conjunction,
    gather,
    negate,
    union,
)
from dpsql.workload.expr.lines import Interval, Scalar, to_float
from dpsql.workload.expr.regions import KeyDomain
from dpsql.workload.expr.values import stored

MAX_GROUPS = 20_000
# Groups of an expression whose range is finite by itself.
MAX_RANGE = 1_000
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Groups:
    """Groups by their labels, in order; where the expression is NULL; where the policy calls a value OTHER."""

    found: tuple[tuple[Scalar, Condition], ...]
    null: Condition = FALSE
    other: Condition = FALSE


def key_of(node: exp.Expr, scope: Scope) -> Key:
    """The groups of one GROUP BY item. Raises SQLError where they are not public and finite."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _stored_domain(node, scope)
    if is_constant(node):
        raise refuse("GROUP BY takes a column or an expression over columns, not a constant", node)
    split = isinstance(node, exp.Case | exp.If | exp.Coalesce) or predicates.is_condition(node)
    found = _groups(node, scope) if split else _finite(node, scope)
    if isinstance(found, KeyDomain):
        return found
    groups = [(label, condition) for label, condition in found.found if condition != FALSE]
    labels: list[Scalar] = [label for label, _ in groups]
    conditions = [condition for _, condition in groups]
    others = [False] * len(groups)
    for condition, is_other in ((found.other, True), (found.null, False)):
        if condition != FALSE:
            labels.append(None)
            conditions.append(condition)
            others.append(is_other)
    if not conditions:
        raise refuse(f"GROUP BY {shown(node)} has no groups; correct its conditions", node)
    if len(conditions) > MAX_GROUPS:
        raise refuse(
            f"GROUP BY {shown(node)} has more than {MAX_GROUPS:,} groups; use coarser ones",
            node,
            code="too-many-groups",
        )
    text = node.sql("duckdb", comments=False)
    kind = _type(node, labels, scope)
    columns = [LabelColumn(text, kind, tuple(_as(kind, label) for label in labels))]
    if any(others):
        columns.append(LabelColumn("other", "BOOLEAN", tuple(others)))
    return CaseKey(text, tuple(columns), tuple(conditions))


def _stored_domain(node: exp.Column, scope: Scope) -> KeyDomain:
    column = scope.resolve(node)
    return scope.computed.domain(column, lambda: key_domain(column, scope.computed.base, node))


def _finite(node: exp.Expr, scope: Scope) -> Groups | KeyDomain:
    """The groups of a value expression: on its column's declared domain, else all values that its type allows."""
    t = expressions.value_of(node, scope)
    base = _declared(t, scope)
    found = None if base is None else _taken(t, base, node)
    if found is not None:
        return found
    if t.kind == "boolean":
        return _condition(node, scope)
    if t.kind != "exact" or t.high - t.low > MAX_RANGE:
        raise _endless(t, node, scope)
    level = flat(t, node)
    column = expressions.registered(t, node, scope)
    values = tuple(_label(level, n) for n in range(level.low, level.high + 1))
    points = tuple(((n, 0), (n + 1, 0)) for n in range(level.low, level.high + 1))
    kind = _type(node, values, scope)
    return KeyDomain(column.name, kind, tuple(_as(kind, value) for value in values), points, False, t.nulls)


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
        return _domain(_stored_domain(node, scope))
    if predicates.is_condition(node):
        return _condition(node, scope)
    found = _finite(node, scope)
    return _domain(found) if isinstance(found, KeyDomain) else found


def _endless(t: Typed, node: exp.Expr, scope: Scope) -> Exception:
    parts = stored(t.value)
    column = scope.computed.holding(parts[0]) if len(parts) == 1 else None
    if column is not None and isinstance(column.policy.lower, Fraction) and column.policy.upper is not None:
        ends = f"{show(column.policy.lower)}, {show(column.policy.upper)}"
        remedy = f"group by WIDTH_BUCKET({column.name}, {ends}, 10), or by CASE"
    elif column is not None:
        where = f"add values, or lower and upper, to {column.policy.where} in the policy"
        remedy = f"{where}, or group by CASE, WIDTH_BUCKET or date_trunc"
    else:
        remedy = "group by each of its columns, or by a CASE with constant results"
    return refuse(f"GROUP BY {shown(node)} has no finite public groups: {remedy}", node, code="unknown-groups")


def _domain(key: KeyDomain) -> Groups:
    found = tuple(
        (
            constant(value) if not isinstance(value, str) else value,
            FALSE if point is None else LineAtom(key.column, (point,)),
        )
        for value, point in zip(key.values, key.points, strict=True)
    )
    inside = union([point for point in key.points if point is not None])
    other = LineAtom(key.column, complement(inside)) if key.other else FALSE
    return Groups(found, LineAtom(key.column, (), True) if key.nulls else FALSE, other)


def _condition(node: exp.Expr, scope: Scope) -> Groups:
    pair = predicates.truth(node, scope)
    neither = conjunction(negate(pair.true), negate(pair.false))
    return Groups(((False, pair.false), (True, pair.true)), neither)


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
        inner = _groups(part, scope)
        merged.add(reached, Groups(inner.found, FALSE, inner.other))
        reached = gather(And, reached, negate(predicates.known(part, scope)))
    merged.null.append(reached)
    return merged.groups()


class _Merged:
    """Groups collected over branches."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, Scalar], list[Condition]] = {}
        self.null: list[Condition] = []
        self.other: list[Condition] = []

    def add(self, reached: Condition, groups: Groups) -> None:
        """The groups of a branch, for the rows that reach it."""
        for label, condition in groups.found:
            # 1 and TRUE are equal in Python.
            key = ("bool" if isinstance(label, bool) else "value", label)
            self.found.setdefault(key, []).append(gather(And, reached, condition))
            if len(self.found) > MAX_GROUPS:
                return
        self.null.append(gather(And, reached, groups.null))
        self.other.append(gather(And, reached, groups.other))

    def groups(self) -> Groups:
        """The groups, equal labels joined."""
        found = tuple((label, gather(Or, *conditions)) for (_, label), conditions in self.found.items())
        return Groups(found, gather(Or, *self.null), gather(Or, *self.other))


def _declared(t: Typed, scope: Scope) -> Column | None:
    """The one column of an expression, where the policy declares its values or bounds."""
    parts = stored(t.value)
    column = t.path.column if t.path is not None else scope.computed.holding(parts[0]) if len(parts) == 1 else None
    if column is None:
        return None
    policy = column.policy
    return column if policy.values is not None or policy.lower is not None or column.line.kind == "boolean" else None


def _taken(t: Typed, column: Column, node: exp.Expr) -> Groups | None:
    """The values that an expression takes on the declared domain of its one column."""
    policy = column.policy
    if t.path is not None and policy.values is None and policy.lower is not None:
        return _along(t, t.path, policy, node)
    values: Iterable[object] | None = (False, True) if column.line.kind == "boolean" else None
    if values is None:
        try:
            if (policy.size(column.type) or 0) > MAX_GROUPS:
                return None
            values = policy.domain(column.type)
        except PolicyError as error:
            raise refuse(str(error), node) from None
    listed = None if values is None else tuple(values)
    if listed is None or len(listed) > MAX_GROUPS:
        return None
    points = [point for point in (column.line.point(constant(value)) for value in listed) if point is not None]
    held = [(point, point[0][0] if point[0] is not None else column.line.low) for point in points]
    (base,) = stored(t.value)
    results = evaluate(t.value, t.kind, base, column.line, (*(at for _, at in held), None))
    by_label: dict[Scalar, list[Interval]] = {}
    null: list[Interval] = []
    for (point, _), result in zip(held, results[:-1], strict=True):
        if result is None:
            null.append(point)
        else:
            by_label.setdefault(_label(t, result), []).append(point)
    nulls = policy.nulls and not column.never_null
    at_null = None if results[-1] is None else _label(t, results[-1])
    if nulls and at_null is not None:
        by_label.setdefault(at_null, [])
    found = tuple(
        (label, LineAtom(column.name, union(by_label[label]), nulls and label == at_null))
        for label in sorted(by_label, key=_rank)
    )
    on_null = nulls and at_null is None
    empty = LineAtom(column.name, union(null), on_null) if null or on_null else FALSE
    other = LineAtom(column.name, complement(union(points))) if policy.other else FALSE
    return Groups(found, empty, other)


def _along(t: Typed, path: Path, policy: ColumnPolicy, node: exp.Expr) -> Groups:
    """A rising function from the lower to the upper bound of its column: one interval a value."""
    column = path.column
    scale = column.line
    low, high = math.ceil(_place(scale, policy.lower)), math.floor(_place(scale, policy.upper))
    pieces = [(max(low, first), min(high, last)) for first, last in path.domain]
    found: list[tuple[Scalar, Condition]] = []
    covered: list[Interval] = []
    for first, last in pieces:
        at, width = first, 1
        while at <= last:
            value = path.function(at)
            after = least(path, at, last, value + 1, at + width)  # groups are often as long as those before
            width = after - at
            interval = ((at, 0), (after, 0))
            covered.append(interval)
            found.append((_label(t, value), LineAtom(column.name, (interval,))))
            at = after
            if len(found) > MAX_GROUPS:
                raise refuse(
                    f"GROUP BY {shown(node)} has more than {MAX_GROUPS:,} groups; use coarser ones",
                    node,
                    code="too-many-groups",
                )
    if t.unit < 0:
        found.reverse()
    inside = union([((low, 0), (high + 1, 0))])
    reached = union(covered)
    lost = [part for part in inside if part not in reached]
    gaps = union([gap for part in lost for gap in _without(part, reached)])
    nulls = policy.nulls and not column.never_null
    null = LineAtom(column.name, gaps, nulls) if gaps or nulls else FALSE
    other = LineAtom(column.name, complement(inside)) if policy.other else FALSE
    return Groups(tuple(found), null, other)


def _without(part: Interval, covered: Sequence[Interval]) -> list[Interval]:
    low, high = part
    rest: list[Interval] = []
    for start, stop in covered:
        if low is not None and start is not None and low < start:
            rest.append((low, start))
        low = stop
    if low is not None and high is not None and low < high:
        rest.append((low, high))
    return rest


def _place(line: object, value: object) -> Fraction:
    found = line.place(value)  # type: ignore[attr-defined]
    return Fraction(found)


def _rank(label: Scalar) -> tuple[int, object]:
    if isinstance(label, float) and math.isnan(label):
        return (1, 0)
    return (0, label)


def _label(t: Typed, result: int | float | str | bool) -> Scalar:
    """A result of the scan as the value that is released."""
    if t.kind == "exact":
        if t.family == "integer" and t.unit == 1 and not t.offset:
            return int(result)
        number = t.unit * int(result) + t.offset
        return int(number) if number.denominator == 1 and t.family == "integer" else _decimal(number)
    if t.kind == "date":
        return (_EPOCH + dt.timedelta(days=int(result))).date()
    if t.kind == "timestamp":
        return _EPOCH + dt.timedelta(microseconds=int(result))
    if isinstance(result, float):
        return math.nan if math.isnan(result) else result + 0.0
    assert isinstance(result, str | bool)  # noqa: S101 - text and Booleans are left
    return result


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def _as(kind: str, label: Scalar) -> Scalar:
    """A label as a value of its released column's type."""
    if isinstance(label, bool) or not isinstance(label, int | float | Decimal | Fraction):
        return label
    if kind == "DOUBLE":
        return to_float(label)
    if kind.startswith("DECIMAL"):
        return _decimal(Fraction(label))
    return int(label)


def _type(node: exp.Expr, labels: Sequence[Scalar], scope: Scope) -> str:
    """The DuckDB type of the labels: what DuckDB says of the expression, else by their values."""
    columns = {}
    for part in node.find_all(exp.Column):
        columns[part.sql("duckdb")] = scope.resolve(part).type
    said = result_type(node, tuple(columns.items()))
    known = [label for label in labels if label is not None]
    kinds = {type(label) for label in known}
    if said is not None and not said.startswith("ENUM"):
        return said
    if kinds == {str}:
        return "VARCHAR"
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    if kinds == {dt.date}:
        return "DATE"
    return "TIMESTAMP" if kinds == {dt.datetime} else "DOUBLE" if kinds else "VARCHAR"
