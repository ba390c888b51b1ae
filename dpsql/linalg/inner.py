"""Inner factors F of a workload W = F @ span, by structure instead of by entries.

``span`` (q x n) holds integer rows, F (m x q) combines them. AllRange(1024) has 524,800
rows but F^T F is 1024 x 1024 with entries known in closed form, so every computation that
only needs the Gram matrix (all of strategy selection) stays small. The rules are those of
algebra: the Gram matrix of a Kronecker product is the Kronecker product of the Gram
matrices, that of a stack is block diagonal.

Total error needs F^T F alone. The largest error weighs every row of F: with a covariance root root^T of the spanning
rows query i has the variance ||f_i root||^2, and under weights w the Gram matrix is F^T diag(w) F. Ranges and prefixes
do both by running sums, so that all 524,800 ranges of 1024 cells cost O(n^2) and no matrix of entries. Columns that
are weighed, Y (v x N), are the rows of Y^T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.errors import DataError
from dpsql.linalg.exact import SPARSE_COST
from dpsql.linalg.forms import MATRIX_CAP, dense, is_sparse, kron, row_squares, sparse_kron
from dpsql.linalg.long_calls import product


class Inner(ABC):
    """F (m x q): its shape, Gram matrices, variances of its rows, entries, and which columns it couples."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @abstractmethod
    def matrix(self) -> Matrix:
        """F itself, m x q: ndarray or csr_array of float64."""

    def gram(self, weights: Floats | None = None) -> Floats:
        """F^T F, or F^T diag(weights) F (q x q), dense."""
        return self.times(np.eye(self.shape[1])).gram(weights)

    def variances(self, root: Matrix | None = None) -> Floats:
        """||f_i root||^2 for every row of F (m,); ``root`` (q x k, dense or csr) is the identity where it is None."""
        return self.times(np.eye(self.shape[1]) if root is None else root).variances()

    def times(self, coords: Matrix) -> Inner:
        """F @ coords (m x v), coords (q x v) dense or csr. Raises DataError above 2^27 entries."""
        m, q = self.shape
        if m * max(q, coords.shape[1]) > MATRIX_CAP:
            raise DataError(
                f"strategy: the largest error weighs each of {m} queries by itself, too many for its cap of "
                f"{MATRIX_CAP} entries; use objective='total', or ask fewer queries"
            )
        entries = self.matrix() @ coords
        return Dense(sparse.csr_array(entries) if is_sparse(entries) else np.asarray(entries, dtype=np.float64))

    def coupling(self) -> Ints:
        """Labels (q,): columns with different labels never meet in one row of F."""
        return np.zeros(self.shape[1], dtype=np.int64)

    def diagonal(self) -> Floats | None:
        """The diagonal of F^T F where that matrix is diagonal, else None."""
        return None

    @property
    def log2_scale(self) -> float:
        """log2 of the factor by which the F that is meant exceeds this one: 0 but for huge ``Predicates``."""
        return 0.0


@dataclass(frozen=True, eq=False)
class Diagonal(Inner):
    scale: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return (self.scale.size, self.scale.size)

    def gram(self, weights: Floats | None = None) -> Floats:
        return np.diag(self.scale**2 if weights is None else weights * self.scale**2)

    def matrix(self) -> Matrix:
        return sparse.csr_array(sparse.diags_array(self.scale))

    def times(self, coords: Matrix) -> Inner:
        if is_sparse(coords):
            return Dense(sparse.csr_array(sparse.diags_array(self.scale) @ coords))
        return Dense(np.asarray(self.scale[:, None] * coords))

    def coupling(self) -> Ints:
        return np.arange(self.scale.size)

    def diagonal(self) -> Floats | None:
        return self.scale**2


@dataclass(frozen=True, eq=False)
class Dense(Inner):
    """F given by its entries (m x q), an ndarray; a csr_array where it stands for rows one by one."""

    entries: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.entries.shape[0]), int(self.entries.shape[1]))

    def gram(self, weights: Floats | None = None) -> Floats:
        held = self.entries
        if is_sparse(held):
            weighted = held if weights is None else sparse.diags_array(weights) @ held
            return np.asarray((held.T @ weighted).toarray())
        scaled = held if weights is None else held * np.sqrt(weights)[:, None]
        return product(scaled.T, scaled)

    def matrix(self) -> Matrix:
        return self.entries

    def variances(self, root: Matrix | None = None) -> Floats:
        if root is None or is_sparse(self.entries) or is_sparse(root):
            return row_squares(self.entries if root is None else self.entries @ root)
        return row_squares(product(self.entries, root))


