"""The connected parts of a graph, such as the rows and columns of a matrix that its entries link."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Ints, Sparse

_FEW = 16  # edges, up to which joining parts one by one takes less than a graph of scipy's


def linked_parts(count: int, ends: tuple[Array, Array]) -> tuple[int, Ints]:
    """(number of parts, the part of each of ``count`` vertices (count,)); ``ends`` are those of each edge.

    Parts are numbered in the order of their first vertices. O(count + edges).
    """
    if ends[0].size > _FEW:
        graph = sparse.coo_array((np.ones(ends[0].size, dtype=np.int8), ends), shape=(count, count))
        number, part = sparse.csgraph.connected_components(graph, directed=False)
        return int(number), part.astype(np.int64)
    first = np.arange(count)  # the first vertex of each one's part
    for one, other in zip(first[ends[0]].tolist(), first[ends[1]].tolist(), strict=True):
        low, high = sorted((first[one], first[other]))
        first[first == high] = low
    found, number_of = np.unique(first, return_inverse=True)
    return found.size, number_of.astype(np.int64)


def linked_by(matrix: Sparse) -> tuple[int, Ints, Ints]:
    """(number of parts, the part of each row, the part of each column) of what the stored entries link."""
    entries = matrix.tocoo()
    p, v = matrix.shape
    number, part = linked_parts(p + v, (entries.row, p + entries.col))
    return number, part[:p], part[p:]
