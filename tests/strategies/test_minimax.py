"""The least largest variance: by hand, against brute force, against its own certificate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, sparse, special

from dpsql import strategy, workload
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.strategies.choose.minimax import Weighted, reweighted
from dpsql.strategies.kronecker.structured import StructuredStrategy
from dpsql.workload import Workload

_CORNERS = np.array([[1, 1, 0, 0], [1, -1, 0, 0], [0, 0, 1, 1], [0, 0, 1, -1]]).T
FAMILIES = {
    "prefix": workload.prefix(9),
    "all ranges": workload.all_range(7),
    "random ranges": workload.random_ranges(12, 10, 1),
    "related": workload.wrelated(20, 30, 5, 2),
    "weighted": Workload.from_rows([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0]], [1.0, 4.0, 0.5]),
    "equal rows": Workload.from_rows([[1, 1, 0], [-1, -1, 0], [0, 1, 1]], [1.0, 3.0, 1.0]),
    "count and sum": Workload.from_rows([[1, 0, 1, 0], [2, 1, 2, 1], [2, 1, 0, 0]], [1.0, 0.5, 0.5],
                                        contributions=_CORNERS),
    "blocks": workload.from_matrix(np.kron(np.diag([1.0, 3.0]), np.tril(np.ones((4, 4))))),
    "product": workload.kron(workload.all_range(4), workload.prefix(3)),
    "stack": workload.stack(workload.kron(workload.identity(3), workload.total(4)),
                            workload.kron(workload.total(3), workload.all_range(4))),
    "predicates": workload.all_predicate(4),
    "marginals": workload.marginals([2, 3, 2], order=(1, 2)),
}  # fmt: skip


def moved(W):
    return W.matrix() if W.contributions is None else W.matrix() @ W.contributions.toarray()


def nuclear(M):
    return float(np.linalg.svd(M, compute_uv=False).sum())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.few(
    "gaussian-prefix",
    "gaussian-equal rows",
    "gaussian-product",
    "gaussian-marginals",
    "laplace-equal rows",
    "laplace-count and sum",
    "laplace-predicates",
)
def test_the_largest_error_is_least_and_told_from_the_integers(name, noise):
    W = FAMILIES[name]
    total, least = strategy.select(W, noise), strategy.select(W, noise, objective="max")
    explicit = W.matrix()
    direct = least.sensitivity**2 * (np.linalg.pinv(least.matrix()).T @ explicit.T) ** 2
    errors = direct.sum(axis=0)
    assert least.objective == "max"
    assert least.value == pytest.approx(errors.max(), rel=1e-7)
    assert np.sqrt(least.largest(least.planned)) == pytest.approx(np.sqrt(errors.max()), rel=1e-7)
    assert least.variances(least.planned) == pytest.approx(errors, rel=1e-6, abs=1e-9)
    of_blocks = isinstance(least, StructuredStrategy)  # planned as SQL is: ``expected`` is the largest, too
    assert least.expected == pytest.approx(errors.max() if of_blocks else errors.sum(), rel=1e-7)
    assert least.value <= total.largest(total.planned) * (1 + 1e-12)
    assert least.expected >= total.expected / (1 + 1e-3) or noise == "laplace"
    assert dict(least.considered)[least.method] == min(value for _, value in least.considered)
    assert least.gap is None
    if noise == "gaussian":
        assert least.lower_bound == pytest.approx(total.lower_bound / W.shape[0], rel=1e-3)
        assert least.lower_bound <= least.value
    else:
        assert least.lower_bound is None


def test_by_hand():
    # gamma_2 of the identity, and of one row, is 1; n copies of one query are that query.
    for W in (workload.identity(5), workload.total(5), Workload.from_rows([[1, 1]] * 4, np.ones(4))):
        least = strategy.select(W, objective="max")
        assert (least.value, least.gap) == (pytest.approx(1), None)
        assert strategy.select(W, "laplace", objective="max").value == pytest.approx(1)
    # One row: its largest entry squared.
    least = strategy.select(Workload.from_rows([[1, -3, 2]], [0.5]), objective="max")
    assert least.value == pytest.approx(2.25)
    # A Hadamard matrix H of order n has ||H||_* = n^1.5, so gamma_2^2 = n, and H / sqrt(n) measured gives it.
    H = np.array([[1, 1], [1, -1]])
    H4 = np.kron(H, H)
    for matrix, n in ((H, 2), (H4, 4)):
        assert strategy.select(workload.from_matrix(matrix), objective="max").value == pytest.approx(n, rel=1e-3)
    # Both cells and their sum. With A = [[c, s], [s, c]], c = cos u, s = sin u, the covariance is
    # [[1, -k], [-k, 1]] / (1 - k^2), k = sin 2u: a cell has 1 / (1 - k^2), the sum 2 / (1 + k); equal at k = 1/2.
    least = strategy.select(workload.from_matrix([[1, 0], [0, 1], [1, 1]]), objective="max", tolerance=1e-6)
    assert least.value == pytest.approx(4 / 3, rel=1e-3)


def test_disjoint_blocks_take_the_larger_and_products_multiply():
    small, large = workload.prefix(4), workload.prefix(9)
    joined = workload.from_matrix(sparse.block_array([[sparse.csr_array(small.matrix()), None],
                                                      [None, sparse.csr_array(large.matrix())]]))  # fmt: skip
    cases = {
        "small": small,
        "large": large,
        "joined": joined,
        "product": workload.kron(small, large),
        "written out": workload.from_matrix(np.kron(small.matrix(), large.matrix())),
    }
    value = {name: strategy.select(W, objective="max", tolerance=1e-5).value for name, W in cases.items()}
    assert value["joined"] == pytest.approx(value["large"], rel=1e-3)
    assert value["product"] == pytest.approx(value["small"] * value["large"], rel=2e-3)
    assert value["written out"] == pytest.approx(value["product"], rel=1e-4)


@pytest.mark.long
def test_any_weights_bound_it_from_below():
    rng = np.random.default_rng(3)
    for seed in range(20):
        n, m = rng.integers(2, 6), rng.integers(1, 7)
        M = rng.integers(-2, 3, size=(m, n))
        if not M.any():
            continue
        least = strategy.select(workload.from_matrix(M), objective="max")
        for _ in range(20):
            w, lam = rng.dirichlet(np.full(m, 0.5)), rng.dirichlet(np.full(n, 0.5))
            # By duality the least largest variance is at least this, and equal to it at the best w and lam.
            bound = nuclear(np.sqrt(w)[:, None] * M * np.sqrt(lam)[None, :]) ** 2
            assert bound <= least.value * (1 + 1e-9), seed


def brute_force(M, seed):
    """gamma_2(M)^2 by descent over A (n x n) on smoothed maxima, from a random start."""
    n = M.shape[1]

    def value(flat, sharp):
        A = flat.reshape(n, n)
        Q = M @ np.linalg.inv(A)
        p, q = (Q * Q).sum(axis=1), (A * A).sum(axis=0)
        if sharp is None:
            return p.max() * q.max()
        return (special.logsumexp(sharp * np.log(p)) + special.logsumexp(sharp * np.log(q))) / sharp

    A = np.eye(n) + 0.4 * np.random.default_rng(seed).normal(size=(n, n))
    flat = A.ravel()
    for sharp in (4, 32, 256):
        flat = optimize.minimize(value, flat, args=(sharp,), method="BFGS", options={"maxiter": 300}).x
    return value(flat, None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_brute_force_does_no_better_and_comes_near(seed):
    rng = np.random.default_rng(100 + seed)
    n = 2 + seed % 3
    M = np.vstack([rng.integers(-1, 3, size=(n + 1, n)), np.eye(n, dtype=int)[:1] * 2, np.tril(np.ones((n, n)))])
    least = strategy.select(workload.from_matrix(M), objective="max", tolerance=1e-4)
    found = min(brute_force(M, start) for start in range(3))
    assert found >= least.lower_bound * (1 - 1e-9)
    assert found <= least.value * 1.03


@pytest.mark.parametrize(
    "inner",
    [
        algebra.Diagonal(np.array([1.0, 0.0, -2.0, 3.0])),
        algebra.Ranges(4),
        algebra.Prefixes(4),
        algebra.Predicates(4),
        algebra.Dense(np.arange(12.0).reshape(3, 4)),
        algebra.Kron((algebra.Prefixes(2), algebra.Ranges(2))),
        algebra.Blocks((algebra.Ranges(3), algebra.Diagonal(np.ones(1))), (2.0, 0.5)),
    ],
    ids=lambda inner: type(inner).__name__,
)
@pytest.mark.parametrize("stored", [np.asarray, sparse.csr_array])
def test_queries_by_structure_are_those_by_entries(inner, stored):
    rng = np.random.default_rng(8)
    coords, root = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    F = inner.matrix()
    E = (F.toarray() if sparse.issparse(F) else F) @ coords
    w = rng.random(E.shape[0])
    queries = inner.times(stored(coords))
    assert queries.shape[0] == E.shape[0]
    assert queries.gram(w) == pytest.approx(E.T @ np.diag(w) @ E)
    assert queries.variances() == pytest.approx((E * E).sum(axis=1))
    assert queries.variances(root) == pytest.approx(((E @ root) ** 2).sum(axis=1))
    scaled = Weighted(inner, w)
    half = scaled.matrix()
    half = half.toarray() if sparse.issparse(half) else half
    assert scaled.shape == half.shape
    assert scaled.gram() == pytest.approx(half.T @ half)
    assert half @ coords == pytest.approx(np.sqrt(w)[:, None] * E)


def test_reweighted_errors_are_weighted_sums():
    for name in ("weighted", "stack", "related"):
        W = FAMILIES[name]
        w = np.random.default_rng(2).random(W.shape[0])
        S = strategy.select(W)
        assert S.error(reweighted(W, w)) == pytest.approx(w @ S.variances(W))


def test_rounds_lower_the_largest_error():
    for name in ("random ranges", "related", "all ranges"):
        W = FAMILIES[name]
        least, total = strategy.select(W, objective="max"), strategy.select(W)
        assert least.method == "optimal, reweighted"
        assert least.value < total.largest(W) * 0.99


@pytest.mark.long
def test_a_method_that_was_asked_for_is_kept():
    least = strategy.select(FAMILIES["random ranges"], method="identity", objective="max")
    assert least.method.startswith("identity")
    assert least.lower_bound <= least.value
    assert strategy.select(FAMILIES["prefix"], "laplace", "p-identity", objective="max").method.startswith("p-identity")


def test_a_time_limit_is_never_worse_than_the_total():
    W = workload.wrelated(60, 200, 20, 1)
    least = strategy.select(W, objective="max", time_limit=1e-9)
    assert least.value <= strategy.select(W, time_limit=1e-9).largest(W) * (1 + 1e-9)
    laplace = strategy.select(FAMILIES["prefix"], "laplace", objective="max", time_limit=1e-9)
    assert laplace.value > 0


def test_more_queries_than_can_be_weighed_are_refused():
    with pytest.raises(DataError, match="objective='total'"):
        algebra.Kron((algebra.Ranges(200), algebra.Ranges(200))).times(np.zeros((40_000, 1)))


@pytest.mark.parametrize("objective", ["least", "Max", None])
def test_an_unknown_objective_is_refused(objective):
    with pytest.raises(DataError, match="use 'total' or 'max'"):
        strategy.select(workload.identity(3), objective=objective)
