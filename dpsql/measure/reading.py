"""What scans read and select: the requests that go to the engine.

A table with many layouts, histograms over some of its axes each, is scanned for several of them at once: by the
combinations of their axes, few enough to be held, whose counts add up to each histogram. Where there are very many
histograms the regions of its rows are read, once for all of them, and counted here (``dpsql.measure.row_by_row``).

Rows that count. One layout over all axes sends a row without a region on some axis (a value outside a closed domain, a
NULL that the policy rules out) to no cell. Each of many layouts has some of the axes; its scan looks at the others too
(``Layout.every``), so that the same rows are in no cell of it. With S the rows that have a region on every axis, the
histogram over any axes is then the marginal of the table's cells over all axes, both counting S: every answer is the
same, whichever way its batch is compiled, but for which rows of a unit with more than k are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpsql.engines.base import Scan, TableSource
from dpsql.measure.counts_over_same_rows import Bounded, Materialize, bound_units, column_of, columns_of, count_of
from dpsql.measure.from_sql import CapColumn, base_of, holds, owned, owned_values, rows_of, values_of
from dpsql.measure.region_sql import region
from dpsql.measure.scan_sql import KEPT, counted, each_value, row_columns, row_list, select_list, tells
from dpsql.measure.unit_sums_sql import added_up
from dpsql.policy.values import fold
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.caps import leave_few
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.conditions import Like
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import Axis, LineAxis, OpaqueAxis
from dpsql.workloads.expr.rows import KEPT as KEPT_UNIT
from dpsql.workloads.expr.rows import RowSource, one_choice
from dpsql.workloads.expr.scan import Column, Relation, Select, same
from dpsql.workloads.expr.total import VALUES, Once, at, read_once
from dpsql.workloads.expr.values import Constant, Every, Name, Stored, Value, stored

MAX_GROUPS = 2**21
"""The most combinations of regions by which one scan groups for several layouts."""


MANY = 64
"""Histograms over one source from which its rows are read, where the engine can keep them."""
MOST_COUNTED = 2**16
"""The most cells of each of these histograms."""


@dataclass(frozen=True)
class Reading:
    """One scan: a ``layout`` to scan by, and the layouts that it fills with the scan's columns that they read.

    ``rows``: the scan reads all axes of single rows, which are counted by each layout.
    """

    layout: Layout
    parts: tuple[tuple[Layout, Mapping[str, str]], ...]
    rows: bool = False

    def scan(self, sources: Mapping[str, TableSource], units: Bounded | None = None) -> Scan:
        """What the engine is asked for."""
        if not self.rows:
            return scan_of(self.layout, sources, units=units)
        layout, rows = _rows(self.layout, sources)
        tables = tuple(sources[name] for name in layout.source.tables)
        return Scan(layout.source.table, tables, Select(row_list(layout), rows), _axes(layout))


def scans_of(layouts: Sequence[Layout], *, keeps: bool = False) -> list[Reading]:
    """The scans that fill all layouts: one each, fewer where histograms over one source share theirs.

    ``keeps``: whether the engine can keep rows. Raises InternalError where two would take other rows of a table.
    """
    one_choice({id(layout.source): layout.source for layout in layouts}.values())
    readings: list[Reading] = []
    shared: dict[tuple[object, ...], list[Layout]] = {}
    for layout in layouts:
        if isinstance(layout.cells, Grid):
            shared.setdefault((layout.table, layout.source, layout.measures), []).append(layout)
        else:
            readings.append(Reading(layout, ((layout, _columns(layout, layout)),)))
    if keeps:
        readings += _of_rows(shared)
    for mates in shared.values():
        for axes, chosen in _covered(mates):
            scanned = _over(mates[0], axes)
            readings.append(Reading(scanned, tuple((layout, _columns(layout, scanned)) for layout in chosen)))
    return readings


def _of_rows(shared: dict[tuple[object, ...], list[Layout]]) -> list[Reading]:
    """The readings of rows, whose layouts leave ``shared``."""
    by_source: dict[tuple[object, ...], list[Layout]] = {}
    for (table, key, _), mates in shared.items():
        by_source.setdefault((table, key), []).extend(mates)
    readings = []
    for key, mates in by_source.items():
        if len(mates) >= MANY and all(layout.every and len(layout.cells) <= MOST_COUNTED for layout in mates):
            whole = mates[0].whole
            readings.append(Reading(mates[0], tuple((layout, _columns(layout, whole)) for layout in mates), rows=True))
            for key in [key for key in shared if key[:2] == key]:
                del shared[key]
    return readings


def _over(layout: Layout, axes: Iterable[Axis]) -> Layout:
    """The layout's rows by a grid of other axes, each once; its entries stay and mean nothing."""
    once = {id(axis): axis for axis in axes}
    return replace(layout, cells=Grid(tuple(once.values())))


