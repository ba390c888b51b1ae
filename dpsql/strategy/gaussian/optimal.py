"""The least error of any Gaussian matrix mechanism, with its certificate.

Primal: E* = min tr(G X^+) over X >= 0 with range(G) inside range(X) and diag(X) <= 1
(Li and Miklau 2011, Problem 2.1, extended to rank-deficient strategies as Li and Miklau
2013, section 3). Its dual, our derivation: for lambda >= 0 with sum 1,

    (tr (Lambda^1/2 G Lambda^1/2)^1/2)^2 <= E*,

since for every feasible X, tr(G X^+) >= tr(G X^+) sum_j lambda_j X_jj and by Cauchy-Schwarz
tr(Lambda X) tr(G X^+) >= (tr (Lambda^1/2 G Lambda^1/2)^1/2)^2. Uniform lambda is the SVD bound
(Li and Miklau 2013, Thm 4.2). With U^T U = G (U is r x N), K = U Lambda U^T and t = tr K^1/2 the
lower bound is t^2; X = U^T K^-1/2 U with q = diag X gives the upper bound t max q, for
sum lambda_j q_j = t. Where X has full rank, scaling it to unit diagonal is a second upper
bound, right to second order. lambda <- lambda (q / t)^2 is alternating maximisation of t (so t
never falls), accelerated by Anderson mixing of depth 8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpsql.arrays import Floats
from dpsql.linalg.inner import Dense, Inner, Product
from dpsql.strategy.core.ascent import Full, Low, Solution, ascend
from dpsql.strategy.core.axes import Written, find_axes
from dpsql.strategy.core.reduce import Block
from dpsql.strategy.core.time_left import LateError, step_seconds
from dpsql.strategy.gaussian.exchangeable import EXACTLY, classes_of, solve_classes
from dpsql.strategy.gaussian.generation import generate

# Entries of U up to which every step takes all columns (32 MB); beyond, axes or column generation.
_DENSE_ENTRIES = 4_000_000
_CLASSES_FROM = 256  # columns from which classes of alike ones are looked for


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
    if v == N:
        Y = block.columns.toarray().astype(np.float64)
        plain = np.array_equal(Y, np.eye(v))
        G = block.gram if plain else Y.T @ block.gram @ Y
        held = classes_of(G, EXACTLY) if v >= _CLASSES_FROM else None
        if held is not None:
            _check(fits, held.sizes.size, held.sizes.size)
            X, lower, upper, lam, count = solve_classes(held, tolerance, deadline, centred=False)
            return Solution(X if plain else _moved_back(X, Y), lower, upper, count, lam)
        _check(fits, v, N)
        symmetric = bool(np.array_equal(G, G[::-1, ::-1]))
        state, lam, count = ascend(lambda lam: Full(G, lam, symmetric), np.full(N, 1.0 / N), tolerance, deadline, 500)
        X = state.metric()
        return Solution(X if plain else _moved_back(X, Y), state.t**2, state.upper(), count, lam)
    R = block.factor()
    if v * N <= _DENSE_ENTRIES:
        _check(fits, v, N)
        U = R @ block.columns.toarray().astype(np.float64)
        return _over(Dense(U.T), R, tolerance, deadline)
    axes = find_axes(block.columns)
    _check(fits, v, N if axes is None else v)  # sums over axes take next to nothing
    if axes is not None:
        return _over(Product(Written(axes), R.T), R, tolerance, deadline)
    return generate(block, R, tolerance, deadline, progress)


def _over(columns: Inner, R: Floats, tolerance: float, deadline: float) -> Solution:
    """``solve`` by steps that take all ``columns`` U^T (N x v), U = R Y."""
    N = columns.shape[0]
    state, lam, count = ascend(lambda lam: Low(columns, lam), np.full(N, 1.0 / N), tolerance, deadline, 2000)
    return Solution(R.T @ (state.metric() / state.q.max()) @ R, state.t**2, state.upper(), count, lam)


def _check(fits: Callable[[float], bool] | None, v: int, N: int) -> None:
    if fits is not None and not fits(step_seconds(v, N)):
        raise LateError


def _moved_back(X: Floats, Y: Floats) -> Floats:
    """M with Y^T M Y = X, for Y (v x v)."""
    return np.asarray(np.linalg.solve(Y.T, np.linalg.solve(Y.T, X.T).T))
