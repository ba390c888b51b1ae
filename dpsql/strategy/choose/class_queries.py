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
    weight, rows, scales = np.sqrt(np.asarray(V.inner.diagonal())), [], []
    span, taken = sparse.csc_array(V.span), np.zeros(V.shape[1], dtype=bool)
    for own in part.classes:
        inside = np.zeros(V.shape[1], dtype=bool)
        inside[np.unique(part.corners[:, own].indices)] = True
        inside &= ~taken
        taken |= inside
        held = sparse.csr_array(span @ sparse.diags_array(inside.astype(np.int64), dtype=np.int64))
        held.eliminate_zeros()
        some = np.flatnonzero(np.diff(held.indptr))
        rows.append(held[some])
        scales.append(weight[some])
    stacked = sparse.csr_array(sparse.vstack(rows, format="csr"))
    return Workload(stacked, algebra.Diagonal(np.concatenate(scales)), V.contributions, None, V.name)
