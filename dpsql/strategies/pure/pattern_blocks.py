"""All groups of a source in one block of the gauge of what a unit changes of them, for pure noise.

A unit in at most l of m groups adds a 0/1 pattern with at most l ones, ``times`` it where it counts more than once
there. Noise of the gauge of all such patterns (``dpsql.common.pattern_block``) is the K-norm mechanism of the smallest
norm, of total variance in units of 2 / epsilon^2 (m = l: m (m + 2)(m + 3) / 12):

    groups, and the most that one unit is in      4, 4    12, 12    12, 3    50, 50    50, 10
    one block of the gauge                        14.0     210       80.5    11,483     3,777
    each group by itself                          64     1,728      108     125,000     5,000

It measures every group, so that its error for any queries is their Gram matrix's share of that noise.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints, Sparse
from dpsql.common.numerics import AT_ONCE
from dpsql.common.pattern_block import LARGEST, PatternBlock, law_of, sizes_of
from dpsql.linalg.forms import is_identity
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block
from dpsql.strategies.core.simple import cell_gram, cells_of, image_columns
from dpsql.workloads.families.contributions import Part
from dpsql.workloads.families.matrix import Workload


def pattern_piece(W: Workload, rows: Ints, part: Part, common: int) -> Piece | None:
    """All groups that the spanning ``rows`` of W read, in one block, of sensitivity 1 to a unit of the source ``part``.

    ``common``: of which W's contributions are multiples. None where a corner is no single entry, or they are too many.
    """
    diagonal, most = W.inner.diagonal(), part.most
    entries = part.corners.indices.astype(np.int64)
    single = part.corners.nnz == part.corners.shape[1] and bool((part.corners.data == 1).all())
    if diagonal is None or not single or not 1 < most <= entries.size <= LARGEST:
        return None
    queries = sparse.csc_array(W.span[rows])
    if queries[:, entries].nnz < queries.nnz or np.unique(entries).size < entries.size:
        return None
    held = queries[:, entries].astype(np.float64)
    gram = (held.T @ sparse.diags_array(diagonal[rows]) @ held).toarray()
    ones = (np.ones(entries.size, dtype=np.int64), (np.arange(entries.size), entries))
    groups = sparse.csr_array(ones, shape=(entries.size, W.shape[1]))
    root = np.eye(entries.size) * (common / part.times)
    block = PatternBlock(entries.size, most)
    return Piece(groups, root, sparse.csc_array(groups @ groups.T), gram, blocks=(block,))


def pattern_blocks(W: Workload, block: Block) -> Piece | None:
    """The cells of a problem whose changes are listed, or its independent rows, in blocks for patterns; the better.

    All in one block, or those together that the same statements read. A block's limit is that of patterns which the
    largest sum of its changes asks for, or none, as for Laplace noise; shares of epsilon are by the cube root of the
    errors. None where there are too many.
    """
    lift, D = cells_of(block)
    found = []
    if 1 < D.shape[1] <= LARGEST:
        columns, gram = image_columns(lift, W), cell_gram(block, D)
        for label in {one.tobytes(): one for one in (np.zeros(D.shape[1], dtype=np.int64), _readers(W, lift))}.values():
            found.append(_in_blocks(lift, columns, gram, label))
    if 1 < block.rank <= LARGEST and not is_identity(D):
        found.append(_in_blocks(block.basis, block.columns, block.gram, np.zeros(block.rank, dtype=np.int64)))
    return min(found, key=lambda piece: piece.trace(piece.root), default=None)


def _readers(W: Workload, lift: Csr) -> Ints:
    """Numbers of the cells (N,) by the statements that read them."""
    if W.groups is None:
        return np.zeros(lift.shape[0], dtype=np.int64)
    labels = np.unique(W.groups, return_inverse=True)[1]
    one = sparse.csr_array((np.ones(labels.size), (labels, np.arange(labels.size))))
    seen = (one @ abs(W.span) @ abs(lift).T).toarray() > 0
    return np.unique(seen, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _in_blocks(rows: Csr, columns: Sparse, gram: Floats, label: Ints) -> Piece:
    """The rows (p x n) by themselves, in a block for each ``label``, of sensitivity 1 to ``columns`` (p x N)."""
    order = np.argsort(label, kind="stable")
    gram, Y = gram[np.ix_(order, order)], sparse.csr_array(columns)[order]
    blocks, shares, total, end = list[int](), list[Floats](), np.zeros(Y.shape[1]), 0
    for size in np.bincount(label).tolist():
        mine = slice(end, end + size)
        end += size
        part, each, error = _best_limit(gram[mine, mine], sparse.csc_array(Y[mine]))
        share = float(error ** (1.0 / 3.0)) / float(each.max())
        blocks += part
        shares.append(np.full(size, share))
        total += share * each
    root = np.diag(np.concatenate(shares) / total.max())
    return Piece(sparse.csr_array(rows)[order], root, sparse.csc_array(Y), gram, blocks=tuple(blocks))


def _best_limit(gram: Floats, Y: Sparse) -> tuple[list[int], Floats, float]:
    """(the block, or blocks of one, of least error; how far each column of Y moves it; the error at sensitivity 1)."""
    m = Y.shape[0]
    sides = [(sign * Y).maximum(0) for sign in (1, -1)]
    single = np.asarray(np.ones(m) @ abs(Y), dtype=np.float64)
    found: list[tuple[list[int], Floats, float]] = [([1] * m, single, float(np.trace(gram)) * float(single.max()) ** 2)]
    largest = max(float(side.max()) for side in sides)
    asked = ceil(max(float(side.sum(axis=0).max()) for side in sides) / largest - 1e-9)
    for limit in {asked, m} if m > 1 else ():
        if limit > 1:
            block = PatternBlock(m, min(limit, m))
            law, each = law_of(block), _sizes(Y, block.limit)
            spread = law.variance * float(np.trace(gram)) + law.covariance * float(gram.sum() - np.trace(gram))
            found.append(([block], each, spread / 2.0 * float(each.max()) ** 2))
    return min(found, key=lambda one: one[2])


def _sizes(Y: Sparse, limit: int) -> Floats:
    """How far each column of Y moves a block for patterns of at most ``limit`` ones; a few columns dense at a time."""
    ends = range(0, Y.shape[1], AT_ONCE)
    return np.concatenate([sizes_of(Y[:, e : e + AT_ONCE].toarray().astype(np.float64), limit) for e in ends])
