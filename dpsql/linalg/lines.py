"""Ways to measure a line of n ordered cells whose errors have closed forms: integers, their inverse, its spread.

``CyclicLine`` is a circulant: every column has the same norm and every range of one length the same error.
``BlockLine`` sums nested blocks, whose projections commute. ``dpsql.linalg.prefix_line`` has the line whose prefixes
alone are asked. None of them is ever written out.

The error of a range of cells depends on where it begins and stops, in closed form. A range is [first, stop), counted
from 0. Its spread is the sum of the squares by which its estimate combines the measurements: the variance of the answer
for noise of variance 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg.convolution import LARGEST, Convolution
from dpsql.linalg.exact import by_words

_SUMMED = 40  # bits of a word that is summed: 2^20 of them stay below 2^62


class Line(Protocol):
    """An integer matrix B (rows x n) of full column rank over the cells of a line."""

    @property
    def n(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def l1(self) -> int:
        """The largest L1 norm of a column, exact."""
        ...

    @property
    def l2_squared(self) -> int:
        """The largest squared L2 norm of a column, exact."""
        ...

    @property
    def spread(self) -> Spread:
        """The errors of ranges as ``prefix_sums`` estimates them, for noise of variance 1."""
        ...

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """B x exactly, for |x| < 2^bits, a public bound."""
        ...

    def prefix_sums(self, y: Floats) -> Floats:
        """Estimates (n + 1,) of 0, x_1, x_1 + x_2, ... from y (rows,): unbiased, consistent with each other."""
        ...

    def largest_norm(self, order: int) -> float:
        """L1 (order 1) or squared L2 (order 2) norm again, in floats by another way."""
        ...

    def digest(self) -> bytes:
        """The SHA-256 of the integers."""
        ...

    def matrix(self) -> Ints:
        """Written out. DataError where it is large."""
        ...


@dataclass(frozen=True, eq=False)
class CyclicLine(Convolution):
    """B_ij = f(i - j), ``kernel`` (n,) int64 = f of period n, symmetric: f(k) = f(n - k).

    With the eigenvalues c_m of B, real, the range of k cells has the spread (1 / n) sum_m |1_k^(m)|^2 / c_m^2,
    |1_k^(m)|^2 = (1 - cos(2 pi m k / n)) / (1 - cos(2 pi m / n)), k^2 at m = 0. B is square, so its inverse
    is the least squares estimate. Raises InternalError where an eigenvalue might be zero.
    """

    @cached_property
    def eigenvalues(self) -> Floats:
        found = scipy.fft.rfft(self.kernel.astype(np.float64)).real
        if float(np.abs(found).min()) <= 1e-11 * self.l1:
            raise InternalError("linalg: a circulant might lack full rank")
        return np.asarray(found)

    @cached_property
    def spread(self) -> ByLength:
        """By the length of the range alone."""
        n, c = self.n, self.eigenvalues
        half = np.sin(np.pi * np.arange(c.size) / n)
        shape = np.zeros(c.size)
        shape[1:] = 1.0 / (2.0 * (half[1:] * c[1:]) ** 2)
        cosines = scipy.fft.irfft(shape, n) if n > 1 else np.zeros(1)
        k = np.arange(n + 1)
        return ByLength(k.astype(np.float64) ** 2 / (n * c[0] ** 2) + cosines[0] - cosines[k % n])

    def prefix_sums(self, y: Floats) -> Floats:
        """The prefix sums of B^-1 y, by two FFTs."""
        x = scipy.fft.irfft(scipy.fft.rfft(y) / self.eigenvalues, self.n) if self.n > 1 else y / self.eigenvalues
        return np.concatenate([[0.0], np.cumsum(x)])

    def largest_norm(self, order: int) -> float:
        """Squares by Parseval's equation."""
        if order == 1:
            return float(np.abs(self.kernel.astype(np.float64)).sum())
        twice = np.full(self.eigenvalues.size, 2.0)
        twice[0] = 1.0
        if self.n % 2 == 0:
            twice[-1] = 1.0
        return float((twice * self.eigenvalues**2).sum() / self.n)


