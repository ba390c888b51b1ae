"""Counts by very many groups, of which few have rows: the threshold from which they are shown, and the errors.

A group of n rows is shown as n + Z where that is at least T, and as 0, by being absent, else. Its expected error is

    g(n) = n P(Z < T - n) + E |Z| 1[Z >= T - n],

known exactly, so that of any table the expected error of all groups together is: the sum of g over them. With N rows in
M groups it is at most M g(0) + N max_n (g(n) - g(0)) / n, whatever the rows are. The first part are rows where there
are none: T is the least threshold for which they are at most ``SHARE`` of the expected rows. The second is near N: of a
table whose groups are all far below T nothing can be seen. In between data decide, and stand-ins are a guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, exp, log

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.strategies.core.stand_ins import sparse_counts

SHARE = 0.01
"""Of the expected rows, as rows that are shown where there are none."""
MOST_SHOWN = 1_000_000
"""Groups of one result."""
_REHEARSED = 20_000  # groups that outer SQL is tried on before a charge


@dataclass(frozen=True, eq=False)
class SparseHistogram:
    """``groups`` counts with discrete Laplace noise of ``scale``, shown from ``least`` on, of about ``rows`` rows.

    ``unit``: by how much a unit moves them, in L1. ``expected``: the mean of the total error over each stand-in.
    """

    groups: int
    unit: int
    scale: Fraction
    least: int
    rows: int
    expected_errors: tuple[float, ...]
    digest_of_counts: str = field(repr=False)
    method: str = "sparse"
    noise: str = "laplace"
    objective: str = "total"
    blocks: tuple[int, ...] = ()
    gap: None = None
    lower_bound: None = None
    considered: tuple[tuple[str, float], ...] = ()

    @property
    def measured(self) -> SparseHistogram:
        """What it measures: itself."""
        return self

    @property
    def reach(self) -> tuple[int, ...]:
        """All groups together."""
        return (self.unit,)

    def digest(self) -> str:
        """A hash of groups, noise and threshold."""
        return hashlib.sha256(f"{self.digest_of_counts} {self.scale} {self.least}".encode()).hexdigest()

    @property
    def shape(self) -> tuple[int, int]:
        """(numbers of a transcript that is made up before a charge, groups)."""
        return 2 * min(self.groups, _REHEARSED, self.rows // self.least + 1), self.groups

    @property
    def stray(self) -> float:
        """How many groups without rows are expected to be shown."""
        return self.groups * exp(-self.least / float(self.scale)) / (1 + exp(-1 / float(self.scale)))

    @cached_property
    def worst(self) -> float:
        """The most that the total error is expected to be, of any ``rows`` rows."""
        n = np.arange(self.least + ceil(40 * self.scale) + 1)  # g(n) / n falls once n is past them
        g = error_of(n, float(self.scale), self.least)
        return float(self.groups * g[0] + self.rows * ((g[1:] - g[0]) / n[1:]).max())

    @property
    def expected_error(self) -> float:
        """The expected total error, of the worse stand-in."""
        return max(self.expected_errors)

    @property
    def unbiased_error(self) -> float:
        """The expected total error of all counts with their noise, whatever the data."""
        return self.groups * float(error_of(np.array([0]), float(self.scale), -ceil(60 * self.scale))[0])

    def unseen(self, alpha: float) -> int:
        """The largest count of which a group is absent with a chance of at least ``alpha``."""
        q = exp(-1 / float(self.scale))  # P(Z >= n - T + 1) = q^(n - T + 1) / (1 + q), from n = T on
        return self.least - 1 + max(0, int(-float(self.scale) * log(alpha * (1 + q))))

    @property
    def described(self) -> str:
        """One line of a plan's text."""
        return (
            f"sparse, {self.groups:,} counts with integer Laplace noise, of which those from {self.least:,} on are "
            "shown; of groups without rows as many as would pass are drawn, and no number is made for the others"
        )

    @property
    def short(self) -> str:
        """Its noise, for who does not ask for more."""
        added = f"random whole numbers (Laplace noise) are added to each of {self.groups:,} counts"
        return f"{added}; those from {self.least:,} on are shown"

    @property
    def errors_text(self) -> str:
        """What its errors are, for a plan's text."""
        return (
            "typical size (root mean square) of the noise on a count that is listed. A group that is absent stands for "
            "0, and how far off that is depends on the data"
        )


def sparse_histogram(
    groups: int, unit: int, epsilon: Fraction, rows: int, shape: Sequence[int], digest: str
) -> SparseHistogram:
    """The histogram with the least threshold that shows at most ``SHARE`` of ``rows`` where there are none.

    ``shape``: the groups of each key, for stand-ins. Cost: the expected rows, some seconds for millions. DataError
    where no group of so many rows could be shown.
    """
    scale = Fraction(unit) / epsilon
    b, q = float(scale), exp(-1 / float(scale))

    def stray(least: int) -> float:  # groups E[Z; Z >= least]
        return groups * exp(-least / b) / (1 + q) * (least + q / (1 - q))

    low, high = 0, ceil(b) + 1
    while stray(high) > SHARE * rows:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stray(middle) > SHARE * rows else (low, middle)
    if high > rows:
        raise DataError(
            f"at this budget only groups of about {high:,} rows and more could be shown, and {rows:,} are expected in "
            "all; ask with more epsilon, or for fewer groups"
        )
    errors = []
    for counts in sparse_counts(shape, rows):
        known, many = np.unique(counts, return_counts=True)
        g = error_of(np.array([0, *known]), b, high)
        errors.append(float((groups - len(counts)) * g[0] + many @ g[1:]))
    return SparseHistogram(groups, unit, scale, high, rows, tuple(errors), digest)


def error_of(n: np.ndarray, scale: float, least: int) -> Floats:
    """g(n), elementwise: the expected error of a group of n rows; as the module says, in closed form."""
    q = exp(-1 / scale)
    t = least - np.asarray(n, dtype=np.float64)  # the noise that shows it
    tail = np.exp(-np.abs(t) / scale) / (1 + q)
    # Of t >= 1: E[Z; Z >= t]. Of t <= 0: E|Z| less what |Z| = 1 - t and more have below.
    above = tail * (t + q / (1 - q))
    u = 1.0 - np.minimum(t, 0.0)
    beyond = np.exp(-u / scale) / (1 + q)
    within = 2 * q / (1 - q * q) - beyond * (u + q / (1 - q))
    return np.asarray(np.where(t >= 1, n * (1 - tail) + above, n * beyond + within))
