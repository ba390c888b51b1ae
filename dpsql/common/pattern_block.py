"""The norm of 0/1 patterns with at most l ones: a block that has it, what a change costs, and the law of its noise.

A unit counted once in each of at most l of m groups changes the counts by a *pattern*: c or -c, c in {0, 1}^m with at
most l ones. For x >= 0 let

    r(x) = max(max x, ceil(sum x / l)),      n(x) = max(max x, floor(sum x / l)),

and for an integer z with the positive part z+ and the negative part z-, r(z) = r(z+) + r(z-), n(z) = n(z+) + n(z-).

1. An integer change v is a sum of r(v) patterns. Write every unit of x = v+ down, those of one coordinate after each
   other, and give them in turn to the steps 1..r(x), over and over: a coordinate has at most r(x) units, so it is in no
   step twice, and a step gets at most ceil(sum x / r(x)) <= l units. The same for v-.
2. |n(z + c) - n(z)| <= 1 for every pattern c. Adding c >= 0 adds ones to z+ where z >= 0, at most l of them, and takes
   ones from z- elsewhere, at most l. max and floor(sum / l) each grow or fall by 0 or 1 then, and so does their
   maximum: n(z+) grows by 0 or 1, n(z-) falls by 0 or 1.

So |n(z + v) - n(z)| <= r(v), and noise of probability proportional to exp(-n(z) / b) gives pure epsilon-DP at b = D /
epsilon where no unit changes what is measured by v with r(v) > D: it is exact on the integers, at any scale. On a fine
grid n and r are both the gauge of the hull of all patterns, max(max z+, sum z+ / l) + max(max z-, sum z- / l), so that
this is the K-norm mechanism (Hardt and Talwar 2010) of the smallest norm. With l = 1 it is independent Laplace noise;
with l = m it is max z+ + max z-.

Its law on a fine grid of scale 1. The signs are + on a set of j coordinates with a probability proportional to V_j
V_(m-j), V_j the volume of P_j = {x in [0, 1]^j, sum x <= l}, every set alike; |z| is there R x, x uniform in P_j, R of
the Gamma law of j + 1. Let pi be a uniform permutation of 1..j with fewer than l descents and T_1 < ... < T_(j+1)
partial sums of exponential variables, T_0 = 0, pi_0 = 0. Then R x_i = T_pi(i) - T_pi(i-1), plus T_(j+1) at a descent:
y_i = (x_1 + ... + x_i) mod 1 is a volume-preserving bijection of the cube, and the sum of x is y_j plus the descents of
y (Stanley 1977). So |z_i| is Gamma of pi(i) - pi(i-1) mod (j + 1), at i = 1 of the first letter of pi, and the sum of
all is T_pi(j) + d T_(j+1) for d descents; (d, j + 1 - pi(j)) has the law of (d, pi(1)), by reversal of order and
letters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import scipy

from dpsql.common.arrays import Array, Floats
from dpsql.errors import InternalError

LARGEST = 256
"""Coordinates of a block: its draws take time in proportion to their square."""


class PatternBlock(int):
    """The size of a block whose norm is that of patterns with at most ``limit`` ones, 1 < limit <= size.

    As a number it is the size, so that whatever looks at sizes alone takes it as it is. It equals no plain number.
    """

    limit: int

    def __new__(cls, size: int, limit: int) -> PatternBlock:
        """Raises InternalError unless 1 < limit <= size <= ``LARGEST``."""
        if not (type(size) is int and type(limit) is int and 1 < limit <= size <= LARGEST):
            raise InternalError(f"a block of {size!r} counts has no patterns of at most {limit!r} ones")
        made = super().__new__(cls, size)
        made.limit = limit
        return made

    def __reduce__(self) -> tuple[type[PatternBlock], tuple[int, int]]:
        return PatternBlock, (int(self), self.limit)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternBlock) and (int(self), self.limit) == (int(other), other.limit)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("patterns", int(self), self.limit))

    def __repr__(self) -> str:
        return f"PatternBlock({int(self)}, {self.limit})"


def sizes_of(changes: Array, limit: int) -> Array:
    """The steps r of each column of whole changes (m x c) as Python integers; of floats their gauge."""
    total = np.zeros(changes.shape[1], dtype=changes.dtype)
    for sign in (1, -1):
        side = np.maximum(sign * changes, 0)
        sums = side.sum(axis=0)
        total = total + np.maximum(side.max(axis=0), -(-sums // limit) if changes.dtype == object else sums / limit)
    return np.asarray(total)


def encoded(block: int) -> int | list[int]:
    """A block as JSON: its size, or size and limit."""
    return [int(block), block.limit] if isinstance(block, PatternBlock) else int(block)


def decoded(written: int | list[int]) -> int:
    """The block that ``encoded`` wrote. Raises ValueError or TypeError for anything else."""
    if not isinstance(written, list):
        if type(written) is not int:
            raise TypeError("a block is a number, or a size and a limit")
        return written
    size, limit = written
    if type(size) is not int or type(limit) is not int:
        raise TypeError("a size and a limit are whole numbers")
    if not 1 < limit <= size <= LARGEST:
        raise ValueError("there is no block for such patterns")
    return PatternBlock(size, limit)


@dataclass(frozen=True, eq=False)
class PatternLaw:
    """The noise of a block on a fine grid of scale 1.

    ``shapes`` (m,): |z_i| is Gamma of k = 1..m with these probabilities. ``variance`` of a coordinate and
    ``covariance`` of two; n is symmetric in the coordinates, so that it is the same for all.
    """

    shapes: Floats = field(repr=False)
    variance: float
    covariance: float

    @property
    def mean_size(self) -> float:
        """E |z_i|."""
        return float(self.shapes @ np.arange(1, self.shapes.size + 1))

    def beyond(self, x: float) -> float:
        """P(|z_i| > x)."""
        return float(self.shapes @ scipy.special.gammaincc(np.arange(1, self.shapes.size + 1), x))

    def quantile(self, alpha: float) -> float:
        """The x with P(|z_i| > x) = alpha."""
        high = 1.0
        while self.beyond(high) > alpha:
            high *= 2.0
        return float(scipy.optimize.brentq(lambda x: self.beyond(x) - alpha, 0.0, high, xtol=1e-12, rtol=1e-12))


@lru_cache(64)
def law_of(block: PatternBlock) -> PatternLaw:
    """Cost O(size^2 limit)."""
    m, limit = int(block), block.limit
    # letters[j][d, k - 1]: of the permutations of 1..j with fewer than limit descents the share of those with d and the
    # first letter k; volume[j]: the logarithm of their share of all, which is below the least float for large j. Before
    # a permutation of j - 1 with the first letter k' a letter k is a descent where k' < k.
    letters = [np.ones((1, 1))]
    letters += [np.zeros((limit, 1))]
    letters[1][0, 0] = 1.0
    volume = np.zeros(m + 1)
    for j in range(2, m + 1):
        before = np.concatenate([np.zeros((limit, 1)), np.cumsum(letters[-1], axis=1)], axis=1)
        made = before[:, -1:] - before
        made[1:] += before[:-1]
        volume[j] = volume[j - 1] + np.log(made.sum() / j)
        letters.append(made / made.sum())
    chance = np.exp(volume + volume[::-1] - (volume + volume[::-1]).max())
    chance /= chance.sum()
    shapes, mean, square = np.zeros(m), np.zeros(m + 1), np.zeros(m + 1)
    d = np.arange(limit)[:, None]
    for j in range(1, m + 1):
        share = letters[j]
        shapes[:j] += 2.0 * chance[j] * j / m * share.sum(axis=0)
        last = j + 1.0 - np.arange(1, j + 1)[None, :]
        mean[j] = np.sum(share * (last + d * (j + 1)))
        square[j] = np.sum(share * (last * (last + 1) + 2 * d * last * (j + 2) + d * d * (j + 1) * (j + 2)))
    k = np.arange(1, m + 1)
    variance = float(shapes @ (k * (k + 1)))
    total = float(chance @ (square + square[::-1] - 2.0 * mean * mean[::-1]))
    return PatternLaw(shapes, variance, (total - m * variance) / (m * (m - 1)))
