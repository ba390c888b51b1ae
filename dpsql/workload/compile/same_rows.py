"""Counts of units over the same rows, and of these rows: found in a batch, with all that one row can be counted in.

The statements of a batch count units by month, by ward and in all. Each is a source with a scan of its own, and all of
them read the same rows of a unit. What one row has its unit counted in follows from the regions of its values: all
tables of cells are walked at once, axis by axis, one value deciding the regions of all axes over its column. A row
without a region on an axis of one of them, a value outside a closed domain, has its unit counted in none.

**Claim.** What a unit adds is a union of what at most ``limit`` rows of it have it counted in. A scan keeps of a unit
at most ``limit`` of these columns of groups, those that are first in an order of them that no other scan changes
(``dpsql.measure.from_sql``), and counts the unit in its own group of each. If there are no more than ``limit`` columns
at all, every scan keeps every group of the unit, and so of every column. The scan of rows keeps one row in each of the
columns that are kept before all others. What scans see of a row is the same in all:
either no row is joined, or every scan reads the same columns of the rows that are, so that it finds the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpsql.arrays import Ints
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.compile.caps import MOST_STATES, before
from dpsql.workload.compile.layout import Layout, Together
from dpsql.workload.compile.units import axis_key, by_unit
from dpsql.workload.expr.regions import Axis, LineAxis, is_total

_MOST_STATES = 200_000  # by which SQL tells the cells of rows apart
_MOST_COLUMNS = 2_000  # of groups that one row can have its unit counted in


def same_rows(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """``layouts``, of which those that count one unit over the same rows know of each other (``Layout.together``)."""
    found = list(layouts)
    for mates in by_unit(layouts):
        rest = [one for one in mates if _counts(one)]
        while rest:
            same = [rest[0]]
            for one in rest[1:]:
                same += [one] if all(_alike(one, other) for other in same) else []
            beside = [one for one in mates if _are_rows(one) and all(_alike(one, other) for other in same)]
            together = _together(same, beside) if len(same) > 1 or any(one.tie is None for one in beside) else None
            if together is not None:
                held = [id(one) for one in together.all]
                found = [replace(one, together=together) if id(one) in held else one for one in found]
            rest = [one for one in rest if not any(one is it for it in same)]
    return tuple(found)


def _together(same: Sequence[Layout], rows: Sequence[Layout]) -> Together | None:
    """Counts of units, and of the rows themselves where that is followed."""
    cells = _columns([*same, rows[0]], rows=True) if rows else None
    if cells is not None:
        return Together(tuple(same), cells, rows[0])
    cells = _columns(same) if len(same) > 1 else None
    return None if cells is None else Together(tuple(same), cells)


def _counts(layout: Layout) -> bool:
    """Whether it counts units of several rows that no bound of ``at_most`` spreads."""
    source = layout.source
    plain = source.counts_units and source.of is None and not source.caps
    return plain and isinstance(layout.cells, Cells) and bool((layout.entry >= 0).any())


def _are_rows(layout: Layout) -> bool:
    """Whether it counts rows of units, sums nothing, and its cells are few enough for SQL."""
    source, cells = layout.source, layout.cells
    plain = source.unit is not None and not source.distinct and source.of is None and not source.caps
    if not plain or layout.measures or layout.every is not None or not isinstance(cells, Cells):
        return False
    return bool((layout.entry >= 0).any()) and sum(table.size for table in cells.transitions) <= _MOST_STATES


def _alike(one: Layout, other: Layout) -> bool:
    """Whether both read the same rows, and compute a column that both have alike."""
    same = replace(one.source, distinct=True) == other.source and one.source.only == other.source.only
    return same and all(other.values.get(name, value) == value for name, value in one.values.items())


def _columns(layouts: Sequence[Layout], rows: bool = False) -> Ints | None:
    """The entries of x in which one row has its unit counted, -1 for none (T x columns); None for very many.

    ``rows``: whether the last is a count of rows, which looks at no axes but its own.
    """
    # The last state is 0 for rows that have a region on every axis.
    states, done = np.zeros((len(layouts) + 1, 1), dtype=np.int64), [0] * len(layouts)
    tables = [layout.cells for layout in layouts]
    keys = [[axis_key(axis, layout) for axis in layout.cells.axes] for layout in layouts]
    while any(at < len(own) for at, own in zip(done, keys, strict=True)):
        key = _next(keys, done)
        if key is None:
            return None
        walked = [at < len(own) and own[at] == key for at, own in zip(done, keys, strict=True)]
        regions = _regions([table.axes[at] if w else None for table, at, w in zip(tables, done, walked, strict=True)])
        if regions is None or states.shape[1] * regions.shape[1] > MOST_STATES:
            return None
        moved = []
        for table, at, walks, state, region in zip(tables, done, walked, states, regions, strict=False):
            both = np.repeat(state, regions.shape[1]), np.tile(region, states.shape[1])
            assert isinstance(table, Cells)  # noqa: S101 - asked before
            gone = (both[0] < 0) | (both[1] < 0)
            after = table.transitions[at][np.maximum(both[0], 0), np.maximum(both[1], 0)] if walks else both[0]
            moved.append(np.where(gone, -1, after))
        inside = np.repeat(states[-1], regions.shape[1]), np.tile(regions.min(axis=0), states.shape[1])
        states = np.unique(np.stack([*moved, np.minimum(*inside).clip(-1, 0)]), axis=1)
        done = [at + walks for at, walks in zip(done, walked, strict=True)]
    ends = []
    for number, (layout, state) in enumerate(zip(layouts, states, strict=False)):
        assert isinstance(layout.cells, Cells)  # noqa: S101 - asked before
        known = (state >= 0) & ((states[-1] >= 0) | (rows and number + 1 == len(layouts)))
        cell = np.where(known, layout.cells.cell_of_state[state], -1)
        ends.append(np.where(cell >= 0, layout.entry[0, cell], -1))
    found = np.unique(np.stack(ends), axis=1)
    found = found[:, (found >= 0).any(axis=0)]
    # A column has one number, by the place of each of its entries; and each entry is to be in some column.
    used = [np.unique(layout.entry[0][layout.entry[0] >= 0]) for layout in layouts]
    whole = all(np.isin(*both).all() for both in zip(used, found, strict=True))
    few = found.shape[1] <= _MOST_COLUMNS and math.prod(one.size + 2 for one in used) < 2**62
    return found if whole and few else None


def _next(keys: Sequence[Sequence[object]], done: Sequence[int]) -> object | None:
    """An axis that comes next in every table that has it; None where tables have axes in different orders."""
    for own, at in zip(keys, done, strict=True):
        if at < len(own) and all(own[at] not in other[to + 1 :] for other, to in zip(keys, done, strict=True)):
            return own[at]
    return None


def _regions(axes: Sequence[Axis | None]) -> Ints | None:
    """The regions of axes over one column that a row can have, -1 for none; 0 for no axis (T x columns)."""
    held = [axis for axis in axes if axis is not None]
    if all(isinstance(axis, LineAxis) for axis in held):
        lines = [axis for axis in held if isinstance(axis, LineAxis)]
        cuts = sorted({cut for axis in lines for cut in axis.cuts})
        found = [np.append(axis.pieces[before(axis, cuts)], axis.null_region) for axis in lines]
    elif all(axis == held[0] for axis in held):
        found = [np.arange(0 if is_total(held[0]) else -1, held[0].size)] * len(held)
    else:
        return None
    each, none = iter(found), np.zeros(found[0].size, dtype=np.int64)
    return np.unique(np.stack([none if axis is None else next(each) for axis in axes]), axis=1)
