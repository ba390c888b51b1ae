"""Inner factors F of a workload W = F @ span, by structure instead of by entries.

``span`` (q x n) holds integer rows, F (m x q) combines them. AllRange(1024) has 524,800
rows but F^T F is 1024 x 1024 with entries known in closed form, so every computation that
only needs the Gram matrix (all of strategy selection) stays small. The rules are those of
algebra: the Gram matrix of a Kronecker product is the Kronecker product of the Gram
matrices, that of a stack is block diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from dpsql.arrays import Floats, Ints
from dpsql.linalg.forms import dense, is_sparse


class Inner(Protocol):
    """F (m x q): its shape, Gram matrix F^T F (q x q), entries, and which columns it couples."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def gram(self) -> Floats:
        """F^T F (q x q), dense."""
        ...

    def matrix(self) -> Any:
        """F itself, m x q: ndarray or csr_array of float64."""
        ...

    def coupling(self) -> Ints:
        """Labels (q,): columns with different labels never meet in one row of F."""
        ...

    def diagonal(self) -> Floats | None:
        """The diagonal of F^T F where that matrix is diagonal, else None."""
        ...


@dataclass(frozen=True, eq=False)
class Diagonal:
    scale: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return (self.scale.size, self.scale.size)

    def gram(self) -> Floats:
        return np.diag(self.scale**2)

    def matrix(self) -> Any:
        return sparse.csr_array(sparse.diags_array(self.scale))

    def coupling(self) -> Ints:
        return np.arange(self.scale.size)

    def diagonal(self) -> Floats | None:
        return self.scale**2


@dataclass(frozen=True, eq=False)
class Dense:
    """F given by its entries (m x q)."""

    entries: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return (self.entries.shape[0], self.entries.shape[1])

    def gram(self) -> Floats:
        return np.asarray(self.entries.T @ self.entries)

    def matrix(self) -> Any:
        return self.entries

    def coupling(self) -> Ints:
        return np.zeros(self.entries.shape[1], dtype=np.int64)

    def diagonal(self) -> Floats | None:
        return None


@dataclass(frozen=True, eq=False)
class Ranges:
    """F = all n (n + 1) / 2 intervals of n ordered columns.

    (F^T F)_ij = (min(i, j) + 1) (n - max(i, j)) from 0: the intervals that hold both i and
    j start at or before the smaller and end at or after the larger one. It equals (n + 1)
    times the inverse of tridiag(-1, 2, -1).
    """

    n: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n * (self.n + 1) // 2, self.n)

    def gram(self) -> Floats:
        i = np.arange(self.n, dtype=np.float64)
        return np.asarray((np.minimum.outer(i, i) + 1.0) * (self.n - np.maximum.outer(i, i)))

    def matrix(self) -> Any:
        first, last = np.triu_indices(self.n)
        j = np.arange(self.n)
        return ((first[:, None] <= j) & (j <= last[:, None])).astype(np.float64)

    def coupling(self) -> Ints:
        return np.zeros(self.n, dtype=np.int64)

    def diagonal(self) -> Floats | None:
        return None


@dataclass(frozen=True, eq=False)
class Prefixes:
    """F = the n intervals that start at the first column: lower triangular ones.

    (F^T F)_ij = n - max(i, j), counted from 0.
    """

    n: int

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n, self.n)

    def gram(self) -> Floats:
        i = np.arange(self.n, dtype=np.float64)
        return np.asarray(self.n - np.maximum.outer(i, i))

    def matrix(self) -> Any:
        return np.tril(np.ones((self.n, self.n)))

    def coupling(self) -> Ints:
        return np.zeros(self.n, dtype=np.int64)

    def diagonal(self) -> Floats | None:
        return None


@dataclass(frozen=True, eq=False)
class Kron:
    factors: tuple[Inner, ...]

    @property
    def shape(self) -> tuple[int, int]:
        m = q = 1
        for f in self.factors:
            m, q = m * f.shape[0], q * f.shape[1]
        return (m, q)

    def gram(self) -> Floats:
        out: Any = np.ones((1, 1))
        for f in self.factors:
            out = np.kron(out, f.gram())
        return np.asarray(out)

    def matrix(self) -> Any:
        out: Any = self.factors[0].matrix()
        for f in self.factors[1:]:
            right = f.matrix()
            if is_sparse(out) and is_sparse(right):
                out = sparse.csr_array(sparse.kron(out, right, format="csr"))
            else:
                out = np.kron(dense(out), dense(right))
        return out

    def coupling(self) -> Ints:
        label = np.zeros(1, dtype=np.int64)
        for f in self.factors:
            own = f.coupling()
            label = (label[:, None] * (int(own.max()) + 1) + own[None, :]).ravel()
        return label

    def diagonal(self) -> Floats | None:
        out: Any = np.ones(1)
        for f in self.factors:
            own = f.diagonal()
            if own is None:
                return None
            out = np.kron(out, own)
        return np.asarray(out)


@dataclass(frozen=True, eq=False)
class Blocks:
    """F = the block diagonal matrix of its parts, each multiplied by its weight."""

    parts: tuple[Inner, ...]
    weights: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return (sum(p.shape[0] for p in self.parts), sum(p.shape[1] for p in self.parts))

    def gram(self) -> Floats:
        q = self.shape[1]
        out, at = np.zeros((q, q)), 0
        for part, weight in zip(self.parts, self.weights, strict=True):
            k = part.shape[1]
            out[at : at + k, at : at + k] = weight**2 * part.gram()
            at += k
        return out

    def matrix(self) -> Any:
        parts = [w * p.matrix() for p, w in zip(self.parts, self.weights, strict=True)]
        return sparse.csr_array(sparse.block_diag([sparse.csr_array(p) for p in parts], format="csr"))

    def coupling(self) -> Ints:
        labels, at = [], 0
        for part in self.parts:
            own = part.coupling()
            labels.append(own + at)
            at += int(own.max(initial=-1)) + 1
        return np.concatenate(labels)

    def diagonal(self) -> Floats | None:
        out = []
        for part, weight in zip(self.parts, self.weights, strict=True):
            own = part.diagonal()
            if own is None:
                return None
            out.append(weight**2 * own)
        return np.concatenate(out)


@dataclass(frozen=True, eq=False)
class Predicates:
    """F = all 2^n sums of subsets of n columns, times 2^-``log2_scale``.

    Before scaling F^T F = 2^(n-2) (I + J): a column is in half of the subsets, a pair of columns in
    a quarter. ``log2_scale`` keeps the entries in float range where n is large.
    """

    n: int
    log2_scale: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        return (2**self.n, self.n)

    def gram(self) -> Floats:
        return np.asarray(np.exp2(self.n - 2 - 2 * self.log2_scale) * (np.eye(self.n) + 1.0))

    def matrix(self) -> Any:
        subsets = np.arange(2**self.n)
        return ((subsets[:, None] >> np.arange(self.n)) & 1) * np.exp2(-self.log2_scale)

    def coupling(self) -> Ints:
        return np.zeros(self.n, dtype=np.int64)

    def diagonal(self) -> Floats | None:
        return None


def log2_scale(inner: Inner) -> float:
    """log2 of the factor by which the true F exceeds what ``inner`` gives: 0 but for huge ``Predicates``.

    Factors of a Kronecker product multiply; parts of a stack have one scale in common.
    """
    if isinstance(inner, Predicates):
        return inner.log2_scale
    if isinstance(inner, Kron):
        return sum(log2_scale(f) for f in inner.factors)
    if isinstance(inner, Blocks):
        return log2_scale(inner.parts[0])
    return 0.0
