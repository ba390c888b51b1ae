"""Equal columns, zero columns and disjoint blocks of sparse integer matrices.

Cells that no query tells apart carry equal columns; merging them leaves every optimum as
it is (a strategy may treat them alike by convexity), and the iterations run on the distinct
ones only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Ints, Matrix, Sparse
from dpsql.linalg.linked import linked_parts

_SOME = 2048  # values that show whether many differ, and columns of which no fewer are looked at
_LOOKED_UP = 64
_MANY = 2**16  # entries
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
    Columns are grouped by a random linear hash in integers modulo 2^64, under which that of -c is that of c negated;
    those that fell together are then compared exactly. Cost O(nnz + n log n).
    """
    csr = sparse.csr_array(matrix)
    if csr.nnz and not csr.data.all():
        csr = csr.copy() if csr is matrix else csr
        csr.eliminate_zeros()
    n = csr.shape[1]
    data = csr.data.astype(np.int64, copy=False)
    counts = np.bincount(csr.indices, minlength=n)
    used = np.flatnonzero(counts)
    code = np.random.default_rng(_SEED).integers(1, 2**63, size=csr.shape[0], dtype=np.int64)
    hashes = (sparse.csr_array((data, csr.indices, csr.indptr), shape=csr.shape).T @ code)[used].view(np.uint64)
    signed = up_to_sign and used.size > 0 and bool(data.min() < 0)
    grouped = np.minimum(hashes, np.negative(hashes)) if signed else hashes
    first, inverse = _first_of_each(grouped)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    label = np.full(n, -1, dtype=np.int64)
    label[used] = rank[inverse]
    keep = used[first[order]]
    if keep.size == used.size:
        return Distinct(keep, label)
    mate = keep[label[used]]
    sign = None
    if signed:
        sign = np.ones(n, dtype=np.int64)
        at = np.empty(n, dtype=np.uint64)
        at[used] = hashes
        sign[used[hashes != at[mate]]] = -1
    # The comparison that makes the grouping exact.
    if bool((counts[used] == counts[mate]).all()) and _is_grouping(csr, data, keep, label, sign):
        return Distinct(keep, label)
    csc = sparse.csc_array(csr)
    csc.sort_indices()
    held = csc.data.astype(np.int64, copy=False)
    if signed:
        lead = np.ones(n, dtype=np.int64)
        lead[used] = np.sign(held[csc.indptr[used]])
        held = held * np.repeat(lead, np.diff(csc.indptr))
    return _distinct_slowly(csc.indptr, csc.indices, held)


