"""The least error of any Gaussian matrix mechanism, with its certificate.

Primal: E* = min tr(G X^+) over X >= 0 with range(G) inside range(X) and diag(X) <= 1 (Li and Miklau 2011, Problem
2.1, extended to rank-deficient strategies as Li and Miklau 2013, section 3). This is the problem of
``dpsql.strategies.core.symmetric`` without symmetries, one part whose contributions are the columns: for lambda >= 0
with sum 1 its dual is

    (tr (Lambda^1/2 G Lambda^1/2)^1/2)^2 <= E*,

our derivation; uniform lambda is the SVD bound (Li and Miklau 2013, Thm 4.2). With U^T U = G (U is r x N) K = U Lambda
U^T has the same eigenvalues other than 0, and X = U^T K^-1/2 U.

Cells one by one: with U = G^1/2 the root of M = Lambda^1/2 G Lambda^1/2 says all, q_j = (M^1/2)_jj / lambda_j and X =
Lambda^-1/2 M^1/2 Lambda^-1/2. Where X has full rank, scaling it to unit diagonal is another upper bound, right to
second order. If G is the same from both ends, reversing the cells is a symmetry: its parts are the sums and the
differences of opposite cells, each of half the order, and two opposite cells are an orbit.

Columns listed: ``ColumnState`` gives the columns of weight unit length, for an upper bound right to second order.

Column generation: the certified optimum over very many distinct columns.

At the optimum only some 10 m columns carry dual weight. The iteration runs on an active set; a scan of all columns
asks which have q_j > t, these join, columns of vanishing weight leave. The lower bound t^2 of an active set is valid
for the whole problem (weights of zero are weights); the upper bound t max q takes its maximum over all columns. Memory:
one float32 copy of the columns (4 v N bytes) up to 256 MB, beyond that chunks are made anew in each scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from time import monotonic

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Sparse
from dpsql.common.numerics import AT_ONCE, ROUNDING, SEED
from dpsql.linalg.exact import SPARSE_COST
from dpsql.linalg.forms import dense, row_squares
from dpsql.linalg.inner import Dense, Inner, Product
from dpsql.linalg.long_calls import eigh, product
from dpsql.strategies.core.ascent import Solution, ascend, exchange
from dpsql.strategies.core.axes import Written, find_axes
from dpsql.strategies.core.limits import RIDGE, ROUNDS, WRITTEN
from dpsql.strategies.core.reduce import Block
from dpsql.strategies.core.symmetric import FLOOR, DualState
from dpsql.strategies.core.time_left import LateError, step_seconds
from dpsql.strategies.gaussian.exchangeable import EXACTLY, classes_of, solve_classes


class ColumnState(DualState):
    """The dual over listed ``columns`` (N x r, as the queries see them), with an upper bound right to second order.

    With v_o = half R y_o / t^1/2, of squared length q_o / t, let X = R^T half^T (I - F) half R / t with F = sum_o
    alpha_o v_o v_o^T over the columns of weight. Solving ((v_o^T v_p)^2) alpha = q / t - 1 gives these unit length. At
    F = 0 the error is t^2 and changes by tr(M dX) = sum_o lambda_o (1 - q_o / t) = 0 to first order. It is computed of
    X divided by its longest column, so that it is an upper bound whatever alpha is, and tried once t max q is within
    ``near`` of t^2. Cost beside a step's: k^2 (k + 3 r) / 6 for k columns of weight.
    """

    def __init__(self, columns: Inner, near: float, weights: Floats) -> None:
        super().__init__([(1.0, columns)], weights)
        self._columns, self._near, self._weights = columns, near, weights

    def upper(self) -> float:
        return self.scaled[0]

    @cached_property
    def scaled(self) -> tuple[float, Floats]:
        """(squared error, rows B) of X = R^T B^T B R, by which no column is longer than 1."""
        (half,), t, top = self.halves, self.t, float(self.q.max())
        order = np.argsort(self._weights, kind="stable")
        slack = np.cumsum((np.maximum(1.0 - self.q / t, 0.0) * self._weights)[order])
        bound = np.sort(order[(slack > self._near**2) | (self.q[order] > t)])  # others count for next to nothing
        plain = t * top, half / top**0.5
        if top > (1.0 + self._near) * t or bound.size**2 > WRITTEN:
            return plain
        V = product(half, dense(self._columns.matrix())[bound].T) / t**0.5
        squares = product(V.T, V) ** 2
        squares[np.diag_indices_from(squares)] += RIDGE * float(squares.diagonal().mean())
        try:
            alpha = scipy.linalg.solve(squares, self.q[bound] / t - 1.0, overwrite_a=True, assume_a="pos")
            L = scipy.linalg.cholesky(np.eye(len(half)) - product(V * alpha, V.T), lower=True)
        except scipy.linalg.LinAlgError:
            return plain
        rows = L.T @ half
        longest = float(self._columns.variances(rows.T).max())
        inverse = scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True)
        error = longest * float((inverse**2).sum(axis=0) @ (1.0 / row_squares(half)))
        return (error, rows / longest**0.5) if error < plain[0] else plain


class _Columns:
    """All columns Y (v x N): scans of squared norms, and dense pieces."""

    def __init__(self, columns: Sparse) -> None:
        self._csc = sparse.csc_array(columns)
        v, N = self.shape = (int(columns.shape[0]), int(columns.shape[1]))
        self._dense: list[Array] | None = None
        if v * N <= 4 * WRITTEN:  # in single precision
            self._dense = [self._chunk(at) for at in range(0, N, AT_ONCE)]

    def _chunk(self, at: int) -> Array:
        return np.asarray(self._csc[:, at : at + AT_ONCE].astype(np.float32).toarray(order="F"))

    def squares(self, T: Floats) -> Floats:
        """||T y_j||^2 for every column, in single precision: good to about 1e-5."""
        N = self.shape[1]
        T32 = T.astype(np.float32)
        out = np.empty(N)
        for i, at in enumerate(range(0, N, AT_ONCE)):
            part = T32 @ (self._dense[i] if self._dense is not None else self._chunk(at))
            out[at : at + AT_ONCE] = np.einsum("ij,ij->j", part, part)
        return out

    def some(self, index: NDArray[np.int64]) -> Floats:
        return np.asarray(self._csc[:, index].toarray(), dtype=np.float64)


def generate(
    block: Block,
    R: Floats,
    tolerance: float,
    deadline: float,
    progress: Callable[[str], None] | None = None,
) -> Solution:
    """As ``optimal.solve`` for a block with R^T R = gram, by column generation."""
    Y = _Columns(block.columns)
    v = Y.shape[0]
    rng = np.random.default_rng(SEED)
    active = _spanning(Y, R, rng)
    lam = np.full(active.size, 1.0 / active.size)
    lower, upper, metric = 0.0, np.inf, np.eye(v)
    weights = np.zeros(Y.shape[1])
    steps, inner = 0, 0.05
    for round_ in range(ROUNDS):
        evaluate = partial(DualState, [(1.0, Dense((R @ Y.some(active)).T))])
        state, lam, count = ascend(evaluate, lam, inner, deadline, 30)
        steps += count
        (half,) = state.halves
        q = Y.squares(half @ R)
        t, top = state.t, float(q.max())
        if state.lower > lower:
            lower = state.lower
            weights[:] = 0.0
            weights[active] = lam
        if t * top < upper:
            upper, metric = t * top, half.T @ half / top
        if progress is not None:
            progress(f"optimal: round {round_ + 1}, {active.size} columns, gap {upper / lower - 1:.2g}")
        if upper <= (1.0 + tolerance) * lower or monotonic() >= deadline:
            break
        excess = top / t - 1.0
        inner = max(0.4 * tolerance, min(0.05, 0.4 * excess))
        ratio = q[active] / t
        q[active] = 0.0
        stay, join, lam = exchange(lam, ratio, q / t, (v, 8 * v), rng)
        active = np.concatenate([active[stay], join])
    return Solution(R.T @ metric @ R, lower, upper, steps, weights)


def _first_active(v: int, N: int) -> int:
    """How many columns column generation begins with."""
    return min(N, max(8 * v, 600))


def _spanning(Y: _Columns, R: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """A deterministic sample of columns that spans all v dimensions."""
    v, N = Y.shape
    active = np.sort(rng.choice(N, size=_first_active(v, N), replace=False))
    while True:
        Q, T, _ = scipy.linalg.qr(R @ Y.some(active), mode="economic", pivoting=True)
        diagonal = np.abs(np.diag(T))
        rank = int((diagonal > diagonal[0] * 1e-9).sum())
        if rank == v or active.size >= N:
            return np.asarray(active)
        left = R - Q[:, :rank] @ (Q[:, :rank].T @ R)
        missing = Y.squares(left)
        missing[active] = -1.0
        more = np.argpartition(-missing, min(N - 1, 4 * v))[: 4 * v]
        active = np.union1d(active, more)


# Entries of U up to which every step takes all columns (32 MB); beyond, axes or column generation.
_DENSE_ENTRIES = 4_000_000
_LONG_FROM = 256  # order from which a step takes long: classes of alike columns and a better bound are looked for


def solve(
    block: Block,
    tolerance: float,
    deadline: float,
    progress: Callable[[str], None] | None = None,
    fits: Callable[[float], bool] | None = None,
) -> Solution:
    """Certified optimum of one block (not a bundle of single rows) to a gap of ``tolerance``.

    Stops early at ``deadline`` (monotonic seconds) with the gap reached. Raises LateError where the seconds of its
    first step do not fit (``TimeLeft.fits``). Cost a step: one
    eigendecomposition of order v and, at v < N, two v x v x N products; 3 to 40 steps.
    """
    v, N = block.columns.shape
    Y = block.columns.toarray().astype(np.float64) if v == N else np.zeros((v, 0))
    back = _inverse_congruence(Y) if v == N else None
    if back is not None:
        G = block.gram if np.array_equal(Y, np.eye(v)) else Y.T @ block.gram @ Y
        classes = classes_of(G, EXACTLY) if v >= _LONG_FROM else None
        order = N if classes is None else classes.sizes.size
        _check(fits, order, order)
        if classes is not None:
            found = solve_classes(classes, tolerance, deadline, centred=False)
        else:
            mirror = bool(np.array_equal(G, G[::-1, ::-1]))
            found = solve_cells(G, tolerance, deadline, np.full(N, 1.0 / N), mirror=mirror)
        return replace(found, metric=back(found.metric))
    R = block.factor()
    few = v * N <= _DENSE_ENTRIES
    axes = None if few else find_axes(block.columns)
    _check(fits, v, N if axes is None else v)  # sums over axes take next to nothing
    if not few and axes is None and _first_active(v, N) < N:  # else all of them from the first round on
        return generate(block, R, tolerance, deadline, progress)
    thin = SPARSE_COST * block.columns.nnz <= v * N
    left = Dense(sparse.csr_array(block.columns.T.astype(np.float64))) if axes is None else Written(axes)
    columns = Dense((R @ block.columns.toarray()).T) if axes is None and not thin else Product(left, R.T)
    near = tolerance ** (2 / 3) if axes is None and v >= _LONG_FROM else 0.0  # its square is well below the tolerance
    state, lam, count = ascend(partial(ColumnState, columns, near), np.full(N, 1.0 / N), tolerance, deadline, 2000)
    upper, B = state.scaled
    rows = B @ R
    return Solution(rows.T @ rows, state.lower, upper, count, lam)


class CellState:
    """The dual where orbit o moves coordinate o of each part by a squared length, and no other coordinate.

    ``parts``: G_k (d_k x d_k) and the lengths (d_k,) of each. ``singular``: G_0 is 0 on one vector, and X stays so.
    """

    def __init__(self, parts: Sequence[tuple[Floats, Floats]], singular: bool, weights: Floats) -> None:
        self.t, self.q = 0.0, np.zeros(weights.size)
        self._singular, self._parts = singular, list[tuple[Floats, Floats, Floats, Floats]]()
        for G, lengths in parts:
            root = np.sqrt(weights[: len(G)] * lengths)
            s, V = eigh(root[:, None] * G * root)
            s = np.maximum(s, max(float(s[-1]), 1e-300) * FLOOR)
            if singular and not self._parts:
                s[0] = 0.0  # what rounding left of it is much beside weights of next to nothing
            self._parts.append((G, root, s, V))
            self.t += float(np.sqrt(s).sum())
            self.q[: len(G)] += np.einsum("ij,ij,j->i", V, V, np.sqrt(s)) / weights[: len(G)]

    def upper(self) -> float:
        """The error of X with unit diagonal; divided by max q where it is singular."""
        if self._singular:
            return self.t * float(self.q.max())
        scaled = [(root * np.sqrt(self.q[: len(G)]), (V / np.sqrt(s)) @ V.T * G) for G, root, s, V in self._parts]
        return sum(float(w @ inverse @ w) for w, inverse in scaled)

    def metrics(self) -> list[Floats]:
        """X_k, divided as for ``upper``."""
        scale = np.sqrt(np.full(self.q.size, self.q.max()) if self._singular else self.q)
        rows = [np.sqrt(np.sqrt(s))[:, None] * V.T / (root * scale[: len(G)]) for G, root, s, V in self._parts]
        return [np.asarray(own.T @ own) for own in rows]


def solve_cells(
    G: Floats, tolerance: float, deadline: float, start: Floats, *, mirror: bool = False, singular: bool = False
) -> Solution:
    """The optimum over single cells, X (N x N), for a Gram matrix G that is positive, or ``singular`` on one vector.

    ``mirror``: G is the same from both ends, but for rounding. ``start``: weights to begin with (N,).
    """
    N = len(G)
    whole: Csr = sparse.eye_array(N, format="csr")
    bases = [whole]
    if mirror and N > 3:
        sums, differences = ((whole + side * whole[::-1])[: N // 2] / np.sqrt(2.0) for side in (1.0, -1.0))
        bases = [sparse.csr_array(sparse.vstack([sums, whole[N // 2 : N - N // 2]])), differences]
    parts = [(np.asarray(B @ (B @ G).T), B.power(2).max(axis=1).toarray().ravel()) for B in bases]
    orbit = bases[0].sign()
    state, weights, steps = ascend(partial(CellState, parts, singular), orbit @ start, tolerance, deadline, 500)
    X = np.sum([B.T @ (B.T @ own).T for B, own in zip(bases, state.metrics(), strict=True)], axis=0)
    return Solution(X, state.t**2, state.upper(), steps, orbit.T @ (weights / orbit.sum(axis=1)))


def _check(fits: Callable[[float], bool] | None, v: int, N: int) -> None:
    if fits is not None and not fits(step_seconds(v, N)):
        raise LateError


def _inverse_congruence(Y: Floats) -> Callable[[Floats], Floats] | None:
    """X to M with Y^T M Y = X, for Y (v x v); None where its columns are dependent, as what units add may be."""
    if np.array_equal(Y, np.eye(len(Y))):
        return lambda X: X
    factors, pivots, _ = scipy.linalg.lapack.dgetrf(Y)
    size = np.abs(np.diag(factors))
    if size.min() <= ROUNDING * size.max():
        return None

    def back(X: Floats) -> Floats:
        left = scipy.linalg.lu_solve((factors, pivots), X.T, trans=1)
        return np.asarray(scipy.linalg.lu_solve((factors, pivots), left.T, trans=1))

    return back