@dataclass(frozen=True, eq=False)
class Product(Inner):
    """``left`` @ ``coords`` (q x v), kept apart because the Gram matrices of ``left`` are cheap."""

    left: Inner
    coords: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return (self.left.shape[0], self.coords.shape[1])

    def gram(self, weights: Floats | None = None) -> Floats:
        inner = self.left.gram(weights)
        few = SPARSE_COST * np.count_nonzero(inner) <= inner.size
        return product(self.coords.T, np.asarray((sparse.csr_array(inner) if few else inner) @ self.coords))

    def matrix(self) -> Matrix:
        return self.left.matrix() @ self.coords

    def variances(self, root: Matrix | None = None) -> Floats:
        return self.left.variances(self.coords if root is None else product(self.coords, dense(root)))


@dataclass(frozen=True, eq=False)
class Ranges(Inner):
    """F = all n (n + 1) / 2 intervals of n ordered columns.

    (F^T F)_ij = (min(i, j) + 1) (n - max(i, j)) from 0: the intervals that hold both i and
    j start at or before the smaller and end at or after the larger one. It equals (n + 1)
    times the inverse of tridiag(-1, 2, -1).
    """

    n: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n * (self.n + 1) // 2, self.n)

    def gram(self, weights: Floats | None = None) -> Floats:
        n, i = self.n, np.arange(self.n, dtype=np.float64)
        if weights is None:
            return np.asarray((np.minimum.outer(i, i) + 1.0) * (n - np.maximum.outer(i, i)))
        table = np.zeros((n, n))
        table[np.triu_indices(n)] = weights
        upper = np.triu(table.cumsum(axis=0)[:, ::-1].cumsum(axis=1)[:, ::-1])
        return np.asarray(upper + np.triu(upper, 1).T)

    def matrix(self) -> Matrix:
        first, last = np.triu_indices(self.n)
        j = np.arange(self.n)
        return ((first[:, None] <= j) & (j <= last[:, None])).astype(np.float64)

    def times(self, coords: Matrix) -> Inner:
        return Product(self, np.asarray(dense(coords), dtype=np.float64))

    def variances(self, root: Matrix | None = None) -> Floats:
        moved = np.eye(self.n) if root is None else np.asarray(dense(root), dtype=np.float64)
        sums = np.vstack([np.zeros((1, moved.shape[1])), moved.cumsum(axis=0)])
        products = sums @ sums.T
        length = np.diag(products)
        first, last = np.triu_indices(self.n)
        out = length[first] + length[last + 1] - 2.0 * products[first, last + 1]
        return np.asarray(np.maximum(out, 0.0))


@dataclass(frozen=True, eq=False)
class Prefixes(Inner):
    """F = the n intervals that start at the first column: lower triangular ones.

    (F^T F)_ij = n - max(i, j), counted from 0: the rows from max(i, j) on hold both.
    """

    n: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n, self.n)

    def gram(self, weights: Floats | None = None) -> Floats:
        i = np.arange(self.n)
        after = np.cumsum((np.ones(self.n) if weights is None else weights)[::-1])[::-1]
        return np.asarray(after[np.maximum.outer(i, i)])

    def matrix(self) -> Matrix:
        return np.tril(np.ones((self.n, self.n)))

    def times(self, coords: Matrix) -> Inner:
        return Dense(np.asarray(dense(coords), dtype=np.float64).cumsum(axis=0))


