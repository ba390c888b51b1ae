"""Answers from a noisy measurement: R y, in exact arithmetic up to one rounding.

y is a vector of Python integers that may exceed 2^63; float(y) would lose their low
digits, and rows of R with both signs cancel the high ones. Here every product and sum is
exact, so an answer is the correctly rounded value of what the float R says.

``Answers`` is R as an operator: values, error bars, and rows where covariances are needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.common.arrays import Floats, Matrix
from dpsql.common.numerics import TOGETHER
from dpsql.errors import DataError, InterfaceError

from .intervals import half_widths
from .spread import NoiseModel, as_rows, standard_errors

_SPLIT = float(2**27 + 1)  # Veltkamp's constant: halves of 26 bits, whose products are exact
LIMIT = 2**400  # far from overflow when a product is split


def solve(R: object, y: Sequence[int], divisor: int = 1) -> Floats:
    """Answers (R @ y) / divisor, (m,), each within 1 ulp of the exact value.

    R: (m x p) ndarray or sparse, dimensionless; y: p integers of any size up to 2^400;
    divisor: the positive integer L by which the measurement was scaled.
    Method: y is written as a sum of floats without error, products are split into value
    and rounding error (Dekker 1971), and rows are added with a correctly rounded sum
    (Shewchuk 1997, ``math.fsum``). No bound on the condition of R is needed: the result
    carries the rounding of R itself and of the answer, nothing else.
    Cost O(nnz) at about 0.1 s per million non-zeros while |y| < 2^53.
    Raises InterfaceError where shapes or the divisor are wrong, DataError for entries of y or R beyond 2^400, where
    products could overflow.
    """
    matrix = as_rows(R)
    m, p = matrix.shape
    integers = [int(v) for v in y]
    measured(integers, p)
    if int(divisor) <= 0:
        raise InterfaceError(f"the divisor must be a positive integer, not {divisor!r}")
    entries = matrix if isinstance(matrix, np.ndarray) else matrix.data
    if entries.size and max(entries.max(), -entries.min()) > LIMIT:
        raise DataError("an entry of the reconstruction exceeds 2^400; the scale of the measures is out of range")
    if not any(integers):
        return np.zeros(m)  # a rehearsal; no product overflows within these limits
    limbs = _limbs(integers)
    answers = np.empty(m)
    if isinstance(matrix, np.ndarray):
        step = max(1, TOGETHER // max(p, 1))
        for low in range(0, m, step):
            block = matrix[low : low + step]
            parts = np.concatenate([half for limb in limbs for half in _two_product(block, limb)], axis=1)
            answers[low : low + step] = [math.fsum(row) for row in parts.tolist()]
    else:
        pieces = [half for limb in limbs for half in _two_product(matrix.data, limb[matrix.indices])]
        stacked = np.stack(pieces, axis=1)
        ends = matrix.indptr
        for i in range(m):
            answers[i] = math.fsum(stacked[ends[i] : ends[i + 1]].ravel().tolist())
    return answers if divisor == 1 else _divide(answers, int(divisor))


def _limbs(integers: list[int]) -> list[Floats]:
    """Float vectors that add up to the integers exactly, largest first; at least one."""
    limbs: list[Floats] = []
    rest = integers
    while not limbs or any(rest):
        limb = [float(v) for v in rest]
        limbs.append(np.array(limb, dtype=np.float64))
        rest = [v - int(f) for v, f in zip(rest, limb, strict=True)]
    return limbs


def _two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(a * b rounded, its rounding error), elementwise (Dekker 1971)."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: Floats) -> tuple[Floats, Floats]:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high


def _divide(values: Floats, divisor: int) -> Floats:
    """The quotients values / divisor, correctly rounded although the divisor may exceed 2^53."""
    ratios = (v.as_integer_ratio() for v in values.tolist())
    return np.array([top / (bottom * divisor) for top, bottom in ratios], dtype=np.float64)


def measured(y: Sequence[int] | Floats, p: int) -> Floats:
    """y (p,) as floats. Raises InterfaceError for another number of measurements, DataError above 2^400."""
    if len(y) != p:
        raise InterfaceError(f"the reconstruction has {p} columns but {len(y)} values were measured")
    if p and max(max(y), -min(y)) > LIMIT:
        raise DataError("a measured value exceeds 2^400; the scale of the measures is out of range")
    return np.asarray(y, dtype=np.float64)


class Errors(Protocol):
    """One figure for each of m numbers, in the order of W's rows: an array, or ``RangeErrors`` where m is too large.

    Iteration and single places are for arrays alone.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Errors: ...
    def __mul__(self, factor: float, /) -> Errors: ...
    def __pow__(self, power: Literal[2], /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def max(self, *, initial: float = 0.0) -> Any: ...


def mean_square(errors: Errors) -> float:
    return float((errors**2).mean())


class RowsOfAnswers(Protocol):
    """What combinations of answers need of them."""

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """Rows of R for several columns of one result (k slices of g answers), one slice below the other.

        They are good for the error of any combination of the k answers of a group under ``noise``; where the law of a
        combination depends on its variance alone (Gaussian noise) they may be other rows of the same inner products.
        """
        ...


class Answers(RowsOfAnswers, Protocol):
    """The reconstruction R (m x p) of m answers from p measurements y = B (L x) + z. ``divisor`` is L."""

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """The numbers asked, R y / L (m,)."""
        ...

    def errors(self, noise: NoiseModel, divisor: int) -> Errors: ...

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Errors:
        """Half-widths (m,) of the pointwise intervals at level 1 - alpha."""
        ...


@dataclass(frozen=True, eq=False)
class MatrixAnswers:
    """R (m x p) as a matrix of the rows that differ: ``place`` (m,) says which each is, -1 for rows of zeros."""

    matrix: Matrix = field(repr=False)
    place: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, matrix: Matrix, answered: NDArray[np.int64], numbers: int) -> MatrixAnswers:
        """``matrix`` has the rows of the numbers ``answered``, of all ``numbers``; the others are zeros."""
        place = np.full(numbers, -1, dtype=np.int64)
        place[answered] = np.arange(len(answered))
        return cls(matrix, place)

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """Each within 1 ulp of the exact value (``solve``)."""
        return self._spread(solve(self.matrix, y, divisor))

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """The rows' norms times the noise's deviation."""
        return self._spread(standard_errors(self.matrix, noise) / divisor)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths (m,) of intervals at level 1 - alpha (``half_widths``)."""
        return self._spread(half_widths(self.matrix, noise, alpha) / divisor)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """The rows themselves, csr where ``matrix`` is."""
        place = np.concatenate([self.place[part] for part in parts])
        if isinstance(self.matrix, np.ndarray):
            return np.asarray(self.matrix[place] * (place >= 0)[:, None])
        return self._rows(place)

    def _spread(self, values: Floats) -> Floats:
        return np.asarray(np.append(values, 0.0)[self.place])

    @functools.cached_property
    def whole(self) -> Matrix:
        """The reconstruction R (numbers x p), csr."""
        return self._rows(self.place)

    def _rows(self, place: NDArray[np.int64]) -> Matrix:
        filled = np.flatnonzero(place >= 0)
        shape = place.size, self.matrix.shape[0]
        picks = sp.csr_array((np.ones(filled.size), (filled, place[filled])), shape=shape)
        return sp.csr_array(picks @ sp.csr_array(self.matrix))
