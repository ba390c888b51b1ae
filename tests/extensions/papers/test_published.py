"""The strategies of the papers: figures, invariants and hand-worked cases."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import linalg

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.extensions.papers import eigen_design, haar, smoothed
from dpsql.extensions.papers.approximations import augmented, least_rotation, svd_root
from dpsql.extensions.papers.level_selection import select_levels
from dpsql.strategies.core import parts
from dpsql.strategies.core.reduce import reduce_workload
from dpsql.strategies.pure import hierarchical, p_identity


def ratio(W, method):
    return strategy.select(W, method=method).expected / bounds.svd_bound(W)


@pytest.mark.parametrize(
    ("shape", "method", "figure"),
    [
        (256, "identity", 10.395),
        (256, "hierarchical", 1.778),
        (256, "haar", 1.485),
        ((16, 8, 8), "identity", 4.635),
        ((16, 8, 8), "haar", 1.773),
        ((2, 2, 2, 2, 2, 2), "hierarchical", 2 ** (6 / 10)),
        ((2, 2, 2, 2, 2, 2), "eigen-design", 1.0),
    ],
)
@pytest.mark.few(every=3)
def test_reference_figures(shape, method, figure):
    # Sizes of two cells a factor multiply: ten of them give 2.000 in Li and Miklau 2013, Table 2.
    assert ratio(workload.all_range(shape), method) == pytest.approx(figure, rel=6e-4)


def test_haar_over_four_cells_by_hand():
    rows, level = haar.matrix(4)
    assert rows.tolist() == [[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]]
    assert level.tolist() == [0, 1, 2, 2]
    S = strategy.select(workload.all_range(4), method="haar")
    assert (S.l1, S.l2_squared) == (3, 3)


@pytest.mark.parametrize("branching", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 7, 27])
def test_every_level_of_a_tree_is_a_partition(n, branching):
    found = hierarchical.levels(n, branching)
    assert found[0].tolist() == [0, n]
    assert np.diff(found[-1]).max() == 1
    for coarse, fine in pairwise(found):
        assert set(coarse) < set(fine)
        assert max(np.diff(np.searchsorted(fine, coarse))) <= branching
    A = hierarchical.rows_of(found, [1.0] * len(found), "laplace")
    assert np.allclose(A.sum(axis=0), len(found))
    A = hierarchical.rows_of(found, [1.0] * len(found), "gaussian")
    assert np.allclose((A**2).sum(axis=0), len(found))


def test_tree_of_branching_below_two_is_refused():
    with pytest.raises(DataError, match="branching"):
        hierarchical.levels(8, 1)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_closed_form_of_level_weights(noise):
    G = workload.prefix(16).gram()
    sizes = (16, 4, 1)
    value, w = hierarchical.weights_of_traces([hierarchical.block_trace(G, size) for size in sizes], sizes, noise)
    A = hierarchical.rows_of(hierarchical.regular(16, sizes), w.tolist(), noise)
    order = 2 if noise == "gaussian" else 1
    sensitivity = np.linalg.norm(A, ord=order, axis=0).max()
    assert sensitivity**2 * np.trace(np.linalg.solve(A.T @ A, G)) == pytest.approx(value, rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = np.exp(0.2 * rng.normal(size=3)) * w
        B = hierarchical.rows_of(hierarchical.regular(16, sizes), other.tolist(), noise)
        assert np.linalg.norm(B, ord=order, axis=0).max() ** 2 * np.trace(np.linalg.solve(B.T @ B, G)) >= value * 0.9999


@pytest.mark.parametrize("W", [workload.prefix(16), workload.all_range(32), workload.all_range((8, 4))])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_weights_never_lose(W, noise):
    for plain, better in (("hierarchical", "weighted-hierarchical"), ("haar", "weighted-haar")):
        a, b = (strategy.select(W, noise, method=m) for m in (plain, better))
        assert b.expected <= a.expected * (1 + 1e-3)


def test_eigen_design_weights_are_least():
    G = workload.random_ranges(12, 16, 3).gram()
    found = eigen_design.design(G, np.inf, 1e-6)
    load = found.squares @ found.vectors**2
    assert load.max() == pytest.approx(1.0)
    value = (found.values / found.squares).sum()
    rng = np.random.default_rng(1)
    for _ in range(50):
        u = found.squares * np.exp(0.3 * rng.normal(size=found.squares.size))
        assert (found.values / u).sum() * (u @ found.vectors**2).max() >= value * (1 - 1e-5)


def test_completion_never_raises_an_error():
    W = workload.prefix(32)
    M = eigen_design.design(W.gram(), np.inf).metric()
    full = eigen_design.completed(M)
    assert np.trace(np.linalg.solve(full, W.gram())) <= np.trace(np.linalg.solve(M, W.gram())) * (1 + 1e-6)
    assert np.allclose(np.diag(full), np.diag(full)[0])


def test_svd_approximation_meets_its_statement():
    W = workload.random_ranges(9, 20, 5)
    S = strategy.select(W, method="svd-approximation")
    (block,) = reduce_workload(W)
    Y = block.columns.toarray().astype(float)
    C = svd_root(block.gram, Y)
    M = W.matrix()
    # On merged columns: A^T A proportional to (W^T W)^1/2.
    merged = Y.T @ block.gram @ Y
    s, V = linalg.eigh(merged)
    root = (V * np.sqrt(np.maximum(s, 0))) @ V.T
    A = C @ Y
    # The square root doubles the digits lost to the rounding of zero eigenvalues.
    assert np.allclose(A.T @ A, root, atol=1e-6 * np.abs(root).max())
    bound = np.diag(root).max() * np.trace(root)
    assert S.expected == pytest.approx(bound, rel=1e-3)
    assert M.shape == W.shape


def test_rotation_keeps_the_profile_and_lowers_the_norm():
    rng = np.random.default_rng(3)
    C, Y = rng.normal(size=(6, 6)), rng.normal(size=(6, 40))
    turned = least_rotation(C, Y, np.inf)
    assert np.allclose(turned.T @ turned, C.T @ C)
    assert np.abs(turned @ Y).sum(axis=0).max() < np.abs(C @ Y).sum(axis=0).max()


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_augmentation_never_hurts(noise):
    rng = np.random.default_rng(4)
    A, G = rng.normal(size=(9, 8)), workload.prefix(8).gram()
    full = augmented(A, noise)
    order = 2 if noise == "gaussian" else 1
    norms = np.linalg.norm(full, ord=order, axis=0)
    assert norms.max() == pytest.approx(np.linalg.norm(A, ord=order, axis=0).max())
    assert norms.min() == pytest.approx(norms.max())
    assert np.trace(np.linalg.solve(full.T @ full, G)) < np.trace(np.linalg.solve(A.T @ A, G))


def test_smoothed_objective_by_finite_differences():
    rng = np.random.default_rng(5)
    root = rng.normal(size=(5, 5))
    M, G = root @ root.T + np.eye(5), workload.prefix(5).gram()
    _, gradient = smoothed.objective(G, M, 0.3)
    for _ in range(5):
        D = rng.normal(size=(5, 5))
        D = D + D.T
        up, down = (smoothed.objective(G, M + h * D, 0.3)[0] for h in (1e-6, -1e-6))
        assert (up - down) / 2e-6 == pytest.approx(np.sum(D * gradient), rel=1e-5)
    v = rng.normal(size=7)
    value, share = smoothed.smooth_maximum(v, 0.2)
    assert v.max() <= value <= v.max() + 0.2 * np.log(7)
    assert share.sum() == pytest.approx(1)


def test_smoothed_descent_comes_near_the_optimum():
    W = workload.prefix(24)
    assert strategy.select(W, method="smoothed").expected <= 1.02 * strategy.select(W).expected


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_gradient_of_level_weights_by_finite_differences(noise):
    rng = np.random.default_rng(8)
    g, s, logs = rng.random(4), np.array([27.0, 9, 3, 1]), rng.normal(size=4)
    _, gradient = hierarchical.log_error(logs, g, s, noise)
    for k in range(4):
        h = np.eye(4)[k] * 1e-6
        up, down = (hierarchical.log_error(logs + d, g, s, noise)[0] for d in (h, -h))
        assert (up - down) / 2e-6 == pytest.approx(gradient[k], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("through_root", [True, False])
def test_gradient_of_p_identity_by_finite_differences(through_root):
    rng = np.random.default_rng(9)
    U, Theta = rng.normal(size=(6, 8)), rng.random((3, 8))
    objective = p_identity.Objective(None, U) if through_root else p_identity.Objective(U.T @ U, None)
    value, gradient = objective(Theta.ravel())
    A = p_identity.root_of(Theta)
    assert value * objective.unit == pytest.approx(np.sum((U @ np.linalg.pinv(A)) ** 2))
    for k in range(0, 24, 5):
        h = np.eye(24)[k] * 1e-6
        up, down = (objective(Theta.ravel() + d)[0] for d in (h, -h))
        assert (up - down) / 2e-6 == pytest.approx(gradient[k], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("squares", [True, False])
def test_shares_of_a_union_are_least(squares):
    rng = np.random.default_rng(10)
    roots = rng.normal(size=(3, 5, 5))
    metrics, gram = np.einsum("gij,gik->gjk", roots, roots), workload.prefix(5).gram()
    found = parts._refine(np.full(3, 1 / 3), metrics, gram, squares)

    def error(share):
        length = np.sqrt((share**2).sum()) if squares else share.sum()
        return length**2 * np.trace(np.linalg.solve(np.tensordot(share**2, metrics, axes=1), gram))

    for _ in range(50):
        assert error(found * np.exp(0.05 * rng.normal(size=3))) >= error(found) * (1 - 1e-5)


def test_methods_above_their_cap_are_refused():
    with pytest.raises(DataError, match="cap of 512"):
        strategy.select(workload.all_range(600), method="smoothed")
    with pytest.raises(DataError, match="cap of 1024"):
        strategy.select(workload.all_range(1025), method="level-selection")


def test_unsupported_queries_are_named():
    S = strategy.select(workload.from_matrix([[1, 1, 0], [0, 0, 1]]))
    W = workload.from_matrix([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])
    assert S.unsupported(W) == (1, 3)
    with pytest.raises(DataError, match=r"2 of 4 queries .*: 1, 3"):
        S.require(W)
    S.require(workload.from_matrix([[2, 2, 5]]))
    with pytest.raises(DataError, match="3 columns"):
        S.unsupported(workload.identity(4))


@pytest.mark.parametrize(
    ("method", "noise"),
    [
        ("haar", "gaussian"),
        ("eigen-design", "gaussian"),
        ("level-selection", "laplace"),
        ("low-rank-mechanism", "laplace"),
        ("workload-separation", "gaussian"),
    ],
)
def test_predicted_errors_hold_in_simulation(method, noise):
    W = workload.stack(workload.prefix(12), workload.total(12))
    S = strategy.select(W, noise, method=method)
    R = np.asarray(S.reconstruction(W))
    rng, runs = np.random.default_rng(6), 20_000
    x = rng.integers(0, 50, size=12)
    # Noise of variance (sensitivity)^2 a measurement; a Laplace of scale b has variance 2 b^2.
    shape = (S.shape[0], runs)
    z = rng.normal(size=shape) if noise == "gaussian" else rng.laplace(scale=1 / np.sqrt(2), size=shape)
    y = (S.matrix() @ x)[:, None] + S.sensitivity * z
    totals = ((R @ y - (W.matrix() @ x)[:, None]) ** 2).sum(axis=0)
    assert abs(totals.mean() - S.expected) < 5 * totals.std() / np.sqrt(runs)


def test_separation_of_two_marginals_loses_little():
    n = 8
    W = workload.stack(
        workload.kron(workload.all_range(n), workload.total(n)),
        workload.kron(workload.total(n), workload.all_range(n)),
    )
    separate = strategy.select(W, method="workload-separation").expected
    whole = select_levels(W.gram(), (n, n)).errors[-1]
    assert separate <= 1.1 * whole
