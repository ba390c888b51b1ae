"""All ranges over n ordered cells in closed form, by the discrete sine transform.

The Gram matrix of AllRange(n) is G = N L^-1 with N = n + 1 and L = tridiag(-1, 2, -1), whose eigenvectors are those of
the DST-I and whose eigenvalues are 4 sin^2(k pi / (2 N)). The strategy, ours: X = A^T A =
D^-1/2 L^-1/2 D^-1/2 with D = diag(L^-1/2), of unit diagonal, so sensitivity 1: the first step of the certified
optimum. A = L^-1/4 D^-1/2 is applied in O(n log n).

Lower bound, ours. Every lambda >= 0 of sum 1 gives E* >= ||G^1/2 Lambda^1/2||_*^2
(``dpsql.strategies.gaussian.optimal``), and a nuclear norm is at least the trace: E* >= (sum_j lambda_j^1/2
(G^1/2)_jj)^2, most at lambda_j^1/2 proportional to (G^1/2)_jj. So E* >= sum_j ((G^1/2)_jj)^2 = N sum_j D_j^2, never
below the singular value bound, which is the same with the mean of D. The strategy's error exceeds it by 0.14 % at most,
and by 0.0035 % at n = 2^20: a certificate in O(n).

D in closed form: the difference D_j - D_(j-1) is (2 / N) sum_m sin(m (2 j - 1) pi / N) cos(m pi / (2 N)), a sum
of sines, hence D_j = (1 / (2 N)) sum over i = 1..2j of cot((2 i - 1) pi / (4 N)).

The error is that of any X^-1 = diag(w) K diag(w) with K_ij = h(i - j) - h(i + j); here w = D^1/2 and K = L^1/2.
tr(G X^-1) = sum_ij g_ij w_i w_j K_ij with g_ij = min(i, j) (N - max(i, j)). On i < j g separates into i (N - j), so the
part with h(i - j) is one convolution; that with h(i + j) is split into halves, where i in the left and j in the right
half is again a convolution: O(n log^2 n), exact to rounding at every n.

``dpsql.strategies.ranges.range_strategy`` measures the transform in integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.forms import is_identity
from dpsql.linalg.sine import kernel_of, transform_length
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.simple import image_columns
from dpsql.workloads.families.matrix import Workload

CELLS_CAP = 2**20
MATRIX_CELLS = 4096
_DIRECT = 32


@dataclass(frozen=True, eq=False)
class RangeTransform:
    """The strategy A = L^-1/4 D^-1/2 for all ranges over n cells; ``diagonal`` (n,) is D."""

    n: int
    diagonal: Floats

    @property
    def bound(self) -> float:
        """The singular value bound of AllRange(n): (sum_k (n + 1)^1/2 / (2 sin(k pi / (2 (n + 1)))))^2 / n."""
        return float((self.n + 1) * (1.0 / roots(self.n)).sum() ** 2 / self.n)

    @property
    def lower(self) -> float:
        """N sum_j D_j^2: no Gaussian matrix mechanism has a lower error on AllRange(n)."""
        return float((self.n + 1) * (self.diagonal @ self.diagonal))

    def apply(self, x: ArrayLike) -> Floats:
        """A x for x (n,) or (n, c), in floating point. Cost O(n log n) a column."""
        return _power(self._fit(x) / np.sqrt(self._like(x)), -0.25)

    def transpose(self, y: ArrayLike) -> Floats:
        """A^T y for y (n,) or (n, c)."""
        return np.asarray(_power(self._fit(y), -0.25) / np.sqrt(self._like(y)))

    def solve(self, y: ArrayLike) -> Floats:
        """A^-1 y, the least squares estimate of x (A is square)."""
        return np.asarray(_power(self._fit(y), 0.25) * np.sqrt(self._like(y)))

    def matrix(self) -> Floats:
        """A (n x n). Raises DataError above 4096 cells."""
        if self.n > MATRIX_CELLS:
            raise DataError(
                f"strategy: the range transform over {self.n} cells is not written out above {MATRIX_CELLS}; "
                "use method='auto' with Gaussian noise, or apply()"
            )
        return self.apply(np.eye(self.n))

    def error(self) -> float:
        """tr(G X^-1), the total squared error at sensitivity 1, in O(n log^2 n)."""
        return total_error(kernel_of(roots(self.n)), np.sqrt(self.diagonal))

    def _fit(self, values: ArrayLike) -> Floats:
        given = np.asarray(values, dtype=np.float64)
        if given.ndim not in (1, 2) or given.shape[0] != self.n:
            raise DataError(f"strategy: the range transform takes {self.n} rows; the array has shape {given.shape}")
        return given

    def _like(self, values: ArrayLike) -> Floats:
        return self.diagonal if np.ndim(values) == 1 else self.diagonal[:, None]


def range_transform(n: int) -> RangeTransform:
    """The closed form for AllRange(n), 1 <= n <= 2^20; DataError beyond. Cost O(n log n)."""
    try:
        size = index(n)
    except TypeError:
        size = 0
    if not 1 <= size <= CELLS_CAP:
        raise DataError(f"strategy: the range transform is for 1 to {CELLS_CAP} cells; merge cells first")
    # The second half is the mirror image of the first: D_j = D_(N - j).
    left = (size + 1) // 2
    cotangents = 1.0 / np.tan((2.0 * np.arange(1, 2 * left + 1) - 1.0) * np.pi / (4.0 * (size + 1)))
    half = np.cumsum(cotangents)[1::2] / (2.0 * (size + 1))
    return RangeTransform(size, np.concatenate([half, half[: size // 2][::-1]]))


def total_error(h: Floats, w: Floats) -> float:
    """sum_ij g_ij w_i w_j (h(i - j) - h(i + j)) for the Gram matrix g of all ranges over n = w.size cells.

    ``h`` (n + 2,) is h(0), ..., h(n + 1), even and of period 2 (n + 1). Cost O(n log^2 n).
    """
    n = w.size
    h = np.concatenate([h, h[-2:1:-1]])  # to h(2 n)
    i = np.arange(1, n + 1, dtype=np.float64)
    a, b = i * w, (n + 1 - i) * w
    on = float((a * b * (h[0] - h[2 : 2 * n + 1 : 2])).sum())
    length = transform_length(n)
    ahead = scipy.fft.rfft(a, length) * scipy.fft.rfft(np.concatenate([[0.0], h[1:n]]), length)
    return on + 2.0 * (_paired(ahead, scipy.fft.rfft(b, length), length) - _above(a, b, h))


def all_ranges(W: Workload) -> bool:
    """Is W all ranges over its cells, with one record in one cell?"""
    n = W.shape[1]
    whole = isinstance(W.inner, algebra.Ranges) and W.span.shape[0] == n and W.contributions is None
    return whole and is_identity(W.span)


def range_piece(W: Workload) -> Piece:
    """The closed form as a strategy in integers. Raises DataError unless W is all ranges over at most 4096 cells.

    Of other spellings of all ranges, as queries one by one, the Gram matrix tells: the strategy depends on it alone.
    """
    rows = W.span
    if not all_ranges(W):
        rows = sparse.eye_array(W.shape[1], dtype=np.int64, format="csr")
    if not (all_ranges(W) or _spelled_out(W)):
        raise DataError(
            f"strategy: the range transform is for all ranges; {W.name or 'this workload'} asks other "
            "queries; use method='auto'"
        )
    A = range_transform(W.shape[1]).matrix()
    return Piece(rows, A, image_columns(rows, W), W.gram())


def _spelled_out(W: Workload) -> bool:
    """Has W the Gram matrix of all ranges, or a multiple of it, with one record in one cell?"""
    n = W.shape[1]
    if W.contributions is not None or n > MATRIX_CELLS:
        return False
    i, G = np.arange(1, n + 1), W.gram()
    return bool(np.allclose(G, np.minimum.outer(i, i) * (n + 1 - np.maximum.outer(i, i)) * (G[0, 0] / n), rtol=1e-9))


def roots(n: int) -> Floats:
    """Square roots of the eigenvalues of L (n,), ascending: 2 sin(k pi / (2 (n + 1)))."""
    return np.asarray(2.0 * np.sin(np.arange(1, n + 1) * np.pi / (2 * (n + 1))))


def _power(x: Floats, p: float) -> Floats:
    """L^p x: two sine transforms."""
    values = roots(x.shape[0]) ** (2.0 * p)
    hat = scipy.fft.dst(x, type=1, norm="ortho", axis=0)
    scaled = hat * (values if x.ndim == 1 else values[:, None])
    return np.asarray(scipy.fft.dst(scaled, type=1, norm="ortho", axis=0))


def _paired(left: NDArray[np.complex128], right: NDArray[np.complex128], length: int) -> float:
    """The inner product of two real sequences (or the sum of those of rows) from their real FFTs (Parseval)."""
    both = left.real * right.real + left.imag * right.imag
    ends = both[..., 0].sum() + both[..., -1].sum()  # every other frequency stands for two
    return float((2.0 * both.sum() - ends) / length)


def _above(a: Floats, b: Floats, h: Floats) -> float:
    """sum over i < j of a_i h(i + j) b_j, i and j counted from 1; all blocks of one size at a time."""
    n, size = a.size, _DIRECT
    while size < n:
        size *= 2
    a, b = np.pad(a, (0, size - n)), np.pad(b, (0, size - n))
    h = np.pad(h[2:], (0, max(0, 2 * size - h.size + 2)))  # i + j = s + 2 for places s counted from 0
    total, block = 0.0, size
    while block > _DIRECT:
        # i in the left and j in the right half of a block: sum_s h(s) (a * b)_s, of length block - 1.
        half = block // 2
        sums = scipy.fft.rfft(a.reshape(-1, block)[:, :half], block) * scipy.fft.rfft(
            b.reshape(-1, block)[:, half:], block
        )
        windows = np.pad(h[half:], (0, half))[: 2 * size].reshape(-1, 2 * block)[:, :block]
        total += _paired(sums, scipy.fft.rfft(windows), block)
        block = half
    A, B, H = a.reshape(-1, block), b.reshape(-1, block), h[: 2 * size].reshape(-1, 2 * block)
    for i in range(block - 1):
        total += float(A[:, i] @ (H[:, 2 * i + 1 : block + i] * B[:, i + 1 :]).sum(axis=1))
    return total
