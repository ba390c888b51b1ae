"""Hierarchies of sums over ordered cells: a tree of partitions, each level finer than the one above.

Hay et al. 2010 measure every node of a tree, here in any branching (Li et al. 2010, Fig. 1 and section
3.1, as an instance of the matrix mechanism). A level of a tree is a partition of the cells, so every record is in one
node of each level: with level weights w the sensitivity is (sum w_l^2)^1/2 in L2 and sum w_l in L1.

Weights of least error, our derivation. Let all blocks of level l hold s_l cells (the cells that are missing
at the end are cells that no query counts). The level's Gram matrix is then s_l times the projection on what is
constant on its blocks; these projections are nested, so with T_l = tr(G P_l), g_l = T_l - T_(l-1),

    tr(G (sum_l w_l^2 s_l P_l)^-1) = sum_l g_l / (sum_(k >= l) w_k^2 s_k),

and only T_l, the sum of the diagonal block sums of G over s_l, is needed: O(N^2) a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block
from dpsql.strategies.core.simple import cell_gram, cells_of, image_columns
from dpsql.workloads.families.matrix import Workload

_LEAST = -100.0  # the log of a weight, of the largest
_BRANCHINGS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)


def levels(n: int, branching: int = 2) -> tuple[Ints, ...]:
    """Block sizes of a tree over n cells, as edges of each level's partition, from the root to single cells.

    Nodes are split into ``branching`` parts of nearly equal size. Raises DataError for a branching below 2.
    """
    if branching < 2:
        raise DataError("strategy: a tree needs a branching of at least 2")
    edges = np.array([0, n], dtype=np.int64)
    found = [edges]
    while np.diff(edges).max() > 1:
        finer: list[int] = [0]
        for a, b in pairwise(edges.tolist()):
            parts = min(branching, b - a)
            finer.extend(int(a + ((b - a) * k + parts - 1) // parts) for k in range(1, parts + 1))
        edges = np.array(finer, dtype=np.int64)
        found.append(edges)
    return tuple(found)


def regular(n: int, sizes: Sequence[int]) -> tuple[Ints, ...]:
    """Partitions of n cells into blocks of the given sizes, the last block of each cut at n."""
    return tuple(np.append(np.arange(0, n, s), n).astype(np.int64) for s in sizes)


def rows_of(partitions: Sequence[Ints], weights: Sequence[float], noise: str) -> Floats:
    """A (p x N): one row a distinct node, leaves first.

    Nodes that several levels share are measured once, with their weights' L2 or L1 sum (Li and Miklau 2011,
    Thm 3.2 for L2; for L1 one row of weight a + b costs what two of weights a and b cost, and tells more).
    """
    total: dict[tuple[int, int], float] = {}
    for edges, weight in zip(partitions, weights, strict=True):
        for a, b in pairwise(edges.tolist()):
            held = total.get((a, b), 0.0)
            total[a, b] = float(np.hypot(held, weight)) if noise == "gaussian" else held + weight
    kept = [(node, w) for node, w in total.items() if w > 0]
    kept.sort(key=lambda item: (item[0][1] - item[0][0] > 1, item[0]))
    out = np.zeros((len(kept), int(partitions[0][-1])))
    for i, ((a, b), weight) in enumerate(kept):
        out[i, a:b] = weight
    return out


def block_trace(G: Floats, size: int) -> float:
    """tr(G P), P the projection on vectors constant on blocks of ``size`` consecutive cells. Cost O(N^2)."""
    place = np.arange(G.shape[0])
    return float(np.add.reduceat(G, place[::size], 0)[place // size, place].sum() / size)


def weights_of_traces(traces: Sequence[float], sizes: Sequence[int], noise: str) -> tuple[float, Floats]:
    """(error at sensitivity 1, level weights) of a regular tree with the given block sizes, largest first.

    ``traces``: T_l = tr(G P_l) of each level (``block_trace``). The error is that of the padded tree, at least that of
    the tree itself. Convex in w^2 for L2; for L1 not, and found from equal weights.
    """
    g = np.maximum(np.diff([0.0, *traces]), 0.0)
    s = np.asarray(sizes, dtype=np.float64)
    start = np.zeros(len(sizes))
    found = scipy.optimize.minimize(
        log_error, start, args=(g, s, noise), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    )
    w = _normal(np.asarray(found.x), noise)
    w[w < 1e-4 * w.max()] = 0.0
    if w[-1] == 0.0:
        w[-1] = 1e-4 * w.max()  # single cells keep the rank
    w /= np.sqrt((w * w).sum()) if noise == "gaussian" else w.sum()
    return float((g / np.cumsum((w * w * s)[::-1])[::-1]).sum()), w


def log_error(logs: Floats, g: Floats, s: Floats, noise: str) -> tuple[float, Floats]:
    """log of the error of level weights exp(logs) scaled to sensitivity 1, and its gradient in ``logs``."""
    w = _normal(logs, noise)
    inner = np.cumsum((w * w * s)[::-1])[::-1]
    value = float((g / inner).sum())
    slope = -2.0 * w * w * s * np.cumsum(g / inner**2) / value
    share = w * w if noise == "gaussian" else w
    return float(np.log(value)), slope - share * slope.sum()


def _normal(logs: Floats, noise: str) -> Floats:
    w = np.exp(np.maximum(logs - logs.max(), _LEAST))  # a step of a search may go far
    return np.asarray(w / (np.sqrt((w * w).sum()) if noise == "gaussian" else w.sum()))


def best_tree(G: Floats, noise: str) -> tuple[tuple[Ints, ...], Floats]:
    """(partitions, level weights): the branching and the weights of least error among regular trees."""
    n = G.shape[0]
    best: tuple[float, list[int], Floats] | None = None
    trace = cache(partial(block_trace, G))  # branchings share sizes of blocks
    for b in (*_BRANCHINGS, n):
        if b > max(n, 2):
            continue
        sizes = [1]
        while sizes[-1] < n:
            sizes.append(sizes[-1] * b)
        sizes.reverse()
        error, w = weights_of_traces([trace(size) for size in sizes], sizes, noise)
        if best is None or error < best[0] * (1.0 - 1e-9):
            best = (error, sizes, w)
    assert best is not None  # noqa: S101 - branching 2 is always tried
    kept = np.flatnonzero(best[2] > 0)
    return regular(n, [best[1][k] for k in kept]), best[2][kept]


def hierarchical_piece(block: Block, W: Workload, noise: str, branching: int = 2) -> Piece:
    """Every node of a tree over the distinct cells in their order, unweighted (Hay et al. 2010)."""
    lift, D = cells_of(block)
    partitions = levels(D.shape[1], branching)
    A = rows_of(partitions, [1.0] * len(partitions), noise)
    return Piece(lift, A, image_columns(lift, W), cell_gram(block, D))


def weighted_hierarchical_piece(block: Block, W: Workload, noise: str) -> Piece:
    """A tree whose branching and level weights are chosen for the workload (module docstring)."""
    lift, D = cells_of(block)
    G = cell_gram(block, D)
    partitions, w = best_tree(G, noise)
    return Piece(lift, rows_of(partitions, w.tolist(), noise), image_columns(lift, W), G)
