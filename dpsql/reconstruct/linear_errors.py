"""The joint error of several outputs of many groups, and of linear combinations of them.

Output j of group i errs by R[j g + i] z / L, z the independent integer noise. A combination
with weights c (one per group and output) errs by (sum_j c[i, j] R[j g + i]) z / L, so whatever
the shape of a formula, its linear part is one row over the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError
from dpsql.linalg.forms import SMALL

from .intervals import half_widths
from .spread import Matrix, NoiseModel, as_dense, as_rows, in_deviations, standard_errors


@dataclass(frozen=True, eq=False)
class LinearErrors:
    """Errors of k outputs in g groups: ``parts[j]`` (g x p) has the rows of output j, divided by ``divisor``.

    ``certain`` (g x k): the outputs that do not depend on the data; their rows are zeros.
    """

    parts: tuple[Matrix, ...] = field(repr=False)
    noise: NoiseModel
    alpha: float
    certain: NDArray[np.bool_] = field(repr=False)
    divisor: float = 1.0

    @classmethod
    def of(
        cls,
        rows: object,
        groups: int,
        noise: NoiseModel,
        alpha: float,
        divisor: int = 1,
        certain: NDArray[np.bool_] | None = None,
    ) -> LinearErrors:
        """From stacked rows (k g x p), output by output: row j g + i is output j of group i.

        ``divisor``: the positive integer L by which the measurement was scaled. ``certain`` (g x k): the outputs that
        do not depend on the data; those whose rows are zeros, where it is not given. Raises InterfaceError where
        the rows are no multiple of the groups or the divisor is not positive, DataError where not finite.
        """
        matrix = as_rows(rows)
        if matrix.shape[0] * matrix.shape[1] <= SMALL:
            matrix = as_dense(matrix)
        if groups < 1 or matrix.shape[0] % groups:
            raise InterfaceError(f"{matrix.shape[0]} rows are no whole number of outputs for {groups} groups")
        if divisor <= 0:
            raise InterfaceError(f"the divisor must be a positive integer, not {divisor!r}")
        starts = range(0, matrix.shape[0], groups)
        parts = tuple(matrix[start : start + groups] for start in starts)
        if certain is None:
            certain = np.stack([standard_errors(part, noise) == 0 for part in parts], axis=1)
        return cls(parts, noise, alpha, certain, float(divisor))

    @property
    def outputs(self) -> int:
        return len(self.parts)

    def combine(self, weights: Floats) -> Matrix:
        """Rows (g x p) of the combinations with ``weights`` (g x k). Cost O(nnz of R)."""
        if not np.isfinite(weights).all():
            raise DataError("the weights of a combination are not finite; the formula overflows")
        total: Matrix | None = None
        for j, part in enumerate(self.parts):
            factor = weights[:, j] / self.divisor
            if total is not None and not factor.any():
                continue
            term = scale_rows(part, factor)
            total = term if total is None else cast("Matrix", total + term)
        if total is None:
            raise InterfaceError("there are no outputs to combine")
        return total

    def rows_of(self, group: int) -> Floats:
        """The rows (k x p) of one group's outputs over the noise, dense."""
        rows = [part[group : group + 1] for part in self.parts]
        dense = [row if isinstance(row, np.ndarray) else row.toarray() for row in rows]
        return np.concatenate(dense) / self.divisor

    def deviations(self, rows: Matrix) -> Floats:
        """Standard errors (g,) of combined rows."""
        return standard_errors(rows, self.noise)

    def half_widths(self, rows: Matrix) -> Floats:
        """Half-widths (g,) of the (1 - alpha) intervals of combined rows."""
        return half_widths(rows, self.noise, self.alpha)

    def covariances(self, left: Matrix, right: Matrix) -> Floats:
        """Covariance (g,) of two combinations, group by group."""
        left, right = in_deviations(left, self.noise), in_deviations(right, self.noise)
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            return cast("Floats", np.einsum("ij,ij->i", left, right))
        return np.asarray(sp.csr_array(left).multiply(right).sum(axis=1), dtype=np.float64).reshape(-1)


def scale_rows(matrix: Matrix, factor: Floats) -> Matrix:
    if isinstance(matrix, np.ndarray):
        return matrix * factor[:, None]
    return sp.csr_array(sp.diags_array(factor) @ matrix)
