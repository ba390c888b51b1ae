"""Bounds with constants for pure epsilon: below what is reached, exact where the least is known."""

from __future__ import annotations

import itertools
from math import gamma, pi

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from dpsql import bounds, strategy, workload
from dpsql.bounds.additive import volume_bounds

FILTERS = workload.from_matrix(np.array(list(itertools.product((0, 1), repeat=4))).T)
WORKLOADS = [
    workload.identity(6),
    workload.total(5),
    workload.prefix(8),
    workload.all_range(8),
    workload.random_ranges(6, 20, 1),
    workload.wrelated(8, 20, 4, 2),
    FILTERS,
]


@pytest.mark.parametrize("W", WORKLOADS)
def test_no_strategy_is_below(W: workload.Workload) -> None:
    laplace, pure = (strategy.select(W, noise=noise) for noise in ("laplace", "pure"))
    assert bounds.laplace_bound(W) <= laplace.expected * (1 + 1e-9)
    assert bounds.pure_bound(W) <= pure.expected * (1 + 1e-9)
    assert bounds.laplace_bound(W) >= bounds.svd_bound(W) * (1 - 1e-2)


def test_the_identity_and_a_total_are_exact() -> None:
    """Laplace noise is the least for one number, and for every cell by itself."""
    for W, least in ((workload.identity(7), 7.0), (workload.total(5), 1.0)):
        assert bounds.pure_bound(W) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("W", [workload.prefix(4), workload.random_ranges(3, 9, 1), workload.wrelated(6, 12, 3, 2)])
def test_volumes_are_below_the_true_ones(W: workload.Workload) -> None:
    s, V = np.linalg.eigh(W.gram())
    keep = s > 1e-9 * s[-1]
    U = np.sqrt(s[keep])[:, None] * V[:, keep].T
    m = U.shape[0]
    radius = (ConvexHull(np.vstack([U.T, -U.T])).volume / (pi ** (m / 2) / gamma(m / 2 + 1))) ** (1 / m)
    whole = m * (m + 1) / 2 * radius**2
    assert 0.5 * whole < volume_bounds(W)[1] <= whole


def test_marginals_have_theirs_in_closed_form() -> None:
    W = workload.marginals([2] * 40, 2)
    assert bounds.laplace_bound(W) == bounds.svd_bound(W)
    assert bounds.pure_bound(W) == bounds.svd_bound(W) / 2


def test_contributions_count() -> None:
    """A record that moves two cells at once: twice the error of one, and the bounds follow."""
    rows = np.eye(3, dtype=np.int64)
    W = workload.Workload.from_rows(rows, np.ones(3), contributions=2 * rows)
    assert bounds.pure_bound(W) == pytest.approx(12.0, rel=1e-6)
