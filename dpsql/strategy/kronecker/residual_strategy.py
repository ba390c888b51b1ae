"""Marginals over any number of attributes, measured in exact integers and reconstructed, without their cells.

The plan of ``dpsql.strategy.kronecker.residual`` wants noise of another scale on every residual T. Here row block T is
multiplied by a whole number k_T instead, in proportion to 1 / (s_T^1/2 prod_(i in T) d_i), so that one law of noise
serves all: y = B x + z, B the stack of k_T B_T, B_T = product over i in T of (d_i I - 1 1^T), over the rest 1^T. The
error is flat around the plan's, so small k_T cost little; they are doubled until the loss is below a tolerance.

Guarantee (neighbours: one record more or less in one cell). B e_j has the squared norm

    sum_T k_T^2 prod_(i in T) d_i (d_i - 1) = l2_squared,    for ||(d I - 1 1^T) e||^2 = (d - 1)^2 + (d - 1),

the same for every cell j, an exact integer. Rounded Gaussian noise of rational variance sigma^2 = l2_squared / mu^2 on
every entry is mu-GDP, as sum_T ||k_T B_T e_j||^2 / sigma^2 = mu^2. The marginal tables given must be those of one x;
their integers are combined without rounding or wrapping for all int64 (public bounds on the sizes alone).

Reconstruction: C_T y_T / (k_T prod_(i in T) d_i) estimates the residual T by least squares (C_T = product of
I - 1 1^T / d_i), and a marginal on S is the sum of the residuals of the subsets of S, spread evenly over S - T. All
marginals agree with each other, and every cell of S has variance sigma^2 times

    sum_(T in S) prod_(i in T) (d_i - 1) / d_i^3 / k_T^2 prod_(i in S - T) 1 / d_i^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsql.errors import DataError
from dpsql.strategy.kronecker.residual import ResidualPlan, Subset, plan_of
from dpsql.workload.families.marginals import Marginals

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUMBERS_CAP = 2**25  # integers measured
_WORD = 62


@dataclass(frozen=True, eq=False, repr=False)
class ResidualStrategy:
    """Integer measurements k_T B_T of the residuals T of ``plan``, ``multipliers`` T -> k_T.

    y holds the residuals in the order of ``multipliers``, each over the cells of T with the last attribute fastest.
    ``l2_squared``, ``l1``: the squared L2 and the L1 norm of every column of B, exact. ``expected``: the total
    squared error at sensitivity 1; ``lower_bound``: the singular value bound, which no Gaussian matrix mechanism beats.
    """

    plan: ResidualPlan
    multipliers: Mapping[Subset, int]
    l1: int
    l2_squared: int
    expected: float
    method: str = "residual-basis"
    noise: str = "gaussian"

    def __repr__(self) -> str:
        p, n = self.shape
        cells = str(n) if n < 10**15 else f"{float(n):.3g}" if n < 10**300 else "over 1e300"
        return f"<ResidualStrategy: {p} measurements over {cells} cells, error {self.expected:.6g}>"

    @property
    def shape(self) -> tuple[int, int]:
        """(p measurements, n cells), Python integers of any size."""
        return (sum(self._cells(T) for T in self.multipliers), prod(self.plan.sizes))

    @property
    def sensitivity(self) -> float:
        """Largest change of B x by one record in L2 norm."""
        return sqrt(self.l2_squared)

    @property
    def lower_bound(self) -> float:
        """The singular value bound (Li and Miklau 2013, Thm 4.2), met by the plan before rounding (Thm 5.5)."""
        return self.plan.error

    @property
    def gap(self) -> float:
        """error / lower bound - 1, of the integers that are measured."""
        return max(0.0, self.expected / self.lower_bound - 1.0)

    @property
    def maximal(self) -> tuple[Subset, ...]:
        """The planned sets that lie in no other: their marginal tables suffice for a measurement."""
        found = sorted({tuple(S) for S in self.plan.sets}, key=lambda S: (-len(S), S))
        kept: list[Subset] = []
        for S in found:
            if not any(set(S) < set(other) for other in kept if len(other) > len(S)):
                kept.append(S)
        return tuple(kept)

    def integers(self, tables: Mapping[Subset, ArrayLike]) -> list[int]:
        """B x as Python integers, exactly, from marginal tables {S: counts of shape (d_i for i in S)} of one x.

        ``tables`` holds the ``maximal`` sets; others are not looked at. Raises DataError where one is missing or has
        another shape or no integer type of at most 64 bits.
        """
        held = {S: self._table(S, tables) for S in self.maximal}
        source: dict[Subset, Subset] = {}
        for S in held:
            for T in _subsets(self._wide(S)):
                source.setdefault(T, S)
        out: list[int] = []
        for T, k in self.multipliers.items():
            S = source[T]
            out.extend(_combined(held[S], [i for i, a in enumerate(S) if a not in T], k, self._growth(T, S)))
        return out

    def residuals(self, y: Sequence[int]) -> dict[Subset, Floats]:
        """Estimates of the residual tables {T: (d_i for i in T)} from the noisy y; they sum to zero over each axis.

        Raises DataError for another number of measurements or for |y| above 2^400.
        """
        if len(y) != self.shape[0]:
            raise DataError(f"strategy: {len(y)} measurements for {self.shape[0]}; give one a row of B")
        exact = np.asarray(y, dtype=object)
        if max(exact.max(), -exact.min()) > 2**400:
            raise DataError("strategy: a measured value exceeds 2^400; the scale of the noise is out of range")
        values, at, out = exact.astype(np.float64), 0, {}
        for T, k in self.multipliers.items():
            shape = tuple(self.plan.sizes[i] for i in T)
            part = values[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
            for axis in range(len(T)):
                part = part - part.mean(axis=axis, keepdims=True)
            out[T] = part / (float(k) * prod(shape))
        return out

    def marginal(self, S: Sequence[int], residuals: Mapping[Subset, Floats]) -> Floats:
        """The marginal on S (d_i for i in S, ascending), unbiased, from ``residuals``.

        Raises DataError where a subset of S is not measured.
        """
        chosen = self._planned(S)
        out = np.zeros(tuple(self.plan.sizes[i] for i in chosen))
        for T in _subsets(self._wide(chosen)):
            spread = prod(self.plan.sizes[i] for i in chosen if i not in T)
            shape = tuple(self.plan.sizes[i] if i in T else 1 for i in chosen)
            out += residuals[T].reshape(shape) / spread
        return out

    def solve(self, y: Sequence[int]) -> dict[Subset, Floats]:
        """All planned marginals from y, consistent with each other. Cost O(2^|S| cells of S) for each set S."""
        found = self.residuals(y)
        return {S: self.marginal(S, found) for S in dict.fromkeys(tuple(S) for S in self.plan.sets)}

    def variance(self, S: Sequence[int]) -> Fraction:
        """The variance of every cell of the marginal on S at noise of variance 1, exact.

        Rounded Gaussian noise for squared sensitivity ``l2_squared`` has variance l2_squared / mu^2 + 1/12 at most.
        Raises DataError where a subset of S is not measured.
        """
        chosen = self._planned(S)
        total = Fraction(0)
        for T in _subsets(self._wide(chosen)):
            d = [self.plan.sizes[i] for i in T]
            top = prod(v - 1 for v in d)
            rest = prod(self.plan.sizes[i] for i in chosen if i not in T)
            total += Fraction(top, prod(d) ** 3 * self.multipliers[T] ** 2 * rest**2)
        return total

    def _planned(self, S: Sequence[int]) -> Subset:
        chosen = tuple(sorted(set(S)))
        if not all(0 <= i < len(self.plan.sizes) for i in chosen) or self._wide(chosen) not in self.multipliers:
            raise DataError(f"strategy: the marginal on attributes {chosen} was not planned for")
        return chosen

    def _wide(self, S: Subset) -> Subset:
        """S without attributes of one value, which have no residual."""
        return tuple(i for i in S if self.plan.sizes[i] > 1)

    def _cells(self, S: Subset) -> int:
        return prod(self.plan.sizes[i] for i in S)

    def _growth(self, T: Subset, S: Subset) -> int:
        """By how much the residual T of a table on S can exceed the table's largest entry."""
        sizes = self.plan.sizes
        return self.multipliers[T] * prod(2 * (sizes[i] - 1) if i in T else sizes[i] for i in S if sizes[i] > 1)

    def _table(self, S: Subset, tables: Mapping[Subset, ArrayLike]) -> Ints:
        if S not in tables:
            raise DataError(f"strategy: the marginal table on attributes {S} is missing; give one for each maximal set")
        table, shape = np.asarray(tables[S]), tuple(self.plan.sizes[i] for i in S)
        if table.shape != shape or table.dtype.kind not in "iu" or table.dtype == np.uint64:
            raise DataError(f"strategy: the marginal table on attributes {S} takes int64 counts of shape {shape}")
        return table.astype(np.int64)


