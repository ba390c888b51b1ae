"""Marginals and data cubes over any number of attributes: the residual basis.

For attributes 1..k of sizes d_i and a subset T, the residual space of T is that of the product over i of
(C_i = I - 1 1^T / d_i where i in T, 1^T elsewhere). These spaces are orthogonal, a marginal on S needs those of
T inside S, and none needs any other (Xiao et al. 2023 use the basis for planning; the closed form below is ours
from Li and Miklau 2013, Thm 5.5: data-cube workloads meet the singular value bound). With w_S the squared weight
of the marginal on S,

    c_T = sum over S containing T of w_S prod_(i in T) (d_i - 1) prod_(i in S, not T) 1 / d_i,
    p_T = prod_(i in T) (d_i - 1) / d_i,

noise of covariance s_T C_T on residual T, s_T = (p_T / c_T)^1/2 sum_U (c_U p_U)^1/2, meets the privacy
condition sum_T p_T / s_T = 1 with equality for every cell, and the error (sum_T (c_T p_T)^1/2)^2 is the singular
value bound. Sums run over the given sets and their subsets only: 10^100 cells cost what 5,051 sets cost.

Measured in integers: B_T = product over i in T of (d_i I - 1 1^T), over the rest 1^T, with iid noise of variance
s_T prod_(i in T) d_i^2 times 1 / mu^2. Guarantee for mu-Gaussian differential privacy under adding or removing one
record: its column j contributes sum_T ||B_T e_j||^2 / (s_T prod d_i^2) = sum_T p_T / s_T = 1, for
||(d I - 1 1^T) e_j||^2 = d (d - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Csr
from dpsql.errors import DataError
from dpsql.linalg.forms import MATRIX_CAP, sparse_kron
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.limits import WRITTEN
from dpsql.strategies.core.simple import image_columns
from dpsql.strategies.marginals.multipliers import Subset
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload


@dataclass(frozen=True, eq=False)
class ResidualPlan:
    """``scale`` T -> s_T for the subsets T in use, ``error`` = (sum_T (c_T p_T)^1/2)^2 at sensitivity 1."""

    planned: Marginals
    scale: Mapping[Subset, float]
    error: float


def residual_plan(W: Marginals) -> ResidualPlan:
    """The optimal Gaussian plan of weighted marginals; each cuboid's weight counts squared.

    Cost: the total number of subsets of the sets.
    """
    sizes = W.sizes
    c = {T: g * float(W.dimension(T)) * float(prod(sizes[i] for i in T)) for T, g in W.residuals().items()}
    p = {T: prod((sizes[i] - 1) / sizes[i] for i in T) for T in c}
    root = sum(sqrt(c[T] * p[T]) for T in c)
    return ResidualPlan(W, {T: sqrt(p[T] / c[T]) * root for T in c}, root**2)


def helmert(d: int) -> NDArray[np.int64]:
    """(d - 1) x d orthogonal integer rows that span what sums to zero: 1, ..., 1, -k, 0, ..., 0."""
    rows = np.tri(d - 1, d, dtype=np.int64)
    rows[np.arange(d - 1), np.arange(1, d)] = -np.arange(1, d)
    return rows


def fits(plan: ResidualPlan) -> bool:
    """Whether ``residual_piece`` writes the plan out."""
    W, n = plan.planned, plan.planned.shape[1]
    return W.rank * n <= WRITTEN and len(W.sets) * n <= MATRIX_CAP


def residual_piece(plan: ResidualPlan, W: Workload) -> Piece:
    """The plan as one integer strategy with equal noise, written out over all cells of W.

    Orthogonal rows of each C_i (Helmert's) make every residual a set of independent integer rows; row r of
    residual T is weighted 1 / (||r|| s_T^1/2), in the norm of its own axes, which has the same Gram matrix.
    Raises DataError where W has other cells or the rows more than 2^24 entries.
    """
    sizes, n = plan.planned.sizes, plan.planned.shape[1]
    if W.shape[1] != n or W.contributions is not None:
        raise DataError(f"strategy: marginals over {n} cells do not fit a workload of {W.shape[1]} columns")
    if not fits(plan):
        raise DataError(
            f"strategy: the residual rows over {n} cells would have over {WRITTEN} entries; use "
            "strategy.residual_strategy"
        )
    rows, weight, gram = [], [], []
    for T, g in plan.planned.residuals().items():
        out: Csr = sparse.csr_array(np.ones((1, 1), dtype=np.int64))
        squares = np.ones(1)
        for i, d in enumerate(sizes):
            axis = helmert(d) if i in T else np.ones((1, d), dtype=np.int64)
            out = sparse_kron(out, sparse.csr_array(axis))
            if i in T:
                squares = np.kron(squares, (axis * axis).sum(axis=1).astype(np.float64))
        rows.append(out)
        weight.append(1.0 / np.sqrt(squares * plan.scale[T]))
        # G on residual T is n g_T times its projection.
        gram.append(g * float(prod(sizes[i] for i in T)) / squares)
    span = sparse.csr_array(sparse.vstack(rows, format="csr"))
    return Piece(span, np.concatenate(weight), image_columns(span, W), np.concatenate(gram))
