"""Closed forms of the singular value bound against dense brute force, and the figures of the papers that hold."""

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Workload


def brute(M):
    return np.linalg.svd(M, compute_uv=False).sum() ** 2 / M.shape[1]


CLOSED = {
    "identity": workload.identity(7),
    "scaled cells": workload.weighted(workload.identity(4), [1, -2, 3, 0.5]),
    "ranges": workload.all_range(11),
    "one range": workload.all_range(1),
    "prefixes": workload.prefix(8),
    "predicates": workload.all_predicate(7),
    "one predicate": workload.all_predicate(1),
    "boxes": workload.all_range((3, 4)),
    "weighted ranges": workload.weighted(workload.all_range(9), 2.5),
    "weighted boxes": workload.weighted(workload.all_range((3, 4)), 2.5),
    "weighted queries": workload.weighted(workload.all_range(3), [1, 2, 3, 4, 5, 6]),
    "mixed product": workload.kron(workload.prefix(3), workload.all_predicate(3), workload.total(2)),
    "product of stacks": workload.kron(workload.stack(workload.identity(3), workload.total(3)), workload.prefix(2)),
    "stack of ranges": workload.stack(workload.all_range(5), workload.prefix(5)),
    "rank deficient": workload.random_ranges(5, 20, 1),
    "zero columns": workload.from_matrix([[1, 0, 2], [3, 0, 1]]),
}


@pytest.mark.parametrize("name", CLOSED)
def test_bounds_from_structure_matrix_and_gram(name):
    W = CLOSED[name]
    M = W.matrix()
    assert bounds.svd_bound(W) == pytest.approx(brute(M), rel=1e-9)
    assert bounds.svd_bound_of_gram(M.T @ M) == pytest.approx(brute(M), rel=1e-6)
    assert 10 ** bounds.svd_bound_log10(W) == pytest.approx(brute(M), rel=1e-9)
    assert bounds.dual_bound(W, np.ones(M.shape[1])) == pytest.approx(brute(M), rel=1e-6)


def test_prefix_and_ranges_by_hand():
    # Prefixes of two cells: G = [[2, 1], [1, 1]], det 1, trace 3: (s1 + s2)^2 = 3 + 2 sqrt(1) = 5.
    assert bounds.svd_bound(workload.prefix(2)) == pytest.approx(5 / 2)
    # Ranges of two cells: G = [[2, 1], [1, 2]], det 3, trace 4.
    assert bounds.svd_bound(workload.all_range(2)) == pytest.approx((4 + 2 * np.sqrt(3)) / 2)


@pytest.mark.long
def test_a_million_cells_in_closed_form():
    n = 2**20
    found = bounds.svd_bound(workload.all_range(n))
    loose = bounds.looseness(workload.all_range(n))
    # The sum of 1 / sin is (2 (n + 1) / pi) (log(4 (n + 1) / pi) + gamma) - 1/2 up to O(1/n).
    half = np.sqrt(n + 1) / 2 * (2 * (n + 1) / np.pi * (np.log(4 * (n + 1) / np.pi) + np.euler_gamma) - 0.5)
    assert found == pytest.approx(half**2 / n, rel=1e-9)
    assert 1.0 < loose < bounds.looseness(workload.all_range(1024))


# Table 2 of Li and Miklau 2013: bounds, and total error / bound of the identity, where they hold.
@pytest.mark.parametrize(
    ("shape", "bound", "identity"),
    [(2048, 3.034e7, 47.25), ((64, 32), 2.261e7, 12.11), ((2,) * 10, 5.242e5, 2.000)],
)
def test_table_2_ranges(shape, bound, identity):
    W = workload.all_range(shape)
    assert bounds.svd_bound(W) == pytest.approx(bound, rel=5e-4)
    sizes = (shape,) if isinstance(shape, int) else shape
    queries_of_a_cell = np.prod([sum((i + 1) * (n - i) for i in range(n)) for n in sizes])  # tr G
    assert queries_of_a_cell / bounds.svd_bound(W) == pytest.approx(identity, rel=5e-4)


