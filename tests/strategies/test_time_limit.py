"""A time limit returns the best strategy so far, with an honest error and gap."""

import numpy as np
import pytest

from dpsql import strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.core import certificate, reduce, time_left
from dpsql.strategies.core.time_left import TimeLeft
from dpsql.strategies.gaussian import optimal

W = workload.wrelated(40, 100, 12, 1)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("limit", [1e-9, 0.05])
def test_what_was_reached_is_honest(noise, limit):
    S = strategy.select(W, noise, time_limit=limit)
    B = S.matrix()
    order = 2 if noise == "gaussian" else 1
    sensitivity = np.linalg.norm(B, ord=order, axis=0).max()
    assert S.sensitivity == pytest.approx(sensitivity, rel=1e-9)
    error = np.sum((W.matrix() @ np.linalg.pinv(B / sensitivity, rcond=1e-11)) ** 2)
    assert S.expected == pytest.approx(error, rel=1e-6)
    if noise == "laplace":
        assert S.gap is None
    else:
        least = strategy.select(W, tolerance=1e-4)
        assert S.lower_bound <= least.expected
        assert S.expected >= least.lower_bound
        assert S.gap == pytest.approx(S.expected / S.lower_bound - 1)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_simple_strategies_are_compared_even_past_the_limit(noise):
    S = strategy.select(W, noise, time_limit=1e-9)
    names = [name for name, _ in S.considered]
    assert {"identity", "workload"} <= set(names)
    assert S.expected <= min(value for _, value in S.considered) * (1 + 1e-3)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("method", [m for m in strategy.CATALOGUE if m not in ("range-transform", "norm-blocks")])
@pytest.mark.few(every=3)
def test_every_method_heeds_the_limit(method, noise):
    S = strategy.select(workload.random_ranges(12, 40, 2), noise, method=method, time_limit=1e-9)
    assert S.method == method
    assert np.isfinite(S.expected)


def test_blocks_heed_the_limit():
    S = strategy.select(workload.random_ranges(12, 40, 2), "pure", method="norm-blocks", time_limit=1e-9)
    assert S.method == "norm-blocks"
    assert np.isfinite(S.expected)


def test_more_time_is_never_worse():
    errors = [strategy.select(W, time_limit=limit).expected for limit in (1e-9, None)]
    assert errors[1] <= errors[0]
    gaps = [strategy.select(W, time_limit=limit).gap for limit in (1e-9, None)]
    assert gaps[1] <= 1e-3 < gaps[0]


@pytest.mark.parametrize("few", [False, True])
def test_where_no_step_fits_cells_are_measured_with_an_honest_gap(monkeypatch, few):
    V = workload.random_ranges(8, 40, 2) if few else W
    best = strategy.select(V, tolerance=1e-4)
    monkeypatch.setattr(TimeLeft, "fits", lambda *_: False)
    S = strategy.select(V, time_limit=60.0)
    assert S.method == "identity"
    assert S.considered == (("identity", pytest.approx(S.expected)),)
    assert S.lower_bound <= best.expected
    assert S.gap == pytest.approx(S.expected / S.lower_bound - 1)
    B = S.matrix() / S.sensitivity
    assert S.expected == pytest.approx(np.sum((V.matrix() @ np.linalg.pinv(B)) ** 2), rel=1e-6)


def test_bounds_of_equal_weights_are_below_the_optimum_and_grow_with_the_time():
    for V in (W, workload.random_ranges(30, 20, 2), workload.Workload.from_rows(np.eye(9, dtype=np.int64), np.ones(9))):
        for block in reduce.reduce_workload(V):
            if block.solo:
                continue
            least = optimal.solve(block, 1e-4, np.inf).upper
            for_products = iter([False, True])
            none, product, all_of_it = (
                certificate.equal_weights_bound(block, fits)
                for fits in (lambda _: False, lambda _, given=for_products: next(given), lambda _: True)
            )
            assert 0 < none <= product <= all_of_it <= least


def test_a_choice_of_rows_that_would_end_too_late_is_not_begun(monkeypatch):
    V = workload.random_ranges(30, 40, 2)
    monkeypatch.setattr(reduce, "monotonic", lambda: 100.0)
    with pytest.raises(DataError, match="falls into 1 parts over 40 cells, and the time limit ended when 0 of them"):
        reduce.reduce_workload(V, last=100.0)
    assert reduce.reduce_workload(V, last=101.0)


def test_searches_end_earlier_where_rounding_takes_long(monkeypatch):
    monkeypatch.setattr(time_left, "monotonic", lambda: 10.0)
    left = TimeLeft.within(10.0)
    assert left.fits(12.0)
    assert not left.fits(12.5)
    assert left.less(1.0).deadline == left.deadline == 20.0
    assert left.less(5.0).deadline == left.last - 5.0
    assert not left.less(5.0).fits(8.0)
    assert TimeLeft.within(None).less(1e9).fits(1e9)
