"""The eigen-design: weighted eigenvectors of the workload, then column completion.

Li and Miklau 2012 (in Li and Miklau 2013, Table 2 and Ex. 5.7): with G = Q^T diag(sigma) Q choose squared
weights u of the eigenvectors, min sum_i sigma_i / u_i subject to sum_i u_i Q_ij^2 <= 1 for every cell j; then
add, for every cell whose column falls short of the sensitivity, a multiple of that cell's own count, which
costs no sensitivity and never raises an error (Li and Miklau 2011, Thm 3.1). Completion is done once, over all
cells of a product jointly.

Our way to the weights: the dual over cell weights lambda >= 0 with sum 1 is the largest t^2,
t = sum_i (sigma_i c_i)^1/2, c = (Q o Q) lambda, with u_i = (sigma_i / c_i)^1/2 and q = (Q o Q)^T u, for which
sum lambda_j q_j = t: the same ascent as for the certified optimum, one matrix-vector product a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy import linalg

from dpsql.common.arrays import Floats
from dpsql.linalg.forms import kron, sparse_kron
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block, cholesky
from dpsql.strategies.core.simple import cell_gram, cells_of, image_columns
from dpsql.strategies.core.symmetric import Lines, solve
from dpsql.workloads.families.matrix import Workload

_RIDGE = 1e-7


@dataclass(frozen=True, eq=False)
class Design:
    """``vectors`` (r x N) orthonormal rows, ``squares`` u (r,): A = diag(u^1/2) vectors, largest column norm 1."""

    vectors: Floats
    squares: Floats
    values: Floats

    def metric(self) -> Floats:
        """A^T A before completion (N x N)."""
        return np.asarray((self.vectors.T * self.squares) @ self.vectors)


def design(G: Floats, deadline: float, tolerance: float = 1e-4) -> Design:
    """Weights of the eigenvectors of G (N x N). Cost one eigendecomposition and O(r N) a step."""
    s, V = linalg.eigh(G, driver="evd")
    keep = s > s[-1] * 1e-10
    sigma, Q = np.asarray(s[keep]), np.asarray(V[:, keep].T)
    found = solve([Lines(np.ones(sigma.size), np.sqrt(sigma), (Q * Q).T)], tolerance, deadline)
    return Design(Q, found.metrics[0], sigma)


def product(designs: list[Design]) -> Design:
    """The design of a Kronecker product: eigenvectors, values and weights all multiply (the dual factorises)."""
    out = designs[0]
    for d in designs[1:]:
        out = Design(*(kron(a, b) for a, b in zip(_parts(out), _parts(d), strict=True)))
    return out


def completed(M: Floats) -> Floats:
    """M with its diagonal raised to the largest entry: column completion, and a ridge of 1e-7 for the rank."""
    out = M.copy()
    np.fill_diagonal(out, float(np.diag(M).max()) * (1.0 + _RIDGE))
    return out


def eigen_piece(block: Block, W: Workload, deadline: float) -> Piece:
    """The eigen-design of one block; without completion where one record moves several columns of x."""
    if W.contributions is not None:
        # The cells of a record are then points, not columns; weights suit the points, completion does not apply.
        Y = block.columns.toarray().astype(np.float64)
        U = block.factor() @ Y
        found = design(U.T @ U, deadline)
        # vectors = H U, H = diag(sigma^-1) vectors U^T
        H = (found.vectors @ U.T) / found.values[:, None]
        return Piece(block.basis, np.sqrt(found.squares)[:, None] * (H @ block.factor()), block.columns, block.gram)
    lift, D = cells_of(block)
    G = cell_gram(block, D)
    M = completed(design(G, deadline).metric())
    return Piece(lift, cholesky(M), image_columns(lift, W), G)


def eigen_product_piece(W: Workload, blocks: list[Block], deadline: float) -> Piece:
    """The eigen-design of a product of blocks that cover all cells of their factors, completed jointly."""
    lifts, grams = [], []
    for block in blocks:
        lift, D = cells_of(block)
        lifts.append(lift)
        grams.append(cell_gram(block, D))
    M = completed(product([design(G, deadline) for G in grams]).metric())
    rows = reduce(sparse_kron, lifts)
    return Piece(rows, cholesky(M), image_columns(rows, W), reduce(kron, grams))


def _parts(d: Design) -> tuple[Floats, Floats, Floats]:
    return d.vectors, d.squares, d.values
