"""A lower bound on the error of Gaussian noise in a small part of the time of the optimum.

Weights that are 0 outside a sample of columns prove a bound on the whole problem
(``dpsql.strategies.gaussian.optimal``). At the optimum few columns matter, so a sample of random columns comes near the
bound of all of them: within 2 % on batches of ranges, groups and sums over 100,000 columns. Where few columns differ
but ranks are large, equal weights on all of them come as near, 2 % on 1,000 ranges, for the eigenvalues of one step of
the optimum's dozen.
"""

from __future__ import annotations

import numpy as np

from dpsql.linalg.forms import dense
from dpsql.linalg.long_calls import eigh, product
from dpsql.strategies.core.certificate import nuclear_norm
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.core.symmetric import Part, solve
from dpsql.workloads.families.matrix import Workload

_COLUMNS = 2048
_ROWS = 512
_LARGE_RANK = 256
_SEED = 20_128


def sampled_bound(W: Workload) -> float:
    """At most the least error of any Gaussian matrix mechanism for W, by a sample of what records change.

    0 where the optimum itself takes no longer: where few columns differ, unless ranks are large; and for more than 512
    queries of many. Rounding is taken off. Cost O(nnz + q^2 k) for q queries and k = 2048.
    """
    diagonal = W.inner.diagonal()
    if W.changes <= 4 * _COLUMNS and W.shape[0] >= _LARGE_RANK and not W.factors:
        return _of_equal_weights(W)
    if diagonal is None or W.shape[0] > _ROWS or W.changes <= 4 * _COLUMNS:
        return 0.0
    at = np.unique(np.random.default_rng(_SEED).integers(W.changes, size=_COLUMNS))
    some = W.span[:, at] if W.contributions is None else W.span @ W.contributions[:, at]
    U = np.sqrt(diagonal)[:, None] * dense(some)
    s, V = eigh(product(U, U.T))
    U = V[:, s > 1e-10 * max(float(s[-1]), 1e-300)].T @ U  # a part of the rows has no larger a nuclear norm
    if not U.size:
        return 0.0
    return solve([Part(1.0, np.eye(U.shape[0]), U.T)], 0.1).lower


def _of_equal_weights(W: Workload) -> float:
    """The same of equal weights on the distinct columns of each block; 0 where all ranks are small."""
    blocks = [block for block in reduce_workload(W) if not block.solo]
    if max((block.rank for block in blocks), default=0) < _LARGE_RANK:
        return 0.0
    return sum(
        block.count * nuclear_norm(block.gram, block.columns, np.full(N, 1.0 / N)) ** 2
        for block in blocks
        for N in (block.columns.shape[1],)
    )
