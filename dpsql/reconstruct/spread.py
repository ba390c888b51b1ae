"""Second moments of the answers R y: standard errors and covariances.

The noise z is independent and identically distributed over the integers with variance
v, so the error R z of the answers has covariance v R R^T, whatever its distribution.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.arrays import Floats as Floats
from dpsql.errors import DataError, InterfaceError

Matrix: TypeAlias = "NDArray[np.float64] | sp.csr_array"


class NoiseModel(Protocol):
    """What an error bar needs to know of the noise.

    ``kind`` is ``"gaussian"`` (a normal variable of variance ``parameter`` rounded to the
    nearest integer) or ``"laplace"`` (probability of z proportional to exp(-|z| / parameter)).
    ``variance`` is that of one integer coordinate: sigma^2 + 1/12, or 2 q / (1 - q)^2 with
    q = exp(-1/b).
    """

    @property
    def kind(self) -> str: ...
    @property
    def parameter(self) -> Fraction: ...
    @property
    def variance(self) -> float: ...


def parameter(noise: NoiseModel) -> float:
    """sigma^2 of Gaussian noise, b of Laplace noise, as a float.

    Raises InterfaceError for another kind, DataError unless positive and finite.
    """
    if noise.kind not in ("gaussian", "laplace"):
        raise InterfaceError(f"unknown noise kind {noise.kind!r}; use 'gaussian' or 'laplace'")
    number = float(noise.parameter)
    if not (number > 0 and math.isfinite(number)):
        raise DataError(f"{noise.kind} noise needs a positive finite parameter, not {number!r}")
    return number


def as_rows(R: object) -> Matrix:
    """R as a finite (m x p) float64 array or csr_array, duplicates summed.

    Raises InterfaceError unless it has two dimensions, DataError for NaN or infinity.
    """
    matrix: Matrix
    if sp.issparse(R):
        sparse = sp.csr_array(cast("sp.csr_array[np.float64]", R))
        if sparse.dtype != np.float64 or not sparse.has_canonical_format:
            sparse = sparse.astype(np.float64, copy=True)
            sparse.sum_duplicates()
        matrix, values = sparse, sparse.data
    else:
        matrix = values = np.asarray(R, dtype=np.float64)
    if matrix.ndim != 2:
        raise InterfaceError(f"the reconstruction must be a matrix; it has {matrix.ndim} dimension(s)")
    if not np.isfinite(values).all():
        raise DataError("the reconstruction holds NaN or infinity; its strategy is not invertible")
    return matrix


def standard_errors(R: object, noise: NoiseModel) -> Floats:
    """Standard deviation of each answer, (m,), in the units of R y. Cost O(nnz of R)."""
    matrix = as_rows(R)
    if isinstance(matrix, np.ndarray):
        squares = np.einsum("ij,ij->i", matrix, matrix)
    else:
        squares = np.asarray(matrix.multiply(matrix).sum(axis=1), dtype=np.float64).reshape(-1)
    return cast("Floats", np.sqrt(squares * noise.variance))


def covariance(R: object, noise: NoiseModel) -> Floats:
    """Covariance matrix of the answers, (m x m), v R R^T. Cost O(m^2 p) for dense R."""
    matrix = as_rows(R)
    product = matrix @ matrix.T
    dense = product if isinstance(product, np.ndarray) else product.toarray()
    return np.asarray(dense, dtype=np.float64) * noise.variance
