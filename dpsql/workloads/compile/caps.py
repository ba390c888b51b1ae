"""Bounds of ``at_most`` over the cells of a batch: which groups of a bound they lie in, and what the bounds leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Ints
from dpsql.linalg.linked import linked_parts
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.regions import Axis, LineAxis


def leave_few(layout: Layout) -> bool:
    """Whether the bounds leave of no unit more than ``limit`` rows that count, so that no more need be cut.

    Rows that count are in the groups of the bound that the counted cells lie in, at most ``rows`` in each. Later
    bounds only take rows away. Not said of rows that units are tied to, of which those of other cells matter, too.
    """
    if layout.source.distinct or layout.every is not None or layout.tie is not None:
        return False
    for cap in layout.source.caps:
        groups = sum(held for _, held in classes_of(layout, cap))
        if cap.rows is not None and groups and cap.rows * min(groups, cap.groups or groups) <= layout.source.limit:
            return True
    return False


def most_cells(layout: Layout) -> int | None:
    """In how many counted cells a unit is at most by bounds on the groups that it is in; None where none says so.

    A class takes a group of a bound at least, and has all of its cells then.
    """
    found = []
    for cap in layout.source.caps:
        classes = classes_of(layout, cap)
        if cap.groups is not None and classes:
            found.append(sum(sorted((cells.size for cells, _ in classes), reverse=True)[: cap.groups]))
    return min(found, default=None)


def rows_of_classes(layout: Layout, cap: Cap, classes: Sequence[tuple[Ints, int]]) -> list[int]:
    """How many rows of a unit count in each class."""
    assert cap.rows is not None  # noqa: S101 - asked before
    return [min(layout.multiplicity, cap.rows * min(groups, cap.groups or groups)) for _, groups in classes]


def classes_of(layout: Layout, cap: Cap) -> list[tuple[Ints, int]]:
    """The counted cells of each class, and how many groups of the cap it holds; none where the batch does not read what
    the cap is over.
    """
    over = _over(layout, cap)
    if over is None:
        return []
    axis, reached = over
    found = []
    for regions, groups in regions_by_group(axis, cap):
        mine = np.flatnonzero(reached[regions].any(axis=0))
        if mine.size:
            found.append((mine, groups))
    return found


def fewest_groups(layout: Layout, cap: Cap, classes: Sequence[tuple[Ints, int]]) -> list[int]:
    """Of each class how many groups of the cap the rows of one of its cells may be of at least: the first of all days
    is in one of two, where the cap is over odd and even ones.
    """
    over = _over(layout, cap)
    if over is None:
        return []
    axis, reached = over
    mine, theirs = side_by_side(axis, cap.axis)
    meets = np.zeros((axis.size, cap.axis.size), dtype=np.int64)
    meets[mine[mine >= 0], theirs[mine >= 0]] = 1
    groups = (reached.T.astype(np.int64) @ meets > 0).sum(axis=1)
    return [int(groups[cells].min()) for cells, _ in classes]


def _over(layout: Layout, cap: Cap) -> tuple[LineAxis, NDArray[np.bool_]] | None:
    """The axis over the column of the cap, and which counted cells rows of its regions can be in (regions x cells).

    None where there is no such axis, or that takes too long.
    """
    cells = layout.cells
    place = next((i for i, axis in enumerate(cells.axes) if is_over(axis, layout, cap)), -1)
    if place < 0 or not isinstance(cells, Cells):
        return None
    axis = cells.axes[place]
    assert isinstance(axis, LineAxis)  # noqa: S101 - narrows the type for the checker
    pairs = cells.cells_of([at == place for at in range(len(cells.axes))])
    if pairs is None:
        return None
    reached = np.zeros((axis.size, len(cells)), dtype=bool)
    reached[pairs] = True  # all regions of one axis are combinations, numbered as they are
    return axis, reached & (layout.entry >= 0).any(axis=0)


def is_over(axis: object, layout: Layout, cap: Cap) -> bool:
    """Whether an axis cuts the very column that the cap is over."""
    if not isinstance(axis, LineAxis):
        return False
    value = layout.values.get(axis.column)
    return axis.column == cap.column if value is None and cap.value is None else value == cap.value


def fullest(times: Sequence[int], limit: int) -> int:
    """How many classes of ``times`` rows ``limit`` rows fill at most, one of them perhaps in part."""
    filled = [total for total in accumulate(sorted(times)) if total <= limit]
    return len(filled) + int(len(filled) < len(times) and (filled[-1] if filled else 0) < limit)


def regions_by_group(axis: LineAxis, cap: Cap) -> list[tuple[Ints, int]]:
    """The regions of the axis in sets that share no group of the cap, and how many groups each set holds."""
    groups = cap.axis
    mine, other = side_by_side(axis, groups)
    inside = mine >= 0
    place = (mine[inside], axis.size + other[inside])
    label = linked_parts(axis.size + groups.size, place)[1]
    held = np.unique(label[mine[inside]])
    return [(np.flatnonzero(label[: axis.size] == one), int((label[np.unique(place[1])] == one).sum())) for one in held]


def side_by_side(axis: LineAxis, other: LineAxis) -> tuple[Ints, Ints]:
    """The regions of two axes over one column in each piece that both cut, and for NULL."""
    cuts = sorted({*axis.cuts, *other.cuts})
    mine, theirs = (np.append(one.pieces[before(one, cuts)], one.null_region) for one in (axis, other))
    return mine, theirs


def before(axis: LineAxis, cuts: Sequence[object]) -> Ints:
    """For each piece of the finer ``cuts`` the piece of the axis that it lies in."""
    own = set(axis.cuts)
    return np.cumsum([0, *(cut in own for cut in cuts)])


def groups_of(cap: Cap, axis: Axis, layout: Layout) -> Layout:
    """A table of the groups of a bound on the rows of ``layout``, of which an axis is over the same column."""
    size, column = cap.axis.size, axis.column if isinstance(axis, LineAxis) else cap.column
    axes, counted = (replace(cap.axis, column=column),), sparse.csr_array((0, size), dtype=np.int64)
    cells = Cells(axes, (np.arange(size, dtype=np.int32)[None, :],), np.arange(size), counted)
    return replace(layout, cells=cells, measures=(), entry=np.arange(size)[None, :])