def _columns(layout: Layout, scanned: Layout) -> dict[str, str]:
    """The scan's column for each that the layout reads."""
    if layout.together is not None:
        return {name: name for name in columns_of(layout)}
    place = {id(axis): number for number, axis in enumerate(scanned.cells.axes)}
    columns = {f"a{number}": f"a{place[id(axis)]}" for number, axis in enumerate(layout.cells.axes)}
    if layout.source.distinct:
        columns = {"a0": "a0"}
    if tells(layout):
        columns[KEPT] = KEPT if not scanned.cells.axes else "a0"
    sums = [f"s{number}_{half}" for number in range(len(layout.measures)) for half in ("low", "high")]
    return {**columns, "n": "n", **{name: name for name in sums}}


def _covered(layouts: Sequence[Layout]) -> list[tuple[list[Axis], list[Layout]]]:
    """Few sets of axes with at most ``MAX_GROUPS`` combinations, and the layouts that each holds: greedy.

    A set begins with an open layout and takes the axis that completes the most others, or brings most of them nearer.
    """
    axes = list({id(axis): axis for layout in layouts for axis in layout.cells.axes}.values())
    sizes = np.array([axis.size for axis in axes], dtype=float)
    place = {id(axis): number for number, axis in enumerate(axes)}
    member = np.zeros((len(layouts), len(axes)), dtype=bool)
    for number, layout in enumerate(layouts):
        member[number, [place[id(axis)] for axis in layout.cells.axes]] = True
    open_ = np.ones(len(layouts), dtype=bool)
    sets = []
    while open_.any():
        inside = member[np.flatnonzero(open_)[0]].copy()
        while True:
            room = ~inside & (sizes * sizes[inside].prod() <= MAX_GROUPS)
            missing = member & ~inside
            lacking = missing.sum(axis=1)
            incomplete = open_ & (lacking > 0)
            if not room.any() or not incomplete.any():
                break
            # A layout that lacks one axis is worth far more than one that lacks two.
            worth = (missing[incomplete] / 32.0 ** lacking[incomplete, None]).sum(axis=0) / np.log(sizes + 1.0)
            worth[~room] = 0.0
            if not worth.any():
                break
            inside[int(np.argmax(worth))] = True
        covered = open_ & ~(member & ~inside).any(axis=1)
        open_ &= ~covered
        sets.append(([axes[i] for i in np.flatnonzero(inside)], [layouts[i] for i in np.flatnonzero(covered).tolist()]))
    return sets


def units_of(layout: Layout, sources: Mapping[str, TableSource], materialize: Materialize = lambda s: s) -> Bounded:
    """The bounded units that ``layout.together`` counts."""
    source, used, together = layout.source, joined_columns(layout), layout.together
    assert together is not None  # noqa: S101 - asked before
    layout_named, once = named(layout)
    values, caps = _caps(source)
    rows = owned(source, used, (*once, *values), column_of(together.walk, layout_named.values), caps)
    tables = tuple(sources[name] for name in source.tables)
    return bound_units(together, Scan(source.table, tables, rows, _axes(layout_named)), materialize)


