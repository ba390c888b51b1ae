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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, prod, sqrt
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.errors import DataError
from dpsql.strategy.core.integer import Piece
from dpsql.strategy.core.simple import moved_columns
from dpsql.strategy.marginals.multipliers import Subset, subsets
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import MATRIX_CAP, Workload

Floats = NDArray[np.float64]

SUBSETS_CAP = 2_000_000
ENTRIES_CAP = 2**24


@dataclass(frozen=True, eq=False)
class ResidualPlan:
    """``scale`` T -> s_T for the subsets T in use, ``error`` = (sum_T (c_T p_T)^1/2)^2 at sensitivity 1."""

    sizes: tuple[int, ...]
    sets: tuple[Subset, ...]
    weights: tuple[float, ...]
    scale: Mapping[Subset, float]
    error: float

    def integer_variance(self, T: Subset) -> float:
        """The iid noise variance on the rows of B_T at mu = 1: s_T prod_(i in T) d_i^2."""
        return self.scale[T] * prod(float(self.sizes[i]) ** 2 for i in T)

    def integer_rows(self, T: Subset) -> NDArray[np.int64]:
        """B_T on the marginal of T: product over i in T of (d_i I - 1 1^T), square of order prod d_i, T in order.

        Raises DataError above 2^24 entries.
        """
        if prod(self.sizes[i] for i in T) ** 2 > ENTRIES_CAP:
            raise DataError(f"strategy: the residual of attributes {T} is too large to be written out")
        out = np.ones((1, 1), dtype=np.int64)
        for i in T:
            d = self.sizes[i]
            out = np.kron(out, d * np.eye(d, dtype=np.int64) - 1)
        return out

    def variance(self, S: Sequence[int]) -> float:
        """The variance of every cell of the marginal on S at mu = 1: sum over T in S of s_T p_T / prod_(S - T) d_i^2.

        Raises DataError where a subset of S is not measured.
        """
        chosen = tuple(sorted(set(S)))
        total = 0.0
        for T in subsets(chosen):
            if T not in self.scale:
                raise DataError(f"strategy: the marginal on attributes {chosen} was not planned for")
            p = prod((self.sizes[i] - 1) / self.sizes[i] for i in T)
            total += self.scale[T] * p / prod(float(self.sizes[i]) ** 2 for i in chosen if i not in T)
        return total


def residual_plan(
    sizes: Sequence[int],
    sets: Iterable[Sequence[int]],
    weights: Sequence[float] | None = None,
) -> ResidualPlan:
    """The optimal Gaussian plan for marginals on ``sets`` (attribute numbers) of attributes of ``sizes``.

    ``weights``: the squared weight of each marginal, 1 unless given. Cost: the total number of subsets of the
    sets, refused above 2,000,000. Raises DataError for unknown attributes, sizes below 1, no sets, weights <= 0.
    """
    d = tuple(index(s) for s in sizes)
    given = [tuple(sorted({index(i) for i in S})) for S in sets]
    if not given or any(s < 1 for s in d) or any(not 0 <= i < len(d) for S in given for i in S):
        raise DataError("strategy: marginals need at least one set of attribute numbers and sizes of at least 1")
    w = [1.0] * len(given) if weights is None else [float(v) for v in weights]
    if len(w) != len(given) or not all(np.isfinite(v) and v > 0 for v in w):
        raise DataError(f"strategy: {len(w)} weights for {len(given)} marginals; give one positive weight each")
    if sum(2 ** len(S) for S in given) > SUBSETS_CAP:
        raise DataError(f"strategy: the marginals have more than {SUBSETS_CAP} subsets; ask for smaller marginals")
    c: dict[Subset, float] = {}
    for S, weight in zip(given, w, strict=True):
        for T in subsets(S):
            inside = set(T)
            term = weight * prod(d[i] - 1 for i in T) * exp(-sum(log(d[i]) for i in S if i not in inside))
            c[T] = c.get(T, 0.0) + term
    # Attributes of one value have no residual: their terms are zero and are not measured.
    found = {T: value for T, value in c.items() if value > 0}
    p = {T: prod((d[i] - 1) / d[i] for i in T) for T in found}
    root = sum(sqrt(found[T] * p[T]) for T in found)
    scale = {T: sqrt(p[T] / found[T]) * root for T in sorted(found, key=lambda T: (len(T), T))}
    return ResidualPlan(d, tuple(given), tuple(w), scale, root**2)


def plan_of(W: Marginals) -> ResidualPlan:
    """The optimal Gaussian plan of weighted marginals; each cuboid's weight counts squared."""
    return residual_plan(W.sizes, W.sets, [w * w for w in W.weights])


def all_marginals(attributes: int, ways: Iterable[int]) -> list[Subset]:
    """All sets of the given numbers of attributes: ``all_marginals(100, (1, 2))`` are 5,050 sets."""
    return [S for k in ways for S in combinations(range(attributes), k)]


def helmert(d: int) -> NDArray[np.int64]:
    """(d - 1) x d orthogonal integer rows that span what sums to zero: 1, ..., 1, -k, 0, ..., 0."""
    rows = np.tri(d - 1, d, dtype=np.int64)
    rows[np.arange(d - 1), np.arange(1, d)] = -np.arange(1, d)
    return rows


def fits(plan: ResidualPlan) -> bool:
    """Whether ``residual_piece`` writes the plan out."""
    count = sum(prod(plan.sizes[i] - 1 for i in T) for T in plan.scale)
    return count * prod(plan.sizes) <= ENTRIES_CAP and len(plan.sets) * prod(plan.sizes) <= MATRIX_CAP


def residual_piece(plan: ResidualPlan, W: Workload) -> Piece:
    """The plan as one integer strategy with equal noise, written out over all cells of W.

    Orthogonal rows of each C_i (Helmert's) make every residual a set of independent integer rows; row r of
    residual T is weighted 1 / (||r|| s_T^1/2), in the norm of its own axes, which has the same Gram matrix.
    Raises DataError where W has other cells or the rows more than 2^24 entries.
    """
    n = prod(plan.sizes)
    if W.shape[1] != n or W.contributions is not None:
        raise DataError(f"strategy: marginals over {n} cells do not fit a workload of {W.shape[1]} columns")
    if not fits(plan):
        raise DataError(
            f"strategy: the residual rows over {n} cells would have over {ENTRIES_CAP} entries; use "
            "strategy.residual_strategy"
        )
    rows, weight, gram = [], [], []
    for T, s in plan.scale.items():
        out: Any = sparse.csr_array(np.ones((1, 1), dtype=np.int64))
        squares = np.ones(1)
        for i, d in enumerate(plan.sizes):
            axis = helmert(d) if i in T else np.ones((1, d), dtype=np.int64)
            out = sparse.csr_array(sparse.kron(out, sparse.csr_array(axis), format="csr"))
            if i in T:
                squares = np.kron(squares, (axis * axis).sum(axis=1).astype(np.float64))
        rows.append(out)
        weight.append(1.0 / np.sqrt(squares * s))
        # G on residual T is g_T times its projection, g_T = sum_S w_S prod_(not in S) d_i.
        g = sum(
            w * prod(d for i, d in enumerate(plan.sizes) if i not in S)
            for S, w in zip(plan.sets, plan.weights, strict=True)
            if set(T) <= set(S)
        )
        others = prod(d for i, d in enumerate(plan.sizes) if i not in T)
        gram.append(g / (squares * others))
    span = sparse.csr_array(sparse.vstack(rows, format="csr"))
    return Piece(span, np.concatenate(weight), moved_columns(span, W), np.concatenate(gram))
