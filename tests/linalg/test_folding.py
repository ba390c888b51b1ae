import numpy as np
import pytest

from dpsql.strategies.core.ascent import Spectrum


@pytest.mark.parametrize("n", [2, 5, 8, 9])
def test_folded_powers_equal_plain_ones(n):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n))
    M = A @ A.T + np.eye(n)
    M = M + M[::-1, ::-1]
    plain, folded = Spectrum(M, False), Spectrum(M, True)
    for p in (0.5, -0.5, 1.0):
        assert np.allclose(plain.power(p), folded.power(p))
        assert np.allclose(plain.diagonal_power(p), folded.diagonal_power(p))
        assert np.isclose(plain.trace_power(p), folded.trace_power(p))
    assert np.allclose(folded.power(1.0), M)
