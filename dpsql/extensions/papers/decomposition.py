"""The low-rank mechanism as published: W = B L with column-wise L1-bounded L, by an augmented Lagrangian.

Yuan et al. 2012: minimise tr(B^T B) subject to W = B L (or ||W - B L||_F <= gamma) and columns of L of L1
norm at most 1 (Eq. 7 and 8). Algorithm 1 alternates B in closed form (Eq. 9) with L by Algorithm 2, Nesterov's
projected gradient for Eq. 10 with column-wise projection on the L1 ball (Eq. 11); the penalty beta doubles
every ten rounds. L x + Laplace noise is measured, B applied to it.

Departures: (1) the step of Algorithm 2 is 1 / (beta ||B||_2^2), the Lipschitz constant itself, instead of a search
by doubling; (2) momentum restarts where the objective rises; (3) every fifth round rows of L that the projection
made vanish are replaced by the main directions of the residual, as many as L lacks of 1.2 times the rank of W:
without it L loses that rank on most workloads of full rank and W = B L is never reached; (4) a strategy for release
is L projected on the row space of W, reconstructed by least squares, so answers are unbiased: gamma > 0 leaves a
bias of up to gamma ||x||_2 that no public figure bounds, and is for study only. ``Decomposition`` reports
the coefficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from dpsql.common.arrays import Floats
from dpsql.errors import DataError

_SEED = 20_120
_ROUNDS = 120
_INNER = 4
_STEPS = 12
_REVIVE = 5
_DEAD = 1e-3
_ROOM = 1.2  # times the rank of W: what their section 6.1 takes for r


@dataclass(frozen=True, eq=False)
class Decomposition:
    """W ~ B L: ``left`` B (m x r), ``right`` L (r x n), columns of L of L1 norm at most 1.

    ``residual`` = ||W - B L||_F: the squared error is at most 2 tr(B^T B) / epsilon^2 + residual^2 sum_i x_i^2
    (Thm 3, proved with gamma^2), whose second coefficient is public and whose sum is not.
    """

    left: Floats
    right: Floats
    residual: float
    rounds: int


def project_columns(U: ArrayLike) -> Floats:
    """The nearest matrix whose columns have L1 norm at most 1 (Duchi et al. 2008; Eq. 11). Cost O(r n log r)."""
    values = np.asarray(U, dtype=np.float64)
    size = np.abs(values)
    long = np.flatnonzero(size.sum(axis=0) > 1.0)
    out = values.copy()
    if long.size == 0:
        return out
    part = size[:, long]
    descending = -np.sort(-part, axis=0)
    sums = np.cumsum(descending, axis=0) - 1.0
    k = np.arange(1, part.shape[0] + 1)[:, None]
    count = (descending > sums / k).sum(axis=0)
    theta = sums[count - 1, np.arange(long.size)] / count
    out[:, long] = np.sign(values[:, long]) * np.maximum(part - theta, 0.0)
    return out


def decompose(
    W: ArrayLike,
    rank: int | None = None,
    gamma: float = 1e-3,
    rounds: int = _ROUNDS,
    deadline: float = np.inf,
    start: ArrayLike | None = None,
) -> Decomposition:
    """Algorithm 1 of Yuan et al. 2012 for W (m x n); stops at ||W - B L||_F <= gamma, ``rounds`` or ``deadline``.

    ``rank`` r: columns of B, 1.2 times the rank of W rounded up unless given (their section 6.1). ``start``:
    L to begin with; else W's singular vectors as in their Lemma 3, with seeded rows beyond the rank.
    Cost a round O(r^2 (m + n) + r m n). Raises DataError for entries that are not finite, r < 1 or gamma < 0.
    """
    M = np.asarray(W, dtype=np.float64)
    if M.ndim != 2 or M.size == 0 or not np.isfinite(M).all():
        raise DataError("strategy: the low-rank mechanism needs a finite matrix with queries and cells")
    if not gamma >= 0 or (rank is not None and rank < 1) or rounds < 1:
        raise DataError("strategy: the low-rank mechanism needs gamma >= 0, rank >= 1 and rounds >= 1")
    _, s, Vt = linalg.svd(M, full_matrices=False)
    own = int((s > s[0] * 1e-10).sum()) if s[0] > 0 else 1
    r = int(np.ceil(_ROOM * own)) if rank is None else int(rank)
    scale = float(np.sqrt((s**2).sum() / own))
    target = M / scale
    L = _first(Vt[:own], r) if start is None else project_columns(start)
    multiplier, beta = np.zeros_like(target), 1.0
    B = np.zeros((M.shape[0], L.shape[0]))
    residual, k = np.inf, 0
    while k < rounds and monotonic() < deadline:
        k += 1
        weighted = beta * target + multiplier
        for _ in range(_INNER):
            B = linalg.solve(beta * L @ L.T + np.eye(L.shape[0]), L @ weighted.T, assume_a="pos").T
            L = nesterov(beta * (B.T @ B), B.T @ weighted, L, _STEPS)
        rest = target - B @ L
        residual = float(np.linalg.norm(rest)) * scale
        if residual <= gamma:
            break
        if k % 10 == 0:
            beta *= 2.0
        multiplier = multiplier + beta * rest
        L = _revived(L, rest, min(L.shape[0], int(np.ceil(_ROOM * own)))) if k % _REVIVE == 0 else L
    return Decomposition(B * scale, L, residual, k)


def nesterov(Q: Floats, P: Floats, L: Floats, steps: int) -> Floats:
    """Algorithm 2: min tr(L^T Q L) / 2 - tr(P^T L) over columns of L1 norm at most 1, from ``L``; gradient Q L - P."""
    lipschitz = float(linalg.eigvalsh(Q)[-1])
    if lipschitz <= 0.0:
        return L
    last, momentum = L, 1.0
    for _ in range(steps):
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        S = L + ((momentum - 1.0) / following) * (L - last)
        new = project_columns(S - (Q @ S - P) / lipschitz)
        if float(np.sum((S - new) * (new - L))) > 0.0:
            following, new = 1.0, project_columns(L - (Q @ L - P) / lipschitz)
        if float(np.linalg.norm(new - L)) < 1e-12 * L.size:
            return new
        last, L, momentum = L, new, following
    return L


def _revived(L: Floats, rest: Floats, needed: int) -> Floats:
    """L with rows that the projection made (nearly) zero replaced by the main directions of the residual.

    Such a row has a zero column in B and a zero gradient from then on, so the rank never comes back. As many are
    replaced as L lacks of the rank ``needed``, 1.2 times that of W: rows beyond it may vanish, and
    making them anew every few rounds would keep the iteration from settling.
    """
    s = linalg.svd(L, full_matrices=False)[1]
    dead = needed - int((s >= _DEAD * s[0]).sum())
    if dead <= 0:
        return L
    weakest = np.argsort(np.abs(L).sum(axis=1), kind="stable")[:dead]
    rows = linalg.svd(rest, full_matrices=False)[2][:dead]
    out = L.copy()
    out[weakest[: rows.shape[0]]] = rows / np.abs(rows).max(axis=1, keepdims=True) * 0.25
    return project_columns(out)


def _first(V: Floats, r: int) -> Floats:
    """Lemma 3: right singular vectors over r^1/2; rows beyond the rank repeat mixtures of them."""
    if r <= V.shape[0]:
        rows = V[:r]
    else:
        mix = np.random.default_rng(_SEED).standard_normal((r - V.shape[0], V.shape[0])) / np.sqrt(V.shape[0])
        rows = np.vstack([V, mix @ V])
    return np.asarray(rows / np.abs(rows).sum(axis=0).max())
