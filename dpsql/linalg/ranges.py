"""Rows of ones in a range of columns: the edges of a graph, which tells how they depend on each other.

With P(i) the sum of the first i entries of x, a range from column a up to b sees P(b) - P(a): an edge between the
vertices a and b of 0 .. N. So rows are independent where their edges make no circle, their rank is N + 1 less the
number of connected parts, and the row of an edge is the sum along the way that a spanning forest has between its ends,
each edge of it with a sign (they are a network matrix). All of this is exact.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.arrays import Csr, Ints
from dpsql.linalg.linked import linked_parts


def ends_of(D: Csr) -> tuple[Ints, Ints] | None:
    """Where each row of D (q x N) begins and where it has ended, None unless each is a range of ones."""
    lengths = np.diff(D.indptr)
    if not lengths.all() or not (D.data == 1).all():
        return None
    if not D.has_sorted_indices:
        D = D.sorted_indices()
    first, last = D.indices[D.indptr[:-1]].astype(np.int64), D.indices[D.indptr[1:] - 1].astype(np.int64)
    return (first, last + 1) if np.array_equal(last + 1 - first, lengths) else None


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
