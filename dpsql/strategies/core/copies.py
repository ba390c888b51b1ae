"""Independent problems that are alike, solved once: one of them, and where the others lie.

A batch that groups a long column twice, by day and by week, falls into a problem for each week. They differ in the
cells that they are about and in nothing else, so that one strategy, moved from cells to cells, is best for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix, Sparse

if TYPE_CHECKING:
    from dpsql.strategies.core.integer import Piece


@dataclass(frozen=True, eq=False)
class Copies:
    """k problems that are one but for their columns.

    ``rows`` (k x r) of the spanning rows, ``cells`` (k x n) of their columns, ``places`` (k x N) of the columns that
    one record can move: what stands at the same position of two copies plays the same part in both.
    """

    rows: Ints
    cells: Ints
    places: Ints

    @property
    def count(self) -> int:
        return int(self.cells.shape[0])


def copies_of(span: Sparse, weight: Floats, image: Sparse, label: Ints) -> list[Copies]:
    """The problems of at least two rows, those that are alike together, in the order of their first.

    ``span`` (q x n integer csr) and ``image`` (q x N) fall apart by ``label`` (q,), ``weight`` (q,) is what errors of
    a row weigh. Two are alike where entries, weights and the order of rows and columns agree, byte for byte: what is
    alike in another order is taken for two. Cost O(nnz log nnz), and some ten microseconds a problem.
    """
    order = np.argsort(label, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(label))])
    parts = [_Rows(span, order, label), _Rows(image, order, label)]
    sorted_weight = weight[order]
    found: dict[tuple[bytes, ...], list[tuple[Ints, Ints, Ints]]] = {}
    for c in np.flatnonzero(np.diff(ends) > 1).tolist():
        a, b = ends[c], ends[c + 1]
        (cells, one), (places, other) = (part.local(c, a, b) for part in parts)
        key = (*one, *other, sorted_weight[a:b].tobytes())
        found.setdefault(key, []).append((order[a:b], cells, places))
    return [Copies(*(np.stack(held).astype(np.int64) for held in zip(*mine, strict=True))) for mine in found.values()]


class _Rows:
    """Rows of a csr matrix by part: ``order`` is that of their ``label``, and no two parts share a column."""

    def __init__(self, matrix: Matrix, order: Ints, label: Ints) -> None:
        held = sparse.csr_array(matrix)[order]
        held.sort_indices()
        self.ends, self.data = held.indptr.astype(np.int64), held.data
        owner = np.full(held.shape[1], -1, dtype=np.int64)
        owner[held.indices] = np.repeat(label[order], np.diff(self.ends))
        reached = np.flatnonzero(owner >= 0)
        self.columns = reached[np.argsort(owner[reached], kind="stable")]
        self.starts = np.concatenate(
            [[0], np.cumsum(np.bincount(owner[reached], minlength=int(label.max(initial=0)) + 1))]
        )
        place = np.empty(held.shape[1], dtype=np.int64)
        place[self.columns] = np.arange(self.columns.size) - self.starts[owner[self.columns]]
        self.inside = place[held.indices]

    def local(self, c: int, a: int, b: int) -> tuple[Ints, tuple[bytes, bytes, bytes]]:
        """(the columns that part c, rows a to b, reaches; the rows over these columns alone in bytes)."""
        part = slice(self.ends[a], self.ends[b])
        shape: bytes = (self.ends[a : b + 1] - self.ends[a]).tobytes()
        return self.columns[self.starts[c] : self.starts[c + 1]], (
            shape,
            self.inside[part].tobytes(),
            self.data[part].tobytes(),
        )


def spread(piece: Piece, copies: Copies | None) -> Piece:
    """A piece of the first copy for all of them: the same measurements of each one's own cells."""
    from dpsql.strategies.core.integer import Piece

    if copies is None or copies.count == 1:
        return piece
    rows = sparse.csr_array(piece.rows)
    inside = np.searchsorted(copies.cells[0], rows.indices)
    k, (u, n) = copies.count, rows.shape
    steps = np.arange(k, dtype=np.int64)[:, None] * rows.nnz
    ends = np.concatenate([(rows.indptr[:-1].astype(np.int64)[None, :] + steps).ravel(), [k * rows.nnz]])
    every = sparse.csr_array((np.tile(rows.data, k), copies.cells[:, inside].ravel(), ends), shape=(k * u, n))
    return Piece(every, piece.root, piece.columns, piece.gram, piece.coords, k, piece.blocks)
