"""Column generation: the certified optimum over very many distinct columns.

At the optimum only some 10 m columns carry dual weight. The iteration runs on an active set;
a scan of all columns asks which have q_j > t, these join, columns of vanishing weight leave.
The lower bound t^2 of an active set is valid for the whole problem (weights of zero are weights);
the upper bound t max q takes its maximum over all columns. Memory: one float32 copy of
the columns (4 v N bytes) up to 256 MB, beyond that chunks are made anew in each scan.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from dpsql.arrays import Array, Floats, Sparse
from dpsql.linalg.inner import Dense
from dpsql.strategy.core.ascent import Low, Solution, ascend
from dpsql.strategy.core.reduce import Block

_SEED = 20_122
_CHUNK = 8192
_CACHE_BYTES = 2**28
_ROUNDS = 80


class _Columns:
    """All columns Y (v x N): scans of squared norms, and dense pieces."""

    def __init__(self, columns: Sparse) -> None:
        self._csc = sparse.csc_array(columns)
        v, N = self.shape = (int(columns.shape[0]), int(columns.shape[1]))
        self._dense: list[Array] | None = None
        if 4 * v * N <= _CACHE_BYTES:
            self._dense = [self._chunk(at) for at in range(0, N, _CHUNK)]

    def _chunk(self, at: int) -> Array:
        return np.asarray(self._csc[:, at : at + _CHUNK].astype(np.float32).toarray(order="F"))

    def squares(self, T: Floats) -> Floats:
        """||T y_j||^2 for every column, in single precision: good to about 1e-5."""
        N = self.shape[1]
        T32 = T.astype(np.float32)
        out = np.empty(N)
        for i, at in enumerate(range(0, N, _CHUNK)):
            part = T32 @ (self._dense[i] if self._dense is not None else self._chunk(at))
            out[at : at + _CHUNK] = np.einsum("ij,ij->j", part, part)
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
    rng = np.random.default_rng(_SEED)
    active = _spanning(Y, R, rng)
    lam = np.full(active.size, 1.0 / active.size)
    lower, upper, metric = 0.0, np.inf, np.eye(v)
    weights = np.zeros(Y.shape[1])
    steps, inner = 0, 0.05
    for round_ in range(_ROUNDS):
        U = Dense((R @ Y.some(active)).T)
        state, lam, count = ascend(lambda lam, U=U: Low(U, lam), lam, inner, deadline, 30)  # type: ignore[misc]
        steps += count
        q = Y.squares(state.half() @ R)
        t, top = state.t, float(q.max())
        if t * t > lower:
            lower = t * t
            weights[:] = 0.0
            weights[active] = lam
        if t * top < upper:
            upper, metric = t * top, state.metric() / top
        if progress is not None:
            progress(f"optimal: round {round_ + 1}, {active.size} columns, gap {upper / lower - 1:.2g}")
        if upper <= (1.0 + tolerance) * lower or monotonic() >= deadline:
            break
        excess = top / t - 1.0
        inner = max(0.4 * tolerance, min(0.05, 0.4 * excess))
        active, lam = _exchange(active, lam, q / t, excess, v, rng)
    return Solution(R.T @ metric @ R, lower, upper, steps, weights)


def _exchange(
    active: NDArray[np.int64], lam: Floats, ratio: Floats, excess: float, v: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Floats]:
    """Columns without weight that do not bind leave, violated ones join.

    The most violated columns resemble each other, so most of those that join are drawn at random,
    in proportion to the square of their violation: a third of the rounds of the greedy rule.
    """
    stay = (lam > 3e-3 * lam.max()) | (ratio[active] > 1.0)
    if np.count_nonzero(stay) < v:
        stay[:] = True
    active, lam = active[stay], lam[stay]
    ratio = ratio.copy()
    ratio[active] = 0.0
    worst = np.flatnonzero(ratio > 1.0 + 0.1 * excess)
    worst = worst[np.argsort(-ratio[worst], kind="stable")]
    greedy, drawn = worst[: v // 2 + 1], worst[v // 2 + 1 :]
    if drawn.size > 8 * v:
        chance = (ratio[drawn] - 1.0) ** 2
        drawn = rng.choice(drawn, size=8 * v, replace=False, p=chance / chance.sum())
    joined = np.concatenate([active, np.sort(greedy), np.sort(drawn)])
    fresh = np.full(joined.size - active.size, 0.3 * float(np.median(lam)))
    weights = np.concatenate([lam, fresh])
    return joined, weights / weights.sum()


def _spanning(Y: _Columns, R: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """A deterministic sample of columns that spans all v dimensions."""
    v, N = Y.shape
    active = np.sort(rng.choice(N, size=min(N, max(8 * v, 600)), replace=False))
    while True:
        Q, T, _ = linalg.qr(R @ Y.some(active), mode="economic", pivoting=True)
        diagonal = np.abs(np.diag(T))
        rank = int((diagonal > diagonal[0] * 1e-9).sum())
        if rank == v or active.size >= N:
            return np.asarray(active)
        left = R - Q[:, :rank] @ (Q[:, :rank].T @ R)
        missing = Y.squares(left)
        missing[active] = -1.0
        more = np.argpartition(-missing, min(N - 1, 4 * v))[: 4 * v]
        active = np.union1d(active, more)
