"""The Haar wavelet over ordered cells: the sum of all, then differences of the halves of every block.

Xiao et al. 2010 (Privelet); as a strategy matrix Li et al. 2010, Fig. 1. Entries are -1, 0, 1, a record is in
one row of each level, and the rows are orthogonal, so level weights of least error have a closed form (our
derivation): with c_l = tr(G Q_l) / s_l, Q_l the projection on level l and s_l its blocks' size, the error is
sum_l c_l / w_l^2, least (sum c_l^1/2)^2 for w_l^2 ~ c_l^1/2 in L2 and (sum c_l^1/3)^3 for w_l ~ c_l^1/3 in L1.
Numbers of cells that are no power of two are filled up with cells that hold nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.linalg.columns import distinct_columns
from dpsql.linalg.forms import dense
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block
from dpsql.strategies.core.simple import cell_gram, cells_of, image_columns
from dpsql.strategies.pure.hierarchical import block_trace
from dpsql.workloads.families.matrix import Workload


def matrix(n: int) -> tuple[Floats, NDArray[np.int64]]:
    """(rows of -1, 0, 1 over n cells, level of each row); rows that only see filled-up cells are left out."""
    size = 1 << (n - 1).bit_length()
    rows, level = [np.ones(n)], [0]
    block, depth = size, 1
    while block > 1:
        for a in range(0, n, block):
            row = np.zeros(n)
            row[a : min(n, a + block // 2)] = 1.0
            row[min(n, a + block // 2) : min(n, a + block)] = -1.0
            rows.append(row)
            level.append(depth)
        block //= 2
        depth += 1
    return np.array(rows), np.asarray(level, dtype=np.int64)


def level_weights(G: Floats, noise: str) -> Floats:
    """Weights of least error of the levels (module docstring), for the filled-up wavelet. Cost O(N^2 log N)."""
    n = G.shape[0]
    depth = (n - 1).bit_length()
    size = 1 << depth
    traces = [block_trace(G, size >> k) for k in range(depth + 1)]
    g = np.maximum(np.diff([0.0, *traces]), 0.0)
    sizes = np.array([size, *(size >> k for k in range(depth))], dtype=np.float64)
    c = np.maximum(g / sizes, 1e-12 * g.sum() / size)
    w = c ** (0.25 if noise == "gaussian" else 1.0 / 3.0)
    return np.asarray(w / (np.sqrt((w * w).sum()) if noise == "gaussian" else w.sum()))


def haar_piece(block: Block, W: Workload, noise: str, weighted: bool = False) -> Piece:
    """The Haar wavelet over the distinct cells in their order, unweighted or with its best level weights."""
    lift, D = cells_of(block)
    G = cell_gram(block, D)
    H, level = matrix(D.shape[1])
    w = level_weights(G, noise) if weighted else np.ones(int(level.max()) + 1)
    A = _merged(H, w[level], noise)
    return Piece(lift, A, image_columns(lift, W), G)


def _merged(H: Floats, w: Floats, noise: str) -> Floats:
    """Rows that filling up made equal (up to sign) become one, with the L2 or L1 sum of their weights."""
    from scipy import sparse

    found = distinct_columns(sparse.csr_array(H.T.astype(np.int64)), up_to_sign=True)
    total = np.bincount(found.label, weights=w**2 if noise == "gaussian" else w, minlength=found.keep.size)
    weights = np.sqrt(total) if noise == "gaussian" else total
    return np.asarray(dense(H[found.keep]) * weights[:, None])
