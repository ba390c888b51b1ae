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
from functools import cached_property
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dpsql.common.arrays import Floats, Matrix
from dpsql.errors import DataError, InterfaceError
from dpsql.linalg.lines import ByLength, Line, Spread

from .intervals import level_of
from .least_squares import Errors
from .spread import NoiseModel


@dataclass(frozen=True, eq=False)
class RangeErrors:
    """One figure for every range of n cells, for each of several numbers: ``scale`` (r,) times the root of the spread.

    ``of`` gives that of some ranges. The numbers run range by range, and there are too many for an array; a slice
    of whole numbers is RangeErrors, too. Of two, ``<=`` says whether no figure exceeds the other's, False where the
    spreads cannot be compared.
    """

    scale: Floats = field(repr=False)
    spread: Spread = field(repr=False)
    n: int
    __array_ufunc__ = None  # an array leaves the comparison to it

    @classmethod
    def uniform(cls, scale: Floats, n: int) -> RangeErrors:
        """``scale`` for all ranges."""
        return cls(scale, ByLength(np.ones(n + 1)), n)

    def __len__(self) -> int:
        return len(self.scale) * self.count

    @property
    def count(self) -> int:
        """n (n + 1) / 2, the ranges."""
        return self.n * (self.n + 1) // 2

    def __getitem__(self, part: slice) -> RangeErrors:
        start, stop, step = part.indices(len(self))
        if step != 1 or start % self.count or stop % self.count:
            raise DataError("the errors of all ranges are taken whole, or of some ranges with of(first, last)")
        return RangeErrors(self.scale[start // self.count : stop // self.count], self.spread, self.n)

    def __mul__(self, factor: float | Floats) -> RangeErrors:
        return RangeErrors(self.scale * factor, self.spread, self.n)

    def __pow__(self, power: Literal[2]) -> RangeVariances:
        return RangeVariances(self)

    def __le__(self, other: object) -> bool:
        if not isinstance(other, RangeErrors):
            return False
        mine, theirs = self.spread, other.spread
        if mine.lengths is None or theirs.lengths is None:
            return mine.blocks == theirs.blocks and bool(np.all(self.scale <= other.scale))
        return bool(np.all(np.outer(self.scale**2, mine.lengths) <= np.outer(other.scale**2, theirs.lengths)))

    def __ge__(self, other: object) -> bool:
        return False  # of an array, which lists other numbers

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
        return max(initial, float(self.scale.max(initial=0.0)) * math.sqrt(self.spread.largest(self.n)))

    def mean_square(self) -> float:
        """The mean of the squares over all ranges and numbers, exact."""
        return float(np.mean(self.scale**2)) * self.spread.total(self.n, "ranges") / self.count


@dataclass(frozen=True, eq=False)
class RangeVariances:
    """The squares of ``errors``."""

    errors: RangeErrors

    def mean(self) -> float:
        """Exact, in closed form."""
        return self.errors.mean_square()


@dataclass(frozen=True, eq=False)
class LineAnswers:
    """Answers from y by measurements r p + q, q those of ``line``; ``matrix`` is R of the small batch."""

    line: Line = field(repr=False)
    matrix: Floats = field(repr=False)
    family: str

    def estimate(self, y: Sequence[int] | Floats, divisor: int) -> Floats:
        """Prefix sums (r, n + 1) over the line of every number of the small batch; for prefixes (r n,), one by one."""
        held = np.asarray(y, dtype=np.float64).reshape(-1, self.line.rows)
        sums = np.stack([self.line.prefix_sums(part) for part in held])
        found = self.matrix @ sums / divisor
        return found if self.family == "ranges" else np.asarray(found[:, 1:].ravel())

    def errors(self, noise: NoiseModel, divisor: int) -> Errors:
        """Standard errors: of prefixes (r n,), of ranges in closed form."""
        return self._spread(math.sqrt(noise.variance) / divisor)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Errors:
        """Half-widths of pointwise intervals: ``deviations`` times the standard errors."""
        return self._spread(deviations(noise, alpha) * math.sqrt(noise.variance) / divisor)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """Rows of R's inner products in each group of prefixes. Raises InterfaceError for Laplace noise."""
        n = self.line.n
        if noise.kind != "gaussian":
            raise InterfaceError(
                f"the {n:,} groups of a long column are too many for a policy that hides small counts one by one; ask "
                "for coarser ranges"
            )
        return np.concatenate([np.kron(self.matrix[p.start // n : p.stop // n], self._roots[:, None]) for p in parts])

    @cached_property
    def _roots(self) -> Floats:
        """The roots of the spreads of the prefixes (n,)."""
        stop = np.arange(1, self.line.n + 1)
        return np.asarray(np.sqrt(self.line.spread.of(np.zeros_like(stop), stop)))

    def _spread(self, factor: float) -> Errors:
        scale = factor * np.sqrt((self.matrix**2).sum(axis=1))
        if self.family == "ranges":
            return RangeErrors(scale, self.line.spread, self.line.n)
        return np.outer(scale, self._roots).ravel()


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
