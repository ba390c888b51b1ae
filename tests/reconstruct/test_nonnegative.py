"""Least squares over the possible data: against scipy, by the conditions of optimality, and by invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from dpsql.reconstruct import nonnegative
from dpsql.reconstruct.nonnegative import Problem, whole_numbers


def drawn(p: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of overlapping sets of cells, half of which are empty, and noise that they cannot explain."""
    rng = np.random.default_rng(seed)
    A = (rng.random((p, n)) < 0.4).astype(float)
    A[0] = 1.0
    return A, A @ np.maximum(rng.normal(size=n), 0) * 5 + 3 * rng.normal(size=p)


@pytest.mark.parametrize("active", [2000, 0], ids=["active sets first", "quasi-Newton"])
@pytest.mark.parametrize(("p", "n"), [(30, 20), (60, 45), (20, 40)])
def test_agrees_with_scipy(monkeypatch: pytest.MonkeyPatch, p: int, n: int, active: int) -> None:
    monkeypatch.setattr(nonnegative, "_ACTIVE", active)
    A, b = drawn(p, n, 7)
    found = Problem(A, b).solve()
    assert found.converged
    assert found.never_worse(1e-6)
    assert (found.w >= 0).all()
    assert A @ found.w == pytest.approx(A @ optimize.nnls(A, b)[0], abs=1e-3)
    assert (A.T @ (A @ found.w - b)).min() >= -1e-9


@pytest.mark.long
def test_the_certificate_holds_after_any_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is within the gap of the least, and where it says so no table is farther from A w than from b."""
    monkeypatch.setattr(nonnegative, "_ACTIVE", 0)
    monkeypatch.setattr(nonnegative, "_POLISH", 0)
    said = 0
    for seed in range(20):
        A, b = drawn(60, 40, seed)
        least = 0.5 * float(((A @ optimize.nnls(A, b)[0] - b) ** 2).sum())
        for steps in (0, 1, 3, 10, 40):
            held = Problem(A, b).solve(most=steps)
            assert held.value == pytest.approx(0.5 * float(((A @ held.w - b) ** 2).sum()))
            assert held.value - least <= held.gap + 1e-9
            said += held.never_worse()
            tables = np.random.default_rng(seed).exponential(size=(50, 40)) * np.logspace(-3, 3, 50)[:, None]
            for v in tables:
                before, after = (float(((A @ v - at) ** 2).sum()) for at in (b, A @ held.w))
                assert not held.never_worse() or after <= before * (1 + 1e-9)
    assert 20 <= said < 100  # few steps prove nothing


def test_without_a_direction_that_lifts_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that falls with some rows: where slopes cannot be lifted together the gap is infinite."""
    monkeypatch.setattr(nonnegative, "_ACTIVE", 0)
    held = Problem(np.array([[1.0, -4.0]]), np.array([3.0])).solve(most=0)
    assert held.gap == np.inf
    assert not held.never_worse()


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
