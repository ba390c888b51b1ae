"""All ranges over n ordered cells in closed form, by the discrete sine transform.

The Gram matrix of AllRange(n) is G = (n + 1) L^-1 with L = tridiag(-1, 2, -1), whose eigenvectors are those of
the DST-I and whose eigenvalues are 4 sin^2(k pi / (2 (n + 1))). The strategy, ours: X = A^T A =
D^-1/2 L^-1/2 D^-1/2 with D = diag(L^-1/2), of unit diagonal, so sensitivity 1: the first step of the certified
optimum, within 1e-4 of it. A = L^-1/4 D^-1/2 is applied in O(n log n).

Error tr(G X^-1) = sum_ij g_ij d_i^1/2 (L^1/2)_ij d_j^1/2 with g_ij = min(i, j) (n + 1 - max(i, j)) and
(L^1/2)_ij = h(i - j) - h(i + j), h(k) = (1 / (n + 1)) sum_m 2 sin(m pi / (2 (n + 1))) cos(m k pi / (n + 1)). On i < j
g separates into i (n + 1 - j), so the part with h(i - j) is one convolution; that with h(i + j) is split
into halves, where i in the left and j in the right half is again a convolution: O(n log^2 n), exact to
rounding at every n.

Measured are integers only where the matrix is written out (n <= 4096); beyond, the value below gives the error and
applies A in floating point, which is no private measurement: a release needs integers with a proven
sensitivity, and none is known for this transform without its matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, signal

from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.strategy.integer import Piece
from dpsql.strategy.simple import moved_columns
from dpsql.workload.matrix import Workload

Floats = NDArray[np.float64]

CELLS_CAP = 2**20
MATRIX_CELLS = 4096
_DIRECT = 512


@dataclass(frozen=True, eq=False)
class RangeTransform:
    """The strategy A = L^-1/4 D^-1/2 for all ranges over n cells; ``diagonal`` (n,) is D."""

    n: int
    diagonal: Floats

    @property
    def bound(self) -> float:
        """The singular value bound of AllRange(n): (sum_k (n + 1)^1/2 / (2 sin(k pi / (2 (n + 1)))))^2 / n."""
        return float((self.n + 1) * (1.0 / _roots(self.n)).sum() ** 2 / self.n)

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
                "use its error and apply()"
            )
        return self.apply(np.eye(self.n))

    def error(self) -> float:
        """tr(G X^-1), the total squared error at sensitivity 1, in O(n log^2 n)."""
        n = self.n
        h = _kernel(n)
        i = np.arange(1, n + 1, dtype=np.float64)
        s = np.sqrt(self.diagonal)
        a, b = i * s, (n + 1 - i) * s
        on = float((a * b * (h[0] - h[2 : 2 * n + 1 : 2])).sum())
        ahead = signal.fftconvolve(a, np.concatenate([[0.0], h[1:n]]))[:n]
        return on + 2.0 * (float(ahead @ b) - _above(a, b, h, 1))

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
    # (L^-1/2)_jj = (1 / (n + 1)) sum_k (1 - cos(2 j k pi / (n + 1))) / (2 sin(k pi / (2 (n + 1)))).
    f = np.concatenate([[0.0], 1.0 / _roots(size)])
    wave = fft.fft(f).real  # sum_k f_k cos(2 pi j k / (n + 1))
    diagonal = (f.sum() - wave[1:]) / (size + 1)
    return RangeTransform(size, np.asarray(diagonal))


def range_piece(W: Workload) -> Piece:
    """The closed form as a strategy in integers. Raises DataError unless W is all ranges over at most 4096 cells."""
    n = W.shape[1]
    whole = W.span.shape[0] == n and (W.span != _identity(n)).nnz == 0
    if not (isinstance(W.inner, algebra.Ranges) and whole and W.contributions is None):
        raise DataError(
            f"strategy: the range transform is for all ranges; {W.name or 'this workload'} asks other "
            "queries; use method='auto'"
        )
    A = range_transform(n).matrix()
    return Piece(W.span, A, moved_columns(W.span, W), W.inner.gram())


def _identity(n: int) -> object:
    from dpsql.linalg.modular import identity_csr

    return identity_csr(n)


def _roots(n: int) -> Floats:
    """Square roots of the eigenvalues of L (n,), ascending: 2 sin(k pi / (2 (n + 1)))."""
    return np.asarray(2.0 * np.sin(np.arange(1, n + 1) * np.pi / (2 * (n + 1))))


def _power(x: Floats, p: float) -> Floats:
    """L^p x: two sine transforms."""
    values = _roots(x.shape[0]) ** (2.0 * p)
    hat = fft.dst(x, type=1, norm="ortho", axis=0)
    scaled = hat * (values if x.ndim == 1 else values[:, None])
    return np.asarray(fft.dst(scaled, type=1, norm="ortho", axis=0))


def _kernel(n: int) -> Floats:
    """h(0), ..., h(2 n): the entries of L^1/2."""
    size = 2 * (n + 1)
    f = np.zeros(size)
    f[1 : n + 1] = _roots(n)
    return np.asarray(fft.fft(f).real[: 2 * n + 1] / (n + 1))


def _above(a: Floats, b: Floats, h: Floats, first: int) -> float:
    """sum over i < j of a_i h(i + j) b_j, for i, j counted from ``first``."""
    n = a.size
    if n <= _DIRECT:
        i = np.arange(first, first + n)
        return float(a @ (np.triu(h[i[:, None] + i[None, :]], 1) @ b))
    half = n // 2
    # i in the left and j in the right half: sum_s h(s) (a * b)_s, a full convolution.
    sums = signal.fftconvolve(a[:half], b[half:])
    start = 2 * first + half
    cross = float(sums @ h[start : start + sums.size])
    return cross + _above(a[:half], b[:half], h, first) + _above(a[half:], b[half:], h, first + half)
