"""Marginals under pure epsilon by rows of signs: residuals of many sets in one block of the max-norm.

Column i of d_i values gets the rows H_i, all but the first of a Hadamard matrix of order D_i (the power of two from d_i
on), cut to d_i columns: entries +-1 and H_i^T H_i = D_i I - 1 1^T. For a binary column that is the one row (1, -1), the
Fourier character. The residual of a set T is measured by the product of its H_i, p_T = prod (D_i - 1) rows of +-1, so
that a record moves every row of a block by +-k and pays k once, however many sets the block holds: k is the norm of
``dpsql.strategies.core.blocks``. A block of m rows multiplies the variance by f_m = (m + 1)(m + 2) / 6. Proof of the
sensitivity: every column of a block has the largest absolute entry k, so that of all is the sum of the k, exactly.

On what is orthogonal to 1, H_i^T H_i is D_i times the identity: the residual T is estimated with the covariance
f_m C_T / (k^2 prod D_i) (``dpsql.strategies.marginals.marginal_strategy``). With weights e_b = f_m sum_T e_T of a block
the best k_b are proportional to e_b^(1/3), with the total (sum_b e_b^(1/3))^3. Sets of one size and weight begin as one
block; two blocks become one while that total falls. For binary columns the whole is of the order of the Gaussian
optimum times the number of sets, where blocks of whole tables (``marginal_blocks``) add the square of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod

import numpy as np
import scipy

from dpsql.common.arrays import Ints
from dpsql.common.numerics import DIGITS
from dpsql.strategies.marginals.multipliers import Subset
from dpsql.workloads.families.marginals import Marginals


@dataclass(frozen=True, eq=False)
class SignPlan:
    """``blocks``: the sets of each; ``shares``: of epsilon; ``error`` at sensitivity 1, the privacy factor left out."""

    blocks: tuple[tuple[Subset, ...], ...]
    shares: tuple[float, ...]
    error: float


def signs(d: int) -> Ints:
    """H (D - 1 x d): rows of +-1, H^T H = D I - 1 1^T for D the power of two from d on."""
    D = order_of(d)
    return np.ascontiguousarray(scipy.linalg.hadamard(D, dtype=np.int64)[1:, :d])


def order_of(d: int) -> int:
    """D, the power of two from d on."""
    return 1 << (d - 1).bit_length()


def rows_of(sizes: Sequence[int], T: Subset) -> int:
    """p_T, how many rows measure the residual T."""
    return prod(order_of(sizes[i]) - 1 for i in T)


def factor(size: int) -> Fraction:
    """The variance in a block of ``size`` rows over that of one alone."""
    return Fraction((size + 1) * (size + 2), 6)


def precision(sizes: Sequence[int], T: Subset, k: int, size: int) -> Fraction:
    """N_T = k^2 prod D_i / f_m, in units of Laplace noise of the same scale."""
    return Fraction(k * k * prod(order_of(sizes[i]) for i in T)) / factor(size)


def sign_plan(W: Marginals) -> SignPlan:
    """The blocks of least error for weighted marginals. Cost: subsets of the sets, and the square of the groups."""
    sizes = W.sizes
    cost = {
        T: g * float(W.dimension(T)) * float(Fraction(prod(sizes[i] for i in T), prod(order_of(sizes[i]) for i in T)))
        for T, g in W.residuals().items()
    }
    groups: dict[tuple[int, float], list[Subset]] = {}
    for T in cost:
        groups.setdefault((len(T), float(f"{cost[T] / rows_of(sizes, T):.{DIGITS}g}")), []).append(T)
    held = [(tuple(group), rows_of_all(sizes, group), sum(cost[T] for T in group)) for group in groups.values()]
    return _merged(held)


def rows_of_all(sizes: Sequence[int], sets: Sequence[Subset]) -> int:
    return sum(rows_of(sizes, T) for T in sets)


def _merged(blocks: list[tuple[tuple[Subset, ...], int, float]]) -> SignPlan:
    """Blocks (sets, rows, weight) joined two by two while the total falls."""

    def root(rows: int, weight: float) -> float:
        return float((float(factor(rows)) * weight) ** (1.0 / 3.0))

    while len(blocks) > 1:
        gains = [
            (root(a[1], a[2]) + root(b[1], b[2]) - root(a[1] + b[1], a[2] + b[2]), i, j)
            for (i, a), (j, b) in combinations(enumerate(blocks), 2)
        ]
        gain, i, j = max(gains)
        if gain <= 0:
            break
        a, b = blocks[i], blocks[j]
        joined = a[0] + b[0], a[1] + b[1], a[2] + b[2]
        blocks = [*(other for at, other in enumerate(blocks) if at not in (i, j)), joined]
    roots = [root(rows, weight) for _, rows, weight in blocks]
    return SignPlan(tuple(part[0] for part in blocks), tuple(r / sum(roots) for r in roots), sum(roots) ** 3)
