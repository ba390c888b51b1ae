"""Whether a workload is so wide that only its parts are planned, told by a sample of what records change.

For pure noise most methods are for few cells, or for little rank times cells. To hold W against these limits exactly,
it has to be reduced; over 100,000 columns that takes longer than planning its parts, which tell few cells apart.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from dpsql.linalg.columns import columns_at, disjoint_blocks, distinct_columns
from dpsql.workload.families.matrix import Workload

_COLUMNS = 2**16
_DENSE = 1024
_SEED = 20_131
_TOLERANCE = 1e-9


def least_sizes(W: Workload) -> tuple[int, int]:
    """(rank, distinct columns up to sign), at least, of W where it is one problem; (0, 0) where that is not seen.

    For more than 2^16 columns of records alone. The rank is that of floats. Cost O(nnz + q^3), q queries.
    """
    size, q = W.changes, W.span.shape[0]
    if W.inner.diagonal() is None or size <= _COLUMNS or q > _DENSE:
        return 0, 0
    at = np.flatnonzero(np.bincount(np.random.default_rng(_SEED).integers(size, size=_COLUMNS), minlength=size))
    some = W.moved(W.span, at)
    number, _ = disjoint_blocks(some, np.arange(q))
    if number > 1:
        return 0, 0
    few = columns_at(some, np.arange(0, at.size, at.size // _DENSE)).toarray().astype(np.float64)
    few /= np.sqrt((few * few).sum(axis=1, keepdims=True)) + 1e-300
    s = linalg.eigvalsh(few @ few.T)
    return int((s > _TOLERANCE * s[-1]).sum()), distinct_columns(some, up_to_sign=True).keep.size