def test_table_2_all_predicates():
    W = workload.all_predicate(1024)
    digits = bounds.svd_bound_log10(W)
    assert int(digits) == 310
    assert 10 ** (digits - 310) == pytest.approx(4.885, abs=5e-4)
    assert np.trace(W.gram()) / bounds.svd_bound(W) == pytest.approx(1.884, abs=5e-4)
    assert bounds.looseness(W) == pytest.approx(1.0)


@pytest.mark.long
def test_table_2_supreme_bound():
    assert bounds.supreme_range_bound(2048) / bounds.svd_bound(workload.all_range(2048)) == pytest.approx(
        1.001, abs=5e-4
    )
    pair = bounds.supreme_range_bound((64, 32)) / bounds.svd_bound(workload.all_range((64, 32)))
    assert pair == pytest.approx(1.0007, abs=1e-4)  # the paper prints 1.000
    assert bounds.supreme_range_bound((2,) * 10) == pytest.approx(bounds.svd_bound(workload.all_range((2,) * 10)))


def test_figures_of_sampled_domains():
    # All with 1024 cells: more axes, lower bound (Li and Miklau 2011, section 5.1); AllRange(32, 32) is its 4.39e6.
    values = [bounds.svd_bound(workload.all_range(s)) for s in (1024, (32, 32), (16, 8, 8), (4,) * 5, (2,) * 10)]
    assert values == sorted(values, reverse=True)
    assert values[1] == pytest.approx(4.39e6, rel=1e-3)


@pytest.mark.parametrize(("first", "last"), [(0, 11), (2, 6), (0, 4), (7, 7)])
def test_windows_against_the_dual(first, last):
    W = workload.all_range(12)
    window = np.arange(first, last + 1)
    assert bounds.range_window_bound(12, first, last) == pytest.approx(bounds.supreme_svd_bound(W, [window]))
    G = W.gram()[np.ix_(window, window)]
    assert bounds.range_window_bound(12, first, last) == pytest.approx(bounds.svd_bound_of_gram(G))


def test_the_supreme_bound_is_below_the_least_error():
    assert bounds.supreme_range_bound(64) <= strategy.select(workload.all_range(64), tolerance=1e-4).expected


def test_counts_beside_sums_are_bounded_by_their_record_columns():
    rng = np.random.default_rng(2)
    corners = np.kron(np.eye(4, dtype=int), np.array([[1, 1], [1, -1]]))
    for seed in range(4):
        rows = np.random.default_rng(seed).integers(-1, 2, size=(5, 8))
        W = Workload.from_rows(rows, rng.random(5) + 0.5, contributions=corners)
        moved = (W.matrix() @ corners).T
        distinct = []
        for column in moved:
            if column.any() and not any(np.allclose(column, d) or np.allclose(column, -d) for d in distinct):
                distinct.append(column)
        expected = brute(np.array(distinct).T)
        assert bounds.svd_bound(W) == pytest.approx(expected, rel=1e-6)
        least = strategy.select(W, tolerance=1e-4).expected
        assert bounds.svd_bound(W) <= least * (1 + 1e-9) <= expected * bounds.looseness(W) * (1 + 1e-3)


def test_zero_workloads_are_bounded_by_zero():
    zero = Workload.from_rows([[0, 0]], [1.0])
    assert bounds.svd_bound(zero) == 0.0
    assert bounds.svd_bound_log10(zero) == float("-inf")
    with_sums = Workload.from_rows([[0, 0]], [1.0], contributions=np.array([[1, 1], [1, -1]]))
    assert bounds.svd_bound(with_sums) == 0.0
    with pytest.raises(DataError, match="zero"):
        bounds.looseness(zero)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bounds.svd_bound_of_gram([[1, 2]]), "square"),
        (lambda: bounds.svd_bound_of_gram([[np.nan]]), "finite"),
        (lambda: bounds.svd_bound_of_gram([[1, 2], [0, 1]]), "symmetric"),
        (lambda: bounds.svd_bound_of_gram([[1, 2], [2, 1]]), "negative"),
        (lambda: bounds.range_window_bound(5, 3, 2), "window"),
        (lambda: bounds.range_window_bound(5, 0, 5), "window"),
        (lambda: bounds.supreme_range_bound(()), "shape"),
        (lambda: bounds.svd_bound(workload.marginals([10**299], order=1, weights=1e10)), "float range"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
