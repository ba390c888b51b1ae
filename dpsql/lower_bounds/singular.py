"""The singular value bound, its supreme over projections, and the dual bound that holds both.

All concern the total squared error of W under a Gaussian strategy of L2 sensitivity 1; times the
variance of a unit-sensitivity mechanism they bound the error of any Gaussian matrix mechanism. Times
2/epsilon^2 they bound that of any Laplace matrix mechanism too, since L1 norms of columns are at least
their L2 norms (Li and Miklau 2013, section 4.3), but there they may be far from the least.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log10, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from dpsql.common.arguments import lists_of_whole, matrix, numbers, one_of, taking
from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.lower_bounds.spectrum import factors, nuclear_norm, record_columns, root_sum
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload


@taking(W=one_of(Workload, Marginals))
def svd_bound(W: Workload | Marginals) -> float:
    """The singular value bound (sum of singular values)^2 / n (Li and Miklau 2013, Def. 4.1, Thm 4.2).

    n counts all columns of W as given: merging equal columns changes this bound, not the least error.
    In closed form for all ranges, prefixes, all predicates and the identity (``spectrum``), for products
    of them (singular values of a Kronecker product multiply), and for marginals over any domain: with g_T as in
    ``Marginals.residuals``, (sum over T of dim(T) sqrt(g_T))^2 (Thm 5.5: it is the least error). Otherwise
    one eigenvalue problem of order rank W.

    Where records contribute to several columns (``W.contributions``: counts beside sums) the bound is that of
    the workload whose columns are the distinct non-zero columns, up to sign, of W @ contributions, that is
    ``dual_bound`` with uniform weights on them: valid, since every record's change counts
    towards the sensitivity, but not the bound of the paper, which knows counts only.
    The bound is that of W as it is kept, in the units of ``dual_bound`` and ``Strategy.error``: 4^log2_scale times
    below that of the workload meant (``svd_bound_log10`` gives the latter). Raises DataError past float range.
    """
    half = _half_bound(W)
    if half > 1e154:
        raise DataError(f"bounds: the bound is 10^{2 * log10(half):.3f}, past float range; use svd_bound_log10")
    return half**2


@taking(W=one_of(Workload, Marginals))
def svd_bound_log10(W: Workload | Marginals) -> float:
    """log10 of ``svd_bound``, of the workload meant: the bound of W as kept times 4^log2_scale. -inf for zeros."""
    half = _half_bound(W)
    return float("-inf") if half == 0 else 2 * (log10(half) + log10(2) * W.log2_scale)


@taking(gram=matrix())
def svd_bound_of_gram(gram: ArrayLike) -> float:
    """The singular value bound from G = W^T W alone: (sum of sqrt of its eigenvalues)^2 / n (Prop. 4.3).

    ``gram`` (n x n), symmetric, positive semidefinite to 1e-9 of its largest eigenvalue (DataError). O(n^3).
    """
    G = np.asarray(gram, dtype=np.float64)
    if G.ndim != 2 or G.shape[0] != G.shape[1] or G.size == 0 or not np.isfinite(G).all():
        raise DataError("bounds: a Gram matrix is square and finite, with at least one row")
    if np.abs(G - G.T).max() > 1e-9 * np.abs(G).max():
        raise DataError("bounds: a Gram matrix is symmetric; give W^T W")
    s = linalg.eigvalsh(G)
    if s[0] < -1e-9 * max(s[-1], 0.0) or s[-1] < 0:
        raise DataError("bounds: a Gram matrix has no negative eigenvalue; give W^T W")
    return float(root_sum(s) ** 2 / G.shape[0])


@taking(W=one_of(Workload), projections=lists_of_whole())
def supreme_svd_bound(W: Workload, projections: Iterable[ArrayLike]) -> float:
    """The largest singular value bound over column projections (Li and Miklau 2013, Def. 4.5, Cor. 4.6).

    ``projections``: sets of column numbers (or Boolean masks of length n), each with at least
    one column. Dropping columns is giving them dual weight zero. Cost as ``svd_bound`` for each.
    Raises DataError for an empty or unknown column set and for ``contributions``.
    """
    if W.contributions is not None:
        raise DataError("bounds: projections are for records in one column each; use dual_bound")
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


@taking(W=one_of(Workload), weights=numbers())
def dual_bound(W: Workload, weights: ArrayLike) -> float:
    """(tr (Lambda^1/2 G Lambda^1/2)^1/2)^2 for weights lambda >= 0 on the columns, scaled to sum 1.

    A valid lower bound for every lambda, zeros included. For every strategy A with diag(A^T A) <= 1
    and B = A^+: ||W Lambda^1/2||_* = ||(W A^+)(A Lambda^1/2)||_* <= ||W A^+||_F ||A Lambda^1/2||_F, and
    the last factor is at most 1 (our derivation; uniform weights give the singular value
    bound). Where records contribute to several columns, weights are those of the columns of
    ``W.contributions``. Raises DataError for wrong lengths, negative or zero weights.
    """
    lam = np.asarray(weights, dtype=np.float64).ravel()
    size = W.changes
    if lam.size != size:
        raise DataError(f"bounds: {lam.size} weights for {size} columns; give one a column")
    if not np.isfinite(lam).all() or (lam < 0).any() or not lam.sum() > 0:
        raise DataError("bounds: weights must be finite, not negative and not all zero")
    return _nuclear(W, lam / lam.sum()) ** 2


def _half_bound(W: Workload | Marginals) -> float:
    """Square root of the singular value bound of the workload as it is kept."""
    cube = W.as_marginals
    if cube is not None:
        return float(sum(cube.dimension(T) * np.sqrt(g) for T, g in cube.residuals().items()))
    W = W.explicit()
    if W.contributions is None:
        if W.factors:  # 1/n goes to each factor, so that the product of many stays in range
            return float(np.prod([_half_bound(factor) for factor in W.factors]))
        return nuclear_norm(W) / sqrt(W.shape[1])
    keep = record_columns(W)
    if keep.size == 0:
        return 0.0
    lam = np.zeros(W.contributions.shape[1])
    lam[keep] = 1.0 / keep.size
    return _nuclear(W, lam)


def _nuclear(W: Workload, lam: Floats) -> float:
    """Nuclear norm of W Lambda^1/2."""
    R, Y = factors(W)
    inner = np.asarray((Y.multiply(lam[None, :]) @ Y.T).toarray())
    s = linalg.eigvalsh(R @ inner @ R.T)
    return root_sum(s)
