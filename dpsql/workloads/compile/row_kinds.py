"""Kinds of rows of one table: rows of one kind are in the same cell of every scan and in the same group of every cap.

A cap is a bound of ``at_most``; groups of caps that the batch does not read are not told apart. All tables of cells are
walked at once, axis by axis (``dpsql.workloads.compile.cells_of_a_row``). Axes over attributes, whose regions are
given, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpsql.common.arrays import Flags, Ints
from dpsql.policy.values import fold
from dpsql.workloads.compile.attributes import State
from dpsql.workloads.compile.caps import groups_of, is_over
from dpsql.workloads.compile.cells_of_a_row import last_states
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.regions import is_total
from dpsql.workloads.expr.values import stored


class NotListedError(Exception):
    """What one unit can add is not listed: there is too much of it, or its form is not supported."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound of ``at_most``: ``rows`` in each group, and rows of as many ``groups``; ``group`` (kinds,) if it is read.

    ``most``: how many rows it leaves; ``size``: how many groups there may be.
    """

    rows: int | None
    groups: int | None
    group: Ints | None
    most: int
    size: int

    def allows(self, rows: Ints) -> Flags:
        """Which choices of rows (choices x kinds) keep to it, by their groups."""
        labels = np.zeros(rows.shape[1], dtype=np.int64) if self.group is None else self.group
        each = np.stack([rows[:, labels == one].sum(axis=1) for one in np.unique(labels)], axis=1)
        result = np.ones(len(rows), dtype=bool)
        if self.rows is not None:
            result &= (each <= self.rows).all(axis=1)
        if self.groups is not None:
            result &= (each > 0).sum(axis=1) <= self.groups
        return result


@dataclass(frozen=True, eq=False)
class RowKinds:
    """``cell`` (scans x kinds): the cell of each kind of rows in each scan, -1 for none, at least one of them a cell.

    ``uncounted``: whether a row may be in no cell of any scan.
    """

    cell: Ints
    uncounted: bool
    bounds: tuple[Bound, ...]


def row_kinds(scans: Sequence[Layout], regions: Sequence[tuple[int | None, ...]], state: State) -> RowKinds:
    """The kinds of rows of one table, of which the ``scans`` are, where attributes have these ``regions``.

    Raises NotListedError where the scans are not walked together, or a cap is over another expression of a column that
    they read.
    """
    alive = [number for number, fixed in enumerate(regions) if -1 not in fixed]
    layouts = [without(scans[number], regions[number]) for number in alive]
    caps = scans[0].source.caps if scans else ()
    groups = [_groups(cap, layouts) for cap in caps]
    read = [one for one in groups if one is not None]
    states = last_states([*layouts, *read]) if layouts else np.full((len(read), 1), -1, dtype=np.int64)
    if states is None:
        raise NotListedError
    last, cell = np.full((2, len(scans), states.shape[1]), -1, dtype=np.int64)
    for row, number in enumerate(alive):
        last[number] = states[row]
        cell[number] = _counted_cells(layouts[row], states[row])
    tables = [scan.table for scan in scans]
    for number, scan in enumerate(scans):
        if scan.together is not None and scan.source.counts_units:
            # A row that has no region on an axis of one of them counts in none.
            members = [tables.index(one.table) for one in scan.together.all]
            cell[number, (last[members] < 0).any(axis=0)] = -1
        if state.nobody and scan.source.counts_units:
            cell[number] = -1
    kinds = np.unique(np.concatenate([cell, states[len(layouts) :]]), axis=1)
    counted = (kinds[: len(scans)] >= 0).any(axis=0)
    labels = iter(kinds[len(scans) :, counted])
    bounds = [
        Bound(
            cap.rows,
            cap.groups,
            None if group is None else np.unique(next(labels), return_inverse=True)[1].ravel(),
            cap.most(scans[0].source.limit),
            cap.axis.size,
        )
        for cap, group in zip(caps, groups, strict=True)
    ]
    return RowKinds(kinds[: len(scans), counted], not counted.all(), tuple(bounds))


def without(layout: Layout, regions: Sequence[int | None]) -> Layout:
    """The layout without the axes on which the region is given."""
    cells = layout.listed_cells
    axes, tables, start = [], list[Ints](), np.zeros(1, dtype=np.int64)
    for axis, narrow, region in zip(cells.axes, cells.transitions, regions, strict=True):
        table = narrow.astype(np.int64)
        if region is None:
            axes.append(axis)
            tables.append(table[start] if not tables else table)
        elif tables:
            tables[-1] = table[:, region][tables[-1]]
        else:
            start = table[start, region]
    last = cells.cell_of_state if tables else cells.cell_of_state[start]
    steps = tuple(table.astype(np.int32) for table in tables)
    return replace(layout, cells=replace(cells, axes=tuple(axes), transitions=steps, cell_of_state=last))


def _counted_cells(layout: Layout, state: Ints) -> Ints:
    """The cell in which rows count that end in a state, -1 for none."""
    reached = np.where(state >= 0, layout.listed_cells.cell_of_state[state], -1)
    used = np.append((layout.entry >= 0).any(axis=0), False)
    return np.where(used[reached], reached, -1)


def _groups(cap: Cap, scans: Sequence[Layout]) -> Layout | None:
    """A table of the groups of a bound; None where the scans read nothing of it.

    Raises NotListedError where they read another expression of its columns.
    """
    over = [groups_of(cap, axis, scan) for scan in scans for axis in scan.cells.axes if is_over(axis, scan, cap)]
    if over and is_total(cap.axis):
        return over[0]
    read = {part for scan in scans for axis in scan.cells.axes for part in scan.functions.of(axis).of}
    others = [scan.functions.value(one.column, one.line) for scan in scans for one in scan.measures]
    others += [scan.source.each.computed for scan in scans if scan.source.each is not None]
    read |= {part for value in others for part in stored(value)}
    bounded = {(part.source, fold(part.name)) for part in stored(cap.computed)}
    if over or bounded & {(part.source, fold(part.name)) for part in read}:
        raise NotListedError
    return None
