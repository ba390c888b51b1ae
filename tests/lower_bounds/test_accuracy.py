import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError


def test_rms_accuracy_holds_by_simulation():
    W = workload.all_range(8)
    S = strategy.select(W)
    M = S.sensitivity * np.asarray(S.reconstruction(W))
    total = float((M**2).sum())
    assert total == pytest.approx(S.error(W))
    rng = np.random.default_rng(4)
    rms = np.sqrt(((M @ rng.standard_normal((M.shape[1], 40_000))) ** 2).mean(axis=0))
    largest = np.linalg.norm(M, 2) ** 2
    for beta in (0.3, 0.05, 0.01):
        for known in (None, largest):
            alpha = bounds.rms_accuracy(total, W.shape[0], beta, largest=known)
            assert (rms > alpha).mean() <= beta
    # The statement has power: at about half of alpha the error is above it more often than beta.
    assert (rms > bounds.rms_accuracy(total, W.shape[0], 0.3, largest=largest) / 1.9).mean() > 0.3


def test_theorem_6_3_by_hand():
    found = bounds.rms_accuracy_order(100, 25, 0.5, 2 * np.exp(-9), np.sqrt(np.pi / 2) * np.exp(-4))
    assert found == pytest.approx(5 * 6 / 0.5)


def test_theorem_6_3_is_the_order_of_the_bound():
    # Queries of sensitivity 1: the root mean squared error at the bound is at most sqrt(P min(m, n)).
    epsilon, delta = 1.0, 1e-6
    P = 2 * np.log(2 / delta) / epsilon**2
    for W in (workload.all_range(64), workload.prefix(64), workload.random_ranges(20, 100, 0)):
        m, n = W.shape
        mean = np.sqrt(P * bounds.svd_bound(W) / m)
        assert mean <= np.sqrt(2) * bounds.rms_accuracy_order(m, n, epsilon, delta, 0.3) / np.sqrt(np.log(1.25 / 0.3))


def test_table_3_by_hand():
    found = bounds.accuracy_orders(m=1, n=1, records=16, epsilon=0.25, t=4)
    assert found.svd_bound == pytest.approx(4 / 0.25)
    assert found.iterative_construction == pytest.approx(2 * 4 / 0.5)
    assert found.median == found.multiplicative_weights == found.boosting == 0.0
    large = bounds.accuracy_orders(m=3, n=2, records=9, epsilon=1, t=2)
    width = np.sqrt(2 * (np.log(3) + 2))
    assert large.median == pytest.approx(3 * (np.log(2) * np.log(3)) ** 0.25 * width)
    assert large.multiplicative_weights == pytest.approx(3 * np.log(2) ** 0.25 * width)
    assert large.boosting == pytest.approx(3 * np.log(2) * 2**1.5 * np.log(3) ** 1.5)
    assert large.svd_bound == pytest.approx(2 * np.sqrt(2))


def test_table_3_trends_that_the_paper_states():
    # N of order n and m of order n: below boosting; at m = exp(t / epsilon) and more, below the others too.
    for n in (2**10, 2**16):
        found = bounds.accuracy_orders(m=n, n=n, records=n, epsilon=1.0, t=3)
        assert found.svd_bound < found.boosting
        many = bounds.accuracy_orders(m=10**9, n=n, records=n, epsilon=0.5, t=3)
        assert many.svd_bound < min(many.median, many.multiplicative_weights, many.iterative_construction)
        # Smaller epsilon hurts the matrix mechanism more.
        low = bounds.accuracy_orders(m=n, n=n, records=n, epsilon=0.01, t=3)
        assert low.svd_bound / found.svd_bound == pytest.approx(100)
        assert low.multiplicative_weights / found.multiplicative_weights == pytest.approx(10)


def test_table_3_is_theorem_6_3_at_its_setting():
    for t in (2, 5, 20, 100):
        exact = bounds.rms_accuracy_order(50, 80, 0.7, np.exp(-t), np.exp(-t))
        assert 1.0 < exact / bounds.accuracy_orders(50, 80, 80, 0.7, t).svd_bound < 1.4


@pytest.mark.parametrize(
    "make",
    [
        lambda: bounds.rms_accuracy(1.0, 5, 0.0),
        lambda: bounds.rms_accuracy(-1.0, 5, 0.1),
        lambda: bounds.rms_accuracy(1.0, 0, 0.1),
        lambda: bounds.rms_accuracy(1.0, 5, 0.1, largest=2.0),
        lambda: bounds.rms_accuracy_order(0, 5, 1.0, 1e-6, 0.1),
        lambda: bounds.rms_accuracy_order(5, 5, 0.0, 1e-6, 0.1),
        lambda: bounds.rms_accuracy_order(5, 5, 1.0, 0.0, 0.1),
        lambda: bounds.accuracy_orders(5, 5, 5, 1.0, 1.0),
        lambda: bounds.accuracy_orders(5, 5, 0, 1.0, 3.0),
    ],
)
def test_bad_input_is_refused(make):
    with pytest.raises(DataError, match="bounds:"):
        make()
