"""Regions of a row in SQL: the number of the region that a value lies in, by comparisons with constants or a list.

Numbers come from CASE over comparisons with constants; a narrow integer column looks its region up in a list instead,
and so does text that equals one of few constants. All are total, whatever the row holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.conditions import Like
from dpsql.workloads.expr.lines import Cut, Line
from dpsql.workloads.expr.regions import Axis, LineAxis, OpaqueAxis, RunAxis
from dpsql.workloads.expr.total import at, below, between, operand

# Axes of whole numbers and days whose cuts span few enough values are looked up in a list of so many constants. DuckDB
# copies the list for every 2048 rows, while a tree evaluates every comparison: many cuts are worth a longer list.
LOOKUP_WIDTH = 4096
LOOKUP_PER_CUT = 64
LONGEST_LOOKUP = 2**17
# Text that equals one of at most this many constants, or none, is looked up among them; DuckDB compares with each.
LISTED_TEXTS = 1024
MOST_COMPARED = 8  # cuts of an axis up to which "is in a region" is comparisons
_LARGEST = {"TINYINT": 127, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1}
# Whole numbers that INTEGER holds with one to spare; days between year 1 and year 9999.
_FAR = {"integer": 2**31 - 2, "date": 700_000}


def region(axis: Axis, values: Mapping[str, tree.Value]) -> tree.Value:
    """An expression that gives the row's region number on an axis; total, never NULL.

    ``values`` are the columns that the table does not store.
    """
    if isinstance(axis, OpaqueAxis):
        predicate = axis.predicate
        if isinstance(predicate, Like):
            return tree.Truth(tree.Matches(operand(predicate.column, axis.line, values), predicate.pattern))
        left, right = operand(predicate.left, axis.line, values), operand(predicate.right, axis.line, values)
        return tree.Truth(tree.Compared(left, predicate.operator, right))
    value = operand(axis.column, axis.line, values)
    if isinstance(axis, RunAxis):
        return _place(value, axis)
    cuts, pieces = _simplified(axis)
    kind = "TINYINT" if axis.size < 127 else "SMALLINT" if axis.size < 32_000 else "INTEGER"
    if _is_narrow(axis.line, cuts) and _counts_up(cuts, pieces):
        return tree.Cast(_counted_up(value, axis, cuts, pieces, kind), kind, bare=True)
    listed = _listed(axis.line, cuts, pieces)
    if listed is not None:
        body = _among(value, listed, pieces[0], kind)
        if axis.null_region == pieces[0]:  # NULL is in no list
            return tree.Cast(body, kind, bare=True)
    elif _is_narrow(axis.line, cuts):
        body = _lookup(value, axis.line, cuts, pieces, kind)
    else:
        body = _tree(value, axis.line, cuts, pieces)
    return tree.Cast(when(tree.IsNull(value), tree.whole(axis.null_region), body), kind, bare=True)


def is_inside(axis: Axis, values: Mapping[str, tree.Value]) -> tree.Test:
    """A condition that is TRUE where the row has a region on an axis, FALSE or NULL where it has none."""
    if isinstance(axis, OpaqueAxis):
        return tree.ALWAYS
    value = operand(axis.column, axis.line, values)
    if isinstance(axis, RunAxis):
        return _on_run(value, axis)
    one = replace(
        axis, pieces=np.where(axis.pieces >= 0, 0, -1), null_region=0 if axis.null_region >= 0 else -1, size=1
    )
    cuts, pieces = _simplified(one)
    if len(cuts) > MOST_COMPARED:
        return is_region(region(one, values))
    stretches: list[tree.Test] = [
        between(value, axis.line, ends)
        for ends, piece in zip(pairwise([None, *cuts, None]), pieces, strict=True)
        if piece >= 0
    ]
    return tree.Some((*stretches, tree.IsNull(value)) if axis.null_region >= 0 else tuple(stretches))


def _on_run(value: tree.Value, axis: RunAxis) -> tree.Test:
    low, high = (at(axis.line, axis.first + end) for end in (0, axis.size - 1))
    return tree.Every((tree.Compared(value, ">=", low), tree.Compared(value, "<=", high)))


def _place(value: tree.Value, axis: RunAxis) -> tree.Value:
    """The distance from the first value of a run; both ends are checked before anything is subtracted."""
    if axis.line.kind == "date":
        offset = tree.bare("-", value, at(axis.line, axis.first))
    else:
        offset = tree.bare("-", tree.Cast(value, "BIGINT", tries=True), tree.long(axis.first))
    return tree.Cast(when(_on_run(value, axis), offset, tree.whole(-1)), "INTEGER", bare=True)


def _simplified(axis: LineAxis) -> tuple[list[Cut], list[int]]:
    """Cuts and regions without the cuts between two pieces of one region."""
    cuts: list[Cut] = []
    pieces = [int(axis.pieces[0])]
    for cut, piece in zip(axis.cuts, axis.pieces[1:], strict=True):
        if int(piece) != pieces[-1]:
            cuts.append(cut)
            pieces.append(int(piece))
    return cuts, pieces


def _tree(value: tree.Value, line: Line, cuts: Sequence[Cut], pieces: Sequence[int]) -> tree.Value:
    """Binary search over the cuts as nested CASE."""
    if not cuts:
        return tree.whole(pieces[0])
    middle = len(cuts) // 2
    return when(
        below(value, line, cuts[middle]),
        _tree(value, line, cuts[:middle], pieces[: middle + 1]),
        _tree(value, line, cuts[middle + 1 :], pieces[middle + 1 :]),
    )


def _listed(line: Line, cuts: Sequence[Cut], pieces: Sequence[int]) -> dict[str, int] | None:
    """The region of each text that has one of its own; None where the rest of all text is not of one region."""
    if (
        line.kind != "text"
        or len(cuts) < 4
        or len(cuts) > 2 * LISTED_TEXTS
        or "\0" in "".join(str(at) for at, _ in cuts)
    ):
        return None
    # Between the cuts (c, 0) and (c, 1) lies c alone; every other piece holds more than one text.
    alone = {
        str(at): pieces[number + 1]
        for number, (at, side) in enumerate(cuts[:-1])
        if (side, cuts[number + 1]) == (0, (at, 1))
    }
    return alone if len(pieces) == 2 * len(alone) + 1 and len(set(pieces[::2])) == 1 else None


def _among(value: tree.Value, regions: Mapping[str, int], other: int, kind: str) -> tree.Value:
    """The region by the place of the value in a list of constants, 0 or NULL where it is in none."""
    constants = tree.bare("list_value", *(tree.Constant(text, "VARCHAR") for text in regions), type="VARCHAR[]")
    place = tree.bare("list_position", constants, value)
    looked_up = tree.bare("list_extract", tree.Numbers(tuple(regions.values()), kind), place, type=kind)
    return tree.Coalesce((looked_up, tree.whole(other)), kind)


def _is_narrow(line: Line, cuts: Sequence[Cut]) -> bool:
    if line.kind not in ("integer", "date") or len(cuts) < 4:
        return False
    first, last = int(cuts[0][0]), int(cuts[-1][0])
    width = min(max(LOOKUP_WIDTH, LOOKUP_PER_CUT * len(cuts)), LONGEST_LOOKUP)
    return last - first < width and abs(first) < _FAR[line.kind] and abs(last) < _FAR[line.kind]


def _counts_up(cuts: Sequence[Cut], pieces: Sequence[int]) -> bool:
    """Whether each value between the first and the last cut is of the region after that of the value before it."""
    steps = all(int(after[0]) - int(cut[0]) == 1 for cut, after in pairwise(cuts))
    steps &= abs(int(cuts[0][0]) - pieces[1]) < _FAR["integer"]  # what it is told apart from is an INTEGER, too
    return steps and pieces[0] == pieces[-1] and all(b - a == 1 for a, b in pairwise(pieces[1:-1]))


def _counted_up(value: tree.Value, axis: LineAxis, cuts: Sequence[Cut], pieces: Sequence[int], kind: str) -> tree.Value:
    """The region by its distance from the first, which takes half the time of a list; both ends are checked before.

    Subtracted in the type of the regions where that is the column's, too, and holds both: no value is cast.
    """
    line, first, end = axis.line, int(cuts[0][0]), int(cuts[-1][0])
    back = first - pieces[1]
    if line.kind == "date":
        offset = tree.bare("-", value, at(line, back))
    elif line.type == kind and max(abs(back), end - 1, end - 1 - back) <= _LARGEST[kind] and first >= 0:
        offset = tree.bare("-", value, at(line, back), type=kind)
    else:
        offset = tree.bare("-", tree.Cast(value, "INTEGER", bare=True), tree.Constant(back, "INTEGER"))
    inside, missing = between(value, line, ((first, 0), (end, 0))), tree.IsNull(value)
    return tree.CaseValue(((inside, offset), (missing, tree.whole(axis.null_region))), tree.whole(pieces[0]), "BIGINT")


def _lookup(value: tree.Value, line: Line, cuts: Sequence[Cut], pieces: Sequence[int], kind: str) -> tree.Value:
    """The region by position in a list of constants, the value clamped to the cuts' span."""
    first, last = int(cuts[0][0]), int(cuts[-1][0])
    regions = [pieces[0]]
    for number, (start, _) in enumerate(cuts):
        stop = int(cuts[number + 1][0]) if number + 1 < len(cuts) else last + 1
        regions.extend([pieces[number + 1]] * (stop - int(start)))
    # The clamp is a CASE, so that the subtraction never sees a value outside the span, nor an infinite date.
    dated = line.kind == "date"
    least, low, high = (at(line, day) if dated else tree.whole(day) for day in (first - 1, first, last))
    clamped = tree.CaseValue(
        ((tree.Compared(value, "<", low), least), (tree.Compared(value, ">", high), high)),
        value if dated else tree.Cast(value, "INTEGER", bare=True),
        line.type if dated else "INTEGER",
    )
    before = at(line, first - 2) if dated else tree.Constant(first - 2, "INTEGER")
    return tree.bare("list_extract", tree.Numbers(tuple(regions), kind), tree.bare("-", clamped, before), type=kind)


def when(test: tree.Test, value: tree.Value, default: tree.Value, kind: str = "BIGINT") -> tree.CaseValue:
    """A value where the test is TRUE, else the default."""
    return tree.CaseValue(((test, value),), default, kind)


def is_region(number: tree.Value) -> tree.Compared:
    """Whether a number is that of a region, and not -1."""
    return tree.Compared(number, ">=", tree.whole(0))
