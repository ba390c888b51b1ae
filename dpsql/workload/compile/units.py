"""Units of a batch: which sources one of them moves together, and its contributions to x."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from dpsql.arrays import Ints
from dpsql.linalg import exact
from dpsql.workload.cells.boxes import Boxes
from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.cells.corners import corners_of
from dpsql.workload.compile.layout import Layout
from dpsql.workload.expr.regions import LineAxis
from dpsql.workload.expr.rows import Cap, RowSource
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


def wider_than_true(layouts: Sequence[Layout], *, listed: bool) -> str:
    """Of which units C is, where it is wider than what a unit can do: units that ... ; empty where it is not.

    ``listed``: whether W is over listed cells, which bounds of ``at_most`` tell apart.
    """
    said = []
    for mates in by_unit(layouts):
        read = [table for layout in mates for table in set(layout.source.tables)]
        shared = sorted({table for table in read if read.count(table) > 1 and mates[0].source.unit is not None})
        if shared:
            said.append(f"could change each scan of {', '.join(shared)} by itself")
        spread = [layout.source for layout in mates if layout.multiplicity > 1 and _spreads(layout.source)]
        found = sorted({join.table for source in spread for join in source.joins if join.private})
        if found:
            said.append(f"may find another row of {', '.join(found)} for each of their rows")
        if any(_left_out(layout, cap, listed) for layout in mates for cap in layout.source.caps):
            said.append("do not keep to at_most")
    return " and ".join(dict.fromkeys(said))


def _spreads(source: RowSource) -> bool:
    """Whether what a unit adds is a sum over several cells, not several times one of them."""
    return source.counts_units or bool(source.caps)


def _left_out(layout: Layout, cap: Cap, listed: bool) -> bool:
    """Whether a bound keeps a unit from something that C lets it do."""
    if not listed or isinstance(layout.cells, Boxes):
        return True
    classes = _classes(layout, cap)
    if not classes:
        return False  # the rows may be of any groups
    if len(layout.source.caps) > 1 or _capped(layout, cap, int(layout.entry.max(initial=-1)) + 1) is None:
        return True
    if layout.source.counts_units:
        return False
    times = sorted(_rows_of_classes(layout, cap, classes))
    return sum(times) > layout.multiplicity and (times[0] < times[-1] or layout.multiplicity % times[0] > 0)


def kept_first(layouts: Sequence[Layout]) -> dict[str, str]:
    """Of each table with units of bounded rows what decides which rows are kept before others, as a digest.

    Rows that no query of the batch counts are cut first, others in an order of what the batch tells of them (its
    regions and measures). Two batches keep the same rows of larger units where their digests are equal, so that these
    alone are parts of one table. Units of one row each, by the table's key, lose none: their tables are left out.
    """
    found = {}
    for layout in layouts:
        if layout.source.unit is None or layout.source.single:
            continue
        cells = layout.cells
        told = [repr((layout.source.limit, layout.source.caps, layout.measures)).encode()]
        for axis in cells.axes:
            pieces = axis.pieces if isinstance(axis, LineAxis) else np.zeros(0, dtype=np.int64)
            told += [repr(axis).encode(), np.asarray(pieces, dtype=np.int64).tobytes()]
        if isinstance(cells, Cells):
            read = (layout.entry >= 0).any(axis=0)
            tables = (*cells.transitions, cells.cell_of_state, read)
            told += [np.asarray(table, dtype=np.int64).tobytes() for table in tables]
        digest = hashlib.sha256()
        for part in told:
            digest.update(len(part).to_bytes(8, "little") + part)
        found[layout.table] = digest.hexdigest()
    return found


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
    if layout.source.counts_units and layout.multiplicity > 1:
        return Part(corners, 1, layout.multiplicity)
    return Part(_both_signs(corners, layout.entry) if joint else corners, layout.multiplicity, 1)


def _capped(layout: Layout, cap: Cap, size: int) -> Part | None:
    """What a unit adds where ``cap`` tells cells apart: a corner of each of some classes. None where it says no more.

    A class is the cells of one group of the cap, or of several that the batch does not tell apart; as many rows of a
    unit count there as ``rows`` allows its groups. Where the unit has no more rows than some classes hold, it fills all
    of these but one: sums of so many full classes are at least as much, and are left where they are no better than no
    classes. Units are counted once a cell, so that a class is to be one cell, or of one row.
    """
    classes = _classes(layout, cap)
    most = min(len(classes), cap.groups or len(classes), layout.multiplicity)
    held = [sparse.csc_array(corners_of([layout.entry[:, cells]], size)) for cells, _ in classes]
    if layout.source.counts_units:
        once = all(
            corners.shape[1] == 1 or (cap.rows == 1 and groups == 1)
            for corners, (_, groups) in zip(held, classes, strict=True)
        )
        if not classes or not once:
            return None
        times = [1] * len(classes)
    else:
        if not classes or cap.rows is None:
            return None
        times = _rows_of_classes(layout, cap, classes)
        most = min(most, _fullest(times, layout.multiplicity))
        if sum(k * k for k in sorted(times)[-most:]) > layout.multiplicity**2:
            return None
        held = [_both_signs(corners, layout.entry) for corners in held]
    alike = len(set(times)) == 1
    label = np.repeat(np.arange(len(held)), [corners.shape[1] for corners in held])
    if not alike and max(times) * max(exact.max_abs(corners) for corners in held) >= 2**62:
        return None
    scaled = held if alike else [corners * k for corners, k in zip(held, times, strict=True)]
    columns = sparse.csc_array(sparse.hstack(scaled, format="csc", dtype=np.int64))
    return Part(columns, times[0] if alike else 1, most, None if label.size == len(held) else label)


def _rows_of_classes(layout: Layout, cap: Cap, classes: Sequence[tuple[Ints, int]]) -> list[int]:
    """How many rows of a unit count in each class."""
    assert cap.rows is not None  # noqa: S101 - asked before
    return [min(layout.multiplicity, cap.rows * min(groups, cap.groups or groups)) for _, groups in classes]


def _fullest(times: Sequence[int], limit: int) -> int:
    """How many classes of ``times`` rows ``limit`` rows fill at most, one of them perhaps in part."""
    filled = [total for total in accumulate(sorted(times)) if total <= limit]
    return len(filled) + int(len(filled) < len(times) and (filled[-1] if filled else 0) < limit)


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
