"""Axes by classes of alike regions: the same optimum as over all regions, and honest integers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg.inner import Dense
from dpsql.strategies.core import certificate
from dpsql.strategies.core.reduce import cholesky, reduce_workload
from dpsql.strategies.gaussian import optimal
from dpsql.strategies.gaussian.exchangeable import classes_of, solve_classes
from dpsql.strategies.gaussian.optimal import solve
from dpsql.strategies.kronecker import residual_matrices
from dpsql.strategies.pure import exchangeable_sums, p_identity
from dpsql.workloads.families.matrix import Workload


def _gram(rng: np.random.Generator, sizes: list[int]) -> np.ndarray:
    """Groups by region, and a few rows constant on classes: centred, regions in a random order."""
    label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    alone = np.diag(rng.uniform(0.5, 2.0, len(sizes))[label])
    rows = np.vstack([alone, 2.0 * rng.integers(0, 2, (3, len(sizes)))[:, label]])
    rows = rows - rows.mean(axis=1, keepdims=True)
    return rows.T @ rows


@pytest.mark.parametrize("sizes", [[12, 9], [5, 20, 8], [1, 15, 14], [30]])
def test_the_optimum_of_the_classes_is_that_of_all_regions(sizes):
    gram = _gram(np.random.default_rng(sum(sizes)), sizes)
    gram = (gram + gram.T) / 2
    held = classes_of(gram)
    assert held is not None
    assert len(held.sizes) <= len(sizes)
    found = solve_classes(held, 1e-5, np.inf)
    X, lower, upper = found.metric, found.lower, found.upper
    d = len(gram)
    assert np.allclose(X @ np.ones(d), 0.0, atol=1e-9)
    assert np.diag(X).max() == pytest.approx(1.0)
    assert float(np.trace(gram @ np.linalg.pinv(X, rcond=1e-11))) <= upper * (1 + 1e-9)
    assert lower * (1 - 1e-9) <= upper <= lower * (1 + 1e-5)
    rows = np.hstack([np.eye(d - 1, dtype=np.int64), -np.ones((d - 1, 1), dtype=np.int64)])
    (block,) = reduce_workload(Workload(sparse.csr_array(rows), Dense(cholesky(gram[:-1, :-1]))))
    whole = solve(block, 1e-5, np.inf)
    assert lower <= whole.upper * (1 + 1e-9)
    assert whole.lower <= upper * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [[12, 9], [5, 20, 8], [1, 15, 14]])
def test_sums_of_classes_cost_what_they_cost_over_all_regions(sizes):
    rng = np.random.default_rng(sum(sizes))
    gram = _gram(rng, sizes)
    held = classes_of(gram)
    assert held is not None
    few, whole = exchangeable_sums.over_classes(held), p_identity.Objective(gram, None)
    k, d = held.sizes.size, len(gram)
    theta = rng.uniform(0.1, 1.0, (3, k))
    value, gradient = few(theta.ravel())
    wide, each = whole(theta[:, held.label].ravel())
    assert value == pytest.approx(wide, rel=1e-9)
    # A step of one class moves all its regions.
    assert np.allclose(gradient.reshape(3, k), each.reshape(3, d) @ np.eye(k)[held.label], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("sizes", [[40, 30], [25, 50, 25], [1, 60, 39]])
def test_sums_of_classes_are_no_worse_than_the_search_over_all_regions(sizes):
    gram = _gram(np.random.default_rng(sum(sizes)), sizes)
    held = classes_of(gram)
    assert held is not None
    A = exchangeable_sums.sums_of_classes(held)
    assert np.allclose(np.abs(A).sum(axis=0), 1.0)
    assert (A >= 0).all()
    error = float(np.trace(gram @ np.linalg.pinv(A.T @ A)))
    found, _ = p_identity.search(p_identity.Objective(gram, None), gram, np.inf, 1e9)
    assert error <= found * 1.001
    assert error <= float(np.trace(gram)) * (1 + 1e-9)


def test_the_matrix_of_an_axis_of_few_classes_is_searched_by_them(monkeypatch):
    searched = []
    whole = residual_matrices.searched
    monkeypatch.setattr(
        residual_matrices, "searched", lambda *args, **options: searched.append(1) or whole(*args, **options)
    )
    for sizes, searches in (([50, 40], 0), ([20, 12], 1)):
        halves = 3.0 * np.repeat(np.eye(2), sizes, axis=1)
        gram = np.vstack([np.eye(sum(sizes)), halves])
        gram = gram - gram.mean(axis=1, keepdims=True)
        gram = gram.T @ gram
        chooser = residual_matrices.ResidualMatrices(None, "laplace", 1e-3, None)  # type: ignore[arg-type]
        searched.clear()
        part = chooser._solve(gram, len(gram))
        assert len(searched) == searches
        B = part.times(np.eye(len(gram), dtype=np.int64), 0).astype(np.float64)
        error = np.abs(B).sum(axis=0).max() ** 2 * float(np.trace(gram @ np.linalg.pinv(B.T @ B)))
        assert error < float(np.trace(gram))


def test_a_batch_of_alike_cells_is_planned_by_its_classes(monkeypatch):
    rng = np.random.default_rng(3)
    edges = np.sort(rng.integers(0, 60, (20, 2)), axis=1)
    edges[0] = 0, 59
    ranges = ((edges[:, :1] <= np.arange(60)) & (np.arange(60) <= edges[:, 1:])).astype(np.int64)
    scales = np.concatenate([np.full(300, 0.5), rng.uniform(0.5, 2.0, 20)])
    W = Workload.from_rows(np.vstack([np.eye(300, dtype=np.int64), np.repeat(ranges, 5, axis=1)]), scales)
    (block,) = reduce_workload(W)
    found = solve(block, 1e-4, np.inf)
    monkeypatch.setattr(optimal, "classes_of", lambda *_: None)
    whole = solve(block, 1e-4, np.inf)
    assert found.iterations != whole.iterations or not np.array_equal(found.weights, whole.weights)
    assert found.gap <= 1e-4
    assert found.lower <= whole.upper * (1 + 1e-9)
    assert whole.lower <= found.upper * (1 + 1e-9)
    assert certificate.nuclear_norm(block.gram, block.columns, found.weights) ** 2 == pytest.approx(found.lower)
    Y = block.columns.toarray().astype(np.float64)
    assert np.diag(Y.T @ found.metric @ Y).max() == pytest.approx(1.0)
    assert float(np.trace(block.gram @ np.linalg.inv(found.metric))) <= found.upper * (1 + 1e-9)


def test_regions_that_differ_are_no_classes():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(20, 20))
    rows -= rows.mean(axis=1, keepdims=True)
    assert classes_of(rows.T @ rows) is None


def test_entries_that_only_look_alike_are_told_apart():
    cycle = np.roll(np.eye(12), 1, axis=1)
    gram = 2 * np.eye(12) - cycle - cycle.T  # every row has the same entries, but not in the same classes
    assert classes_of(gram) is None


def test_a_search_that_does_not_fit_what_is_left_is_not_begun(monkeypatch):
    chooser = residual_matrices.ResidualMatrices(None, "gaussian", 1e-3, 100.0)  # type: ignore[arg-type]
    monkeypatch.setattr(residual_matrices, "monotonic", lambda: 99.0)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(900, 900))
    assert not chooser._in_time(rows.T @ rows, 900)
    assert chooser._in_time(rows[:, :60].T @ rows[:, :60], 60)
    alike = np.eye(900) - 1.0 / 900
    alike += np.outer(alike[:, :400].sum(axis=1), alike[:, :400].sum(axis=1))
    assert chooser._in_time(alike, 900)
