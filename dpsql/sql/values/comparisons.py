"""Comparisons: of a value with constants, of two values of the row, LIKE and IN, as pairs "is TRUE" / "is FALSE".

All are total: a raw value, or a total expression over raw values, beside a constant of its own kind.
"""

from __future__ import annotations

import datetime as dt
import itertools
from fractions import Fraction

from sqlglot import exp

from dpsql.common.notes import BIAS, Note
from dpsql.errors import SQLError, nearest
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import place
from dpsql.sql.values import expressions
from dpsql.sql.values.arithmetic import subtracted
from dpsql.sql.values.calendar import micros_of, moment_of
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.operands import Operand, operand_of, plain_operand, typed_operand
from dpsql.sql.values.row_cost import LONGEST_WANTED, check_size
from dpsql.sql.values.scope import Scope, Truth
from dpsql.sql.values.typed import Typed, aligned
from dpsql.workloads.expr.batch import Column
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Compare, Like, OpaqueAtom, Or, Predicate, gather, union
from dpsql.workloads.expr.lines import Interval, Scalar, rounds, to_float
from dpsql.workloads.expr.value_sql import expression_of


def matching(column: Column, pattern: str) -> Truth:
    """``column LIKE pattern``: the declared values that match, an interval, or an axis of its own."""
    operand = plain_operand(column)
    if column.closed is not None and column.policy.values is not None:
        hits = [column.line.point(v) for v in column.policy.values if isinstance(v, str) and fits(v, pattern)]
        return operand.within(union([hit for hit in hits if hit is not None]))
    prefix = "".join(itertools.takewhile(lambda character: character not in "%_", pattern))
    rest = pattern[len(prefix) :]
    if not rest:
        point = column.line.point(prefix)
        return operand.within(() if point is None else (point,))
    if set(rest) == {"%"}:
        return operand.within(prefixed(prefix))
    predicate = Like(column.name, pattern)
    return Truth(OpaqueAtom(predicate, frozenset([True])), OpaqueAtom(predicate, frozenset([False])))


def prefixed(prefix: str) -> tuple[Interval, ...]:
    """The texts that begin with ``prefix``."""
    after = _after_prefix(prefix)
    return (((prefix, 0) if prefix else None, (after, 0) if after else None),)


def escaped(pattern: str, sign: str) -> list[tuple[str, bool]] | None:
    """The characters of a pattern of LIKE ... ESCAPE ``sign``, each with whether it is a special % or _.

    None for a pattern that ends with the escape sign.
    """
    found, rest = [], iter(pattern)
    for character in rest:
        if character == sign:
            following = next(rest, None)
            if following is None:
                return None
            found.append((following, False))
        else:
            found.append((character, character in "%_"))
    return found


def _after_prefix(prefix: str) -> str:
    """The least string above all that begin with ``prefix``; empty where there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # Surrogates are no characters: step over them.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return ""


def fits(value: str, pattern: str) -> bool:
    """DuckDB's LIKE without ESCAPE: % any run, _ one character, binary comparison.

    Greedy matching: on a mismatch only the last % needs to take one character more. An earlier % never does: what
    stands between two % matches at its first place if anywhere. Cost: at worst len(value) * len(pattern).
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


_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_EVERY = Truth(TRUE, FALSE)


def comparison(node: exp.Expr, operator: str, scope: Scope) -> Truth:
    left, right = node.this, node.expression
    if any(isinstance(side.unnest(), exp.Interval) for side in (left, right)):
        return _pair(left, operator, right, node, scope)
    if is_constant(left) and is_constant(right):
        return between_constants(left, operator, right, node)
    if is_constant(left):
        left, right, operator = right, left, _FLIPPED[operator]
    if not is_constant(right):
        return _pair(left, operator, right, node, scope)
    operand = operand_of(left, scope)
    value = fold(right)
    _check_ordered(operand, node)
    if value is None:
        return Truth(FALSE, FALSE)
    if operator in {"=", "<>"}:
        note_undeclared(operand, value, node, scope)
    return operand.within(operand.compared(operator, value, node))


