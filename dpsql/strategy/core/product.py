"""Products of workloads: the optimum of a Kronecker product is the product of the optima.

With lambda = lambda_1 x lambda_2 both bounds multiply: tr (K_1 x K_2)^1/2 = t_1 t_2 and
max diag(X_1 x X_2) = max diag X_1 max diag X_2, so the certificates do (our derivation).
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from scipy import linalg, sparse

from dpsql.arrays import Csr, Floats
from dpsql.errors import DataError
from dpsql.linalg.forms import kron, sparse_kron
from dpsql.strategy.core.integer import Piece, leaves_first
from dpsql.strategy.core.simple import moved_columns
from dpsql.workload.families.matrix import Workload

ORDER_CAP = 6000


def joined(pieces: tuple[Piece, ...]) -> tuple[Csr, Floats, Floats]:
    """(rows, root, gram) of independent pieces as one block diagonal problem, dense."""
    rows = sparse.csr_array(sparse.vstack([p.rows for p in pieces], format="csr"))
    root = linalg.block_diag(*[np.diag(p.root) if p.root.ndim == 1 else p.root for p in pieces])
    gram = linalg.block_diag(*[np.diag(p.gram) if p.gram.ndim == 1 else p.gram for p in pieces])
    return rows, root, gram


def product_piece(W: Workload, factors: list[tuple[Piece, ...]]) -> Piece:
    """The Kronecker product of the factors' strategies. Raises DataError above order 6000."""
    order = 1
    for pieces in factors:
        order *= sum(p.rows.shape[0] for p in pieces)
    if order > ORDER_CAP:
        raise DataError(f"strategy: the product has rank {order}, above the cap of {ORDER_CAP}; plan its factors apart")
    parts = [joined(pieces) for pieces in factors]
    rows = reduce(sparse_kron, (p[0] for p in parts))
    root = leaves_first(np.asarray(reduce(kron, (p[1] for p in parts))))
    gram = np.asarray(reduce(kron, (p[2] for p in parts)))
    return Piece(rows, root, moved_columns(rows, W), gram)
