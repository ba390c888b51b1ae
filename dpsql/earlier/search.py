"""Strategies that complement what is known: the new measurement of least error beside earlier ones.

Let P0 be the precision (inverse variance) with which earlier measurements know x, G = W^T W the Gram matrix of what is
asked, and tau the precision that the new release pays for at sensitivity 1. A strategy A (largest norm 1 over the
corners c of what one record can change) leaves the total squared error of least squares over all measurements

    f(X) = tr(G (P0 + tau X)^-1),  X = A^T A,  X >= 0,  c^T X c <= 1 for every corner c.

Without P0 that is the problem of ``dpsql.strategy.gaussian.optimal``. Nothing is lost by X within the row space of W
and the earlier measurements: the Schur complement of X there is below X, and P0 and G do not see the rest. So all is
worked out in an orthonormal basis of it, of r vectors.

Dual (our derivation). For corners' weights lambda >= 0 and any 0 <= H <= M = sum_c lambda_c c c^T,

    f(X) >= 2 tr((G^1/2 H G^1/2)^1/2) - tr(H P0) - tau sum lambda:

with Z = P0 + tau X, tr(G Z^-1) + tr(H Z) >= 2 tr((G^1/2 H G^1/2)^1/2) (the least over Z > 0), and tr(H Z) <= tr(H P0) +
tau tr(M X) <= tr(H P0) + tau sum lambda. Scaling H and lambda together by h and choosing the best h gives

    f >= t^2 / (tr(H P0) + tau sum lambda),  t = tr((G^1/2 H G^1/2)^1/2).

At the optimum H = Z^-1 G Z^-1, where t = tr(G Z^-1) = f. The bound is worked out for that H, scaled down until H <= M,
and for H = M; the better one is taken. Whatever X and lambda were found, the bound holds.

Search. For given lambda the X of least f(X) + tau tr(M X) has no closed form beside P0 (it has where P0 and G commute
after M^1/2: Z = P0 + (G^1/2 - P0)_+, the start), so A is found by L-BFGS in coordinates where M = 1. Then
lambda_c <- lambda_c c^T X c (its square, as without P0, overshoots); at the optimum c^T X c = 1 or lambda_c = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse

from dpsql.linalg.exact import column_norms
from dpsql.strategy.core.matrix_strategy import MatrixStrategy

Floats = NDArray[np.float64]

METHOD = "complement"
_RIDGE = 1e-9  # of tau, added to P0: it lowers f, so that bounds remain bounds
_SPACE = 1e-11  # of the largest eigenvalue: what is outside the row space
_WORK = 3e9  # multiplications of one search
_ROUNDS, _STEPS = 60, 12
_FLOOR = 1e-7  # of the mean weight
_FIRST_BITS, _STEP_BITS, _MOST_BITS = 16, 6, 46
_NEGLIGIBLE = 1e-9  # of the largest eigenvalue of X: what is not measured


@dataclass(frozen=True, eq=False)
class ComplementStrategy(MatrixStrategy):
    """A ``MatrixStrategy`` whose ``expected`` and ``lower_bound`` count what earlier measurements know, too.

    Both are total squared errors of least squares over all measurements, times tau: the charge's unit variance times
    ``expected`` is the planned error, as for any strategy. They hold at one charge only. ``largest_error``: what
    ``value`` is where the largest error is the objective.
    """

    largest_error: float | None = None

    @property
    def value(self) -> float:
        """``expected``, or the largest squared error of a query, with what is known counted."""
        return self.expected if self.largest_error is None else self.largest_error


@dataclass(frozen=True, eq=False)
class Complementing:
    """The problem: ``gram`` G and ``precision`` P0 (n x n), ``tau``, and ``corners`` (n x c), None for unit vectors.

    ``space`` (rows x n): rows that span those of G and P0; found from the two where it is None.
    """

    gram: Floats = field(repr=False)
    precision: Floats = field(repr=False)
    tau: float
    corners: Any = field(default=None, repr=False)
    space: Floats | None = field(default=None, repr=False)
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """n."""
        return int(self.gram.shape[0])

    def basis(self) -> Floats:
        """V (n x r): an orthonormal basis of the row space."""
        if "basis" not in self._cache:
            if self.space is None:
                first, second = (M / max(float(np.trace(M)), 1e-300) for M in (self.gram, self.precision))
                S = first + second
            else:
                rows = self.space / np.maximum(np.sqrt((self.space**2).sum(axis=1)), 1e-300)[:, None]
                S = rows.T @ rows
            s, V = linalg.eigh(S)
            self._cache["basis"] = np.ascontiguousarray(V[:, s > _SPACE * float(s[-1])])
        return np.asarray(self._cache["basis"])

    def reduced(self) -> tuple[Floats, Floats, Floats]:
        """(G, P0, Y) over the basis: r x r, r x r and the corners r x c."""
        if "reduced" not in self._cache:
            V = self.basis()
            Y = V.T if self.corners is None else np.asarray(V.T @ self.corners)
            self._cache["reduced"] = (V.T @ self.gram @ V, V.T @ self.precision @ V, Y)
        found: tuple[Floats, Floats, Floats] = self._cache["reduced"]
        return found

    def value(self, A: Floats, reach: float | None = None) -> float:
        """f of A (p x n) divided by its sensitivity; ``reach`` is the square of that, worked out where None."""
        V, (G, P0, _) = self.basis(), self.reduced()
        reach = self.reach(A) if reach is None else reach
        A = A @ V if V.shape[1] == V.shape[0] else _inside(A, V)
        return _error(G, P0 + (self.tau / reach) * (A.T @ A), _RIDGE * self.tau)

    def largest(self, A: Floats, reach: float, W: Floats) -> float:
        """The largest squared error of a query of W, as ``value`` has the sum of them."""
        V, (_, P0, _) = self.basis(), self.reduced()
        inside = A @ V if V.shape[1] == V.shape[0] else _inside(A, V)
        Z = P0 + (self.tau / reach) * (inside.T @ inside) + _RIDGE * self.tau * np.eye(V.shape[1])
        rows = W @ V
        return float(np.einsum("ij,ij->i", rows, linalg.cho_solve(linalg.cho_factor(Z), rows.T).T).max())

    def reach(self, A: Floats, laplace: bool = False) -> float:
        """The largest squared norm of A c: L1 for ``laplace``, else L2."""
        moved = A if self.corners is None else np.asarray(A @ self.corners)
        if laplace:
            return float(np.abs(moved).sum(axis=0).max(initial=0.0)) ** 2
        return float(np.einsum("ij,ij->j", moved, moved).max(initial=0.0))


def _inside(A: Floats, V: Floats) -> Floats:
    """What measuring A says of the row space V: rows whose Gram matrix is the Schur complement of A's.

    What A measures outside is unknown, so that combinations of its rows count in which it cancels.
    """
    outside = A - (A @ V) @ V.T
    size = float(np.abs(A).max(initial=0.0))
    if float(np.abs(outside).max(initial=0.0)) <= 1e-10 * size:
        return np.asarray(A @ V)
    U, s, _ = linalg.svd(outside, full_matrices=True)
    rank = int((s > 1e-9 * float(s[0])).sum())
    return np.asarray(U[:, rank:].T @ (A @ V))


def _error(G: Floats, Z: Floats, ridge: float) -> float:
    """tr(G Z^-1)."""
    Z = Z + ridge * np.eye(Z.shape[0])
    return float(np.sum(G * linalg.cho_solve(linalg.cho_factor(Z), np.eye(Z.shape[0]))))


@dataclass(frozen=True, eq=False)
class Found:
    """``A`` (p x n) of sensitivity 1 with f = ``upper``; no strategy has less than ``lower``."""

    A: Floats = field(repr=False)
    upper: float
    lower: float


def search(problem: Complementing, starts: list[Floats], tolerance: float, deadline: float = np.inf) -> Found:
    """The strategy of least f beside ``starts`` (each p x n), to a certified gap of ``tolerance``.

    Ends as well after 3e9 multiplications, 60 rounds and at ``deadline`` (monotonic seconds), with the gap reached.
    Cost: O(n^3 + nc r) once, O(r^3 + r^2 c) a step.
    """
    V, (G, P0, Y) = problem.basis(), problem.reduced()
    best, lower = Found(np.zeros((0, problem.size)), np.inf, 0.0), 0.0
    for start in starts:
        reach = problem.reach(start)
        value = problem.value(start, reach)
        if value < best.upper:
            best = Found(start / np.sqrt(reach), value, 0.0)
    r, c = Y.shape
    lam = np.full(c, float(np.trace(G)) / (problem.tau**2 * c))
    A: Floats | None = None
    left = _WORK
    for _ in range(_ROUNDS):
        lam = np.maximum(lam, _FLOOR * float(lam.mean()))
        try:
            A = _given(G, P0, problem.tau, _root_of(Y, lam), A)
            q = np.einsum("ij,ij->j", A @ Y, A @ Y)
            peak = float(q.max())
            X = A.T @ A
            upper = _error(G, P0 + (problem.tau / peak) * X, _RIDGE * problem.tau)
            lower = max(lower, _bound(problem, lam, X), _bound(problem, lam, X / peak))
        except linalg.LinAlgError:  # too ill-conditioned to go on: what was found and proven so far stands
            break
        if upper < best.upper:
            best = Found(rooted(X / peak) @ V.T, upper, 0.0)
        left -= (2 + 2 * _STEPS) * 4.0 * r**3 + 2.0 * r * r * c
        if best.upper <= (1 + tolerance) * lower or left < 0 or monotonic() > deadline:
            break
        lam = lam * np.clip(q, 0.1, 10.0)
    return Found(best.A, best.upper, lower)


def _root_of(Y: Floats, lam: Floats) -> Floats:
    """L, lower triangular, L L^T = M."""
    shift = 1e-13 * float(lam.max()) * np.eye(Y.shape[0])
    return np.asarray(linalg.cholesky((Y * lam) @ Y.T + shift, lower=True))


def _given(G: Floats, P0: Floats, tau: float, L: Floats, before: Floats | None) -> Floats:
    """A (r x r) of least tr(G (P0 + tau A^T A)^-1) + tau tr(M A^T A), M = L L^T, some steps from ``before``."""
    r = G.shape[0]
    inverse = linalg.solve_triangular(L, np.eye(r), lower=True)
    G, P0 = L.T @ G @ L, L.T @ P0 @ L
    P0 = P0 + _RIDGE * float(np.trace(P0) / r + tau) * np.eye(r)

    def f(b: Floats) -> tuple[float, Floats]:
        B = b.reshape(r, r)
        T = linalg.cho_solve(linalg.cho_factor(P0 + tau * (B.T @ B), check_finite=False), np.eye(r))
        GT = G @ T
        return float(np.trace(GT)) + tau * float(np.sum(B * B)), np.asarray(2 * tau * (B - B @ (T @ GT))).ravel()

    s, U = linalg.eigh(_square_root(G) - P0)
    guess = np.sqrt(np.maximum(s, 1e-6 * max(float(np.abs(s).max()), 1e-300)) / tau)[:, None] * U.T
    start = guess
    if before is not None:
        warm = before @ L
        start = min((guess, warm), key=lambda B: f(B.ravel())[0])
    unit = f(start.ravel())[0]

    def scaled(b: Floats) -> tuple[float, Floats]:
        value, slope = f(b)
        return value / unit, slope / unit

    options: Any = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "ftol": 1e-12, "gtol": 1e-12}
    found = optimize.minimize(scaled, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(r, r) @ inverse)


def _square_root(G: Floats) -> Floats:
    s, V = linalg.eigh(G)
    return np.asarray((V * np.sqrt(np.maximum(s, 0.0))) @ V.T)


def _bound(problem: Complementing, lam: Floats, X: Floats) -> float:
    """The lower bound that ``lam`` (c,) and ``X`` (r x r) prove; best where both are nearly optimal. Cost O(r^3)."""
    (G, P0, Y), tau, r = problem.reduced(), problem.tau, X.shape[0]
    P0 = P0 + _RIDGE * tau * np.eye(r)
    T = linalg.cho_solve(linalg.cho_factor(P0 + tau * X), np.eye(r))
    H = T @ G @ T
    M = (Y * lam) @ Y.T
    total = float(lam.sum())
    L = linalg.cholesky(M + 1e-13 * float(np.trace(M)) * np.eye(r), lower=True)
    inner = linalg.solve_triangular(L, linalg.solve_triangular(L, H, lower=True).T, lower=True)
    # H <= slack (M + the shift), and the shift is below 1e-9 M where M has no direction as small as it.
    slack = float(linalg.eigvalsh(inner)[-1]) * (1.0 + 1e-9)
    t = float(np.sum(G * T))
    shift = 1e-13 * float(np.trace(M)) * problem.size  # what the shift adds to tr(M X), tr X being at most n
    first = t * t / (float(np.sum(H * P0)) + tau * slack * (total + shift))
    s = linalg.eigvalsh(L.T @ G @ L)
    t = float(np.sqrt(np.maximum(s - 1e-13 * r * float(s[-1]), 0.0)).sum())
    shifted = float(np.sum(M * P0)) + 1e-13 * float(np.trace(M)) * float(np.trace(P0))
    second = t * t / (shifted + tau * (total + shift))
    return max(first, second) * (1.0 - 1e-9)


def rooted(X: Floats) -> Floats:
    """A (p x n) with A^T A = X but for directions of no account, p as few as can be."""
    s, V = linalg.eigh(X)
    kept = s > _NEGLIGIBLE * float(s[-1])
    return np.asarray(np.sqrt(s[kept])[:, None] * V[:, kept].T)


def rounded(problem: Complementing, A: Floats, laplace: bool = False, tolerance: float = 1e-3) -> tuple[Any, float]:
    """Integers B (p x n) near a multiple of A, and their f; its increase is below a tenth of ``tolerance``.

    Raises nothing: 40 bits suffice but for problems so ill-conditioned that f is the best that was reached.
    """
    target = problem.value(A, problem.reach(A, laplace))
    peak, best = float(np.abs(A).max()), None
    for bits in range(_FIRST_BITS, _MOST_BITS, _STEP_BITS):
        B = np.rint(A * (2.0**bits / peak)).astype(np.int64)
        B = B[np.any(B != 0, axis=1)]
        l1, l2 = norms(problem, B)
        value = problem.value(B.astype(np.float64), float(l1) ** 2 if laplace else float(l2))
        if best is None or value < best[1]:
            best = B, value
        if value <= (1 + tolerance / 10) * target:
            break
    assert best is not None  # noqa: S101 - there is a first round
    return best[0] // max(int(np.gcd.reduce(best[0], axis=None)), 1), best[1]


def norms(problem: Complementing, B: Any, columns: Any = None) -> tuple[int, int]:
    """Exact (L1, squared L2) norms of integers B (p x n) over ``columns``, the corners where they are None."""
    if columns is None:
        columns = sparse.eye_array(problem.size, dtype=np.int64) if problem.corners is None else problem.corners
    return column_norms(B, sparse.csc_array(columns))