def scan_of(layout: Layout, sources: Mapping[str, TableSource], *beside: Column, units: Bounded | None = None) -> Scan:
    """The scan for one layout, grouped by its keys.

    ``sources`` hold every table of ``layout.source.tables``. A table of single rows without joins is
    scanned as it is. Where a unit's rows are truncated they are chosen by all that the batch reads of these rows
    (``Layout.whole``), so that every scan counts the same ones. ``beside``: columns of a plain table that are keys
    before all others. ``units``: those that are counted together, if they are bounded already.
    """
    if layout.together is not None:
        return count_of(layout, units_of(layout, sources) if units is None else units)
    layout, rows = _rows(layout, sources, *beside)
    columns, keys = select_list(layout)
    select = Select((*same(*(name for name, _ in beside)), *columns), rows, group_by=keys + len(beside))
    return Scan(layout.source.table, tuple(sources[name] for name in layout.source.tables), select, _axes(layout))


def _rows(layout: Layout, sources: Mapping[str, TableSource], *beside: Column) -> tuple[Layout, Relation]:
    """The rows of a scan, and the layout over their columns; arguments as ``scan_of``."""
    source, used = layout.source, joined_columns(layout)
    beside_axes: list[Once] = []
    if source.each is not None:
        used = (*used, *(part for part in stored(source.each.computed) if part.source and part not in used))
        beside_axes = [read_once(source.each.computed, source.each.line, each_value(source.each).name)]
    few = leave_few(layout)  # by the values that bounds are over, before they have names
    layout, once = named(layout)
    rows: Relation = base_of(source, sources[source.table].name)
    if not source.plain:
        whole = layout.whole
        values, caps = _caps(source)
        matters = None if source.distinct else counted(whole, [Name(f"a{i}") for i in range(len(whole.cells.axes))])
        if source.conditional and not source.distinct:
            matters = Every((*(() if matters is None else (matters,)), holds(KEPT_UNIT)))
        entry = layout.entry if layout.tie is None else layout.tie.counted.entry
        cells = len(np.unique(entry[entry >= 0]))
        every = (*once, *values, *beside_axes)
        if source.added is not None:
            columns = row_columns(whole)
            return layout, added_up(source, owned_values(source, used, every, columns), columns, caps, cells)
        cell = None if layout.tie is None else row_columns(layout.tie.counted)[0][1]
        rows = rows_of(
            *(source, used, row_columns(whole)),
            once=every,
            cells=cells,
            caps=caps,
            counted=matters,
            cell=cell,
            few=few,
        )
    elif once or beside:
        rows = values_of(once, rows, *beside)
    return layout, rows


def _axes(layout: Layout) -> tuple[tuple[tuple[str, ...], Axis], ...]:
    """All axes of a scan, each with its columns among the rows' values; ``layout`` as ``named`` gives it."""
    read = [*_mates(layout), layout.whole, *(() if layout.tie is None else (layout.tie.counted,))]
    axes = [axis for one in read for axis in one.cells.axes]
    axes += () if layout.together is None else layout.together.walk.axes
    axes_read: list[tuple[tuple[str, ...], Axis]] = []
    for axis in {id(axis): axis for axis in axes}.values():
        columns = [layout.values[column] for column, _ in _of_axis(axis)]
        names = tuple(column.name for column in columns if isinstance(column, Stored))
        if len(names) == len(columns):  # a day that is known is no column
            axes_read.append((names, axis))
    return (*axes_read, *(((f"v{number}",), cap.axis) for number, cap in enumerate(layout.source.grouped)))


