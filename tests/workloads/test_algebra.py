import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Workload

ROWS = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 3]])


def plain(rows):
    return workload.from_matrix(np.asarray(rows, dtype=float))


def least(W):
    return strategy.select(W, tolerance=1e-4).expected


def test_equivalence_by_hand():
    # Haar rotates two cells: [1 1; 1 -1] has Gram matrix 2 I, as sqrt(2) I has.
    assert workload.equivalent(plain([[1, 1], [1, -1]]), workload.weighted(workload.identity(2), np.sqrt(2)))
    assert not workload.equivalent(workload.identity(2), workload.total(2))
    assert not workload.equivalent(workload.identity(2), workload.identity(3))


def test_rotated_workloads_are_equivalent_and_as_hard():
    rng = np.random.default_rng(3)
    for _ in range(5):
        W = rng.integers(-2, 3, size=(4, 6)).astype(float)
        Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        rotated, given = workload.from_matrix(Q @ W), workload.from_matrix(W)
        assert workload.equal_error(rotated, given) == ("i", "ii")
        assert bounds.svd_bound(rotated) == pytest.approx(bounds.svd_bound(given), rel=1e-6)
        assert least(rotated) == pytest.approx(least(given), rel=1e-3)


def test_conditions_of_equal_error_one_by_one():
    W = plain(ROWS)
    assert workload.equal_error(plain(ROWS[[2, 0, 1]]), W) == ("i", "ii", "iii")
    columns = plain(ROWS[:, [3, 1, 0, 2]])
    assert workload.equal_error(W, columns) == ("iv",)
    padded = plain(np.insert(ROWS, 2, 0, axis=1))
    assert workload.equal_error(padded, W) == ("v",)
    assert np.array_equal(workload.nonzero_columns(padded).matrix(), ROWS)
    doubled = plain(np.vstack([ROWS, ROWS]))
    assert workload.equal_error(doubled, workload.weighted(W, np.sqrt(2))) == ("i",)
    assert workload.equal_error(W, workload.identity(4)) == ()
    for other in (columns, padded):
        assert least(other) == pytest.approx(least(W), rel=1e-3)


def test_containment_by_hand():
    # A total is the sum of the two cells over sqrt(2) in a rotated basis: J <= 2 I.
    assert workload.contained(workload.total(2), workload.weighted(workload.identity(2), np.sqrt(2)))
    assert not workload.contained(workload.total(2), workload.identity(2))
    assert workload.contained(workload.identity(5), workload.all_range(5))
    assert not workload.contained(workload.all_range(5), workload.identity(5))
    assert not workload.contained(workload.identity(2), workload.identity(3))


def test_containment_is_order_of_error_on_random_workloads():
    rng = np.random.default_rng(5)
    for _ in range(5):
        small = rng.normal(size=(3, 5))
        more = np.vstack([small, rng.normal(size=(2, 5))])
        Q = np.linalg.qr(rng.normal(size=(5, 5)))[0]
        W1, W2 = workload.from_matrix(small), workload.from_matrix(Q @ more)
        assert workload.no_harder(W1, W2) == ("i",)
        assert workload.no_harder(W2, W1) == ()
        assert bounds.svd_bound(W1) <= bounds.svd_bound(W2)
        assert least(W1) <= least(W2) * (1 + 1e-3)


def test_projection_is_no_harder_though_its_bound_may_be_higher():
    # Ex. 4.4: n > 8 and t < 1/8.
    n, t = 12, 0.1
    W = plain([[1] + [0] * (n - 1), [t] * n])
    part = workload.column_projection(W, [0])
    assert workload.no_harder(part, W) == ("ii",)
    assert bounds.svd_bound(part) > bounds.svd_bound(W)
    assert bounds.supreme_svd_bound(W, [[0]]) == pytest.approx(bounds.svd_bound(part))
    assert least(part) <= least(W) * (1 + 1e-3)


@pytest.mark.parametrize(
    "W",
    [workload.all_range(6), workload.random_ranges(4, 6, 1), workload.wrelated(5, 6, 2, 1), workload.all_predicate(6)],
)
def test_projection_takes_columns_in_the_order_named(W):
    M = W.matrix()
    assert np.allclose(workload.column_projection(W, [4, 0, 5]).matrix(), M[:, [4, 0, 5]])
    mask = np.array([True, False, True, True, False, False])
    assert np.allclose(workload.column_projection(W, mask).gram(), (M.T @ M)[np.ix_(mask, mask)])


def test_projection_of_table_1():
    W = [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 0, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, -1, -1],
    ]
    male = workload.column_projection(plain(W), [0, 2, 4, 6])
    assert male.matrix().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, -1]]


def test_marginals_compare_without_their_cells():
    one = workload.marginals([10] * 30, order=1)
    both = workload.marginals([10] * 30, order=(1, 2))
    assert workload.contained(one, both)
    assert not workload.contained(both, one)
    assert workload.equivalent(both, workload.marginals([10] * 30, order=(2, 1)))
    small = workload.marginals([2, 3], order=1)
    assert workload.equivalent(small, small.explicit())
    # A 2-way marginal holds the 1-way ones up to the number of cells that they add up.
    assert workload.contained(workload.marginals([2, 3], sets=[(0,)], weights=3**-0.5), workload.identity(6))


def test_bad_input_is_refused():
    W = workload.identity(3)
    for columns in ([], [3], [-1], [0, 0], [0.5], np.array([True])):
        with pytest.raises(DataError, match="projection"):
            workload.column_projection(W, columns)
    sums = Workload.from_rows([[1, 0]], [1.0], contributions=np.array([[1, 1], [1, -1]]))
    for test in (workload.equivalent, workload.contained, workload.equal_error, workload.no_harder):
        with pytest.raises(DataError, match="contributions"):
            test(sums, sums)
    with pytest.raises(DataError, match="contributions"):
        workload.column_projection(sums, [0])
    with pytest.raises(DataError, match="zero"):
        workload.nonzero_columns(Workload.from_rows([[1, 0]], [0.0]))
