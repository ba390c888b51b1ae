"""The closed form for all ranges against dense linear algebra."""

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.ranges.range_transform import range_transform


@pytest.mark.parametrize("n", [1, 2, 3, 8, 65, 600])
def test_error_and_application_are_exact(n):
    R = range_transform(n)
    A = R.matrix()
    W = workload.all_range(n)
    assert np.allclose((A * A).sum(axis=0), 1.0)
    assert R.error() == pytest.approx(np.trace(np.linalg.solve(A.T @ A, W.gram())), rel=1e-9)
    assert R.bound == pytest.approx(bounds.svd_bound(W), rel=1e-9)
    x = np.random.default_rng(0).normal(size=n)
    assert np.allclose(R.apply(x), A @ x)
    assert np.allclose(R.transpose(x), A.T @ x)
    assert np.allclose(R.solve(R.apply(x)), x)


@pytest.mark.parametrize(("n", "figure"), [(256, 1.01763), (1024, 1.01313), (2048, 1.01132)])
def test_reference_figures(n, figure):
    R = range_transform(n)
    assert R.error() / R.bound == pytest.approx(figure, abs=1e-5)


@pytest.mark.long
def test_a_million_cells():
    R = range_transform(2**20)
    assert 1.0 <= R.error() / R.bound <= 1.02


def test_as_a_strategy_it_is_near_the_optimum():
    W = workload.all_range(128)
    S = strategy.select(W, method="range-transform")
    assert S.expected == pytest.approx(strategy.select(W, tolerance=1e-5).expected, rel=3e-4)
    assert S.expected == pytest.approx(range_transform(128).error(), rel=1e-3)


def test_refusals():
    for n in (0, 2**20 + 1, 1.5, "many"):
        with pytest.raises(DataError, match="cells"):
            range_transform(n)
    with pytest.raises(DataError, match="not written out"):
        range_transform(5000).matrix()
    with pytest.raises(DataError, match="rows"):
        range_transform(5).apply(np.ones(4))
    with pytest.raises(DataError, match="prefix"):
        strategy.select(workload.prefix(5), method="range-transform")
