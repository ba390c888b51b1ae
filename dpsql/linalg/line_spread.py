"""How the error of a range of cells depends on where it begins and stops, in closed form.

A range is [first, stop), counted from 0. Its spread is the sum of the squares by which its estimate combines the
measurements: the variance of the answer for noise of variance 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpsql.arrays import Floats


@dataclass(frozen=True, eq=False)
class ByLength:
    """``table[k]`` (n + 1,) is the spread of every range of k cells (or, where only prefixes are asked, of the kth)."""

    table: Floats = field(repr=False)

    def of(self, first: ArrayLike, stop: ArrayLike) -> Floats:
        """The spreads of ranges by their two ends."""
        return np.asarray(self.table[np.asarray(stop) - np.asarray(first)])


@dataclass(frozen=True)
class ByBlocks:
    """sum_l factors[l] N_l: N_l the squared norm of the range averaged over the blocks of ``sizes[l]`` cells."""

    sizes: tuple[int, ...]
    factors: tuple[float, ...]

    def of(self, first: ArrayLike, stop: ArrayLike) -> Floats:
        """The spreads of ranges, which may not be empty."""
        total = np.zeros(np.broadcast(first, stop).shape)
        for size, factor in zip(self.sizes, self.factors, strict=True):
            total += factor * averaged(size, first, stop)
        return total


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
