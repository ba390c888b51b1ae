import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.workload import Workload


def nuclear(M):
    return np.linalg.svd(M, compute_uv=False).sum()


@pytest.mark.parametrize(
    "W",
    [
        workload.all_range(9),
        workload.prefix(7),
        workload.random_ranges(5, 20, 1),
        workload.wrelated(6, 12, 3, 1),
        workload.all_range((3, 4)),
        workload.stack(workload.identity(4), workload.total(4)),
    ],
)
def test_svd_bound_against_singular_values(W):
    M = W.matrix()
    assert bounds.svd_bound(W) == pytest.approx(nuclear(M) ** 2 / M.shape[1])
    half = np.arange(M.shape[1]) < M.shape[1] // 2
    expected = nuclear(M[:, half]) ** 2 / half.sum()
    assert bounds.supreme_svd_bound(W, [half]) == pytest.approx(expected)
    every = [half, np.arange(M.shape[1])]
    assert bounds.supreme_svd_bound(W, every) == pytest.approx(max(expected, bounds.svd_bound(W)))
    lam = np.random.default_rng(0).random(M.shape[1])
    assert bounds.dual_bound(W, lam) == pytest.approx(nuclear(M * np.sqrt(lam / lam.sum())) ** 2)


def test_every_dual_weight_is_below_the_optimum():
    W = workload.random_ranges(12, 25, 4)
    least = strategy.select(W, tolerance=1e-5).expected
    rng = np.random.default_rng(1)
    for _ in range(20):
        lam = rng.random(25) * (rng.random(25) < 0.5) + 1e-9
        assert bounds.dual_bound(W, lam) <= least


def test_zero_weights_do_not_certify_what_is_false():
    # W = I_2 and lambda = (1, 0): the bound is 1, the truth is 2; nothing may claim a gap of zero there.
    assert bounds.dual_bound(workload.identity(2), [1, 0]) == pytest.approx(1.0)
    assert strategy.select(workload.identity(2)).lower_bound == pytest.approx(2.0)


def test_contributions_take_weights_on_their_columns():
    corners = np.array([[1, 1], [1, -1]])
    W = Workload.from_rows([[1, 0], [0, 1]], [1.0, 1.0], contributions=corners)
    assert bounds.dual_bound(W, [1, 1]) == pytest.approx(nuclear(corners / np.sqrt(2)) ** 2)
    assert strategy.select(W).expected == pytest.approx(4.0)
    assert bounds.svd_bound(W) == pytest.approx(nuclear(corners) ** 2 / 2)
    with pytest.raises(DataError, match="dual_bound"):
        bounds.supreme_svd_bound(W, [[0]])


# Total error / SVD bound under L2 sensitivity, recomputed independently of this code.
@pytest.mark.parametrize(
    ("shape", "bound", "identity", "least"),
    [
        (256, 2.72163e5, 10.395, 1.0175),
        (1024, 6.40069e6, 28.041, 1.01307),
        ((32, 32), 4.39140e6, 8.154, 1.0463),
        ((16, 8, 8), 2.53540e6, 4.635, 1.0550),
        ((2,) * 10, 5.24174e5, 2.000, 1.0000),
    ],
)
@pytest.mark.few(every=4)
def test_reference_figures_of_range_workloads(shape, bound, identity, least):
    W = workload.all_range(shape)
    assert bounds.svd_bound(W) == pytest.approx(bound, rel=1e-5)
    assert strategy.select(W, method="identity").expected / bound == pytest.approx(identity, rel=3e-4)
    S = strategy.select(W)
    assert S.gap <= 1e-3
    assert least * (1 - 1e-4) <= S.expected / bound <= least * (1 + 1.2e-3)


@pytest.mark.long
def test_prefix_reference_figures():
    W = workload.prefix(1024)
    S = strategy.select(W)
    assert S.expected / bounds.svd_bound(W) == pytest.approx(1.0318, rel=1.1e-3)
    assert np.trace(W.gram()) / bounds.svd_bound(W) == pytest.approx(60.54, rel=1e-4)


@pytest.mark.parametrize("lam", [[1.0], [-1.0, 2.0], [0.0, 0.0], [np.nan, 1.0]])
def test_wrong_weights_are_refused(lam):
    with pytest.raises(DataError, match="weights"):
        bounds.dual_bound(workload.identity(2), lam)


@pytest.mark.parametrize("projection", [[], [5], [-1], np.array([True])])
def test_wrong_projections_are_refused(projection):
    with pytest.raises(DataError, match="projection"):
        bounds.supreme_svd_bound(workload.identity(3), [projection])
