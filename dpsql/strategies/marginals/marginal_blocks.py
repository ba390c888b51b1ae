"""Which marginals to measure for a batch of marginals under pure epsilon: few blocks of attributes, weighted.

A strategy measures the marginal on each block S (a set of attributes, not only those asked for) with weight theta_S.
One record is in one cell of each marginal, so the L1 sensitivity is sum_S theta_S exactly. In the notation of
``dpsql.strategies.marginals.residual`` all Gram matrices are multiples of the identity on each residual space T, so the
error is

    E = (sum_S theta_S)^2 sum_T dim_T g_T / nu_T,    nu_T = sum over S containing T of theta_S^2 / prod_(i in S) d_i,

with n g_T the eigenvalue of the workload there (McKenna et al. 2018, section 6.3, choose theta over all 2^k
marginals; here the sets are searched). E is smooth in theta for given blocks, but adding a block at a small weight
never pays: the cost is of first order and the gain of second. So blocks are exchanged whole: two blocks become
their union, a block takes in an attribute or gives one up, and blocks inside the new one go. L equal blocks of
m cells that become one of m' gain where m' < L^2 m, so attributes of few values join. Sums run over the subsets T of
the sets asked for; cells are never enumerated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.strategies.marginals.multipliers import Subset
from dpsql.workloads.families.marginals import Marginals

Bools = NDArray[np.bool_]

_WORK = 4e8  # products that the exchange of blocks may take
_SCALES = (1.0, 1.2)  # the new block's weight over the sum of those it replaces, when scored
_TRIED = 6  # exchanges of best score that are optimised in each round
_PAIRED = 128  # blocks of fewest cells whose unions are looked at; fewer where there are many spaces
_ENTRIES = 2**22  # numbers in one table of exchanges by spaces


@dataclass(frozen=True)
class BlockPlan:
    """``blocks``: ascending sets of attributes; ``weights``: theta, adding up to 1; ``error``: E."""

    blocks: tuple[Subset, ...]
    weights: tuple[float, ...]
    error: float


class _Problem:
    """Residual spaces of attributes of ``sizes`` with the cost of each, and nu as a linear function of theta^2."""

    def __init__(self, sizes: Sequence[int], costs: Mapping[Subset, float]) -> None:
        self.k = len(sizes)
        self.log_sizes = np.log(np.asarray(sizes, dtype=np.float64))
        self.spaces = self.members(list(costs))
        self.cost = np.array(list(costs.values()))

    @classmethod
    def of(cls, W: Marginals) -> _Problem:
        """Costs dim_T g_T: both may be huge or tiny, their product is not."""
        return cls(W.sizes, {T: g * float(W.dimension(T)) for T, g in W.residuals().items()})

    def members(self, sets: list[Subset]) -> Bools:
        """(sets x attributes) of membership."""
        out = np.zeros((len(sets), self.k), dtype=bool)
        for row, S in enumerate(sets):
            out[row, list(S)] = True
        return out

    def shares(self, blocks: Bools) -> sparse.csr_array:
        """(blocks x spaces): 1 / prod d_i over the block where it contains the space, else 0."""
        inside = within(self.spaces, blocks).T
        return sparse.csr_array(inside * np.exp(-1.0 * (blocks @ self.log_sizes))[:, None])

    def optimise(self, blocks: Bools, start: Floats | None = None) -> tuple[float, Floats]:
        """(E, theta) of least E over theta for these blocks, from ``start``; inf where a space is in no block."""
        M = self.shares(blocks)
        if not np.all(np.asarray(M.sum(axis=0)).ravel() > 0):
            return np.inf, np.full(blocks.shape[0], 1.0 / blocks.shape[0])
        found = scipy.optimize.minimize(
            log_error,
            np.zeros(blocks.shape[0]) if start is None else np.log(np.maximum(start, 1e-9) / start.max()),
            args=(M, self.cost),
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(-30.0, 30.0),
            options={"maxiter": 300, "ftol": 1e-11, "gtol": 1e-8, "maxcor": 20},
        )
        theta = _normal(np.asarray(found.x))
        return float(np.exp(found.fun)), theta


def plan_blocks(W: Marginals, effort: float = 1.0) -> BlockPlan:
    """Blocks and weights of little error for W under L1 sensitivity, from the sets of W that lie in no other.

    Never above the error of those sets at their best weights. Deterministic; the work is counted, a second or two at
    ``effort`` 1. Cost of a round: (spaces + blocks) times exchanges, at most some 10^7.
    """
    return _planned(_Problem.of(W), W.sizes, W.sets, effort, log_most=600.0)  # e^600 cells are a float


def plan_spaces(
    sizes: Sequence[int], costs: Mapping[Subset, float], sets: Sequence[Subset], most_cells: float, effort: float = 1.0
) -> BlockPlan:
    """The same for any rows: ``costs`` T -> e_T / prod_(i in T) d_i, e_T the squared norm of what they ask of T.

    ``error`` is then (sum theta)^2 sum_T e_T / N_T with N_T = sum over S containing T of theta_S^2 / prod_(S - T) d_i:
    tables on the blocks S say of T what C_T times noise of variance 1 / N_T would. ``sets`` are to begin with and hold
    every space; a block has at most ``most_cells`` cells unless it is one of them.
    """
    return _planned(_Problem(sizes, costs), sizes, sets, effort, float(np.log(most_cells)))


def _planned(
    problem: _Problem, sizes: Sequence[int], sets: Sequence[Subset], effort: float, log_most: float
) -> BlockPlan:
    wide = sorted({tuple(i for i in S if sizes[i] > 1) for S in sets})
    held = problem.members(wide)
    alone = within(held, held).sum(axis=1) == 1  # in no set but itself
    first = [S for number, S in enumerate(wide) if alone[number]]
    best: tuple[float, Bools, Floats] | None = None
    starts = [first]
    whole = tuple(i for i in range(problem.k) if sizes[i] > 1)
    if len(first) > 1 and problem.log_sizes.sum() < min(np.log(2.0**22), log_most):
        starts.append([whole])
    for start in starts:
        found = _exchange(problem, problem.members(start), effort * _WORK / len(starts), log_most)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None  # noqa: S101 - a workload has at least one set
    error, blocks, theta = best
    named = sorted((tuple(np.flatnonzero(row).tolist()), float(w)) for row, w in zip(blocks, theta, strict=True))
    return BlockPlan(tuple(S for S, _ in named), tuple(w for _, w in named), error)


def log_error(logs: Floats, M: sparse.csr_array, cost: Floats) -> tuple[float, Floats]:
    """log E of weights proportional to exp(logs), scaled to sum 1, and its gradient in ``logs``."""
    theta = _normal(logs)
    nu = M.T @ theta**2
    ratio = cost / nu
    value = float(ratio.sum())
    slope = -2.0 * theta**2 * (M @ (ratio / nu)) / value
    return float(np.log(value)), slope - theta * float(slope.sum())


def within(inner: Bools, outer: Bools) -> Bools:
    """(inner x outer): is the set of each row of ``inner`` inside that of ``outer``?"""
    return np.asarray(inner.astype(np.float32) @ (~outer).astype(np.float32).T < 0.5)


def _normal(logs: Floats) -> Floats:
    theta = np.exp(logs - logs.max())
    return np.asarray(theta / theta.sum())


def _exchange(problem: _Problem, blocks: Bools, work: float, log_most: float) -> tuple[float, Bools, Floats]:
    """(E, blocks, theta) when no exchange of one block helps, or ``work`` is spent."""
    error, theta = problem.optimise(blocks)
    while work > 0:
        new, gone = _candidates(problem, blocks, log_most)
        work -= float(new.shape[0]) * (problem.cost.size + blocks.shape[0]) * (len(_SCALES) + 1)
        if new.shape[0] == 0 or work < 0:
            break
        score = _score(problem, blocks, theta, new, gone)
        better: tuple[float, Bools, Floats] | None = None
        for c in np.argsort(score, kind="stable")[:_TRIED]:
            if not np.isfinite(score[c]):
                break
            trial = np.vstack([blocks[~gone[c]], new[c]])
            value, weights = problem.optimise(trial, np.append(theta[~gone[c]], theta[gone[c]].sum()))
            work -= 100.0 * float(trial.shape[0] + problem.cost.size) * 8
            if better is None or value < better[0]:
                better = (value, trial, weights)
        if better is None or better[0] >= error * (1.0 - 1e-7):
            break
        error, blocks, theta = better
        kept = theta > 1e-7
        if not kept.all():
            value, weights = problem.optimise(blocks[kept], theta[kept])
            if value <= error * (1.0 + 1e-7):
                error, blocks, theta = value, blocks[kept], weights
    return error, blocks, theta


def _candidates(problem: _Problem, blocks: Bools, log_most: float) -> tuple[Bools, Bools]:
    """(new blocks, which of the present ones each replaces): unions of two, one attribute more, one less."""
    paired = min(_PAIRED, int(np.sqrt(2.0 * _ENTRIES / problem.cost.size)))
    order = np.argsort(blocks @ problem.log_sizes, kind="stable")[:paired]
    small = blocks[order]
    left, right = np.triu_indices(small.shape[0], 1)
    larger = [small[left] | small[right]]
    wide = problem.log_sizes > 0
    fewer, source = [], []
    for i in np.flatnonzero(wide):
        grown = small[~small[:, i]].copy()
        grown[:, i] = True
        larger.append(grown)
        holds = order[small[:, i]]
        cut = blocks[holds].copy()
        cut[:, i] = False
        fewer.append(cut)
        source.append(holds)
    up = np.unique(np.vstack(larger), axis=0)
    if not fewer:  # every column has one value: there is nothing to leave out
        fewer, source = [blocks[:0]], [np.zeros(0, dtype=np.int64)]
    down, owner = np.vstack(fewer), np.concatenate(source)
    keep = down.any(axis=1)
    down, owner = down[keep], owner[keep]
    up = up[(up @ problem.log_sizes) < log_most]
    gone_up, gone_down = within(blocks, up).T, within(blocks, down).T
    gone_down[np.arange(owner.size), owner] = True
    # A smaller block that lies in one that stays has nothing to add.
    fresh = ~((within(down, blocks) & ~gone_down).any(axis=1))
    same = within(up, blocks).any(axis=1)
    return np.vstack([up[~same], down[fresh]]), np.vstack([gone_up[~same], gone_down[fresh]])


def _score(problem: _Problem, blocks: Bools, theta: Floats, new: Bools, gone: Bools) -> Floats:
    """E of each exchange when the weights of the others stay and the new one's is one of a few multiples."""
    M = problem.shares(blocks)
    best = np.full(new.shape[0], np.inf)
    chunk = max(1, _ENTRIES // problem.cost.size)
    for at in range(0, new.shape[0], chunk):
        part = slice(at, at + chunk)
        stays = np.asarray(((~gone[part]) * theta**2) @ M)
        own = problem.shares(new[part]).toarray()
        freed = gone[part] @ theta
        for scale in _SCALES:
            weight = scale * freed
            with np.errstate(divide="ignore"):
                value = (problem.cost / (stays + own * (weight**2)[:, None])).sum(axis=1)
            best[part] = np.minimum(best[part], value * (1.0 - freed + weight) ** 2)
    return best
