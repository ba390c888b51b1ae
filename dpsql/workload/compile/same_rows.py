"""Counts of units over the same rows, and of these rows: found in a batch, with all that one row can be counted in.

The statements of a batch count units by month, by ward and in all. Each is a source with a scan of its own, and all of
them read the same rows of a unit. What one row has its unit counted in follows from the regions of its values: all
tables of cells are walked at once, axis by axis, one value deciding the regions of all axes over its column
(``Walk``). A row without a region on an axis of one of them, a value outside a closed domain, has its unit counted in
none.

**Claim.** What a unit adds is a union of what at most ``limit`` rows of it have it counted in. What is kept of a unit
is found once for all of them (``dpsql.measure.together``): at most ``limit`` of these columns of groups, and each
counts the unit in its own group of each. Of the rows themselves one in each of these columns is kept, and no more than
``limit``.

Bounds of ``at_most`` come before that. Where one of them allows one row in each group, and some table tells its groups
apart, columns are told apart by them, too: what a unit adds is then a union of rows of different groups. What other
bounds keep it from is left out. Where no bound says so much, each count is as if it were by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from dpsql.arrays import Ints
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.compile.caps import MOST_STATES, before, is_over
from dpsql.workload.compile.layout import Layout, Together, Walk
from dpsql.workload.compile.units import axis_key, by_unit
from dpsql.workload.expr.regions import Axis, LineAxis, is_total
from dpsql.workload.expr.rows import Cap

_MOST_STATES = 200_000  # by which SQL tells the cells of rows apart
_MOST_COLUMNS = 2_000  # of groups that one row can have its unit counted in
_MOST_ROWS = 1_200  # of these, where such rows are counted, too


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
    found = _in_classes([*same, rows[0]], rows=True) if rows else None
    if found is not None and found[0].shape[1] <= _MOST_ROWS:
        cells, walk, classes = found
        return Together(tuple(same), cells, walk, rows[0], classes)
    found = _in_classes(same) if len(same) > 1 else None
    return None if found is None else Together(tuple(same), *found[:2], classes=found[2])


def _in_classes(mates: Sequence[Layout], rows: bool = False) -> tuple[Ints, Walk, Ints | None] | None:
    """``_columns``, and the group of a bound of one row that each is in; None, too, where bounds tell none apart."""
    if not mates[0].source.caps:
        found = _columns(mates, rows)
        return None if found is None else (*found, None)
    for cap in mates[0].source.caps:
        over = (_groups_of(cap, axis, mate) for mate in mates for axis in mate.cells.axes if is_over(axis, mate, cap))
        groups = next(over, None) if cap.rows == 1 and is_total(cap.axis) else None
        found = None if groups is None else _columns(mates, rows, groups)
        if found is not None:
            return found[0][:-1], found[1], found[0][-1]
    return None


def _counts(layout: Layout) -> bool:
    """Whether it counts units of several rows."""
    source = layout.source
    plain = source.counts_units and source.of is None
    return plain and isinstance(layout.cells, Cells) and bool((layout.entry >= 0).any())


def _are_rows(layout: Layout) -> bool:
    """Whether it counts rows of units, sums nothing, and its cells are few enough for SQL."""
    source, cells = layout.source, layout.cells
    plain = source.unit is not None and not source.distinct and source.of is None
    if not plain or layout.measures or layout.every is not None or not isinstance(cells, Cells):
        return False
    return bool((layout.entry >= 0).any()) and sum(table.size for table in cells.transitions) <= _MOST_STATES


def _alike(one: Layout, other: Layout) -> bool:
    """Whether both read the same rows, and compute a column that both have alike."""
    same = replace(one.source, distinct=True) == other.source and one.source.only == other.source.only
    return same and all(other.values.get(name, value) == value for name, value in one.values.items())


def _columns(layouts: Sequence[Layout], rows: bool = False, groups: Layout | None = None) -> tuple[Ints, Walk] | None:
    """The entries of x in which one row has its unit counted, -1 for none (T x columns), and which column a row is in.

    None for very many. ``rows``: whether the last is a count of rows, which looks at no axes but its own. ``groups``
    tell columns apart, too, with a row of their numbers below.
    """
    T, layouts = len(layouts), layouts if groups is None else [*layouts, groups]
    # The last state is 0 for rows that have a region on every axis.
    states, done = np.zeros((len(layouts) + 1, 1), dtype=np.int64), [0] * len(layouts)
    tables = [layout.cells for layout in layouts]
    keys = [[axis_key(axis, layout) for axis in layout.cells.axes] for layout in layouts]
    axes: list[Axis] = []
    walk: list[Ints] = []
    while any(at < len(own) for at, own in zip(done, keys, strict=True)):
        key = _next(keys, done)
        if key is None:
            return None
        walked = [at < len(own) and own[at] == key for at, own in zip(done, keys, strict=True)]
        joint = _regions([table.axes[at] if w else None for table, at, w in zip(tables, done, walked, strict=True)])
        if joint is None or states.shape[1] * joint[0].shape[1] > MOST_STATES:
            return None
        regions = joint[0]
        moved = []
        for table, at, walks, state, region in zip(tables, done, walked, states, regions, strict=False):
            both = np.repeat(state, regions.shape[1]), np.tile(region, states.shape[1])
            assert isinstance(table, Cells)  # noqa: S101 - asked before
            gone = (both[0] < 0) | (both[1] < 0)
            after = table.transitions[at][np.maximum(both[0], 0), np.maximum(both[1], 0)] if walks else both[0]
            moved.append(np.where(gone, -1, after))
        inside = np.repeat(states[-1], regions.shape[1]), np.tile(regions.min(axis=0), states.shape[1])
        before, after = states.shape[1], np.stack([*moved, np.minimum(*inside).clip(-1, 0)])
        states, led = np.unique(after, axis=1, return_inverse=True)
        axes.append(joint[1])
        walk.append(led.reshape(before, -1))
        done = [at + walks for at, walks in zip(done, walked, strict=True)]
    ends = []
    for number, (layout, state) in enumerate(zip(layouts, states, strict=False)):
        assert isinstance(layout.cells, Cells)  # noqa: S101 - asked before
        known = (state >= 0) & ((states[-1] >= 0) | (rows and number + 1 == T) | (number == T))
        cell = np.where(known, layout.cells.cell_of_state[state], -1)
        ends.append(np.where(cell >= 0, layout.entry[0, cell], -1))
    found, column = np.unique(np.stack(ends), axis=1, return_inverse=True)
    counts = (found[:T] >= 0).any(axis=0)
    column = np.where(counts, np.cumsum(counts) - 1, -1)[column.ravel()]
    found = found[:, counts]
    walk = [*walk[:-1], column[walk[-1]]] if walk else []
    # Each entry is to be in some column.
    used = [np.unique(layout.entry[0][layout.entry[0] >= 0]) for layout in layouts[:T]]
    whole = all(np.isin(*both).all() for both in zip(used, found, strict=False))
    few = found.shape[1] <= _MOST_COLUMNS and sum(table.size for table in walk) <= _MOST_STATES
    return (found, Walk(tuple(axes), tuple(walk))) if whole and few else None


def _groups_of(cap: Cap, axis: Axis, layout: Layout) -> Layout:
    """A table of the groups of a bound on the rows of ``layout``, of which an axis is over the same column."""
    size, column = cap.axis.size, axis.column if isinstance(axis, LineAxis) else cap.column
    axes, counted = (replace(cap.axis, column=column),), sparse.csr_array((0, size), dtype=np.int64)
    cells = Cells(axes, (np.arange(size, dtype=np.int32)[None, :],), np.arange(size), counted)
    return replace(layout, cells=cells, measures=(), entry=np.arange(size)[None, :])


def _next(keys: Sequence[Sequence[object]], done: Sequence[int]) -> object | None:
    """An axis that comes next in every table that has it; None where tables have axes in different orders."""
    for own, at in zip(keys, done, strict=True):
        if at < len(own) and all(own[at] not in other[to + 1 :] for other, to in zip(keys, done, strict=True)):
            return own[at]
    return None


def _regions(axes: Sequence[Axis | None]) -> tuple[Ints, Axis] | None:
    """The regions of axes over one column that a row can have, -1 for none; 0 for no axis (T x joint regions).

    And the axis of these joint regions; one that is not total has the first of them where a row has no region.
    """
    held = [axis for axis in axes if axis is not None]
    lines = [axis for axis in held if isinstance(axis, LineAxis)]
    if len(lines) == len(held):
        cuts = tuple(sorted({cut for axis in lines for cut in axis.cuts}))
        each = iter([np.append(axis.pieces[before(axis, cuts)], axis.null_region) for axis in lines])
        none = np.zeros(len(cuts) + 2, dtype=np.int64)
        found = np.stack([none if axis is None else next(each) for axis in axes])
        regions, number = np.unique(found, axis=1, return_inverse=True)
        number = number.ravel()
        joint = replace(
            lines[0], cuts=cuts, pieces=number[:-1], null_region=int(number[-1]), size=int(regions.shape[1])
        )
        return regions, joint
    if any(axis != held[0] for axis in held):
        return None
    own = np.arange(0 if is_total(held[0]) else -1, held[0].size)
    return np.stack([own * 0 if axis is None else own for axis in axes]), held[0]
