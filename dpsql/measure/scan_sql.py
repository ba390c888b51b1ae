"""The columns of the one private statement per table: rows to region numbers, counts and sums.

There is no WHERE: every row goes through the same total expressions, whatever the batch asks. They are over values
that were computed once and held to their ranges (``reading.named``). Sums are of non-negative integers
u = z' + steps, which come in two words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from dpsql.common.arrays import Flags
from dpsql.measure.region_sql import MOST_COMPARED, is_inside, is_region, region, when
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import Axis, IntArray, is_total
from dpsql.workloads.expr.rows import KEPT as KEPT_UNIT
from dpsql.workloads.expr.rows import Each
from dpsql.workloads.expr.scan import Column, same
from dpsql.workloads.expr.total import VALUES, operand
from dpsql.workloads.expr.unit_sums import UnitSum

WORD = 2**32
# The key that says whether a row counts, of a scan by no axis.
KEPT = "kept"
_KEPT_UNIT = tree.Compared(tree.Name(KEPT_UNIT), "=", tree.whole(0))


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
    whole, plain = layout.whole, layout.source.plain
    place = {id(axis): tree.Name(f"a{number}") for number, axis in enumerate(whole.cells.axes)}
    if not plain:
        regions = [tree.Name("a0")] if layout.source.distinct else [place[id(axis)] for axis in layout.cells.axes]
        steps = [tree.Name(f"u{whole.measures.index(measure)}") for measure in layout.measures]
    names = [f"a{number}" for number in range(len(regions))]
    if tells(layout):
        if not regions:
            regions, names = [tree.whole(0)], [KEPT]
        inside = _counts(layout, layout.cells.axes[:1])  # the first axis has its own -1
        if inside:
            regions[0] = when(tree.Every(inside), regions[0], tree.whole(-1))
    columns: list[Column] = [*zip(names, regions, strict=True), ("n", tree.CountRows())]
    for number, (value, measure) in enumerate(zip(steps, layout.measures, strict=True)):
        most = 2 * measure.steps
        columns += [(f"s{number}_{'high' if high else 'low'}", tree.Word(value, high, most)) for high in (False, True)]
    return tuple(columns), len(names)


def row_list(layout: Layout) -> tuple[Column, ...]:
    """The columns of the rows themselves: a0, ... and u0, ... of all that the batch reads, and ``KEPT``, -1 for a row
    that does not count.
    """
    columns = row_columns(layout.whole)
    listed = columns if layout.source.plain else same(*(name for name, _ in columns))
    inside = _counts(layout, ())
    flag = when(tree.Every(inside), tree.whole(0), tree.whole(-1)) if inside else tree.whole(0)
    counted = tree.Cast(flag, "TINYINT", bare=True)
    return (*((name, value) for name, value in listed if name != KEPT_UNIT), (KEPT, counted))


def _counts(layout: Layout, but: Sequence[Axis]) -> tuple[tree.Test, ...]:
    """What holds for a row that counts: it has a region on each axis of the batch ``but`` some, and its conditions."""
    left_out, inside = {id(axis) for axis in but}, list[tree.Test]()
    for number, axis in enumerate(layout.whole.cells.axes):
        if not is_total(axis) and id(axis) not in left_out:
            stored = layout.source.plain
            inside.append(is_inside(axis, layout.values) if stored else is_region(tree.Name(f"a{number}")))
    return (*inside, _KEPT_UNIT) if layout.source.conditional else tuple(inside)


def tells(layout: Layout) -> bool:
    """Whether a scan tells rows that do not count by its first key; that of a distinct source tells by the cell."""
    return not layout.source.distinct and (layout.every is not None or layout.source.conditional)


def row_values(layout: Layout) -> tuple[list[tree.Value], list[tree.Value]]:
    """The region number of each axis and u of each measure, as expressions over a row; total, never NULL."""
    values, added = layout.values, layout.source.added
    regions = [region(axis, values) for axis in layout.cells.axes]
    if added is not None:
        return regions, [steps_from_zero(added, values)]
    return regions, [summed(measure, values) for measure in layout.measures]


def row_columns(layout: Layout) -> tuple[Column, ...]:
    """All that a scan uses of a row: a0, ..., u0, ...; for distinct sources the cell as a0."""
    regions, steps = row_values(layout)
    if layout.source.distinct:
        counted_once = () if layout.source.each is None else (("d0", each_value(layout.source.each)),)
        number = cell(layout, regions)
        number = when(_KEPT_UNIT, number, tree.long(-1)) if layout.source.conditional else number
        sums = [(f"u{number}", value) for number, value in enumerate(steps)]
        return (("a0", number), *counted_once, *sums)
    named = [(f"a{number}", value) for number, value in enumerate(regions)]
    flag = same(KEPT_UNIT) if layout.source.conditional else ()
    return (*named, *((f"u{number}", value) for number, value in enumerate(steps)), *flag)


def each_value(each: Each) -> tree.Stored:
    """The value that is counted once, as a scan has it by name."""
    return tree.Stored("w0", each.line.type, VALUES)


def cell(layout: Layout, regions: Sequence[tree.Value]) -> tree.Value:
    """The entry of x that a row's cell has, as BIGINT; -1 for a row that no query counts.

    ``layout`` has one number for each cell. Its tables are held small by ``dpsql.workloads.compile.compiled``.
    """
    return _walk(layout.listed_cells, layout.entry.max(axis=0), regions)


def counted(layout: Layout, regions: Sequence[tree.Value]) -> tree.Test | None:
    """A condition that is FALSE for rows that no query counts, for most of them at least; None where all may count.

    ``regions`` as in ``cell``. Rows without a region on an axis are in no cell; others may be in cells that the
    batch does not read, which is told where the tables of cells are short.
    """
    cells, chosen = layout.cells, [np.ones(axis.size, dtype=np.bool_) for axis in layout.cells.axes]
    if isinstance(cells, Cells):
        read = np.asarray((layout.entry >= 0).any(axis=0))
        if not read.all() or (cells.cell_of_state < 0).any():
            if layout.tells_cells:
                return is_region(_walk(cells, np.where(read, 0, -1), regions))
            chosen = _reading(cells, read)
    tests = [_one_of(axis, region, mine) for axis, region, mine in zip(cells.axes, regions, chosen, strict=True)]
    return tree.Every(tuple(filter(None, tests))) if any(tests) else None


def _reading(cells: Cells, read: Flags) -> list[Flags]:
    """Of each axis which regions are in some cell of ``read`` (cells,), whatever the other axes are."""
    ends = np.zeros(len(cells.cell_of_state), dtype=np.bool_)
    ending = cells.cell_of_state >= 0
    ends[ending] = read[cells.cell_of_state[ending]]
    leading = []
    for table in reversed(cells.transitions):
        leading.append(ends[table])
        ends = np.asarray(leading[-1].any(axis=1))
    states, reading = np.array([0]), []
    for table, leads in zip(cells.transitions, reversed(leading), strict=True):
        reading.append(np.asarray(leads[states].any(axis=0)))
        states = np.unique(table[states])
    return reading


def _one_of(axis: Axis, region: tree.Value, chosen: Flags) -> tree.Test | None:
    """Whether a region is a chosen one, or, where these are many runs, one at all; None where each row's is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]))).reshape(-1, 2).tolist()
    if chosen.all() or len(edges) > MOST_COMPARED:
        return None if is_total(axis) else is_region(region)
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
        return tree.long(int(values[0]) if len(values) else -1)
    # What the last state stands for: a cell, and its value.
    ending = cells.cell_of_state >= 0
    last = np.full(len(cells.cell_of_state), -1, dtype=np.int64)
    last[ending] = values[cells.cell_of_state[ending]]
    state: tree.Value | None = None
    for number, (axis, table, of_axis) in enumerate(zip(cells.axes, cells.transitions, regions, strict=True)):
        constants = last[table] if number + 1 == len(cells.axes) else table
        place = tree.bare("+", tree.Cast(of_axis, "BIGINT", bare=True), tree.long(1))
        if state is not None:
            place = tree.bare("+", tree.bare("*", tree.Cast(state, "BIGINT", bare=True), tree.long(axis.size)), place)
        inside = when(tree.Compared(of_axis, "<", tree.whole(0)), tree.long(0), place)
        state = tree.bare("list_extract", tree.Numbers(tuple(constants.ravel().tolist())), inside)
    assert state is not None  # noqa: S101 - there are axes
    return tree.Cast(tree.Coalesce((state, tree.whole(-1)), "BIGINT"), "BIGINT", bare=True)


