"""Residual-basis marginals against dense linear algebra and at sizes that no matrix reaches."""

from math import prod

import numpy as np
import pytest

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.marginals.residual import helmert, residual_plan

SIZES, SETS, SQUARES = (3, 4, 2), [(0,), (1, 2), (0, 1)], [1.0, 2.0, 0.5]


def planned():
    return residual_plan(workload.marginals(SIZES, sets=SETS, weights=np.sqrt(SQUARES)))


def integer_variance(plan, T):
    """The variance of iid noise on the rows of B_T at mu = 1."""
    return plan.scale[T] * prod(SIZES[i] ** 2 for i in T)


def variance(plan, S):
    """The variance of every cell of the marginal on S at mu = 1."""
    found = 0.0
    for T in (T for T in plan.scale if set(T) <= set(S)):
        spread = prod(SIZES[i] ** 2 for i in S if i not in T)
        found += plan.scale[T] * prod((SIZES[i] - 1) / SIZES[i] for i in T) / spread
    return found


def explicit():
    parts = []
    for S, w in zip(SETS, SQUARES, strict=True):
        axes = [workload.identity(d) if i in S else workload.total(d) for i, d in enumerate(SIZES)]
        parts.append(workload.weighted(workload.kron(*axes), np.sqrt(w)))
    return workload.stack(*parts), parts


def dense(T):
    out = np.ones((1, 1))
    for i, d in enumerate(SIZES):
        out = np.kron(out, d * np.eye(d) - 1 if i in T else np.ones((1, d)))
    return out


def test_plan_against_dense_linear_algebra():
    W, parts = explicit()
    plan = planned()
    M = sum(dense(T).T @ dense(T) / integer_variance(plan, T) for T in plan.scale)
    assert np.allclose(np.diag(M), 1.0)  # the privacy condition, with equality
    assert np.trace(W.gram() @ np.linalg.pinv(M)) == pytest.approx(plan.error)
    assert plan.error == pytest.approx(bounds.svd_bound(W))
    assert plan.error == pytest.approx(strategy.select(W, tolerance=1e-6).expected, rel=1e-5)
    for S, w, part in zip(SETS, SQUARES, parts, strict=True):
        covariance = part.matrix() @ np.linalg.pinv(M) @ part.matrix().T / w
        assert np.allclose(np.diag(covariance), variance(plan, S))


@pytest.mark.parametrize("d", [2, 3, 6])
def test_helmert_rows(d):
    H = helmert(d)
    assert np.array_equal(H @ H.T, np.diag(np.diag(H @ H.T)))
    assert not (H @ np.ones(d)).any()
    assert np.allclose(H.T @ np.diag(1 / np.diag(H @ H.T)) @ H, np.eye(d) - 1 / d)


def test_marginals_are_selected_at_the_bound():
    W = workload.marginals(SIZES, 2)
    S = strategy.select(W)
    assert S.method == "residual-basis"
    assert S.gap <= 1e-3
    assert S.expected == pytest.approx(bounds.svd_bound(W), rel=1e-3)
    B, M = S.matrix(), W.matrix()
    R = M @ np.linalg.pinv(B)
    assert np.allclose(R @ B, M)
    assert S.expected == pytest.approx(np.sum(B * B, axis=0).max() * np.sum(R * R), rel=1e-9)
    assert strategy.select(W, "laplace").gap is None


def test_ten_to_the_hundred_cells():
    plan = residual_plan(workload.marginals([10] * 100, (1, 2)))
    assert len(plan.scale) == 5051
    assert plan.error == pytest.approx(bounds.svd_bound(workload.marginals([10] * 100, (1, 2))), rel=1e-9)


def test_simulated_variance_of_a_marginal():
    plan = planned()
    rng, runs = np.random.default_rng(7), 20_000
    B = np.vstack([dense(T) / np.sqrt(integer_variance(plan, T)) for T in plan.scale])
    R = np.linalg.pinv(B)
    table = np.kron(np.kron(np.eye(3), np.eye(4)), np.ones((1, 2)))
    errors = (table @ R @ rng.normal(size=(B.shape[0], runs))) ** 2
    each = errors.mean(axis=0)
    assert abs(each.mean() - variance(plan, (0, 1))) < 5 * each.std() / np.sqrt(runs)


def test_attributes_of_one_value_have_no_residual():
    assert list(residual_plan(workload.marginals((3, 1), sets=[(0, 1)])).scale) == [(), (0,)]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_error_of_marginals_is_that_of_their_matrix(noise):
    S = strategy.select(workload.marginals((3, 2, 4), (2,)), noise)
    pairs, single = workload.marginals((3, 2, 4), (2,)), workload.marginals((3, 2, 4), (1,))
    assert S.error(pairs) == pytest.approx(S.expected, rel=1e-6)
    assert S.error(single) == pytest.approx(S.error(single.explicit()), rel=1e-9)
    assert S.variances(single).sum() == pytest.approx(S.error(single), rel=1e-9)
    assert S.unsupported(single) == ()
    np.testing.assert_allclose(S.reconstruction(single) @ S.matrix(), single.explicit().matrix(), atol=1e-9)
    with pytest.raises(DataError, match="it measures 24 columns"):
        S.error(workload.marginals((3, 2), (1,)))
