"""Dense or sparse: matrices of both forms travel through the same formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Matrix, Sparse

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MATRIX_CAP = 2**27  # entries of a matrix that is written out: 1 GiB of float64
SMALL = 2**18  # entries up to which products of a dense matrix are quicker than of a sparse one
RANK_CAP = 6_000  # of one matrix whose eigenvalues are taken: a step takes most of a minute of one core


def is_sparse(matrix: object) -> TypeIs[Sparse]:
    """Is it one of scipy's sparse arrays?"""
    return bool(sparse.issparse(matrix))


def same_entries(one: Sparse, other: Sparse) -> bool:
    """Are two matrices of the same shape equal?"""
    return one.shape == other.shape and (one.nnz == other.nnz == 0 or abs(one - other).max() == 0)


def is_identity(matrix: Sparse) -> bool:
    """Is it the identity?"""
    n, m = matrix.shape
    return n == m == matrix.nnz and same_entries(matrix, sparse.eye_array(n, dtype=np.int64, format="csr"))


def row_squares(matrix: Matrix) -> Floats:
    """The sum of the squares of each row."""
    if is_sparse(matrix):
        return np.asarray(matrix.power(2).sum(axis=1), dtype=np.float64).ravel()
    return np.asarray(np.einsum("ij,ij->i", matrix, matrix))


def quick(matrix: Matrix) -> Matrix:
    """The form in which products cost less: a sparse matrix with an eighth of its entries or more is written out."""
    rows, columns = matrix.shape
    return matrix.toarray() if is_sparse(matrix) and 8 * matrix.nnz >= rows * columns else matrix


def kron(left: Array, right: Array) -> Array:
    """The Kronecker product of two dense matrices or vectors."""
    return np.asarray(np.kron(left, right))


def sparse_kron(left: Sparse, right: Sparse) -> Csr:
    """The Kronecker product of two sparse matrices."""
    return sparse.csr_array(sparse.kron(left, right, format="csr"))


def dense(matrix: Matrix) -> Array:
    """The ndarray of a dense or sparse matrix."""
    return matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)
