"""Units of a batch: which sources one of them moves together, and its contributions to x."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from dpsql.arrays import Ints
from dpsql.workload.cells.boxes import Boxes
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.cells.corners import corners_of
from dpsql.workload.compile.layout import Layout
from dpsql.workload.expr.regions import LineAxis
from dpsql.workload.expr.rows import Cap
from dpsql.workload.families.contributions import Contributions, Part

_MOST_STATES = 2_000_000  # regions of one axis x states behind it that are followed to cells


def contributions_of(layouts: Sequence[Layout], size: int) -> Contributions:
    """What units can change of ``size`` entries of x that ``layouts`` fill. Raises SQLError as ``corners_of``."""
    units = []
    for mates in by_unit(layouts):
        parts = [_part(layout, size, joint=len(mates) > 1) for layout in mates]
        held = tuple(part for part in parts if part.corners.shape[1])
        if held:
            units.append(held)
    return Contributions(tuple(units), size)


def by_unit(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts whose sources share a unit, together."""
    found: dict[str, list[Layout]] = {}
    for layout in layouts:
        found.setdefault(layout.source.protects, []).append(layout)
    return list(found.values())


def _part(layout: Layout, size: int, *, joint: bool) -> Part:
    """What a unit adds to one layout; beside others (``joint``) with both signs of corners without a count."""
    if isinstance(layout.cells, Boxes):
        return Part(sparse.csc_array(layout.cells.some_columns()), layout.multiplicity, 1)
    capped = [part for cap in layout.source.caps if (part := _capped(layout, cap, size)) is not None]
    if capped:
        return min(capped, key=lambda part: part.times * part.most)
    corners = sparse.csc_array(corners_of([layout.entry], size))
    if layout.source.distinct and layout.multiplicity > 1:
        return Part(corners, 1, layout.multiplicity)
    return Part(_both_signs(corners, layout.entry) if joint else corners, layout.multiplicity, 1)


def _capped(layout: Layout, cap: Cap, size: int) -> Part | None:
    """What a unit adds where ``cap`` tells cells apart: a corner of each of some classes. None where it says no more.

    A class is the cells of one group of the cap, or of several that the batch does not tell apart; as many rows of a
    unit count there as ``rows`` allows its groups. Classes that could hold more rows together than the unit has are no
    better than no classes, but where a whole number of alike ones holds all. Units are counted once a cell, so that a
    class is to be one cell, or of one row.
    """
    classes = _classes(layout, cap)
    most = min(len(classes), cap.groups or len(classes), layout.multiplicity)
    held = [sparse.csc_array(corners_of([layout.entry[:, cells]], size)) for cells, _ in classes]
    if layout.source.distinct:
        once = all(
            corners.shape[1] == 1 or (cap.rows == 1 and groups == 1)
            for corners, (_, groups) in zip(held, classes, strict=True)
        )
        if not classes or not once:
            return None
        times = [1] * len(classes)
    else:
        if most < 2 or cap.rows is None:
            return None
        times = [min(layout.multiplicity, cap.rows * min(groups, cap.groups or groups)) for _, groups in classes]
        if len(set(times)) == 1 and layout.multiplicity % times[0] == 0:
            most = min(most, layout.multiplicity // times[0])
        if sum(sorted(times)[-most:]) > layout.multiplicity:
            return None
        held = [_both_signs(corners, layout.entry) for corners in held]
    alike = len(set(times)) == 1
    label = np.repeat(np.arange(len(held)), [corners.shape[1] for corners in held])
    scaled = held if alike else [corners * k for corners, k in zip(held, times, strict=True)]
    columns = sparse.csc_array(sparse.hstack(scaled, format="csc", dtype=np.int64))
    return Part(columns, times[0] if alike else 1, most, None if label.size == len(held) else label)


def _classes(layout: Layout, cap: Cap) -> list[tuple[Ints, int]]:
    """The counted cells of each class, and how many groups of the cap it holds; none where the batch does not read what
    the cap is over.
    """
    cells = layout.cells
    place = next((i for i, axis in enumerate(cells.axes) if _is_over(layout, axis, cap)), -1)
    if place < 0 or not isinstance(cells, Cells):
        return []
    axis = cells.axes[place]
    assert isinstance(axis, LineAxis)  # noqa: S101 - narrows the type for the checker
    reached = _cells_of_regions(cells, place)
    if reached is None:
        return []
    counted = (layout.entry >= 0).any(axis=0)
    found = []
    for regions, groups in _regions_by_group(axis, cap):
        mine = np.flatnonzero(reached[regions].any(axis=0) & counted)
        if mine.size:
            found.append((mine, groups))
    return found


def _is_over(layout: Layout, axis: object, cap: Cap) -> bool:
    """Whether an axis cuts the very column that the cap is over."""
    if not isinstance(axis, LineAxis):
        return False
    value = layout.values.get(axis.column)
    return axis.column == cap.column if value is None and cap.value is None else value == cap.value


def _regions_by_group(axis: LineAxis, cap: Cap) -> list[tuple[Ints, int]]:
    """The regions of the axis in sets that share no group of the cap, and how many groups each set holds."""
    groups = cap.axis
    cuts = sorted({*axis.cuts, *groups.cuts})
    mine = np.append(axis.pieces[_before(axis, cuts)], axis.null_region)
    other = np.append(groups.pieces[_before(groups, cuts)], groups.null_region)
    inside = mine >= 0
    place = (mine[inside], axis.size + other[inside])
    size = axis.size + groups.size
    joined = sparse.coo_array((np.ones(place[0].size), place), shape=(size, size))
    label = csgraph.connected_components(joined, directed=False)[1]
    held = np.unique(label[mine[inside]])
    return [(np.flatnonzero(label[: axis.size] == one), int((label[np.unique(place[1])] == one).sum())) for one in held]


def _before(axis: LineAxis, cuts: Sequence[object]) -> Ints:
    """For each piece of the finer ``cuts`` the piece of the axis that it lies in."""
    own = set(axis.cuts)
    return np.cumsum([0, *(cut in own for cut in cuts)])


def _cells_of_regions(cells: Cells, place: int) -> np.ndarray | None:
    """(regions x cells) which cells rows of each region of one axis can be in; None where that takes too long."""
    before = np.array([0])
    for table in cells.transitions[:place]:
        before = np.unique(table[before])
    states = [np.unique(table) for table in (cells.transitions[place][before].T)]
    out = np.zeros((len(states), len(cells)), dtype=bool)
    work = 0
    for region, held in enumerate(states):
        for table in cells.transitions[place + 1 :]:
            work += held.size * table.shape[1]
            if work > _MOST_STATES:
                return None
            held = np.unique(table[held])
        found = cells.cell_of_state[held]
        out[region, found[found >= 0]] = True
    return out


def _both_signs(corners: sparse.csc_array, entry: Ints) -> sparse.csc_array:
    """Corners of cells without a count, of which one sign was kept, in both: in a sum with others they differ."""
    counts = np.unique(entry[0][entry[0] >= 0])
    counted = np.zeros(corners.shape[0], dtype=bool)
    counted[counts] = True
    has = np.zeros(corners.shape[1], dtype=bool)
    has[np.repeat(np.arange(corners.shape[1]), np.diff(corners.indptr))[counted[corners.indices]]] = True
    if has.all():
        return corners
    return sparse.csc_array(sparse.hstack([corners, -corners[:, ~has]], format="csc"))
