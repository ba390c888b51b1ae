"""Strategies for targets: against the dual by brute force, closed forms, and what other strategies need."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from dpsql.strategies.targets import Limits, strategies_for
from dpsql.strategy import select
from dpsql.workloads.families.matrix import Workload


@pytest.fixture
def rng():
    return np.random.default_rng(23)


def needed(strategy, rows, targets):
    """max_i p_i / c_i: the mu squared, or epsilon squared over 2, at which every query has its target."""
    plain = Workload.from_rows(rows, np.ones(len(rows)))
    return float((strategy.variances(plain) / targets**2).max())


def scaled(rows, targets):
    return Workload.from_rows(rows, 1.0 / targets)


def dual(rows, targets, lam, w):
    """(nuclear norm)^2 of D_w^1/2 diag(1 / c) W Lambda^1/2: a bound on what any Gaussian strategy needs."""
    return np.linalg.norm(np.sqrt(w)[:, None] * (rows / targets[:, None]) * np.sqrt(lam), "nuc") ** 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.few(every=2)
def test_the_least_is_the_dual_of_weights_by_brute_force(seed):
    source = np.random.default_rng(seed)
    rows = source.integers(0, 2, size=(5, 4))
    rows[0] = 1
    rows[:, 0] |= ~rows.any(axis=1)
    targets = source.uniform(1, 10, size=5)

    def loss(logs):
        w, lam = np.exp(logs[:5]), np.exp(logs[5:])
        return -dual(rows, targets, lam / lam.sum(), w / w.sum())

    best = min(
        (optimize.minimize(loss, source.normal(size=9), method="L-BFGS-B") for _ in range(6)), key=lambda f: f.fun
    )
    (found,) = strategies_for(scaled(rows, targets), "gaussian")
    assert needed(found, rows, targets) == pytest.approx(-best.fun, rel=2.5e-2)
    assert found.lower_bound <= -best.fun * (1 + 1e-4)
    assert found.gap is None


def test_disjoint_counts_need_what_the_hardest_needs():
    rows, targets = np.eye(4, dtype=np.int64), np.array([1.0, 2.0, 5.0, 10.0])
    (found,) = strategies_for(scaled(rows, targets), "gaussian")
    assert needed(found, rows, targets) == pytest.approx(1.0, rel=1e-3)


def test_a_total_and_its_parts_by_hand():
    """Total to 1, two parts to c: the parts alone give 2 p for the total; the least is between 1 and 2."""
    rows = np.array([[1, 1], [1, 0], [0, 1]])
    loose = strategies_for(scaled(rows, np.array([1.0, 100.0, 100.0])), "gaussian")[0]
    assert needed(loose, rows, np.array([1.0, 100.0, 100.0])) == pytest.approx(1.0, rel=0.03)
    tight = strategies_for(scaled(rows, np.array([10.0, 1.0, 1.0])), "gaussian")[0]
    assert needed(tight, rows, np.array([10.0, 1.0, 1.0])) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.few(every=2)
def test_it_needs_no_more_than_the_strategies_of_other_objectives(noise, rng):
    rows = (rng.random((12, 8) if noise == "gaussian" else (4, 3)) < 0.5).astype(np.int64)
    rows[0] = 1
    rows = rows[rows.any(axis=1)]
    targets = rng.uniform(1, 20, size=len(rows))
    found = min(needed(s, rows, targets) for s in strategies_for(scaled(rows, targets), noise))
    for objective in ("total", "max"):
        other = select(Workload.from_rows(rows, np.ones(len(rows))), noise, objective=objective)
        assert found <= needed(other, rows, targets) * (1 + 1e-3)


def test_equal_targets_are_the_largest_error():
    rows = np.tril(np.ones((12, 12), dtype=np.int64))
    (found,) = strategies_for(scaled(rows, np.full(12, 3.0)), "gaussian")
    plain = select(Workload.from_rows(rows, np.ones(12)), objective="max")
    assert needed(found, rows, np.full(12, 3.0)) * 9 == pytest.approx(plain.value, rel=2e-3)


def test_a_deadline_leaves_a_strategy():
    rows = np.tril(np.ones((12, 12), dtype=np.int64))
    found = strategies_for(scaled(rows, np.full(12, 3.0)), "laplace", Limits(time_limit=1e-6))
    assert np.isfinite(needed(found[0], rows, np.full(12, 3.0)))