def between_constants(left: exp.Expr, operator: str, right: exp.Expr, node: exp.Expr) -> Truth:
    """A comparison of two constants of one type, such as the 1 = 1 that tools begin their conditions with."""
    a, b = fold(left), fold(right)
    if a is None or b is None:
        return Truth(FALSE, FALSE)
    if _constant_kind(a) != _constant_kind(b) or _constant_kind(a) is None:
        raise refuse("two constants of different types are compared; write TRUE or FALSE instead", node)
    below, same = a < b, a == b  # type: ignore[operator]
    holds = {
        **{"=": same, "<>": not same, "<": below, ">=": not below},
        **{"<=": below or same, ">": not (below or same)},
    }[operator]
    return _EVERY if holds else Truth(FALSE, TRUE)


def _constant_kind(value: Scalar) -> str | None:
    """What a constant can be compared with; None for DOUBLE, whose comparison DuckDB rounds first."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | Fraction):
        return "number"
    if isinstance(value, str):
        return "text"
    return type(value).__name__ if isinstance(value, dt.date) else None


def _pair(left: exp.Expr, operator: str, right: exp.Expr, node: exp.Expr, scope: Scope) -> Truth:
    """A comparison of two values of the row."""
    first, second = left.unnest(), right.unnest()
    if isinstance(first, exp.Column) and isinstance(second, exp.Column):
        one, other = (plain_operand(scope.resolve(side), side) for side in (first, second))
        if one.line.unit == other.line.unit and not _meet_in_another_type(one.column, other.column):
            return _column_pair(one, operator, other, node)
    a, b = _met(left, right, node, scope)
    difference = _difference(a, b, node)
    if difference is not None:
        operand = typed_operand(difference, node, scope)
        return operand.within(operand.compared(operator, 0, node))
    sides = _sides(left, right, (a, b), node, scope)
    return _opaque(Compare(sides[0].name, operator, sides[1].name))


def two_sides(left: exp.Expr, right: exp.Expr, node: exp.Expr, scope: Scope) -> tuple[Column, Column]:
    """Two values of the row as columns of one line, as ``node`` compares them."""
    return _sides(left, right, _met(left, right, node, scope), node, scope)


def _met(left: exp.Expr, right: exp.Expr, node: exp.Expr, scope: Scope) -> tuple[Typed, Typed]:
    """Both sides, intervals in microseconds and a date beside a timestamp as its midnight."""
    a, b = (expressions.with_intervals(side, scope) for side in (left, right))
    if a.kind == b.kind == "interval":
        return micros_of(a), micros_of(b)
    if {a.kind, b.kind} == {"date", "timestamp"}:
        return moment_of(a, node), moment_of(b, node)
    return a, b


def _sides(
    left: exp.Expr, right: exp.Expr, read: tuple[Typed, Typed], node: exp.Expr, scope: Scope
) -> tuple[Column, Column]:
    (x, y), common = aligned(list(read), node)
    sides = []
    for value, side in ((x, left), (y, right)):
        check_size(value, side)
        sides.append(scope.computed.column(value, common.line, common.line.type, side.sql("duckdb")))
    return sides[0], sides[1]


def _difference(a: Typed, b: Typed, node: exp.Expr) -> Typed | None:
    """left - right of exact numbers, whose line all comparisons of the two share; None beyond 128 bits."""
    if not a.kind == b.kind == "exact":
        return None
    try:
        found = subtracted(a, b, node)
    except SQLError:
        return None
    # A difference that leaves 128 bits on some row is NULL there, where the two may be compared.
    (low, high), (least, most) = (t.limits or (Fraction(0), Fraction(0)) for t in (a, b))
    return found if found.limits == (low - most, high - least) else None


def _meet_in_another_type(left: Column, right: Column) -> bool:
    """Whether DuckDB casts one column or both, without fail: numbers of different types, a date beside a timestamp."""
    kinds = {left.line.kind, right.line.kind}
    if "UHUGEINT" in {left.line.type, right.line.type} or left.line.single or right.line.single:
        return False
    return len(kinds) > 1 and (kinds <= {"integer", "decimal", "real"} or kinds == {"date", "timestamp"})


def _column_pair(one: Operand, operator: str, other: Operand, node: exp.Expr) -> Truth:
    for operand in (one, other):
        _check_ordered(operand, node)
    left, right = one.column, other.column
    same = left.line.kind == right.line.kind and (left.type == right.type or left.line.kind == "integer")
    # DuckDB casts UHUGEINT to HUGEINT or DOUBLE beside a signed column: the one fails on a row, the other rounds.
    wide = [column.line.low for column in (left, right) if column.line.kind == "integer"]
    mixed = "UHUGEINT" in {left.line.type, right.line.type} and any(wide)
    if not same or mixed or left.type.upper().startswith("ENUM"):
        raise refuse(
            f"{one.name} ({left.type}) and {other.name} ({right.type}) are of different types; "
            "only columns of one type are compared",
            node,
            code="mixed-types",
        )
    return _opaque(Compare(left.name, operator, right.name))


def between(node: exp.Between, scope: Scope) -> Truth:
    if node.args.get("symmetric"):
        raise refuse("BETWEEN SYMMETRIC is not admitted; write the lower bound first", node)
    ends = [node.args[side] for side in ("low", "high")]
    if is_constant(node.this) or not all(is_constant(end) and not isinstance(end, exp.Interval) for end in ends):
        # A value between values: two comparisons.
        low = comparison(exp.GTE(this=node.this.copy(), expression=ends[0].copy()), ">=", scope)
        high = comparison(exp.LTE(this=node.this.copy(), expression=ends[1].copy()), "<=", scope)
        return Truth(gather(And, low.true, high.true), gather(Or, low.false, high.false))
    operand = operand_of(node.this, scope)
    _check_ordered(operand, node)
    values = _of_one_type(operand, [fold(end) for end in ends], node)
    if None not in values and operand.unit > 0:
        # One interval instead of an AND of two keeps big batches small.
        found = [operand.compared(op, value, node) for op, value in zip((">=", "<="), values, strict=True)]
        if all(found):
            start, stop = found[0][0][0], found[1][0][1]
            return operand.within(((start, stop),) if start is None or stop is None or start < stop else ())
    low, high = (
        Truth(FALSE, FALSE) if value is None else operand.within(operand.compared(operator, value, node))
        for value, operator in zip(values, (">=", "<="), strict=True)
    )
    return Truth(gather(And, low.true, high.true), gather(Or, low.false, high.false))


def _of_one_type(operand: Operand, values: list[Scalar], node: exp.Expr) -> list[Scalar]:
    """The values as the one type that DuckDB gives a list: beside a DOUBLE such as 1e3 all are DOUBLE.

    Numbers of a REAL line become floats, which keeps them from being rounded to FLOAT. On integers and
    decimals a value is refused that DOUBLE might hold otherwise, or that might equal another value there.
    """
    line = operand.line
    double = next((value for value in values if isinstance(value, float)), None)
    if double is None or not line.numeric:
        return values
    unified: list[Scalar] = []
    for value in values:
        if isinstance(value, int | Fraction) and not isinstance(value, bool):
            plain_line = operand.plain and line.unit is None
            if line.kind != "real" and not (
                plain_line and _divides_exactly(value) and line.same_as_double(float(value))
            ):
                raise refuse(
                    f"{operand.name}: {rounds(double, 'a list beside it')}",
                    node,
                    code="mixed-types",
                )
            value = to_float(value)
        unified.append(value)
    return unified


def _divides_exactly(value: int | Fraction) -> bool:
    """True where every reader of the decimal finds the same DOUBLE, by one division of whole numbers."""
    return abs(value.numerator) <= 2**53 and value.denominator <= 10**15


def in_list(node: exp.In, scope: Scope) -> Truth:
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
        raise refuse("IN takes a list of constants; a subquery depends on other rows", node, code="subquery")
    if is_constant(node.this):
        raise refuse("IN needs a column or an expression on its left", node)
    operand = operand_of(node.this, scope)
    _check_ordered(operand, node)
    values = _of_one_type(operand, [_constant(part, operand) for part in node.expressions], node)
    points: list[Interval] = []
    for value in values:
        if value is not None:
            note_undeclared(operand, value, node, scope)
            points.extend(operand.compared("=", value, node))
    pair = operand.within(union(points))
    # x IN (..., NULL) is TRUE or NULL, never FALSE.
    return Truth(pair.true, FALSE) if None in values else pair


def like(node: exp.Like | exp.ILike, scope: Scope) -> Truth:
    pair = _matches(node, scope)
    # The parser marks NOT LIKE and !~~ on the node itself.
    return Truth(pair.false, pair.true) if node.args.get("negate") else pair


def _matches(node: exp.Like | exp.ILike, scope: Scope) -> Truth:
    word = "ILIKE" if isinstance(node, exp.ILike) else "LIKE"
    if is_constant(node.this):
        raise refuse(f"{word} needs a column or an expression on its left, not {shown(node.this)}", node)
    subject, pattern = node.this, node.expression
    operand = operand_of(subject, scope, reduced=False)
    found = _constant(pattern, operand)
    if found is None:
        return Truth(FALSE, FALSE)
    if operand.line.kind != "text" or not isinstance(found, str):
        raise refuse(
            f"{word} compares text with a constant string; {operand.name} holds {operand.column.type}",
            node,
            code="mixed-types",
        )
    if len(found.encode()) > LONGEST_WANTED:
        raise refuse(
            f"a pattern has at most {LONGEST_WANTED:,} bytes; write a shorter one, or compare with =",
            node,
            code="too-large",
        )
    if isinstance(node, exp.ILike):
        # DuckDB lowers both sides, by its own tables.
        operand = operand_of(exp.Lower(this=subject.copy()), scope, reduced=False)
        found = expressions.lower(found)
    pair = matching(operand.column, found)
    if isinstance(pair.true, OpaqueAtom):
        scope.computed.patterns[operand.column.name, found] = None
    return pair


def without_escape(node: exp.Escape) -> exp.Expr:
    """LIKE ... ESCAPE as a condition without it: an equality, a prefix, LIKE, or a regular expression of RE2."""
    like, word = node.this, "ILIKE" if isinstance(node.this, exp.ILike) else "LIKE"
    pattern, sign = (fold(part) if is_constant(part) else None for part in (like.expression, node.expression))
    if not isinstance(pattern, str) or not isinstance(sign, str) or len(sign) > 1 or sign.isalnum():
        raise refuse(f"{word} ... ESCAPE takes constants, the second a sign such as '!'", node)
    if word == "ILIKE":
        pattern = expressions.lower(pattern)
    signs = escaped(pattern, sign)
    if signs is None:
        raise refuse(f"the pattern ends with the escape sign {sign}; write a sign after it", node)
    subject = exp.Lower(this=like.this.copy()) if word == "ILIKE" else like.this.copy()
    written = "".join(character for character, _ in signs)
    many = [special for _, special in signs]
    found: exp.Expr
    if not any(many):
        found = exp.EQ(this=subject, expression=exp.Literal.string(written))
    elif signs[-1] == ("%", True) and sum(many) == 1:
        found = exp.StartsWith(this=subject, expression=exp.Literal.string(written[:-1]))
    elif all(special for character, special in signs if character in "%_"):
        found = exp.Like(this=subject, expression=exp.Literal.string(written))
    else:
        found = exp.RegexpFullMatch(this=subject, expression=exp.Literal.string(expression_of(signs)))
    return exp.Not(this=found) if like.args.get("negate") else found


def starts(node: exp.StartsWith, scope: Scope) -> Truth:
    """starts_with(text, 'prefix'), an interval of the text's line."""
    prefix = fold(node.expression)
    if is_constant(node.this) or not isinstance(prefix, str):
        raise refuse("starts_with takes text and a constant string", node, code="mixed-types")
    operand = operand_of(node.this, scope)
    if operand.line.kind != "text":
        raise refuse(f"starts_with takes text; {operand.name} holds {operand.column.type}", node, code="mixed-types")
    return operand.within(prefixed(prefix))


