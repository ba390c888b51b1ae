"""p-Identity strategies: every cell, and a few weighted sums of cells, for pure epsilon.

A = [I; Theta] D with Theta (p x N) >= 0 and D = diag(1 / (1 + column sums of Theta)), so every
column of A has L1 norm 1 (McKenna, Miklau, Hay and Machanavajjhala 2018, for the class). With
C = D^-1, S = I + Theta Theta^T and T = S^-1 Theta the error is, by Woodbury's identity,

    f = tr(G C (I + Theta^T Theta)^-1 C) = sum_j G_jj c_j^2 - tr(S^-1 Theta C G C Theta^T),

and with X = T C G C its gradient is -2 X (I - Theta^T T) plus, in every row of column j,
2 (G_jj c_j - sum_i Theta_ij X_ij / c_j): one product with G a step, O(p N^2), or O(p N r)
through a root of G. The problem is not convex; the starts decide, and they are fixed.

Z -> Z G faster than by the N^2 entries of a Gram matrix G, where G has one of three structures.

A product workload over axes of sizes d_i has G = G_1 x ... x G_k: a row of Z costs N sum d_i. All ranges, all
prefixes and sums of such have a G whose second differences down a column vanish off the diagonal:
G_(i-1)j - 2 G_ij + G_(i+1)j = 0 for j != i. Then y = G z has the second differences s_i z_i, s_i the diagonal ones, and
two known ends, y_1 = G_1 z and y_N = G_N z: one tridiagonal system, some 10 N a row. Over many cells ranges of any kind
have few mixed differences (``dpsql.strategies.pure.on_line``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from itertools import pairwise
from math import prod
from time import monotonic
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.common.numerics import ROUNDING
from dpsql.linalg.forms import kron
from dpsql.strategies.core.reduce import inverse_of
from dpsql.strategies.pure import on_line
from dpsql.strategies.pure.hierarchical import best_tree, rows_of

Times = Callable[[Floats], Floats]

_SMALL = 64  # cells up to which the plain product is as fast


class Quick(NamedTuple):
    """Z -> Z G for any number of rows, ``cost`` multiplications a row; ``ranges``: G is that of ranges, or like it."""

    times: Times
    cost: float
    ranges: bool = False


def gram_times(G: Floats, shape: tuple[int, ...] = ()) -> Quick | None:
    """None where G shows no such structure.

    ``shape``: axes that G may be a product over. The structure is checked on all entries. Cost O(N^2).
    """
    N = G.shape[0]
    if N <= _SMALL:
        return None
    if len(shape) > 1 and prod(shape) == N:
        axes = _axes(G, shape)
        if axes is not None:
            return Quick(_along(axes), float(N * sum(shape)))
    bend = G[:-2] - 2.0 * G[1:-1] + G[2:]
    at = np.arange(N - 2)
    s = bend[at, at + 1].copy()
    bend[at, at + 1] = 0.0
    if np.abs(bend).max() <= ROUNDING * np.abs(s).max():
        return Quick(_tridiagonal(G[0].copy(), G[-1].copy(), s), 20.0 * N, ranges=True)
    M = on_line.mixed_differences(G) if N >= on_line.FROM else None
    return None if M is None else Quick(partial(on_line.times, M), 20.0 * N + M.nnz, ranges=True)


def _axes(G: Floats, shape: tuple[int, ...]) -> list[Floats] | None:
    """Factors of G over the axes, None where G is no such product."""
    corner = float(G[0, 0])
    if corner <= 0:
        return None
    full = G.reshape(shape + shape)
    k, found = len(shape), []
    for i in range(k):
        index: list[int | slice] = [0] * (2 * k)
        index[i] = index[k + i] = slice(None)
        found.append(np.array(full[tuple(index)]) / (corner if i else 1.0))
    product = reduce(kron, found)
    return found if np.abs(product - G).max() <= ROUNDING * np.abs(G).max() else None


def _along(axes: list[Floats]) -> Times:
    shape = tuple(a.shape[0] for a in axes)

    def times(Z: Floats) -> Floats:
        out = Z.reshape(-1, *shape)
        for i, axis in enumerate(axes):
            out = np.moveaxis(np.tensordot(out, axis, axes=(i + 1, 0)), -1, i + 1)
        return np.ascontiguousarray(out).reshape(Z.shape)

    return times


def _tridiagonal(first: Floats, last: Floats, s: Floats) -> Times:
    bands = np.vstack([np.full(s.size, -1.0), np.full(s.size, 2.0)])
    factor = scipy.linalg.cholesky_banded(bands)

    def times(Z: Floats) -> Floats:
        out = np.empty_like(Z)
        out[:, 0], out[:, -1] = Z @ first, Z @ last
        right = -(Z[:, 1:-1] * s)
        right[:, 0] += out[:, 0]
        right[:, -1] += out[:, -1]
        out[:, 1:-1] = scipy.linalg.cho_solve_banded((factor, False), right.T, check_finite=False).T
        return out

    return times


_SEED = 20_180
_MOST_ROWS = 128
HOPEFUL = 2.0  # no start gains so large a factor after its share of the steps
_FAR, _FIRST = 3.0, 20  # nor one so large after so many of its values


class Objective:
    """f and its gradient for G = U^T U (U r x N) or G (N x N) itself, scaled to f = 1 at Theta = 0.

    ``sizes`` (N,): where a column of Theta stands for so many alike cells, G has the totals of their entries, and
    ``diagonal`` (N,) the sums of theirs on the diagonal; None where each column is one cell.
    """

    def __init__(
        self,
        G: Floats | None,
        U: Floats | None,
        shape: tuple[int, ...] = (),
        sizes: Floats | None = None,
        diagonal: Floats | None = None,
    ) -> None:
        """``shape``: the sizes of the axes of a product workload, whose G may be a product too."""
        self._G, self._U, self._sizes = G, U, sizes
        self._quick = None if G is None else gram_times(G, shape)
        if diagonal is not None:
            self.diagonal = diagonal
        elif G is not None:
            self.diagonal = np.diag(G).copy()
        else:
            assert U is not None  # noqa: S101 - one of the two is given by construction
            self.diagonal = np.einsum("ij,ij->j", U, U)
        self.N = self.diagonal.size
        self.unit = float(self.diagonal.sum())
        self.cost = float(self.N * self.N if U is None else 2 * U.size)
        if self._quick is not None:
            self.cost = self._quick.cost

    @property
    def ranges(self) -> bool:
        """Is G that of ranges over many cells?"""
        return self._quick is not None and self._quick.ranges and self.N >= on_line.FROM

    def times(self, Z: Floats) -> Floats:
        if self._quick is not None:
            return self._quick.times(Z)
        if self._G is not None:
            return np.asarray(Z @ self._G)
        assert self._U is not None  # noqa: S101
        return np.asarray((Z @ self._U.T) @ self._U)

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        Theta = flat.reshape(-1, self.N)
        c = 1.0 + Theta.sum(axis=0)
        S = self._counted(Theta) @ Theta.T
        S.flat[:: S.shape[0] + 1] += 1.0
        inverse = inverse_of(S)
        T = inverse @ Theta  # S >= I: no less exact, in half the time
        X = self.times(T * c) * c
        f = float(self.diagonal @ c**2) - float(np.einsum("ij,ij->", X, Theta))
        slope = 2.0 * (self.diagonal * c - np.einsum("ij,ij->j", Theta, X) / c)
        gradient = slope[None, :] - 2.0 * (X - (X @ Theta.T) @ self._counted(T))
        return f / self.unit, (gradient / self.unit).ravel()

    def _counted(self, Z: Floats) -> Floats:
        return Z if self._sizes is None else Z * self._sizes


def tree(N: int, p: int) -> Floats:
    """p x N: sums of 2, 4, 8, ... equal blocks of cells in their order."""
    out = np.zeros((p, N))
    row, blocks = 0, 2
    while row < p:
        edges = np.linspace(0, N, blocks + 1).round().astype(int)
        for a, b in pairwise(edges):
            if row < p:
                out[row, a:b] = 1.0
                row += 1
        blocks *= 2
    return out


def starts(N: int, p: int) -> list[Floats]:
    """Deterministic starting Theta (p x N): block sums of a tree with some noise, and noise alone."""
    noise = np.random.default_rng(_SEED).random((p, N))
    return [0.5 * tree(N, p) + 0.05 * noise, noise]


def row_counts(N: int) -> tuple[int, int]:
    """Numbers of rows that are tried: N / 16 within 8 and 64, and half of it."""
    p = int(np.clip(N // 16, min(N, 8), 64))
    return p, max(1, p // 2)


def weighted_tree(G: Floats) -> Floats:
    """The sums of the hierarchy of best branching and level weights (``dpsql.strategies.pure.hierarchical``), over
    single cells of weight 1: a start that knows the workload. At most 128 rows, the longest.
    """
    partitions, w = best_tree(G, "laplace")
    A = rows_of(partitions, w.tolist(), "laplace")
    sums = A[np.count_nonzero(A, axis=1) > 1] / float(w[-1])
    order = np.argsort(-np.count_nonzero(sums, axis=1), kind="stable")[:_MOST_ROWS]
    noise = np.random.default_rng(_SEED).random((order.size, G.shape[0]))
    return np.asarray(sums[order] + 0.01 * noise)


def search(
    objective: Objective, G: Floats, deadline: float, work: float, rival: float = np.inf
) -> tuple[float, Floats]:
    """(error at sensitivity 1, Theta): the best of a race of starts.

    The number of steps follows from ``work`` (multiplications), not from a clock, so a plan is the same on
    every machine; ``deadline`` (monotonic seconds) is for those who set one. ``G`` (N x N) is the Gram matrix. The
    weighted tree, and where work suffices starts of both kinds and two numbers of rows, share half of the
    work; the best of them takes the rest. Of ranges over many cells it is the best of the hats, with less of it. The
    search ends after a start that is far above the error ``rival``, or in its midst.
    """
    if objective.ranges:
        return _from_hats(objective, deadline, work)
    N, rival = objective.N, min(rival, objective.unit)
    wide, narrow = row_counts(N)
    total = work / _step(objective, wide)
    grown = weighted_tree(G)
    if total < 100:
        runners = [grown, starts(N, narrow)[0]]
    elif total < 600:
        runners = [grown, starts(N, narrow)[1]]
    else:
        runners = [grown, *starts(N, wide), *starts(N, narrow)]
    runners = [first for first in runners if first.shape[0]]  # the best tree may be the cells alone
    best: tuple[float, Floats] = (1.0, np.zeros((0, N)))
    share = 0.5 / len(runners)
    for first in runners:
        limit = int(np.clip(share * work / _step(objective, first.shape[0]), 20, 120))
        value, Theta = optimise(objective, first, deadline, limit, hopeless=_FAR * rival / objective.unit)
        if value < best[0]:
            best = (value, Theta)
        if min(value, best[0]) * objective.unit > HOPEFUL * rival:
            return best[0] * objective.unit, best[1]
    if best[1].shape[0]:
        limit = int(np.clip(0.5 * work / _step(objective, best[1].shape[0]), 20, 2000))
        value, Theta = optimise(objective, best[1], deadline, limit)
        if value < best[0]:
            best = (value, Theta)
    return best[0] * objective.unit, best[1]


def _from_hats(objective: Objective, deadline: float, work: float) -> tuple[float, Floats]:
    """As ``search``: a few steps from the best of the hats and from the best of a fifth fewer, and more from one."""
    held: list[tuple[float, on_line.Hats]] = []
    for hats in on_line.starts(objective.N):
        held.append((objective(hats.Theta.ravel())[0], hats))
        if monotonic() > deadline:
            break
    held.sort(key=lambda one: one[0])
    fewer = [one for one in held if one[1].Theta.shape[0] < 0.8 * held[0][1].Theta.shape[0]]
    best: tuple[float, Floats] = (1.0, np.zeros((0, objective.N)))
    free = np.zeros(0, dtype=bool)
    for _, (first, may) in (held[0], *fewer[:1]):
        value, Theta = optimise(objective, first, deadline, _steps(objective, may, 0.05 * work, 10, 20), may)
        if value < best[0]:
            best, free = (value, Theta), may
    if free.size:
        found = optimise(objective, best[1], deadline, _steps(objective, free, 0.12 * work, 25, 200), free)
        best = min(best, found, key=lambda one: one[0])
    return best[0] * objective.unit, best[1]


def _steps(objective: Objective, free: NDArray[np.bool_], work: float, least: int, most: int) -> int:
    return int(np.clip(work / _step(objective, free.shape[0], int(free.sum())), least, most))


def _step(objective: Objective, p: int, free: int | None = None) -> float:
    """Multiplications of one step with p rows; the minimiser's own count as 1,500 for each of ``free`` numbers."""
    each = p * objective.N if free is None else free
    return 2.0 * p * objective.cost + 12.0 * p * p * objective.N + 1500.0 * each


