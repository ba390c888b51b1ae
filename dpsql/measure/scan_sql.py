"""The text of the one private statement per table: rows to region numbers, counts and sums.

There is no WHERE: every row goes through the same total expressions, whatever the batch asks. They are over values
that were computed once and held to their ranges (``reading.named``). Region numbers come from CASE over comparisons
with constants; a narrow integer column looks its region up in a list instead. Sums are of non-negative integers
u = z' + steps, split into two words on the way out, because HUGEINT would come back as float64. Every function is
named in ``system.main``; comparisons, CASE and CAST are no functions that a macro could replace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpsql.arrays import Flags
from dpsql.quoting import string
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.compile.layout import Layout
from dpsql.workload.expr.conditions import Like
from dpsql.workload.expr.lines import Cut, Line
from dpsql.workload.expr.measures import Measure
from dpsql.workload.expr.regions import Axis, IntArray, LineAxis, OpaqueAxis, RunAxis
from dpsql.workload.expr.value_sql import call, like, literal, operand
from dpsql.workload.expr.values import Value

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
MOST_COMPARED = 8  # cuts of an axis up to which "is in a region" is comparisons


def select_list(layout: Layout) -> tuple[str, int]:
    """The SELECT list of a table's scan and how many of its first columns are group keys.

    Columns: a0, a1, ... the region of each axis (-1 for none), n the number of rows, and for
    each measure k the low and high word (base 2^32) of sum(z' + steps), s<k>_low, s<k>_high.
    Over the table itself they are computed in place; over any other source its rows hold them (``row_columns``
    of ``layout.whole``). A layout that is one of several has in a0, or without axes in ``KEPT``, -1 for a row without a
    region on any axis of the batch, as if all were one layout over all axes.
    """
    regions, steps = row_values(layout)
    if layout.source.distinct:
        regions = ["-1"]
    held = layout.whole
    place = {id(axis): number for number, axis in enumerate(held.cells.axes)}
    if not layout.source.plain:
        regions = ["a0"] if layout.source.distinct else [f"a{place[id(axis)]}" for axis in layout.cells.axes]
        steps = [f"u{held.measures.index(measure)}" for measure in layout.measures]
    names = [f"a{number}" for number in range(len(regions))]
    if layout.every is not None:
        if not regions:
            regions, names = ["0"], [KEPT]
        # The first axis has its own -1.
        first = {id(axis) for axis in layout.cells.axes[:1]}
        checked = [axis for axis in held.cells.axes if not is_total(axis) and id(axis) not in first]
        plain = layout.source.plain
        inside = [is_inside(axis, layout.values) if plain else f"a{place[id(axis)]} >= 0" for axis in checked]
        if inside:
            regions[0] = f"CASE WHEN {' AND '.join(inside)} THEN {regions[0]} ELSE -1 END"
    columns = [f"{value} AS {name}" for value, name in zip(regions, names, strict=True)]
    keys = len(columns)
    columns.append("CAST(system.main.count_star() AS BIGINT) AS n")
    for number, value in enumerate(steps):
        total = f"system.main.sum({value})"
        total = f"CAST(CASE WHEN {total} IS NULL THEN 0 ELSE {total} END AS HUGEINT)"
        columns.append(f'CAST(system.main."&"({total}, CAST({WORD - 1} AS HUGEINT)) AS BIGINT) AS s{number}_low')
        columns.append(f'CAST(system.main.">>"({total}, CAST(32 AS HUGEINT)) AS BIGINT) AS s{number}_high')
    return ", ".join(columns), keys


def row_values(layout: Layout) -> tuple[list[str], list[str]]:
    """The region number of each axis and u of each measure, as expressions over a row; total, never NULL."""
    values = layout.values
    regions = [region(axis, values) for axis in layout.cells.axes]
    return regions, [summed(measure, values) for measure in layout.measures]


def row_columns(layout: Layout) -> list[str]:
    """All that a scan uses of a row, "expression AS name": a0, ..., u0, ...; for distinct sources the cell as a0."""
    regions, steps = row_values(layout)
    if layout.source.distinct:
        return [f"{cell_text(layout, regions)} AS a0"]
    named = [f"{value} AS a{number}" for number, value in enumerate(regions)]
    return named + [f"{value} AS u{number}" for number, value in enumerate(steps)]


def region(axis: Axis, values: Mapping[str, Value]) -> str:
    """An expression that gives the row's region number on an axis; total, never NULL.

    ``values`` are the columns that the table does not store.
    """
    if isinstance(axis, OpaqueAxis):
        predicate = axis.predicate
        if isinstance(predicate, Like):
            holds = like(operand(predicate.column, axis.line, values), predicate.pattern)
        else:
            left, right = operand(predicate.left, axis.line, values), operand(predicate.right, axis.line, values)
            holds = f"({left} {predicate.operator} {right})"
        return f"CASE {holds} WHEN TRUE THEN 0 WHEN FALSE THEN 1 ELSE 2 END"
    value = operand(axis.column, axis.line, values)
    if isinstance(axis, RunAxis):
        return _place(value, axis)
    cuts, pieces = _simplified(axis)
    kind = "TINYINT" if axis.size < 127 else "SMALLINT" if axis.size < 32_000 else "INTEGER"
    listed = _listed(axis.line, cuts, pieces)
    if listed is not None:
        body = _among(value, listed, pieces[0], kind)
    elif _is_narrow(axis.line, cuts):
        body = _lookup(value, axis.line, cuts, pieces, kind)
    else:
        body = _tree(value, axis.line, cuts, pieces)
    return f"CAST(CASE WHEN {value} IS NULL THEN {axis.null_region} ELSE {body} END AS {kind})"


def is_total(axis: Axis) -> bool:
    """Whether every value and NULL has a region."""
    if isinstance(axis, RunAxis):
        return False
    return isinstance(axis, OpaqueAxis) or bool((axis.pieces >= 0).all() and axis.null_region >= 0)


def is_inside(axis: Axis, values: Mapping[str, Value]) -> str:
    """A condition that is TRUE where the row has a region on an axis, FALSE or NULL where it has none."""
    if isinstance(axis, OpaqueAxis):
        return "TRUE"
    if isinstance(axis, RunAxis):
        value = operand(axis.column, axis.line, values)
        low, high = (literal(axis.line, axis.first + end) for end in (0, axis.size - 1))
        return f"({value} >= {low} AND {value} <= {high})"
    one = replace(
        axis, pieces=np.where(axis.pieces >= 0, 0, -1), null_region=0 if axis.null_region >= 0 else -1, size=1
    )
    cuts, pieces = _simplified(one)
    if len(cuts) > MOST_COMPARED:
        return f"{region(one, values)} >= 0"
    value = operand(axis.column, axis.line, values)
    stretches = []
    for number, piece in enumerate(pieces):
        if piece < 0:
            continue
        ends = []
        if number:
            at, side = cuts[number - 1]
            ends.append(f"{value} {'>' if side else '>='} {literal(axis.line, at)}")
        if number < len(cuts):
            at, side = cuts[number]
            ends.append(f"{value} {'<=' if side else '<'} {literal(axis.line, at)}")
        stretches.append(f"({' AND '.join(ends) or f'{value} IS NOT NULL'})")
    if axis.null_region >= 0:
        stretches.append(f"{value} IS NULL")
    return f"({' OR '.join(stretches) or 'FALSE'})"


def _place(value: str, axis: RunAxis) -> str:
    """The distance from the first value of a run; both ends are checked before anything is subtracted."""
    low, high = (literal(axis.line, axis.first + end) for end in (0, axis.size - 1))
    if axis.line.kind == "date":
        apart = f'system.main."-"({value}, {low})'
    else:
        apart = f'system.main."-"(TRY_CAST({value} AS BIGINT), CAST({axis.first} AS BIGINT))'
    return f"CAST(CASE WHEN {value} >= {low} AND {value} <= {high} THEN {apart} ELSE -1 END AS INTEGER)"


def _simplified(axis: LineAxis) -> tuple[list[Cut], list[int]]:
    """Cuts and regions without the cuts between two pieces of one region."""
    cuts: list[Cut] = []
    pieces = [int(axis.pieces[0])]
    for cut, piece in zip(axis.cuts, axis.pieces[1:], strict=True):
        if int(piece) != pieces[-1]:
            cuts.append(cut)
            pieces.append(int(piece))
    return cuts, pieces


def _tree(value: str, line: Line, cuts: Sequence[Cut], pieces: Sequence[int]) -> str:
    """Binary search over the cuts as nested CASE."""
    if not cuts:
        return str(pieces[0])
    middle = len(cuts) // 2
    at, side = cuts[middle]
    below = f"{value} {'<=' if side else '<'} {literal(line, at)}"
    return (
        f"CASE WHEN {below} THEN {_tree(value, line, cuts[:middle], pieces[: middle + 1])} "
        f"ELSE {_tree(value, line, cuts[middle + 1 :], pieces[middle + 1 :])} END"
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


def _among(value: str, regions: Mapping[str, int], other: int, kind: str) -> str:
    """The region by the place of the value in a list of constants, 0 or NULL where it is in none."""
    constants = f"system.main.list_value({', '.join(map(string, regions))})"
    place = f"system.main.list_position({constants}, {value})"
    return f"COALESCE(system.main.list_extract({_constants(list(regions.values()), kind)}, {place}), {other})"


def _is_narrow(line: Line, cuts: Sequence[Cut]) -> bool:
    if line.kind not in ("integer", "date") or len(cuts) < 4:
        return False
    first, last = int(cuts[0][0]), int(cuts[-1][0])
    width = min(max(LOOKUP_WIDTH, LOOKUP_PER_CUT * len(cuts)), LONGEST_LOOKUP)
    return last - first < width and abs(first) < _FAR[line.kind] and abs(last) < _FAR[line.kind]


# Whole numbers that INTEGER holds with one to spare; days between year 1 and year 9999.
_FAR = {"integer": 2**31 - 2, "date": 700_000}


def _lookup(value: str, line: Line, cuts: Sequence[Cut], pieces: Sequence[int], kind: str) -> str:
    """The region by position in a list of constants, the value clamped to the cuts' span."""
    first, last = int(cuts[0][0]), int(cuts[-1][0])
    regions = [pieces[0]]
    for number, (at, _) in enumerate(cuts):
        stop = int(cuts[number + 1][0]) if number + 1 < len(cuts) else last + 1
        regions.extend([pieces[number + 1]] * (stop - int(at)))
    # The clamp is a CASE, so that the subtraction never sees a value outside the span, nor an infinite date.
    if line.kind == "date":
        low, high = literal(line, first), literal(line, last)
        clamped = (
            f"CASE WHEN {value} < {low} THEN {literal(line, first - 1)} WHEN {value} > {high} THEN {high} "
            f"ELSE {value} END"
        )
        position = f'system.main."-"({clamped}, {literal(line, first - 2)})'
    else:
        clamped = (
            f"CASE WHEN {value} < {first} THEN {first - 1} WHEN {value} > {last} THEN {last} "
            f"ELSE CAST({value} AS INTEGER) END"
        )
        position = f'system.main."-"({clamped}, CAST({first - 2} AS INTEGER))'
    return f"system.main.list_extract({_constants(regions, kind)}, {position})"


def _constants(regions: Sequence[int], kind: str) -> str:
    """A list of regions; as text that is cast, which takes DuckDB a tenth of the time of so many constants."""
    return f"CAST('[{', '.join(map(str, regions))}]' AS {kind}[])"


def cell_text(layout: Layout, regions: Sequence[str]) -> str:
    """The entry of x that a row's cell has, as BIGINT; -1 for a row that no query counts.

    ``layout`` has no measures. Its tables are held small by ``dpsql.workload.compile.compiled``.
    """
    cells, entry = layout.cells, layout.entry[0]
    assert isinstance(cells, Cells)  # noqa: S101 - distinct sources are compiled to merged cells
    return _walk(cells, entry, regions)


def counted_text(layout: Layout, regions: Sequence[str]) -> str | None:
    """A condition that is FALSE for rows that no query counts, for most of them at least; None where all may count.

    ``regions`` as in ``cell_text``. Rows without a region on an axis are in no cell; others may be in cells that the
    batch does not read, which is told where the tables of cells are short.
    """
    cells, whole = layout.cells, [np.ones(axis.size, dtype=np.bool_) for axis in layout.cells.axes]
    if isinstance(cells, Cells):
        read = np.asarray((layout.entry >= 0).any(axis=0))
        if not read.all() or (cells.cell_of_state < 0).any():
            if len(cells.axes) <= _WALKED and sum(table.size for table in cells.transitions) <= _WALKED_CONSTANTS:
                return f"{_walk(cells, np.where(read, 0, -1), regions)} >= 0"
            whole = _reading(cells, read)
    told = [_one_of(axis, region, mine) for axis, region, mine in zip(cells.axes, regions, whole, strict=True)]
    return " AND ".join(filter(None, told)) or None


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


def _one_of(axis: Axis, region: str, wanted: Flags) -> str:
    """Whether a region is a wanted one, or, where these are many runs, one at all; nothing where each row's is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]))).reshape(-1, 2).tolist()
    if wanted.all() or len(edges) > MOST_COMPARED:
        return "" if is_total(axis) else f"{region} >= 0"
    return f"({' OR '.join(f'({region} >= {low} AND {region} < {high})' for low, high in edges) or 'FALSE'})"


def _walk(cells: Cells, values: IntArray, regions: Sequence[str]) -> str:
    """Of a row's cell its place in ``values``, a whole number each, as BIGINT; -1 for a row in no cell.

    ``Cells`` sends a row's regions to its cell by one table for each axis. Here the tables are lists of constants and
    the walk is nested ``list_extract``; a region -1 (no cell) asks for position 0, which gives NULL to the end.
    ``regions`` are expressions of the region numbers, an axis each.
    """
    if not cells.axes:
        return f"CAST({int(values[0]) if len(values) else -1} AS BIGINT)"
    # What the last state stands for: a cell, and its value.
    known = cells.cell_of_state >= 0
    last = np.full(len(cells.cell_of_state), -1, dtype=np.int64)
    last[known] = values[cells.cell_of_state[known]]
    state = ""
    for number, (axis, table, region) in enumerate(zip(cells.axes, cells.transitions, regions, strict=True)):
        constants = last[table] if number + 1 == len(cells.axes) else table
        place = f'system.main."+"(CAST({region} AS BIGINT), CAST(1 AS BIGINT))'
        if state:
            row = f'system.main."*"(CAST({state} AS BIGINT), CAST({axis.size} AS BIGINT))'
            place = f'system.main."+"({row}, {place})'
        inside = f"CASE WHEN {region} < 0 THEN CAST(0 AS BIGINT) ELSE {place} END"
        listed = ", ".join(map(str, constants.ravel().tolist()))
        state = f"system.main.list_extract([{listed}], {inside})"
    return f"CAST(COALESCE({state}, -1) AS BIGINT)"


def summed(measure: Measure, values: Mapping[str, Value]) -> str:
    """What a row adds to a sum: u = z' + steps, or 2 z^2 for squares, a BIGINT in [0, 2 steps]; NULL gives steps."""
    u = shifted(measure, values)
    if measure.power == 1:
        return u
    # |u - grid| <= grid <= 2^20, so that nothing overflows.
    centred = f'system.main."-"({u}, CAST({measure.grid} AS BIGINT))'
    square = f'system.main."*"(system.main."*"({centred}, {centred}), CAST(2 AS BIGINT))'
    name = operand(measure.column, measure.line, values)
    return f"CAST(CASE WHEN {name} IS NULL THEN {measure.steps} ELSE {square} END AS BIGINT)"


def shifted(measure: Measure, values: Mapping[str, Value]) -> str:
    """u = z' + grid as BIGINT in [0, 2 grid]; NULL gives z' = 0, that is u = grid.

    Both sides are clamped before any arithmetic, and the arithmetic's result once more, so that
    no value can overflow or leave the bound (the sensitivity rests on it). The column of a "grid" line
    is an expression that counts whole steps from ``lower``; it, too, is clamped here, whatever it is.
    """
    name, steps = operand(measure.column, measure.line, values), measure.grid
    if measure.line.kind == "grid":
        kind = "HUGEINT" if measure.line.type == "HUGEINT" else "BIGINT"
        least, most = f"CAST(0 AS {kind})", f"CAST({steps} AS {kind})"
        bounded = call("least", call("greatest", f"CAST({name} AS {kind})", least), most)
        doubled = call("*", f"CAST({bounded} AS BIGINT)", "CAST(2 AS BIGINT)")
        return f"CAST(CASE WHEN {name} IS NULL THEN {steps} ELSE {doubled} END AS BIGINT)"
    if measure.line.kind == "integer" and measure.step == 1 and measure.lower.denominator == 1:
        low, high = int(measure.lower), int(measure.upper)
        kind = measure.line.type
        # measure_of holds the bounds within BIGINT.
        index = f'system.main."-"(CAST({name} AS BIGINT), CAST({low} AS BIGINT))'
        bounded = f"CAST({index} AS BIGINT)"
        below, above = _at_most(name, kind, low), _at_least(name, kind, high)
    else:
        value = f"CAST({name} AS DOUBLE)"
        index = f'system.main."/"(system.main."-"({value}, {_double(measure.lower)}), {_double(measure.step)})'
        quotient = f"TRY_CAST(system.main.round({index}) AS BIGINT)"
        bounded = f"CASE WHEN {quotient} > {steps} THEN {steps} WHEN {quotient} >= 0 THEN {quotient} ELSE 0 END"
        bounded = f"CAST({bounded} AS BIGINT)"
        below, above = f"{value} <= {_double(measure.lower)}", f"{value} >= {_double(measure.upper)}"
    return (
        f"CAST(CASE WHEN {name} IS NULL THEN {steps} WHEN {below} THEN 0 WHEN {above} THEN {2 * steps} "
        f'ELSE system.main."*"({bounded}, CAST(2 AS BIGINT)) END AS BIGINT)'
    )


def _at_most(name: str, kind: str, bound: int) -> str:
    if kind == "UHUGEINT":
        # A cast to HUGEINT would fail on the upper half of the type.
        return "FALSE" if bound < 0 else f"{name} <= CAST({bound} AS UHUGEINT)"
    return f"{name if kind in _NARROW else f'CAST({name} AS HUGEINT)'} <= {bound}"


def _at_least(name: str, kind: str, bound: int) -> str:
    if kind == "UHUGEINT":
        return "TRUE" if bound < 0 else f"{name} >= CAST({bound} AS UHUGEINT)"
    return f"{name if kind in _NARROW else f'CAST({name} AS HUGEINT)'} >= {bound}"


# Integer types of which every value and every bound is a plain literal of BIGINT.
_NARROW = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})


def _double(value: Fraction) -> str:
    return f"CAST('{float(value)!r}' AS DOUBLE)"
