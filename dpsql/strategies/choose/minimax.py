"""The least largest variance of any query (objective "max"), with its certificate for Gaussian noise.

Over all Gaussian strategies the least of max_i ||w_i A^+||^2 max_j ||a_j||^2 is gamma_2(W)^2, the factorisation norm.
By duality, for weights w >= 0 of the queries and lambda >= 0 of the columns, each with sum 1,

    ||D_w^1/2 W Lambda^1/2||_*^2  <=  gamma_2(W)^2,    with equality at the best w and lambda:

the largest variance is at least the average under w, and the least average is E* of D_w^1/2 W, which every lambda
bounds from below (``dpsql.strategies.gaussian.optimal``). F(w, lambda) = ||D_w^1/2 W Lambda^1/2||_* is the minimum over
[[P, W], [W^T, X]] >= 0 of (sum w_i P_ii + sum lambda_j X_jj) / 2, so it is concave in both together.

With E and Y the queries and columns in basis coordinates (W = E Y), R^T R = E^T D_w E and R (Y Lambda Y^T) R^T = V
diag(s)^2 V^T: F = sum s, the strategy X = Y^T M Y has M = R^T V diag(1/s) V^T R and q_j = y_j^T M y_j, and query i has
the variance p_i = e_i^T M^-1 e_i. Then sum w_i p_i = sum lambda_j q_j = F, and max p max q is the upper bound. Both
weights are one vector of sum 1 with t = 2 F and the slopes (p, q), so the iteration of ``dpsql.strategies.core.ascent``
serves as it is: w <- w (p / t)^2, lambda <- lambda (q / t)^2, with Anderson mixing; its bound t^2 = 4 F^2 is at most
F^2 / (sum w sum lambda).

Blocks that share no column are planned apart: gamma_2 of a block diagonal matrix is the largest of its blocks'.
For products gamma_2 multiplies, as do the optima. Equal queries count once, with the larger weight.

Where entries are too many for this, and for Laplace noise, the total error of D_w^1/2 W is minimised in rounds,
w_i <- w_i v_i^2 for the variances v_i (w_i v_i for Laplace noise, where larger steps miss), and the best round
wins. With Gaussian noise each round's bound holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.errors import DataError
from dpsql.linalg.basis import coordinates
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.forms import dense, is_sparse
from dpsql.linalg.inner import Dense, Diagonal, Inner, Ranges
from dpsql.strategies.core.ascent import ascend
from dpsql.strategies.core.axes import Written, find_axes
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import Piece, finish, normalise
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.reduce import Block, cholesky, reduce_workload
from dpsql.strategies.core.simple import product_piece, single_rows
from dpsql.workloads.families.matrix import Workload

Total = Callable[[Workload, str], MatrixStrategy]
"""A selection by total error: (workload, method) to strategy."""

_ENTRIES = 2**25  # entries of E and of Y up to which queries and columns are weighed together
_DENSE_ENTRIES = 500_000  # of Y, up to which a step is quick anyway
_STEPS = 500
MOST_QUERIES = 2**23
_ROUNDS = 12  # of the minimisation in rounds; more gain little


@dataclass(frozen=True, eq=False)
class Minimax:
    """``metric`` M (v x v): X = Y^T M Y has largest diagonal 1; ``lower`` <= gamma_2^2 <= ``upper``."""

    metric: Floats
    lower: float
    upper: float
    iterations: int


class Balance:
    """State of the iteration for weights of the queries (first entries) and of the columns."""

    def __init__(self, queries: Inner, columns: Inner, weights: Floats) -> None:
        w, lam = weights[: queries.shape[0]], weights[queries.shape[0] :]
        R = cholesky(queries.gram(w))
        squares, V = scipy.linalg.eigh(R @ columns.gram(lam) @ R.T, driver="evd", check_finite=False)
        top = max(float(squares[-1]), 1e-300)
        s = np.sqrt(np.maximum(squares, top * 1e-15))
        self._half = (V / np.sqrt(s)).T @ R
        self.t = 2.0 * float(s.sum())
        lengths = columns.variances(self._half.T)
        variances = queries.variances(scipy.linalg.solve_triangular(R, V * np.sqrt(s), check_finite=False))
        self.q = np.concatenate([variances, lengths])
        self._largest = float(variances.max()), float(lengths.max())
        # Rounding moves no eigenvalue farther than a few eps times the largest: what it may have added is taken off.
        slack = (64.0 + 4.0 * s.size) * np.finfo(np.float64).eps * top
        self.lower = float(np.sqrt(np.maximum(squares - slack, 0.0)).sum()) ** 2 / float(w.sum()) / float(lam.sum())

    def upper(self) -> float:
        return self._largest[0] * self._largest[1]

    def metric(self) -> Floats:
        """M, scaled so that the largest q is 1."""
        return np.asarray(self._half.T @ self._half) / self._largest[1]


def balance(queries: Inner, columns: Inner, tolerance: float, deadline: float) -> Minimax:
    """The least largest variance of ``queries`` E (m x v) over ``columns`` Y^T (N x v), to a gap of ``tolerance``.

    Cost a step: an eigendecomposition of order v, two v x v x N products and one pass over the queries'
    entries; 3 to 40 steps. Stops at ``deadline`` (monotonic seconds) with the gap reached.
    """
    m, N = queries.shape[0], columns.shape[0]
    start = np.concatenate([np.full(m, 0.5 / m), np.full(N, 0.5 / N)])
    state, _, count = ascend(lambda both: Balance(queries, columns, both), start, tolerance, deadline, _STEPS)
    return Minimax(state.metric(), state.lower, state.upper(), count)


@dataclass(frozen=True, eq=False)
class Weighted(Inner):
    """The inner factor diag(sqrt(weights)) F: squared errors of query i count ``weights[i]`` times."""

    inner: Inner
    weights: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    def gram(self, weights: Floats | None = None) -> Floats:
        return self.inner.gram(self.weights if weights is None else self.weights * weights)

    def matrix(self) -> Matrix:
        entries = self.inner.matrix()
        root = np.sqrt(self.weights)
        return sparse.csr_array(sparse.diags_array(root) @ entries) if is_sparse(entries) else root[:, None] * entries

    def coupling(self) -> Ints:
        return self.inner.coupling()


def reweighted(W: Workload, weights: Floats) -> Workload:
    """diag(sqrt(weights)) W: its total squared error is the weighted sum of the squared errors of W's queries."""
    plain = isinstance(W.inner, Diagonal)
    scaled = Diagonal(W.scale * np.sqrt(weights)) if plain else Weighted(W.inner, weights)
    exact = None if W.exact is None else np.sqrt(weights)[:, None] * W.exact
    return Workload(W.span, scaled, W.contributions, W.groups, W.name, (), exact, W.units)


