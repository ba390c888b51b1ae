"""All ranges in exact integers without a matrix, against dense linear algebra and Python integers."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.linalg.sine import SineMatrix
from dpsql.strategies.ranges.range_strategy import _kernel, range_strategy
from dpsql.strategies.ranges.range_transform import range_transform
from dpsql.workload import Workload

SIZES = [1, 2, 3, 7, 33, 64]


def exact_matrix(S):
    return S.mixing.matrix().astype(object) * S.factors.astype(object)


@pytest.mark.parametrize("n", SIZES)
def test_sensitivities_and_error_are_those_of_the_integers(n):
    W = workload.all_range(n)
    S = range_strategy(W)
    B = exact_matrix(S)
    assert S.l2_squared == max((B * B).sum(axis=0))
    assert S.l1 == max(np.abs(B).sum(axis=0))
    assert isinstance(S.l2_squared, int)
    assert isinstance(S.l1, int)
    assert np.array_equal(S.matrix(), B.astype(float))
    X = S.matrix().T @ S.matrix()
    assert S.expected == pytest.approx(S.l2_squared * np.trace(np.linalg.solve(X, W.gram())), rel=1e-9)
    assert S.error(workload.all_range(n)) == S.expected
    assert S.error(workload.from_matrix(W.matrix())) == pytest.approx(S.expected, rel=1e-9)
    assert S.variances(workload.from_matrix(W.matrix())).sum() == pytest.approx(S.expected, rel=1e-9)


@pytest.mark.parametrize("n", [8, 64, 500])
def test_b_is_the_rounded_transform(n):
    S = range_strategy(workload.all_range(n))
    A = range_transform(n).matrix()
    assert np.abs(S.matrix() / S.sensitivity - A).max() < 3e-5
    # The kernel is within half of 2^17 times the kernel of L^-1/4, up to what cancels in C.
    L = 2.0 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    s, V = np.linalg.eigh(L)
    assert np.abs(S.mixing.matrix() - 2.0**17 * (V * s**-0.25) @ V.T).max() <= 1.0 + 1e-6
    assert (np.diff(_kernel(n)) <= 0).all()


@pytest.mark.parametrize("n", [5, 64, 256, 700])
@pytest.mark.few(every=2)
def test_the_lower_bound_is_between_the_singular_value_bound_and_the_least_error(n):
    W, R = workload.all_range(n), range_transform(n)
    least = strategy.select(W, tolerance=1e-5)
    assert bounds.svd_bound(W) <= R.lower * (1 + 1e-12)
    assert R.lower <= least.expected
    assert R.error() <= 1.0016 * R.lower
    root = np.linalg.eigh(W.gram())
    diagonal = np.diag((root[1] * np.sqrt(root[0])) @ root[1].T)
    assert R.lower == pytest.approx(float(diagonal @ diagonal), rel=1e-9)


@pytest.mark.parametrize("n", [1, 6, 65, 5000])
def test_measured_and_reconstructed(n):
    S = range_strategy(workload.all_range(n))
    rng = np.random.default_rng(n)
    x = rng.integers(0, 1000, size=n)
    y = S.integers(x)
    assert np.abs(S.solve(y) - x).max() < 1e-9
    if n <= 65:
        assert y == list(exact_matrix(S) @ x.astype(object))
    first, last = np.array([0, n // 3]), np.array([n - 1, n // 2])
    wanted = [x.sum(), x[n // 3 : n // 2 + 1].sum()]
    assert S.answers(S.solve(y), first, last) == pytest.approx(wanted, abs=1e-6)


def test_counts_that_floats_cannot_hold():
    n = 40
    S = range_strategy(workload.all_range(n))
    x = np.random.default_rng(0).integers(2**52, 2**53, size=n)
    y = S.integers(x)
    B = exact_matrix(S)
    assert [Fraction(v) for v in y] == [sum(Fraction(b) * int(v) for b, v in zip(row, x, strict=True)) for row in B]
    assert np.array_equal(S.solve(y), x.astype(float))
    extreme = np.where(np.arange(n) % 2, -(2**63), 2**63 - 1)
    assert S.integers(extreme) == list(B @ extreme.astype(object))


def test_variances_of_ranges_against_simulation():
    n, runs = 50, 4000
    S = range_strategy(workload.all_range(n))
    first, last = np.array([0, 10, 24]), np.array([49, 20, 24])
    rows = np.array([(np.arange(n) >= i) & (np.arange(n) <= j) for i, j in zip(first, last, strict=True)], dtype=float)
    ranges = workload.from_matrix(rows)
    predicted, R = S.variances(ranges), S.reconstruction(ranges)
    assert predicted == pytest.approx(S.l2_squared * (R * R).sum(axis=1), rel=1e-9)
    noise = np.random.default_rng(11).normal(size=(runs, n)) * S.sensitivity
    errors = np.array([S.answers(S.solve(np.rint(z).astype(np.int64).tolist()), first, last) for z in noise])
    spread = predicted * np.sqrt(2.0 / runs)
    assert (np.abs((errors**2).mean(axis=0) - predicted) < 6 * spread).all()
    total = np.array([(e**2).sum() for e in errors])
    assert abs(total.mean() - predicted.sum()) < 6 * total.std() / np.sqrt(runs)


@pytest.mark.parametrize("method", ["auto", "range-transform"])
def test_selected_above_what_a_matrix_takes(method):
    W = workload.all_range(10_007)
    S = strategy.select(W, method=method)
    assert isinstance(S, strategy.RangeStrategy)
    assert S.method == "range-transform"
    assert S.shape == (10_007, 10_007)
    assert S.gap < 2e-4
    assert S.expected / bounds.svd_bound(W) < 1.01
    assert repr(S).startswith("<Strategy range-transform")
    assert S.unsupported(W) == ()
    x = np.arange(10_007)
    assert np.abs(S.solve(S.integers(x)) - x).max() < 1e-6


@pytest.mark.parametrize("n", [300, 5000, 2**15, 110_217, 2**18])
def test_products_of_every_size_fit_two_words(n):
    C = SineMatrix(_kernel(n))
    ones, most = np.ones(n, dtype=np.int64), np.full(n, 2**18 - 1)
    whole = C.product(ones).integers()
    assert C.product((2**63 - 1) * ones, most).integers() == [(2**63 - 1) * (2**18 - 1) * v for v in whole]


@pytest.mark.long
def test_a_million_cells_in_integers():
    n = 2**20
    W = workload.all_range(n)
    S = strategy.select(W)
    assert S.expected / bounds.svd_bound(W) < 1.004
    assert S.gap < 1e-4
    x = np.random.default_rng(0).integers(0, 1000, size=n)
    assert np.abs(S.solve(S.integers(x)) - x).max() < 1e-6


def test_refused_values():
    W = workload.all_range(6)
    S = range_strategy(W)
    for x in (np.ones(6), np.ones(5, dtype=np.int64), np.ones((6, 1), dtype=np.int64), [2**64] * 6):
        with pytest.raises(DataError, match="counts"):
            S.integers(x)
    with pytest.raises(DataError, match="measurements"):
        S.solve([1, 2])
    with pytest.raises(DataError, match="2\\^400"):
        S.solve([2**401] * 6)
    for first, last in (([0], [6]), ([-1], [2]), ([3], [2]), ([0, 1], [2]), ([0.5], [2])):
        with pytest.raises(DataError, match="range"):
            S.answers(np.zeros(6), first, last)
    with pytest.raises(DataError, match="columns"):
        S.error(workload.all_range(7))
    with pytest.raises(DataError, match="columns"):
        S.unsupported(workload.total(7))


def test_refused_workloads():
    with pytest.raises(DataError, match="all ranges"):
        range_strategy(workload.prefix(9))
    held = workload.all_range(4)
    measured = Workload(held.span, held.inner, sparse.csr_array(np.ones((4, 1), dtype=np.int64)))
    with pytest.raises(DataError, match="all ranges"):
        range_strategy(measured)
    with pytest.raises(DataError, match="cells"):
        strategy.select(workload.all_range(2**20 + 1))
    S = strategy.select(workload.all_range(5000))
    with pytest.raises(DataError, match="written out"):
        S.matrix()
    with pytest.raises(DataError, match="reconstruction"):
        S.reconstruction(workload.all_range(5000))
