"""Corners: the extreme ways in which one row can change the data vector x.

A row in cell c changes the cell's count by 1 and its k-th measure by a value in [-1, 1]: a point
of the box {1} x [-1, 1]^s over the entries of x that the cell has. Norms of B times that point are
convex in it, so the 2^s corners of the box decide every sensitivity. A corner and its negative
have one norm, so where a cell has no count the first sign is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Flags
from dpsql.errors import SQLError
from dpsql.workloads.expr.regions import IntArray

MAX_MEASURES_IN_A_CELL = 16
MAX_CORNER_ENTRIES = 4_000_000


def corners_of(entries: Sequence[IntArray], size: int) -> sparse.csc_array:
    """The corners (size x corners, integer csc) of all cells of all tables.

    ``entries[t]`` (1 + s_t x cells) gives the entry of x for each measure of each cell of table t,
    the count first, or -1; cells with the same entries count once. Cost: cells x 2^s x s. Raises
    SQLError past 16 summed columns in a cell and past 4 million corner entries.
    """
    at_entry: list[IntArray] = []
    values: list[IntArray] = []
    lengths: list[IntArray] = []
    total = 0
    for entry in entries:
        # Merged cells share all their entries, so any one of them tells cells apart.
        last = entry.max(axis=0)
        first = np.unique(last, return_index=True)[1]
        cells = entry[:, first[last[first] >= 0]]
        kinds, inverse = _kinds(cells >= 0)
        total += _counted(kinds, np.bincount(inverse.ravel(), minlength=len(kinds)))
        _check(total)
        for number, kind in enumerate(kinds):
            active = np.flatnonzero(kind)
            corner = _box(active)
            mine = cells[active][:, inverse.ravel() == number]
            shape = (mine.shape[1], *corner.shape)
            at_entry.append(np.broadcast_to(mine.T[:, None, :], shape).ravel())
            values.append(np.broadcast_to(corner[None], shape).ravel())
            lengths.append(np.full(shape[0] * shape[1], shape[2]))
    if not at_entry:
        return sparse.csc_array((size, 0), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    found = sparse.csc_array((np.concatenate(values), np.concatenate(at_entry), starts), shape=(size, len(starts) - 1))
    found.sort_indices()
    return found


def _kinds(there: Flags) -> tuple[Flags, IntArray]:
    """The distinct columns, as rows in ascending order, and which of them each column is."""
    rows = there.shape[0]
    if rows > 62:  # flags that one integer holds
        kinds, inverse = np.unique(there.T, axis=0, return_inverse=True)
        return kinds, inverse.ravel()
    weights = 1 << np.arange(rows, dtype=np.int64)[::-1]
    codes, inverse = np.unique(weights @ there, return_inverse=True)
    return (codes[:, None] & weights) > 0, inverse


def _counted(kinds: Flags, cells: IntArray) -> int:
    """The entries of all corners of cells of these kinds (which entries of x they have), before any is made."""
    summed = int(kinds[:, 1:].sum(axis=1).max(initial=0))
    if summed > MAX_MEASURES_IN_A_CELL:
        raise SQLError(
            f"{summed} summed columns meet in one cell, squares and products of columns among them; at "
            f"most {MAX_MEASURES_IN_A_CELL} are planned together: split the batch, or name fewer columns",
            code="too-large",
        )
    active = kinds.sum(axis=1)
    return int((cells * 2 ** np.maximum(active - 1, 0) * active).sum())


def _box(active: IntArray) -> IntArray:
    """The corners of one cell's box (corners x active entries); entry 0 is the count."""
    free = len(active) - 1
    signs = np.array(list(product((1, -1), repeat=free)), dtype=np.int64).reshape(2**free, free)
    return np.hstack([np.ones((2**free, 1), dtype=np.int64), signs])


def _check(entries: int) -> None:
    if entries > MAX_CORNER_ENTRIES:
        raise SQLError(
            f"the batch's sums make {entries:,} corners of cells and summed columns, at most "
            f"{MAX_CORNER_ENTRIES:,} are planned: sum fewer columns together, or group by fewer",
            code="too-large",
        )
