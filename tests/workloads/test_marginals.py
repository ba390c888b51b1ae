from itertools import combinations

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError

SMALL = {
    "order 2": workload.marginals([2, 3, 4], order=2),
    "orders 0 to 2": workload.marginals([3, 2, 2], order=(0, 1, 2)),
    "sets": workload.marginals([2, 3, 4], sets=[(0, 1), (2,), ()], weights=[2.0, 1.0, 0.5]),
    "by mapping": workload.marginals([3, 3], sets=[(1,), (0,)], weights={(0,): 3.0, (1,): 1.0}),
    "one value": workload.marginals([1, 4, 2], order=2),
    "cube": workload.data_cube([2, 3], weights=[3.0, 2.0, 1.0]),
    "cuboids": workload.data_cube([2, 2, 3], weights={(2, 0): 1.5, (1,): 2.0}),
}


def brute(W):
    """Rows by enumerating cells, weight included."""
    cells = list(np.ndindex(*W.sizes))
    rows = []
    for S, w in zip(W.sets, W.weights, strict=True):
        for key in np.ndindex(*(W.sizes[i] for i in S)):
            rows.append([w * (tuple(cell[i] for i in S) == key) for cell in cells])
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("name", SMALL)
def test_structure_agrees_with_enumeration(name):
    W = SMALL[name]
    M = brute(W)
    assert M.shape == W.shape
    assert np.array_equal(W.matrix(), M)
    assert np.allclose(W.gram(), M.T @ M)
    assert W.rank == np.linalg.matrix_rank(M)
    plain = W.explicit()
    assert np.array_equal(plain.matrix(), M)
    assert plain.groups.max() == len(W.sets) - 1
    assert bounds.svd_bound(W) == pytest.approx(bounds.svd_bound(plain), rel=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_residual_spaces_diagonalise_the_gram_matrix(name):
    W = SMALL[name]
    n = W.shape[1]
    rebuilt = np.zeros((n, n))
    for T, g in W.residuals().items():
        P = np.ones((1, 1))
        for i, d in enumerate(W.sizes):
            P = np.kron(P, np.eye(d) - 1 / d if i in T else np.full((d, d), 1 / d))
        assert np.trace(P) == pytest.approx(W.dimension(T))
        rebuilt += n * g * P
    assert np.allclose(rebuilt, W.gram())


def test_by_hand():
    # Two attributes of 2 values: the 1-way marginals are rows and columns of a square.
    W = workload.marginals([2, 2], order=1)
    assert W.matrix().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    # g of the total: 1/2 + 1/2, of each attribute: 1/2; nuclear norm over sqrt(n): 1 + 2 sqrt(1/2).
    assert W.residuals() == {(): 1.0, (0,): 0.5, (1,): 0.5}
    assert bounds.svd_bound(W) == pytest.approx((1 + np.sqrt(2)) ** 2)


def test_the_bound_is_the_least_error():
    W = workload.marginals([3, 2, 4], order=(1, 2), weights=[1, 2, 1, 3, 1, 1])
    S = strategy.select(W.explicit(), tolerance=1e-5)
    assert S.expected == pytest.approx(bounds.svd_bound(W), rel=2e-5)


def test_domains_of_any_size_by_hand():
    W = workload.marginals([10] * 100, order=(1, 2))
    bound = bounds.svd_bound(W)
    assert W.shape == (100 * 10 + 4950 * 100, 10**100)
    assert W.rank == 1 + 100 * 9 + 4950 * 81
    assert workload.marginals([10] * 20, order=2).shape[1] == 10**20
    # The closed sum, by order: g_2 = 1/100, g_1 = 99/100 + 1/10, g_0 = 4950/100 + 100/10.
    half = 4950 * 81 * np.sqrt(1e-2) + 900 * np.sqrt(99e-2 + 0.1) + np.sqrt(49.5 + 10)
    assert bound == pytest.approx(half**2)
    assert bounds.looseness(W) == 1.0


def test_a_cube_of_weights_by_order():
    W = workload.data_cube([2, 3, 2], weights=[1, 2, 3, 4])
    assert W.sets == tuple(S for o in range(4) for S in combinations(range(3), o))
    assert W.weights == (1, 2, 2, 2, 3, 3, 3, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: workload.marginals([2, 3]), "either"),
        (lambda: workload.marginals([2, 3], order=1, sets=[(0,)]), "either"),
        (lambda: workload.marginals([2, 3], order=3), "order"),
        (lambda: workload.marginals([2, 3], order=1.5), "whole number|order"),
        (lambda: workload.marginals([], order=0), "size"),
        (lambda: workload.marginals([0, 3], order=1), "size"),
        (lambda: workload.marginals([2, 3], sets=[]), "at least one"),
        (lambda: workload.marginals([2, 3], sets=[(0, 2)]), "attributes"),
        (lambda: workload.marginals([2, 3], sets=[(0, 0)]), "once"),
        (lambda: workload.marginals([2, 3], sets=[(0, 1), (1, 0)]), "twice"),
        (lambda: workload.marginals([2, 3], order=1, weights=[1.0]), "weights"),
        (lambda: workload.marginals([2, 3], order=1, weights=[1.0, 0.0]), "above zero"),
        (lambda: workload.marginals([2, 3], order=1, weights=np.inf), "finite"),
        (lambda: workload.marginals([2, 3], sets=[(0,)], weights={(1,): 1.0}), "one weight"),
        (lambda: workload.data_cube([2, 3], weights=[1.0, 2.0]), "orders"),
        (lambda: workload.data_cube([2] * 30), "subsets"),
        (lambda: workload.marginals([10**200, 10**200], order=2), "1e300"),
        (lambda: workload.marginals([10] * 20, order=2).gram(), "cap"),
        (lambda: workload.marginals([10] * 20, order=2).matrix(), "cap"),
        (lambda: workload.marginals([10] * 20, order=2).explicit(), "too large"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
