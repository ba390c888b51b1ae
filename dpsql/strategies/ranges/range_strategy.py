"""All ranges over up to 2^20 cells measured in exact integers, without a matrix.

B = C diag(d): C_ij = f(i - j) - f(i + j) with the integers f(k) nearest to 2^17 times the kernel of L^-1/4, and
integers d_j below 2^18 in proportion to the inverse norms of the columns of C. B is two vectors of integers, and what
``dpsql.strategies.ranges.range_transform`` says of L^-1/4 holds of C itself, rounding included, for the sine transform
diagonalises C whatever f is (``dpsql.linalg.sine``):

- B x is an exact integer convolution, for every int64 x;
- the squared norm of column j is d_j^2 (C^2)_jj, an exact integer, and the sensitivity their maximum;
- C has the eigenvalues c_m, all at least 2^17 / sqrt(2) up to the rounding of f, so B has full rank;
- B^-1 = diag(1 / d) C^-1 by two FFTs, and the error l2_squared tr(G (B^T B)^-1) is that of B, in O(n log^2 n).

f need not be the kernel to the last digit, so it is taken from the next length whose FFT is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix
from dpsql.errors import DataError, InternalError
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.linalg.prefix_line import largest_product
from dpsql.linalg.sine import SineMatrix, cosine_sums
from dpsql.strategies.core.base import AnyWorkload
from dpsql.strategies.core.limits import FACTOR_BITS, KERNEL_BITS
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.ranges.range_transform import all_ranges, range_transform, roots, total_error
from dpsql.workloads.families.matrix import Workload

_REFINED = 2.0**40  # measurements above so many sensitivities lose digits as floats that noise does not cover


@dataclass(frozen=True, eq=False, repr=False)
class RangeStrategy(MatrixStrategy):
    """B = C diag(d) (n x n) for all ranges over n cells; ``mixing`` is the ``SineMatrix`` C, ``basis`` diag(d).

    Neighbouring relation: one record more or less in one cell, so B x moves by a column of B. ``l2_squared`` and
    ``l1`` are the largest squared L2 and L1 norms of a column, exact. y = B x + z with z rounded Gaussian of variance
    l2_squared / mu^2 is mu-GDP: B x is computed exactly for every int64 x (no rounding, no overflow, no check of the
    data), so y post-processes the Gaussian mechanism.
    """

    mixing: SineMatrix  # type: ignore[assignment] # a matrix that is never written out

    @property
    def reduced(self) -> None:
        """None: it is planned whole."""
        return None

    @property
    def factors(self) -> Ints:
        return np.asarray(self.basis.diagonal(), dtype=np.int64)

    def integers(self, x: ArrayLike) -> list[int]:
        """B x for counts x (n,) of an integer type of at most 64 bits, as Python integers, exactly.

        Raises DataError for other shapes and types. Cost: 12 to 14 FFTs of length 2 n, 1 s at n = 2^20.
        """
        given = np.asarray(x)
        if given.shape != (self.shape[1],) or given.dtype.kind not in "iu" or given.dtype == np.uint64:
            raise DataError(f"strategy: the ranges measure {self.shape[1]} counts of type int64")
        out: list[int] = self.mixing.product(given.astype(np.int64), self.factors).integers()
        return out

    def solve(self, y: Sequence[int]) -> Floats:
        """B^-1 y (n,), the least squares estimate of x, to about 1e-12 of its largest entry.

        Where y is so large that floats would lose digits above the noise, the residual of the rounded
        estimate is computed exactly and solved again. Raises DataError for other lengths and for |y| above 2^400.
        """
        if len(y) != self.shape[0]:
            raise DataError(f"strategy: {len(y)} measurements for {self.shape[0]}; give one a row of B")
        exact = np.asarray(y, dtype=object)
        if len(y) and max(exact.max(), -exact.min()) > 2**400:
            raise DataError("strategy: a measured value exceeds 2^400; the scale of the noise is out of range")
        values, d = exact.astype(np.float64), self.factors
        x = self.mixing.inverse(values) / d
        if np.abs(values).max() <= _REFINED * self.sensitivity or np.abs(x).max() >= 2.0**62:
            return np.asarray(x)
        near = np.rint(x)
        rest = exact - np.array(self.integers(near.astype(np.int64)), dtype=object)
        return np.asarray(near + self.mixing.inverse(rest.astype(np.float64)) / d)

    def variances(self, W: AnyWorkload) -> Floats:
        """l2_squared ||w_i B^-1||^2 for every query of W (m,). O(n log n) each; DataError as ``reconstruction``."""
        R = self.reconstruction(W)
        return np.asarray(self.l2_squared * (R * R).sum(axis=1))

    def answers(self, x: Floats, first: ArrayLike, last: ArrayLike) -> Floats:
        """The ranges first..last (inclusive, from 0) of an estimate ``x`` of ``solve``, by its prefix sums."""
        low, high = self._ranges(first, last)
        sums = np.concatenate([[0.0], np.cumsum(x)])
        return np.asarray(sums[high + 1] - sums[low])

    def matrix(self) -> Floats:
        """B (n x n) as floats. Raises DataError above 2^24 entries."""
        return np.asarray(self.mixing.matrix() * self.factors, dtype=np.float64)

    def error(self, W: AnyWorkload) -> float:
        """l2_squared ||W B^-1||_F^2; O(n log n) a query for other workloads than all ranges.

        Raises DataError where W has other columns, other contributions, or more than 2^27 entries.
        """
        if W is self.planned or (isinstance(W, Workload) and W.shape[1] == self.shape[1] and all_ranges(W)):
            return self.expected
        return float(self.variances(W).sum())

    def reconstruction(self, W: AnyWorkload) -> Matrix:
        """R = W B^-1 (m x n). Raises DataError where W has other columns or more than 2^27 entries."""
        W = self._explicit(W)
        if W.contributions is not None:
            raise DataError("strategy: the range transform measures one count a cell; this workload has measures")
        if W.shape[0] * W.shape[1] > MATRIX_CAP:
            raise DataError(f"strategy: the reconstruction would have {W.shape[0]} x {W.shape[1]} entries; use solve")
        return np.stack([self._solved(row) for row in W.matrix()])

    def unsupported(self, W: AnyWorkload) -> tuple[int, ...]:
        """None: B has full rank. Raises DataError where W has other columns."""
        self._explicit(W)
        return ()

    def _solved(self, row: Floats) -> Floats:
        return np.asarray(self.mixing.inverse(row / self.factors))

    def _ranges(self, first: ArrayLike, last: ArrayLike) -> tuple[Ints, Ints]:
        low, high = np.atleast_1d(np.asarray(first)), np.atleast_1d(np.asarray(last))
        fits = low.shape == high.shape and low.ndim == 1 and low.dtype.kind in "iu" and high.dtype.kind in "iu"
        if not fits or (low < 0).any() or (low > high).any() or (high >= self.shape[1]).any():
            raise DataError(f"strategy: a range goes from a first to a last cell, from 0 to {self.shape[1] - 1}")
        return low.astype(np.int64), high.astype(np.int64)


def range_strategy(W: Workload) -> RangeStrategy:
    """The range transform in integers for all ranges over up to 2^20 cells; nothing of size n^2 is made.

    ``lower_bound`` is that of ``RangeTransform``: gap 0.12 % from 5 cells on to 0.005 % at 2^20. Cost O(n log^2 n), 2 s
    at 2^20. Raises DataError for other workloads and above 2^20 cells.
    """
    if not all_ranges(W):
        raise DataError(
            f"strategy: the range transform is for all ranges; {W.name or 'this workload'} asks other "
            "queries; use method='auto'"
        )
    n = W.shape[1]
    ideal = range_transform(n)
    C = SineMatrix(_kernel(n))
    squares = C.square_diagonal()
    norms = np.sqrt(squares.astype(np.float64))
    d = np.floor((2.0**FACTOR_BITS - 1.0) * (norms.min() / norms)).astype(np.int64)
    l2_squared = largest_product(squares, d)
    if not C.decreasing:
        raise InternalError("strategy: the kernel of the range transform is not decreasing")
    # No entry of C is negative then: its columns, which are its rows, sum up to C 1, and below 2^62 with d.
    sums = C.product(np.ones(n, dtype=np.int64), bits=1)
    l1 = int((((sums.high << sums.shift) + sums.low) * d).max())
    error = l2_squared * total_error(C.power_kernel(-2.0), 1.0 / d)
    name = "range-transform"
    basis = sparse.dia_array((d[None, :], [0]), shape=(n, n)).tocsr()
    return RangeStrategy(name, "gaussian", C, basis, None, l1, l2_squared, error, ideal.lower, ((name, error),), W)


def _kernel(n: int) -> Ints:
    """round(2^17 f(k)), k = 0..n + 1, f decreasing.

    The alternating sequence of the last frequency cancels in f(i - j) - f(i + j); with it f decreases.
    """
    period = n + 1 if n < 2**16 else int(scipy.fft.next_fast_len(n + 1, real=True))
    values = np.concatenate([[0.0], roots(period - 1) ** -0.5, [0.5**0.5]])
    f = cosine_sums(values)[: n + 2] / (2.0 * period)
    return np.asarray(np.rint(np.ldexp(f, KERNEL_BITS))).astype(np.int64)