@dataclass(frozen=True)
class BlockLine:
    """Weighted sums over nested blocks of a line: level l has the blocks of ``sizes[l]`` cells, times ``weights[l]``.

    ``n`` cells are followed by empty ones up to ``padded``; every size divides the one before, and the first divides
    ``padded``. Blocks without a cell are rows of zeros, measured all the same so that all blocks of a level are
    alike. Rows: level by level. Raises DataError for other sizes, and for weights below 1.

    Let P_l average over the blocks of level l and inner_l = sum over k >= l of w_k^2 s_k. The projections are nested,
    so (B^T B)^-1 = sum_l (P_l - P_(l-1)) / inner_l = sum_l factor_l P_l, and the least squares estimate over the
    padded line is sum_l factor_l P_l B^T y. A level's column norm is its weight, so L1 is the sum of weights.
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

    @property
    def l1(self) -> int:
        """A cell is in one block of each level."""
        return sum(self.weights)

    @property
    def l2_squared(self) -> int:
        return sum(weight * weight for weight in self.weights)

    def digest(self) -> bytes:
        """The SHA-256 of the sizes and weights, as ledgers have it."""
        text = f"Blocks(n={self.n}, padded={self.padded}, sizes={self.sizes}, weights={self.weights})"
        return hashlib.sha256(text.encode()).digest()

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
        if self.rows * self.n > LARGEST:
            raise DataError(f"linalg: a matrix of {self.rows} x {self.n} entries is not written out; use its products")
        cell = np.arange(self.n)
        parts = []
        for size, weight in zip(self.sizes, self.weights, strict=True):
            parts.append(weight * (np.arange(self.padded // size)[:, None] == cell // size))
        return np.vstack(parts).astype(np.int64)

    @cached_property
    def spread(self) -> ByBlocks:
        """By the parts of blocks that a range covers."""
        inner = [0] * (len(self.sizes) + 1)
        for level in reversed(range(len(self.sizes))):
            inner[level] = inner[level + 1] + self.weights[level] ** 2 * self.sizes[level]
        factors = [1.0 / a - (1.0 / b if b else 0.0) for a, b in pairwise(inner)]
        return ByBlocks(self.sizes, tuple(factors))

    def prefix_sums(self, y: Floats) -> Floats:
        """Of the estimate of the padded line, its first n cells. Cost O(n) a level."""
        at = 0
        v = np.zeros(self.padded)
        for size, weight in zip(self.sizes, self.weights, strict=True):
            count = self.padded // size
            v += weight * np.repeat(y[at : at + count], size)
            at += count
        x = np.zeros(self.padded)
        for size, factor in zip(self.sizes, self.spread.factors, strict=True):
            x += factor * np.repeat(v.reshape(-1, size).mean(axis=1), size)
        return np.concatenate([[0.0], np.cumsum(x[: self.n])])

    def largest_norm(self, order: int) -> float:
        """The norm of the first column, counted block by block."""
        first = [float(weight) for size, weight in zip(self.sizes, self.weights, strict=True) if size]
        return sum(value**order for value in first)


@dataclass(frozen=True, eq=False)
class ByLength:
    """``lengths[k]`` (n + 1,) is the spread of every range of k cells; of the kth where prefixes alone are asked."""

    lengths: Floats = field(repr=False)
    blocks: ClassVar[tuple[tuple[int, float], ...]] = ()

    def of(self, first: ArrayLike, stop: ArrayLike) -> Floats:
        """The spreads of ranges by their two ends."""
        return np.asarray(self.lengths[np.asarray(stop) - np.asarray(first)])

    def total(self, n: int, family: str) -> float:
        """The spreads of all ranges, or all prefixes, of n cells added up."""
        often = np.arange(n, 0.0, -1.0) if family == "ranges" else np.ones(n)
        return float(often @ self.lengths[1:])

    def largest(self, n: int) -> float:
        """The largest spread of a range."""
        return float(self.lengths.max())


@dataclass(frozen=True)
class ByBlocks:
    """sum_l factors[l] N_l: N_l the squared norm of the range averaged over the blocks of ``sizes[l]`` cells."""

    sizes: tuple[int, ...]
    factors: tuple[float, ...]
    lengths: ClassVar[None] = None  # ranges of one length differ

    @property
    def blocks(self) -> tuple[tuple[int, float], ...]:
        """Each size with its factor."""
        return tuple(zip(self.sizes, self.factors, strict=True))

    def of(self, first: ArrayLike, stop: ArrayLike) -> Floats:
        """The spreads of ranges, which may not be empty."""
        total = np.zeros(np.broadcast(first, stop).shape)
        for size, factor in self.blocks:
            total += factor * averaged(size, first, stop)
        return total

    def total(self, n: int, family: str) -> float:
        """The spreads of all ranges, or all prefixes, of n cells added up. Cost O(n) a level."""
        stop, total = np.arange(1, n + 1), 0.0
        for size, factor in self.blocks:
            prefixes = family == "prefixes"
            part = averaged(size, 0 * stop, stop).sum() if prefixes else averaged_over_ranges(size, n)
            total += factor * float(part)
        return total

    def largest(self, n: int) -> float:
        """A bound on the largest spread of a range, attained where it covers cells of two of the widest blocks.

        Estimates in different blocks of the widest level are independent, so such a range is a stretch up to the end of
        a block, whole blocks, and a stretch from the beginning of one, which is as the first mirrored. Within one
        block the widest level, whose factor is below 0, can be left out, and the next one is the widest.
        """
        largest, around = 0.0, -(-n // self.sizes[0]) * self.sizes[0]
        for level, size in enumerate(self.sizes):
            stop = np.arange(1, min(size, n) + 1)
            within = ByBlocks(self.sizes[level:], self.factors[level:]).of(np.zeros_like(stop), stop)
            count = around // size
            if count > 1:
                largest = max(largest, 2.0 * float(within.max()) + (count - 2) * float(within[-1]))
            elif size == 1:
                largest = max(largest, float(within.max()))
            around = size
        return largest


Spread: TypeAlias = ByLength | ByBlocks


def averaged(size: int, first: ArrayLike, stop: ArrayLike) -> Floats:
    """The squared norm of ranges averaged over blocks of ``size`` cells: sum over blocks of overlap^2 / size.

    Whole blocks give their size; the ends give what they cover, squared, over it.
    """
    i, e = np.asarray(first, dtype=np.int64), np.asarray(stop, dtype=np.int64)
    begin, end = i // size, (e - 1) // size
    left, right = size - i % size, (e - 1) % size + 1
    apart = (left.astype(np.float64) ** 2 + right.astype(np.float64) ** 2) / size + (end - begin - 1.0) * size
    return np.where(begin == end, (e - i).astype(np.float64) ** 2 / size, apart)


def averaged_over_ranges(size: int, n: int) -> float:
    """``averaged`` summed over all n (n + 1) / 2 ranges of n cells: sum over blocks b of 1_b^T G 1_b / size. Cost O(n).

    G_ac = min(a, c) (n + 1 - max(a, c)), cells counted from 1.
    """
    a = np.arange(1, n + 1, dtype=np.float64)
    below = np.concatenate([[0.0], np.cumsum(a)])
    begin = (np.arange(n) // size) * size
    inside = a + 2.0 * (below[:-1] - below[begin])  # a + 2 (sum of the cells of the block before it)
    return float(((n + 1.0 - a) * inside).sum() / size)
