"""Exact products of long integer vectors with cyclic convolutions.

They take a vector of n Python integers below 2^bits in size, ``bits`` a public bound, and give Python integers. Long
values are cut into words by that bound alone, so that no step depends on the data but in its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.arrays import Ints
from dpsql.errors import DataError
from dpsql.linalg.convolution import balanced_digits, carried, digit_count, digit_width, scaled
from dpsql.linalg.exact import by_words

LONGEST = 2**20
_WORD, _LAST = 60, 63  # bits of a word that is convolved, and of the last one, signed: counts are one word
LARGEST = 2**24


@dataclass(frozen=True, eq=False)
class Convolution:
    """The n x n integer matrix with entries f(i - j), f of period n.

    No column is longer than the first.
    ``kernel`` (n,) int64 is f(0), ..., f(n - 1), below 2^24 in size. Raises DataError for others, and where the
    kernel is so long or large that no digit of the data is convolved with it exactly by FFT.
    """

    kernel: Ints = field(repr=False)

    def __post_init__(self) -> None:
        f = self.kernel
        if f.dtype != np.int64 or f.ndim != 1 or not 1 <= f.size <= LONGEST or int(np.abs(f).max()) >= LARGEST:
            raise DataError(f"linalg: a kernel is a vector of 1 to {LONGEST:,} int64 below {LARGEST:,}")
        if self.width < 4:
            raise DataError("linalg: this kernel is too long or too large for exact products; round it to fewer bits")

    @property
    def n(self) -> int:
        return self.kernel.size

    @property
    def rows(self) -> int:
        return self.kernel.size

    @cached_property
    def l1(self) -> int:
        return int(np.abs(self.kernel).sum())

    @cached_property
    def l2_squared(self) -> int:
        """sum f^2, in Python integers."""
        return int((self.kernel.astype(object) ** 2).sum())

    def digest(self) -> bytes:
        """The SHA-256 of the integers."""
        return hashlib.sha256(b"cyclic" + self.kernel.tobytes()).digest()

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
        spectrum = scipy.fft.rfft(self.kernel.astype(np.float64), self.length)
        return by_words(lambda word: self._convolved(word, spectrum), x, bits, _WORD, _LAST)

    def _convolved(self, word: Ints, spectrum: NDArray[np.complex128]) -> NDArray[np.object_]:
        width, n = self.width, self.n
        digits = balanced_digits(scaled(word, np.ones(n, dtype=np.int64), width), width, digit_count(_LAST, width))
        if int(np.abs(self.kernel).sum()).bit_length() + _LAST >= 61 + width * (62 // width):
            raise DataError("linalg: these products might not fit two words; round the kernel to fewer bits")

        def parts() -> list[Ints]:
            found = []
            for digit in digits:
                whole = np.rint(scipy.fft.irfft(spectrum * scipy.fft.rfft(digit, self.length), self.length)).astype(
                    np.int64
                )
                part = whole[:n].copy()
                part[: n - 1] += whole[n : 2 * n - 1]
                found.append(part)
            return found

        wide = carried(parts(), width)
        return np.asarray((wide.high.astype(object) << wide.shift) + wide.low.astype(object))

    def matrix(self) -> Ints:
        """Written out. Raises DataError above 2^24 entries."""
        n = self.n
        if n * n > LARGEST:
            raise DataError(f"linalg: a matrix of {n} x {n} entries is not written out; use its products")
        at = np.arange(n)
        apart = at[:, None] - at
        return np.asarray(self.kernel[apart % n])
