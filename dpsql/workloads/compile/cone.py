"""The cone of possible data: every vector x that some table of rows can have, known by its rays.

A row in cell c adds 1 to the cell's count and a value in [-1, 1] to each of its centred measures. So the possible x are
the sums of such rows, and their closure under scaling is the cone of the corners (1, +-1, ..., +-1) of each cell's box:
x = rays @ w with w >= 0, and the mass of w in a cell is its number of rows. That is "counts are not negative, and a sum
lies within its count times its bounds" in one statement. Where no query uses a cell's count, its sums may be anything:
the rays there are the signed axes, and have no mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy import sparse

from dpsql.errors import DataError
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.regions import BoolArray, IntArray

MOST_RAYS = 2**20


@dataclass(frozen=True, eq=False)
class Cone:
    """``rays`` (n x R, integer csc): x = rays @ w, w >= 0. ``layout`` (R,) says whose rows a ray is made of.

    ``massive`` (R,): a ray that counts a row. ``counts[t]`` are layout t's entries of x that count rows, where all its
    cells have one, else None.
    """

    rays: sparse.csc_array = field(repr=False)
    layout: IntArray = field(repr=False)
    massive: BoolArray = field(repr=False)
    counts: tuple[IntArray | None, ...] = field(repr=False)

    @property
    def only_counts(self) -> bool:
        """Whether x holds counts and nothing else, so that rays are its entries."""
        return bool(self.massive.all()) and self.rays.nnz == self.rays.shape[1]

    def reach(self, rows: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest entry of each of ``rows`` (m x n) over the rays, 0 where it has none: two (m,).

        A row whose least entry is not negative asks for a number that cannot be negative; exact integers.
        """
        held = sparse.csr_array(rows @ self.rays)
        least, most = np.zeros(held.shape[0], dtype=np.int64), np.zeros(held.shape[0], dtype=np.int64)
        filled = np.flatnonzero(np.diff(held.indptr))
        if filled.size:
            least[filled] = np.minimum(np.minimum.reduceat(held.data, held.indptr[filled]), 0)
            most[filled] = np.maximum(np.maximum.reduceat(held.data, held.indptr[filled]), 0)
        return least, most


def cone_of(compiled: Compiled) -> Cone:
    """The cone of a compiled batch's x. Cost: cells x 2^s for s measures in a cell.

    Raises DataError for a batch of boxes, whose x counts conditions and not cells, and past 2^20 rays.
    """
    return rays_of(compiled.layouts, compiled.rows.shape[1])


def rays_of(layouts: Sequence[Layout], size: int) -> Cone:
    """``cone_of`` for layouts that fill ``size`` entries of x."""
    parts: list[sparse.csc_array] = []
    owner: list[IntArray] = []
    massive: list[BoolArray] = []
    counts: list[IntArray | None] = []
    for number, layout in enumerate(layouts):
        if layout.boxes is not None:
            raise DataError(
                "the conditions of this batch tell so many cells apart that they are counted condition by condition, "
                "and which counts go together is not known; ask for fewer conditions over several columns in one batch"
            )
        whole = True
        for cells, active in _kinds(layout.entry):
            counted = int(active[0]) == 0
            corner = _corners(len(active)) if counted else _axes(len(active))
            if cells.shape[1] * len(corner) + sum(map(len, owner)) > MOST_RAYS:
                raise DataError(
                    f"the batch has more than {MOST_RAYS:,} pairs of a cell and a corner of its sums; ask for fewer "
                    "groups or fewer sums in one batch"
                )
            whole &= counted
            rays = cells.shape[1] * len(corner)
            at = np.broadcast_to(cells.T[:, None, :], (cells.shape[1], *corner.shape)).reshape(-1)
            values = np.broadcast_to(corner[None], (cells.shape[1], *corner.shape)).reshape(-1)
            column = np.repeat(np.arange(rays), corner.shape[1])
            made = sparse.csc_array((values, (at, column)), shape=(size, rays))
            made.eliminate_zeros()
            parts.append(made)
            owner.append(np.full(rays, number))
            massive.append(np.full(rays, counted))
        mine = layout.entry[0]
        counts.append(np.unique(mine[mine >= 0]) if whole else None)
    if not parts:
        raise DataError("no number of the batch depends on the data")
    return Cone(
        sparse.csc_array(sparse.hstack(parts, format="csc")),
        np.concatenate(owner),
        np.concatenate(massive),
        tuple(counts),
    )


def _kinds(entry: IntArray) -> list[tuple[IntArray, IntArray]]:
    """(entries of x (active x cells), the active measures) of cells that use the same measures; merged cells once."""
    used = entry[:, (entry >= 0).any(axis=0)]
    cells = used[:, np.unique(used.max(axis=0), return_index=True)[1]]
    if not cells.shape[1]:
        return []
    kinds, inverse = np.unique(cells.T >= 0, axis=0, return_inverse=True)
    found = []
    for number, kind in enumerate(kinds):
        active = np.flatnonzero(kind)
        found.append((cells[active][:, inverse.ravel() == number], active))
    return found


def _corners(entries: int) -> IntArray:
    """(1, +-1, ..., +-1), one a row."""
    signs = np.array(list(product((1, -1), repeat=entries - 1)), dtype=np.int64).reshape(2 ** (entries - 1), -1)
    return np.hstack([np.ones((len(signs), 1), dtype=np.int64), signs])


def _axes(entries: int) -> IntArray:
    """The axes and their negatives, one a row."""
    eye = np.eye(entries, dtype=np.int64)
    return np.vstack([eye, -eye])
