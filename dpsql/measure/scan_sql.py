"""The columns of the one private statement per table: rows to region numbers, counts and sums.

There is no WHERE: every row goes through the same total expressions, whatever the batch asks. They are over values
that were computed once and held to their ranges (``reading.named``). Region numbers come from CASE over comparisons
with constants; a narrow integer column looks its region up in a list instead. Sums are of non-negative integers
u = z' + steps, which come in two words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from dpsql.arrays import Flags
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.compile.layout import Layout
from dpsql.workload.expr import values as tree
from dpsql.workload.expr.conditions import Like
from dpsql.workload.expr.lines import Cut, Line
from dpsql.workload.expr.measures import Measure
from dpsql.workload.expr.regions import Axis, IntArray, LineAxis, OpaqueAxis, RunAxis, is_total
from dpsql.workload.expr.rows import KEPT as KEPT_UNIT
from dpsql.workload.expr.rows import Each
from dpsql.workload.expr.scan import Column, same
from dpsql.workload.expr.total import VALUES, at, below, between, operand

# Axes of whole numbers and days whose cuts span few enough values are looked up in a list of so many constants. DuckDB
# copies the list for every 2048 rows, while a tree evaluates every comparison: many cuts are worth a longer list.
LOOKUP_WIDTH = 4096
LOOKUP_PER_CUT = 64
LONGEST_LOOKUP = 2**17
# Text that equals one of at most this many constants, or none, is looked up among them; DuckDB compares with each.
LISTED_TEXTS = 1024
WORD = 2**32
# The key that says whether a row counts, of a scan by no axis.
KEPT = "kept"
_WALKED, _WALKED_CONSTANTS = 4, 4_096  # axes and constants by which a row is told to be in a cell that is read
_KEPT_UNIT = tree.Compared(tree.Name(KEPT_UNIT), "=", tree.whole(0))
MOST_COMPARED = 8  # cuts of an axis up to which "is in a region" is comparisons


def select_list(layout: Layout) -> tuple[tuple[Column, ...], int]:
    """The SELECT list of a table's scan and how many of its first columns are group keys.

    Columns: a0, a1, ... the region of each axis (-1 for none), n the number of rows, and for
    each measure k the low and high word (base 2^32) of sum(z' + steps), s<k>_low, s<k>_high.
    Over the table itself they are computed in place; over any other source its rows hold them (``row_columns``
    of ``layout.whole``). Where the scan ``tells``, a0, or without axes ``KEPT``, is -1 for a row that does not count:
    for one of several layouts a row without a region on any axis of the batch, as if all were one layout over all axes;
    for rows of units one whose conditions do not hold.
    """
    regions, steps = row_values(layout)
    if layout.source.distinct:
        regions = [tree.whole(-1)]
    held, plain = layout.whole, layout.source.plain
    place = {id(axis): tree.Name(f"a{number}") for number, axis in enumerate(held.cells.axes)}
    if not plain:
        regions = [tree.Name("a0")] if layout.source.distinct else [place[id(axis)] for axis in layout.cells.axes]
        steps = [tree.Name(f"u{held.measures.index(measure)}") for measure in layout.measures]
    names = [f"a{number}" for number in range(len(regions))]
    if tells(layout):
        if not regions:
            regions, names = [tree.whole(0)], [KEPT]
        # The first axis has its own -1.
        first = {id(axis) for axis in layout.cells.axes[:1]}
        checked = [axis for axis in held.cells.axes if not is_total(axis) and id(axis) not in first]
        inside = [is_inside(axis, layout.values) if plain else _is_region(place[id(axis)]) for axis in checked]
        if layout.source.conditional:
            inside.append(_KEPT_UNIT)
        if inside:
            regions[0] = _when(tree.Every(tuple(inside)), regions[0], tree.whole(-1))
    columns: list[Column] = [*zip(names, regions, strict=True), ("n", tree.CountRows())]
    for number, value in enumerate(steps):
        columns += [(f"s{number}_low", tree.Word(value, high=False)), (f"s{number}_high", tree.Word(value, high=True))]
    return tuple(columns), len(names)


def tells(layout: Layout) -> bool:
    """Whether a scan tells rows that do not count by its first key; that of a distinct source tells by the cell."""
    return not layout.source.distinct and (layout.every is not None or layout.source.conditional)


def row_values(layout: Layout) -> tuple[list[tree.Value], list[tree.Value]]:
    """The region number of each axis and u of each measure, as expressions over a row; total, never NULL."""
    values = layout.values
    regions = [region(axis, values) for axis in layout.cells.axes]
    return regions, [summed(measure, values) for measure in layout.measures]


def row_columns(layout: Layout) -> tuple[Column, ...]:
    """All that a scan uses of a row: a0, ..., u0, ...; for distinct sources the cell as a0."""
    regions, steps = row_values(layout)
    if layout.source.distinct:
        counted_once = () if layout.source.each is None else (("d0", each_value(layout.source.each)),)
        found = cell(layout, regions)
        found = _when(_KEPT_UNIT, found, _long(-1)) if layout.source.conditional else found
        return (("a0", found), *counted_once)
    named = [(f"a{number}", value) for number, value in enumerate(regions)]
    kept = same(KEPT_UNIT) if layout.source.conditional else ()
    return (*named, *((f"u{number}", value) for number, value in enumerate(steps)), *kept)


def each_value(each: Each) -> tree.Stored:
    """The value that is counted once, as a scan has it by name."""
    return tree.Stored("w0", each.line.type, VALUES)


def _when(test: tree.Test, found: tree.Value, default: tree.Value, kind: str = "BIGINT") -> tree.CaseValue:
    return tree.CaseValue(((test, found),), default, kind)


def _is_region(number: tree.Value) -> tree.Compared:
    return tree.Compared(number, ">=", tree.whole(0))


def _long(number: int) -> tree.Constant:
    return tree.Constant(number, "BIGINT")


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
    return tree.Cast(_when(tree.IsNull(value), tree.whole(axis.null_region), body), kind, bare=True)


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
        return _is_region(region(one, values))
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
        apart = tree.bare("-", value, at(axis.line, axis.first))
    else:
        apart = tree.bare("-", tree.Cast(value, "BIGINT", tries=True), _long(axis.first))
    return tree.Cast(_when(_on_run(value, axis), apart, tree.whole(-1)), "INTEGER", bare=True)


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
    return _when(
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
    found = tree.bare("list_extract", tree.Numbers(tuple(regions.values()), kind), place, type=kind)
    return tree.Coalesce((found, tree.whole(other)), kind)


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
        apart = tree.bare("-", value, at(line, back))
    elif line.type == kind and max(abs(back), end - 1, end - 1 - back) <= _LARGEST[kind] and first >= 0:
        apart = tree.bare("-", value, at(line, back), type=kind)
    else:
        apart = tree.bare("-", tree.Cast(value, "INTEGER", bare=True), tree.Constant(back, "INTEGER"))
    inside, missing = between(value, line, ((first, 0), (end, 0))), tree.IsNull(value)
    return tree.CaseValue(((inside, apart), (missing, tree.whole(axis.null_region))), tree.whole(pieces[0]), "BIGINT")


_LARGEST = {"TINYINT": 127, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1}


# Whole numbers that INTEGER holds with one to spare; days between year 1 and year 9999.
_FAR = {"integer": 2**31 - 2, "date": 700_000}


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


def cell(layout: Layout, regions: Sequence[tree.Value]) -> tree.Value:
    """The entry of x that a row's cell has, as BIGINT; -1 for a row that no query counts.

    ``layout`` has no measures. Its tables are held small by ``dpsql.workload.compile.compiled``.
    """
    cells, entry = layout.cells, layout.entry[0]
    assert isinstance(cells, Cells)  # noqa: S101 - distinct sources are compiled to merged cells
    return _walk(cells, entry, regions)


def counted(layout: Layout, regions: Sequence[tree.Value]) -> tree.Test | None:
    """A condition that is FALSE for rows that no query counts, for most of them at least; None where all may count.

    ``regions`` as in ``cell``. Rows without a region on an axis are in no cell; others may be in cells that the
    batch does not read, which is told where the tables of cells are short.
    """
    cells, wanted = layout.cells, [np.ones(axis.size, dtype=np.bool_) for axis in layout.cells.axes]
    if isinstance(cells, Cells):
        read = np.asarray((layout.entry >= 0).any(axis=0))
        if not read.all() or (cells.cell_of_state < 0).any():
            if len(cells.axes) <= _WALKED and sum(table.size for table in cells.transitions) <= _WALKED_CONSTANTS:
                return _is_region(_walk(cells, np.where(read, 0, -1), regions))
            wanted = _reading(cells, read)
    told = [_one_of(axis, region, mine) for axis, region, mine in zip(cells.axes, regions, wanted, strict=True)]
    return tree.Every(tuple(filter(None, told))) if any(told) else None


def _reading(cells: Cells, read: Flags) -> list[Flags]:
    """Of each axis which regions are in some cell of ``read`` (cells,), whatever the other axes are."""
    ends = np.zeros(len(cells.cell_of_state), dtype=np.bool_)
    known = cells.cell_of_state >= 0
    ends[known] = read[cells.cell_of_state[known]]
    leading = []
    for table in reversed(cells.transitions):
        leading.append(ends[table])
        ends = np.asarray(leading[-1].any(axis=1))
    states, found = np.array([0]), []
    for table, leads in zip(cells.transitions, reversed(leading), strict=True):
        found.append(np.asarray(leads[states].any(axis=0)))
        states = np.unique(table[states])
    return found


def _one_of(axis: Axis, region: tree.Value, wanted: Flags) -> tree.Test | None:
    """Whether a region is a wanted one, or, where these are many runs, one at all; None where each row's is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]))).reshape(-1, 2).tolist()
    if wanted.all() or len(edges) > MOST_COMPARED:
        return None if is_total(axis) else _is_region(region)
    runs = []
    for low, high in edges:
        ends = tree.Compared(region, ">=", tree.whole(low)), tree.Compared(region, "<", tree.whole(high))
        runs.append(tree.Every(ends))
    return tree.Some(tuple(runs))


def _walk(cells: Cells, values: IntArray, regions: Sequence[tree.Value]) -> tree.Value:
    """Of a row's cell its place in ``values``, a whole number each, as BIGINT; -1 for a row in no cell.

    ``Cells`` sends a row's regions to its cell by one table for each axis. Here the tables are lists of constants and
    the walk is nested ``list_extract``; a region -1 (no cell) asks for position 0, which gives NULL to the end.
    ``regions`` are expressions of the region numbers, an axis each.
    """
    if not cells.axes:
        return _long(int(values[0]) if len(values) else -1)
    # What the last state stands for: a cell, and its value.
    known = cells.cell_of_state >= 0
    last = np.full(len(cells.cell_of_state), -1, dtype=np.int64)
    last[known] = values[cells.cell_of_state[known]]
    state: tree.Value | None = None
    for number, (axis, table, of_axis) in enumerate(zip(cells.axes, cells.transitions, regions, strict=True)):
        constants = last[table] if number + 1 == len(cells.axes) else table
        place = tree.bare("+", tree.Cast(of_axis, "BIGINT", bare=True), _long(1))
        if state is not None:
            place = tree.bare("+", tree.bare("*", tree.Cast(state, "BIGINT", bare=True), _long(axis.size)), place)
        inside = _when(tree.Compared(of_axis, "<", tree.whole(0)), _long(0), place)
        state = tree.bare("list_extract", tree.Numbers(tuple(constants.ravel().tolist())), inside)
    assert state is not None  # noqa: S101 - there are axes
    return tree.Cast(tree.Coalesce((state, tree.whole(-1)), "BIGINT"), "BIGINT", bare=True)


def summed(measure: Measure, values: Mapping[str, tree.Value]) -> tree.Value:
    """What a row adds to a sum: u = z' + steps, or 2 z^2 for squares, a BIGINT in [0, 2 steps], NULL included."""
    u = shifted(measure, values)
    if measure.power == 1:
        return u
    # |u - grid| <= grid <= 2^20, so that nothing overflows.
    centred = tree.bare("-", u, _long(measure.grid))
    square = tree.bare("*", tree.bare("*", centred, centred), _long(2))
    missing = tree.IsNull(operand(measure.column, measure.line, values))
    return tree.Cast(_when(missing, tree.whole(measure.steps), square), "BIGINT", bare=True)


def shifted(measure: Measure, values: Mapping[str, tree.Value]) -> tree.Value:
    """u = z' + grid as BIGINT in [0, 2 grid]; NULL gives the z' of ``Measure.at_null``.

    Both sides are clamped before any arithmetic, and the arithmetic's result once more unless ``_stays_within`` shows
    that it need not be, so that no value can overflow or leave the bound (the sensitivity rests on it). The column of a
    "grid" line is an expression that counts whole steps from ``lower``; it, too, is clamped here, whatever it is.
    """
    column, steps = operand(measure.column, measure.line, values), measure.grid
    missing = (tree.IsNull(column), tree.whole(steps + (measure.at_null or 0)))
    if measure.line.kind == "grid":
        kind = "HUGEINT" if measure.line.type == "HUGEINT" else "BIGINT"
        least, most = tree.Constant(0, kind), tree.Constant(steps, kind)
        clamped = tree.bare("greatest", tree.Cast(column, kind, bare=True), least, type=kind)
        bounded = tree.Cast(tree.bare("least", clamped, most, type=kind), "BIGINT", bare=True)
        return tree.Cast(tree.CaseValue((missing,), tree.bare("*", bounded, _long(2)), "BIGINT"), "BIGINT", bare=True)
    if measure.line.kind == "integer" and measure.step == 1 and measure.lower.denominator == 1:
        low, high = int(measure.lower), int(measure.upper)
        # measure_of holds the bounds within BIGINT.
        index: tree.Value = tree.bare("-", tree.Cast(column, "BIGINT", bare=True), _long(low))
        under, over = _at_most(column, measure.line.type, low), _at_least(column, measure.line.type, high)
    else:
        value = tree.Cast(column, "DOUBLE", bare=True)
        apart = tree.bare("-", value, _double(measure.lower), type="DOUBLE")
        quotient = tree.bare("round", tree.bare("/", apart, _double(measure.step), type="DOUBLE"), type="DOUBLE")
        index = tree.Cast(quotient, "BIGINT", tries=True)
        if not _stays_within(measure):
            most = tree.whole(steps)
            index = tree.CaseValue(
                ((tree.Compared(index, ">", most), most), (tree.Compared(index, ">=", tree.whole(0)), index)),
                tree.whole(0),
                "BIGINT",
            )
        under = tree.Compared(value, "<=", _double(measure.lower))
        over = tree.Compared(value, ">=", _double(measure.upper))
    doubled = tree.bare("*", tree.Cast(index, "BIGINT", bare=True), _long(2))
    branches = (missing, (under, tree.whole(0)), (over, tree.whole(2 * steps)))
    return tree.Cast(tree.CaseValue(branches, doubled, "BIGINT"), "BIGINT", bare=True)


def _stays_within(measure: Measure) -> bool:
    """Whether round((v - lower) / step) is in [0, grid] for every v between the bounds, as doubles are computed.

    Subtraction and division by a positive number, rounded to the nearest double, and rounding to the nearest whole
    number never decrease where v grows (IEEE 754). So the result is at least that of v = lower, 0, and at most that of
    v = upper, worked out here by the same operations; below grid + 1/2 it is rounded to grid at most.
    """
    step = float(measure.step)
    if not step > 0.0 or not all(map(math.isfinite, (step, float(measure.lower), float(measure.upper)))):
        return False
    return (float(measure.upper) - float(measure.lower)) / step < measure.grid + 0.5


def _at_most(column: tree.Value, kind: str, bound: int) -> tree.Test:
    if kind == "UHUGEINT":
        # A cast to HUGEINT would fail on the upper half of the type.
        return tree.Some(()) if bound < 0 else tree.Compared(column, "<=", tree.Constant(bound, kind))
    return tree.Compared(_wide(column, kind), "<=", tree.whole(bound))


def _at_least(column: tree.Value, kind: str, bound: int) -> tree.Test:
    if kind == "UHUGEINT":
        return tree.ALWAYS if bound < 0 else tree.Compared(column, ">=", tree.Constant(bound, kind))
    return tree.Compared(_wide(column, kind), ">=", tree.whole(bound))


def _wide(column: tree.Value, kind: str) -> tree.Value:
    return column if kind in _NARROW else tree.Cast(column, "HUGEINT", bare=True)


# Integer types of which every value and every bound is a plain literal of BIGINT.
_NARROW = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})


def _double(value: Fraction) -> tree.Constant:
    return tree.Constant(float(value), "DOUBLE")
