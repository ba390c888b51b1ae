"""Operands: what a condition compares, as something whose line can be cut.

A side of a comparison is a stored column, or an expression. A rising function of one column
(``age // 10``, ``year(ts)``, ``price * 2 - 5``) is cut on that column's own line, by bisection over
whole numbers; a function of one column with a closed domain is computed on its public values; any
other becomes a computed column with a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import DataError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values import expressions
from dpsql.sql.values.evaluation import evaluate
from dpsql.sql.values.row_cost import check_size
from dpsql.sql.values.scope import Scope, Truth
from dpsql.sql.values.typed import Path, Typed, always_null
from dpsql.workloads.expr.batch import Column, constant
from dpsql.workloads.expr.conditions import FALSE, TRUE, Condition, LineAtom, complement, union
from dpsql.workloads.expr.lines import Interval, Line, Scalar, rounds
from dpsql.workloads.expr.values import stored

EVERYWHERE: tuple[Interval, ...] = ((None, None),)
Intervals = tuple[Interval, ...]


@dataclass(frozen=True)
class Operand:
    """A column, or an expression over one: ``preimage`` turns intervals of ``line`` into those of the column.

    Numbers are placed at ``(number - offset) / unit``. ``plain`` says that it is the column itself. ``node`` is what a
    message quotes of it, None where it is the column's name.
    """

    node: exp.Expr | None
    line: Line
    column: Column
    preimage: Callable[[Intervals], Intervals] | None = None
    unit: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    @property
    def name(self) -> str:
        """What it is called in a message."""
        return self.column.name if self.node is None else shown(self.node)

    @property
    def plain(self) -> bool:
        """True for a column as it stands."""
        return self.preimage is None

    @property
    def domain(self) -> Intervals:
        """Where on the column's line the expression has a value."""
        return EVERYWHERE if self.preimage is None else self.preimage(EVERYWHERE)

    @property
    def null(self) -> Condition:
        """The rows where the expression is NULL."""
        return LineAtom(self.column.name, complement(self.domain), True)

    @property
    def nonnull(self) -> Condition:
        """The rows where it is not; TRUE where NULL is ruled out."""
        domain = self.domain
        if domain == EVERYWHERE and not self.column.policy.nulls:
            return TRUE
        return LineAtom(self.column.name, domain) if domain else FALSE

    def within(self, intervals: Intervals) -> Truth:
        """TRUE on the intervals of the expression's line, FALSE elsewhere, NULL on NULL."""
        return Truth(self._atom(intervals), self._atom(complement(intervals) if intervals else EVERYWHERE))

    def _atom(self, intervals: Intervals) -> Condition:
        found = intervals if self.preimage is None or not intervals else self.preimage(intervals)
        return LineAtom(self.column.name, found) if found else FALSE

    def compared(self, operator: str, value: Scalar, node: exp.Expr) -> Intervals:
        """The intervals of the line where ``expression operator value`` is TRUE."""
        try:
            position = self._place(value)
        except DataError as error:
            raise refuse(f"{self.name}: {error}", node, code="mixed-types") from None
        if self.unit < 0:
            operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        line = self.line
        if operator in {"=", "<>"}:
            point = line.clip((line.below(position), line.above(position)))
            if operator == "=":
                return () if point is None else (point,)
            return EVERYWHERE if point is None else complement((point,))
        cut = line.below(position) if operator in {"<", ">="} else line.above(position)
        interval = line.clip((None, cut) if operator in {"<", "<="} else (cut, None))
        return () if interval is None else (interval,)

    def _place(self, value: Scalar) -> Fraction | float | str:
        if self.unit == 1 and not self.offset:
            return self.line.place(value)
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
            raise DataError("the expression is a number; compare it with a number")
        if isinstance(value, float) and not (value.is_integer() and abs(value) <= 2**53 and self._narrow):
            raise rounds(value)
        return (Fraction(value) - self.offset) / self.unit

    @property
    def _narrow(self) -> bool:
        ends = [self.unit * (self.line.low or 0) + self.offset, self.unit * (self.line.high or 0) + self.offset]
        return max(map(abs, ends)) <= 2**53


def operand_of(node: exp.Expr, scope: Scope, *, reduced: bool = True) -> Operand:
    """The operand of a side of a comparison.

    ``reduced``: cut another column's line where that is possible; otherwise the expression is a column.
    """
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return plain_operand(scope.resolve(node), node)
    return typed_operand(expressions.value_of(node, scope), node, scope, reduced=reduced)


def plain_operand(column: Column, node: exp.Expr | None = None) -> Operand:
    """A column that is compared as it stands; ``node`` as in ``Operand``."""
    return Operand(node, column.line, column)


def typed_operand(t: Typed, node: exp.Expr, scope: Scope, *, reduced: bool = True) -> Operand:
    """The operand of a typed expression."""
    if t.kind == "null":
        raise always_null(node)
    if reduced and t.path is not None:
        path = t.path
        return Operand(node, t.line, path.column, lambda found: _preimage(path, found), t.unit, t.offset)
    if reduced:
        closed = _closed(t, node, scope)
        if closed is not None:
            return closed
    return plain_operand(expressions.registered(t, node, scope), node)


def _closed(t: Typed, node: exp.Expr, scope: Scope) -> Operand | None:
    """An expression of one column whose values are declared, with no others: computed on them."""
    parts = stored(t.value)
    column = scope.computed.holding(parts[0]) if len(parts) == 1 else None
    if column is None or column.closed is None or column.policy.values is None:
        return None
    points = [column.line.point(constant(value)) for value in column.policy.values]
    held = [(point, column.line.low if point[0] is None else point[0][0]) for point in points if point is not None]
    check_size(t.value, node)
    places = (*(at for _, at in held), None)
    *results, at_null = evaluate(t.value, t.kind, parts[0], column.line, places)
    if at_null is not None:
        return None  # such as COALESCE(x, 'none'): rows of no interval have a value

    def preimage(intervals: Intervals) -> Intervals:
        hits = [point for (point, _), result in zip(held, results, strict=True) if _inside(result, intervals)]
        return union(hits)

    return Operand(node, t.line, column, preimage, t.unit, t.offset)


def _inside(result: object, intervals: Intervals) -> bool:
    if result is None:
        return False
    at = (result, 0)
    return any((low is None or low <= at) and (high is None or at < high) for low, high in intervals)


def _preimage(path: Path, intervals: Intervals) -> Intervals:
    """The column's intervals on which the path's function lies in ``intervals``."""
    found: list[Interval] = []
    ends = path.column.line.ends
    for first, last in path.domain:
        for low, high in intervals:
            start = first if low is None else least(path, first, last, low[0] + low[1])
            stop = last + 1 if high is None else least(path, first, last, high[0] + high[1])
            if start < stop:
                found.append((
                    None if start == ends[0] else (start, 0),
                    None if ends[1] is not None and stop == ends[1] + 1 else (stop, 0),
                ))  # fmt: skip
    return union(found)


def least(path: Path, first: int, last: int, value: int, guess: int | None = None) -> int:
    """The least number of the piece whose function value is at least ``value``; last + 1 where there is none.

    ``guess``: a number to be tried first.
    """
    function = path.function
    if guess is not None and first < guess <= last and function(guess - 1) < value <= function(guess):
        return guess
    if function(first) >= value:
        return first
    if function(last) < value:
        return last + 1
    while last - first > 1:
        middle = (first + last) // 2
        if function(middle) >= value:
            last = middle
        else:
            first = middle
    return last
