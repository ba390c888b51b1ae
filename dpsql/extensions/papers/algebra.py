"""When are two workloads as hard as each other, and when is one no harder (Li and Miklau 2013, section 3.3).

The error of a strategy depends on W only by its Gram matrix, so these tests compare Gram
matrices; they concern records in one cell each.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import sparse

from dpsql.common.arguments import one_of, taking
from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload

__all__ = ["column_projection", "contained", "equal_error", "equivalent", "no_harder", "nonzero_columns"]

_RTOL = 1e-9


@taking(W1=one_of(Workload, Marginals), W2=one_of(Workload, Marginals))
def equivalent(W1: Workload | Marginals, W2: Workload | Marginals, *, rtol: float = _RTOL) -> bool:
    """W1^T W1 = W2^T W2 (Def. 3.5): every strategy has the same error on both.

    Entries are compared to ``rtol`` of the largest one. Cost: two dense Gram matrices. Raises DataError
    for workloads with ``contributions``, or of more than 2^27 Gram entries.
    """
    _plain(W1, W2)
    if W1.shape[1] != W2.shape[1] or _scale(W1) != _scale(W2):
        return False
    first, second = W1.as_marginals, W2.as_marginals
    if first is not None and second is not None and first.sizes == second.sizes:
        mine, other = first.residuals(), second.residuals()
        top = max(*mine.values(), *other.values())
        return all(abs(mine.get(T, 0.0) - other.get(T, 0.0)) <= rtol * top for T in {*mine, *other})
    G1, G2 = W1.gram(), W2.gram()
    return bool(np.abs(G1 - G2).max() <= rtol * max(np.abs(G1).max(), np.abs(G2).max()))


@taking(W1=one_of(Workload, Marginals), W2=one_of(Workload, Marginals))
def contained(W1: Workload | Marginals, W2: Workload | Marginals, *, rtol: float = _RTOL) -> bool:
    """Is W1 contained in W2 (Def. 3.7): are the rows of W1 among those of a workload equivalent to W2?

    That is so exactly where G2 - G1 is positive semidefinite (our derivation: with R^T R = G2 - G1 the rows
    of [W1; R] have Gram matrix G2; conversely the rows added to W1 leave G2 - G1 as their own Gram
    matrix). Eigenvalues above -``rtol`` times the largest of G2 count as zero. Cost O(n^3); raises as
    ``equivalent``.
    """
    _plain(W1, W2)
    if W1.shape[1] != W2.shape[1] or _scale(W1) != _scale(W2):
        return False
    first, second = W1.as_marginals, W2.as_marginals
    if first is not None and second is not None and first.sizes == second.sizes:
        mine, other = first.residuals(), second.residuals()
        slack = rtol * max(other.values())
        return all(g <= other.get(T, 0.0) + slack for T, g in mine.items())
    G1, G2 = W1.gram(), W2.gram()
    slack = rtol * float(np.trace(G2))
    return bool(scipy.linalg.eigvalsh(G2 - G1, subset_by_index=[0, 0])[0] >= -slack)


@taking(W=one_of(Workload))
def column_projection(W: Workload, columns: ArrayLike) -> Workload:
    """W with only the named columns, in the order named (Def. 2.8): the queries over those cells alone.

    ``columns``: column numbers, each once, or a Boolean mask of length n. Never raises the least
    error (Prop. 3.8 ii). Raises DataError for unknown or repeated columns, for none, and for workloads with
    ``contributions``.
    """
    _plain(W)
    n = W.shape[1]
    chosen = np.asarray(columns)
    mask = chosen.dtype == bool
    place = np.flatnonzero(chosen) if mask else chosen.ravel()
    numbers = place.size > 0 and place.dtype.kind in "iu"
    if not numbers or place.min() < 0 or place.max() >= n or (mask and chosen.shape != (n,)):
        raise DataError(f"workload: a projection must name columns between 0 and {n - 1}")
    if np.unique(place).size < place.size:
        raise DataError("workload: a projection names a column twice; name each once")
    exact = None if W.exact is None else W.exact[:, place]
    span = sparse.csr_array(sparse.csc_array(W.span)[:, place])
    return Workload(span, W.inner, None, W.groups, f"{W.name or 'W'} over {place.size} columns", exact=exact)


@taking(W=one_of(Workload))
def nonzero_columns(W: Workload) -> Workload:
    """W without its columns of zeros: the same least error (Prop. 3.6 v).

    Raises DataError for a workload of zeros and for ``contributions``. Cost: the matrix of W, at most
    2^27 entries, unless it is kept row by row.
    """
    _plain(W)
    diagonal = W.inner.diagonal()
    if diagonal is not None:
        used = np.asarray(abs(W.span[np.flatnonzero(diagonal)]).sum(axis=0)) > 0
    else:
        used = np.abs(W.matrix()).max(axis=0) > 0
    if not used.any():
        raise DataError("workload: every column is zero; nothing is asked")
    return column_projection(W, used)


@taking(W1=one_of(Workload), W2=one_of(Workload))
def equal_error(W1: Workload, W2: Workload, *, rtol: float = _RTOL) -> tuple[str, ...]:
    """The conditions of Prop. 3.6 that hold, each of which implies the same least error.

    "i" equivalent; "ii" W1 = Q W2 for an orthogonal Q: equivalent with as many rows; "iii" W2 permutes the
    rows of W1; "iv" it permutes the columns; "v" it is W1 over its non-zero columns, in their order. An empty
    tuple proves nothing: the least errors may still be equal. Cost O(m n log(m n)) on dense
    matrices; "i" and "ii" only where the matrices would be above 2^27 entries. Raises as ``equivalent``.
    """
    _plain(W1, W2)
    found = []
    if equivalent(W1, W2, rtol=rtol):
        found.append("i")
        if W1.shape[0] == W2.shape[0]:
            found.append("ii")
    if not _small(W1, W2):
        return tuple(found)
    A, B = W1.matrix(), W2.matrix()
    if A.shape == B.shape:
        if np.array_equal(_sorted_rows(A), _sorted_rows(B)):
            found.append("iii")
        if np.array_equal(_sorted_rows(A.T), _sorted_rows(B.T)):
            found.append("iv")
    if A.shape[0] == B.shape[0] and np.array_equal(A[:, np.abs(A).max(axis=0) > 0], B):
        found.append("v")
    return tuple(found)


@taking(W1=one_of(Workload), W2=one_of(Workload))
def no_harder(W1: Workload, W2: Workload, *, rtol: float = _RTOL) -> tuple[str, ...]:
    """The conditions of Prop. 3.8 that hold, each of which implies least error of W1 <= that of W2.

    "i" W1 is contained in W2; "ii" W1 is a column projection of W2 (the same rows in the same order; its
    columns are among those of W2, each as often at most). Cost and errors as ``equal_error``.
    """
    _plain(W1, W2)
    found = []
    if contained(W1, W2, rtol=rtol):
        found.append("i")
    if _small(W1, W2) and W1.shape[0] == W2.shape[0] and _scale(W1) == _scale(W2):
        left: dict[bytes, int] = {}
        for column in np.ascontiguousarray(W2.matrix().T + 0.0):
            left[column.tobytes()] = left.get(column.tobytes(), 0) + 1
        for column in np.ascontiguousarray(W1.matrix().T + 0.0):
            left[column.tobytes()] = left.get(column.tobytes(), 0) - 1
        if min(left.values()) >= 0:
            found.append("ii")
    return tuple(found)


def _sorted_rows(M: Floats) -> Floats:
    return np.asarray(M[np.lexsort(M.T[::-1])] + 0.0)  # + 0.0 turns -0.0 into 0.0


def _small(*workloads: Workload) -> bool:
    return all(W.shape[0] * W.shape[1] <= 2**24 for W in workloads)


def _scale(W: object) -> float:
    return float(getattr(W, "log2_scale", 0.0))


def _plain(*workloads: object) -> None:
    if any(getattr(W, "contributions", None) is not None for W in workloads):
        raise DataError("workload: this test is for records in one cell each; these carry contributions")
