"""The strategies that need no search: every cell, the queries themselves, and products of optima that are known.

The optimum of a Kronecker product is the product of the optima. With lambda = lambda_1 x lambda_2 both bounds multiply:
tr (K_1 x K_2)^1/2 = t_1 t_2 and max diag(X_1 x X_2) = max diag X_1 max diag X_2, so the certificates do (our
derivation).
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Sparse
from dpsql.errors import DataError
from dpsql.linalg.basis import coordinates
from dpsql.linalg.columns import columns_at, distinct_columns
from dpsql.linalg.forms import RANK_CAP, dense, is_identity, kron, sparse_kron
from dpsql.linalg.long_calls import product
from dpsql.strategies.core.integer import Piece, leaves_first
from dpsql.strategies.core.limits import WRITTEN
from dpsql.strategies.core.reduce import Block, reduce_workload
from dpsql.workloads.families.matrix import Workload

_FULL = 20


def cells_of(block: Block) -> tuple[Csr, Csr]:
    """(indicator rows of the distinct data cells (N x n), basis coordinates of them (v x N))."""
    found = distinct_columns(block.basis) if block.cells is None else block.cells
    used = np.flatnonzero(found.label >= 0)
    ones = np.ones(used.size, dtype=np.int64)
    lift = sparse.csr_array((ones, (found.label[used], used)), shape=(found.keep.size, found.label.size))
    return lift, columns_at(block.basis, found.keep)


def image_columns(rows: Sparse, W: Workload) -> Sparse:
    """Distinct columns, up to sign, of rows @ contributions (csc)."""
    moved = W.moved(rows)
    return sparse.csc_array(columns_at(moved, distinct_columns(moved, up_to_sign=True).keep))


def identity_piece(block: Block, W: Workload) -> Piece:
    """Measure each distinct cell (cells that no query tells apart count as one)."""
    lift, D = cells_of(block)
    # The root is diagonal, so only the diagonal of the Gram matrix of the cells counts.
    if block.solo:
        gram = np.asarray(D.power(2).T @ block.gram).ravel()  # rows share no column
    elif is_identity(D):
        gram = np.diag(block.gram)
    elif max(D.shape) ** 2 <= WRITTEN:
        gram = np.diag(cell_gram(block, D))
    else:
        R = block.factor()
        gram = np.empty(D.shape[1])
        for at in range(0, D.shape[1], 4096):
            part = R @ D[:, at : at + 4096].toarray()
            gram[at : at + 4096] = np.einsum("ij,ij->j", part, part)
    return Piece(lift, np.ones(lift.shape[0]), image_columns(lift, W), gram)


def workload_piece(block: Block, W: Workload) -> Piece:
    """Measure the queries as they are weighted.

    Rows of integer workloads are measured by themselves; for others an equivalent set of rows, the
    triangular factor of the Gram matrix, would change the L1 norm, so DataError.
    """
    if block.solo:
        return Piece(block.basis, np.sqrt(block.gram), block.columns, block.gram)
    reached = np.asarray(abs(sparse.csr_array(block.basis)).sum(axis=0)) > 0
    touches = np.asarray(abs(W.span) @ reached.astype(np.int64)) > 0
    diagonal = W.inner.diagonal()
    if diagonal is None:
        if W.shape[0] ** 2 > WRITTEN:
            raise DataError(
                f"strategy: the workload has {W.shape[0]} queries, too many to be measured one by one; "
                "use method='auto'"
            )
        # This block's queries alone, over its independent rows: spanning rows of a stack may depend on each other.
        inside = np.flatnonzero(touches)
        F = dense(W.inner.matrix())[:, inside]
        held = dense(coordinates(sparse.csr_array(W.span[inside]), block.basis))
        return Piece(block.basis, F[np.any(F != 0, axis=1)] @ held, block.columns, block.gram)
    mine = np.flatnonzero(touches & (diagonal > 0))
    rows = sparse.csr_array(W.span[mine])
    coords = coordinates(rows, block.basis) if block.coords is None else block.coords[mine]
    placed = None if block.coords is None else (block.basis, block.coords)
    return Piece(rows, np.sqrt(diagonal[mine]), image_columns(rows, W), block.gram, coords, placed=placed)


def workload_error(W: Workload) -> float:
    """The error for Laplace noise of the queries measured as they are weighted; 0 where it is not known without that.

    For one block it is L1^2 rank W, as tr(G G^+) is the rank.
    """
    diagonal, blocks = W.inner.diagonal(), reduce_workload(W)
    if diagonal is None or len(blocks) > 1 or blocks[0].count > 1:
        return 0.0
    return float((np.sqrt(diagonal) @ abs(W.moved(W.span))).max()) ** 2 * float(blocks[0].rank)


def single_rows(block: Block) -> Piece:
    """Rows that share no column: nothing is better than each at its largest entry."""
    top = np.asarray(abs(sparse.csr_array(block.columns)).max(axis=1).todense()).ravel().astype(np.float64)
    return Piece(block.basis, 1.0 / top, block.columns, block.gram)


def cell_gram(block: Block, D: Csr) -> Floats:
    """The Gram matrix of the workload over the distinct cells (N x N), D from ``cells_of``. Cost O(v N^2)."""
    if block.solo:
        return np.asarray((D.T @ sparse.diags_array(block.gram) @ D).toarray(), dtype=np.float64)
    if is_identity(D):
        return block.gram
    changes = sparse.csr_array(D @ sparse.diags_array([1, -1], offsets=[0, 1], shape=(D.shape[1],) * 2, dtype=np.int64))
    changes.eliminate_zeros()
    if _FULL * changes.nnz < D.nnz:  # such as ranges: the changes from cell to cell are added up
        few = (changes.T @ block.gram) @ changes
        return np.asarray(np.cumsum(np.cumsum(few, axis=0), axis=1), dtype=np.float64)
    held = D.toarray() if _FULL * D.nnz > D.shape[0] * D.shape[1] else D  # a dense product is quicker
    U = (block.factor() @ held).astype(np.float64)
    return product(U.T, U)


def joined(pieces: tuple[Piece, ...]) -> tuple[Csr, Floats, Floats]:
    """(rows, root, gram) of independent pieces as one block diagonal problem, dense."""
    rows = sparse.csr_array(sparse.vstack([p.rows for p in pieces], format="csr"))
    root = scipy.linalg.block_diag(*[np.diag(p.root) if p.root.ndim == 1 else p.root for p in pieces])
    gram = scipy.linalg.block_diag(*[np.diag(p.gram) if p.gram.ndim == 1 else p.gram for p in pieces])
    return rows, root, gram


def product_piece(W: Workload, factors: list[tuple[Piece, ...]]) -> Piece:
    """The Kronecker product of the factors' strategies. Raises DataError above order 6000."""
    order = 1
    for pieces in factors:
        order *= sum(p.rows.shape[0] for p in pieces)
    if order > RANK_CAP:
        raise DataError(f"strategy: the product has rank {order}, above the cap of {RANK_CAP}; plan its factors apart")
    parts = [joined(pieces) for pieces in factors]
    rows = reduce(sparse_kron, (p[0] for p in parts))
    root = leaves_first(np.asarray(reduce(kron, (p[1] for p in parts))))
    gram = np.asarray(reduce(kron, (p[2] for p in parts)))
    return Piece(rows, root, image_columns(rows, W), gram)