def residual_strategy(W: Marginals | ResidualPlan, tolerance: float = 1e-5) -> ResidualStrategy:
    """The optimal Gaussian strategy for marginals in integers, with an error at most (1 + tolerance) times the plan's.

    Cost: the number of subsets of the sets; no table is made. Raises DataError for a tolerance outside (0, 1], above
    2^25 measurements, and where the integers of one residual would leave no room for the data in 62 bits.
    """
    plan = plan_of(W) if isinstance(W, Marginals) else W
    if not 0 < tolerance <= 1:
        raise DataError("strategy: tolerance must be above 0 and at most 1")
    if sum(prod(plan.sizes[i] for i in T) for T in plan.scale) > NUMBERS_CAP:
        raise DataError(f"strategy: these marginals need over {NUMBERS_CAP} measurements; ask for smaller marginals")
    cells = {T: prod(plan.sizes[i] for i in T) for T in plan.scale}
    wanted = {T: 1.0 / (sqrt(s) * cells[T]) for T, s in plan.scale.items()}
    least, step = min(wanted.values()), 1
    while True:
        k = {T: max(1, round(step * (value / least))) for T, value in wanted.items()}
        l2_squared = sum(k[T] ** 2 * prod(plan.sizes[i] * (plan.sizes[i] - 1) for i in T) for T in k)
        # The plan's weight of residual T is c_T = error p_T / s_T^2.
        error = 0.0
        for T, s in plan.scale.items():
            p = prod((plan.sizes[i] - 1) / plan.sizes[i] for i in T)
            error += plan.error * p / s**2 * (l2_squared / (k[T] * cells[T]) ** 2)
        if error <= (1.0 + tolerance) * plan.error or step >= 2**20:
            break
        step *= 2
    l1 = sum(k[T] * prod(2 * (plan.sizes[i] - 1) for i in T) for T in k)
    out = ResidualStrategy(plan, k, l1, l2_squared, error)
    for S in out.maximal:
        for T in _subsets(out._wide(S)):
            _word_width(out._growth(T, S))
    return out


def _word_width(growth: int) -> int:
    """Bits of the data that fit one int64 pass; DataError below 8. Depends on public sizes alone."""
    width = _WORD - growth.bit_length()
    if width < 8:
        raise DataError("strategy: the integers of these marginals are too large; ask for smaller marginals")
    return width


def _combined(table: Ints, others: list[int], k: int, growth: int) -> list[int]:
    """k B_T of a marginal table, exactly, summed over ``others``: in words of the data so short that nothing wraps."""
    width = _word_width(growth)
    count = -(-64 // width)
    total: Any = 0
    for number in range(count):
        word = table >> (width * number)
        if number < count - 1:
            word = word & ((1 << width) - 1)
        part = word.sum(axis=tuple(others), dtype=np.int64)
        for axis in range(part.ndim):
            part = part.shape[axis] * part - part.sum(axis=axis, keepdims=True)
        part = np.asarray(k * part).ravel()
        total = part if count == 1 else total + (part.astype(object) << (width * number))
    return [int(v) for v in total]


def _subsets(S: Subset) -> list[Subset]:
    return [T for order in range(len(S) + 1) for T in combinations(S, order)]
