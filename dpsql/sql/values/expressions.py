"""Expressions: a value expression of SQL as a typed tree of total functions, or a refusal.

An expression is admitted node by node. Where DuckDB gives a value the tree gives the same; where it would raise
(overflow, division by zero, a cast that does not fit) there is none, which is NULL, by forms that compare the operands
beforehand. Operands are never cast implicitly from text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import name_of, reads_as_it_is
from dpsql.sql.values import arithmetic, calendar, functions
from dpsql.sql.values.casts import cast
from dpsql.sql.values.evaluation import evaluate
from dpsql.sql.values.literals import MOST, check_exact, fold, is_constant, is_literal_cast
from dpsql.sql.values.row_cost import check_size
from dpsql.sql.values.scope import Scope
from dpsql.sql.values.typed import (
    DAYS,
    MOMENTS,
    Path,
    Typed,
    aligned,
    always_null,
    clipped,
    constant_of,
    exact,
    flat,
    settled,
    type_of,
    whole,
)
from dpsql.workloads.expr import conditions
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, Like, LineAtom, OpaqueAtom
from dpsql.workloads.expr.lines import Line, line_of, to_float
from dpsql.workloads.expr.values import (
    Call,
    CaseValue,
    Cast,
    Coalesce,
    Compared,
    Constant,
    Every,
    Is,
    Matches,
    Some,
    Stored,
    Test,
    Unscaled,
    Value,
    Within,
)

MAX_DEPTH = 100

_BINARY: dict[type[exp.Expr], Callable[[Typed, Typed, exp.Expr], Typed]] = {
    exp.Mul: arithmetic.multiplied,
    exp.IntDiv: arithmetic.quotient,
    exp.Mod: arithmetic.remainder,
}
# Conditions, whose value is a BOOLEAN.
_CONDITIONS = (
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.NullSafeEQ),
    *(exp.NullSafeNEQ, exp.Between, exp.In, exp.Like, exp.ILike, exp.Escape),
)


def value_of(node: exp.Expr, scope: Scope, *, clamped: bool = False) -> Typed:
    """The typed tree of an expression over the columns in scope.

    ``clamped``: columns enter clamped to their declared bounds and rounded to their declared step, for
    SUM; otherwise raw. Raises SQLError with what to write instead.
    """
    found = with_intervals(node, scope, clamped=clamped)
    if found.kind == "interval":
        raise refuse(
            f"{shown(node)} is an interval; write epoch({shown(node)}) for its seconds, or compare it with INTERVAL '1 "
            "hour'",
            node,
        )
    return found


def with_intervals(node: exp.Expr, scope: Scope, *, clamped: bool = False) -> Typed:
    """``value_of``, which may be an interval."""
    found = _Reader(scope, clamped).read(node, 0)
    check_size(found.value, node)
    return found


def column_of(node: exp.Expr, scope: Scope) -> Column:
    """An expression as a column: a stored one as it is, any other registered as a computed column."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return scope.resolve(node)
    typed = value_of(node, scope)
    return registered(typed, node, scope)


def registered(typed: Typed, node: exp.Expr, scope: Scope) -> Column:
    """The column of a typed value; of an exact number, one whose line holds the number in its unit."""
    typed = settled(typed)
    line, value, nulls = typed.line, typed.value, typed.nulls
    if typed.kind == "exact":
        level = flat(typed, node)
        if level.column is not None and level.unit == Fraction(1, 10**level.column.line.scale):
            return level.column
        value, line, nulls = level.value, replace(level.line, unit=level.unit), level.nulls
        kind = type_of(level.low, level.high) or "HUGEINT"
        value, line = whole(value, kind), replace(line, type=kind)
    elif typed.column is not None:
        return typed.column
    check_size(value, node)
    return scope.computed.column(value, line, line.type, name_of(node), nulls=nulls)


