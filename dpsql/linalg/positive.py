"""Positive definite matrices in floats."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats


def inverse_of(M: Floats) -> Floats:
    """M^-1 of a positive definite M (n x n), in a fraction of what solving for all units takes; else LinAlgError."""
    factor, failed = linalg.lapack.dpotrf(M)
    if failed:
        raise linalg.LinAlgError("the matrix is not positive definite")
    half, _ = linalg.lapack.dpotri(factor)
    half.flat[:: len(M) + 1] *= 0.5
    return np.asarray(half + half.T)
