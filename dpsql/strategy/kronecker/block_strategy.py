"""Marginals under pure epsilon, measured in exact integers and reconstructed, without their cells.

y = B x + z, B the stack of k_S M_S over the blocks S of ``dpsql.strategy.kronecker.marginal_blocks``: M_S x is the
marginal table on S and k_S a whole number in proportion to theta_S, so that one law of Laplace noise serves all.

Guarantee (neighbours: one record more or less in one cell). A column of M_S has a single 1, so every column of B has
the L1 norm sum_S k_S = ``l1`` and the squared L2 norm sum_S k_S^2, exact integers. Integer Laplace noise of scale
l1 / epsilon on each entry is epsilon-differentially private (the Laplace mechanism).

Reconstruction is least squares. The residual T (product of C_i = I - 1 1^T / d_i over i in T) of the
table on S holds k_S r_T with noise of covariance prod_(i in S - T) d_i times C_T, one multiple of C_T for every
S, so the weights k_S / prod_(i in S - T) d_i are best linear ones and residuals of different T are uncorrelated:

    r_T = (1 / N_T) sum_S (k_S / prod_(S - T) d_i) C_T y_S summed over S - T,    N_T = sum_S k_S^2 / prod_(S - T) d_i.

A marginal on U is the sum of r_T / prod_(i in U - T) d_i over T in U; the variance of each of its cells is
sum_T prod_(i in T) (d_i - 1) / d_i / N_T / prod_(U - T) d_i^2 times that of the noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpsql.errors import DataError
from dpsql.strategy.core.base import Strategy
from dpsql.strategy.kronecker.marginal_blocks import BlockPlan, Subset, plan_blocks
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import Workload

Floats = NDArray[np.float64]

METHOD = "marginal-blocks"
NUMBERS_CAP = 2**25  # integers measured
MATRIX_ENTRIES = 2**24  # entries of B up to which it is written out as a matrix
_MATRIX_ROWS = 2000


@dataclass(frozen=True, eq=False, repr=False)
class BlockStrategy(Strategy):
    """Integer measurements k_S M_S of ``multipliers`` S -> k_S, for the ``Marginals`` in ``planned``.

    y holds the tables in the order of ``multipliers``, each with the last attribute fastest. No matrix is made:
    ``matrix`` and ``reconstruction`` refuse large domains, ``integers`` and ``solve`` take their place.
    """

    multipliers: Mapping[Subset, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        p, n = self.shape
        cells = str(n) if n < 10**15 else f"{float(n):.3g}" if n < 10**300 else "over 1e300"
        return f"<BlockStrategy: {p} measurements over {cells} cells, error {self.expected:.6g}>"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each attribute."""
        return cast(Any, self.planned).sizes  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n cells), Python integers of any size."""
        return (sum(self._cells(S) for S in self.multipliers), prod(self.sizes))

    def integers(self, tables: Mapping[Subset, ArrayLike]) -> list[int]:
        """B x as Python integers, exactly, from the tables {S: counts of shape (d_i for i in S)} of the blocks.

        Raises DataError where a block is missing or has another shape or no integer type.
        """
        out: list[int] = []
        for S, k in self.multipliers.items():
            if S not in tables:
                raise DataError(f"strategy: the marginal table on attributes {S} is missing; give one for each block")
            table, shape = np.asarray(tables[S]), tuple(self.sizes[i] for i in S)
            if table.shape != shape or table.dtype.kind not in "iu":
                raise DataError(f"strategy: the marginal table on attributes {S} takes whole counts of shape {shape}")
            out.extend(k * int(v) for v in table.ravel())
        return out

    def residuals(self, y: Sequence[int]) -> dict[Subset, Floats]:
        """Least squares estimates of the residual tables {T: (d_i for i in T)} that the planned marginals need.

        Raises DataError for another number of measurements or for |y| above 2^400.
        """
        if len(y) != self.shape[0]:
            raise DataError(f"strategy: {len(y)} measurements for {self.shape[0]}; give one a row of B")
        exact = np.asarray(y, dtype=object)
        if max(exact.max(), -exact.min()) > 2**400:
            raise DataError("strategy: a measured value exceeds 2^400; the scale of the noise is out of range")
        values, at, tables = exact.astype(np.float64), 0, {}
        for S in self.multipliers:
            shape = tuple(self.sizes[i] for i in S)
            tables[S] = values[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
        out = {}
        for T in cast(Any, self.planned).residuals():
            total: Any = 0.0
            for S, k in self._holding(T):
                part = tables[S].sum(axis=tuple(a for a, i in enumerate(S) if i not in T))
                total = total + part * (k / self._cells(i for i in S if i not in T))
            for axis in range(len(T)):
                total = total - total.mean(axis=axis, keepdims=True)
            out[T] = np.asarray(total / float(self._precision(T)))
        return out

    def marginal(self, S: Sequence[int], residuals: Mapping[Subset, Floats]) -> Floats:
        """The marginal on S (d_i for i in S, ascending), unbiased, from ``residuals``.

        Raises DataError where a residual inside S was not planned for.
        """
        chosen = self._planned(S)
        out = np.zeros(tuple(self.sizes[i] for i in chosen))
        for T in self._inside(chosen):
            shape = tuple(self.sizes[i] if i in T else 1 for i in chosen)
            out += residuals[T].reshape(shape) / self._cells(i for i in chosen if i not in T)
        return out

    def solve(self, y: Sequence[int]) -> dict[Subset, Floats]:
        """All planned marginals from y, consistent with each other."""
        found = self.residuals(y)
        return {S: self.marginal(S, found) for S in cast(Any, self.planned).sets}

    def variance(self, S: Sequence[int]) -> Fraction:
        """The variance of every cell of the marginal on S at noise of variance 1, exact.

        Raises DataError where a residual inside S was not planned for.
        """
        chosen = self._planned(S)
        total = Fraction(0)
        for T in self._inside(chosen):
            top, rest = prod(self.sizes[i] - 1 for i in T), self._cells(i for i in chosen if i not in T)
            total += Fraction(top, self._cells(T) * rest**2) / self._precision(T)
        return total

    def error(self, W: Workload | Marginals) -> float:
        """l1^2 times the sum of the variances of all answers of W, ``inf`` where W is not supported.

        Raises DataError for a workload that is no ``Marginals`` over these attributes.
        """
        if W is self.planned:
            return self.expected
        if not isinstance(W, Marginals) or W.sizes != self.sizes:
            raise DataError(f"strategy: the error is for marginals over attributes of sizes {self.sizes}")
        try:
            return blocks_error(W, self.multipliers)
        except DataError:
            return float("inf")

    def matrix(self) -> Floats:
        """B (p x n) as floats. Raises DataError above 2^24 entries."""
        p, n = self.shape
        if p * n > MATRIX_ENTRIES:
            raise DataError(f"strategy: B would have {p} x {n} entries; use integers and solve")
        rows = [k * block_rows(self.sizes, S).toarray() for S, k in self.multipliers.items()]
        return np.vstack(rows).astype(np.float64)

    def reconstruction(self, W: Workload | Marginals) -> Any:
        """Refused: ``solve`` reconstructs all marginals at once."""
        raise DataError("strategy: blocks of marginals are reconstructed by solve, without a matrix")

    def unsupported(self, W: Workload | Marginals) -> tuple[int, ...]:
        """Refused: ``variance`` tells which marginals are answered."""
        raise DataError("strategy: ask variance about one marginal after the other; there is no matrix to look at")

    def _planned(self, S: Sequence[int]) -> Subset:
        chosen = tuple(sorted(set(S)))
        top = tuple(i for i in chosen if 0 <= i < len(self.sizes) and self.sizes[i] > 1)
        if not all(0 <= i < len(self.sizes) for i in chosen) or top not in cast(Any, self.planned).residuals():
            raise DataError(f"strategy: the marginal on attributes {chosen} was not planned for")
        return chosen

    def _inside(self, S: Subset) -> Iterable[Subset]:
        return _subsets(tuple(i for i in S if self.sizes[i] > 1))

    def _holding(self, T: Subset) -> list[tuple[Subset, int]]:
        held = set(T)
        return [(S, k) for S, k in self.multipliers.items() if held <= set(S)]

    def _precision(self, T: Subset) -> Fraction:
        """N_T."""
        return sum((Fraction(k * k, self._cells(i for i in S if i not in T)) for S, k in self._holding(T)), Fraction(0))

    def _cells(self, S: Iterable[int]) -> int:
        return prod(self.sizes[i] for i in S)


def block_strategy(W: Marginals, tolerance: float = 1e-4, effort: float = 1.0) -> BlockStrategy:
    """Weighted blocks of marginals for W under pure epsilon, in integers within ``tolerance`` of the plan's error.

    No optimum is known: blocks are found by exchange (``dpsql.strategy.kronecker.marginal_blocks``), the error is that
    of the integers. Cost: subsets of the sets times exchanges; no table is made. Raises DataError for a tolerance
    outside (0, 1] and above 2^25 measurements.
    """
    if not 0 < tolerance <= 1:
        raise DataError("strategy: tolerance must be above 0 and at most 1")
    plan = plan_blocks(W, effort)
    count = sum(prod(W.sizes[i] for i in S) for S in plan.blocks)
    if count > NUMBERS_CAP:
        raise DataError(f"strategy: these marginals need over {NUMBERS_CAP} measurements; ask for smaller marginals")
    k, error = _rounded(W, plan, tolerance)
    l1, l2_squared = sum(k.values()), sum(v * v for v in k.values())
    considered = ((METHOD, error),)
    none: Any = None
    planned = cast(Workload, W)
    return BlockStrategy(
        METHOD, "laplace", none, none, None, l1, l2_squared, error, None, considered, planned, multipliers=k
    )


def blocks_error(W: Marginals, multipliers: Mapping[Subset, int]) -> float:
    """(sum_S k_S)^2 sum_T dim_T g_T / nu_T. Raises DataError where a residual space of W is in no block."""
    nu = dict.fromkeys(W.residuals(), 0.0)
    for S, k in multipliers.items():
        share = k * k / float(prod(W.sizes[i] for i in S))
        held = set(S)
        few = 2 ** len(S) <= len(nu)
        inside = _subsets(S) if few else (T for T in nu if held.issuperset(T))
        for T in inside:
            if T in nu:
                nu[T] += share
    total = 0.0
    for T, g in W.residuals().items():
        if nu[T] <= 0:
            raise DataError(f"strategy: the marginal on attributes {T} is not measured")
        total += g * float(W.dimension(T)) / nu[T]
    return float(sum(multipliers.values())) ** 2 * total


def block_rows(sizes: Sequence[int], S: Subset) -> Any:
    """M_S over all cells (0/1, csr): the marginal on S, its last attribute fastest."""
    out: Any = sparse.csr_array(np.ones((1, 1), dtype=np.int64))
    for i, d in enumerate(sizes):
        axis = sparse.eye_array(d, dtype=np.int64, format="csr") if i in S else np.ones((1, d), dtype=np.int64)
        out = sparse.csr_array(sparse.kron(out, sparse.csr_array(axis), format="csr"))
    return out


def written_out(plan: BlockStrategy, W: Marginals, considered: tuple[tuple[str, float], ...] = ()) -> Strategy | None:
    """``plan`` as a strategy with a matrix over all cells of W; None where B has over 2^24 entries or 2,000 rows."""
    p, n = plan.shape
    if p * n > MATRIX_ENTRIES or p > _MATRIX_ROWS:
        return None
    parts = [block_rows(W.sizes, S) for S in plan.multipliers]
    rows = sparse.csr_array(sparse.vstack(parts, format="csr")).astype(np.int64)
    k = np.concatenate([np.full(q.shape[0], v) for q, v in zip(parts, plan.multipliers.values(), strict=True)])
    mixing = sparse.csr_array(sparse.diags_array(k.astype(np.int64), dtype=np.int64))
    ranked = (*considered, *plan.considered)
    explicit = W.explicit()
    return Strategy(
        METHOD, "laplace", mixing, rows, None, plan.l1, plan.l2_squared, plan.expected, None, ranked, explicit
    )


def _rounded(W: Marginals, plan: BlockPlan, tolerance: float) -> tuple[dict[Subset, int], float]:
    """(k, error): whole numbers in proportion to the weights, doubled until the loss is within ``tolerance``."""
    least, step = min(plan.weights), 1
    while True:
        k = {S: max(1, round(step * (w / least))) for S, w in zip(plan.blocks, plan.weights, strict=True)}
        error = blocks_error(W, k)
        if error <= (1.0 + tolerance) * plan.error or step >= 2**20:
            return k, error
        step *= 2


def _subsets(S: Subset) -> list[Subset]:
    return [T for order in range(len(S) + 1) for T in combinations(S, order)]
