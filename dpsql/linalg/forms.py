"""Dense or sparse: matrices of both forms travel through the same formulas."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

MATRIX_CAP = 2**27  # entries of a matrix that is written out: 1 GiB of float64

Sparse: TypeAlias = "sparse.csr_array[Any] | sparse.csc_array[Any]"
Matrix: TypeAlias = "NDArray[Any] | Sparse"


def is_sparse(matrix: Any) -> bool:
    """Is it one of scipy's sparse arrays?"""
    return bool(sparse.issparse(matrix))


def dense(matrix: Any) -> Any:
    """The ndarray of a dense or sparse matrix."""
    return matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)
