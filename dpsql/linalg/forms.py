"""Dense or sparse: matrices of both forms travel through the same formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def is_sparse(matrix: Any) -> bool:
    """Is it one of scipy's sparse arrays?"""
    return bool(sparse.issparse(matrix))


def dense(matrix: Any) -> Any:
    """The ndarray of a dense or sparse matrix."""
    return matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)
