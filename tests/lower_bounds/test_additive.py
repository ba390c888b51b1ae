"""Bounds with constants for pure epsilon: below what is reached, exact where the least is known."""

from __future__ import annotations

import itertools
from math import gamma, pi

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.stats import norm

from dpsql import bounds, strategy, workload
from dpsql.errors import DataError
from dpsql.lower_bounds.additive import volume_bounds

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
@pytest.mark.few("W0", "W1", "W3", "W5")
def test_no_strategy_is_below(W: workload.Workload) -> None:
    laplace, pure = (strategy.select(W, noise=noise) for noise in ("laplace", "pure"))
    assert bounds.laplace_bound(W) <= laplace.expected * (1 + 1e-9)
    assert bounds.pure_bound(W) <= pure.expected * (1 + 1e-9)
    assert bounds.laplace_bound(W) >= bounds.svd_bound(W) * (1 - 1e-2)


@pytest.mark.parametrize("W", [workload.identity(6), FILTERS, workload.wrelated(4, 8, 2, 1)])
@pytest.mark.few("W0")
def test_no_largest_error_is_below(W: workload.Workload) -> None:
    """Under "max" the least largest error of Gaussian noise bounds that of Laplace noise, and half of it any."""
    pure = strategy.select(W, noise="pure", objective="max")
    assert bounds.pure_bound(W, "max") <= pure.largest(W) * (1 + 1e-9)
    laplace = strategy.select(W, noise="laplace", objective="max")
    least = bounds.laplace_bound(W, "max")
    assert 0 < least <= laplace.largest(W) * (1 + 1e-9)
    assert least >= bounds.laplace_bound(W) / W.shape[0] * (1 - 1e-2)  # the largest is no less than the mean


def test_marginals_have_bounds_of_the_largest() -> None:
    W = workload.marginals([2] * 40, 2)
    assert 0 < bounds.laplace_bound(W, "max") <= strategy.select(W).largest(W)
    with pytest.raises(DataError, match="objective 'mean' is not known"):
        bounds.laplace_bound(W, "mean")


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


def test_no_law_in_an_account_is_below() -> None:
    """Random laws on the integers cost the mu of their best test; none has less variance than its bound."""
    rng = np.random.default_rng(7)
    one = workload.total(1)
    nearest = np.inf
    sides = np.arange(-40, 40) + 0.5
    for trial in range(200):
        falls = sides / rng.uniform(1.5, 6) ** 2 if trial % 2 else np.sign(sides) * rng.uniform(0.2, 3)
        steps = rng.uniform(-1, 1, 80) * rng.choice([0.0, 0.05, 0.5, 2.0]) - falls
        logs = np.concatenate([[0.0], np.cumsum(steps)])
        p = np.exp(logs - logs.max())
        p /= p.sum()
        at = np.arange(p.size)
        variance = float(p @ at**2 - (p @ at) ** 2)
        moved = np.concatenate([[0.0], p, [0.0]])
        here, there = moved[1:], moved[:-1]  # the law, and where a record adds 1
        inside = (here > 1e-13) & (there > 1e-13)
        order = np.argsort(-there[inside] / here[inside])
        powers = np.clip(np.cumsum(there[inside][order]), 1e-12, 1 - 1e-12)
        sizes = np.clip(np.cumsum(here[inside][order]), 1e-12, 1 - 1e-12)
        mu = float((norm.ppf(powers) - norm.ppf(sizes)).max())
        share = variance / bounds.account_bound(one, mu)
        nearest = min(nearest, share)
        assert share >= 1 - 1e-9
    assert nearest < 1.1  # so that a bound of a little more would have failed


def test_gaussian_noise_is_as_near_as_the_bound_says() -> None:
    W = workload.prefix(8)
    for mu, share in ((0.182, 0.9835), (0.672, 0.7911)):
        least = strategy.select(W).expected / mu**2
        assert bounds.account_bound(W, mu) == pytest.approx(share * least, rel=5e-3)