def check_size(queries: int) -> None:
    """DataError where there are too many queries to weigh each."""
    if queries > MOST_QUERIES:
        raise DataError(
            f"strategy: the largest error weighs each of {queries:,} queries by itself, at most {MOST_QUERIES:,}; "
            "use objective='total', or ask fewer queries"
        )


def minimise_largest(
    start: MatrixStrategy,
    method: str,
    tolerance: float,
    deadline: float,
    total: Total,
    say: Callable[[str], None],
) -> MatrixStrategy:
    """The strategy whose largest variance of a query is least, from ``start``, that of least total error.

    The largest variance is never above that of ``start``, whose planned workload and noise it is for.

    ``Strategy.gap`` is then that of the largest variance, from the integers: at most ``tolerance`` for Gaussian noise
    with method "auto" or "optimal" unless W has too many entries or ``deadline`` (monotonic seconds) passed.
    Other methods, and all with Laplace noise, are improved by reweighting the queries; Laplace has no certificate.
    """
    W, noise = start.planned, start.noise
    found = [(start.largest(W), start.method, start)]
    lower = _least(start) / W.shape[0]
    say(f"{start.method}: largest error {found[0][0]:.6g}")
    joint = noise == "gaussian" and method in ("auto", "optimal") and (W.units is None or W.units.listable)
    if joint:
        try:
            pieces, proven, reached = _solve(W, 0.9 * tolerance, deadline)
        except DataError:
            joint = False  # too many entries: in rounds, below
        else:
            pieces, error = normalise(pieces, noise)
            # Equal queries were merged at their larger weight, so the total is that of another workload than W.
            strategy = finish(replace(W), "minimax", noise, pieces, error, tolerance, None, ())
            found.append((strategy.largest(W), "minimax", strategy))
            lower = max(lower, proven)
            say(f"minimax: largest error {found[-1][0]:.6g}, at least {lower:.6g} ({reached:.6g} before rounding)")
    if not joint:
        # Weights do not change the identity, only which strategy is best: then all methods are tried again.
        again = method if noise == "gaussian" or start.method == "identity" else start.method
        rounds, proven = _rounds(W, start, again, tolerance, deadline, total, say)
        found += rounds
        lower = max(lower, proven)
    _, name, best = min(found, key=lambda f: f[0])
    return replace(
        best,
        method=name,
        expected=best.error(W),
        lower_bound=lower if noise == "gaussian" else None,
        considered=tuple((label, largest) for largest, label, _ in found),
        planned=W,
        objective="max",
    )


