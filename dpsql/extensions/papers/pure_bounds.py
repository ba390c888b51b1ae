"""Lower bounds for pure epsilon from volumes (Hardt and Talwar; Bhaskara et al.), as orders.

Times 1/epsilon^2 and an absolute constant that the papers do not give, they bound the total squared
error of every epsilon-differentially private mechanism. Without the constant they are
yardsticks, never certificates.

A deviation from the papers. Both print the volume of a projection of the n-dimensional L1 ball as
that of the r-dimensional one (Yuan et al. 2012, Lemma 4), or the width of W B_1 along a left singular
vector as its singular value (Li and Miklau 2013, Cor. 4.13). The first holds where r = n, the second where
W^T W is diagonal; in general they are too large: one query that counts n cells has the singular value
sqrt(n) and is answered with a squared error of 2/epsilon^2, not of order n. Here the volume is bounded from
below by that of the largest cross-polytope found inside, so the theorems (Thm 4.12; Hardt and Talwar's
Cor. 3.4) apply as they stand; the printed forms are there under their own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np
from scipy import linalg

from dpsql.common.arguments import one_of, taking
from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.lower_bounds.spectrum import root
from dpsql.workloads.families.matrix import Workload

_RTOL = 1e-10


@taking(W=one_of(Workload))
def hardt_talwar_bound(W: Workload) -> float:
    """r^3 Vol(K)^(2/r), K = U B_1^n for a root U (r x n) of the Gram matrix: Hardt and Talwar's order.

    The volume is that of a cross-polytope on r columns of U picked by pivoted QR: 2^r / r! times the
    product of the pivots, at most Vol(K). Turning the r-dimensional range of W by an orthogonal matrix changes no
    total squared error. Cost O(r^2 n). Raises DataError for ``contributions`` and zeros.
    """
    U = _scaled_vectors(W)
    return _term(U)


@taking(W=one_of(Workload))
def bhaskara_bound(W: Workload, groups: Sequence[int] | None = None) -> float:
    """sum_i m_i^3 Vol(P_i K)^(2/m_i) over orthogonal subspaces (Li and Miklau 2013, Thm 4.12, after Bhaskara et al.).

    The subspaces are spanned by consecutive left singular vectors, largest first, ``groups`` giving how many each
    has (they add up to the rank at most). None takes the best of: each vector apart, all together,
    those whose singular values share a power of two. Volumes as in ``hardt_talwar_bound``; a single
    vector's is exact: 2 max_j of |its row|. Cost O(r^2 n) a grouping. Raises DataError for wrong groups.
    """
    U = _scaled_vectors(W)
    r = U.shape[0]
    if groups is not None:
        if not groups or min(groups) < 1 or sum(groups) > r:
            raise DataError(f"bounds: groups are counts of at least 1 that add up to at most the rank {r}")
        return _partition(U, groups)
    octave = np.floor(np.log2(np.linalg.norm(U, axis=1)))
    near = np.unique(-octave, return_counts=True)[1]
    return max(_partition(U, g) for g in ([1] * r, [r], near.tolist()))


@taking(W=one_of(Workload))
def singular_value_order(W: Workload) -> float:
    """sum of the squared singular values, Li and Miklau 2013, Cor. 4.13 as printed; too large in general.

    See the head of this module; with the true widths it is ``bhaskara_bound`` with single vectors over 4.
    """
    return float((_scaled_vectors(W) ** 2).sum())


@taking(W=one_of(Workload))
def geometric_order(W: Workload) -> float:
    """(2^r / r! prod of the singular values)^(2/r) r^3, Yuan et al. 2012, Lemma 4 as printed; too large where r < n.

    Equal to ``hardt_talwar_bound`` where r = n.
    """
    U = _scaled_vectors(W)
    r = U.shape[0]
    return _order(r, float(np.log(np.linalg.norm(U, axis=1)).sum()))


@taking(W=one_of(Workload))
def low_rank_guarantee(W: Workload) -> float:
    """r times the sum of squared singular values: an upper bound of the least Laplace error over 2/epsilon^2.

    The decomposition B = sqrt(r) U S, L = V / sqrt(r) has L1 columns of at most 1 (Yuan et al. 2012, Lemma
    3, whose printed error leaves out the 2 of its Lemma 1).
    """
    U = _scaled_vectors(W)
    return float(U.shape[0] * (U**2).sum())


def _scaled_vectors(W: Workload) -> Floats:
    """S V^T (r x n): rows are right singular vectors times singular values, largest first."""
    if W.contributions is not None:
        raise DataError("bounds: volume bounds are for records in one column each; these carry contributions")
    U = root(W)
    if U.shape[0] == 0:
        raise DataError("bounds: every query of the workload is zero; nothing is to be bounded")
    _, s, Vt = linalg.svd(U, full_matrices=False)
    keep = s > _RTOL * s[0]
    return np.asarray(s[keep, None] * Vt[keep])


def _partition(U: Floats, groups: Sequence[int]) -> float:
    ends = np.cumsum(groups)
    return sum(_term(U[end - size : end]) for size, end in zip(groups, ends, strict=True))


def _term(U: Floats) -> float:
    """k^3 Vol^(2/k) of the cross-polytope on k columns of U (k x n) picked by pivoting."""
    R = linalg.qr(U, mode="r", pivoting=True)[0]
    return _order(U.shape[0], float(np.log(np.abs(np.diag(R))).sum()))


def _order(k: int, log_determinant: float) -> float:
    log_volume = k * log(2.0) - lgamma(k + 1.0) + log_determinant
    return exp(3.0 * log(k) + 2.0 / k * log_volume)
