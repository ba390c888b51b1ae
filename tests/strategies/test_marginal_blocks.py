"""Blocks of marginals under pure epsilon: the search, the integers and the least squares against dense algebra."""

from math import prod

import numpy as np
import pytest
from scipy import optimize

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.marginals.marginal_blocks import _Problem, log_error, plan_blocks, within
from dpsql.strategies.marginals.marginal_strategy import MarginalStrategy, block_strategy, blocks_error
from dpsql.workloads.compile.products import marginal_batch

BATCHES = {
    "2 x 3 x 4": workload.marginals((2, 3, 4), (1, 2)),
    "weighted": workload.marginals((2, 3, 4), sets=[(0, 1), (1, 2), (2,), ()], weights=[1.0, 3.0, 0.5, 2.0]),
    "2^4": workload.marginals((2,) * 4, (1, 2)),
    "one value": workload.marginals((3, 1, 4), (1, 2)),
    "unequal": workload.marginals((9, 2, 8, 2), (1, 2)),
    "total": workload.marginals((3, 4), 0),
}
# Blocks that overlap, so that residuals are estimated from several tables.
GIVEN = {
    "2 x 3 x 4": {(0, 1): 3, (0, 2): 5, (1, 2): 2, (2,): 1},
    "2^4": {(0, 1, 2): 4, (0, 3): 1, (1, 3): 2, (2, 3): 3},
}


def given(name):
    W, k = BATCHES[name], GIVEN[name]
    l1 = sum(k.values())
    error = blocks_error(W, k)
    l2_squared = sum(v * v for v in k.values())
    return MarginalStrategy(W, k, "laplace", "marginal-blocks", l1, l2_squared, error, None, ())


def every():
    return [given(name) for name in GIVEN] + [block_strategy(W) for W in BATCHES.values()]


def block_rows(sizes, S):
    """The marginal on S over all cells, its last attribute fastest."""
    out = np.ones((1, 1))
    for i, d in enumerate(sizes):
        out = np.kron(out, np.eye(d) if i in S else np.ones((1, d)))
    return out


def dense_error(W, B):
    M = W.matrix()
    R = M @ np.linalg.pinv(B)
    assert np.allclose(R @ B, M)
    return np.abs(B).sum(axis=0).max() ** 2 * np.sum(R * R)


@pytest.mark.parametrize("number", range(len(BATCHES) + len(GIVEN)))
def test_error_and_sensitivity_by_brute_force(number):
    S = every()[number]
    W, B = S.planned, S.matrix()
    assert B.shape == S.shape
    assert set(np.abs(B).sum(axis=0)) == {S.l1}
    assert set((B * B).sum(axis=0)) == {S.l2_squared}
    assert S.expected == pytest.approx(dense_error(W, B), rel=1e-9)
    x = np.random.default_rng(3).integers(0, 30, size=S.sizes)
    tables = {T: x.sum(axis=tuple(i for i in range(x.ndim) if i not in T)) for T in S.multipliers}
    assert S.integers(tables) == [int(v) for v in B @ x.ravel()]


@pytest.mark.parametrize("number", range(len(BATCHES) + len(GIVEN)))
def test_reconstruction_is_least_squares(number):
    S = every()[number]
    W, B = S.planned, S.matrix()
    y = np.random.default_rng(number).integers(-99, 99, size=S.shape[0])
    inverse = np.linalg.pinv(B)
    found = S.solve([int(v) for v in y])
    assert set(found) == set(W.sets)
    for T, table in found.items():
        M = block_rows(S.sizes, T)
        assert np.allclose(table.ravel(), M @ inverse @ y)
        assert np.allclose(((M @ inverse) ** 2).sum(axis=1), float(S.variance(T)))
    by_cell = sum(w * w * prod(S.sizes[i] for i in T) * S.variance(T) for T, w in zip(W.sets, W.weights, strict=True))
    assert float(by_cell) * S.l1**2 == pytest.approx(S.expected)


def test_gradient_by_finite_differences():
    problem = _Problem.of(BATCHES["weighted"])
    M = problem.shares(problem.members([(0, 1), (1, 2), (0, 1, 2), (2,)]))
    for seed in range(3):
        logs = np.random.default_rng(seed).normal(size=4)
        numeric = optimize.approx_fprime(logs, lambda v: log_error(v, M, problem.cost)[0], 1e-7)
        assert np.allclose(numeric, log_error(logs, M, problem.cost)[1], atol=1e-5)


@pytest.mark.parametrize("name", BATCHES)
def test_never_above_the_sets_asked_for_nor_the_cells(name):
    W = BATCHES[name]
    P = plan_blocks(W)
    assert sum(P.weights) == pytest.approx(1.0)
    problem = _Problem.of(W)
    asked = problem.optimise(problem.members([tuple(i for i in S if W.sizes[i] > 1) for S in W.sets]))[0]
    cells = sum(w * w * W.shape[1] for w in W.weights)  # each marginal adds up all cells, of variance 1
    assert P.error <= min(asked, cells) * (1 + 1e-9)
    assert block_strategy(W, 1e-4).expected <= P.error * (1 + 1e-4)


def test_small_attributes_join():
    W = workload.marginals((2,) * 10, (1, 2))
    P = plan_blocks(W)
    assert P.error < 0.6 * 24.46 * bounds.svd_bound(W)  # the best published
    unsearched = plan_blocks(W, effort=1e-9)  # the better of all pairs (63.9) and all cells
    assert unsearched.error / bounds.svd_bound(W) == pytest.approx(30.298, abs=1e-2)
    assert plan_blocks(W) == P