def _least(strategy: MatrixStrategy) -> float:
    return strategy.lower_bound or 0.0


def _rounds(
    W: Workload,
    start: MatrixStrategy,
    method: str,
    tolerance: float,
    deadline: float,
    total: Total,
    say: Callable[[str], None],
) -> tuple[list[tuple[float, str, MatrixStrategy]], float]:
    """Minimise the total error of D_w^1/2 W again and again; the best of it, and what its bounds prove.

    A bound on the weighted total holds for the largest variance, since the weights add up to 1.
    """
    m = W.shape[0]
    weights = np.full(m, 1.0 / m)
    now, largest = start, start.largest(W)
    best: tuple[float, str, MatrixStrategy] | None = None
    lower, idle = _least(start) / m, 0
    for _ in range(_ROUNDS):
        if monotonic() >= deadline or idle == 2 or (lower and largest <= (1.0 + tolerance) * lower):
            break
        variances = now.variances(W)
        weights = weights * variances ** (2.0 if start.noise == "gaussian" else 1.0)
        weights = weights / float(weights.sum())
        try:
            now = total(reweighted(W, weights), method)
            found = now.largest(W)
        except DataError:
            break  # the reweighted workload has lost the structure that made it small enough
        lower = max(lower, _least(now))
        idle = 0 if found < largest * (1.0 - 1e-3) else idle + 1
        if found < largest:
            largest, best = found, (found, f"{now.method}, reweighted", now)
            say(f"{best[1]}: largest error {largest:.6g}")
    return [] if best is None else [best], lower


def _solve(W: Workload, tolerance: float, deadline: float) -> tuple[tuple[Piece, ...], float, float]:
    """(pieces of sensitivity 1, lower, upper); factors and blocks apart. DataError above the cap on entries."""
    if len(W.factors) > 1 and W.inner.diagonal() is None:
        parts, lower, upper = [], 1.0, 1.0
        for factor in W.factors:
            pieces, low, high = _solve(factor, tolerance / len(W.factors), deadline)
            parts.append(pieces)
            lower, upper = lower * low, upper * high
        return (product_piece(W, parts),), lower, upper
    W = _distinct(W)
    found: list[Piece] = []
    lower = upper = 0.0
    for block in reduce_workload(W):
        if block.solo:
            piece = single_rows(block)
            least = float((block.gram / piece.root**2).max())
            found.append(piece)
            lower, upper = max(lower, least), max(upper, least)
            continue
        rows = W.inner.shape[1] if isinstance(W.inner, Ranges) else W.shape[0]
        if block.rank * max(rows, block.columns.shape[1]) > _ENTRIES:
            raise DataError("strategy: too many queries and cells to weigh each; use objective='total'")
        solution = balance(_queries(block, W), _columns(block), tolerance, deadline)
        piece = Piece(block.basis, cholesky(solution.metric), block.columns, block.gram)
        found.append(spread(piece, block.copies))
        lower, upper = max(lower, solution.lower), max(upper, solution.upper)
    return tuple(found), lower, upper


def _columns(block: Block) -> Inner:
    """Y^T: as sums of few parts where columns are many and that is known to be short, else written out."""
    axes = find_axes(block.columns) if block.rank * block.columns.shape[1] > _DENSE_ENTRIES else None
    return Dense(block.columns.T.toarray().astype(np.float64)) if axes is None else Written(axes)


def _distinct(W: Workload) -> Workload:
    """W with each row once, up to sign, at its largest scale; W itself where it is not kept row by row."""
    if not isinstance(W.inner, Diagonal):
        return W
    found = distinct_columns(sparse.csr_array(W.span.T), up_to_sign=True)
    used = found.label >= 0
    scale = np.zeros(found.keep.size)
    np.maximum.at(scale, found.label[used], np.abs(W.inner.scale[used]))
    alive = scale > 0
    if not alive.any():
        raise DataError("strategy: every query of the workload is zero; nothing is to be measured")
    span = sparse.csr_array(W.span[found.keep[alive]])
    return Workload(span, Diagonal(scale[alive]), W.contributions, None, W.name, units=W.units)


def _queries(block: Block, W: Workload) -> Inner:
    """The queries of W that concern one block, in coordinates of its basis."""
    seen = (abs(block.basis).sum(axis=0) > 0).astype(np.int64)
    mine = np.flatnonzero(np.asarray(abs(W.span) @ seen) > 0)
    coords = dense(coordinates(sparse.csr_array(W.span[mine]), block.basis))
    if isinstance(W.inner, Diagonal):
        return Diagonal(W.inner.scale[mine]).times(coords)
    held = np.zeros((W.span.shape[0], block.rank))
    held[mine] = coords
    return W.inner.times(held).without_zeros()
