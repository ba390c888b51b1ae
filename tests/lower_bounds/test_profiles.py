import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError

H4 = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
Y4 = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]])


def error(A, q, noise="gaussian"):
    order = 2 if noise == "gaussian" else 1
    s = np.linalg.norm(A, ord=order, axis=0).max()
    if not np.allclose(q @ np.linalg.pinv(A) @ A, q):
        return np.inf
    return s**2 * q @ np.linalg.pinv(A.T @ A, rcond=1e-10) @ q


def test_sensitivities_by_hand():
    assert bounds.sensitivity(H4, noise="laplace") == 3.0
    assert bounds.sensitivity(Y4, noise="laplace") == 3.0
    assert bounds.sensitivity(H4) == pytest.approx(np.sqrt(3))
    assert bounds.sensitivity(strategy.select(workload.identity(3))) == 1.0


def test_error_profile_by_hand():
    assert np.allclose(bounds.error_profile(np.diag([1.0, 2.0])), np.diag([1, 0.25]))
    assert np.allclose(bounds.error_profile(Y4), np.linalg.inv(Y4.T @ Y4))
    # Rank deficient: only what the strategy supports counts.
    assert np.allclose(bounds.error_profile([[1, 1]]), np.full((2, 2), 0.25))


def test_profile_equivalence_and_dominance():
    root = np.linalg.cholesky((H4.T @ H4).astype(float)).T
    assert bounds.profile_equivalent(H4, root)
    assert bounds.profile_equivalent(H4, np.vstack([H4, np.zeros(4)]))
    assert not bounds.profile_equivalent(H4, Y4)
    # Example 7 of the 2010 paper: a square root has a lower L1 sensitivity than 3.
    s, V = np.linalg.eigh(H4.T @ H4)
    square = (V * np.sqrt(s)) @ V.T
    assert bounds.sensitivity(square, noise="laplace") < 3
    assert bounds.dominates(square, H4)
    assert not bounds.dominates(H4, square)
    assert not bounds.dominates(square, Y4)
    assert not bounds.dominates(square, H4, noise="gaussian")


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.long
def test_the_order_agrees_with_errors_of_random_queries(noise):
    rng = np.random.default_rng(8)
    seen = set()
    for k in range(60):
        A1 = rng.integers(-1, 2, size=(4, 3)).astype(float)
        A2 = (
            (rng.normal(size=(4, 4)) * 0.1 + np.eye(4)) @ A1
            if k % 2
            else rng.integers(-1, 2, size=(4, 3)).astype(float)
        )
        if k % 3 == 0:
            A2 = np.vstack([A1, A2[:1]])
        if not (A1.any() and A2.any()):
            continue
        found = bounds.compare(A1, A2, noise=noise)
        seen.add(found)
        queries = [*rng.normal(size=(40, 3)), *np.eye(3), *A1, *A2]
        pairs = [(error(A1, q, noise), error(A2, q, noise)) for q in queries]
        above = any(e1 > e2 * (1 + 1e-6) + 1e-9 for e1, e2 in pairs)
        below = any(e1 < e2 * (1 - 1e-6) - 1e-9 for e1, e2 in pairs)
        if found == "equal":
            assert not above
            assert not below
        elif found == "better":
            assert not above
        elif found == "worse":
            assert not below
        opposite = {"better": "worse", "worse": "better"}.get(found, found)
        assert bounds.compare(A2, A1, noise=noise) == opposite
    assert len(seen) >= 2


def test_order_by_hand():
    I2 = np.eye(2)
    assert bounds.compare(I2, 3 * I2) == "equal"
    assert bounds.compare(I2, np.diag([1.0, 0.5])) == "better"
    assert bounds.compare(np.diag([1.0, 0.5]), I2) == "worse"
    assert bounds.compare(I2, [[1, 1]]) == "incomparable"  # the total alone answers itself better
    assert bounds.compare(I2, [[1, 0]]) == "better"  # the second cell has infinite error under the other
    assert bounds.compare(np.diag([0.5, 1.0]), np.diag([1.0, 0.5])) == "incomparable"


def test_column_uniform_is_minimal():
    assert bounds.column_uniform(np.eye(3))
    assert bounds.column_uniform(H4)
    assert not bounds.column_uniform([[1, 1], [0, 1]])
    assert bounds.column_uniform([[1, 0.5], [0, 0.5]], noise="laplace")
    rng = np.random.default_rng(2)
    for _ in range(30):
        A = rng.normal(size=(4, 4))
        # Filling up short columns makes a strategy that is not column uniform better ...
        missing = np.sqrt(np.maximum(bounds.sensitivity(A) ** 2 - (A**2).sum(axis=0), 0.0))
        full = np.vstack([A, np.diag(missing)])
        assert bounds.column_uniform(full)
        assert bounds.compare(full, A) == "better"
        # ... and nothing is better than a column-uniform one.
        assert bounds.compare(rng.normal(size=(5, 4)), full) != "better"


def test_redundant_queries():
    A = np.array([[1, 1, 0], [0, 1, 1], [-2, -2, 0], [0, 0, 0], [0, 3, 3], [1, 0, 0]], dtype=float)
    assert bounds.redundant_groups(A) == ((0, 2), (1, 4))
    reduced = bounds.without_redundant(A)
    assert np.allclose(reduced, [[np.sqrt(5), np.sqrt(5), 0], [0, np.sqrt(10), np.sqrt(10)], [1, 0, 0]])
    assert bounds.compare(A, reduced) == "equal"
    assert bounds.redundant_groups(reduced) == ()
    # Under Laplace noise redundancy costs (Li and Miklau 2011, Thm B.1).
    assert bounds.compare(reduced, A, noise="laplace") == "better"
    assert bounds.sensitivity(reduced, noise="laplace") < bounds.sensitivity(A, noise="laplace")


def test_theorem_3_2_by_hand():
    # q and 2 q join to sqrt(5) q.
    assert np.allclose(bounds.without_redundant([[1, 0], [2, 0], [0, 1]]), [[np.sqrt(5), 0], [0, 1]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bounds.compare(np.eye(2), np.eye(3)), "cells"),
        (lambda: bounds.error_profile([[np.inf]]), "finite"),
        (lambda: bounds.error_profile([[0.0]]), "not zero"),
        (lambda: bounds.error_profile([1.0, 2.0]), "matrix"),
        (lambda: bounds.sensitivity(np.eye(2), noise="normal"), "noise"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
