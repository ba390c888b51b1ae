"""Exact integer convolutions by the floating point FFT, with the bound that makes rounding safe.

The cyclic convolution of a and b of length M = 2^L, computed as ifft(fft(a) fft(b)) in float64, errs in every
entry by at most

    ((1 + u)^(3L) (1 + sqrt(5) u)^(3L + 1) (1 + beta)^(3L) - 1) ||a|| ||b||,    u = 2^-53,

where beta bounds the errors of the twiddle factors (Percival 2003, Thm 5.1; sqrt(5) u for a complex product is
Brent, Percival and Zimmermann 2007). The proof: every output is a sum over paths through the L levels, each of
which adds (1 + u) and multiplies (1 + sqrt(5) u)(1 + beta); Cauchy and Schwarz do the rest. A pass of radix 4
or 8 does the work of two or three levels with fewer multiplications, and a real transform is the complex one without
its redundant half, so the bound holds for them. Twiddle factors are taken to be within one unit in the last place:
beta <= sqrt(2) u. Integers whose bound is below 1/4 are found by rounding to the nearest, twice as safe as needed.

Long integers are cut into digits so short that this holds whatever their values: the width follows from the
public factor alone, and no check looks at the data.

``Convolution`` is the exact product of a long integer vector with a kernel, cyclic. It takes a vector of n Python
integers below 2^bits in size, ``bits`` a public bound, and gives Python integers. Long values are cut into words by
that bound alone, so that no step depends on the data but in its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import expm1, log1p, sqrt

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError
from dpsql.linalg.exact import by_words

_UNIT = 2.0**-53
_WORD = 62  # bits of a word's lower part: its sums stay inside int64
WIDEST = 20  # bits of a digit and of a factor at most
LONGEST = 2**20
_CONVOLVED, _LAST = 60, 63  # bits of a word that is convolved, and of the last one, signed: counts are one word
LARGEST = 2**24


def rounding_bound(length: int) -> float:
    """Largest error of an entry of a convolution of ``length`` = 2^L, over ||a|| ||b||. Percival 2003, Thm 5.1."""
    levels = length.bit_length() - 1
    once = log1p(_UNIT) + log1p(sqrt(5.0) * _UNIT) + log1p(sqrt(2.0) * _UNIT)
    # One more product and one more sum than the theorem: two convolutions are added before the inverse.
    return expm1(3 * levels * once + 2.0 * log1p(sqrt(5.0) * _UNIT)) * (1.0 + 1e-9)


def digit_width(length: int, entries: int, norm: float) -> int:
    """Bits of a balanced digit that convolves exactly with a factor of Euclidean ``norm``; 0 where none does.

    For ``entries`` digits a_j, |a_j| <= 2^(width - 1) + 2: rounding_bound ||a|| ||b|| <= 1/4.
    """
    most = 0.25 / (rounding_bound(length) * sqrt(entries) * max(norm, 1.0))
    return 0 if most < 3.0 else min(WIDEST, (int(min(most, 2.0**40)) - 2).bit_length())


@dataclass(frozen=True, eq=False)
class Wide:
    """Integers beyond 64 bits: ``high`` 2^shift + ``low``, elementwise, 0 <= low < 2^shift, shift <= 62."""

    high: Ints
    low: Ints
    shift: int

    def integers(self) -> list[int]:
        """Python integers, exactly. About 0.3 microseconds each."""
        total = (self.high.astype(object) << self.shift) + self.low.astype(object)
        return [int(v) for v in total]

    def floats(self) -> Floats:
        """Nearest floats up to two roundings."""
        return np.ldexp(self.high.astype(np.float64), self.shift) + self.low


def scaled(values: Ints, factors: Ints, width: int) -> Wide:
    """values * factors elementwise, exactly, for every int64 values and 0 <= factors < 2^20; width <= 20.

    ``shift`` is the multiple of ``width`` above 22 and at most 42, so that low words times factors stay below 2^62
    and high words below 2^(63 - 22 + 20) + 2^20.
    """
    shift = width * ((_WORD - WIDEST) // width)
    low = (values & ((1 << shift) - 1)) * factors
    return Wide((values >> shift) * factors + (low >> shift), low & ((1 << shift) - 1), shift)


def digit_count(bits: int, width: int) -> int:
    """How many digits of ``width`` bits, the top one signed and at most 2^(width - 1) + 2, hold |v| < 2^bits."""
    return max(1, -(-(bits + 1) // width))


def balanced_digits(values: Wide, width: int, count: int) -> Iterator[Floats]:
    """v = sum_k digit_k 2^(width k), lowest first; |digit_k| <= 2^(width - 1), the top one at most that + 2.

    ``values.shift`` is a multiple of ``width``. An offset of half a digit in all but the top makes every digit
    non-negative by itself, so none waits for the carry of another.
    """
    half, mask = 1 << (width - 1), (1 << width) - 1
    lower = values.shift // width
    inside = min(lower, count - 1)
    rest = values.low + sum(half << (width * k) for k in range(inside))
    for _ in range(inside):
        yield ((rest & mask) - half).astype(np.float64)
        rest = rest >> width
    if inside < lower:
        yield ((values.high << (values.shift - width * inside)) + rest).astype(np.float64)
        return
    rest = values.high + rest
    upper = count - lower - 1
    rest = rest + sum(half << (width * k) for k in range(upper))
    for _ in range(upper):
        yield ((rest & mask) - half).astype(np.float64)
        rest = rest >> width
    yield rest.astype(np.float64)


def carried(parts: Iterable[Ints], width: int) -> Wide:
    """sum_k part_k 2^(width k), exactly: for |part_k| < 2^61 and a sum below 2^(61 + width (62 // width)) in size."""
    mask, lower = (1 << width) - 1, _WORD // width
    carry = low = high = np.zeros(1, dtype=np.int64)
    count = 0
    for part in parts:
        carry = carry + part
        digit = carry & mask
        if count < lower:
            low = low + (digit << (width * count))
        else:
            high = high + (digit << (width * (count - lower)))
        carry = carry >> width
        count += 1
    if count <= lower:
        return Wide(carry, low, width * count)
    return Wide(high + (carry << (width * (count - lower))), low, width * lower)


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
        return by_words(lambda word: self._convolved(word, spectrum), x, bits, _CONVOLVED, _LAST)

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
