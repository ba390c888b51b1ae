"""Counts of units over the same rows, and of these rows: found in a batch, with all that one row can be counted in.

The statements of a batch count units by month, by ward and in all. Each is a source with a scan of its own, and all of
them read the same rows of a unit. What one row has its unit counted in follows from the regions of its values: all
tables of cells are walked at once, axis by axis, one value deciding the regions of all axes over its column
(``Walk``). A row without a region on an axis of one of them, a value outside a closed domain, has its unit counted in
none.

**Claim.** What a unit adds is a union of what at most ``limit`` rows of it have it counted in. What is kept of a unit
is found once for all of them (``dpsql.measure.counts_over_same_rows``): at most ``limit`` of these columns of groups,
and each
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

from dpsql.common.arrays import Ints
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.caps import groups_of, is_over
from dpsql.workloads.compile.cells_of_a_row import walked
from dpsql.workloads.compile.layout import Layout, Together, Walk
from dpsql.workloads.compile.units import by_unit
from dpsql.workloads.expr.regions import is_total

MOST_STATES = 200_000  # by which SQL tells the cells of rows apart
_MOST_COLUMNS = 2_000  # of groups that one row can have its unit counted in
_WITH_ROWS = 10  # times as many where rows are counted, too, and planned with the units of their groups


def same_rows(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """``layouts``, of which those that count one unit over the same rows know of each other (``Layout.together``)."""
    found = list(layouts)
    for mates in by_unit(layouts):
        rest = [one for one in mates if _counts(one)]
        while rest:
            same = [rest[0]]
            for one in rest[1:]:
                same += [one] if all(_same_source(one, other) for other in same) else []
            beside = [one for one in mates if _are_rows(one) and all(_same_source(one, other) for other in same)]
            together = _together(same, beside) if len(same) > 1 or any(one.tie is None for one in beside) else None
            if together is not None:
                held = [id(one) for one in together.all]
                found = [replace(one, together=together) if id(one) in held else one for one in found]
            rest = [one for one in rest if not any(one is it for it in same)]
    return tuple(found)


def _together(same: Sequence[Layout], rows: Sequence[Layout]) -> Together | None:
    """Counts of units, and of the rows themselves where that is followed."""
    found = _in_classes([*same, rows[0]], rows=True) if rows else None
    if found is not None:
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
        over = (groups_of(cap, axis, mate) for mate in mates for axis in mate.cells.axes if is_over(axis, mate, cap))
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
    return bool((layout.entry >= 0).any()) and sum(table.size for table in cells.transitions) <= MOST_STATES


def _same_source(one: Layout, other: Layout) -> bool:
    """Whether both read the same rows, and compute a column that both have alike."""
    same = replace(one.source, distinct=True) == other.source and one.source.only == other.source.only
    return same and all(other.values.get(name, value) == value for name, value in one.values.items())


def _columns(layouts: Sequence[Layout], rows: bool = False, groups: Layout | None = None) -> tuple[Ints, Walk] | None:
    """The entries of x in which one row has its unit counted, -1 for none (T x columns), and which column a row is in.

    None for very many. ``rows``: whether the last is a count of rows, which looks at no axes but its own. ``groups``
    tell columns apart, too, with a row of their numbers below.
    """
    T, layouts = len(layouts), layouts if groups is None else [*layouts, groups]
    followed = walked(layouts)
    if followed is None:
        return None
    states = followed.states
    ends = []
    for number, (layout, state) in enumerate(zip(layouts, states, strict=False)):
        known = (state >= 0) & ((states[-1] >= 0) | (rows and number + 1 == T) | (number == T))
        cell = np.where(known, layout.listed_cells.cell_of_state[state], -1)
        ends.append(np.where(cell >= 0, layout.entry[0, cell], -1))
    found, column = np.unique(np.stack(ends), axis=1, return_inverse=True)
    counts = (found[:T] >= 0).any(axis=0)
    column = np.where(counts, np.cumsum(counts) - 1, -1)[column.ravel()]
    found = found[:, counts]
    walk = [*followed.tables[:-1], column[followed.tables[-1]]] if followed.tables else []
    # Each entry is to be in some column.
    used = [np.unique(layout.entry[0][layout.entry[0] >= 0]) for layout in layouts[:T]]
    whole = all(np.isin(*both).all() for both in zip(used, found, strict=False))
    most = _MOST_COLUMNS * (_WITH_ROWS if rows else 1)
    few = found.shape[1] <= most and sum(table.size for table in walk) <= MOST_STATES
    return (found, Walk(followed.axes, tuple(walk))) if whole and few else None
