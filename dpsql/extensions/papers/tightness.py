"""How near the singular value bound is to the least error, and the strategies that meet it.

The proof of the bound builds one strategy, X = A^T A proportional to (W^T W)^1/2. Its error
exceeds the bound by exactly the spread of the diagonal of that root.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg
from scipy.fft import rfft

from dpsql.common.arguments import one_of, real, taking, whole
from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.lower_bounds.spectrum import record_columns, root, structure
from dpsql.workloads.families.marginals import AttributeSet, Marginals
from dpsql.workloads.families.matrix import Workload


@taking(W=one_of(Workload, Marginals))
def looseness(W: Workload | Marginals) -> float:
    """n d_0 / tr (W^T W)^1/2 with d_0 the largest diagonal entry of that root (Li and Miklau 2013, Thm 5.6).

    The least error is at most this many times ``svd_bound(W)``, so 1 means that the bound is met. It is
    the exact error ratio of ``root_strategy``. Products multiply; all ranges and prefixes in closed form, O(n
    log n); all predicates and marginals give 1 (Thms 5.3, 5.5); otherwise a singular value decomposition,
    O(r^2 n). Where records contribute to several columns it is taken over their distinct columns, as in
    ``svd_bound`` (the same proof). Raises DataError for a workload of zeros, and above 2^27 entries r x n.
    """
    if W.as_marginals is not None:
        return 1.0
    W = W.explicit()
    if W.factors and W.contributions is None:
        return float(np.prod([looseness(factor) for factor in W.factors]))
    diagonal = _root_diagonal(W)
    if not diagonal.max() > 0:
        raise DataError("bounds: every query of the workload is zero; nothing is to be bounded")
    return max(1.0, float(diagonal.max() / diagonal.mean()))


@taking(W=one_of(Workload, Marginals))
def is_tight(W: Workload | Marginals, *, rtol: float = 1e-8) -> bool:
    """Is the singular value bound the least error: is the diagonal of (W^T W)^1/2 constant (Thm 5.1)?

    To a relative ``rtol``. Cost and errors as ``looseness``.
    """
    return looseness(W) <= 1.0 + rtol


@taking(W=one_of(Workload, Marginals))
def root_strategy(W: Workload | Marginals) -> Floats:
    """X = (W^T W)^1/2 over its largest diagonal entry (n x n): A^T A of the strategy in the proof of Thm 4.2.

    Unit L2 sensitivity; its error, tr(G X^+), is looseness(W) * svd_bound(W), so it is a least
    error strategy wherever ``is_tight``: any variable-agnostic workload (Thm 5.3), any weighted data cubes
    (Thm 5.5). Records in one column each. Cost O(n^3); raises DataError above 2^27 entries, for
    ``contributions`` and for a workload of zeros.
    """
    if W.as_marginals is not None:
        return cube_strategy(W.as_marginals)
    W = W.explicit()
    if W.contributions is not None:
        raise DataError("bounds: the root strategy is for records in one column each; select a strategy instead")
    n = W.shape[1]
    if n * n > MATRIX_CAP:
        raise DataError(f"bounds: the strategy would have {n} x {n} entries, above the cap of {MATRIX_CAP}")
    _, s, Vt = linalg.svd(root(W), full_matrices=False)
    X = (Vt.T * s) @ Vt
    top = X.diagonal().max(initial=0.0)
    if not top > 0:
        raise DataError("bounds: every query of the workload is zero; nothing is to be measured")
    return np.asarray(X / top)


@taking(W=one_of(Workload))
def variable_agnostic(W: Workload, *, rtol: float = 1e-9) -> tuple[float, float] | None:
    """(a, b) where W^T W has a on its diagonal and b elsewhere (Def. 5.2), to ``rtol`` of a; else None.

    Cost: the dense Gram matrix (DataError above 2^27 entries). One column gives b = 0.
    """
    if W.contributions is not None:
        raise DataError("bounds: this test is for records in one column each; these carry contributions")
    G = W.gram()
    n = G.shape[0]
    a = float(G.diagonal().mean())
    b = float((G.sum() - G.trace()) / (n * (n - 1))) if n > 1 else 0.0
    off = G - b
    off[np.diag_indices(n)] -= a - b
    return (a, b) if np.abs(off).max() <= rtol * a else None


@taking(a=real(), b=real(), n=whole())
def variable_agnostic_bound(a: float, b: float, n: int) -> float:
    """(1/n) (sqrt(a + (n - 1) b) + (n - 1) sqrt(a - b))^2: least error and singular value bound (Thm 5.3).

    For every n, not only powers of two: aI + b(J - I) has the eigenvalue a + (n - 1) b on the vector of ones and
    a - b on its complement, and every diagonal entry of its root is the same. Raises DataError where
    no workload has such a Gram matrix.
    """
    first, rest = _agnostic_roots(a, b, n)
    return (first + (n - 1) * rest) ** 2 / n


@taking(a=real(), b=real(), n=whole(high=2**13))
def variable_agnostic_strategy(a: float, b: float, n: int) -> Floats:
    """A^T A (n x n, unit diagonal) of the least error strategy where G = (a - b) I + b J (Thm 5.3, any n).

    (G)^1/2 = r I + (f - r)/n J with f = sqrt(a + (n - 1) b), r = sqrt(a - b), over its constant
    diagonal (f + (n - 1) r) / n. Raises DataError as ``variable_agnostic_bound``.
    """
    first, rest = _agnostic_roots(a, b, n)
    X = np.full((n, n), (first - rest) / n)
    X[np.diag_indices(n)] += rest
    return X * (n / (first + (n - 1) * rest))


@taking(W=one_of(Marginals))
def cube_shares(W: Marginals) -> dict[AttributeSet, float]:
    """{T: s_T}: the least error strategy of weighted data cubes is X = sum_T s_T (x)_T (d_i I - J) (x)_rest J.

    Each term is n times the projection on the residual space of T; s_T = sqrt(g_T) / sum_U dim(U) sqrt(g_U) with
    g as in ``Marginals.residuals``. X is (W^T W)^1/2 scaled to a diagonal of ones (Li and Miklau 2013, Thm 5.5;
    the residual form is ours). Cost O(number of residual spaces), for a domain of any size.
    """
    roots = {T: float(np.sqrt(g)) for T, g in W.residuals().items()}
    whole = sum(W.dimension(T) * r for T, r in roots.items())
    return {T: r / whole for T, r in roots.items()}


@taking(W=one_of(Marginals))
def cube_strategy(W: Marginals) -> Floats:
    """A^T A (n x n, unit diagonal) of the least error strategy of data cubes, dense; see ``cube_shares``.

    Raises DataError above 2^27 entries.
    """
    n = W.shape[1]
    if n * n > MATRIX_CAP:
        raise DataError(f"bounds: the strategy would have {n} x {n} entries; use cube_shares")
    X = np.zeros((n, n))
    for T, share in cube_shares(W).items():
        term = np.full((1, 1), share)
        for i, d in enumerate(W.sizes):
            J = np.ones((d, d))
            term = np.asarray(np.kron(term, d * np.eye(d) - J if i in T else J))
        X += term
    return X


def _agnostic_roots(a: float, b: float, n: int) -> tuple[float, float]:
    high, low = a + (n - 1) * b, a - b
    if n < 1 or not (np.isfinite(high) and np.isfinite(low)) or a <= 0 or high < 0 or low < 0:
        raise DataError("bounds: a Gram matrix with diagonal a > 0 and the rest b needs -a / (n - 1) <= b <= a")
    return float(np.sqrt(high)), float(np.sqrt(low))


def _root_diagonal(W: Workload) -> Floats:
    """Diagonal of (W^T W)^1/2 up to a factor, over cells or the distinct columns of W @ contributions."""
    inner = structure(W) if W.contributions is None else None
    if isinstance(inner, algebra.Ranges):
        # Eigenvectors sin(j k pi / (n + 1)), roots of the eigenvalues as 1 / sin(k pi / (2 (n + 1))), j from 1.
        n = inner.n
        roots = np.zeros(n + 1)
        roots[1:] = 1.0 / np.sin(np.arange(1, n + 1) * np.pi / (2.0 * (n + 1)))
        return _sine_squares(roots, n)
    if isinstance(inner, algebra.Prefixes):
        # Counted from the last cell: eigenvectors sin(j (2k - 1) pi / (2n + 1)), roots 1 / sin((2k - 1) pi / (4n + 2)).
        n = inner.n
        odd = np.arange(1, 2 * n, 2)
        roots = np.zeros(2 * n + 1)
        roots[odd] = 1.0 / np.sin(odd * np.pi / (4.0 * n + 2.0))
        return _sine_squares(roots, n)[::-1]
    if isinstance(inner, algebra.Predicates):
        return np.ones(1)  # the same on every cell: Li and Miklau 2013, Thm 5.3
    U = root(W) if W.contributions is None else root(W)[:, record_columns(W)]
    if U.size == 0:
        return np.zeros(1)
    _, s, Vt = linalg.svd(U, full_matrices=False)
    return np.asarray(s @ Vt**2)


def _sine_squares(roots: Floats, n: int) -> Floats:
    """2 sum_k roots_k sin^2(j k pi / N), j = 1..n, N = len(roots): a Fourier transform, as 2 sin^2 x = 1 - cos 2x."""
    waves = rfft(roots).real
    j = np.arange(1, n + 1)
    return np.asarray(roots.sum() - waves[np.minimum(j, roots.size - j)])
