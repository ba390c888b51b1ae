"""Predicates: an SQL Boolean expression as the pair "is TRUE" / "is FALSE" of conditions.

The expression is admitted node by node; whatever is not listed here is refused. All atoms
are total: they compare a raw value with a constant of the column's own kind, so that no row
can make the scan fail. Kleene's logic is in how the pairs combine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import DataError
from dpsql.sql.literals import fold, is_constant
from dpsql.sql.statements import refuse
from dpsql.workload.batch import Column
from dpsql.workload.conditions import (
    FALSE,
    TRUE,
    And,
    Compare,
    Condition,
    Like,
    LineAtom,
    OpaqueAtom,
    Or,
    Predicate,
    complement,
    conjunction,
    gather,
    negate,
    union,
)
from dpsql.workload.lines import Interval, Scalar, plain, scientific, to_float

EVERYWHERE: tuple[Interval, ...] = ((None, None),)
Resolve = Callable[[exp.Column], Column]
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


@dataclass(frozen=True)
class Truth:
    """Where an expression is TRUE and where it is FALSE; NULL elsewhere."""

    true: Condition
    false: Condition


def not_null(column: Column) -> Condition:
    """``column IS NOT NULL``; TRUE where the policy rules NULL out."""
    return LineAtom(column.name, EVERYWHERE) if column.policy.nulls else TRUE


def truth(node: exp.Expression, resolve: Resolve) -> Truth:
    """The pair of conditions of a Boolean expression. Raises SQLError on anything not admitted."""
    if isinstance(node, exp.Paren):
        return truth(node.this, resolve)
    if isinstance(node, exp.And | exp.Or):
        return _connective(node, resolve)
    if isinstance(node, exp.Not):
        inner = truth(node.this, resolve)
        return Truth(inner.false, inner.true)
    if isinstance(node, exp.Boolean):
        return Truth(TRUE, FALSE) if node.this else Truth(FALSE, TRUE)
    if isinstance(node, exp.Null):
        return Truth(FALSE, FALSE)
    if isinstance(node, exp.Column):
        return _boolean_column(node, resolve)
    if isinstance(node, exp.Is):
        return _is(node, resolve)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return _distinct(node, resolve)
    if isinstance(node, exp.Between):
        return _between(node, resolve)
    if isinstance(node, exp.In):
        return _in(node, resolve)
    if isinstance(node, exp.Like):
        return _like(node, resolve)
    operator = _OPERATORS.get(type(node))
    if operator is not None:
        return _comparison(node, operator, resolve)
    raise refuse(_why_not(node), node)


def _why_not(node: exp.Expression) -> str:
    if isinstance(node, exp.Subquery | exp.Exists | exp.Select):
        return "a subquery depends on other rows, so it is not private; split it into views of its own"
    if isinstance(node, exp.AggFunc | exp.Window):
        return "an aggregate in a condition depends on other rows; filter the released view instead"
    if isinstance(node, exp.ILike | exp.RegexpLike | exp.SimilarTo | exp.Glob | exp.Escape):
        return f"{node.key.upper()} is not admitted; write LIKE with a constant pattern"
    return (
        f"{node.sql('duckdb')[:60]} is not an admitted condition; use =, <>, <, <=, >, >=, BETWEEN, IN, LIKE, "
        "IS [NOT] NULL over a column and constants, with AND, OR, NOT"
    )


def _connective(node: exp.And | exp.Or, resolve: Resolve) -> Truth:
    # Long chains parse into left-deep trees: walk them without recursion.
    parts, stack = [], [node.this, node.expression][::-1]
    while stack:
        part = stack.pop()
        if type(part) is type(node):
            stack.extend([part.expression, part.this])
        else:
            parts.append(truth(part, resolve))
    every, some = [p.true for p in parts], [p.false for p in parts]
    if isinstance(node, exp.And):
        return Truth(gather(And, *every), gather(Or, *some))
    return Truth(gather(Or, *every), gather(And, *some))


def _column(node: exp.Expression, resolve: Resolve) -> Column | None:
    while isinstance(node, exp.Paren):
        node = node.this
    return resolve(node) if isinstance(node, exp.Column) else None


def _expect_column(node: exp.Expression, resolve: Resolve, what: str) -> Column:
    column = _column(node, resolve)
    if column is None:
        raise refuse(f"{what} needs a column on its left, not {node.sql('duckdb')[:60]}", node)
    return column


def _atom(column: Column, intervals: tuple[Interval, ...]) -> Truth:
    """TRUE on the intervals, FALSE elsewhere, NULL on NULL."""
    inside = LineAtom(column.name, intervals) if intervals else FALSE
    rest = complement(intervals) if intervals else EVERYWHERE
    return Truth(inside, LineAtom(column.name, rest) if rest else FALSE)


def _opaque(predicate: Predicate) -> Truth:
    return Truth(OpaqueAtom(predicate, frozenset([True])), OpaqueAtom(predicate, frozenset([False])))


def _position(column: Column, value: Scalar, node: exp.Expression) -> Interval | None:
    try:
        return column.line.point(value)
    except DataError as error:
        raise refuse(f"{column.name}: {error}", node) from None


def _constant(node: exp.Expression, column: Column) -> Scalar:
    if not is_constant(node):
        raise refuse(f"{column.name} is compared with {node.sql('duckdb')[:60]}; compare it with a constant", node)
    return fold(node)


def _boolean_column(node: exp.Column, resolve: Resolve) -> Truth:
    column = resolve(node)
    if column.line.kind != "boolean":
        raise refuse(f"{column.name} holds {column.type}; a condition compares it with a constant", node)
    point = column.line.point(True)
    return _atom(column, () if point is None else (point,))


def _is(node: exp.Is, resolve: Resolve) -> Truth:
    """IS [NOT] NULL of a column or condition, IS [NOT] TRUE or FALSE of a condition: never NULL."""
    wanted = node.expression
    if isinstance(wanted, exp.Null):
        column = _column(node.this, resolve)
        if column is not None:
            holds: Condition = LineAtom(column.name, (), True)
        else:
            inner = truth(node.this, resolve)
            holds = conjunction(negate(inner.true), negate(inner.false))
    elif isinstance(wanted, exp.Boolean):
        inner = truth(node.this, resolve)
        holds = inner.true if wanted.this else inner.false
    else:
        raise refuse("IS takes NULL, TRUE or FALSE", node)
    return Truth(holds, negate(holds))


def _distinct(node: exp.Expression, resolve: Resolve) -> Truth:
    left, right = node.this, node.expression
    if is_constant(left):
        left, right = right, left
    column = _expect_column(left, resolve, "IS DISTINCT FROM")
    value = _constant(right, column)
    if value is None:
        same: Condition = LineAtom(column.name, (), True)
    else:
        point = _position(column, value, node)
        same = LineAtom(column.name, (point,)) if point is not None else FALSE
    pair = Truth(same, negate(same))
    return pair if isinstance(node, exp.NullSafeEQ) else Truth(pair.false, pair.true)


def _comparison(node: exp.Expression, operator: str, resolve: Resolve) -> Truth:
    left, right = node.this, node.expression
    if is_constant(left) and is_constant(right):
        raise refuse("both sides are constants; leave the condition out or write TRUE or FALSE", node)
    if is_constant(left):
        left, right, operator = right, left, _FLIPPED[operator]
    column = _expect_column(left, resolve, operator)
    other = _column(right, resolve)
    if other is not None:
        return _column_pair(column, operator, other, node)
    value = _constant(right, column)
    _check_ordered(column, node)
    if value is None:
        return Truth(FALSE, FALSE)
    return _atom(column, _compared(column, operator, value, node))


def _compared(column: Column, operator: str, value: Scalar, node: exp.Expression) -> tuple[Interval, ...]:
    point = _position(column, value, node)
    if operator == "=":
        return () if point is None else (point,)
    if operator == "<>":
        return EVERYWHERE if point is None else complement((point,))
    position = column.line.place(value)
    below = operator in {"<", "<="}
    cut = column.line.below(position) if operator in {"<", ">="} else column.line.above(position)
    interval = column.line.clip((None, cut) if below else (cut, None))
    return () if interval is None else (interval,)


def _check_ordered(column: Column, node: exp.Expression) -> None:
    if not column.line.ordered:
        raise refuse(f"{column.name} holds {column.type}; only IS [NOT] NULL is admitted for it", node)


def _column_pair(left: Column, operator: str, right: Column, node: exp.Expression) -> Truth:
    _check_ordered(left, node)
    same = left.line.kind == right.line.kind and (left.type == right.type or left.line.kind == "integer")
    # DuckDB casts UHUGEINT to HUGEINT or DOUBLE beside a signed column: the one fails on a row, the other rounds.
    wide = [column.line.low for column in (left, right) if column.line.kind == "integer"]
    mixed = "UHUGEINT" in {left.line.type, right.line.type} and any(wide)
    if not same or mixed or left.type.upper().startswith("ENUM"):
        raise refuse(
            f"{left.name} ({left.type}) and {right.name} ({right.type}) are of different types; "
            "only columns of one type are compared",
            node,
        )
    return _opaque(Compare(left.name, operator, right.name))


def _between(node: exp.Between, resolve: Resolve) -> Truth:
    if node.args.get("symmetric"):
        raise refuse("BETWEEN SYMMETRIC is not admitted; write the lower bound first", node)
    column = _expect_column(node.this, resolve, "BETWEEN")
    _check_ordered(column, node)
    sides = []
    bounds = _of_one_type(column, [_constant(node.args[side], column) for side in ("low", "high")], node)
    for value, operator in zip(bounds, (">=", "<="), strict=True):
        sides.append(Truth(FALSE, FALSE) if value is None else _atom(column, _compared(column, operator, value, node)))
    low, high = sides
    if isinstance(low.true, LineAtom) and isinstance(high.true, LineAtom):
        # One interval instead of an AND of two keeps big batches small.
        start, stop = low.true.intervals[0][0], high.true.intervals[0][1]
        if start is None or stop is None or start < stop:
            return _atom(column, ((start, stop),))
        return _atom(column, ())
    return Truth(gather(And, low.true, high.true), gather(Or, low.false, high.false))


def _of_one_type(column: Column, values: list[Scalar], node: exp.Expression) -> list[Scalar]:
    """The values as the one type that DuckDB gives a list: beside a DOUBLE such as 1e3 all are DOUBLE.

    Numbers of a REAL line become floats, which keeps them from being rounded to FLOAT. On integers and
    decimals a value is refused that DOUBLE might hold otherwise, or that might equal another value there.
    """
    double = next((value for value in values if isinstance(value, float)), None)
    if double is None or not column.line.numeric:
        return values
    unified: list[Scalar] = []
    for value in values:
        if isinstance(value, int | Fraction) and not isinstance(value, bool):
            if column.line.kind != "real" and not (
                _divides_exactly(value) and column.line.same_as_double(float(value))
            ):
                raise refuse(
                    f"{column.name}: DuckDB compares a list that holds {scientific(double)} as DOUBLE, which rounds; "
                    f"write {plain(double)} instead of {scientific(double)}",
                    node,
                )
            value = to_float(value)
        unified.append(value)
    return unified


def _divides_exactly(value: int | Fraction) -> bool:
    """True where every reader of the decimal finds the same DOUBLE, by one division of whole numbers."""
    return abs(value.numerator) <= 2**53 and value.denominator <= 10**15


def _in(node: exp.In, resolve: Resolve) -> Truth:
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
        raise refuse("IN takes a list of constants; a subquery depends on other rows", node)
    column = _expect_column(node.this, resolve, "IN")
    _check_ordered(column, node)
    values = _of_one_type(column, [_constant(part, column) for part in node.expressions], node)
    points = [_position(column, value, node) for value in values if value is not None]
    pair = _atom(column, union([point for point in points if point is not None]))
    # x IN (..., NULL) is TRUE or NULL, never FALSE.
    return Truth(pair.true, FALSE) if None in values else pair


def _like(node: exp.Like, resolve: Resolve) -> Truth:
    pair = _matches(node, resolve)
    # The parser marks NOT LIKE and !~~ on the node itself.
    return Truth(pair.false, pair.true) if node.args.get("negate") else pair


def _matches(node: exp.Like, resolve: Resolve) -> Truth:
    column = _expect_column(node.this, resolve, "LIKE")
    pattern = _constant(node.expression, column)
    if pattern is None:
        return Truth(FALSE, FALSE)
    if column.line.kind != "text" or not isinstance(pattern, str):
        raise refuse(f"LIKE compares text with a constant string; {column.name} holds {column.type}", node)
    if column.closed is not None and column.policy.values is not None:
        matches = like(pattern)
        hits = [column.line.point(v) for v in column.policy.values if isinstance(v, str) and matches(v)]
        return _atom(column, union([hit for hit in hits if hit is not None]))
    prefix = "".join(itertools.takewhile(lambda character: character not in "%_", pattern))
    rest = pattern[len(prefix) :]
    if not rest:
        point = column.line.point(prefix)
        return _atom(column, () if point is None else (point,))
    if set(rest) == {"%"}:
        after = _after_prefix(prefix)
        return _atom(column, (((prefix, 0) if prefix else None, (after, 0) if after else None),))
    return _opaque(Like(column.name, pattern))


def _after_prefix(prefix: str) -> str:
    """The least string above all that begin with ``prefix``; empty where there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # Surrogates are no characters: step over them.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return ""


def like(pattern: str) -> Callable[[str], bool]:
    """DuckDB's LIKE without ESCAPE as a Python test: % any run, _ one character, binary comparison.

    Cost: at worst len(value) * len(pattern), whatever the pattern.
    """
    return lambda value: _fits(value, pattern)


def _fits(value: str, pattern: str) -> bool:
    """Greedy matching: on a mismatch only the last % needs to take one character more.

    An earlier % never does: what stands between two % matches at its first place if anywhere.
    """
    at = read = 0
    last, resume = -1, 0
    while at < len(value):
        wanted = pattern[read] if read < len(pattern) else ""
        if wanted == "%":
            last, resume = read, at
            read += 1
        elif wanted and wanted in ("_", value[at]):
            at += 1
            read += 1
        elif last >= 0:
            resume += 1
            at, read = resume, last + 1
        else:
            return False
    return not pattern[read:].strip("%")
