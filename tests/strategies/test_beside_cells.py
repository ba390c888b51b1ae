"""Cells and a few sums beside them, without a factorisation, against the inverse."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.strategies.core.frame import BesideCells


@pytest.fixture
def A() -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.vstack([np.diag(rng.uniform(0.2, 2.0, 20)), rng.normal(size=(6, 20)) * rng.integers(0, 2, (6, 20))])


def test_least_squares_and_traces_are_those_of_the_inverse(A: np.ndarray) -> None:
    rng = np.random.default_rng(4)
    found, coords = BesideCells.of(A), rng.normal(size=(9, 20))
    assert found is not None
    M = np.linalg.inv(A.T @ A)
    assert np.allclose(found.answers(coords), coords @ M @ A.T, rtol=1e-10, atol=1e-10)
    half = found.half(coords)
    assert np.allclose(half @ half.T, coords @ M @ coords.T, rtol=1e-10, atol=1e-10)
    assert found.trace(coords.T @ coords) == pytest.approx(float(np.trace(coords @ M @ coords.T)), rel=1e-11)


def test_the_order_of_the_rows_says_nothing(A: np.ndarray) -> None:
    rng = np.random.default_rng(5)
    order, coords = rng.permutation(26), rng.normal(size=(9, 20))
    found = BesideCells.of(A[order])
    assert found is not None
    M = np.linalg.inv(A.T @ A)
    assert np.allclose(found.answers(coords), coords @ M @ A[order].T, rtol=1e-10, atol=1e-10)
    assert found.trace(coords.T @ coords) == pytest.approx(float(np.trace(coords @ M @ coords.T)), rel=1e-11)


def test_a_trace_in_which_rounding_would_show_is_not_given() -> None:
    A = np.vstack([np.eye(20), 1e4 * np.ones((1, 20))])
    found, ones = BesideCells.of(A), np.ones((1, 20))
    assert found is not None
    assert found.trace(ones.T @ ones) is None
    assert found.trace(np.eye(20)) is not None


def test_other_forms_are_left_alone(A: np.ndarray) -> None:
    assert BesideCells.of(A[:20]) is None
    assert BesideCells.of(np.vstack([A] + [A[20:]] * 3)) is None
    A[3, 3] = 0.0
    assert BesideCells.of(A) is None


def test_cells_too_short_beside_their_sums_have_a_factor_of_all() -> None:
    """A search may leave a row of nearly nothing: 1 + Y Y^T would have no Cholesky factor."""
    A = np.vstack([np.diag([1.0, 1.0, 1e-15, 1.0]), np.ones((1, 4)), np.diag([0.5, 0.0, 0.0, 0.0])[:1]])
    assert BesideCells.of(A) is None
    short = np.diag([1.0, 1.0, 1e-2, 1.0])
    held = BesideCells.of(np.vstack([short, np.ones((1, 4))]))
    assert held is not None
    M = short.T @ short + np.ones((4, 4))
    assert held.trace(np.eye(4)) == pytest.approx(np.trace(np.linalg.inv(M)), rel=1e-9)


def test_of_several_cells_of_a_column_the_longest_is_taken() -> None:
    A = np.vstack([np.diag([1e-15, 1.0, 1.0]), [[2.0, 0.0, 0.0]]])
    held = BesideCells.of(A)
    assert held is not None
    assert held.trace(np.eye(3)) == pytest.approx(2.25, rel=1e-12)
