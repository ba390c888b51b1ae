"""Strategies beside earlier measurements: by hand, against brute force, and the dual below every strategy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, sparse

from dpsql.earlier.search import Complementing, norms, rooted, rounded, search
from dpsql.linalg.exact import column_norms
from dpsql.strategy import select
from dpsql.workload import all_range
from dpsql.workload.cells.corners import corners_of


def problem_of(W, B, tau=1.0, corners=None, precision=1.0):
    W, B = np.asarray(W, dtype=float), np.asarray(B, dtype=float)
    return Complementing(W.T @ W, precision * B.T @ B, tau, corners, np.concatenate([W, B]))


def direct(problem, A):
    """f by the definition: W's covariance under all observations, by the pseudo-inverse."""
    moved = A if problem.corners is None else A @ problem.corners
    X = A.T @ A / (moved**2).sum(axis=0).max()
    return float(np.trace(problem.gram @ np.linalg.pinv(problem.precision + problem.tau * X, rcond=1e-12)))


@pytest.mark.parametrize(("before", "tau"), [(4.0, 1.0), (0.5, 3.0), (1.0, 1e-3)])
def test_one_count_measured_before_by_hand(before, tau):
    """Precisions of one number add up."""
    found = search(Complementing(np.eye(1), before * np.eye(1), tau), [], 1e-3)
    assert found.upper == pytest.approx(1 / (before + tau), rel=1e-6)
    assert found.lower == pytest.approx(1 / (before + tau), rel=1e-6)


def test_beside_a_known_total_the_difference_is_measured():
    """With a + b known, measuring a - b gives a a variance of 1/4; measuring a gives 1."""
    problem = problem_of([[1, 0]], [[1, 1]], precision=1e7)
    found = search(problem, [np.array([[1.0, 0.0]])], 1e-3)
    assert problem.value(np.array([[1.0, 0.0]])) == pytest.approx(1.0, rel=1e-5)
    assert found.upper == pytest.approx(0.25, rel=1e-5)
    assert found.lower == pytest.approx(0.25, rel=1e-5)
    integers, value = rounded(problem, found.A)
    assert value == pytest.approx(0.25, rel=1e-4)
    assert abs(abs(integers[0, 0] / integers[0, 1]) - 1) < 1e-3
    assert integers[0, 0] * integers[0, 1] < 0


def test_what_is_known_already_is_not_measured_again():
    """Two counts, one of them known: all that is paid goes where nothing is known."""
    problem = problem_of(np.eye(2), [[1, 0]], precision=1e6)
    found = search(problem, [], 1e-3)
    assert found.upper == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("tau", [1.0, 40.0])
def test_without_earlier_measurements_it_is_the_optimum(tau):
    W = all_range(8)
    alone = select(W, "gaussian")
    problem = Complementing(W.matrix().T @ W.matrix(), np.zeros((8, 8)), tau)
    found = search(problem, [], 1e-3)
    assert found.upper <= found.lower * 1.001
    assert found.upper == pytest.approx(alone.expected / tau, rel=2e-3)
    assert found.lower <= alone.expected / tau * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_against_brute_force(seed):
    """The best of many searches over unit columns by another method; the dual is below it, the primal at it."""
    source = np.random.default_rng(seed)
    n = 2 + seed % 3
    W, B = source.integers(-1, 2, (3, n)), source.integers(0, 2, (2, n))
    problem = problem_of(W, B, tau=source.uniform(0.2, 3.0))
    ridge = 1e-9 * problem.tau * np.eye(n)

    def loss(u):
        A = u.reshape(n, n) / np.sqrt((u.reshape(n, n) ** 2).sum(axis=0))
        return float(np.trace(problem.gram @ np.linalg.inv(problem.precision + ridge + problem.tau * A.T @ A)))

    best = min(optimize.minimize(loss, source.normal(size=n * n), method="BFGS").fun for _ in range(12))
    found = search(problem, [], 1e-3)
    assert found.lower <= best * (1 + 1e-7)
    assert found.upper <= best * (1 + 1e-3)
    assert found.upper <= found.lower * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_no_strategy_is_below_the_bound(seed):
    source = np.random.default_rng(100 + seed)
    n = 12
    W, B = source.random((6, n)) < 0.4, source.random((4, n)) < 0.4
    problem = problem_of(W, B, precision=0.5)
    found = search(problem, [W.astype(float)], 1e-3)
    assert 0 < found.lower <= found.upper <= found.lower * 1.001
    assert direct(problem, found.A) == pytest.approx(found.upper, rel=1e-5)
    for _ in range(100):
        A = source.normal(size=(source.integers(6, 20), n)) * source.uniform(0, 2, n)
        assert problem.value(A) >= found.lower
    # What reaches outside the row space counts by what it says of it.
    A = source.normal(size=(n, n))
    assert problem.value(A) == pytest.approx(direct(problem, A), rel=1e-4)


def test_counts_and_sums_have_corners():
    source = np.random.default_rng(5)
    n = 8
    corners = corners_of([np.arange(2 * n).reshape(2, n)], 2 * n)
    problem = problem_of(source.random((9, 2 * n)) < 0.3, source.random((6, 2 * n)) < 0.4, 0.7, corners)
    found = search(problem, [], 1e-3)
    assert found.upper <= found.lower * 1.002
    assert ((found.A @ corners) ** 2).sum(axis=0).max() <= 1 + 1e-9
    for _ in range(50):
        assert problem.value(source.normal(size=(20, 2 * n))) >= found.lower


def test_the_more_is_known_the_less_error_and_never_more_than_alone():
    W = np.tril(np.ones((6, 6)))
    found = [search(problem_of(W, np.eye(6)[:3], precision=p), [W], 1e-3).upper for p in (1e-9, 0.1, 1.0, 10.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(search(problem_of(W, np.zeros((1, 6))), [W], 1e-3).upper, rel=2e-3)


def test_a_start_that_is_better_than_the_search_is_kept():
    """A deadline that has passed leaves the best start, with a bound that holds."""
    W = np.tril(np.ones((10, 10)))
    problem = problem_of(W, np.ones((1, 10)))
    best = search(problem, [], 1e-3)
    found = search(problem, [best.A], 1e-3, deadline=0.0)
    assert found.upper <= best.upper * (1 + 1e-9)
    assert 0 < found.lower <= best.upper


@pytest.mark.parametrize("laplace", [False, True])
def test_integers_have_exact_norms_and_nearly_the_error(laplace):
    source = np.random.default_rng(9)
    W = source.random((10, 7)) < 0.5
    problem = problem_of(W, source.random((3, 7)) < 0.5)
    A = rooted(search(problem, [], 1e-3).A.T @ search(problem, [], 1e-3).A)
    B, value = rounded(problem, A, laplace)
    l1, l2 = norms(problem, B)
    assert (l1, l2) == (int(np.abs(B).sum(axis=0).max()), int((B.astype(object) ** 2).sum(axis=0).max()))
    assert (l1, l2) == column_norms(B, sparse.csc_array(sparse.eye_array(7, dtype=np.int64)))
    assert value <= problem.value(A, problem.reach(A, laplace)) * (1 + 1e-4)