def optimise(
    objective: Callable[[Floats], tuple[float, Floats]],
    first: Floats,
    deadline: float,
    limit: int = 500,
    free: NDArray[np.bool_] | None = None,
    hopeless: float = np.inf,
) -> tuple[float, Floats]:
    """(f, Theta) from one start by L-BFGS-B with Theta >= 0, 0 but for ``free``; stops at ``deadline`` (monotonic).

    Stops, too, where its first values are all above ``hopeless``.
    """
    values, best = 0, (np.inf, first)
    whole, places = np.zeros(first.size), slice(None) if free is None else np.flatnonzero(free)

    def watched(flat: Floats) -> tuple[float, Floats]:
        nonlocal best, values
        whole[places] = flat
        value, gradient = objective(whole)
        if value < best[0]:
            best = value, whole.copy()
        values += 1
        if monotonic() > deadline or (values == _FIRST and best[0] > hopeless):
            raise _OutOfTimeError
        return value, gradient[places]

    # A step so long that I + Theta Theta^T is singular in floats ends the race of this start, too.
    with suppress(_OutOfTimeError, scipy.linalg.LinAlgError):
        scipy.optimize.minimize(
            watched,
            first.ravel()[places],
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(0.0, np.inf),
            options={"maxiter": limit, "maxfun": 2 * limit, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-8},
        )
    return float(best[0]), np.asarray(best[1]).reshape(first.shape)


class _OutOfTimeError(Exception):
    """The deadline passed inside the minimiser, or there is no hope."""


def root_of(Theta: Floats) -> Floats:
    """A = [I; Theta] D ((N + p) x N), every column of L1 norm 1."""
    A = np.vstack([np.eye(Theta.shape[1]), Theta])
    return np.asarray(A / A.sum(axis=0))
