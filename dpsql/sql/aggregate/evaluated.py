"""Groups of an expression by its values: worked out on the declared values and bounds of its columns.

What rises with its one column has an interval of it for each value. Anything else is computed by an empty DuckDB on
one place of each piece of its column on which it is one value (``values/grains.py``), the pieces of one value together.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import PolicyError
from dpsql.policy import ColumnPolicy
from dpsql.sql.aggregate.groups import MAX_GROUPS, Groups, label_of, rank, too_many
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.evaluation import evaluate, evaluate_rows
from dpsql.sql.values.grains import pieces, repeating
from dpsql.sql.values.operands import least
from dpsql.sql.values.row_cost import LABELS
from dpsql.sql.values.typed import Path, Typed
from dpsql.workloads.expr.batch import Column, constant
from dpsql.workloads.expr.conditions import FALSE, And, Condition, LineAtom, Or, complement, gather, union
from dpsql.workloads.expr.lines import Interval, Line, Scalar
from dpsql.workloads.expr.values import (
    Call,
    CaseValue,
    Cast,
    Compared,
    Constant,
    Node,
    Number,
    Stored,
    Value,
    parts,
    stored,
    walk,
)
from dpsql.workloads.expr.within import EVERYTHING, Within

MAX_COMBINATIONS = 5_000
"""Of the pieces of several columns, each computed."""
MAX_STEPS = 2_000
"""Values of a rounded DOUBLE."""
_TIMES = frozenset({"date", "timestamp", "timestamptz"})

Place: TypeAlias = bool | int | float | str | None
Piece: TypeAlias = tuple[Interval, Place]
"""An interval of a column on which an expression is one value, and a place in it."""


def taken(t: Typed, column: Column, node: exp.Expr, within: Within) -> Groups | None:
    """The values that an expression takes on the declared domain of its one column."""
    policy = column.policy
    if t.path is not None and policy.values is None and policy.lower is not None:
        return _along(t, t.path, policy, node, within)
    held = _listed(column, node, MAX_GROUPS)
    if held is not None and column.line.kind in _TIMES and column.name in within.columns:
        # Days that WHERE rules out may have no label.
        held = [piece for piece in held if not within.excludes(LineAtom(column.name, (piece[0],)))] or held
    return None if held is None else _on_pieces(t, column, [*held, *_beyond(t.value, column)], node)


def pieced(t: Typed, column: Column, node: exp.Expr, within: Within) -> Groups | None:
    """The values of an expression on the pieces of its one column of dates, times or DOUBLEs between its bounds."""
    held = _pieces(t.value, column, within)
    return None if held is None else _on_pieces(t, column, held, node)


def repeated(t: Typed, base: Stored, line: Line, node: exp.Expr) -> tuple[Scalar, ...] | None:
    """The values of an expression that looks at parts that repeat, such as hours and months; None of any other."""
    if line.kind not in _TIMES:
        return None
    moments = repeating(t.value, base)
    if moments is None:
        return None
    day = 86_400_000_000
    places = tuple(dict.fromkeys(n // day for n in moments)) if line.kind == "date" else moments
    results = evaluate(t.value, t.kind, base, line, places)
    return tuple(dict.fromkeys(label_of(t, result, node) for result in results if result is not None))


def of_several(t: Typed, columns: Sequence[Column], node: exp.Expr, within: Within) -> Groups | None:
    """The values of an expression of several columns, on all combinations of their pieces."""
    held = []
    for column in columns:
        found = _pieces(t.value, column, within) or _listed(column, node, MAX_COMBINATIONS)
        if found is None:
            return None
        nulls = column.policy.nulls and not column.never_null
        held.append([(LineAtom(column.name, (interval,)), place) for interval, place in found]
                    + ([(LineAtom(column.name, (), True), None)] if nulls else []))  # fmt: skip
        if prod(map(len, held)) > MAX_COMBINATIONS:
            return None
    rows = list(itertools.product(*held))
    sources = {part: column for part in stored(t.value) for column in columns if part == _stored(column)}
    order = [next(part for part, of in sources.items() if of is column) for column in columns]
    results = evaluate_rows(
        t.value,
        t.kind,
        tuple((part, column.line) for part, column in zip(order, columns, strict=True)),
        tuple(tuple(place for _, place in row) for row in rows),
    )
    by_label: dict[Scalar, list[Condition]] = {}
    null: list[Condition] = []
    for row, result in zip(rows, results, strict=True):
        here = gather(And, *(atom for atom, _ in row))
        (null if result is None else by_label.setdefault(label_of(t, result, node), [])).append(here)
    anywhere: list[Condition] = []
    others: list[Condition] = []
    for column, atoms in zip(columns, held, strict=True):
        inside = union([interval for atom, _ in atoms for interval in atom.intervals])
        nulls = any(atom.on_null for atom, _ in atoms)
        other: Condition = LineAtom(column.name, complement(inside)) if column.policy.other else FALSE
        others.append(other)
        anywhere.append(gather(Or, LineAtom(column.name, inside, nulls), other))
    groups = tuple((label, gather(Or, *by_label[label])) for label in sorted(by_label, key=rank))
    return Groups(groups, gather(Or, *null), gather(And, gather(Or, *others), *anywhere))


def _stored(column: Column) -> Value:
    return column.value if column.value is not None else Stored(column.name, column.type)


# -- declared values -----------------------------------------------------------------------------


def _listed(column: Column, node: exp.Expr, most: int) -> list[Piece] | None:
    """The declared values of a column, at most so many; None where there are more, or none are declared."""
    policy = column.policy
    values: Iterable[object] | None = (False, True) if column.line.kind == "boolean" else None
    if values is None:
        try:
            if (policy.size(column.type) or 0) > most:
                return None
            values = policy.domain(column.type)
        except PolicyError as error:
            raise refuse(str(error), node) from None
    listed = None if values is None else tuple(values)
    if listed is None or len(listed) > most:
        return None
    points = [point for point in (column.line.point(constant(value)) for value in listed) if point is not None]
    return [(point, point[0][0] if point[0] is not None else column.line.low) for point in points]


def _beyond(value: Value, column: Column) -> list[Piece]:
    """What units can have beyond the bounds of a column ``by_limit``, where ``value`` is one value there.

    As LEAST(COUNT(*), 12) is of any more rows. It is where all that rises or falls in it is the same at both ends.
    """
    (least_place, last_place), base, found = column.line.ends, _stored(column), list[Piece]()
    if not column.by_limit or not isinstance(base, Stored) or least_place is None or last_place is None:
        return found
    low, high = _ends(column, column.policy, EVERYTHING)
    for first, last in ((least_place, low - 1), (high + 1, last_place)):
        if first < last:  # no unit has 0 rows where each has 1 at least
            steps = (evaluate(step, "real", base, column.line, (first, last)) for step in _steps(value, base))
            interval = column.line.clip(((first, 0), (last + 1, 0)))
            if interval is not None and all(start == end for start, end in steps):
                found.append((interval, first))
    return found


def _on_pieces(t: Typed, column: Column, pieces: Sequence[Piece], node: exp.Expr) -> Groups:
    """The groups of an expression by its value on each piece, and on NULL."""
    policy = column.policy
    (base,) = stored(t.value)
    results = evaluate(t.value, t.kind, base, column.line, (*(at for _, at in pieces), None))
    by_label: dict[Scalar, list[Interval]] = {}
    null: list[Interval] = []
    for (interval, _), result in zip(pieces, results[:-1], strict=True):
        if result is None:
            null.append(interval)
        else:
            by_label.setdefault(label_of(t, result, node), []).append(interval)
    nulls = policy.nulls and not column.never_null
    at_null = None if results[-1] is None else label_of(t, results[-1], node)
    if nulls and at_null is not None:
        by_label.setdefault(at_null, [])
    groups = tuple(
        (label, LineAtom(column.name, union(by_label[label]), nulls and label == at_null))
        for label in (by_label if _in_time(t, column) else sorted(by_label, key=rank))
    )
    on_null = nulls and at_null is None
    empty = LineAtom(column.name, union(null), on_null) if null or on_null else FALSE
    other = LineAtom(column.name, complement(union([part for part, _ in pieces]))) if policy.other else FALSE
    return Groups(groups, empty, other)


def _in_time(t: Typed, column: Column) -> bool:
    """Whether labels come in the order of time: names of months and the like, not of the alphabet."""
    if t.kind != "text" or column.line.kind not in _TIMES:
        return False
    return column.line.kind != "date" or any(isinstance(p, Call) and p.function in LABELS for p in walk(t.value))


# -- bounds --------------------------------------------------------------------------------------


def _along(t: Typed, path: Path, policy: ColumnPolicy, node: exp.Expr, within: Within) -> Groups:
    """A rising function over what ``within`` leaves between the bounds of its column: one interval a value."""
    column = path.column
    low, high = _ends(column, policy, within)
    parts = [(max(low, first), min(high, last)) for first, last in path.domain]
    found: list[tuple[Scalar, Condition]] = []
    covered: list[Interval] = []
    for (first, last), (start, stop) in zip(parts, path.domain, strict=True):
        at, width = first, 1
        while at <= last:
            value = path.function(at)
            after = least(path, at, last, value + 1, at + width)  # groups are often as long as those before
            width = after - at
            interval: Interval = ((at, 0), (after, 0))
            if column.by_limit:  # units beyond the bounds, too, where the value goes on
                begin = least(path, start, at, value) if at == low else at
                end = least(path, at, stop, value + 1, after) if after == high + 1 else after
                interval = column.line.clip(((begin, 0), (end, 0))) or interval
            covered.append(interval)
            found.append((label_of(t, value, node), LineAtom(column.name, (interval,))))
            at = after
            if len(found) > MAX_GROUPS:
                raise too_many(node)
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


def _ends(column: Column, policy: ColumnPolicy, within: Within) -> tuple[int, int]:
    """The first and last place between the bounds of a column that ``within`` leaves."""
    low, high = (column.line.place(end) for end in (policy.lower, policy.upper))
    return within.places(column.name, math.ceil(Fraction(low)), math.floor(Fraction(high)))


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


def _pieces(value: Value, column: Column, within: Within) -> list[Piece] | None:
    """The pieces of a column between its declared bounds on each of which ``value`` is one value."""
    policy = column.policy
    base = _stored(column)
    if policy.lower is None or policy.upper is None or not isinstance(base, Stored):
        return None
    if column.line.kind in _TIMES:
        low, high = _ends(column, policy, within)
        found = pieces(value, base, low, high)
        return None if found is None else [(((first, 0), (last + 1, 0)), first) for first, last in found]
    return _real_pieces(value, base, column) if column.line.kind == "real" else None


# -- DOUBLEs -------------------------------------------------------------------------------------

# Functions that rise or fall with a DOUBLE, wherever they have a value, and their other arguments are constants.
_MONOTONE = frozenset({"floor", "ceil", "trunc", "round", "sqrt", "cbrt", "exp", "ln", "log", "log2", "log10"})
_SCALING = frozenset({"+", "-", "*", "/", "//", "greatest", "least"})
_NUMBERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DOUBLE"})


def _monotone(value: Node, base: Stored) -> bool:
    """Whether a value rises, or falls, with the DOUBLE that it is of: rounded, cast, moved, scaled, compared."""
    if value == base:
        return True
    if isinstance(value, Number):
        return _monotone(value.this, base)
    if isinstance(value, Cast):
        return value.type in _NUMBERS and _monotone(value.this, base)
    if isinstance(value, Compared):
        sides = (value.left, value.right)
        return (
            value.operator in {"<", "<=", ">", ">="}
            and any(isinstance(side, Constant) for side in sides)
            and any(_monotone(side, base) for side in sides)
        )
    if not isinstance(value, Call) or value.function not in _MONOTONE | _SCALING:
        return False
    moving = [part for part in value.arguments if not isinstance(part, Constant)]
    if len(moving) != 1 or not _monotone(moving[0], base):
        return False
    # A constant over the number falls to one side of 0 and again to the other.
    return value.function not in {"/", "//"} or moving[0] is value.arguments[0]


def _steps(value: Node, base: Stored) -> list[Value]:
    """What rises or falls with a DOUBLE in a value, all that it looks at of it."""
    if _monotone(value, base):
        if isinstance(value, Compared):
            true, false = Constant(True, "BOOLEAN"), Constant(False, "BOOLEAN")
            return [CaseValue(((value, true),), false, "BOOLEAN")]
        return [value]  # type: ignore[list-item]
    return [step for part in parts(value) for step in _steps(part, base)]


def _real_pieces(value: Value, base: Stored, column: Column) -> list[Piece] | None:
    """The pieces of a DOUBLE between its bounds, by halving what has two values until its ends are neighbours."""
    low, high = (_ordinal(float(end)) for end in (column.policy.lower, column.policy.upper))  # type: ignore[arg-type]
    starts = {low}
    for step in dict.fromkeys(_steps(value, base)):
        changed = _changes(step, base, column.line, low, high)
        if changed is None:
            return None
        starts.update(changed)
    ordered = sorted(starts)
    return [
        (((_double(a), 0), (_double(b), 0) if b <= high else (_double(high), 1)), _double(a))
        for a, b in zip(ordered, [*ordered[1:], high + 1], strict=True)
    ]


def _changes(step: Value, base: Stored, line: Line, low: int, high: int) -> list[int] | None:
    """The places from which on a value that rises or falls is another one; None where there are too many."""
    known = dict(zip((low, high), _at(step, base, line, (low, high)), strict=True))
    open_ = [(low, high)] if known[low] != known[high] else []
    while open_:
        if len(open_) > MAX_STEPS:
            return None
        middles = [(a + b) // 2 for a, b in open_]
        known.update(zip(middles, _at(step, base, line, middles), strict=True))
        halves = [half for (a, b), m in zip(open_, middles, strict=True) for half in ((a, m), (m, b))]
        open_ = [(a, b) for a, b in halves if b - a > 1 and known[a] != known[b]]
    return [b for a, b in itertools.pairwise(sorted(known)) if known[a] != known[b]]


def _at(value: Value, base: Stored, line: Line, ordinals: Sequence[int]) -> tuple[object, ...]:
    return evaluate(value, "real", base, line, tuple(map(_double, ordinals)))


def _ordinal(number: float) -> int:
    """The place of a DOUBLE among all, in their order."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number + 0.0))
    return int(bits) if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)


def _double(ordinal: int) -> float:
    """The DOUBLE of a place."""
    (found,) = struct.unpack("<d", struct.pack("<q", abs(ordinal)))
    return float(found) if ordinal >= 0 else -float(found)