def _caps(source: RowSource) -> tuple[list[Once], list[CapColumn]]:
    """The values that decide a row's group of each cap, and the caps by their region numbers."""
    once, caps = [], []
    for number, cap in enumerate(source.grouped):
        value = Stored(f"v{number}", cap.line.type, VALUES)
        once.append(read_once(cap.computed, cap.line, value.name))
        group = region(cap.axis, {cap.column: value})
        caps.append(CapColumn(f"p{number}", group, cap.rows, cap.groups))
    return once, caps


def named(layout: Layout) -> tuple[Layout, tuple[Once, ...]]:
    """The layout over rows that have the values of its axes and measures as columns, and these values.

    Everything that a scan does after that is comparisons, lookups and sums of the columns. A column of days of which
    WHERE leaves those of one region is a constant.
    """
    columns: dict[str, Value] = {}
    once: list[Once] = []
    values = _values(layout)
    for column, line in _all_operands(layout):
        if column in columns:
            continue
        day = None if column in values else _one_day(layout, column)
        if day is not None:
            columns[column] = day
            continue
        name = f"c{len(columns)}"
        once.append(read_once(values.get(column, Stored(column, line.type)), line, name))
        columns[column] = Stored(name, line.type, VALUES)
    tie = layout.tie and replace(layout.tie, counted=replace(layout.tie.counted, values=columns))
    return replace(layout, values=columns, tie=tie), tuple(once)


def _one_day(layout: Layout, column: str) -> Constant | None:
    """A day of the region that all rows have that are read; None where there may be more, or more is asked of a day."""
    source = layout.source
    if not source.plain or source.only is None or not isinstance(source.only.value, Stored):
        return None
    axes = [axis for axis in layout.whole.cells.axes if any(name == column for name, _ in _of_axis(axis))]
    low, high = source.only.intervals[0][0], source.only.intervals[-1][1]
    if (
        fold(source.only.value.name) != fold(column)
        or any(measure.column == column for measure in layout.whole.measures)
        or low is None
        or high is None
        or low[1]
        or not all(
            isinstance(axis, LineAxis)
            and axis.line.kind == source.only.line.kind
            and not any(low < cut < high for cut in axis.cuts)
            for axis in axes
        )
    ):
        return None
    return at(source.only.line, low[0])


def _all_operands(layout: Layout) -> Iterator[tuple[str, Line]]:
    """``_operands`` of all that the batch reads of a row, and of the cells in which its unit is counted."""
    for each in _mates(layout) or (layout.whole,):
        yield from _operands(each)
    if layout.tie is not None:
        yield from _operands(layout.tie.counted)


def _mates(layout: Layout) -> tuple[Layout, ...]:
    """All that count units over the same rows."""
    return () if layout.together is None else layout.together.all


def _values(layout: Layout) -> Mapping[str, Value]:
    """What is computed of a row, for the cells in which its unit is counted, too."""
    beside = [*_mates(layout), *(() if layout.tie is None else (layout.tie.counted,))]
    return {name: value for each in (*beside, layout) for name, value in each.values.items()}


def _operands(layout: Layout) -> Iterator[tuple[str, Line]]:
    """The columns that axes and measures are over, with their lines."""
    for axis in layout.cells.axes:
        yield from _of_axis(axis)
    for measure in layout.measures if layout.source.added is None else (layout.source.added.row,):
        yield measure.column, measure.line


def _of_axis(axis: Axis) -> Iterator[tuple[str, Line]]:
    if not isinstance(axis, OpaqueAxis):
        yield axis.column, axis.line
    elif isinstance(axis.predicate, Like):
        yield axis.predicate.column, axis.line
    else:
        yield axis.predicate.left, axis.line
        yield axis.predicate.right, axis.line


def joined_columns(layout: Layout) -> tuple[Stored, ...]:
    """The columns of joined tables that the scan's axes and measures read, each once."""
    names = [column for column, _ in _all_operands(layout)]
    values = _values(layout)
    columns = [part for name in names if name in values for part in stored(values[name])]
    return tuple(dict.fromkeys(column for column in columns if column.source))
