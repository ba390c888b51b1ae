"""The Strategy value: an integer matrix B = mixing @ basis, its exact sensitivity and its error."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import DataError, InternalError, quoted
from dpsql.linalg.forms import dense, is_sparse
from dpsql.workload.cells.integers import Factored, Integers
from dpsql.workload.families.marginals import Marginals
from dpsql.workload.families.matrix import MATRIX_CAP, Workload

Floats = NDArray[np.float64]

NOISES = ("gaussian", "laplace")
OBJECTIVES = ("total", "max")


@dataclass(frozen=True, eq=False)
class Strategy:
    """B = mixing @ basis (p x n integers), to be measured as y = B x + independent integer noise.

    ``mixing`` (p x v): int64 ndarray, or int64 csr_array where it would hold more than 2^23
    entries. ``basis`` (v x n): int64 csr_array. ``contributions`` (n x c, or None for the
    identity): the extreme points by which adding or removing one record changes x; ``l1`` and
    ``l2_squared`` are the largest L1 and squared L2 norms of a column of B @ contributions,
    exact Python integers. A norm is convex, so no record moves y by more.

    ``expected`` is the error (privacy factor left out) on the workload that it was selected for.
    ``lower_bound``: no Gaussian matrix mechanism has a lower error there (None where not computed
    or for Laplace noise). ``considered``: (method, error) of every candidate that was computed.
    ``objective``: what was minimised, the "total" squared error or the largest one of a query ("max"); then
    ``lower_bound`` and ``considered`` are of the largest, ``expected`` is the total all the same.
    """

    method: str
    noise: str
    mixing: Any
    basis: Any
    contributions: Any
    l1: int
    l2_squared: int
    expected: float
    lower_bound: float | None
    considered: tuple[tuple[str, float], ...]
    planned: Workload
    objective: str = "total"
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # One layout, whether it was searched for or read from a file: rounding in later products depends on it.
        if isinstance(self.mixing, np.ndarray):
            object.__setattr__(self, "mixing", np.ascontiguousarray(self.mixing))
        if self.noise not in NOISES:
            raise DataError(f"strategy: noise {quoted(self.noise)} is not known; use 'gaussian' or 'laplace'")
        if self.l1 < 1 or self.l2_squared < 1 or isqrt(self.l2_squared) > self.l1:
            raise InternalError("strategy: sensitivities contradict each other")

    def __repr__(self) -> str:
        p, n = self.shape
        return f"<Strategy {self.method} ({self.noise}): {p} measurements over {n} columns, error {self.expected:.6g}>"

    @property
    def measured(self) -> Integers:
        """B as it is measured."""
        return Factored(self.mixing, self.basis)

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n columns)."""
        return (self.mixing.shape[0], self.basis.shape[1])

    @property
    def sensitivity(self) -> float:
        """Largest change of B x by one record, in the norm of its noise: L2 for gaussian, L1 for laplace."""
        return sqrt(self.l2_squared) if self.noise == "gaussian" else float(self.l1)

    @property
    def gap(self) -> float | None:
        """error / lower bound - 1, from the integers that are measured; None for Laplace noise."""
        if self.noise != "gaussian" or self.lower_bound is None:
            return None
        return max(0.0, self.value / self.lower_bound - 1.0)

    @property
    def value(self) -> float:
        """What was minimised on the planned workload: ``expected``, or the largest squared error of a query."""
        return self.largest(self.planned) if self.objective == "max" else self.expected

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

    def error(self, W: Workload | Marginals) -> float:
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

    def variances(self, W: Workload | Marginals) -> Floats:
        """sensitivity^2 ||w_i B^+||^2 for every query w_i of W (m,): squared errors without the privacy factor.

        They add up to ``error``. Raises InternalError where W is not in the row space of B, DataError where
        its queries are too many to be taken one by one.
        """
        return np.asarray(self.sensitivity**2 * self._frame().variances(self._explicit(W)))

    def largest(self, W: Workload | Marginals) -> float:
        """The largest squared error of a query of W, without the privacy factor; see ``variances``."""
        if W is not self.planned:
            return float(self.variances(W).max())
        if "largest" not in self._cache:
            self._cache["largest"] = float(self.variances(W).max())
        return float(self._cache["largest"])

    @property
    def largest_stderr(self) -> float:
        """The largest standard error of a planned query, for noise of standard deviation 1 at sensitivity 1."""
        return sqrt(self.largest(self.planned))

    def reconstruction(self, W: Workload | Marginals) -> Any:
        """R (m x p), ndarray or csr_array, with R B = W: the least squares answers of W are R y.

        Raises DataError where W has other columns, names queries that the strategy does not support
        (``require``), or where R would have more than 2^27 entries, and 2^25 other than 0; InternalError where the
        residual exceeds 1e-9 of the largest entry of W for a reason of rounding.
        """
        W = self._explicit(W)
        m, p = W.shape[0], self.shape[0]
        frame = self._frame()
        try:
            if m * p <= MATRIX_CAP or frame.thin:
                return frame.reconstruction(W)
            apart = frame.sparse_reconstruction(W, MATRIX_CAP // 4)
            if apart is None:
                raise DataError(
                    f"strategy: the reconstruction would have {m} x {p} entries, above the cap of {MATRIX_CAP}; "
                    "reconstruct fewer queries at a time"
                )
            return apart
        except InternalError:
            if W.shape[0] * W.shape[1] <= MATRIX_CAP:
                self.require(W)  # says which queries, where it is they
            raise

    def unsupported(self, W: Workload | Marginals) -> tuple[int, ...]:
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

    def require(self, W: Workload | Marginals) -> None:
        """Raises DataError naming the queries of W that this strategy does not support; else nothing."""
        missing = self.unsupported(W)
        if missing:
            some = ", ".join(str(i) for i in missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise DataError(
                f"strategy: {len(missing)} of {W.shape[0]} queries are not answered by this strategy: {some}; "
                "select a strategy for them"
            )

    def _explicit(self, W: Workload | Marginals) -> Workload:
        """W over the columns that are measured, marginals written out over all their cells."""
        if W.shape[1] != self.shape[1]:
            raise DataError(
                f"strategy: it measures {self.shape[1]} columns; the workload has {W.shape[1]}; select for that one"
            )
        return W.explicit() if isinstance(W, Marginals) else W

    def _frame(self) -> Any:
        from dpsql.strategy.core.frame import Frame

        if "frame" not in self._cache:
            self._cache["frame"] = Frame(self.mixing, self.basis, self._cache.get("independent", False))
        return self._cache["frame"]