class _Reader:
    """Reads one expression; ``clamped`` as ``value_of``."""

    def __init__(self, scope: Scope, clamped: bool) -> None:
        self.scope = scope
        self.clamped = clamped

    def read(self, node: exp.Expr, depth: int) -> Typed:
        """The typed value of a node."""
        found = self._read(node, depth)
        if found.kind == "exact":
            check_exact(found.unit, node)
            check_exact(found.offset, node)
        if any(abs(end) > MOST or end.denominator > MOST for end in found.bounds or ()):
            return replace(found, bounds=None)  # past every DOUBLE: it may be infinite
        return found

    def _read(self, node: exp.Expr, depth: int) -> Typed:
        if not isinstance(node, exp.Expr):
            raise refuse("a function or operator of the statement lacks an operand; write it", code="syntax")
        if depth > MAX_DEPTH:
            raise refuse(f"an expression nests deeper than {MAX_DEPTH} operations; split it", node, code="too-large")
        if is_constant(node) and not _casts(node) and not isinstance(node, exp.Interval):
            return constant_of(fold(node))

        def inner(part: exp.Expr) -> Typed:
            return self.read(part, depth + 1)

        if isinstance(node, exp.Paren):
            return inner(node.this)
        if isinstance(node, exp.Column):
            return self.leaf(self.scope.resolve(node), node)
        if isinstance(node, exp.Add | exp.Sub):
            return self._sum(node, inner)
        if isinstance(node, exp.Neg):
            return arithmetic.negated(inner(node.this), node)
        if isinstance(node, exp.Div):
            return arithmetic.divided(inner(node.this), inner(node.expression), node, clamped=self.clamped)
        binary = _BINARY.get(type(node))
        if binary is not None:
            return binary(inner(node.this), inner(node.expression), node)
        if isinstance(node, exp.Case | exp.If):
            return self._case(node, inner)
        if isinstance(node, exp.Coalesce):
            return self._coalesce([inner(part) for part in (node.this, *node.expressions)], node)
        if isinstance(node, exp.Nullif):
            return self._nullif(inner(node.this), inner(node.expression), node)
        if isinstance(node, exp.Cast):
            return cast(inner(node.this), node)
        if isinstance(node, _CONDITIONS):
            return self.condition(node)
        return functions.call(node, inner)

    def leaf(self, column: Column, node: exp.Expr) -> Typed:
        """A column as it stands, or clamped."""
        value = _read(column)
        line, nulls = column.line, column.policy.nulls
        gap = () if column.policy.lower is not None and column.policy.upper is not None else (column.name,)
        found: Typed
        if line.kind in {"integer", "decimal"}:
            low, high = line.low or 0, line.high or 0
            if line.kind == "decimal" and isinstance(value, Stored):
                value = Unscaled(value, type_of(low, high) or "HUGEINT")
            unit = line.unit if line.unit is not None else Fraction(1, 10**line.scale)
            path = Path(column, ((low, high),), lambda n: n)
            found = Typed("exact", value, line.kind, low, high, unit, nulls=nulls, gap=gap, column=column, path=path)
            if line.unit is not None and line.unit != 1:
                found = replace(found, family="decimal")
        elif line.kind == "real":
            if line.single and not self.clamped:
                raise refuse(
                    f"{shown(node)} is FLOAT, which DuckDB computes in 32 bits; write CAST({shown(node)} AS DOUBLE)",
                    node,
                )
            found = Typed("real", value, "double", nulls=nulls, gap=gap, column=column)
        elif line.kind in {"date", "timestamp"}:
            ends = DAYS if line.kind == "date" else MOMENTS
            path = Path(column, (ends,), lambda n: n)
            found = Typed(line.kind, value, low=ends[0], high=ends[1], nulls=nulls, gap=gap, column=column, path=path)
        elif line.kind == "timestamptz":
            found = Typed(line.kind, value, low=MOMENTS[0], high=MOMENTS[1], nulls=nulls, gap=gap, column=column)
        elif line.kind in {"text", "boolean"}:
            wide = (column.name,) if line.kind == "text" else ()
            found = Typed(line.kind, value, nulls=nulls, gap=wide, column=column)
        else:
            raise refuse(f"{shown(node)} holds {column.type}; only IS [NOT] NULL is admitted for it", node)
        if self.clamped and not gap and not reads_as_it_is(node):
            return clamp(found, column, node)
        return found

    def condition(self, node: exp.Expr) -> Typed:
        """A condition as a BOOLEAN value."""
        pair = self.scope.truth(node)
        if pair.true == TRUE or pair.false == TRUE:
            return constant_of(pair.true == TRUE)
        true = lowered(pair.true, self.scope)
        false = lowered(pair.false, self.scope)
        branches = ((true, Constant(True, "BOOLEAN")), (false, Constant(False, "BOOLEAN")))
        return Typed("boolean", CaseValue(branches, None, "BOOLEAN"))

    def _sum(self, node: exp.Expr, inner: Callable[[exp.Expr], Typed]) -> Typed:
        """A chain of + and -, walked without recursion."""
        links, first = [], node
        while isinstance(first, exp.Add | exp.Sub) and not is_constant(first):
            links.append(first)
            first = first.this
        total = inner(first)
        for link in reversed(links):
            right = link.expression
            if isinstance(right, exp.Interval):
                total = calendar.shifted_by(total, right, link, forward=isinstance(link, exp.Add))
                continue
            other = inner(right)
            work = functions.plus if isinstance(link, exp.Add) else functions.minus
            total = work(total, other, link)
        return total

    def _case(self, node: exp.Case | exp.If, inner: Callable[[exp.Expr], Typed]) -> Typed:
        tests: list[Test] = []
        values: list[Typed] = []
        default: Typed | None = None
        for condition, branch in branches_of(node):
            # What no row reaches must be admitted, too: a refusal depends on what is written alone.
            holds = TRUE if condition is None else self.scope.truth(condition).true
            value = inner(branch)
            if default is not None or holds == FALSE:
                continue
            if holds == TRUE:
                default = value
                continue
            tests.append(lowered(holds, self.scope))
            values.append(value)
        if not tests:
            if default is None:
                raise always_null(node)
            return default
        found, common = aligned([*values, default or constant_of(None)], node)
        kind = _type_of(found, common)
        last = None if default is None else found[-1]
        return replace(common, value=CaseValue(tuple(zip(tests, found, strict=False)), last, kind))

    def _coalesce(self, of: Sequence[Typed], node: exp.Expr) -> Typed:
        if len(of) == 1:
            return of[0]
        found, common = aligned(list(of), node)
        value = Coalesce(tuple(found), _type_of(found, common))
        return replace(common, value=value, nulls=all(t.nulls for t in of))

    def _nullif(self, a: Typed, b: Typed, node: exp.Expr) -> Typed:
        if b.kind == "null":
            return a
        (x, y), common = aligned([a, b], node)
        kind = _type_of([x, y], common)
        value = CaseValue(((Compared(x, "=", y), Constant(None, kind)),), x, kind)
        if common.kind == "exact":
            level = flat(a, node, common.unit)
            low, high = level.low, level.high
            if isinstance(y, Constant) and high > low:
                # Taking an end away leaves the next one: NULLIF(n, 0) of 0 to 9 is 1 to 9.
                low, high = low + (low == y.value), high - (high == y.value)
            return replace(common, value=value, low=low, high=high, family=a.family, nulls=True, gap=a.gap)
        return replace(
            common, value=value, bounds=a.bounds if a.kind == "real" else common.bounds, nulls=True, gap=a.gap
        )


