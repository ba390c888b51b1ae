"""Statistics: numbers of a query that are worked out of several of its sums at once.

A new one that is a quotient of smooth functions is a class here (``Smooth``): ``reconstruct.derived`` gives any of them
its gradient and interval.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import InterfaceError
from dpsql.workloads.expr.formulas import Formula, Statistic

Complexes: TypeAlias = NDArray[np.complex128]
_OWN_LAW = ("stderr", "p_value")
_LAW = "its law includes the noise, so that it has no interval"


@dataclass(frozen=True)
class Fit(Statistic):
    """A number of the least-squares fit of y on an intercept and x_1, ..., x_k, from sums, squares and products.

    With z = (1, x_1 - c_1, ..., x_k - c_k, y - c_y), ``moments`` are the sums of z_i z_j, i <= j, row by row; each must
    be linear in the outputs. ``centres``: c_1, ..., c_k, c_y; ``scales``: how far each lies from its centre at most.
    ``what``: "coefficient" (number ``at``; 0 is the intercept), its "stderr" (noise and sampling together) and
    "p_value"; "r2"; and of one x: "corr", "covar_pop", "covar_samp".
    """

    moments: tuple[Formula, ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]
    what: str
    at: int = 0

    def __post_init__(self) -> None:
        size = len(self.centres) + 1
        if len(self.moments) != size * (size + 1) // 2 or len(self.scales) != len(self.centres):
            raise InterfaceError(f"a fit of {size - 2} columns needs {size * (size + 1) // 2} moments")

    @property
    def has_law(self) -> bool:  # type: ignore[override]
        """Of a standard error that has sampling in it, and of a p-value."""
        return self.what in _OWN_LAW

    @property
    def interval(self) -> str:  # type: ignore[override]
        """That of a ratio."""
        return _LAW if self.has_law else Statistic.interval

    @property
    def words(self) -> str:
        """The number and what it is of."""
        number = f" {self.at}" if self.what in ("coefficient", *_OWN_LAW) else ""
        return f"{self.what}{number} of least squares"

    @property
    def counted(self) -> Formula:
        """The rows where none is NULL."""
        return self.moments[0]


@dataclass(frozen=True)
class Comparison(Statistic):
    """Welch's test of two means: (n, sum of (v - c), sum of (v - c)^2) of each group. ``what``: "t", "df", "p_value".

    ``width``: upper minus lower bound of the values. All parts must be linear in the outputs.
    """

    groups: tuple[tuple[Formula, Formula, Formula], tuple[Formula, Formula, Formula]]
    width: float
    what: str
    has_law = True
    interval = _LAW

    @property
    def words(self) -> str:
        """What the test says."""
        return f"{self.what} of Welch's test"


@dataclass(frozen=True)
class Independence(Statistic):
    """The test of independence in a table of ``counts``, row by row. ``what``: "chisq" or "p_value"."""

    counts: tuple[Formula, ...]
    rows: int
    what: str
    has_law = True
    interval = _LAW

    @property
    def words(self) -> str:
        """What the test says."""
        return f"{self.what} of independence"

    @property
    def degrees(self) -> int:
        """Of freedom: (rows - 1) (columns - 1)."""
        return (self.rows - 1) * (len(self.counts) // self.rows - 1)


@dataclass(frozen=True)
class Gini(Statistic):
    """Gini's coefficient of values from 0: ``prefixes[i]`` counts the rows of at most ``values[i]``, ascending."""

    prefixes: tuple[Formula, ...]
    values: tuple[float, ...]
    words = "Gini's coefficient"

    @property
    def counted(self) -> Formula:
        """The last prefix, which has all rows."""
        return self.prefixes[-1]


class Smooth(Statistic):
    """A quotient of two smooth functions of its ``parts``, the first of which counts rows.

    ``sides`` are written for complex numbers, from whose imaginary parts the gradient follows to rounding.
    """

    parts: tuple[Formula, ...]

    @property
    def counted(self) -> Formula:
        """The first part."""
        return self.parts[0]

    @property
    @abstractmethod
    def least(self) -> int:
        """The fewest rows that have a value."""

    @abstractmethod
    def sides(self, parts: Complexes) -> tuple[Complexes, Complexes]:
        """Numerator and denominator, each (g,), from the parts (parts x g)."""

    @abstractmethod
    def between(self, fewest: Floats, most: Floats) -> tuple[Floats, Floats]:
        """The least and the largest value (g,) of so many rows, ``least`` or more."""


@dataclass(frozen=True)
class Shape(Smooth):
    """Skewness or excess kurtosis as DuckDB has them, from the sums of z^0 to z^3 or z^4, z linear in the value.

    With M_k the sum of k-th powers about the mean: "skewness" is sqrt(n - 1) n / (n - 2) M_3 / M_2^(3/2),
    "kurtosis_pop" is n M_4 / M_2^2 - 3, and "kurtosis" that without its bias for normal values (Joanes and Gill 1998).
    """

    parts: tuple[Formula, ...]
    what: str

    def __post_init__(self) -> None:
        if len(self.parts) != (4 if self.what == "skewness" else 5):
            raise InterfaceError(f"{self.what} takes the sums of powers 0 to {3 if self.what == 'skewness' else 4}")

    @property
    def words(self) -> str:
        """What it is."""
        return self.what

    @property
    def least(self) -> int:
        """As many as its divisor needs."""
        return {"skewness": 3, "kurtosis": 4, "kurtosis_pop": 2}[self.what]

    def sides(self, parts: Complexes) -> tuple[Complexes, Complexes]:
        """See the class."""
        n, first, second, third = parts[:4]
        m = first / n
        square = second - m * first
        if self.what == "skewness":
            return n * np.sqrt(n - 1) * (third - 3 * m * second + 2 * m * m * first), (n - 2) * square**1.5
        fourth = parts[4] - 4 * m * third + 6 * m * m * second - 3 * m**3 * first
        if self.what == "kurtosis_pop":
            return n * fourth - 3 * square**2, square**2
        top = n * (n * n - 1) * fourth - 3 * (n - 1) ** 2 * square**2
        return top, (n - 2) * (n - 3) * square**2

    def between(self, fewest: Floats, most: Floats) -> tuple[Floats, Floats]:
        """That of one row far from all others, and of two halves."""
        if self.what == "skewness":
            return -np.sqrt(most), np.sqrt(most)
        return -2 * (fewest - 1) / (fewest - 3) if self.what == "kurtosis" else np.full_like(most, -2.0), most
