"""The inverse of a positive definite matrix."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.strategies.core.reduce import inverse_of


def test_the_inverse_is_symmetric_and_another_matrix_has_none() -> None:
    A = np.random.default_rng(5).normal(size=(6, 9))
    M = A @ A.T
    found = inverse_of(M)
    assert (found == found.T).all()
    assert np.allclose(found @ M, np.eye(6))
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        inverse_of(M - 100.0 * np.eye(6))
