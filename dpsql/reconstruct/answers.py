"""Answers as an operator on a noisy measurement: values, error bars, and rows where covariances are needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.arrays import Floats, Matrix

from .intervals import half_widths
from .least_squares import solve
from .spread import NoiseModel, standard_errors


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

    def errors(self, noise: NoiseModel, divisor: int) -> Floats: ...

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths (m,) of the pointwise intervals at level 1 - alpha."""
        ...


@dataclass(frozen=True, eq=False)
class MatrixAnswers:
    """R as a matrix: ``matrix`` has the rows of the numbers ``answered`` (of ``numbers``), the others are zeros."""

    matrix: Matrix = field(repr=False)
    answered: NDArray[np.int64] = field(repr=False)
    numbers: int

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
        """The rows themselves, csr."""
        return sp.csr_array(sp.vstack([sp.csr_array(self.whole[part]) for part in parts], format="csr"))

    def _spread(self, values: Floats) -> Floats:
        out = np.zeros(self.numbers)
        out[self.answered] = values
        return out

    @functools.cached_property
    def whole(self) -> Matrix:
        """The reconstruction R (numbers x p), csr."""
        held, count = sp.csr_array(self.matrix), len(self.answered)
        place = sp.csr_array((np.ones(count), (self.answered, np.arange(count))), shape=(self.numbers, count))
        return sp.csr_array(place @ held)
