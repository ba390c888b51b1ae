"""How strategies compare on all queries at once: error profiles, their order, redundant queries.

A strategy is any matrix A (p x n): an array, or an object whose ``matrix()`` gives one; records
are in one cell each. The error of a query q is s^2 q (A^T A)^+ q^T with s the sensitivity of A, L2
under Gaussian and L1 under Laplace noise, and infinite where q is no combination of rows of A.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from dpsql.common.arguments import matrix
from dpsql.common.arrays import Floats, Matrix
from dpsql.errors import DataError, quoted

_RTOL = 1e-9


def sensitivity(A: Matrix, *, noise: str = "gaussian") -> float:
    """Largest L2 (gaussian) or L1 (laplace) norm of a column of A (Li and Miklau 2011, Prop. 2.1 and B.1)."""
    return float(_norms(_matrix(A), noise).max())


def error_profile(A: Matrix) -> Floats:
    """(A^T A)^+ (n x n): q (A^T A)^+ q^T is the error of q over the squared sensitivity (Li et al. 2010, Def. 4.2).

    The definition is for full rank, with the inverse; the pseudo-inverse extends it to queries in the row
    space (Li and Miklau 2013, Prop. 3.1). Cost O(p n min(p, n)).
    """
    M = _matrix(A)
    pseudo = linalg.pinv(M, rtol=1e-12)
    return np.asarray(pseudo @ pseudo.T)


def profile_equivalent(A1: Matrix, A2: Matrix, *, rtol: float = _RTOL) -> bool:
    """Are the error profiles equal (Li et al. 2010, Def. 4.4)? That is so where A1 = Q A2 up to rows of zeros.

    Compared as A1^T A1 = A2^T A2, which is equivalent and better conditioned, to ``rtol`` of the largest entry.
    """
    X1, X2 = _grams(A1, A2)
    return bool(np.abs(X1 - X2).max() <= rtol * max(np.abs(X1).max(), np.abs(X2).max()))


def dominates(A1: Matrix, A2: Matrix, *, noise: str = "laplace", rtol: float = _RTOL) -> bool:
    """Equal profiles and A1 has the lower sensitivity: lower error on every query (Li et al. 2010, section 4.3).

    Under Gaussian noise equal profiles have equal sensitivities, so nothing dominates in this sense.
    """
    lower = sensitivity(A1, noise=noise) < sensitivity(A2, noise=noise) * (1 - rtol)
    return lower and profile_equivalent(A1, A2, rtol=rtol)


def compare(A1: Matrix, A2: Matrix, *, noise: str = "gaussian", rtol: float = _RTOL) -> str:
    """A1 beside A2 in the order of Li and Miklau 2011, Def. 3.1: 'equal', 'better', 'worse' or 'incomparable'.

    A1 is better where no query has a higher error under it and some query a lower one. Decided by the
    positive semidefinite order: with X = A^T A over the squared sensitivity, A1 is at least as good as A2 on
    all queries exactly where X1 - X2 is positive semidefinite, since q X^+ q^T = sup over v of 2 q v - v^T X v,
    infinite off the range of X (our form; their App. D.1 compares the same matrices). Cost O(n^3).
    """
    M1, M2 = _pair(A1, A2)
    X1 = M1.T @ M1 / sensitivity(M1, noise=noise) ** 2
    X2 = M2.T @ M2 / sensitivity(M2, noise=noise) ** 2
    s = linalg.eigvalsh(X1 - X2)
    slack = rtol * max(float(np.trace(X1)), float(np.trace(X2)))
    better, worse = s[0] >= -slack, s[-1] <= slack
    if better and worse:
        return "equal"
    return "better" if better else "worse" if worse else "incomparable"


def column_uniform(A: Matrix, *, noise: str = "gaussian", rtol: float = _RTOL) -> bool:
    """Do all columns of A have the same L2 (gaussian) or L1 (laplace) norm (Li and Miklau 2011, Def. 3.2)?

    Under Gaussian noise exactly the column-uniform strategies are minimal: no other strategy is better in
    the order of ``compare`` (Thm 3.1). Proof: where X1 - X2 is positive semidefinite with both
    diagonals 1, it has a diagonal of zeros and is zero; a column below the sensitivity can be filled up by a
    scaled unit row, which adds to X. Under Laplace noise the theorem does not hold (their App. B).
    """
    norms = _norms(_matrix(A), noise)
    return bool(norms.max() - norms.min() <= rtol * norms.max())


def redundant_groups(A: Matrix, *, rtol: float = _RTOL) -> tuple[tuple[int, ...], ...]:
    """Row numbers of A in groups of two or more that are multiples of one another; rows of zeros left out.

    Such rows are redundant (Li and Miklau 2011, section 3.1). Cost O(p^2 n).
    """
    M = _matrix(A)
    return tuple(g for g in _parallel(M, rtol) if len(g) > 1)


def without_redundant(A: Matrix, *, rtol: float = _RTOL) -> Floats:
    """A with rows that are multiples of one another joined, and no rows of zeros (Li and Miklau 2011, Thm 3.2).

    Rows c_1 q, c_2 q, ... become sqrt(c_1^2 + c_2^2 + ...) q: A^T A stays as it is, so under
    Gaussian noise the strategies are equal. Under Laplace noise the joined one has at most the error (Thm
    B.1): its L1 sensitivity is no larger.
    """
    M = _matrix(A)
    rows = []
    for group in _parallel(M, rtol):
        lengths = np.linalg.norm(M[list(group)], axis=1)
        rows.append(M[group[0]] * (np.linalg.norm(lengths) / lengths[0]))
    return np.array(rows)


def _parallel(M: Floats, rtol: float) -> list[tuple[int, ...]]:
    lengths = np.linalg.norm(M, axis=1)
    alive = np.flatnonzero(lengths > 0)
    unit = M[alive] / lengths[alive, None]
    groups: list[tuple[int, ...]] = []
    free = np.ones(alive.size, dtype=bool)
    for i in range(alive.size):
        if free[i]:
            sign = np.where(unit[i:] @ unit[i] < 0, -1.0, 1.0)
            near = np.abs(unit[i:] * sign[:, None] - unit[i]).max(axis=1) <= rtol
            mine = i + np.flatnonzero(near & free[i:])
            free[mine] = False
            groups.append(tuple(int(a) for a in alive[mine]))
    return groups


def _matrix(A: Matrix) -> Floats:
    if getattr(A, "contributions", None) is not None:
        raise DataError("bounds: strategies are compared for records in one cell each; these carry contributions")
    entries = A.matrix() if hasattr(A, "matrix") else A
    fits, said = matrix()
    if not fits(entries):
        raise DataError(f"bounds: A must be {said}; give rows of numbers, a Strategy or its matrix")
    M = np.asarray(entries, dtype=np.float64)
    if M.ndim != 2 or M.size == 0 or not np.isfinite(M).all() or not M.any():
        raise DataError("bounds: a strategy is a finite matrix with at least one entry that is not zero")
    return M


def _pair(A1: Matrix, A2: Matrix) -> tuple[Floats, Floats]:
    M1, M2 = _matrix(A1), _matrix(A2)
    if M1.shape[1] != M2.shape[1]:
        raise DataError(f"bounds: strategies over {M1.shape[1]} and {M2.shape[1]} cells cannot be compared")
    return M1, M2


def _grams(A1: Matrix, A2: Matrix) -> tuple[Floats, Floats]:
    M1, M2 = _pair(A1, A2)
    return np.asarray(M1.T @ M1), np.asarray(M2.T @ M2)


def _norms(M: Floats, noise: str) -> Floats:
    if noise not in ("gaussian", "laplace"):
        raise DataError(f"bounds: noise {quoted(noise)} is not known; use 'gaussian' or 'laplace'")
    return np.asarray(np.linalg.norm(M, ord=2 if noise == "gaussian" else 1, axis=0))