@dataclass(frozen=True, eq=False)
class Kron(Inner):
    factors: tuple[Inner, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return (prod(f.shape[0] for f in self.factors), prod(f.shape[1] for f in self.factors))

    def gram(self, weights: Floats | None = None) -> Floats:
        return super().gram(weights) if weights is not None else reduce(kron, (f.gram() for f in self.factors))

    def matrix(self) -> Matrix:
        return reduce(_kron, (f.matrix() for f in self.factors))

    def coupling(self) -> Ints:
        label = np.zeros(1, dtype=np.int64)
        for f in self.factors:
            own = f.coupling()
            label = (label[:, None] * (int(own.max()) + 1) + own[None, :]).ravel()
        return label

    def diagonal(self) -> Floats | None:
        own = [f.diagonal() for f in self.factors]
        return None if any(d is None for d in own) else reduce(kron, (d for d in own if d is not None))

    @property
    def log2_scale(self) -> float:
        return sum(f.log2_scale for f in self.factors)


def _kron(left: Matrix, right: Matrix) -> Matrix:
    if is_sparse(left) and is_sparse(right):
        return sparse_kron(left, right)
    return kron(dense(left), dense(right))


@dataclass(frozen=True, eq=False)
class Blocks(Inner):
    """F = the block diagonal matrix of its parts, each multiplied by its weight."""

    parts: tuple[Inner, ...]
    weights: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(p.shape[0] for p in self.parts), sum(p.shape[1] for p in self.parts))

    def gram(self, weights: Floats | None = None) -> Floats:
        q = self.shape[1]
        out, at = np.zeros((q, q)), 0
        for part, weight, own in zip(self.parts, self.weights, _split(self.parts, weights), strict=True):
            k = part.shape[1]
            out[at : at + k, at : at + k] = weight**2 * part.gram(own)
            at += k
        return out

    def matrix(self) -> Matrix:
        parts = [w * p.matrix() for p, w in zip(self.parts, self.weights, strict=True)]
        return sparse.csr_array(sparse.block_diag([sparse.csr_array(p) for p in parts], format="csr"))

    def times(self, coords: Matrix) -> Inner:
        ends = np.cumsum([0, *(part.shape[1] for part in self.parts)]).tolist()
        held = zip(self.parts, self.weights, ends, ends[1:], strict=False)
        return Stack(tuple(part.times(weight * coords[at:end]) for part, weight, at, end in held))

    def coupling(self) -> Ints:
        labels, at = [], 0
        for part in self.parts:
            own = part.coupling()
            labels.append(own + at)
            at += int(own.max(initial=-1)) + 1
        return np.concatenate(labels)

    def diagonal(self) -> Floats | None:
        own = [part.diagonal() for part in self.parts]
        found = [w**2 * d for w, d in zip(self.weights, own, strict=True) if d is not None]
        return np.concatenate(found) if len(found) == len(own) else None

    @property
    def log2_scale(self) -> float:
        """Parts of a stack have one scale in common."""
        return self.parts[0].log2_scale


@dataclass(frozen=True, eq=False)
class Stack(Inner):
    """Rows of several parts over the same columns, one after the other."""

    parts: tuple[Inner, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(part.shape[0] for part in self.parts), self.parts[0].shape[1])

    def gram(self, weights: Floats | None = None) -> Floats:
        pieces = [part.gram(w) for part, w in zip(self.parts, _split(self.parts, weights), strict=True)]
        return np.asarray(np.sum(pieces, axis=0))

    def matrix(self) -> Matrix:
        return np.vstack([dense(part.matrix()) for part in self.parts])

    def variances(self, root: Matrix | None = None) -> Floats:
        return np.concatenate([part.variances(root) for part in self.parts])


def _split(parts: tuple[Inner, ...], weights: Floats | None) -> list[Floats] | list[None]:
    """The weights of each part's rows."""
    if weights is None:
        return [None] * len(parts)
    return np.split(weights, np.cumsum([part.shape[0] for part in parts])[:-1])


@dataclass(frozen=True, eq=False)
class Predicates(Inner):
    """F = all 2^n sums of subsets of n columns, times 2^-``log2_scale``.

    Before scaling F^T F = 2^(n-2) (I + J): a column is in half of the subsets, a pair of columns in
    a quarter. ``log2_scale`` keeps the entries in float range where n is large.
    """

    n: int
    log2_scale: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return (2**self.n, self.n)

    def gram(self, weights: Floats | None = None) -> Floats:
        if weights is not None:
            return super().gram(weights)
        return np.asarray(np.exp2(self.n - 2 - 2 * self.log2_scale) * (np.eye(self.n) + 1.0))

    def matrix(self) -> Matrix:
        subsets = np.arange(2**self.n)
        return np.asarray(((subsets[:, None] >> np.arange(self.n)) & 1) * np.exp2(-self.log2_scale))