def _first_of_each(values: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """(where each distinct value stands first, which of them each is); distinct values in any order."""
    if not values.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if values.size > _SOME and 8 * np.unique(values[:: values.size // _SOME]).size < _SOME:
        each = np.unique(values)
        if 8 * each.size < values.size:
            inverse = np.searchsorted(each, values)
            first = np.empty(each.size, dtype=np.int64)
            first[inverse[::-1]] = np.arange(values.size - 1, -1, -1)
            return first, inverse
    order = np.argsort(values)
    rising = values[order]
    new = np.append(True, rising[1:] != rising[:-1])
    if new.all():
        return (every := np.arange(values.size)), every
    inverse = np.empty(values.size, dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return np.minimum.reduceat(order, np.flatnonzero(new)), inverse


def _is_grouping(csr: Csr, data: Ints, keep: Ints, label: Ints, sign: Ints | None) -> bool:
    """Is every column the one kept for its class, times its sign? All have as many entries as that one."""
    q, N = csr.shape[0], keep.size
    if q * N <= csr.nnz:  # few: each entry is looked up in those that are kept
        values = data if sign is None else data * sign[csr.indices]
        at = np.repeat(np.arange(0, q * N, N), np.diff(csr.indptr)) + label[csr.indices]
        values_of_class = np.zeros(q * N, dtype=np.int64)
        mine = np.zeros(label.size, dtype=bool)
        mine[keep] = True
        first = mine[csr.indices]
        values_of_class[at[first]] = values[first]
        return bool((values_of_class[at] == values).all())
    several = np.flatnonzero((np.bincount(label[label >= 0], minlength=keep.size) > 1)[label] & (label >= 0))
    whole = sparse.csr_array((data, csr.indices, csr.indptr), shape=csr.shape)
    csc = sparse.csc_array(whole if 2 * several.size > label.size else whole[:, several])
    if csc.shape[1] == label.size:
        several = np.arange(label.size)
    mate = np.searchsorted(several, keep[label[several]])
    lengths = np.diff(csc.indptr)
    mate[lengths == 0] = 0
    other = np.arange(csc.nnz) + np.repeat(csc.indptr[mate] - csc.indptr[:-1], lengths)
    if not (csc.indices == csc.indices[other]).all():
        return False
    values = csc.data[other] if sign is None else csc.data[other] * np.repeat(sign[several], lengths)
    return bool((csc.data == values).all())


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


def columns_at(matrix: Sparse, keep: Ints) -> Csr:
    """The columns ``keep`` (ascending) of a matrix, as csr. Cost O(nnz), a fraction of what slicing takes."""
    csr = sparse.csr_array(matrix)
    if keep.size == csr.shape[1]:
        return csr
    place = np.full(csr.shape[1], -1, dtype=csr.indices.dtype)
    place[keep] = np.arange(keep.size, dtype=csr.indices.dtype)
    column = place[csr.indices]
    there = np.flatnonzero(column >= 0)
    before = np.searchsorted(there, csr.indptr).astype(csr.indptr.dtype)
    parts = csr.data[there], column[there], before
    return sparse.csr_array(parts, shape=(csr.shape[0], keep.size))


def disjoint_blocks(matrix: Sparse, coupling: Ints) -> tuple[int, Ints]:
    """(number, labels of the q rows): rows that share a column or a coupling label, transitively.

    ``matrix`` is q x N, ``coupling`` (q,) as in ``inner.Inner.coupling``. Cost O(nnz).
    """
    q = matrix.shape[0]
    if matrix.nnz > _MANY and 4 * _LOOKED_UP * q < matrix.nnz and _all_linked(sparse.csr_array(matrix)):
        return 1, np.zeros(q, dtype=np.int64)
    return _linked(sparse.csc_array(matrix), coupling)


def _all_linked(csr: Csr) -> bool:
    """Do all rows share columns with the longest, or with rows that do? Of each row up to 64 entries are looked up."""
    starts, lengths = csr.indptr[:-1], np.diff(csr.indptr)
    if not lengths.all():
        return False
    shares = np.random.default_rng(_SEED).random((starts.size, _LOOKED_UP))
    some = csr.indices[starts[:, None] + (shares * lengths[:, None]).astype(csr.indptr.dtype)]
    reached, left, new = np.zeros(csr.shape[1], dtype=bool), np.arange(starts.size), np.array([np.argmax(lengths)])
    while new.size:
        for row in new.tolist():
            reached[csr.indices[csr.indptr[row] : csr.indptr[row + 1]]] = True
        hit = reached[some[left]].any(axis=1)
        left, new = left[~hit], left[hit]
    return not left.size


def _linked(csc: Sparse, coupling: Ints) -> tuple[int, Ints]:
    """``disjoint_blocks`` of a csc matrix."""
    q = csc.shape[0]
    # Consecutive rows of a column are linked, and consecutive rows of a coupling label.
    rows, ends = csc.indices[: csc.nnz], csc.indptr[1:-1]
    ends = ends[(ends > 0) & (ends < csc.nnz)]
    a, b = rows[:-1], rows[1:].copy()
    b[ends - 1] = a[ends - 1]  # no row of a column with one of the next
    if q * q <= 2**24:
        linked = np.zeros(q * q, dtype=bool)
        linked[a * q + b] = True
        a, b = np.divmod(np.flatnonzero(linked), q)
    order = np.argsort(coupling, kind="stable")
    same = np.flatnonzero(np.diff(coupling[order]) == 0)
    return linked_parts(q, (np.concatenate([a, order[same]]), np.concatenate([b, order[same + 1]])))
