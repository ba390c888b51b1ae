"""Integer matrices that the sine transform diagonalises: exact products, exact norms, their inverse.

C (n x n) with C_ij = f(i - j) - f(i + j), i, j = 1, ..., n, for a sequence f of integers that is even and has period
2 N, N = n + 1. On odd sequences of that period C is the cyclic convolution with f. Hence, exactly and for every f:
C is symmetric; its eigenvectors are those of the DST-I, its eigenvalues c_m = sum over a period of
f(k) cos(m k pi / N); and C^2 is the matrix of the same form with f convolved with itself. C_(N-i)(N-j) = C_ij.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.common.arrays import Array, Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg.convolution import (
    WIDEST,
    Wide,
    balanced_digits,
    carried,
    digit_count,
    digit_width,
    rounding_bound,
    scaled,
)

MATRIX_CAP = 2**24  # entries written out
_LARGEST = 2**24
_CHIRP = 2**14  # from here on a length with a large prime factor costs more than two good ones


@dataclass(frozen=True, eq=False)
class SineMatrix:
    """C_ij = f(i - j) - f(i + j) over the integers; ``kernel`` (n + 2,) int64 is f(0), ..., f(n + 1).

    Raises DataError where the kernel holds no int64, fewer than three values, one of 2^24 or more, or is so long
    that no digit of the data can be convolved with it exactly.
    """

    kernel: Ints
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        f = self.kernel
        if not isinstance(f, np.ndarray) or f.dtype != np.int64 or f.ndim != 1 or f.size < 3:
            raise DataError("linalg: a kernel is a vector of at least three int64; give f(0), ..., f(n + 1)")
        if int(np.abs(f).max()) >= _LARGEST:
            raise DataError(f"linalg: a kernel's integers stay below {_LARGEST}; round it to fewer bits")
        if self.width < 4:
            raise DataError("linalg: this kernel is too long or too large for exact products; round it to fewer bits")

    @property
    def n(self) -> int:
        return self.kernel.size - 2

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n, self.n)

    @property
    def width(self) -> int:
        """Bits of the digits that ``product`` cuts data into, by the proven bound of the FFT; public."""
        return digit_width(transform_length(self.n), self.n, self._norm)

    @property
    def _norm(self) -> float:
        """||f(i - j)|| + ||f(i + j)|| over the differences and the sums of 1..n, rounded up."""
        if "norm" not in self._cache:
            t, h = _halves(self.kernel)
            self._cache["norm"] = (float(np.linalg.norm(t)) + float(np.linalg.norm(h))) * (1.0 + 1e-9)
        return float(self._cache["norm"])

    @property
    def row_sum(self) -> int:
        """A bound on the largest sum of |C_ij| over a row: 2 (|f(0)| + ... + |f(n + 1)|)."""
        return 2 * int(np.abs(self.kernel).sum())

    @property
    def decreasing(self) -> bool:
        """Is f(0) >= f(1) >= ... >= f(n + 1)? Then no entry of C is negative."""
        # |i - j| < min(i + j, 2 N - i - j), the place where f(i + j) is found.
        return bool((np.diff(self.kernel) <= 0).all())

    def product(self, x: Ints, factors: Ints | None = None, bits: int = 63) -> Wide:
        """C (factors * x), exactly, for every int64 ``x`` (n,); ``factors`` (n,) from 0 to below 2^20, 1 unless given.

        ``bits``: a bound |x| <= 2^bits that is known without looking at x. Digits of x are convolved by FFT and
        rounded (``dpsql.linalg.convolution`` proves that right) and put together in two words. Nothing depends on
        the values of x but the result. Cost: about (83 / width) pairs of real FFTs of length 2^ceil(log2(2 n)).
        Raises DataError for other shapes, types and factors, and where two words might not hold the result.
        """
        if not isinstance(x, np.ndarray) or x.dtype != np.int64 or x.shape != (self.n,):
            raise DataError(f"linalg: an exact product takes a vector of {self.n} int64")
        d = np.ones(self.n, dtype=np.int64) if factors is None else factors
        if d.dtype != np.int64 or d.shape != (self.n,) or int(d.min()) < 0 or int(d.max()) >= 2**WIDEST:
            raise DataError(f"linalg: factors are {self.n} int64 from 0 to below 2^{WIDEST}")
        width, bits = self.width, bits + int(d.max()).bit_length()
        u, count = scaled(x, d, width), digit_count(bits, width)
        if bits + self.row_sum.bit_length() >= 61 + width * (62 // width):
            raise DataError("linalg: these products might not fit two words; round the kernel to fewer bits")
        spectra = self._spectra("kernel", self.kernel)

        def parts() -> Iterator[Ints]:
            for digit in balanced_digits(u, width, count):
                yield np.rint(_convolve(spectra, digit)).astype(np.int64)

        return carried(parts(), width)

    def square_diagonal(self) -> Ints:
        """The squared norms of the columns of C (n,), exact integers.

        (C^2)_jj = g(0) - g(2 j), g the autocorrelation of f. As (C^2 e_1)_i = g(i - 1) - g(i + 1), they are the sums
        of its first j entries of odd number; the other half is the mirror image. One exact product.
        """
        n, f = self.n, self.kernel
        if 4 * int((f.astype(np.float64) ** 2).sum() * (1.0 + 1e-9)) >= 2**61:
            raise DataError("linalg: the squares of this kernel do not fit 64 bits; round it to fewer bits")
        first = f[:n] - f[2:]
        norms = float(np.linalg.norm(first)) * self._norm
        if rounding_bound(transform_length(n)) * norms * (1.0 + 1e-9) <= 0.25:  # so short that no digits are needed
            spectra = self._spectra("kernel", f)
            values = np.rint(_convolve(spectra, first.astype(np.float64))).astype(np.int64)
        else:
            twice = self.product(first, bits=26)
            values = (twice.high << twice.shift) + twice.low
        half = np.cumsum(values[::2])
        return np.concatenate([half, half[: n // 2][::-1]])

    def eigenvalues(self) -> Floats:
        """c_1, ..., c_n in floats. Raises InternalError where one of them might be zero.

        Their rounding errors stay far below 1e-11 sum |f|, which none may come near: so a result proves full rank.
        """
        if "eigenvalues" not in self._cache:
            c = cosine_sums(self.kernel.astype(np.float64))[1:-1]
            if float(np.abs(c).min()) <= 1e-11 * self.row_sum:
                raise InternalError("linalg: a matrix of the sine transform might lack full rank")
            self._cache["eigenvalues"] = c
        out: Floats = self._cache["eigenvalues"]
        return out

    def power_kernel(self, exponent: float) -> Floats:
        """The kernel (n + 2,) of C^exponent for positive eigenvalues."""
        return kernel_of(self.eigenvalues() ** exponent)

    def inverse(self, y: Floats) -> Floats:
        """C^-1 y in floats, (n,). One real FFT and its inverse after the first call."""
        if "inverse" not in self._cache:
            self._cache["inverse"] = self._spectra("inverse spectra", kernel_of(1.0 / self.eigenvalues()))
        return np.asarray(_convolve(self._cache["inverse"], y))

    def matrix(self) -> Ints:
        """C (n x n). Raises DataError above 2^24 entries."""
        n = self.n
        if n * n > MATRIX_CAP:
            raise DataError(f"linalg: a matrix of {n} x {n} entries is not written out; use its products")
        period = np.concatenate([self.kernel, self.kernel[-2:0:-1]])
        i = np.arange(1, n + 1)
        return np.asarray(period[np.abs(i[:, None] - i)] - period[i[:, None] + i])

    def _spectra(self, name: str, kernel: Array) -> tuple[int, Floats, NDArray[np.complex128]]:
        if name not in self._cache:
            length = transform_length(self.n)
            t, h = _halves(kernel)
            toeplitz = np.zeros(length)
            toeplitz[: self.n] = t[: self.n]
            toeplitz[length - self.n + 1 :] = t[self.n :]
            # An even sequence has a real transform; what rounding leaves of the imaginary part is dropped.
            self._cache[name] = (length, scipy.fft.rfft(toeplitz).real, scipy.fft.rfft(h.astype(np.float64), length))
        out: tuple[int, Floats, NDArray[np.complex128]] = self._cache[name]
        return out


def transform_length(n: int) -> int:
    """The power of two that holds the 2 n - 1 differences, and sums, of 1, ..., n apart."""
    return 1 << max(1, (2 * n - 1).bit_length())


def cosine_sums(f: Floats) -> Floats:
    """sum over a period of f(k) cos(m k pi / N), m = 0, ..., N, for an even f given by f(0), ..., f(N)."""
    N = f.size - 1
    if scipy.fft.next_fast_len(2 * N, real=True) == 2 * N or N < _CHIRP:
        return np.asarray(scipy.fft.dct(f, type=1))
    # m k = (m^2 + k^2 - (m - k)^2) / 2 makes the sum a convolution with a chirp, at a length of our choice (Bluestein
    # 1970); an even sequence needs half the length that a general one does.
    length, chirp, hat = _chirp(N)
    work = np.zeros(length, dtype=np.complex128)
    work[: N + 1] = f * chirp
    work[0] *= 0.5
    work[N] *= 0.5
    found = scipy.fft.ifft(scipy.fft.fft(work, overwrite_x=True) * hat, overwrite_x=True)[: N + 1] * chirp
    return np.asarray(2.0 * found.real)


@lru_cache(maxsize=1)
def _chirp(N: int) -> tuple[int, NDArray[np.complex128], NDArray[np.complex128]]:
    """(length, exp(i pi k^2 / (2 N)), the transform of its conjugate at -N..N)."""
    length = int(scipy.fft.next_fast_len(2 * N + 1))
    k = np.arange(N + 1, dtype=np.int64)
    chirp = np.exp((0.5j * np.pi / N) * ((k * k) % (4 * N)))
    around = np.zeros(length, dtype=np.complex128)
    around[: N + 1] = chirp.conj()
    around[length - N :] = chirp[:0:-1].conj()
    return length, chirp, scipy.fft.fft(around, overwrite_x=True)


def kernel_of(values: Floats) -> Floats:
    """f(0), ..., f(n + 1) of the matrix with the given eigenvalues (n,): (1 / N) sum_m c_m cos(m k pi / N)."""
    held = np.concatenate([[0.0], values, [0.0]])
    return cosine_sums(held) / (2.0 * (values.size + 1))


def _halves(f: Array) -> tuple[Array, Array]:
    """(f(i - j) for i - j = 0..n-1 and then -(n-1)..-1, f(i + j) for i + j = 2..2n)."""
    n = f.size - 2
    return np.concatenate([f[:n], f[n - 1 : 0 : -1]]), np.concatenate([f[2:], f[-2:1:-1]])


def _convolve(spectra: tuple[int, Floats, NDArray[np.complex128]], u: Floats) -> Floats:
    """(T - H) u: sum_j f(i - j) u_j is a convolution, sum_j f(i + j) u_j one with u reversed in time."""
    length, t, h = spectra
    hat = scipy.fft.rfft(u, length)
    return np.asarray(scipy.fft.irfft(t * hat - h * np.conj(hat), length, overwrite_x=True)[: u.size])
