"""A time limit returns the best strategy so far, with an honest error and gap."""

import numpy as np
import pytest

from dpsql import strategy, workload

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
@pytest.mark.parametrize("method", [m for m in strategy.CATALOGUE if m != "range-transform"])
def test_every_method_heeds_the_limit(method, noise):
    S = strategy.select(workload.random_ranges(12, 40, 2), noise, method=method, time_limit=1e-9)
    assert S.method == method
    assert np.isfinite(S.expected)


def test_more_time_is_never_worse():
    errors = [strategy.select(W, time_limit=limit).expected for limit in (1e-9, None)]
    assert errors[1] <= errors[0]
    gaps = [strategy.select(W, time_limit=limit).gap for limit in (1e-9, None)]
    assert gaps[1] <= 1e-3 < gaps[0]
