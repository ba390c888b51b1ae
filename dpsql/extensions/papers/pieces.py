"""The published strategies by name, for one block of a workload.

Each entry makes a ``Piece`` (a real strategy over integer rows) of a block; ``dpsql.strategies.choose.task``
normalises, rounds and compares them. Sizes above an entry's cap are refused, with what to use instead.
"""

from __future__ import annotations

from math import prod

import numpy as np
from scipy import linalg, sparse

from dpsql.common.arrays import Csr, Floats
from dpsql.errors import DataError
from dpsql.extensions.papers.approximations import augmented, least_rotation, svd_root
from dpsql.extensions.papers.decomposition import decompose
from dpsql.extensions.papers.eigen_design import eigen_piece, eigen_product_piece
from dpsql.extensions.papers.haar import haar_piece
from dpsql.extensions.papers.level_selection import generalised_levels, select_levels
from dpsql.extensions.papers.smoothed import descend
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import choose_basis, coordinates
from dpsql.linalg.forms import RANK_CAP, dense
from dpsql.strategies.core.base import Terms
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import Piece, check_entries, normalise
from dpsql.strategies.core.parts import split, total_of, union_piece
from dpsql.strategies.core.reduce import Block, cholesky, reduce_workload
from dpsql.strategies.core.simple import cell_gram, cells_of, image_columns, product_piece, single_rows
from dpsql.strategies.gaussian.optimal import solve
from dpsql.strategies.pure import row_mixing
from dpsql.strategies.pure.hierarchical import hierarchical_piece, weighted_hierarchical_piece
from dpsql.strategies.ranges.range_transform import range_piece
from dpsql.workloads.families.matrix import Workload

# Methods that are the product of their factors' strategies on a product workload.
FACTORWISE = ("hierarchical", "weighted-hierarchical", "haar", "weighted-haar", "range-transform")

# Cells (distinct columns) up to which a method is carried out.
CAPS = {
    "level-selection": 1024,
    "workload-generalisation": 4096,
    "smoothed": 512,
    "low-rank-mechanism": 4096,
    "svd-approximation": 20_000,
    "l2-approximation": 20_000,
    "min-sensitivity": 20_000,
    "augmented": 4096,
}
_CELLS = 4096  # where CAPS names nothing


def published(name: str, W: Workload, terms: Terms) -> tuple[Piece, ...]:
    """The pieces of a method of this extension for W. Raises DataError where it does not fit W."""
    product = len(W.factors) > 1 and W.inner.diagonal() is None
    if name == "range-transform" and not product:
        return (range_piece(W),)
    if product and name in FACTORWISE:
        return (product_piece(W, [published(name, factor, terms) for factor in W.factors]),)
    if product and name == "eigen-design":
        per_factor = [reduce_workload(factor) for factor in W.factors]
        if all(len(blocks) == 1 and blocks[0].count == 1 for blocks in per_factor):
            if prod(cells_of(blocks[0])[1].shape[1] for blocks in per_factor) > RANK_CAP:
                raise DataError(f"strategy: eigen-design over more than {RANK_CAP} cells; use method='optimal'")
            return (eigen_product_piece(W, [blocks[0] for blocks in per_factor], terms.deadline),)
    pieces = tuple(spread(_piece(name, block, W, terms), block.copies) for block in reduce_workload(W))
    check_entries(pieces)
    return pieces


def separated(name: str, W: Workload, terms: Terms) -> tuple[Piece, ...]:
    """Workload separation (Li and Miklau 2011, section 4.3.1): each part by the Level Selection Algorithm."""

    def planned(part: Workload) -> tuple[tuple[Piece, ...], float]:
        return normalise(published("level-selection", part, terms), terms.noise)

    parts = split(W)
    if len(parts) > 1:
        parts = (*parts, total_of(W))
    return (union_piece(W, parts, planned, terms.noise)[0],)


