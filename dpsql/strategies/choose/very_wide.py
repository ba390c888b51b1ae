"""Whether a workload is so wide that only its parts are planned, told by a sample of what records change.

For pure noise most methods are for few cells, or for little rank times cells. To hold W against these limits exactly,
it has to be reduced; over 100,000 columns that takes longer than planning its parts, which tell few cells apart.
"""

from __future__ import annotations

import numpy as np
import scipy

from dpsql.common.numerics import ROUNDING, SEED
from dpsql.linalg.columns import columns_at, disjoint_blocks
from dpsql.workloads.families.matrix import Workload

_COLUMNS = 2**16
_LINKED, _DENSE = 8192, 1024  # columns that show whether rows are linked, and of which rank they are


def least_sizes(W: Workload) -> tuple[int, int]:
    """(rank, distinct columns up to sign), at least, of W where it is one problem; (0, 0) where that is not seen.

    For more than 2^16 columns of records alone. The rank is that of floats. Cost O(nnz + q^3), q queries.
    """
    size, q = W.changes, W.span.shape[0]
    if W.inner.diagonal() is None or size <= _COLUMNS or q > _DENSE:
        return 0, 0
    source = np.random.default_rng(SEED)
    some = W.moved(W.span, np.sort(source.choice(size, _LINKED, replace=False, shuffle=False)))
    number, _ = disjoint_blocks(some, np.arange(q))
    if number > 1:
        return 0, 0
    few = columns_at(some, np.arange(0, _LINKED, _LINKED // _DENSE)).toarray().astype(np.float64)
    few /= np.sqrt((few * few).sum(axis=1, keepdims=True)) + 1e-300
    s = scipy.linalg.eigvalsh(few @ few.T)
    # Columns of which linear hashes modulo 2^64 differ are different.
    hashes = W.span.T @ source.integers(1, 2**63, size=q)
    hashes = (hashes if W.contributions is None else W.contributions.T @ hashes).view(np.uint64)
    return int((s > ROUNDING * s[-1]).sum()), np.unique(np.minimum(hashes, np.negative(hashes))[hashes > 0]).size
