"""What strategies by source take apart: queries by class, sums of corners that are alike, what pieces see of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Flags, Floats, Ints, Sparse
from dpsql.common.numerics import ROUNDING
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import choose_basis
from dpsql.linalg.columns import distinct_columns
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import cholesky
from dpsql.strategies.gaussian.exchangeable_cells import AlikeOptimum, Sum, alike_cells, solve_alike_cells
from dpsql.strategies.pure.row_mixing import symmetric_root
from dpsql.workloads.families.contributions import Part
from dpsql.workloads.families.matrix import Workload

_EXACT = 1e4  # times the largest entry of a root


def alike_sums(K: Floats, label: Ints, most: int) -> Sparse:
    """0/1 columns (N x N): each column with those of other classes whose products K with it are largest."""
    size, home = label.size, np.unique(label, return_inverse=True)[1]
    classes = [np.flatnonzero(home == number) for number in range(int(home.max()) + 1)]
    best = np.stack([own[np.argmax(K[:, own], axis=1)] for own in classes], axis=1)
    value = np.take_along_axis(K, best, axis=1)
    best[np.arange(size), home], value[np.arange(size), home] = np.arange(size), np.inf
    chosen = np.take_along_axis(best, np.argsort(-value, axis=1, kind="stable")[:, :most], axis=1)
    place = (chosen.ravel(), np.repeat(np.arange(size), chosen.shape[1]))
    return sparse.csc_array((np.ones(chosen.size, dtype=np.int64), place), shape=(size, size))


def moved_by(piece: Piece, V: Workload) -> Floats:
    """What each contribution of V moves of a piece (p x N)."""
    columns = V.moved(piece.rows).toarray().astype(np.float64)
    rows = columns.reshape(piece.copies, -1, columns.shape[1])
    turned = piece.root[:, None] * rows if piece.root.ndim == 1 else piece.root @ rows
    return np.asarray(turned).reshape(-1, columns.shape[1])


def across_classes(moved: Csr, label: Ints) -> Flags:
    """Which queries (rows of ``moved``) are moved by corners of several classes."""
    held, used = label[moved.indices], np.flatnonzero(np.diff(moved.indptr))
    first, last = (of.reduceat(held, moved.indptr[used]) for of in (np.minimum, np.maximum))
    out = np.zeros(moved.shape[0], dtype=bool)
    out[used] = first < last
    return out


def planned_alike(
    V: Workload,
    label: Ints,
    longest: Callable[[Floats], list[Sum]],
    tolerance: float,
    deadline: float,
    again: Ints | None = None,
    *,
    alone: bool = True,
) -> tuple[AlikeOptimum, Piece] | None:
    """The optimum over sums of V's contributions, which are the corners of classes ``label`` from 0 on; None where too
    few classes and corners are alike. ``again``: a number for each of all corners, then others for the same once more.
    ``alone``: whether each corner is a contribution by itself.
    """
    moved = sparse.csr_array(V.moved(V.span))
    across = across_classes(moved, label)
    corner = distinct_columns(sparse.csc_array(moved[across])).label
    scaled = sparse.diags_array(np.sqrt(np.asarray(V.inner.diagonal()))) @ moved
    asked = (scaled.T @ scaled).toarray()
    few = np.arange(label.size if again is None else label.size // 2)
    corner = _told_apart(label[few], corner[few], np.stack([abs(asked[few]).sum(axis=1), np.diag(asked)[few]]))
    corner = np.tile(np.unique(corner, return_inverse=True)[1], label.size // few.size)
    cells = alike_cells(asked, label, corner, again)
    if cells is None and again is not None:
        # Of corners of no class it does not matter which are of one.
        apart = np.where(again > 1, int(label.max()) + 1 + corner, label)
        cells = alike_cells(asked, np.unique(apart, return_inverse=True)[1], corner, again)
    if cells is None:
        return None
    found = solve_alike_cells(asked, cells, longest, tolerance, deadline, alone=alone)
    return None if found is None else (found, piece_of(V, found))


def piece_of(V: Workload, found: AlikeOptimum, part: slice = slice(None)) -> Piece:
    """A piece that moves by c^T X c over the contributions of V, which are the cells of ``found``, or a ``part`` of
    them that X has apart.
    """
    basis = choose_basis(V.span, V.inner)
    gram, columns = basis.gram(V.inner), sparse.csc_array(V.moved(basis.rows))
    if columns.shape[0] == columns.nnz and (columns.data == 1).all():
        # Each of the rows is a cell; a cell may be several, whose differences no contribution moves.
        often = np.diff(columns.indptr)
        cell = np.repeat(np.arange(often.size), often)[np.argsort(columns.indices)]
        if np.unique(np.diag(found.split.cells.colour)[part]).size == often.max() == 1:
            # All cells are alike: what rounding does to each does not tell kinds of them apart.
            root = cholesky(found.metric[part, part][np.ix_(cell, cell)])
        else:
            root = found.root[part, part][np.ix_(cell, cell)]
            root = _with_differences(root, cell, often) if often.max() > 1 else root
    else:
        rows = columns.toarray().astype(np.float64)
        back = scipy.linalg.pinv(rows, rtol=ROUNDING).T
        moved = back @ found.metric[part, part] @ back.T
        still = np.eye(len(rows)) - rows @ back.T  # onto differences of rows that no contribution moves
        if float(np.trace(still)) > 0.5:
            moved += (_EXACT**2 * float(np.diag(moved).max())) * still
        root = symmetric_root(moved, gram)
    return Piece(basis.rows, root, columns, gram, placed=(basis.rows, basis.coords))


def _with_differences(root: Floats, cell: Ints, often: Ints) -> Floats:
    """A root over rows that are copies of cells, with their differences, which are measured next to exactly."""
    by = often[cell].astype(np.float64)
    same = np.where(cell[:, None] == cell[None, :], 1.0 / by, 0.0)
    differences = _EXACT * float(np.diag(root).max()) * (np.eye(cell.size) - same)
    return np.asarray(root / np.outer(np.sqrt(by), by) + differences)


def _told_apart(label: Ints, corner: Ints, told: Floats) -> Ints:
    """Corners of which a class has each once: several of one are told apart by their order in what is ``told``."""
    _, pair = np.unique(np.stack([label, corner]), axis=1, return_inverse=True)
    order = np.lexsort((*told.round(9), pair.ravel()))
    place = np.arange(order.size) - np.searchsorted(pair.ravel()[order], pair.ravel()[order])
    rank = np.zeros(order.size, dtype=np.int64)
    rank[order] = place
    return corner * (int(rank.max(initial=0)) + 1) + rank


def rows_only(V: Workload, rows: Ints) -> Workload:
    """Some queries of V, which is kept row by row."""
    diagonal = np.asarray(V.inner.diagonal())[rows]
    return Workload(sparse.csr_array(V.span[rows]), algebra.Diagonal(np.sqrt(diagonal)), V.contributions, None, V.name)


def by_class(V: Workload, part: Part) -> Workload:
    """Every query, taken apart into its parts in each class of corners; corners of several classes go to the first."""
    label = np.unique(part.labels, return_inverse=True)[1]
    home = np.full(V.shape[1], label.size)  # the class that an entry of x goes to; no class has this number
    np.minimum.at(home, part.corners.indices, np.repeat(label, np.diff(part.corners.indptr)))
    span = sparse.coo_array(V.span)
    kept = (home[span.col] < label.size) & (span.data != 0)
    parts, place = np.unique(home[span.col[kept]] * span.shape[0] + span.row[kept], return_inverse=True)
    entries = (span.data[kept], (place, span.col[kept]))
    stacked = sparse.csr_array(entries, shape=(parts.size, V.shape[1]))
    scales = np.sqrt(np.asarray(V.inner.diagonal()))[parts % span.shape[0]]
    return Workload(stacked, algebra.Diagonal(scales), V.contributions, None, V.name)