def _piece(name: str, block: Block, W: Workload, terms: Terms) -> Piece:
    if block.solo:
        return single_rows(block)
    cells = block.columns.shape[1]
    cap = CAPS.get(name, _CELLS)
    if cells > cap:
        raise DataError(f"strategy: {name} over {cells} distinct cells is above its cap of {cap}; use method='auto'")
    if name in ("hierarchical", "weighted-hierarchical"):
        make = hierarchical_piece if name == "hierarchical" else weighted_hierarchical_piece
        return make(block, W, terms.noise)
    if name in ("haar", "weighted-haar"):
        return haar_piece(block, W, terms.noise, weighted=name == "weighted-haar")
    if name == "eigen-design":
        return eigen_piece(block, W, terms.deadline)
    if name in ("level-selection", "workload-generalisation", "smoothed"):
        return _over_cells(name, block, W, terms)
    return _mixing(name, block, W, terms)


def _over_cells(name: str, block: Block, W: Workload, terms: Terms) -> Piece:
    lift, D = cells_of(block)
    G = cell_gram(block, D)
    n = G.shape[0]
    if name == "smoothed":
        A = cholesky(descend(G / float(np.trace(G)), terms.deadline))
    elif name == "level-selection":
        shape = tuple(f.shape[1] for f in W.factors) if W.factors else (n,)
        levels = select_levels(G, shape if prod(shape) == n else (n,), deadline=terms.deadline)
        A = levels.rows(terms.noise)
    else:
        A = generalised_levels(G, max(1, round(n ** (1 / 3))), deadline=terms.deadline).rows(terms.noise)
    return Piece(lift, A, image_columns(lift, W), G)


def _mixing(name: str, block: Block, W: Workload, terms: Terms) -> Piece:
    """Strategies C Y with Y the basis rows: the row space of the workload, no more."""
    Y = block.columns.toarray().astype(np.float64)
    # Rounded floats carry a factor 2^36: rows of length 1 keep the decompositions well scaled.
    length = np.sqrt((Y * Y).mean(axis=1))
    Y, gram = Y / length[:, None], block.gram * np.outer(length, length)
    if name == "svd-approximation":
        return Piece(block.basis, svd_root(gram, Y) / length, block.columns, block.gram)
    metric = solve(block, max(terms.tolerance, 1e-2), terms.deadline).metric / np.outer(length, length)
    C = row_mixing.symmetric_root(metric, gram)
    if name == "low-rank-mechanism":
        C = _decomposed(gram, Y, C, terms)
    elif name in ("min-sensitivity", "augmented"):
        C = least_rotation(C, Y, terms.deadline, min(terms.work, 1e9))
    C = C / length
    if name == "augmented" and W.contributions is None:
        return augmented_piece(block, W, C, terms.noise)
    return Piece(block.basis, C, block.columns, block.gram)


def _decomposed(gram: Floats, Y: Floats, start: Floats, terms: Terms) -> Floats:
    """L of the low-rank mechanism in basis coordinates (p x v): projected on the row space of Y."""
    first = start @ Y
    first /= np.abs(first).sum(axis=0).max()
    found = decompose(cholesky(gram) @ Y, gamma=1e-6, rounds=100, deadline=terms.deadline, start=first)
    C = linalg.lstsq(Y.T, found.right.T)[0].T
    s = linalg.svdvals(C)
    if s[-1] < 1e-6 * s[0]:  # the L1 ball made a row of L vanish; keep the space with a little of the start
        C = np.vstack([C, 0.1 * start / np.abs(start @ Y).sum(axis=0).max()])
    return np.asarray(C)


def augmented_piece(block: Block, W: Workload, C: Floats, noise: str) -> Piece:
    """C over the basis rows, and unit rows until every cell's column reaches the sensitivity."""
    lift, D = cells_of(block)
    A = augmented(C @ D.toarray(), noise)
    extra = A[C.shape[0] :]
    if extra.shape[0] == 0:
        return Piece(block.basis, C, block.columns, block.gram)
    used = np.argmax(extra != 0, axis=1)
    rows: Csr = sparse.csr_array(sparse.vstack([block.basis, lift[used]], format="csr"))
    root = linalg.block_diag(C, np.diag(extra[np.arange(used.size), used]))
    frame = choose_basis(rows, algebra.Diagonal(np.ones(rows.shape[0])))
    held = dense(coordinates(block.basis, frame.rows))
    return Piece(rows, root, image_columns(rows, W), held.T @ block.gram @ held, dense(frame.coords))
