"""Bounds on the squared L2 sensitivity of B to one unit, for counts of units and of rows over the same rows.

**Claim.** Where no measurement reads units of two counts over the same rows (``Patterns``), and measurements that read
entries in common are read as one block, ||B c||^2 is a sum over the blocks. What is kept of a unit is at most ``most``
rows for all counts, so that for each count t what it adds to t and to the rows is one of ``tied_to(t)``. So

    ||B c||^2 <= sum_t max ||B_t c_t||^2 + ||B_0 c_0||^2,   c_t of ``tied_to(t)``, B_t all blocks that read units of t,

and blocks of rows alone move the most where all ``most`` rows are of one cell, as norms are convex.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Matrix, Sparse
from dpsql.linalg.exact import max_abs, products, sparse_products
from dpsql.linalg.linked import linked_by
from dpsql.linalg.norms import column_norms
from dpsql.workloads.families.contributions import Tied, tied_to
from dpsql.workloads.families.patterns import Patterns
from dpsql.workloads.families.reach import ALL_PRODUCTS, of_classes, reach_tied


def norm_by_grouping(mixing: Matrix, basis: Sparse, patterns: Patterns) -> int | None:
    """The squared bound of the module; None where a block reads units of two counts, or rows have classes.

    Cost: one pass over B and what ``norm_of_classes`` and ``tied_norm`` take of each count.
    """
    if patterns.rows is None or patterns.classes is not None:
        return None
    measured, read = sparse.csr_array(mixing), ones_of(basis)
    number, of_row, of_column = linked_by(ones_of(measured))
    home = np.full(number, -1)
    for t, cells in enumerate(patterns.cells):
        units = np.zeros(patterns.size, dtype=np.int64)
        units[cells[cells >= 0]] = 1
        blocks = np.unique(of_column[np.flatnonzero(read @ units)])
        if (home[blocks] >= 0).any():
            return None
        home[blocks] = t
    total, rows = 0, sparse.csr_array(basis)
    for t in np.unique(home).tolist():
        p, v = np.flatnonzero(home[of_row] == t), np.flatnonzero(home[of_column] == t)
        own, seen = sparse.csr_array(measured[p][:, v]), sparse.csr_array(rows[v])
        if t < 0:
            alone = patterns.rows[patterns.rows >= 0]
            total += patterns.most**2 * int(column_norms(own, sparse.csc_array(seen)[:, np.unique(alone)])[1])
            continue
        tied = tied_to(patterns, t).through(seen)
        still = sparse.eye_array(seen.shape[0], dtype=np.int64, format="csr")
        found = norm_of_classes(own, still, tied)
        found = tied_norm(own, still, tied) if found is None else found
        if found is None:
            return None
        total += found
    return total


def tied_norm(mixing: Matrix, basis: Sparse, tied: Tied) -> int | None:
    """``reach_tied`` in integers."""
    columns = sparse.csc_array(basis @ tied.columns)
    if columns.shape[1] > 2 * ALL_PRODUCTS:
        return None
    K = products(mixing, columns, columns)
    fits = int(abs(K).max(initial=0)) * (2 * tied.most + 2) ** 2 < 2**62
    found = reach_tied(K.astype(np.int64 if fits else object), tied)
    return None if found is None else int(found)


def norm_of_classes(mixing: Matrix, basis: Sparse, tied: Tied) -> int | None:
    """The largest squared norm of ``tied``, exactly, where no measurement has rows of two classes; else None.

    What is moved of different classes has no products then, so that squared norms of classes add up, each a convex
    function of how many rows the class has. Of s classes one is best with all rows but one in each other. Cost
    O(c log c) for each s.
    """
    columns, c = sparse.csc_array(basis @ tied.columns), tied.label.size
    if (tied.label < 0).any():
        return None  # rows that no unit is counted by
    found = sparse_products(mixing, columns, columns)
    if found is None or max_abs(found) * (2 * tied.most + 2) ** 2 * (tied.limit + 1) >= 2**62:
        return None
    K = sparse.coo_array(found)
    label = np.tile(np.unique(tied.label, return_inverse=True)[1], 2)
    if (K.data[label[K.row] != label[K.col]] != 0).any():
        return None
    held = sparse.csr_array(found)
    diagonal, cross = held.diagonal(), np.asarray(held.diagonal(c), dtype=np.int64)[:c]
    one, further, label = diagonal[:c], diagonal[c:], label[:c]
    single = of_classes(one[None, :], label)[0]
    ranked = np.sort(single)[::-1]
    best = tied.most**2 * int(further[tied.alone].max(initial=0))
    for s in range(1, tied.limit + 1):
        left = tied.most - s
        heavy = np.maximum(single, of_classes((one + 2 * left * cross + left**2 * further)[None, :], label)[0])
        # The s - 1 longest others: one less of these where the class itself is one of them.
        others = np.where(single >= ranked[s - 1], ranked[:s].sum() - single, ranked[: s - 1].sum())
        best = max(best, int((heavy + others).max()))
    return best


def ones_of(matrix: Matrix) -> Sparse:
    """1 in place of every entry."""
    held = sparse.csr_array(matrix)
    return sparse.csr_array((np.ones(held.data.size, dtype=np.int64), held.indices, held.indptr), shape=held.shape)