def _casts(node: exp.Expr) -> bool:
    """A constant under a CAST to another type than a date's: its type matters, so that it is no literal."""
    return any(isinstance(part, exp.Cast) and not is_literal_cast(part) for part in node.walk())


def _type_of(values: Sequence[Value], common: Typed) -> str:
    return values[0].type if common.kind == "exact" else common.line.type


def branches_of(node: exp.Case | exp.If) -> list[tuple[exp.Expr | None, exp.Expr]]:
    """(condition, value) of CASE's branches in order; the condition is None for ELSE, the last."""
    found: list[tuple[exp.Expr | None, exp.Expr]] = []
    if isinstance(node, exp.If):
        found.append((node.this, node.args["true"]))
        if node.args.get("false") is not None:
            found.append((None, node.args["false"]))
        return found
    for branch in node.args.get("ifs") or []:
        condition = branch.this
        if node.this is not None:
            # CASE x WHEN 1: the parts keep their places in the text.
            condition = exp.EQ(this=node.this.copy(), expression=branch.this.copy())
        found.append((condition, branch.args["true"]))
    if node.args.get("default") is not None:
        found.append((None, node.args["default"]))
    return found


def row_value(argument: exp.Expr, scope: Scope) -> tuple[Value, Line, Column]:
    """What a row of a unit has of an expression, its line and its column; SQLError where rows have no order by it."""
    column = column_of(argument, scope)
    line = line_of("DOUBLE") if column.line.single else column.line
    if line.kind not in {"integer", "decimal", "real", "boolean", "date", "timestamp", "text"}:
        cast = "which is UTC" if line.kind == "timestamptz" else "or to another type that has an order"
        raise refuse(
            f"{shown(argument)} holds {column.type}, by which the rows of a unit are not compared; write "
            f"CAST({shown(argument)} AS TIMESTAMP), {cast}",
            argument,
            code="per-unit",
        )
    return _read(column), line, column


