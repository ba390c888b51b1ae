"""Answers over all ranges or prefixes of a long line, and their errors, from n + 1 prefix sums and a closed form.

Every number is row r of a small batch over one range of the line (``dpsql.workloads.compile.line_batch``). With R the
small batch's reconstruction and S_q (n + 1,) the prefix sums of the line's estimate from measurement q of each of its
values, the number is (sum_q R_rq (S_q(stop) - S_q(first))), and its variance |R_r|^2 times the range's spread
(``dpsql.linalg.lines``) times the noise's: the measurements are independent and their weights a product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.linalg.lines import ByBlocks, ByLength, Spread, averaged, averaged_over_ranges

from .intervals import level_of
from .spread import NoiseModel


class Measured(Protocol):
    """What answers need of a line (``dpsql.linalg.lines.Line``)."""

    @property
    def n(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def spread(self) -> Spread: ...
    def prefix_sums(self, y: Floats) -> Floats: ...


@dataclass(frozen=True, eq=False)
class RangeErrors:
    """One figure for every range of n cells, for each of several numbers: ``scale`` (r,) times the root of the spread.

    ``of`` gives that of some ranges. The numbers run range by range, and there are too many for an array; a slice
    of whole numbers is RangeErrors, too.
    """

    scale: Floats = field(repr=False)
    spread: Spread = field(repr=False)
    n: int

    @classmethod
    def alike(cls, scale: Floats, n: int) -> RangeErrors:
        """``scale`` for all ranges."""
        return cls(scale, ByLength(np.ones(n + 1)), n)

    def __len__(self) -> int:
        return len(self.scale) * self.count

    @property
    def count(self) -> int:
        """n (n + 1) / 2, the ranges."""
        return self.n * (self.n + 1) // 2

    @property
    def lengths(self) -> Floats | None:
        """The spread of every range by its length, 0 to n; None where ranges of one length differ."""
        return self.spread.table if isinstance(self.spread, ByLength) else None

    @property
    def blocks(self) -> tuple[tuple[int, float], ...]:
        """The sizes and factors of ``ByBlocks``; none where ``lengths`` says it."""
        return (
            () if isinstance(self.spread, ByLength) else tuple(zip(self.spread.sizes, self.spread.factors, strict=True))
        )

    def __getitem__(self, part: slice) -> RangeErrors:
        start, stop, step = part.indices(len(self))
        if step != 1 or start % self.count or stop % self.count:
            raise DataError("the errors of all ranges are taken whole, or of some ranges with of(first, last)")
        return RangeErrors(self.scale[start // self.count : stop // self.count], self.spread, self.n)

    def __mul__(self, factor: float | Floats) -> RangeErrors:
        return RangeErrors(self.scale * factor, self.spread, self.n)

    def of(self, first: ArrayLike, last: ArrayLike) -> Floats:
        """The figures (r, k) of k ranges from value number ``first`` to ``last``, both included, counted from 0."""
        low, high = np.atleast_1d(np.asarray(first)), np.atleast_1d(np.asarray(last))
        if low.dtype.kind not in "iu" or high.dtype.kind not in "iu" or (low < 0).any() or (high >= self.n).any():
            raise DataError(f"a range goes from a first to a last value, whole numbers from 0 to {self.n - 1}")
        if (low > high).any():
            raise DataError("a range ends where it begins or later")
        return np.asarray(self.scale[:, None] * np.sqrt(self.spread.of(low, high + 1)))

    def max(self, initial: float = 0.0) -> float:
        """The largest, or a bound on it where ranges of one length differ."""
        if isinstance(self.spread, ByLength):
            most = float(self.spread.table.max())
        else:
            most = _largest_of_blocks(self.spread, self.n)
        return max(initial, float(self.scale.max(initial=0.0)) * math.sqrt(most))

    def mean_square(self) -> float:
        """The mean of the squares over all ranges and numbers, exact."""
        return float(np.mean(self.scale**2)) * total_spread(self.spread, self.n, "ranges") / self.count


def _largest_of_blocks(spread: ByBlocks, n: int) -> float:
    """A bound on the largest spread of a range, attained where it covers cells of two of the widest blocks.

    Estimates in different blocks of the widest level are independent, so such a range is a stretch up to the end of
    a block, whole blocks, and a stretch from the beginning of one, which is as the first mirrored. Within one
    block the widest level, whose factor is below 0, can be left out, and the next one is the widest.
    """
    largest, around = 0.0, -(-n // spread.sizes[0]) * spread.sizes[0]
    for level, size in enumerate(spread.sizes):
        finer = ByBlocks(spread.sizes[level:], spread.factors[level:])
        stop = np.arange(1, min(size, n) + 1)
        within = finer.of(np.zeros_like(stop), stop)
        apart = around // size
        if apart > 1:
            largest = max(largest, 2.0 * float(within.max()) + (apart - 2) * float(within[-1]))
        elif size == 1:
            largest = max(largest, float(within.max()))
        around = size
    return largest


def total_spread(spread: Spread, n: int, family: str) -> float:
    """The spreads of all ranges, or all prefixes, added up. Cost O(n) a level."""
    stop = np.arange(1, n + 1)
    if isinstance(spread, ByLength):
        often = (n + 1.0 - stop) if family == "ranges" else np.ones(n)
        return float(often @ spread.table[1:])
    total = 0.0
    for size, factor in zip(spread.sizes, spread.factors, strict=True):
        part = averaged_over_ranges(size, n) if family == "ranges" else averaged(size, np.zeros_like(stop), stop).sum()
        total += factor * float(part)
    return total


@dataclass(frozen=True, eq=False)
class LineAnswers:
    """Answers from y by measurements r p + q, q those of ``line``; ``matrix`` is R of the small batch."""

    line: Measured = field(repr=False)
    matrix: Floats = field(repr=False)
    family: str

    def estimate(self, y: Sequence[int] | Floats, divisor: int) -> Floats:
        """Prefix sums (r, n + 1) over the line of every number of the small batch; for prefixes (r n,), one by one."""
        held = np.asarray(y, dtype=np.float64).reshape(-1, self.line.rows)
        sums = np.stack([self.line.prefix_sums(part) for part in held])
        found = self.matrix @ sums / divisor
        return found if self.family == "ranges" else np.asarray(found[:, 1:].ravel())

    def errors(self, noise: NoiseModel, divisor: int) -> Floats | RangeErrors:
        """Standard errors: of prefixes (r n,), of ranges in closed form."""
        return self._spread(math.sqrt(noise.variance) / divisor)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats | RangeErrors:
        """Half-widths of pointwise intervals: ``deviations`` times the standard errors."""
        return self._spread(deviations(noise, alpha) * math.sqrt(noise.variance) / divisor)

    def _spread(self, factor: float) -> Floats | RangeErrors:
        n, scale = self.line.n, factor * np.sqrt((self.matrix**2).sum(axis=1))
        if self.family == "ranges":
            return RangeErrors(scale, self.line.spread, n)
        stop = np.arange(1, n + 1)
        return np.outer(scale, np.sqrt(self.line.spread.of(np.zeros_like(stop), stop))).ravel()


def deviations(noise: NoiseModel, alpha: float) -> float:
    """How many standard errors hold the error of any combination of the noise with probability 1 - alpha.

    Gaussian: the normal quantile. Laplace: a bound for all weights. Given exponential variables E_i the error is
    normal with variance V = sum_i s_i E_i, s the shares of the whole variance, so P(|error| > t) = E g(V), g(v) the
    normal's P(|z| > t / sqrt v). g is convex up to v = t^2 / 3 and concave beyond, so it lies below the convex function
    that goes on along its tangent there; and of all shares of one whole, V is largest in convex order where
    one variable has all (Marshall and Olkin 1979, 3.A and 12.F). The least t at which that bound is alpha: 2.16 for
    95 % (one Laplace variable alone 2.118). Either is rounded outward by half a step of the noise's lattice, weights
    being at most the error's own deviation over the noise's. Ours.
    """
    level = level_of(alpha)
    lattice = 0.5 / math.sqrt(noise.variance)
    if noise.kind == "gaussian":
        return float(-scipy.special.ndtri(level / 2)) + lattice
    found = scipy.optimize.brentq(lambda t: _largest_tail(t) - level, 1e-6, 200.0, xtol=1e-10)
    return float(found) * (1.0 + 1e-6) + lattice


def _largest_tail(t: float) -> float:
    """The bound on P(|error| > t) for a deviation of 1: E of g up to v = t^2 / 3 and of its tangent beyond."""
    turn = t * t / 3.0
    nodes, weights = np.polynomial.legendre.leggauss(200)
    v = turn * (nodes + 1.0) / 2.0
    below = float((weights * 2.0 * scipy.special.ndtr(-t / np.sqrt(v)) * np.exp(-v)).sum() * turn / 2.0)
    at = 2.0 * float(scipy.special.ndtr(-math.sqrt(3.0)))
    slope = math.exp(-1.5) / math.sqrt(2.0 * math.pi) * t * turn**-1.5
    return float(min(1.0, below + math.exp(-turn) * (at + slope)))
