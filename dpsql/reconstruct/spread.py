"""Second moments of the answers R y: standard errors and covariances.

The noise z is uncorrelated over the measurements, of variance v, or v_i where it comes in blocks (``BlockNoise``), so
the error R z of the answers has covariance v R R^T, or R diag(v_i) R^T, whatever its distribution. In a block for
patterns (``PatternBlock``) all pairs have one more covariance: R V R^T for that matrix V.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpsql.common.arrays import Floats as Floats
from dpsql.common.pattern_block import PatternBlock
from dpsql.errors import DataError, InterfaceError
from dpsql.reconstruct.block_sums import covariance_root

Matrix: TypeAlias = "NDArray[np.float64] | sp.csr_array"


KINDS = ("gaussian", "laplace", "blocks")


class NoiseModel(Protocol):
    """What an error bar needs to know of the noise.

    ``kind`` is ``"gaussian"`` (a normal variable of variance ``parameter`` rounded to the
    nearest integer) or ``"laplace"`` (probability of z proportional to exp(-|z| / parameter)).
    ``variance`` is that of one integer coordinate: sigma^2 + 1/12, or 2 q / (1 - q)^2 with
    q = exp(-1/b). ``"blocks"``: see ``BlockNoise``, which has variances of its own instead.
    """

    @property
    def kind(self) -> str: ...
    @property
    def parameter(self) -> Fraction: ...
    @property
    def variance(self) -> float: ...


@runtime_checkable
class BlockNoise(Protocol):
    """Noise of kind "blocks": of z_1, ..., z_k in Z^m1, ..., Z^mk with the probability exp(-sum_k max |z_ki| / b).

    ``blocks``: m1, ..., mk. ``variances`` (p,): of the coordinates, which are uncorrelated and not independent; but in
    a ``PatternBlock``, which has the law and the covariances of ``PatternLaw``.
    """

    @property
    def blocks(self) -> tuple[int, ...]: ...
    @property
    def variances(self) -> Floats: ...


def in_deviations(matrix: Matrix, noise: NoiseModel) -> Matrix:
    """R (m x p) for noise in units of its deviation, coordinate by coordinate: the squares of a row are its variance.

    In blocks for patterns, whose coordinates are correlated, R times the symmetric root of their covariance matrix.

    Raises InterfaceError where noise in blocks has another number of coordinates.
    """
    if noise.kind != "blocks" or not isinstance(noise, BlockNoise):
        return matrix * math.sqrt(noise.variance)
    if sum(noise.blocks) != matrix.shape[1]:
        raise InterfaceError(f"noise in blocks of {sum(noise.blocks)} measurements met {matrix.shape[1]} of them")
    if any(isinstance(block, PatternBlock) for block in noise.blocks):
        return _product(matrix, covariance_root(noise.blocks, noise.variances))
    deviations = np.sqrt(noise.variances)
    return matrix * deviations if isinstance(matrix, np.ndarray) else sp.csr_array(matrix @ sp.diags_array(deviations))


def over_deviations(matrix: Matrix, noise: NoiseModel) -> Matrix:
    """Rows (k x p) over measurements divided by their deviations: what ``in_deviations`` takes back."""
    if isinstance(noise, BlockNoise) and any(isinstance(block, PatternBlock) for block in noise.blocks):
        return _product(matrix, covariance_root(noise.blocks, noise.variances, inverse=True))
    deviations = as_dense(in_deviations(np.ones((1, matrix.shape[1])), noise))[0]
    return matrix / deviations if isinstance(matrix, np.ndarray) else sp.csr_array(matrix / deviations)


def _product(matrix: Matrix, root: sp.csr_array[np.float64]) -> Matrix:
    return np.asarray(matrix @ root) if isinstance(matrix, np.ndarray) else sp.csr_array(matrix @ root)


def parameter(noise: NoiseModel) -> float:
    """sigma^2 of Gaussian noise, b of Laplace noise, also in blocks, as a float.

    Raises InterfaceError for another kind, DataError unless positive and finite.
    """
    if noise.kind not in KINDS:
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


def as_dense(matrix: Matrix) -> Floats:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def standard_errors(R: object, noise: NoiseModel) -> Floats:
    """Standard deviation of each answer, (m,), in the units of R y. Cost O(nnz of R)."""
    return row_lengths(in_deviations(as_rows(R), noise))


def row_lengths(matrix: Matrix) -> Floats:
    """The L2 norms of the rows, (m,)."""
    if isinstance(matrix, np.ndarray):
        return cast("Floats", np.sqrt(np.einsum("ij,ij->i", matrix, matrix)))
    return np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1), dtype=np.float64).reshape(-1))


def covariance(R: object, noise: NoiseModel) -> Floats:
    """Covariance matrix of the answers, (m x m), v R R^T. Cost O(m^2 p) for dense R."""
    matrix = in_deviations(as_rows(R), noise)
    product = matrix @ matrix.T
    return np.asarray(product if isinstance(product, np.ndarray) else product.toarray(), dtype=np.float64)


def excess(directions: Floats, noise: NoiseModel) -> float:
    """E |A z|^4 less what it is for normal noise of the same covariance, A (d x p) over the deviations of ``noise``.

    In a block of m coordinates E z_i^2 z_j^2 is rho = (m + 3)(m + 4) / ((m + 1)(m + 2)), and E z_i^4 is 9 rho / 5, on a
    fine grid and in deviations; so with G = A A' over the block the difference is (rho - 1) ((tr G)^2 + 2 |G|^2) less
    6 rho / 5 times the sum of |a_i|^4. Blocks add up. Laplace noise has blocks of one: 3 sum |a_i|^4. Where only
    log-concavity is known, as of blocks for patterns, it is the most that this allows: a kurtosis of 6 in every
    direction.
    """
    if noise.kind == "gaussian":
        return 0.0
    squares = np.einsum("ki,ki->i", directions, directions)
    if noise.kind == "laplace":
        return float(3.0 * squares @ squares)
    if not isinstance(noise, BlockNoise):
        return float(5.0 * squares.sum() ** 2 - 2.0 * np.sum((directions @ directions.T) ** 2))
    total, at = 0.0, 0
    for size in noise.blocks:
        mine, part = directions[:, at : at + size], squares[at : at + size]
        at += size
        if isinstance(size, PatternBlock):
            total += 5.0 * part.sum() ** 2 - 2.0 * np.sum((mine @ mine.T) ** 2)
        elif part.any():
            rho = (size + 3) * (size + 4) / ((size + 1) * (size + 2))
            joint = part.sum() ** 2 + 2.0 * np.sum((mine @ mine.T) ** 2)
            total += (rho - 1.0) * joint - 1.2 * rho * (part @ part)
    return max(float(total), 0.0)