def summed(measure: Measure, values: Mapping[str, tree.Value]) -> tree.Value:
    """What a row adds to a sum: u = z' + steps, or 2 z^2 for squares, a BIGINT in [0, 2 steps], NULL included."""
    u = shifted(measure, values)
    if measure.power == 1:
        return u
    # |u - grid| <= grid <= 2^20, so that nothing overflows.
    centred = tree.bare("-", u, tree.long(measure.grid))
    square = tree.bare("*", tree.bare("*", centred, centred), tree.long(2))
    missing = tree.IsNull(operand(measure.column, measure.line, values))
    return tree.Cast(when(missing, tree.whole(measure.steps), square), "BIGINT", bare=True)


def steps_from_zero(added: UnitSum, values: Mapping[str, tree.Value]) -> tree.Value:
    """A row's value in whole steps, clamped to its bounds, as BIGINT; 0 for NULL."""
    row = added.row
    # 2 x steps from the lower bound; the plan holds the bounds below 2^61 steps.
    steps = tree.bare("//", shifted(row, values), tree.long(2))
    steps = tree.bare("+", steps, tree.long(added.shift)) if added.shift else steps
    return when(tree.IsNull(operand(row.column, row.line, values)), tree.long(0), steps)


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
        return tree.Cast(
            tree.CaseValue((missing,), tree.bare("*", bounded, tree.long(2)), "BIGINT"), "BIGINT", bare=True
        )
    if measure.line.kind == "integer" and measure.step == 1 and measure.lower.denominator == 1:
        low, high = int(measure.lower), int(measure.upper)
        # measure_of holds the bounds within BIGINT.
        index: tree.Value = tree.bare("-", tree.Cast(column, "BIGINT", bare=True), tree.long(low))
        under, over = _at_most(column, measure.line.type, low), _at_least(column, measure.line.type, high)
    else:
        value = tree.Cast(column, "DOUBLE", bare=True)
        offset = tree.bare("-", value, _double(measure.lower), type="DOUBLE")
        quotient = tree.bare("round", tree.bare("/", offset, _double(measure.step), type="DOUBLE"), type="DOUBLE")
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
    doubled = tree.bare("*", tree.Cast(index, "BIGINT", bare=True), tree.long(2))
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
