"""What strategies by source take apart: queries by class, sums of corners that are alike, what pieces see of them."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.arrays import Floats, Ints, Sparse
from dpsql.linalg import inner as algebra
from dpsql.strategy.core.integer import Piece
from dpsql.workload.families.contributions import Part
from dpsql.workload.families.matrix import Workload


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
