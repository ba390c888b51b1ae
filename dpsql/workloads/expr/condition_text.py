"""Conditions and sums as people read them, for plans: made from what is measured, not from the statement's text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from fractions import Fraction

from dpsql.common.quoting import string
from dpsql.workloads.expr.batch import Output, Term
from dpsql.workloads.expr.conditions import TRUE, And, Condition, Constant, Like, LineAtom, OpaqueAtom, complement
from dpsql.workloads.expr.lines import Cut, Interval, Line

_SHOWN = 6  # values of a list, parts of a chain
_EPOCH = dt.datetime(1970, 1, 1)

Lines = Mapping[str, Line]


def output_text(output: Output, lines: Lines) -> str:
    """A private number: ``COUNT(*) where age >= 18``; ``lines`` are those of the columns by name."""
    several = len(output.terms) > 1 or bool(output.constant)
    parts = [_term_text(term, lines, number == 0, several) for number, term in enumerate(output.terms[:_SHOWN])]
    if len(output.terms) > _SHOWN:
        parts.append(f"+ {len(output.terms) - _SHOWN} more terms")
    if output.constant:
        parts.append(f"{'-' if output.constant < 0 else '+'} {_number(abs(output.constant))}")
    return " ".join(parts) or "a constant"


def _term_text(term: Term, lines: Lines, first: bool, several: bool) -> str:
    size = abs(term.coefficient)
    sign = ("-" if term.coefficient < 0 else "") if first else ("- " if term.coefficient < 0 else "+ ")
    times = "" if size == 1 else f"{_number(size)} * "
    if term.column is None:
        what = "COUNT(*)"
    else:
        what = f"SUM({term.column})" if term.power == 1 else f"SUM(({term.column} - its middle)^2)"
    if term.condition != TRUE:
        what = f"{what} where {condition_text(term.condition, lines)}"
        what = f"({what})" if several or times else what
    return f"{sign}{times}{what}"


def condition_text(condition: Condition, lines: Lines) -> str:
    """A condition in SQL's words; long lists are cut short."""
    if isinstance(condition, Constant):
        return "TRUE" if condition.truth else "FALSE"
    if isinstance(condition, LineAtom):
        line = lines.get(condition.column)
        return f"a condition on {condition.column}" if line is None else _atom_text(condition, line)
    if isinstance(condition, OpaqueAtom):
        return _opaque_text(condition)
    word = " AND " if isinstance(condition, And) else " OR "
    parts = []
    for part in condition.operands[:_SHOWN]:
        text = condition_text(part, lines)
        nested = " OR " in text and isinstance(condition, And)
        parts.append(f"({text})" if nested or (not isinstance(part, LineAtom | OpaqueAtom)) else text)
    if len(condition.operands) > _SHOWN:
        parts.append(f"{len(condition.operands) - _SHOWN} more conditions")
    return word.join(parts)


def _opaque_text(atom: OpaqueAtom) -> str:
    predicate = atom.predicate
    if isinstance(predicate, Like):
        shown = f"{predicate.column} LIKE {_quoted(predicate.pattern)}"
    else:
        shown = f"{predicate.left} {predicate.operator} {predicate.right}"
    if atom.truths == {True}:
        return shown
    if atom.truths == {False}:
        return f"NOT {shown}"
    words = {True: "TRUE", False: "FALSE", None: "NULL"}
    kept = [word for truth, word in words.items() if truth in atom.truths]
    return f"({shown}) is {' or '.join(kept)}"


def _atom_text(atom: LineAtom, line: Line) -> str:
    name, intervals = atom.column, atom.intervals
    if line.kind == "boolean" and len(intervals) == 1 and intervals != ((None, None),):
        ((low, high),) = intervals
        intervals = ((low or (0, 0), high or (2, 0)),)
    null = f"{name} IS NULL"
    if not intervals:
        return null
    if intervals == ((None, None),):
        return f"{name} IS NOT NULL"
    rest = complement(intervals)
    if line.ordered and _points(intervals, line):
        shown = _list_text(name, "=", "IN", intervals, line)
    elif line.ordered and _points(rest, line):
        shown = _list_text(name, "<>", "NOT IN", rest, line)
    else:
        parts = [_interval_text(name, interval, line) for interval in intervals[:_SHOWN]]
        if len(intervals) > _SHOWN:
            parts.append(f"{len(intervals) - _SHOWN} more ranges")
        shown = " OR ".join(parts)
    return f"{shown} OR {null}" if atom.on_null else shown


def _points(intervals: Sequence[Interval], line: Line) -> bool:
    """Whether each interval is a single value, or, of a discrete line, a run of few."""
    return bool(intervals) and all(_point(interval, line) for interval in intervals)


def _point(interval: Interval, line: Line) -> bool:
    low, high = interval
    if low is None or high is None:
        return False
    return bool(high[0] - low[0] == 1) if line.discrete else low == (high[0], 0) and high[1] == 1


def _list_text(name: str, one: str, several: str, points: Sequence[Interval], line: Line) -> str:
    values = [_value(low[0], line) for low, _ in points[:_SHOWN] if low is not None]
    if len(points) == 1:
        return f"{name} {one} {values[0]}"
    more = f", and {len(points) - _SHOWN} more" if len(points) > _SHOWN else ""
    return f"{name} {several} ({', '.join(values)}{more})"


def _interval_text(name: str, interval: Interval, line: Line) -> str:
    low, high = interval
    if low is not None and _point(interval, line):
        return f"{name} = {_value(low[0], line)}"
    if low is not None and high is not None and line.discrete:
        return f"{name} BETWEEN {_value(low[0], line)} AND {_value(high[0] - 1, line)}"
    parts = [] if low is None else [f"{name} {'>' if low[1] else '>='} {_value(low[0], line)}"]
    if high is not None:
        parts.append(f"{name} {_upper(high, line)}")
    return " AND ".join(parts)


def _upper(high: Cut, line: Line) -> str:
    if line.discrete:
        return f"<= {_value(high[0] - 1, line)}"
    return f"{'<=' if high[1] else '<'} {_value(high[0], line)}"


def _value(position: object, line: Line) -> str:
    """A place of the line as its type's constant."""
    if isinstance(position, str):
        return _quoted(position)
    if not isinstance(position, int):
        return str(position)
    if line.kind == "boolean":
        return "TRUE" if position else "FALSE"
    if line.unit is not None:
        return _number(position * line.unit)
    if line.kind == "decimal":
        return _number(Fraction(position, 10**line.scale))
    if line.kind in ("date", "timestamp", "timestamptz"):
        step = dt.timedelta(days=position) if line.kind == "date" else dt.timedelta(microseconds=position)
        try:
            moment = _EPOCH + step
        except OverflowError:
            return f"{'day' if line.kind == 'date' else 'microsecond'} {position:,} since 1970"
        return f"'{moment.date().isoformat() if line.kind == 'date' else moment.isoformat(sep=' ')}'"
    return str(position)


def _quoted(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return string(shown)


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.10g}"
