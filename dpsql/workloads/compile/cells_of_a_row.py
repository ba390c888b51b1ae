"""Walks: the cells of one or several layouts in which one row can be at once.

All tables of cells are walked at once, axis by axis, one value of a row deciding the regions of all axes over its
column. Of axes that are functions of one stored column only the combinations go on that a row can have
(``dpsql.workloads.expr.related``); all others end in no cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Ints
from dpsql.workloads.cells.cell_table import MOST_STATES, Cells
from dpsql.workloads.compile.caps import before
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.regions import Axis, LineAxis, OpaqueAxis, is_total
from dpsql.workloads.expr.related import Function, Related, related


@dataclass(frozen=True)
class Walked:
    """Where a row of some layouts can end.

    ``states`` (T + 1 x ends): the last state of each layout, -1 for none; the last row is 0 for rows that have a region
    on every axis, else -1. ``tables[k]`` (states before axis k x regions of ``axes[k]``) gives the state after it.
    """

    states: Ints = field(repr=False)
    axes: tuple[Axis, ...]
    tables: tuple[Ints, ...] = field(repr=False)


@dataclass(frozen=True)
class _Step:
    """An axis of a walk: which layouts have it, and its joint regions (T x regions), 0 where a layout has it not."""

    takes: tuple[bool, ...]
    regions: Ints
    axis: Axis
    function: Function


def walked(layouts: Sequence[Layout], *, seen: bool = False) -> Walked | None:
    """The walk of layouts over ``Cells``; None where their axes are in different orders, or states very many.

    ``seen``: only with combinations of related axes of which a value is known.
    """
    steps = _steps(layouts)
    if steps is None:
        return None
    together = [one for one in _related(steps, layouts) if seen or one.possible is not None]
    paths = [_paths(one, steps, seen=seen) for one in together]
    # States of the layouts, whether there was a region on every axis, and of related axes the combinations so far.
    T = len(layouts)
    states, done = np.zeros((T + 1 + len(paths), 1), dtype=np.int64), [0] * T
    tables = []
    for number, step in enumerate(steps):
        size = step.regions.shape[1]
        if states.shape[1] * size > MOST_STATES:
            return None
        count = states.shape[1]
        old, region = np.repeat(states, size, axis=1), np.tile(np.arange(size), count)
        after = old.copy()
        for at, (layout, takes) in enumerate(zip(layouts, step.takes, strict=True)):
            if takes:
                cells, mine = layout.listed_cells, step.regions[at, region]
                moved = cells.transitions[done[at]][np.maximum(old[at], 0), np.maximum(mine, 0)]
                after[at] = np.where((old[at] < 0) | (mine < 0), -1, moved)
                done[at] += 1
        after[T] = np.minimum(old[T], step.regions.min(axis=0)[region]).clip(-1, 0)
        for at, (one, path) in enumerate(zip(together, paths, strict=True), T + 1):
            if number in one.axes:
                table = path[one.axes.index(number)]
                after[at] = np.where(old[at] < 0, -1, table[np.maximum(old[at], 0), region])
        gone = (after[T + 1 :] < 0).any(axis=0)
        after[:, gone] = -1
        states, led = _distinct(after)
        tables.append(led.reshape(count, size))
    return Walked(states[: T + 1], tuple(step.axis for step in steps), tuple(tables))


def last_states(layouts: Sequence[Layout]) -> Ints | None:
    """Of each layout the last state of a row, -1 for none, for all that one row can have at once (T x ends).

    Layouts that have their axes in different orders go through all combinations of regions; None where these are many.
    """
    found = walked(layouts)
    if found is not None:
        return found.states[:-1]
    keys = [[axis_key(axis, layout) for axis in layout.cells.axes] for layout in layouts]
    places = list(dict.fromkeys(key for own in keys for key in own))
    steps: list[_Step] = []
    for key in places:
        takes = tuple(own.count(key) == 1 for own in keys)
        axes = [one.cells.axes[own.index(key)] if key in own else None for one, own in zip(layouts, keys, strict=True)]
        joint, first = joint_regions(axes), takes.index(True) if any(takes) else -1
        axis = axes[first]
        if joint is None or axis is None or any(own.count(key) > 1 for own in keys):
            return None
        steps.append(_Step(takes, *joint, layouts[first].functions.of(axis)))
    sizes = [step.regions.shape[1] for step in steps]
    if prod(sizes) * len(layouts) > MOST_STATES:
        return None
    grid = np.indices(sizes).reshape(len(sizes), prod(sizes))
    for one in _related(steps, layouts):
        if one.possible is not None:
            mine = np.unique(np.concatenate([one.possible, grid[list(one.axes)]], axis=1), axis=1, return_inverse=True)[
                1
            ]
            grid = grid[:, np.isin(mine.ravel()[one.possible.shape[1] :], mine.ravel()[: one.possible.shape[1]])]
    ends = np.zeros((len(layouts), grid.shape[1]), dtype=np.int64)
    for at, (layout, own) in enumerate(zip(layouts, keys, strict=True)):
        for key, table in zip(own, layout.listed_cells.transitions, strict=True):
            step = places.index(key)
            region = steps[step].regions[at, grid[step]]
            after = table[np.maximum(ends[at], 0), np.maximum(region, 0)]
            ends[at] = np.where((ends[at] < 0) | (region < 0), -1, after)
    return _distinct(ends)[0]


def _distinct(columns: Ints) -> tuple[Ints, Ints]:
    """The different columns, of entries from -1 on, in ascending order, and which of them each is."""
    most = [int(row.max(initial=-1)) + 2 for row in columns]
    if prod(most) >= 2**62:
        found, inverse = np.unique(columns, axis=1, return_inverse=True)
        return found, inverse.ravel()
    codes = np.zeros(columns.shape[1], dtype=np.int64)
    for row, size in zip(columns, most, strict=True):
        codes = codes * size + row + 1
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return columns[:, first], inverse.ravel()


def possible_cells(layout: Layout) -> Cells:
    """The cells of a layout without those in which no row can be: what is in them is counted nowhere.

    So a row changes one of the cells that are left, whatever the tables hold.
    """
    cells, steps = layout.listed_cells, _steps([layout])
    found = walked([layout]) if steps is not None and _related(steps, [layout]) else None
    if found is None:
        return cells
    state = found.states[0]
    reached = np.zeros(len(cells) + 1, dtype=bool)
    reached[cells.cell_of_state[state[state >= 0]]] = True  # the last of rows in no cell
    reached = reached[:-1]
    if reached.all():
        return cells
    number = np.append(np.where(reached, np.cumsum(reached) - 1, -1), -1)
    kept = sparse.csr_array(cells.counted.tocsc()[:, np.flatnonzero(reached)])
    return replace(cells, cell_of_state=number[cells.cell_of_state], counted=kept)


def in_any_combination(layouts: Sequence[Layout]) -> tuple[str, ...]:
    """The names of related axes of which more combinations are taken for possible than values are known of; none where
    they lead nowhere else.

    ``layouts``: one, or several over the same rows that are walked together.
    """
    steps = _steps(layouts) if all(isinstance(layout.cells, Cells) for layout in layouts) else None
    if steps is None:
        # All combinations of regions are cells.
        loose = [names for layout in layouts for names in _loose(_whole(layout), layouts, listed=False)]
    else:
        loose = _loose([(step.axis, step.function) for step in steps], layouts, listed=True)
        ends = _ends(layouts, seen=False) if loose else None
        if ends is not None and ends == _ends(layouts, seen=True):
            return ()
    return tuple(dict.fromkeys(name for names in loose for name in names))


def _loose(axes: Sequence[tuple[Axis, Function]], layouts: Sequence[Layout], *, listed: bool) -> list[tuple[str, ...]]:
    """The names of related axes whose combinations are not just those that are known."""
    found = []
    for one in related(axes, layouts[0].functions.evaluate):
        mine = [axes[at][0] for at in one.axes]
        whole = prod(axis.size for axis in mine)
        most = whole if not listed else -1 if one.possible is None else one.possible.shape[1]
        seen = one.seen if listed else one.seen[:, (one.seen >= 0).all(axis=0)]
        if seen.shape[1] != most:
            found.append(tuple(axis.name for axis in mine))
    return found


def _whole(layout: Layout) -> list[tuple[Axis, Function]]:
    return [(axis, layout.functions.of(axis)) for axis in layout.whole.cells.axes]


def _ends(layouts: Sequence[Layout], *, seen: bool) -> frozenset[tuple[int, ...]] | None:
    """In which cells rows count, by their last entries in each layout, -1 for none; None where that is not followed."""
    found = walked(layouts, seen=seen)
    if found is None:
        return None
    ends = []
    for layout, state in zip(layouts, found.states, strict=False):
        cell = np.where(state >= 0, layout.listed_cells.cell_of_state[state], -1)
        ends.append(np.append(layout.entry.max(axis=0, initial=-1), -1)[cell])  # the last of rows in no cell
    return frozenset(end for end in zip(*(end.tolist() for end in ends), strict=True) if max(end) >= 0)


def _related(steps: Sequence[_Step], layouts: Sequence[Layout]) -> tuple[Related, ...]:
    return related([(step.axis, step.function) for step in steps], layouts[0].functions.evaluate)


def _paths(one: Related, steps: Sequence[_Step], *, seen: bool) -> list[Ints]:
    """Axis by axis where the regions of a row lead: (what came before x regions) its number, -1 for what is not."""
    combinations = one.seen if seen or one.possible is None else one.possible
    before_it, tables = np.zeros(combinations.shape[1], dtype=np.int64), []
    for number, regions in zip(one.axes, combinations, strict=True):
        last = number == one.axes[-1]
        _, after = np.unique(np.stack([before_it, regions]), axis=1, return_inverse=True)
        after = after.ravel() * (not last)
        table = np.full((int(before_it.max(initial=0)) + 1, steps[number].axis.size), -1, dtype=np.int64)
        table[before_it, regions] = after
        before_it = after
        tables.append(table)
    return tables


def _steps(layouts: Sequence[Layout]) -> list[_Step] | None:
    """The axes in the order of all layouts; None where they have them in different ones, or cut one otherwise."""
    keys = [[axis_key(axis, layout) for axis in layout.cells.axes] for layout in layouts]
    done, steps = [0] * len(layouts), list[_Step]()
    while any(at < len(own) for at, own in zip(done, keys, strict=True)):
        key = _next(keys, done)
        if key is None:
            return None
        takes = tuple(at < len(own) and own[at] == key for at, own in zip(done, keys, strict=True))
        axes = [layout.cells.axes[at] if t else None for layout, at, t in zip(layouts, done, takes, strict=True)]
        joint = joint_regions(axes)
        if joint is None:
            return None
        first = takes.index(True)
        axis = layouts[first].cells.axes[done[first]]
        steps.append(_Step(takes, *joint, layouts[first].functions.of(axis)))
        done = [at + one for at, one in zip(done, takes, strict=True)]
    return steps


def axis_key(axis: Axis, layout: Layout) -> object:
    """What tells apart by one value of a row: equal for axes over one column, or of one predicate."""
    return axis.predicate if isinstance(axis, OpaqueAxis) else (axis.column, layout.values.get(axis.column))


def _next(keys: Sequence[Sequence[object]], done: Sequence[int]) -> object | None:
    """An axis that comes next in every table that has it; None where tables have axes in different orders."""
    for own, at in zip(keys, done, strict=True):
        if at < len(own) and all(own[at] not in other[to + 1 :] for other, to in zip(keys, done, strict=True)):
            return own[at]
    return None


def joint_regions(axes: Sequence[Axis | None]) -> tuple[Ints, Axis] | None:
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
