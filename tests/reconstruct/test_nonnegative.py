"""Least squares over the possible data: against scipy, by the conditions of optimality, and by invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse

from dpsql.reconstruct import nonnegative
from dpsql.reconstruct.nonnegative import Problem, onto_simplex, whole_numbers

RNG = np.random.default_rng(7)


def problem(A: np.ndarray, b: np.ndarray, group: np.ndarray, totals: list[float]) -> Problem:
    return Problem(A, sparse.eye_array(A.shape[1], format="csr"), b, group, np.array(totals))


def drawn(p: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    A = RNG.normal(size=(p, n))
    return A, A @ np.maximum(RNG.normal(size=n), 0) * 5 + RNG.normal(size=p)


def kkt(A: np.ndarray, b: np.ndarray, w: np.ndarray, group: np.ndarray) -> float:
    """How far w is from optimal: slopes are equal on the positive entries of a group and no smaller elsewhere."""
    g = A.T @ (A @ w - b)
    worst = 0.0
    for t in np.unique(group):
        mine = group == t
        level = g[mine].min() if t >= 0 else min(0.0, g[mine].min())
        worst = max(worst, float(abs((g[mine] - (level if t >= 0 else 0.0)) @ w[mine])), float(-level if t < 0 else 0))
    return worst


@pytest.mark.parametrize("active", [2000, 0], ids=["active sets first", "gradients"])
@pytest.mark.parametrize(("p", "n"), [(30, 20), (60, 45), (20, 40)])
def test_agrees_with_scipy(monkeypatch: pytest.MonkeyPatch, p: int, n: int, active: int) -> None:
    monkeypatch.setattr(nonnegative, "_ACTIVE", active)
    A, b = drawn(p, n)
    found = problem(A, b, np.full(n, -1), []).solve()
    assert found.converged
    assert found.gap < 1e-5
    assert (found.w >= 0).all()
    assert A @ found.w == pytest.approx(A @ optimize.nnls(A, b)[0], abs=1e-4)
    assert kkt(A, b, found.w, np.full(n, -1)) < 1e-3


@pytest.mark.parametrize("active", [2000, 0], ids=["active sets first", "gradients"])
def test_a_given_sum_is_kept_and_optimal(monkeypatch: pytest.MonkeyPatch, active: int) -> None:
    monkeypatch.setattr(nonnegative, "_ACTIVE", active)
    A, b = drawn(30, 15)
    found = problem(A, b, np.zeros(15, dtype=int), [40.0]).solve()
    held = optimize.minimize(
        lambda w: 0.5 * float(((A @ w - b) ** 2).sum()),
        np.full(15, 40 / 15),
        jac=lambda w: A.T @ (A @ w - b),
        bounds=[(0, None)] * 15,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 40, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.w.sum() == pytest.approx(40, rel=1e-12)
    assert 0.5 * float(((A @ found.w - b) ** 2).sum()) <= held.fun + 1e-5
    assert kkt(A, b, found.w, np.zeros(15)) < 1e-3


def test_several_groups_and_entries_in_none() -> None:
    A, b = drawn(40, 30)
    group = np.array([0] * 10 + [1] * 10 + [-1] * 10)
    found = problem(A, b, group, [12.0, 3.0]).solve()
    assert found.w[:10].sum() == pytest.approx(12)
    assert found.w[10:20].sum() == pytest.approx(3)
    assert found.converged
    assert kkt(A, b, found.w, group) < 1e-2


def test_the_gap_bounds_how_far_the_value_is_off() -> None:
    """After few steps the certificate must still hold."""
    A, b = drawn(60, 40)
    least = 0.5 * float(((A @ optimize.nnls(A, b)[0] - b) ** 2).sum())
    for steps in (1, 3, 10, 40):
        held = problem(A, b, np.full(40, -1), []).solve(most=steps, start=np.zeros(40))
        assert 0.5 * float(((A @ held.w - b) ** 2).sum()) - least <= held.gap + 1e-9


def test_a_group_whose_sum_is_zero_is_empty() -> None:
    A, b = drawn(10, 5)
    assert not problem(A, b, np.zeros(5, dtype=int), [0.0]).solve().w.any()


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0, 500))
@settings(max_examples=100, deadline=None)
def test_projection_onto_a_simplex(values: list[float], total: float) -> None:
    v = np.array(values)
    w = onto_simplex(v, total)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(total, abs=1e-9 * (1 + total))
    # What stays positive is lowered by one amount, what is 0 would have been lowered below it.
    kept = w > 1e-9
    if kept.any():
        shift = (v - w)[kept]
        assert np.ptp(shift) < 1e-6 * (1 + total)
        assert (v[~kept] <= shift.max() + 1e-6 * (1 + total)).all()


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_whole_numbers_keep_every_run(values: list[float]) -> None:
    x = np.array(values)
    rounded = whole_numbers(x)
    assert (rounded >= 0).all()
    assert np.array_equal(rounded, np.rint(rounded))
    off = np.cumsum(rounded - x)
    assert np.abs(off).max() <= 0.5 + 1e-6
    assert np.ptp(np.append(off, 0.0)) <= 1 + 1e-6
