"""The published low-rank mechanism: projection, subproblem, decomposition."""

import numpy as np
import pytest
from scipy import optimize

from dpsql import workload
from dpsql.errors import DataError
from dpsql.extensions.papers.decomposition import decompose, nesterov, project_columns


def test_projection_by_hand():
    # (2, 1) goes to (1, 0); (0.6, 0.8) loses 0.2 of each; (0.2, -0.3) stays.
    U = np.array([[2.0, 0.6, 0.2], [1.0, 0.8, -0.3]])
    assert np.allclose(project_columns(U), [[1.0, 0.4, 0.2], [0.0, 0.6, -0.3]])


def test_projection_is_the_nearest_point():
    rng = np.random.default_rng(0)
    U = 3 * rng.normal(size=(5, 30))
    P = project_columns(U)
    assert np.abs(P).sum(axis=0).max() <= 1 + 1e-12
    for _ in range(200):
        other = rng.normal(size=P.shape)
        other /= np.maximum(1.0, np.abs(other).sum(axis=0))
        # Obtuse angle at the projection: <U - P, other - P> <= 0 in every column.
        assert np.all(((U - P) * (other - P)).sum(axis=0) <= 1e-9)


def test_nesterov_minimises_the_subproblem():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    Q, P = root @ root.T + 0.1 * np.eye(4), rng.normal(size=(4, 1)) * 3
    L = nesterov(Q, P, np.zeros((4, 1)), 500)

    def value(x):
        return 0.5 * x @ Q @ x - P[:, 0] @ x

    # x = a - b with a, b >= 0 and sum(a + b) <= 1.
    found = optimize.minimize(
        lambda z: value(z[:4] - z[4:]),
        np.zeros(8),
        bounds=[(0, None)] * 8,
        constraints={"type": "ineq", "fun": lambda z: 1 - z.sum()},
        method="SLSQP",
    )
    assert value(L[:, 0]) <= found.fun + 1e-6


def test_decomposition_of_a_low_rank_workload():
    W = workload.wrelated(20, 40, 4, 0).matrix()
    found = decompose(W, gamma=1e-2)
    assert found.residual <= 1e-2
    assert found.residual == pytest.approx(np.linalg.norm(W - found.left @ found.right), abs=1e-9)
    assert np.abs(found.right).sum(axis=0).max() <= 1 + 1e-9
    assert np.sum(found.left**2) < np.sum(W**2)  # better than noise on the cells


@pytest.mark.long
def test_too_small_a_rank_is_far_worse():
    W = workload.wrelated(20, 40, 6, 0).matrix()
    assert decompose(W, rank=4, gamma=1e-2).residual > 1.0
    assert decompose(W, rank=8, gamma=1e-2).residual <= 1e-2


@pytest.mark.parametrize("make", [workload.wdiscrete, workload.wrange])
@pytest.mark.long
def test_rows_beyond_the_rank_change_little(make):
    # Section 6.1: stable from 1.2 times the rank on. Rows beyond the rank that vanish must be left alone.
    W = make(16, 32, 0)
    found = [decompose(W.matrix(), rank=int(x * W.rank), gamma=1e-2, rounds=80) for x in (1.2, 2.0, 3.5)]
    assert all(f.residual <= 1e-2 for f in found)
    errors = [float(np.sum(f.left**2)) for f in found]
    assert max(errors) <= 1.15 * min(errors)


def test_a_start_of_full_rank_is_left_alone():
    W = np.diag([3.0, 2.0, 1.0])
    found = decompose(W, gamma=1e-3, rounds=60, start=np.eye(3))
    assert found.right.shape == (3, 3)
    assert found.residual <= 1e-3
    assert np.sum(found.left**2) == pytest.approx(14.0, rel=2e-2)  # nothing is better than each cell by itself


@pytest.mark.parametrize("arguments", [{"gamma": -1.0}, {"rank": 0}, {"rounds": 0}])
def test_refusals(arguments):
    with pytest.raises(DataError, match="low-rank"):
        decompose(np.eye(3), **arguments)
    with pytest.raises(DataError, match="finite"):
        decompose([[np.inf, 1.0]])
