"""Equal columns, zero columns and disjoint blocks of sparse integer matrices.

Cells that no query tells apart carry equal columns; merging them leaves every optimum as
it is (a strategy may treat them alike by convexity), and the iterations run on the distinct
ones only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpsql.arrays import Array, Ints, Matrix

_SEED = 20_130  # public and fixed: hashes only speed up a comparison that is then made exactly


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct non-zero columns of a matrix.

    ``keep`` (N,) holds one column number for each class in ascending order; ``label`` (n,)
    the class of every column, -1 for columns of zeros.
    """

    keep: Ints
    label: Ints


def distinct_columns(matrix: Matrix, *, up_to_sign: bool = False) -> Distinct:
    """Group equal non-zero columns of an integer csr matrix (q x n), exactly.

    With ``up_to_sign`` columns c and -c fall together as well (their norms are the same).
    Columns are grouped by a random linear hash in integers modulo 2^64 and every column is
    then compared with the first of its group. Cost O(nnz + n log n).
    """
    csc = sparse.csc_array(matrix)
    csc.sort_indices()
    csc.eliminate_zeros()
    n = csc.shape[1]
    counts = np.diff(csc.indptr)
    used = np.flatnonzero(counts)
    data = csc.data.astype(np.int64, copy=False)
    if up_to_sign and used.size and data.min() < 0:
        sign = np.ones(n, dtype=np.int64)
        sign[used] = np.sign(data[csc.indptr[used]])
        data = data * np.repeat(sign, counts)
    rng = np.random.default_rng(_SEED)
    code = rng.integers(1, 2**63, size=csc.shape[0], dtype=np.uint64)
    running = np.concatenate([[np.uint64(0)], np.cumsum(code[csc.indices] * data.view(np.uint64))])
    hashes = running[csc.indptr[1:]] - running[csc.indptr[:-1]]
    _, first, inverse = np.unique(hashes[used], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    label = np.full(n, -1, dtype=np.int64)
    label[used] = rank[inverse]
    keep = used[first[order]]
    # The comparison that makes the grouping exact: same length, same rows, same values.
    if used.size:
        mate = keep[label[used]]
        same = counts[used] == counts[mate]
        if bool(same.all()):
            offset = np.repeat(csc.indptr[mate] - csc.indptr[used], counts[used])
            place = np.arange(data.size)
            same_entries = (csc.indices == csc.indices[place + offset]) & (data == data[place + offset])
            if bool(same_entries.all()):
                return Distinct(keep, label)
    return _distinct_slowly(csc.indptr, csc.indices, data)


def _distinct_slowly(indptr: Array, indices: Array, data: Ints) -> Distinct:
    """The same by comparing bytes; only reached where two unequal columns share a hash."""
    seen: dict[tuple[bytes, bytes], int] = {}
    keep: list[int] = []
    label = np.full(len(indptr) - 1, -1, dtype=np.int64)
    for j in range(len(indptr) - 1):
        part = slice(indptr[j], indptr[j + 1])
        if indptr[j] == indptr[j + 1]:
            continue
        key = (indices[part].tobytes(), data[part].tobytes())
        if key not in seen:
            seen[key] = len(keep)
            keep.append(j)
        label[j] = seen[key]
    return Distinct(np.asarray(keep, dtype=np.int64), label)


def disjoint_blocks(matrix: Matrix, coupling: Ints) -> tuple[int, Ints]:
    """(number, labels of the q rows): rows that share a column or a coupling label, transitively.

    ``matrix`` is q x N, ``coupling`` (q,) as in ``inner.Inner.coupling``. Cost O(nnz).
    """
    q = matrix.shape[0]
    csc = sparse.csc_array(matrix)
    # Consecutive rows of a column are linked, and consecutive rows of a coupling label.
    follows = np.ones(csc.nnz, dtype=bool)
    follows[csc.indptr[:-1][np.diff(csc.indptr) > 0]] = False
    later = np.flatnonzero(follows)
    a, b = csc.indices[later - 1].astype(np.int64), csc.indices[later].astype(np.int64)
    if q * q <= 2**24:
        linked = np.zeros(q * q, dtype=bool)
        linked[a * q + b] = True
        a, b = np.divmod(np.flatnonzero(linked), q)
    order = np.argsort(coupling, kind="stable")
    same = np.flatnonzero(np.diff(coupling[order]) == 0)
    a, b = np.concatenate([a, order[same]]), np.concatenate([b, order[same + 1]])
    graph = sparse.coo_array((np.ones(a.size, dtype=np.int8), (a, b)), shape=(q, q))
    number, labels = connected_components(graph, directed=False)
    return int(number), labels.astype(np.int64)
