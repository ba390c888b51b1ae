"""Answers from integer measurements against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from dpsql.errors import DataError, InterfaceError
from dpsql.reconstruct import solve


def exact(R: np.ndarray, y: list[int], divisor: int) -> list[Fraction]:
    return [sum((Fraction(w) * v for w, v in zip(row, y, strict=True)), Fraction(0)) / divisor for row in R.tolist()]


@pytest.mark.parametrize("bits", [10, 52, 63, 64, 120, 300])
@pytest.mark.parametrize("divisor", [1, 3, 2**70 + 1])
def test_correctly_rounded_whatever_cancels(bits: int, divisor: int) -> None:
    rng = np.random.default_rng(bits)
    p = 12
    y = [int(rng.integers(0, 2**30)) * 2 ** max(bits - 30, 0) + int(rng.integers(0, 1000)) for _ in range(p)]
    y[1] = y[0] - 7
    R = rng.normal(size=(20, p))
    R[0] = 0
    R[0, :2] = 1, -1  # cancels all but 7
    R[1] = 0
    got = solve(R, y, divisor)
    for value, truth in zip(got.tolist(), exact(R, y, divisor), strict=True):
        assert abs(Fraction(value) - truth) <= Fraction(math.ulp(value))
    assert got[0] == float(Fraction(7, divisor))
    np.testing.assert_array_equal(solve(sp.csr_array(R), y, divisor), got)


@pytest.mark.long
def test_numpy_integers_and_blocks() -> None:
    R = np.random.default_rng(0).normal(size=(1100, 1000))
    y = np.arange(1000, dtype=np.int64)
    np.testing.assert_allclose(solve(R, y.tolist()), R @ y, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(solve(R, y), solve(R, y.tolist()))


def test_empty() -> None:
    assert solve(np.zeros((0, 3)), [1, 2, 3]).shape == (0,)
    assert solve(np.zeros((2, 0)), []).tolist() == [0, 0]
    assert solve(sp.csr_array((2, 3)), [1, 2, 3], 5).tolist() == [0, 0]


def test_refusals() -> None:
    with pytest.raises(InterfaceError, match="2 columns but 3"):
        solve(np.eye(2), [1, 2, 3])
    with pytest.raises(InterfaceError, match="divisor"):
        solve(np.eye(2), [1, 2], 0)
    with pytest.raises(DataError, match="2\\^400"):
        solve(np.eye(1), [2**401])