def test_inclusion_of_sets():
    inner = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=bool)
    outer = np.array([[1, 1, 0], [0, 0, 1]], dtype=bool)
    assert np.array_equal(within(inner, outer), [[True, False], [True, False], [True, True]])


def test_selection_over_ten_to_the_ten_cells():
    W = workload.marginals((10,) * 10, (1, 2))
    S = strategy.select(W, "laplace")
    assert isinstance(S, MarginalStrategy)
    assert S.expected / bounds.svd_bound(W) == pytest.approx(47.4008, abs=1e-3)
    assert (S.gap, S.l1, S.shape) == (None, 45, (4500, 10**10))
    assert "4500 measurements" in repr(S)
    assert S.error(workload.marginals((10,) * 10, 2)) < S.expected
    assert S.error(workload.marginals((10,) * 10, 3)) == float("inf")


@pytest.mark.long
def test_written_out_is_the_same_strategy():
    W = BATCHES["unequal"]
    S = strategy.select(W, "laplace", "marginal-blocks")
    E = W.explicit()
    assert S.method == "marginal-blocks"
    assert S.error(workload.weighted(E, 1.0)) == pytest.approx(S.expected)
    assert np.allclose(S.reconstruction(E) @ S.matrix(), E.matrix())
    assert np.abs(S.matrix()).sum(axis=0).max() == S.l1
    assert strategy.select(W, "laplace").expected <= S.expected * (1 + 1e-3)
    assert block_strategy(workload.marginals((10,) * 6, 2)).written_out() is None


@pytest.mark.long
def test_unequal_domain_of_a_census():
    W = workload.marginals((85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2), (1, 2))
    assert strategy.select(W, "laplace").expected < 0.94 * 68.627 * bounds.svd_bound(W)  # all pairs at best weights


def test_refusals():
    S = given("2 x 3 x 4")
    x = np.zeros((2, 3), dtype=np.int64)
    with pytest.raises(DataError, match="missing"):
        S.integers({(0, 1): x})
    with pytest.raises(DataError, match="whole counts"):
        S.integers({(0, 1): x.astype(float)})
    with pytest.raises(DataError, match="measurements"):
        S.solve([1])
    with pytest.raises(DataError, match="2\\^400"):
        S.solve([2**401] + [0] * (S.shape[0] - 1))
    with pytest.raises(DataError, match="not planned"):
        S.variance((0, 1, 2))
    with pytest.raises(DataError, match="sizes"):
        S.error(workload.marginals((2, 3), 1))
    with pytest.raises(DataError, match="not planned"):
        S.reconstruction(workload.marginals((2, 3, 4), 3))
    with pytest.raises(DataError, match="not planned"):
        S.variances(workload.marginals((2, 3, 4), 3))
    with pytest.raises(DataError, match="integers"):
        block_strategy(workload.marginals((10,) * 8, 1)).matrix()
    with pytest.raises(DataError, match="measurements"):
        block_strategy(workload.marginals((10_000, 10_000), 2))
    with pytest.raises(DataError, match="tolerance"):
        block_strategy(BATCHES["2^4"], 0.0)
    with pytest.raises(DataError, match="Laplace"):
        strategy.select(BATCHES["2^4"], "gaussian", "marginal-blocks")
    assert blocks_error(BATCHES["2^4"], {(0, 1): 1}) == float("inf")
    assert S.error(workload.marginals((2, 3, 4), 3)) == float("inf")


SEVERAL = workload.marginals([10, 5, 3, 3, 3, 20], sets=[(0, 1), (2,), (3, 4, 5), (0, 5)], weights=[1, 2, 0.5, 1])


@pytest.mark.parametrize("W", [SEVERAL, workload.marginals([4, 3, 2], order=(0, 1, 2)), workload.data_cube([2, 3, 4])])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_marginals_are_the_blocks_that_sql_compiles_to(W, noise):
    batch = marginal_batch(W)
    products = workload.products(*map(workload.identity, W.sizes), sets=W.sets, weights=W.weights)
    assert [(b.start, b.stop, b.weight, b.key_sizes) for b in batch.blocks] == [
        (b.start, b.stop, b.weight, b.key_sizes) for b in products.blocks
    ]
    assert batch.pure
    mine = strategy.residual_strategy(W) if noise == "gaussian" else strategy.block_strategy(W)
    theirs = strategy.structured_strategy(batch, noise, tolerance=1e-4)
    assert theirs.expected == pytest.approx(mine.expected, rel=2e-4)
    assert theirs.variances(batch) == pytest.approx(mine.variances(W), rel=0.02)


@pytest.mark.long
def test_the_largest_error_of_marginals_is_that_of_their_blocks():
    W = workload.marginals(SEVERAL.sizes, sets=SEVERAL.sets)
    # One weight for each of four tables that share no residual but the total's: 4^2 without inference.
    S = strategy.select(W, "laplace", objective="max")
    assert isinstance(S, strategy.StructuredStrategy)
    assert 15 < S.value <= 16
    assert S.value == pytest.approx(S.variances(marginal_batch(W)).max(), rel=1e-9)
    assert S.value < strategy.select(W, "laplace").largest(W) / 5


@pytest.mark.parametrize("noise", ["gaussian", "pure"])
@pytest.mark.few("gaussian")
def test_the_largest_error_is_planned_over_ten_to_the_thirty_cells(noise):
    W = workload.marginals([10] * 30, order=2)
    S = strategy.select(W, noise, objective="max")
    assert S.value == pytest.approx(S.variances(marginal_batch(W)).max(), rel=1e-9)
    if noise == "gaussian":
        assert S.lower_bound <= S.value <= 1.001 * S.lower_bound
