from itertools import combinations
from math import factorial, lgamma

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from dpsql import bounds, workload
from dpsql.errors import DataError
from dpsql.workload import Workload


def volume(W):
    """Volume of U B_1 for a root U of the Gram matrix, by the convex hull of its columns and their negatives."""
    s, V = np.linalg.eigh(W.gram())
    keep = s > 1e-9 * s[-1]
    points = (np.sqrt(s[keep])[:, None] * V[:, keep].T).T
    return ConvexHull(np.vstack([points, -points])).volume, int(keep.sum())


@pytest.mark.parametrize(
    "W",
    [
        workload.all_range(3),
        workload.prefix(4),
        workload.random_ranges(3, 9, 1),
        workload.wrelated(6, 12, 3, 2),
        workload.from_matrix([[1, 2, 3, 4], [4, 1, -2, 1]]),
    ],
)
def test_the_inscribed_volume_is_below_the_true_one(W):
    true, r = volume(W)
    order = r**3 * true ** (2 / r)
    assert bounds.hardt_talwar_bound(W) <= order * (1 + 1e-9)
    # No cross-polytope on r columns is larger than the whole, none picked by pivoting is hopeless.
    s, V = np.linalg.eigh(W.gram())
    U = (np.sqrt(np.maximum(s, 0))[:, None] * V.T)[-r:]
    best = max(abs(np.linalg.det(U[:, S])) for S in combinations(range(U.shape[1]), r))
    assert bounds.hardt_talwar_bound(W) <= r**3 * (2**r / factorial(r) * best) ** (2 / r) * (1 + 1e-9)
    assert bounds.hardt_talwar_bound(W) >= 0.25 * order
    if r == W.shape[1]:
        assert bounds.hardt_talwar_bound(W) == pytest.approx(order)
        assert bounds.geometric_order(W) == pytest.approx(order)


def test_identity_by_hand():
    for n in (1, 3, 50):
        expected = np.exp(3 * np.log(n) + 2 / n * (n * np.log(2) - lgamma(n + 1)))
        W = workload.identity(n)
        assert bounds.hardt_talwar_bound(W) == pytest.approx(expected)
        assert bounds.bhaskara_bound(W, [1] * n) == pytest.approx(4 * n)
        assert bounds.singular_value_order(W) == pytest.approx(n)
        assert bounds.low_rank_guarantee(W) == pytest.approx(n * n)


def test_the_printed_forms_overstate_a_single_total():
    # One count of n cells costs 2 / epsilon^2 whatever n is; the printed orders grow with n.
    for n in (4, 64):
        W = workload.total(n)
        assert bounds.hardt_talwar_bound(W) == pytest.approx(4.0)
        assert bounds.bhaskara_bound(W) == pytest.approx(4.0)
        assert bounds.geometric_order(W) == pytest.approx(4.0 * n)
        assert bounds.singular_value_order(W) == pytest.approx(n)


@pytest.mark.parametrize("W", [workload.all_range(6), workload.random_ranges(5, 12, 3), workload.prefix(7)])
def test_groups_of_singular_vectors(W):
    r = W.rank
    best = bounds.bhaskara_bound(W)
    for groups in ([1] * r, [r], [2, r - 2], [1]):
        assert bounds.bhaskara_bound(W, groups) > 0
    assert best >= bounds.bhaskara_bound(W, [1] * r) * (1 - 1e-12)
    assert best >= bounds.hardt_talwar_bound(W) * (1 - 1e-9)
    _, s, Vt = np.linalg.svd(W.matrix(), full_matrices=False)
    widths = 2 * s[:r] * np.abs(Vt[:r]).max(axis=1)
    assert bounds.bhaskara_bound(W, [1] * r) == pytest.approx((widths**2).sum())


def test_the_low_rank_guarantee_is_reached_by_its_decomposition():
    W = workload.random_ranges(6, 15, 2)
    M = W.matrix()
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    r = W.rank
    B, L = np.sqrt(r) * U[:, :r] * s[:r], Vt[:r] / np.sqrt(r)
    assert np.allclose(B @ L, M)
    assert np.abs(L).sum(axis=0).max() <= 1 + 1e-12
    assert bounds.low_rank_guarantee(W) == pytest.approx((B**2).sum())


def test_bad_input_is_refused():
    W = workload.all_range(4)
    for groups in ([], [0], [5], [2, 3]):
        with pytest.raises(DataError, match="groups"):
            bounds.bhaskara_bound(W, groups)
    sums = Workload.from_rows([[1, 0]], [1.0], contributions=np.array([[1, 1], [1, -1]]))
    with pytest.raises(DataError, match="contributions"):
        bounds.hardt_talwar_bound(sums)
    with pytest.raises(DataError, match="zero"):
        bounds.singular_value_order(Workload.from_rows([[0, 0]], [1.0]))
