"""A line of ordered cells measured for its prefixes by a matrix that the sine transform diagonalises.

Count the n cells from the last one: i = 1, ..., n. Prefix sums have the Gram matrix min(i, k), the inverse of
tridiag(-1, 2, -1) with 1 in its last corner: that of a line of 2 n cells, N = 2 n + 1, on vectors that are their own
mirror images. So its eigenvectors are sin(m i pi / N), m = 1, 3, ..., 2 n - 1, and its functions are

    C_ik = g(i - k) - g(i + k),    g even, of period 2 N, and g(N - k) = -g(k),

each such g giving one, whatever it is rounded to. Two n cells with x and its mirror image x' are moved by the sine
matrix of g (``dpsql.linalg.sine``) to 2 C x and its mirror image; the squared norm of its column i is twice that of C.

B = diag(e) C diag(d) with integers g, d and e: products are exact convolutions, the squared norm of a column is an
exact integer, B^-1 takes two sine transforms. Without e the spread of the prefix that holds the cells from s on is the
sum over i, k >= s of M_ik / (d_i d_k), M = C^-2 of the same form: each cell adds M_ss / d_s^2 and twice its row,
O(n log^2 n) in all. With e norms and spreads are sums over all entries, for lines of up to 4096 cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dpsql.common.arrays import Array, Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg.convolution import LARGEST
from dpsql.linalg.exact import by_words
from dpsql.linalg.lines import ByLength
from dpsql.linalg.sine import SineMatrix, cosine_sums, transform_length

_WORD, _LAST = 60, 63  # bits of a word of x, and of the last one, signed
_DIRECT = 32
_CHUNK = 128  # rows of C at a time
WEIGHED = 4096


def largest_product(squares: Ints, factors: Ints) -> int:
    """max_j factors_j^2 squares_j as a Python integer: floats find the candidates, integers decide."""
    products = factors.astype(np.float64) ** 2 * squares
    near = np.flatnonzero(products >= products.max() * (1.0 - 1e-12))
    return max(int(factors[j]) ** 2 * int(squares[j]) for j in near.tolist())


@dataclass(frozen=True, eq=False)
class PrefixLine:
    """B = diag(e) C diag(d) over n cells: ``kernel`` (n + 1,) int64 is g(0), ..., g(n), ``factors`` (n,) int64 is d.

    ``weights`` (n,) int64 is e, positive, None for 1, the only one beyond 4096 cells. Both are those of the cells from
    the last one. Raises DataError for other shapes and for kernels and weights too long or large (``SineMatrix``),
    InternalError where the kernel rises or B might lack full rank.
    """

    kernel: Ints = field(repr=False)
    factors: Ints = field(repr=False)
    weights: Ints | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kernel.size != self.factors.size + 1:
            raise DataError("linalg: a line of n cells is measured with a kernel of n + 1 integers")
        e = self.weights
        if e is not None:
            if e.shape != self.factors.shape or e.size > WEIGHED or int(e.min()) < 1:
                raise DataError(f"linalg: weights are positive, one a cell of a line of up to {WEIGHED:,} cells")
            if int(e.max()) ** 2 * int(self._squares_alone.max()) >= 2**63:
                raise DataError("linalg: the squares of these weights and kernel do not fit 64 bits; round to fewer")
        if not self.sine.decreasing:
            raise InternalError("linalg: the kernel of a line's prefixes is not decreasing")
        if float(np.abs(self.eigenvalues).min()) <= 1e-11 * self.sine.row_sum:
            raise InternalError("linalg: the matrix of a line's prefixes might lack full rank")

    @property
    def n(self) -> int:
        return self.factors.size

    @property
    def rows(self) -> int:
        return self.factors.size

    @cached_property
    def sine(self) -> SineMatrix:
        """The matrix of g over 2 n cells."""
        return SineMatrix(np.concatenate([self.kernel, -self.kernel[::-1]]))

    @cached_property
    def eigenvalues(self) -> Floats:
        """Those of C (n,), in the order of m."""
        return np.asarray(cosine_sums(self.sine.kernel.astype(np.float64))[1:-1:2] / 2.0)

    @cached_property
    def _squares_alone(self) -> Ints:
        """The squared norms of the columns of C (n,), exact."""
        return self.sine.square_diagonal()[: self.n] // 2

    @cached_property
    def squares(self) -> Ints:
        """The squared norms of the columns of diag(e) C (n,), exact."""
        if self.weights is None:
            return self._squares_alone
        # No sum exceeds the largest e^2 times that of the squares of C, which fits.
        return sum(
            (self.weights[rows] ** 2 @ (C * C) for rows, C in _rows(self.sine.kernel)), np.zeros(self.n, np.int64)
        )

    @cached_property
    def l1(self) -> int:
        """No entry of C is negative, as |i - k| < min(i + k, 2 N - i - k): columns of diag(e) C sum up to C e."""
        ones = np.ones(self.n, dtype=np.int64)
        return int((self._product(ones if self.weights is None else self.weights, ones) * self.factors).max())

    @cached_property
    def l2_squared(self) -> int:
        """The largest d_i^2 (C diag(e^2) C)_ii."""
        return largest_product(self.squares, self.factors)

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """B x exactly. Cost: a few FFTs of length 4 n to 8 n for every 60 bits."""
        if len(x) != self.n:
            raise DataError(f"linalg: {len(x)} values for a matrix of {self.n} columns")
        found = by_words(lambda word: self._product(word[::-1], self.factors), x, bits, _WORD, _LAST)
        return found if self.weights is None else [e * y for e, y in zip(self.weights.tolist(), found, strict=True)]

    def _product(self, x: Ints, factors: Ints) -> NDArray[np.object_]:
        """C (factors * x) for x from the last cell, as Python integers."""
        nothing = np.zeros(self.n, dtype=np.int64)
        wide = self.sine.product(np.concatenate([x, nothing]), np.concatenate([factors, nothing]))
        return np.asarray(((wide.high.astype(object) << wide.shift) + wide.low.astype(object))[: self.n])

    @cached_property
    def spread(self) -> ByLength:
        """By the number of the prefix."""
        w = 1.0 / self.factors
        if self.weights is not None:
            totals = np.zeros(self.n + 1)
            for rows, inverse in _rows(_kernel(1.0 / self.eigenvalues)):
                sums = np.cumsum((inverse * w)[:, ::-1], axis=1)
                totals[1:] += self.weights[rows] ** -2.0 @ np.square(sums, out=sums)
            return ByLength(totals)
        h, i = _kernel(self.eigenvalues**-2.0), np.arange(1, self.n + 1)
        added = w * w * (h[0] - h[2 * i]) + 2.0 * w * (_ahead(w, h) - _above(w, h))
        return ByLength(np.concatenate([[0.0], np.cumsum(added[::-1])]))

    def prefix_sums(self, y: Floats) -> Floats:
        """The prefix sums of B^-1 y, by two sine transforms."""
        y = y if self.weights is None else y / self.weights
        hat = scipy.fft.dst(np.concatenate([y, y[::-1]]), type=1, norm="ortho")
        hat[::2] /= self.eigenvalues
        hat[1::2] = 0.0  # what rounding left of it
        x = scipy.fft.dst(hat, type=1, norm="ortho")[: self.n] / self.factors
        return np.concatenate([[0.0], np.cumsum(x[::-1])])

    def largest_norm(self, order: int) -> float:
        """Squares by the eigenvalues, sums by sums of the kernel; with e entry by entry, from the eigenvalues."""
        if self.weights is not None:
            of_entries, norms = _rows(_kernel(self.eigenvalues)), np.zeros(self.n)
            for rows, C in of_entries:
                norms += (self.weights[rows].astype(np.float64) ** order) @ C**order
            return float((self.factors.astype(np.float64) ** order * norms).max())
        i, g = np.arange(1, self.n + 1), self.sine.kernel.astype(np.float64)
        if order == 2:
            squares = _kernel(self.eigenvalues**2)
            return float((self.factors.astype(np.float64) ** 2 * (squares[0] - squares[2 * i])).max())
        below = np.concatenate([[0.0], np.cumsum(g)])
        sums = below[i] + below[self.n - i + 1] - g[0] - (below[self.n + i + 1] - below[i + 1])
        return float((self.factors * sums).max())

    def digest(self) -> bytes:
        """The SHA-256 of the integers."""
        weights = b"" if self.weights is None else self.weights.tobytes()
        return hashlib.sha256(b"prefixes" + self.kernel.tobytes() + self.factors.tobytes() + weights).digest()

    def matrix(self) -> Ints:
        """B (n x n), its columns in the order of the cells. Raises DataError above 2^24 entries."""
        n = self.n
        if n * n > LARGEST:
            raise DataError(f"linalg: a matrix of {n} x {n} entries is not written out; use its products")
        C = np.concatenate([rows for _, rows in _rows(self.sine.kernel)])
        weighed = C if self.weights is None else self.weights[:, None] * C
        return np.asarray((weighed * self.factors)[:, ::-1])


def _rows(g: Array) -> Iterator[tuple[slice, Array]]:
    """(places, some rows of C) of the matrix with the kernel g(0), ..., g(2 n + 1), from the first on."""
    n = g.size // 2 - 1
    apart = sliding_window_view(np.concatenate([g[n - 1 : 0 : -1], g[:n]]), n)[::-1]
    added = sliding_window_view(g[2 : 2 * n + 1], n)
    for at in range(0, n, _CHUNK):
        rows = slice(at, at + _CHUNK)
        yield rows, apart[rows] - added[rows]


def prefix_kernel(values: Floats, last: float) -> Floats:
    """g(0), ..., g(n) of the matrix of this form with the given eigenvalues (n,), m = 1, 3, ..., 2 n - 1.

    ``last``: that of m = N, whose alternating sequence cancels in g(i - k) - g(i + k); with it g decreases.
    """
    return _kernel(values, last)[: values.size + 1]


def _kernel(values: Floats, last: float = 0.0) -> Floats:
    """g(0), ..., g(2 n + 1) of the matrix with those eigenvalues."""
    held = np.zeros(2 * values.size + 2)
    held[1:-1:2], held[-1] = 2.0 * values, 2.0 * last
    return cosine_sums(held) / (2.0 * (held.size - 1))


def _ahead(w: Floats, h: Floats) -> Floats:
    """sum over k > s of w_k h(k - s) for every s (n,)."""
    n = w.size
    length = transform_length(n)
    shifted = np.concatenate([[0.0], h[1:n]])
    return np.asarray(scipy.fft.irfft(scipy.fft.rfft(w, length) * np.conj(scipy.fft.rfft(shifted, length)), length)[:n])


def _above(w: Floats, h: Floats) -> Floats:
    """sum over k > s of w_k h(s + k) for every s (n,), counted from 1; all blocks of one size at a time."""
    n, size = w.size, _DIRECT
    while size < n:
        size *= 2
    held = np.pad(w, (0, size - n))
    h = np.pad(h[2:], (0, max(0, 2 * size - h.size + 2)))  # s + k = r + 2 for places counted from 0
    out = np.zeros(size)
    block = size
    while block > _DIRECT:
        # s in the left and k in the right half of a block: a correlation of length block - 1.
        half = block // 2
        windows = np.pad(h[half:], (0, half))[: 2 * size].reshape(-1, 2 * block)[:, :block]
        right = np.conj(scipy.fft.rfft(held.reshape(-1, block)[:, half:], block))
        out.reshape(-1, block)[:, :half] += scipy.fft.irfft(scipy.fft.rfft(windows, block) * right, block)[:, :half]
        block = half
    W, H, direct = held.reshape(-1, block), h[: 2 * size].reshape(-1, 2 * block), out.reshape(-1, block)
    for i in range(block - 1):
        direct[:, i] += np.einsum("ij,ij->i", H[:, 2 * i + 1 : block + i], W[:, i + 1 :])
    return out[:n]
