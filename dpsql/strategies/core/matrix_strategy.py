"""A strategy that is one integer matrix, B = mixing @ basis: its exact sensitivity and its error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Matrix
from dpsql.errors import DataError, InternalError, quoted
from dpsql.linalg.basis import check
from dpsql.linalg.forms import MATRIX_CAP, dense, is_sparse
from dpsql.reconstruct import Answers, MatrixAnswers
from dpsql.strategies.core.base import NOISES, AnyWorkload, Strategy
from dpsql.strategies.core.blocks import evened, whitening
from dpsql.strategies.core.frame import Frame
from dpsql.workloads.cells.integers import Factored, Integers
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.families.marginals import Marginals
from dpsql.workloads.families.matrix import Workload


@dataclass(frozen=True, eq=False)
class MatrixStrategy(Strategy):
    """B = mixing @ basis (p x n integers), to be measured as y = B x + integer noise, independent but for ``blocks``.

    ``mixing`` (p x v): int64 ndarray, or int64 csr_array where it would hold more than 2^23
    entries. ``basis`` (v x n): int64 csr_array. ``contributions`` (n x c, or None for the
    identity): the extreme points by which adding or removing one record changes x; ``l1`` and
    ``l2_squared`` are the largest L1 and squared L2 norms of a column of B @ contributions,
    exact Python integers. A norm is convex, so no record moves y by more. With ``blocks`` ``l1`` is in their norm.
    """

    method: str
    noise: str
    mixing: Matrix
    basis: Csr
    contributions: Csr | None
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    planned: Workload
    objective: str = "total"
    blocks: tuple[int, ...] = ()
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # One layout, whether it was searched for or read from a file: rounding in later products depends on it.
        if isinstance(self.mixing, np.ndarray):
            object.__setattr__(self, "mixing", np.ascontiguousarray(self.mixing))
        if self.noise not in NOISES:
            raise DataError(f"strategy: noise {quoted(self.noise)} is not known; use 'gaussian' or 'laplace'")
        if self.blocks and (self.noise != "laplace" or sum(self.blocks) != self.mixing.shape[0]):
            raise InternalError("strategy: blocks are of all rows that are measured, for pure noise")
        if self.l1 < 1 or self.l2_squared < 1 or (not self.blocks and isqrt(self.l2_squared) > self.l1):
            raise InternalError("strategy: sensitivities contradict each other")

    def __repr__(self) -> str:
        p, n = self.shape
        noise = "pure, in blocks" if self.blocks else self.noise
        return f"<Strategy {self.method} ({noise}): {p} measurements over {n} columns, error {self.expected:.6g}>"

    @functools.cached_property
    def measured(self) -> Integers:
        return Factored(self.mixing, self.basis)

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n columns)."""
        return (self.mixing.shape[0], self.basis.shape[1])

    @property
    def independent(self) -> int:
        """The rows of the mixing or of the basis, whichever are fewer."""
        return min(self.shape[0], int(self.basis.shape[0]))

    @property
    def reduced(self) -> Workload | None:
        """The planned workload."""
        return self.planned

    def matrix(self) -> Floats:
        """B (p x n) as floats. Raises DataError above 2^27 entries."""
        p, n = self.shape
        if p * n > MATRIX_CAP:
            raise DataError(
                f"strategy: B would have {p} x {n} entries, above the cap of {MATRIX_CAP}; use mixing and basis"
            )
        mixing = self.mixing if is_sparse(self.mixing) else np.asarray(self.mixing, dtype=np.float64)
        out = mixing @ self.basis
        return np.asarray(dense(out), dtype=np.float64)

    def error(self, W: AnyWorkload) -> float:
        """sensitivity^2 ||W B^+||_F^2: the total squared error of W without the privacy factor.

        Times 2 / epsilon^2 for Laplace noise, times the variance of a unit-sensitivity Gaussian
        mechanism otherwise. ``inf`` where W is not in the row space of B.
        """
        if W is self.planned:
            return self.expected
        W = self._explicit(W)
        try:
            trace = self._frame().trace(W)
        except InternalError:
            return float("inf")
        return float(self.sensitivity**2 * trace)

    def variances(self, W: AnyWorkload) -> Floats:
        """sensitivity^2 ||w_i B^+||^2 for every query w_i of W (m,): squared errors without the privacy factor.

        They add up to ``error``. Raises InternalError where W is not in the row space of B, DataError where
        its queries are too many to be taken one by one.
        """
        return np.asarray(self.sensitivity**2 * self._frame().variances(self._explicit(W)))

    def largest(self, W: AnyWorkload) -> float:
        """The largest squared error of a query of W, without the privacy factor; see ``variances``."""
        if W is not self.planned:
            return super().largest(W)
        known, value = self._cache.get("largest", (None, 0.0))
        if known is not W:  # a strategy that was planned otherwise may share the cache
            value = super().largest(W)
            self._cache["largest"] = W, value
        return float(value)

    def instead(self, W: Workload, objective: str) -> MatrixStrategy:
        """The same for W and an objective, with its error in their units and nothing proven of it."""
        return replace(self, planned=W, expected=self.error(W), lower_bound=None, considered=(), objective=objective)

    def reconstruction(self, W: AnyWorkload) -> Matrix:
        """R (m x p), ndarray or csr_array, with R B = W: the least squares answers of W are R y.

        Raises DataError where W has other columns, names queries that the strategy does not support
        (``require``), or where R would have more than 2^27 entries, and 2^25 other than 0; InternalError where the
        residual exceeds 1e-9 of the largest entry of W for a reason of rounding.
        """
        W = self._explicit(W)
        try:
            found = self._frame().reconstruction(W, MATRIX_CAP)
            if found is None:
                raise DataError(
                    f"strategy: the reconstruction would have {W.shape[0]} x {self.shape[0]} entries, above the cap of "
                    f"{MATRIX_CAP}; reconstruct fewer queries at a time"
                )
            return self._of_measured(found)
        except InternalError:
            if W.shape[0] * W.shape[1] <= MATRIX_CAP:
                self.require(W)  # says which queries, where it is they
            raise

    def unsupported(self, W: AnyWorkload) -> tuple[int, ...]:
        """The numbers (rows of W, from 0) of the queries that are no combination of the measurements.

        A query is refused where its part outside the row space of B exceeds 1e-9 of its length. Cost
        O(v^2 n + m v n). Raises DataError where W has other columns or more than 2^27 entries.
        """
        M = self._explicit(W).matrix()
        rows = self._frame().rows.toarray().astype(np.float64)
        rows /= np.sqrt((rows * rows).sum(axis=1))[:, None]
        Q = np.linalg.qr(rows.T)[0]
        rest = np.sqrt(((M - (M @ Q) @ Q.T) ** 2).sum(axis=1))
        return tuple(int(i) for i in np.flatnonzero(rest > 1e-9 * np.sqrt((M * M).sum(axis=1))))

    def require(self, W: AnyWorkload) -> None:
        """Raises DataError naming the queries of W that this strategy does not support; else nothing."""
        missing = self.unsupported(W)
        if missing:
            some = ", ".join(str(i) for i in missing[:8]) + (", ..." if len(missing) > 8 else "")
            count = self._explicit(W).shape[0]
            raise DataError(
                f"strategy: {len(missing)} of {count} queries are not answered by this strategy: {some}; "
                "select a strategy for them"
            )

    def singular_bound(self, of: Callable[[Workload | Marginals], float]) -> float:
        """That of the planned workload."""
        return of(self.planned)

    def answers_of(self, batch: Batch) -> Answers:
        """Least squares over all measurements. Raises InternalError for a batch that is not compiled to one matrix."""
        matrix = batch.matrix
        if matrix is None:
            raise InternalError("strategy: one matrix measures a batch that was compiled to one")
        if not matrix.repeats:
            return MatrixAnswers.of(self.reconstruction(matrix.workload(matrix.scale)), matrix.answered, matrix.numbers)
        once = matrix.once
        R = self.reconstruction(matrix.distinct.weighed(once.scale[once.answered]))
        return MatrixAnswers(R, MatrixAnswers.of(R, once.answered, once.scale.size).place[once.place])

    def _explicit(self, W: AnyWorkload) -> Workload:
        """W over the columns that are measured, marginals written out over all their cells."""
        if not isinstance(W, Workload | Marginals):
            raise DataError("strategy: one matrix answers workloads over its columns, not a batch of blocks")
        if W.shape[1] != self.shape[1]:
            raise DataError(
                f"strategy: it measures {self.shape[1]} columns; the workload has {W.shape[1]}; select for that one"
            )
        return W.explicit()

    def _of_measured(self, R: Matrix) -> Matrix:
        """R for the measurements from R for these over the deviations of their noise."""
        if not self.blocks:
            return R
        inverse = whitening(self.blocks)
        return sparse.csr_array(R @ inverse) if is_sparse(R) else np.asarray(R @ inverse)

    def _frame(self) -> Frame:
        if "frame" not in self._cache:
            even = evened(self.mixing, self.blocks)
            placed = self._cache.pop("placed", None)
            self._cache["frame"] = self._framed(even, *placed) if placed else None
            if self._cache["frame"] is None:
                self._cache["frame"] = Frame(even, self.basis, self._cache.get("independent", False))
        found: Frame = self._cache["frame"]
        return found

    def _framed(self, even: Matrix, rows: Csr, coords: Matrix | None, span: Csr, span_coords: Matrix) -> Frame | None:
        """The frame in ``rows`` that were chosen before, with the coordinates of ``span``; None where these fail."""
        try:
            check(span, span_coords, rows)
        except InternalError:
            return None
        frame = Frame(even if coords is None else even.astype(np.float64) @ coords, rows, independent=True)
        frame.hold(span, span_coords)
        return frame
