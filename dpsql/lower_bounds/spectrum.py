"""Singular values of a workload: in closed form where its structure gives them, else from a root of G.

``nuclear_norm``  the sum of the singular values
``root``          a dense U (r x c) with U^T U = G
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from dpsql.common.arrays import Csr, Floats, Ints, Sparse
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import choose_basis
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.strategies.core.reduce import cholesky
from dpsql.workloads.families.matrix import Workload

_GRAM_CELLS = 4096


def nuclear_norm(W: Workload) -> float:
    """Sum of the singular values of W over its cells (contributions aside), by factors and closed forms.

    Closed forms over the identity: all ranges, sqrt(n + 1) / (2 sin(k pi / (2 (n + 1)))), k = 1 to n, from
    G = (n + 1) tridiag(-1, 2, -1)^-1; prefixes, 1 / (2 sin((2k - 1) pi / (4 n + 2))), from the second difference
    with one free end; all predicates, sqrt(n + 1) and n - 1 ones, from I + J (Li and Miklau 2013, Thm
    5.3), times 2^(n/2 - 1). Cost O(n) there, else O(n^3) where queries outnumber cells twice, else O(r^3 + nnz r).
    """
    if W.factors:
        return float(np.prod([nuclear_norm(factor) for factor in W.factors]))
    if is_identity(W.span):
        known = _closed(W.inner)
        if known is not None:
            return known
    q, n = W.span.shape
    if q > 2 * n and n <= _GRAM_CELLS:
        return root_sum(linalg.eigvalsh(W.gram()))
    R, Y = factors(W, contributions=False)
    s = linalg.eigvalsh(R @ np.asarray((Y @ Y.T).toarray()) @ R.T)
    return root_sum(s)


def root_sum(squares: NDArray[np.floating[Any]]) -> float:
    """Sum of the roots of eigenvalues in ascending order; those within rounding of zero are left out.

    The root of a rounded zero is 1e-8 of the largest one: leaving it out keeps a lower bound below the truth.
    """
    floor = squares.size * np.finfo(np.float64).eps * max(float(squares[-1]), 0.0) if squares.size else 0.0
    return float(np.sqrt(squares[squares > floor]).sum())


def _closed(inner: algebra.Inner) -> float | None:
    n = inner.shape[1]
    k = np.arange(1, n + 1, dtype=np.float64)
    found: float | None = None
    if isinstance(inner, algebra.Blocks):
        parts = [_closed(part) for part in inner.parts]
        if all(part is not None for part in parts):
            found = sum(abs(w) * (part or 0.0) for w, part in zip(inner.weights, parts, strict=True))
    elif isinstance(inner, algebra.Kron):
        parts = [_closed(part) for part in inner.factors]
        if all(part is not None for part in parts):
            found = float(np.prod([part or 0.0 for part in parts]))
    elif isinstance(inner, algebra.Diagonal):
        found = float(np.abs(inner.scale).sum())
    elif isinstance(inner, algebra.Ranges):
        found = float((np.sqrt(n + 1.0) / (2.0 * np.sin(k * np.pi / (2.0 * (n + 1))))).sum())
    elif isinstance(inner, algebra.Prefixes):
        found = float((0.5 / np.sin((2.0 * k - 1.0) * np.pi / (4.0 * n + 2.0))).sum())
    elif isinstance(inner, algebra.Predicates):
        found = float(np.exp2((n - 2) / 2 - inner.log2_scale) * (np.sqrt(n + 1.0) + n - 1))
    return found


def structure(W: Workload) -> algebra.Inner | None:
    """The inner factor of W up to a number, where its spanning rows are the identity; else None."""
    inner = W.inner
    while isinstance(inner, algebra.Blocks) and len(inner.parts) == 1:
        inner = inner.parts[0]
    return inner if is_identity(W.span) else None


def is_identity(span: Sparse) -> bool:
    """Is a sparse integer matrix the identity?"""
    n = span.shape[1]
    return bool(
        span.shape[0] == n
        and span.nnz == n
        and np.array_equal(span.indices, np.arange(n))
        and np.array_equal(span.indptr, np.arange(n + 1))
        and (span.data == 1).all()
    )


def factors(W: Workload, *, contributions: bool = True) -> tuple[Floats, Csr]:
    """(R, Y): R upper triangular (r x r) and Y sparse (r x c) with (R Y)^T (R Y) = G over the cells.

    With ``contributions`` and where records contribute to several cells, over the columns of ``W.contributions``.
    """
    if "bound factors" not in W._cache:
        rows = choose_basis(W.span, W.inner, exact=W.exact is None)
        W._cache["bound factors"] = (cholesky(rows.gram(W.inner)), rows.rows)
    R, Y = W._cache["bound factors"]
    return R, (W.moved(Y) if contributions else Y).astype(np.float64)


def root(W: Workload) -> Floats:
    """U (r x c) dense with U^T U = G, c the columns of ``factors``. Raises DataError above 2^27 entries."""
    R, Y = factors(W)
    if Y.shape[0] * Y.shape[1] > MATRIX_CAP:
        raise DataError(
            f"bounds: a root of the Gram matrix would have {Y.shape[0]} x {Y.shape[1]} entries, above the cap of "
            f"{MATRIX_CAP}; merge cells or take the workload apart"
        )
    return np.asarray(R @ Y.toarray())


def record_columns(W: Workload) -> Ints:
    """Numbers of the distinct non-zero columns, up to sign, of W @ contributions (one record's changes)."""
    changes = W.moved(W.span)
    diagonal = W.inner.diagonal()
    if diagonal is not None and (diagonal == 0).any():
        changes = sparse.csr_array(changes[np.flatnonzero(diagonal)])
    return distinct_columns(changes, up_to_sign=True).keep
