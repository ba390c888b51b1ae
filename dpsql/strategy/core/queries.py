"""The queries of a workload one by one: their variances, and their Gram matrix under weights of their own.

Total error needs F^T F alone. The largest error needs every row of F: given half (q x k) with
half half^T the covariance of the spanning rows, query i has the variance ||f_i half||^2; given weights
w of the queries, the Gram matrix is F^T diag(w) F. Ranges and prefixes do both by running sums, so that
all 524,800 ranges of 1024 cells cost O(n^2) and no matrix of entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import dense, is_sparse
from dpsql.workload.families.matrix import MATRIX_CAP, Workload


class Queries(Protocol):
    """Rows E = F @ coords (m x v), by structure where there is one."""

    @property
    def count(self) -> int:
        """m, the number of queries."""
        ...

    def gram(self, weights: Floats) -> Floats:
        """E^T diag(weights) E (v x v)."""
        ...

    def variances(self, root: Floats | None = None) -> Floats:
        """||e_i root||^2 for every query (m,); without ``root`` (v x k) it is the identity."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Queries by their entries E (m x v), dense or csr."""

    entries: Any

    @property
    def count(self) -> int:
        return int(self.entries.shape[0])

    def gram(self, weights: Floats) -> Floats:
        if is_sparse(self.entries):
            return np.asarray((self.entries.T @ sparse.diags_array(weights) @ self.entries).toarray())
        scaled = self.entries * np.sqrt(weights)[:, None]
        return np.asarray(scaled.T @ scaled)

    def variances(self, root: Floats | None = None) -> Floats:
        moved = self.entries if root is None else self.entries @ root
        squares = moved.multiply(moved) if is_sparse(moved) else moved * moved
        return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


@dataclass(frozen=True, eq=False)
class Ranges:
    """All n (n + 1) / 2 intervals of n ordered rows ``coords`` (n x v), in the order of ``linalg.inner.Ranges``."""

    coords: Floats

    @property
    def count(self) -> int:
        n = int(self.coords.shape[0])
        return n * (n + 1) // 2

    def gram(self, weights: Floats) -> Floats:
        n = self.coords.shape[0]
        table = np.zeros((n, n))
        table[np.triu_indices(n)] = weights
        # Rows a <= b are both in the intervals that start at or before a and end at or after b.
        upper = np.triu(table.cumsum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1])
        both = upper + np.triu(upper, 1).T
        return np.asarray(self.coords.T @ both @ self.coords)

    def variances(self, root: Floats | None = None) -> Floats:
        moved = self.coords if root is None else self.coords @ root
        sums = np.vstack([np.zeros((1, moved.shape[1])), moved.cumsum(axis=0)])
        products = sums @ sums.T
        length = np.diag(products)
        first, last = np.triu_indices(self.coords.shape[0])
        out = length[first] + length[last + 1] - 2.0 * products[first, last + 1]
        return np.asarray(np.maximum(out, 0.0))


@dataclass(frozen=True, eq=False)
class Stacked:
    """Queries of several parts, one after the other."""

    parts: tuple[Queries, ...]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def gram(self, weights: Floats) -> Floats:
        ends = np.cumsum([part.count for part in self.parts])[:-1]
        pieces = [part.gram(w) for part, w in zip(self.parts, np.split(weights, ends), strict=True)]
        return np.asarray(np.sum(pieces, axis=0))

    def variances(self, root: Floats | None = None) -> Floats:
        return np.concatenate([part.variances(root) for part in self.parts])


def queries_of(inner: algebra.Inner, coords: Any) -> Queries:
    """The queries F @ coords, coords (q x v) dense or csr. Raises DataError above 2^27 entries."""
    if isinstance(inner, algebra.Diagonal):
        if is_sparse(coords):
            return Rows(sparse.csr_array(sparse.diags_array(inner.scale) @ coords))
        return Rows(np.asarray(inner.scale[:, None] * coords))
    if isinstance(inner, algebra.Ranges):
        return Ranges(np.asarray(dense(coords), dtype=np.float64))
    if isinstance(inner, algebra.Prefixes):
        return Rows(np.asarray(dense(coords), dtype=np.float64).cumsum(axis=0))
    if isinstance(inner, algebra.Blocks):
        parts, at = [], 0
        for part, weight in zip(inner.parts, inner.weights, strict=True):
            parts.append(queries_of(part, weight * coords[at : at + part.shape[1]]))
            at += part.shape[1]
        return Stacked(tuple(parts))
    m, q = inner.shape
    if m * max(q, coords.shape[1]) > MATRIX_CAP:
        raise DataError(
            f"strategy: the largest error weighs each of {m} queries by itself, too many for its cap of "
            f"{MATRIX_CAP} entries; use objective='total', or ask fewer queries"
        )
    entries = inner.matrix() @ coords
    return Rows(sparse.csr_array(entries) if is_sparse(entries) else np.asarray(entries, dtype=np.float64))


def without_zeros(queries: Queries) -> Queries:
    """The same queries but for those that are zero throughout."""
    if isinstance(queries, Stacked):
        kept = tuple(part for part in map(without_zeros, queries.parts) if part.count)
        return kept[0] if len(kept) == 1 else Stacked(kept)
    if isinstance(queries, Rows):
        return Rows(queries.entries[np.flatnonzero(abs(queries.entries).sum(axis=1) > 0)])
    return queries if np.any(queries.variances()) else Rows(np.zeros((0, 1)))


@dataclass(frozen=True, eq=False)
class Weighted:
    """The inner factor diag(sqrt(weights)) F: squared errors of query i count ``weights[i]`` times."""

    inner: algebra.Inner
    weights: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    def gram(self) -> Floats:
        return queries_of(self.inner, np.eye(self.inner.shape[1])).gram(self.weights)

    def matrix(self) -> Any:
        entries = self.inner.matrix()
        root = np.sqrt(self.weights)
        return sparse.csr_array(sparse.diags_array(root) @ entries) if is_sparse(entries) else root[:, None] * entries

    def coupling(self) -> NDArray[np.int64]:
        return self.inner.coupling()

    def diagonal(self) -> Floats | None:
        return None


def reweighted(W: Workload, weights: Floats) -> Workload:
    """diag(sqrt(weights)) W: its total squared error is the weighted sum of the squared errors of W's queries."""
    scaled: algebra.Inner
    if isinstance(W.inner, algebra.Diagonal):
        scaled = algebra.Diagonal(W.inner.scale * np.sqrt(weights))
    else:
        scaled = Weighted(W.inner, weights)
    exact = None if W.exact is None else np.sqrt(weights)[:, None] * W.exact
    return Workload(W.span, scaled, W.contributions, W.groups, W.name, (), exact, W.units)
