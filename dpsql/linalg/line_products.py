"""Exact products with long integer vectors: cyclic and causal convolutions, and sums over nested blocks.

All take a vector of n Python integers below 2^bits in size, ``bits`` a public bound, and give Python integers. Long
values are cut into words by that bound alone, so that no step depends on the data but in its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpsql.arrays import Ints
from dpsql.errors import DataError
from dpsql.linalg.convolution import balanced_digits, carried, digit_count, digit_width, scaled
from dpsql.linalg.exact import by_words

LONGEST = 2**20
_WORD, _LAST = 60, 63  # bits of a word that is convolved, and of the last one, signed: counts are one word
_SUMMED = 40  # bits of a word that is summed: 2^20 of them stay below 2^62
_LARGEST = 2**24


@dataclass(frozen=True, eq=False)
class Convolution:
    """The n x n integer matrix with entries f(i - j): ``cyclic`` of period n, else f(k) = 0 for k < 0 (causal).

    ``kernel`` (n,) int64 is f(0), ..., f(n - 1), below 2^24 in size. Raises DataError for others, and where the
    kernel is so long or large that no digit of the data is convolved with it exactly by FFT.
    """

    kernel: Ints = field(repr=False)
    cyclic: bool

    def __post_init__(self) -> None:
        f = self.kernel
        if f.dtype != np.int64 or f.ndim != 1 or not 1 <= f.size <= LONGEST or int(np.abs(f).max()) >= _LARGEST:
            raise DataError(f"linalg: a kernel is a vector of 1 to {LONGEST:,} int64 below {_LARGEST:,}")
        if self.width < 4:
            raise DataError("linalg: this kernel is too long or too large for exact products; round it to fewer bits")

    @property
    def n(self) -> int:
        return self.kernel.size

    @property
    def length(self) -> int:
        """Of the transforms: a power of two that holds the 2 n - 1 entries of the product apart."""
        return 1 << max(1, (2 * self.n - 1).bit_length())

    @property
    def width(self) -> int:
        """Bits of the digits that data are cut into (``dpsql.linalg.convolution``); public."""
        norm = float(np.linalg.norm(self.kernel.astype(np.float64))) * (1.0 + 1e-9)
        return digit_width(self.length, self.n, norm)

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """The product with x (n,), exactly. Cost: a pair of FFTs of length 2 n to 4 n for every ``width`` bits."""
        if len(x) != self.n:
            raise DataError(f"linalg: {len(x)} values for a matrix of {self.n} columns")
        spectrum = fft.rfft(self.kernel.astype(np.float64), self.length)
        return by_words(lambda word: self._convolved(word, spectrum), x, bits, _WORD, _LAST)

    def _convolved(self, word: Ints, spectrum: NDArray[np.complex128]) -> NDArray[np.object_]:
        width, n = self.width, self.n
        digits = balanced_digits(scaled(word, np.ones(n, dtype=np.int64), width), width, digit_count(_LAST, width))
        if int(np.abs(self.kernel).sum()).bit_length() + _LAST >= 61 + width * (62 // width):
            raise DataError("linalg: these products might not fit two words; round the kernel to fewer bits")

        def parts() -> list[Ints]:
            found = []
            for digit in digits:
                whole = np.rint(fft.irfft(spectrum * fft.rfft(digit, self.length), self.length)).astype(np.int64)
                part = whole[:n].copy()
                if self.cyclic:
                    part[: n - 1] += whole[n : 2 * n - 1]
                found.append(part)
            return found

        wide = carried(parts(), width)
        return np.asarray((wide.high.astype(object) << wide.shift) + wide.low.astype(object))

    def matrix(self) -> Ints:
        """Written out. Raises DataError above 2^24 entries."""
        n = self.n
        if n * n > _LARGEST:
            raise DataError(f"linalg: a matrix of {n} x {n} entries is not written out; use its products")
        at = np.arange(n)
        apart = at[:, None] - at
        held = self.kernel[apart % n]
        return held if self.cyclic else np.where(apart >= 0, held, 0)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Weighted sums over nested blocks of a line: level l has the blocks of ``sizes[l]`` cells, times ``weights[l]``.

    ``n`` cells are followed by empty ones up to ``padded``; every size divides the one before, and the first divides
    ``padded``. Blocks without a cell are rows of zeros, measured all the same so that all blocks of a level are
    alike. Rows: level by level. Raises DataError for other sizes, and for weights below 1.
    """

    n: int
    padded: int
    sizes: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        nested = all(a % b == 0 for a, b in zip((self.padded, *self.sizes[:-1]), self.sizes, strict=True))
        if not nested or not 1 <= self.n <= self.padded or len(self.weights) != len(self.sizes):
            raise DataError("linalg: sizes of blocks divide each other and the whole, and each level has a weight")
        if self.sizes[-1] != 1 or min(self.weights) < 1:
            raise DataError("linalg: the last level of blocks is single cells, and weights are at least 1")

    @property
    def rows(self) -> int:
        """How many blocks there are."""
        return sum(self.padded // size for size in self.sizes)

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """The product with x (n,), exactly. Cost O(n) a level and word."""
        if len(x) != self.n:
            raise DataError(f"linalg: {len(x)} values for a matrix of {self.n} columns")

        def sums(word: Ints) -> Ints:
            held = np.concatenate([word, np.zeros(self.padded - self.n, np.int64)])
            return np.concatenate([held.reshape(-1, size).sum(axis=1) for size in self.sizes])

        weight = np.repeat(np.array(self.weights, dtype=object), [self.padded // size for size in self.sizes])
        return [int(w) * value for w, value in zip(weight, by_words(sums, x, bits, _SUMMED), strict=True)]

    def matrix(self) -> Ints:
        """Written out. Raises DataError above 2^24 entries."""
        if self.rows * self.n > _LARGEST:
            raise DataError(f"linalg: a matrix of {self.rows} x {self.n} entries is not written out; use its products")
        cell = np.arange(self.n)
        parts = []
        for size, weight in zip(self.sizes, self.weights, strict=True):
            parts.append(weight * (np.arange(self.padded // size)[:, None] == cell // size))
        return np.vstack(parts).astype(np.int64)