def note_undeclared(operand: Operand, value: Scalar, node: exp.Expr, scope: Scope) -> None:
    """Note a constant that no row can have, as the policy lists all values: a slip of the pen would count 0."""
    column = operand.column
    if not operand.plain or column.closed is None or column.policy.values is None:
        return
    if not set(operand.compared("=", value, node)) & set(column.closed):
        known = nearest(str(value), [str(declared) for declared in column.policy.values])
        written = f"'{value}'" if isinstance(value, str) else str(value)
        where = place(node)
        at = "" if where[0] is None else f" (line {where[0]}, column {where[1]})"
        scope.computed.notes[Note(f"{written} is no declared value of {column.name}{at}: {known}", BIAS)] = None


def _check_ordered(operand: Operand, node: exp.Expr) -> None:
    if not operand.line.ordered:
        raise refuse(f"{operand.name} holds {operand.column.type}; only IS [NOT] NULL is admitted for it", node)


def _constant(node: exp.Expr, operand: Operand) -> Scalar:
    if not is_constant(node):
        raise refuse(f"{operand.name} is compared with {shown(node)}; compare it with a constant", node)
    return fold(node)


def _opaque(predicate: Predicate) -> Truth:
    return Truth(OpaqueAtom(predicate, frozenset([True])), OpaqueAtom(predicate, frozenset([False])))