def lowered(condition: Condition, scope: Scope) -> Test:
    """A test that is TRUE where the condition holds, and FALSE or NULL elsewhere."""
    if isinstance(condition, conditions.Constant):
        return Every(()) if condition.truth else Some(())
    if isinstance(condition, LineAtom):
        column = scope.column(condition.column)
        return Within(_read(column), column.line, condition.intervals, condition.on_null)
    if isinstance(condition, OpaqueAtom):
        predicate = condition.predicate
        if isinstance(predicate, Like):
            return Is(Matches(_read(scope.column(predicate.column)), predicate.pattern), condition.truths)
        left, right = scope.column(predicate.left), scope.column(predicate.right)
        return Is(Compared(_read(left), predicate.operator, _read(right)), condition.truths)
    parts = tuple(lowered(part, scope) for part in condition.operands)
    return Every(parts) if isinstance(condition, And) else Some(parts)


def _read(column: Column) -> Value:
    return column.value if column.value is not None else Stored(column.name, column.type)


def clamp(t: Typed, column: Column, node: exp.Expr) -> Typed:
    """A column's value within its declared bounds, on its declared grid."""
    policy = column.policy
    if t.kind in {"date", "timestamp", "timestamptz"}:
        low, high = (int(column.line.place(end)) for end in (policy.lower, policy.upper))
        return replace(
            t, value=_between(t.value, column.line.type, low, high), low=low, high=high, column=None, path=None
        )
    if not t.numeric:
        return t
    lower, upper = column.ends
    if t.kind == "exact":
        low, high = max(t.low, -(-lower // t.unit)), min(t.high, upper // t.unit)
        if low > high:
            raise refuse(f"{policy.where} holds no value of {column.type} between its bounds; correct the policy", node)
        value = _between(t.value, t.value.type, low, high)
        level = replace(t, value=value, low=low, high=high, column=None, path=None)
        stride = None if policy.step is None else policy.step / t.unit
        if stride is None or stride.denominator != 1 or stride == 1:
            return level
        steps = (high - low) // int(stride)
        kind = type_of(low, high, low - high) or "HUGEINT"
        up = Call(
            "+", (Call("-", (whole(value, kind), Constant(low, kind)), kind), Constant(int(stride) // 2, kind)), kind
        )
        index = Call("//", (up, Constant(int(stride), kind)), kind)
        return replace(level, value=index, low=0, high=steps + 1, unit=policy.step or t.unit, offset=low * t.unit)
    below, above = Constant(to_float(lower), "DOUBLE"), Constant(to_float(upper), "DOUBLE")
    raw = t.value
    if policy.step is None:
        return replace(t, value=clipped(raw, below, above, (below, above)), bounds=(lower, upper), column=None)
    steps = int((upper - lower) / policy.step)
    least, most = Constant(0, "BIGINT"), Constant(steps, "BIGINT")
    index = Call("/", (Call("-", (raw, below), "DOUBLE"), Constant(to_float(policy.step), "DOUBLE")), "DOUBLE")
    quotient = Cast(Call("round", (index,), "DOUBLE"), "BIGINT", tries=True)
    inside = CaseValue(
        ((Compared(quotient, ">", most), most), (Compared(quotient, ">=", least), quotient)), least, "BIGINT"
    )
    value = CaseValue(
        (
            (Compared(raw, "<=", below), least),
            (Compared(raw, ">=", above), most),
            (Compared(raw, ">", below), inside),
        ),
        None, "BIGINT",
    )  # fmt: skip
    return replace(exact(value, 0, steps, "double", t, unit=policy.step), offset=lower)


def _between(value: Value, kind: str, low: int, high: int) -> Value:
    below, above = Constant(low, kind), Constant(high, kind)
    return clipped(value, below, above, (below, above))


def lower(text: str) -> str:
    """A constant text in lower case, as DuckDB lowers it."""
    value = Call("lower", (Constant(text, "VARCHAR"),), "VARCHAR")
    return str(evaluate(value, "text", Stored("x", "VARCHAR"), line_of("VARCHAR"), ("",))[0])
