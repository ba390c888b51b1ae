import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Workload

CASES = {
    "ranges": workload.all_range(17),
    "even ranges": workload.all_range(16),
    "boxes": workload.all_range((3, 5)),
    "prefixes": workload.prefix(9),
    "even prefixes": workload.prefix(8),
    "weighted prefixes": workload.weighted(workload.prefix(5), 3.0),
    "two ranges": workload.all_range(2),
    "weighted": workload.weighted(workload.random_ranges(6, 8, 2), [1, 2, 3, 4, 5, 6]),
    "low rank": workload.wrelated(9, 14, 3, 1),
    "zero column": workload.from_matrix([[1, 0, 2], [3, 0, 1]]),
    "predicates": workload.all_predicate(7),
    "cube": workload.data_cube([2, 3, 2], weights=[1, 3, 1, 2]),
}


def root_of(G):
    s, V = np.linalg.eigh(G)
    return (V * np.sqrt(np.maximum(s, 0))) @ V.T


@pytest.mark.parametrize("name", CASES)
def test_looseness_is_the_error_ratio_of_the_root_strategy(name):
    W = CASES[name]
    G = W.gram()
    diagonal = root_of(G).diagonal()
    assert bounds.looseness(W) == pytest.approx(diagonal.max() / diagonal.mean(), rel=1e-6)
    X = bounds.root_strategy(W)
    assert X.diagonal().max() == pytest.approx(1.0)
    error = np.trace(G @ np.linalg.pinv(X, rcond=1e-10, hermitian=True))
    assert error == pytest.approx(bounds.looseness(W) * bounds.svd_bound(W), rel=1e-6)
    assert bounds.is_tight(W) == (np.ptp(diagonal) < 1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("cube",)])
def test_least_error_lies_between_bound_and_looseness(name):
    W = CASES[name]
    least = strategy.select(W, tolerance=1e-4).expected
    assert bounds.svd_bound(W) * (1 - 1e-9) <= least
    assert least <= bounds.svd_bound(W) * bounds.looseness(W) * (1 + 1e-3)


def test_example_4_4_is_loose_by_almost_n():
    n, t = 12, 1e-4
    W = workload.from_matrix([[1] + [0] * (n - 1), [t] * n])
    assert bounds.looseness(W) > 0.9 * n
    assert strategy.select(W).expected > 0.9 * n * bounds.svd_bound(W)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 8])
def test_variable_agnostic_workloads_of_any_size(n):
    W = workload.all_predicate(n)
    a, b = bounds.variable_agnostic(W)
    assert a == pytest.approx(2.0 ** (n - 1))
    if n > 1:
        assert b == pytest.approx(2.0 ** (n - 2))
    assert bounds.variable_agnostic_bound(a, b, n) == pytest.approx(bounds.svd_bound(W))
    # Cor. 5.4, printed for powers of two, holds for every n.
    assert bounds.svd_bound(W) == pytest.approx(2.0 ** (n - 2) / n * (n - 1 + np.sqrt(n + 1)) ** 2)
    X = bounds.variable_agnostic_strategy(a, b, n)
    assert np.allclose(X.diagonal(), 1.0)
    assert np.trace(W.gram() @ np.linalg.inv(X)) == pytest.approx(bounds.svd_bound(W))
    assert np.allclose(X, bounds.root_strategy(W))


def test_variable_agnostic_by_hand():
    # G = [[5, 4], [4, 5]]: roots 3 and 1, so G^1/2 = [[2, 1], [1, 2]], bound (3 + 1)^2 / 2 = 8.
    assert bounds.variable_agnostic_bound(5, 4, 2) == pytest.approx(8.0)
    assert np.allclose(bounds.variable_agnostic_strategy(5, 4, 2), [[1, 0.5], [0.5, 1]])
    assert bounds.variable_agnostic(workload.all_range(4)) is None
    assert bounds.variable_agnostic(workload.total(3)) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2), (1, 4), (5,)])
def test_data_cubes_meet_the_bound_for_any_weights(shape):
    rng = np.random.default_rng(len(shape))
    sets = [S for S in workload.data_cube(shape).sets if rng.random() < 0.7] or [()]
    W = workload.marginals(shape, sets=sets, weights=rng.random(len(sets)) + 0.1)
    G = W.gram()
    X = bounds.cube_strategy(W)
    assert np.allclose(X.diagonal(), 1.0)
    assert np.allclose(X, root_of(G) / root_of(G)[0, 0], atol=1e-7)
    error = np.trace(G @ np.linalg.pinv(X, rcond=1e-10, hermitian=True))
    assert error == pytest.approx(bounds.svd_bound(W))
    assert bounds.is_tight(W)
    assert bounds.is_tight(W.explicit(), rtol=1e-6)
    assert sum(W.dimension(T) * s for T, s in bounds.cube_shares(W).items()) == pytest.approx(1.0)


def test_looseness_counts_record_columns_beside_sums():
    corners = np.array([[1, 1], [1, -1]])
    W = Workload.from_rows([[1, 0], [0, 1]], [1.0, 1.0], contributions=corners)
    assert bounds.looseness(W) == pytest.approx(1.0)
    with pytest.raises(DataError, match="one column"):
        bounds.root_strategy(W)


@pytest.mark.parametrize(("a", "b", "n"), [(1, 2, 3), (1, -1, 3), (0, 0, 2), (np.nan, 0, 2), (1, 0.5, 0)])
def test_impossible_gram_matrices_are_refused(a, b, n):
    with pytest.raises(DataError, match=r"Gram|finite number"):
        bounds.variable_agnostic_bound(a, b, n)
    with pytest.raises(DataError, match=r"Gram|finite number"):
        bounds.variable_agnostic_strategy(a, b, n)


def test_sizes_past_the_cap_are_refused():
    with pytest.raises(DataError, match="cap"):
        bounds.root_strategy(workload.all_range(2**15))
    with pytest.raises(DataError, match="cube_shares"):
        bounds.cube_strategy(workload.marginals([10] * 20, order=1))
