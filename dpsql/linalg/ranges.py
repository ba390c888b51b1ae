"""Rows of ones in a range of columns: the edges of a graph, which tells how they depend on each other.

With P(i) the sum of the first i entries of x, a range from column a up to b sees P(b) - P(a): an edge between the
vertices a and b of 0 .. N. So rows are independent where their edges make no circle, their rank is N + 1 less the
number of connected parts, and the row of an edge is the sum along the way that a spanning forest has between its ends,
each edge of it with a sign (they are a network matrix). All of this is exact.

Rows C that change seldom along their columns, as sums of few ranges, are C = E U for their changes E, of few entries,
and ones U on and above the diagonal. Products are running sums then: C X = E (U X), and C^T H C = U^T (E^T H E) U.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Matrix
from dpsql.linalg.forms import is_sparse
from dpsql.linalg.linked import linked_parts

_SELDOM = 16  # columns for each change of a row, at least


def ends_of(D: Csr) -> tuple[Ints, Ints] | None:
    """Where each row of D (q x N) begins and where it has ended, None unless each is a range of ones."""
    lengths = np.diff(D.indptr)
    if not lengths.all() or not (D.data == 1).all():
        return None
    if not D.has_sorted_indices:
        D = D.sorted_indices()
    first, last = D.indices[D.indptr[:-1]].astype(np.int64), D.indices[D.indptr[1:] - 1].astype(np.int64)
    return (first, last + 1) if np.array_equal(last + 1 - first, lengths) else None


def changes_of(C: Matrix) -> Csr | None:
    """E (q x v) of C = E U; None where C is dense, has few entries, or its rows do not change seldom. Cost O(nnz)."""
    q, v = C.shape
    if not is_sparse(C) or _SELDOM * C.nnz < q * v:
        return None
    csr = sparse.csr_array(C)
    after = sparse.csr_array((csr.data, csr.indices + 1, csr.indptr), shape=(q, v + 1))
    found = sparse.csr_array(sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=(q, v + 1)) - after)
    found.eliminate_zeros()
    return sparse.csr_array(found[:, :v]) if _SELDOM * found.nnz <= q * v else None


def product_of(changes: Csr, X: Floats) -> Floats:
    """C X for C = E U."""
    return np.asarray(changes @ X[::-1].cumsum(axis=0)[::-1])


def gram_of(changes: Csr, weights: Floats) -> Floats:
    """C^T diag(weights) C for C = E U."""
    weighted = sparse.diags_array(weights) @ changes
    return np.asarray((changes.T @ weighted).toarray().cumsum(axis=0).cumsum(axis=1))


def rank_of(ends: tuple[Ints, Ints], N: int) -> int:
    """The rank of ranges over N columns."""
    return N + 1 - linked_parts(N + 1, ends)[0]


def forest_of(ends: tuple[Ints, Ints], N: int) -> tuple[Ints, Csr]:
    """(independent rows that span all, in ascending order, all rows in these: entries -1, 0 and 1).

    Breadth first, so that few are summed up.
    """
    beside: list[list[tuple[int, int]]] = [[] for _ in range(N + 1)]
    pairs = list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))
    for edge, (a, b) in enumerate(pairs):
        beside[a].append((b, edge))
        beside[b].append((a, edge))
    above, by, depth = [-1] * (N + 1), [-1] * (N + 1), [-1] * (N + 1)
    for root in range(N + 1):
        if depth[root] >= 0:
            continue
        depth[root], level = 0, [root]
        while level:
            below = []
            for vertex in level:
                for other, edge in beside[vertex]:
                    if depth[other] < 0:
                        above[other], by[other], depth[other] = vertex, edge, depth[vertex] + 1
                        below.append(other)
            level = below
    picked = np.array(sorted(edge for edge in by if edge >= 0), dtype=np.int64)
    place = {edge: i for i, edge in enumerate(picked.tolist())}
    summed: list[tuple[int, int, float]] = []
    for edge, (low, high) in enumerate(pairs):
        if edge in place:
            summed.append((edge, place[edge], 1.0))
            continue
        while low != high:
            # One step up from the deeper end: P(vertex) - P(above) is the row, or less the row, of the edge between.
            up = low if depth[low] > depth[high] else high
            summed.append((edge, place[by[up]], 1.0 if (up > above[up]) == (up == high) else -1.0))
            low, high = (above[up], high) if up == low else (low, above[up])
    line, at, sign = zip(*summed, strict=True)
    return picked, sparse.csr_array(sparse.coo_array((sign, (line, at)), shape=(len(pairs), picked.size)))
