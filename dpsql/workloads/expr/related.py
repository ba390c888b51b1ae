"""Related axes: on which regions of several axes a row can be at once, where these are functions of one stored column.

``month(day) = 1`` and the weeks of ``day`` cut one column twice: no row has a January month and a week in May. A row
has one value of the column, which decides its regions on all of them.

**Claim.** Every row has one of the combinations ``possible``. Let b be the column. Where b itself is an axis, its
pieces that hold one value, or few whole numbers or days, are gone through: each value has the regions that DuckDB
computes of it by the text that a scan runs. NULL is one value more. All other pieces stay *open*: their region with any
regions of the other axes, whatever b is outside of its declared bounds; where the others look at parts of a date that
repeat, with those that some date has. Where b is no axis all of its line is one piece. What is computed of a second
column or of other rows is no function of b.

Privacy does not rest on the claim for rows of one source: a combination that is not possible is no cell, and a row in
it would be counted nowhere. ``seen`` are the combinations of values that were tried; where they lead to the same cells,
nothing that is possible was claimed for want of a proof.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nextafter, prod
from typing import TypeAlias

import numpy as np

from dpsql.common.arrays import Ints
from dpsql.common.numerics import DAY, INFINITE_DAY, INFINITE_MOMENT, YEAR_2000
from dpsql.errors import InternalError
from dpsql.policy.values import fold
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.batch import Column, constant
from dpsql.workloads.expr.conditions import Like
from dpsql.workloads.expr.lines import Cut, Line, line_of
from dpsql.workloads.expr.regions import Axis, LineAxis, OpaqueAxis, is_total
from dpsql.workloads.expr.values import Evaluate, Stored, Value, stored, walk

MOST_COMPUTED = 20_000
"""Values that are computed of a column, all axes of it together."""
MOST_COMBINATIONS = 50_000
_TRIED = 1_500  # values on open pieces of a column that are gone through
_OF_OTHER_ROWS = tree.Name | tree.Window | tree.CountRows | tree.Distinct | tree.Word | tree.Gathered
_FILLED = ("", "!", "zq")  # for what LIKE leaves open
_TIMES = frozenset({"date", "timestamp", "timestamptz"})
_INFINITY = {"date": INFINITE_DAY, "timestamp": INFINITE_MOMENT}
_REPEATING = frozenset({"hour", "minute", "second", "dayofweek", "isodow", "month", "quarter", "day", "dayofyear"})

Place: TypeAlias = bool | int | float | str | None
Piece: TypeAlias = tuple[Cut | None, Cut | None, int]
"""What lies between two cuts of a column, and its region."""


@dataclass(frozen=True)
class Function:
    """What an axis is of a row: a value on a line of some kind, and the stored columns that it reads.

    Of a function of one column alone ``line`` is that column's, and ``declared`` are places that the policy names.
    """

    value: Value
    kind: str
    of: tuple[Stored, ...]
    line: Line | None = None
    declared: tuple[Place, ...] = ()

    @property
    def follows(self) -> bool:
        """Whether it follows from these columns of the row, and from no other rows."""
        return not any(isinstance(node, _OF_OTHER_ROWS) for node in walk(self.value))


@dataclass(frozen=True)
class Related:
    """Axes that read a stored column in common, by their numbers, and the regions that a row has on them at once.

    ``possible`` and ``seen`` (axes x combinations): -1 for no region; ``possible`` is None where there may be any.
    """

    axes: tuple[int, ...]
    possible: Ints | None = field(repr=False)
    seen: Ints = field(repr=False)


@dataclass(frozen=True)
class Functions:
    """What the columns of one table are of its rows; ``evaluate`` is None where nothing can be computed."""

    columns: Mapping[str, Column] = field(repr=False)
    evaluate: Evaluate | None = None

    def of(self, axis: Axis) -> Function:
        """What an axis is of a row."""
        if not isinstance(axis, OpaqueAxis):
            return self._function(self.value(axis.column, axis.line), axis.line.kind)
        predicate, line = axis.predicate, axis.line
        if isinstance(predicate, Like):
            test: tree.Test = tree.Matches(self.value(predicate.column, line), predicate.pattern)
        else:
            sides = self.value(predicate.left, line), self.value(predicate.right, line)
            test = tree.Compared(sides[0], predicate.operator, sides[1])
        return self._function(tree.Truth(test), "integer")

    def value(self, name: str, line: Line) -> Value:
        """What is computed for a column of the table."""
        column = self.columns.get(fold(name))
        if column is None or column.value is None:
            return Stored(name if column is None else column.name, line.type if column is None else column.type)
        return column.value

    def _function(self, value: Value, kind: str) -> Function:
        of = stored(value)
        plain = Function(value, kind, of)
        if len(of) != 1 or not plain.follows:
            return plain
        found = self.columns.get(fold(of[0].name)) if not of[0].source else None
        if found is None or found.value is not None:
            found = next((column for column in self.columns.values() if column.value == of[0]), None)
        if found is None:
            return replace(plain, line=line_of(of[0].type))
        points = [found.line.point(constant(one)) for one in found.policy.values or ()]
        declared = tuple(point[0][0] for point in points if point is not None and point[0] is not None)
        return replace(plain, line=found.line, declared=declared)


def related(axes: Sequence[tuple[Axis, Function]], evaluate: Evaluate | None) -> tuple[Related, ...]:
    """The axes that read a stored column in common, with what a row can be on them.

    Cost: ``MOST_COMPUTED`` values of each such column at most, by one statement for each axis.
    """
    found: list[tuple[set[Stored], list[int]]] = []
    for number, (_, function) in enumerate(axes):
        own, at = set(function.of), [number]
        for one in [one for one in found if one[0] & own]:
            found.remove(one)
            own, at = own | one[0], one[1] + at
        found.append((own, at))
    return tuple(_related(tuple(sorted(at)), axes, evaluate) for _, at in found if len(at) > 1)


def _related(at: tuple[int, ...], axes: Sequence[tuple[Axis, Function]], evaluate: Evaluate | None) -> Related:
    mine, first = [axes[number] for number in at], axes[at[0]][1]
    anything = Related(at, None, np.zeros((len(at), 0), dtype=np.int64))
    line, base = first.line, first.of[0]
    alike = all(isinstance(axis, LineAxis | OpaqueAxis) and function.line == line for axis, function in mine)
    if evaluate is None or line is None or not line.ordered or not alike:
        return anything
    others = [function for _, function in mine if function.value != base]
    kinds = {function.kind for function in others}
    if "timestamptz" in kinds:
        return anything
    own = next((number for number, (_, function) in enumerate(mine) if function.value == base), None)
    most = MOST_COMPUTED // max(4, len(others))
    every, open_ = _pieces(line, None if own is None else mine[own][0], most)
    standing = None if kinds & _TIMES else _moments(line, base, [function.value for function in others], most)
    tried = _tried(line, [axis for axis, _ in mine], open_, first.declared, infinite=not kinds & _TIMES)[:most]
    places = (*every, None, *(standing or ()), *tried)
    try:
        regions = [_regions(axis, function, places, base, line, evaluate) for axis, function in mine]
    except InternalError:  # of a form that the empty DuckDB does not compute
        return anything
    held, known = np.array(regions, dtype=np.int64), len(every) + 1
    possible, seen = np.unique(held[:, :known], axis=1), np.unique(held, axis=1)
    if not open_:
        return Related(at, possible, seen)
    if standing is None and own is None:
        return Related(at, None, seen)
    ends = np.unique([region for _, _, region in open_])
    if standing is None:
        each = [np.arange(0 if is_total(axis) else -1, axis.size) for axis, _ in mine]
        each = [ends if number == own else regions for number, regions in enumerate(each)]
        if prod(map(len, each)) > MOST_COMBINATIONS:
            return Related(at, None, seen)
        anywhere = np.array(list(itertools.product(*each)), dtype=np.int64).T
    else:
        anywhere = np.unique(held[:, known : known + len(standing)], axis=1)
        if own is not None:
            anywhere, beside = np.repeat(anywhere, ends.size, axis=1), np.tile(ends, anywhere.shape[1])
            anywhere[own] = beside
    return Related(at, np.unique(np.concatenate([possible, anywhere], axis=1), axis=1), seen)


def _moments(line: Line, base: Stored, values: Sequence[Value], most: int) -> tuple[Place, ...] | None:
    """Dates or times, infinite ones among them, that look like any other to values of parts that repeat, else None.

    Months and days of the week meet in all ways, and so do these and times of day; of days of the month and the year a
    leap year and another have all.
    """
    looked = [_looked_at(value, base) for value in values]
    names = {name for found in looked if found is not None for name in found}
    if line.kind not in _INFINITY or None in looked:
        return None
    days: list[int] = [YEAR_2000]
    week = names & {"dayofweek", "isodow"}
    if names & {"day", "dayofyear"}:
        if week:
            return None
        days = list(range(YEAR_2000, YEAR_2000 + 731))
    elif names & {"month", "quarter"}:
        months = [(dt.date(2000, month, 1) - dt.date(1970, 1, 1)).days for month in range(1, 13)]
        days = [first + day for first in months for day in range(7 if week else 1)]
    elif week:
        days = list(range(YEAR_2000, YEAR_2000 + 7))
    times = [0]
    for part, count, length in (("hour", 24, 3_600), ("minute", 60, 60), ("second", 60, 1)):
        if part in names:
            times = [time + number * length * 1_000_000 for time in times for number in range(count)]
    if len(days) * len(times) > most:
        return None
    infinity, whole = _INFINITY[line.kind], 1 if line.kind == "date" else DAY
    return (-infinity, infinity, *(day * whole + time for day in days for time in (times if whole > 1 else [0])))


def _looked_at(node: tree.Node, base: Stored) -> frozenset[str] | None:
    """The parts of a date or time that a value looks at, where they repeat; None where it looks at more."""
    if node == base:
        return None
    if isinstance(node, tree.Call) and node.arguments == (base,):
        return frozenset({node.function}) if node.function in _REPEATING else None
    found = [_looked_at(part, base) for part in tree.parts(node)]
    known = [one for one in found if one is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def _pieces(line: Line, axis: Axis | None, most: int) -> tuple[tuple[Place, ...], list[Piece]]:
    """The values of the column that are gone through, and the pieces between the cuts of its axis that stay open."""
    cuts, regions = (axis.cuts, axis.pieces.tolist()) if isinstance(axis, LineAxis) else ((), [0])
    every: list[Place] = []
    open_: list[Piece] = []
    for low, high, region in zip((None, *cuts), (*cuts, None), regions, strict=True):
        if line.discrete:
            first, last = _ends(line, low, high)
            if first is not None and last is not None and last - first < most - len(every):
                every.extend(range(first, last + 1))
                continue
        elif low is not None and high is not None and low[0] == high[0] and low[0] != 0.0:  # of 0.0 there are two
            every.append(low[0])
            continue
        open_.append((low, high, region))
    return tuple(every), open_


def _ends(line: Line, low: Cut | None, high: Cut | None) -> tuple[int | None, int | None]:
    """The first and last place of a piece of a discrete line."""
    return line.low if low is None else low[0], line.high if high is None else high[0] - 1


def _tried(
    line: Line, axes: Sequence[Axis], open_: Sequence[Piece], declared: Sequence[Place], *, infinite: bool
) -> tuple[Place, ...]:
    """Values of which most may be on open pieces: all that is computed of them is possible."""
    if line.discrete:
        infinity = _INFINITY.get(line.kind)
        ends = () if infinity is None or not infinite else (-infinity, infinity)
        found = [place for low, high, _ in open_ for place in _of_piece(line, low, high, max(8, _TRIED // len(open_)))]
        return tuple(dict.fromkeys((*declared, *found, *(ends if open_ else ()))))
    cuts = [cut[0] for axis in axes if isinstance(axis, LineAxis) for cut in axis.cuts]
    if line.kind == "text":
        likes = [axis.predicate for axis in axes if isinstance(axis, OpaqueAxis)]
        patterns = [like.pattern for like in likes if isinstance(like, Like)]
        filled = [re.sub("[%_]", fill, pattern) for pattern in patterns for fill in _FILLED]
        texts = ["", *(text for text in (*declared, *cuts, *filled) if isinstance(text, str))]
        return tuple(dict.fromkeys(form for text in texts for form in (text, text.lower(), text.upper(), text + "!")))
    numbers = sorted({0.0, *(float(cut) for cut in cuts if not isinstance(cut, str))})
    beside = [float(to) for number in numbers for to in (nextafter(number, -inf), nextafter(number, inf), number + 0.5)]
    between = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    return tuple(dict.fromkeys((*declared, *numbers, *beside, *between, numbers[0] - 1e6, numbers[-1] + 1e6)))


def _of_piece(line: Line, low: Cut | None, high: Cut | None, number: int) -> list[int]:
    """Places of a long piece: beyond each of its ends, and about zero or the year 2000."""
    first, last = _ends(line, low, high)
    day = 1 if line.kind == "date" else DAY
    step = DAY + 3_661_000_000 if line.kind in {"timestamp", "timestamptz"} else 1
    if first is not None and last is not None:
        step = max(1, min(step, (last - first) // number))
    middle = YEAR_2000 * day if line.kind in _TIMES else 0
    places = {at + step * i for at in (first, middle, last) if at is not None for i in range(-number, number + 1)}
    return sorted(at for at in places if (first is None or at >= first) and (last is None or at <= last))


def _regions(
    axis: Axis, function: Function, places: tuple[Place, ...], base: Stored, line: Line, evaluate: Evaluate
) -> list[int]:
    """The region of each place of the column on an axis."""
    of_base = function.value == base
    values = places if of_base else evaluate(function.value, function.kind, base, line, places)
    if isinstance(axis, OpaqueAxis):
        return [int(number or 0) for number in values]  # never NULL
    assert isinstance(axis, LineAxis)  # noqa: S101 - asked before
    return [region_of(axis, value) for value in values]


def region_of(axis: LineAxis, value: Place) -> int:
    """The region of a value as a scan reads it (``total.read_once``)."""
    low, high = axis.line.low, axis.line.high
    held = axis.line.kind == "integer" and low is not None and high is not None
    if value is None or value != value or (held and not low <= value <= high):  # type: ignore[operator]
        return axis.null_region
    return int(axis.pieces[bisect_right(axis.cuts, (value, 0))])
