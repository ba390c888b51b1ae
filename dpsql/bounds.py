"""Lower bounds on the error of any Gaussian matrix mechanism, privacy factor left out.

All three concern the total squared error of W under a strategy of L2 sensitivity 1; times
the variance of a unit-sensitivity mechanism they bound the error of an answer set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from dpsql.errors import DataError
from dpsql.workload.matrix import Workload

Floats = NDArray[np.float64]

__all__ = ["dual_bound", "supreme_svd_bound", "svd_bound"]


def svd_bound(W: Workload) -> float:
    """The singular value bound (sum of singular values)^2 / n (Li and Miklau 2013, Thm 4.2).

    n counts all columns of W as given: merging equal columns changes this bound, not the least
    error. Products are bounded factor by factor (singular values of a Kronecker product
    multiply). Cost one eigenvalue problem of order min(rank, n). Raises DataError for
    workloads whose records contribute to several columns, where it does not apply.
    """
    _plain(W)
    if W.factors:
        out = 1.0
        for factor in W.factors:
            out *= svd_bound(factor)
        return out
    return _nuclear(W, None) ** 2 / W.shape[1]


def supreme_svd_bound(W: Workload, projections: Iterable[ArrayLike]) -> float:
    """The largest singular value bound over column projections (Li and Miklau 2013, Thm 4.7).

    ``projections``: sets of column numbers (or Boolean masks of length n), each with at least
    one column. Dropping columns is giving them dual weight zero. Cost as ``svd_bound`` for each.
    Raises DataError for an empty or unknown column set.
    """
    _plain(W)
    best = 0.0
    n = W.shape[1]
    for projection in projections:
        chosen = np.asarray(projection)
        index = np.flatnonzero(chosen) if chosen.dtype == bool else np.unique(chosen.astype(np.int64))
        if index.size == 0 or index.min() < 0 or index.max() >= n or (chosen.dtype == bool and chosen.size != n):
            raise DataError(f"bounds: a projection must name columns between 0 and {n - 1}")
        lam = np.zeros(n)
        lam[index] = 1.0 / index.size
        best = max(best, _nuclear(W, lam) ** 2)
    return best


def dual_bound(W: Workload, weights: ArrayLike) -> float:
    """(tr (Lambda^1/2 G Lambda^1/2)^1/2)^2 for weights lambda >= 0 on the columns, scaled to sum 1.

    A valid lower bound for every lambda, zeros included. For every strategy A with diag(A^T A) <= 1
    and B = A^+: ||W Lambda^1/2||_* = ||(W A^+)(A Lambda^1/2)||_* <= ||W A^+||_F ||A Lambda^1/2||_F, and
    the last factor is at most 1 (our derivation; uniform weights give the singular value
    bound). Where records contribute to several columns, weights are those of the columns of
    ``W.contributions``. Raises DataError for wrong lengths, negative or zero weights.
    """
    lam = np.asarray(weights, dtype=np.float64).ravel()
    size = W.shape[1] if W.contributions is None else W.contributions.shape[1]
    if lam.size != size:
        raise DataError(f"bounds: {lam.size} weights for {size} columns; give one a column")
    if not np.isfinite(lam).all() or (lam < 0).any() or not lam.sum() > 0:
        raise DataError("bounds: weights must be finite, not negative and not all zero")
    return _nuclear(W, lam / lam.sum()) ** 2


def _nuclear(W: Workload, lam: Floats | None) -> float:
    """Nuclear norm of W Lambda^1/2 (of W itself for None)."""
    from dpsql.linalg.basis import choose_basis
    from dpsql.strategy.reduce import cholesky

    rows = choose_basis(W.span, W.inner, exact=W.exact is None)
    gram = rows.gram(W.inner)
    Y: Any = rows.rows if W.contributions is None else rows.rows @ W.contributions
    Y = Y.astype(np.float64)
    R = cholesky(gram)
    weighted = Y if lam is None else Y.multiply(lam[None, :])
    inner = np.asarray((weighted @ Y.T).toarray())
    s = linalg.eigvalsh(R @ inner @ R.T)
    return float(np.sqrt(np.maximum(s, 0.0)).sum())


def _plain(W: Workload) -> None:
    if W.contributions is not None:
        raise DataError("bounds: this bound is for records in one column each; use dual_bound")


Projections = Sequence[ArrayLike]
