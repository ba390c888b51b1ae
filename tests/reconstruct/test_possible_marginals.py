"""Marginals that a table could have: the optimum of another method, and a proof that holds wherever the search ends."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from scipy import optimize

from dpsql.reconstruct.possible_marginals import PossibleMarginals

SIZES = (3, 4, 2, 3)
SETS = (*combinations(range(4), 1), *combinations(range(4), 2), (0, 1, 2))


def marginals(rows: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """The tables of SETS of rows (n x 4)."""
    found = {}
    for S in SETS:
        found[S] = np.zeros([SIZES[i] for i in S])
        np.add.at(found[S], tuple(rows[:, i] for i in S), 1.0)
    return found


def consistent(noisy: dict[tuple[int, ...], np.ndarray], weights: dict[tuple[int, ...], float]) -> PossibleMarginals:
    """The marginals that agree and are nearest to ``noisy``: one step without bounds from tables of zeros."""
    empty = PossibleMarginals({S: np.zeros(table.shape) for S, table in noisy.items()}, weights)
    moved = empty.corrections({S: weights[S] * table for S, table in noisy.items()})
    return PossibleMarginals({S: empty.table(S, moved) for S in noisy}, weights)


def world(seed: int, n: int = 40, sigma: float = 4.0) -> tuple[PossibleMarginals, dict[tuple[int, ...], np.ndarray]]:
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.choice(d, n, p=rng.dirichlet(np.full(d, 0.4))) for d in SIZES], axis=1)
    true = marginals(rows)
    weights = {S: float(rng.uniform(0.2, 3.0)) for S in SETS}
    return consistent({S: x + rng.normal(0.0, sigma, x.shape) for S, x in true.items()}, weights), true


def distance(a: dict, b: dict, weights: dict[tuple[int, ...], float]) -> float:
    return sum(weights[S] * float(((a[S] - b[S]) ** 2).sum()) for S in weights)


def test_marginals_agree_and_none_is_negative() -> None:
    problem, _ = world(1)
    tables, found = problem.solve()
    assert found.converged
    assert min(float(x.min()) for x in tables.values()) >= 0
    for S in SETS:
        for T in SETS:
            if set(T) < set(S):
                gone = tuple(at for at, axis in enumerate(S) if axis not in T)
                np.testing.assert_allclose(tables[S].sum(axis=gone), tables[T], atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_another_method(seed: int) -> None:
    """In residual coordinates, f by non-negative least squares over the multipliers."""
    problem, _ = world(seed)
    tables, found = problem.solve(accuracy=1e-9, most=20_000)
    # Consistent tables are combinations of those that single cells make.
    cells = np.array(np.unravel_index(np.arange(np.prod(SIZES)), SIZES)).T
    units = [marginals(cell[None, :]) for cell in cells]
    A = np.array([np.concatenate([sqrt(problem.weights[S]) * u[S].ravel() for S in SETS]) for u in units]).T
    b = np.concatenate([sqrt(problem.weights[S]) * problem.marginals[S].ravel() for S in SETS])
    basis, s, _ = np.linalg.svd(A, full_matrices=False)
    basis = basis[:, s > 1e-9 * s[0]]
    # Of all c with basis @ c >= 0 the nearest to c0 is c0 + basis^T l, of the l >= 0 that make it least.
    multipliers, _ = optimize.nnls(basis.T, -(basis.T @ b))
    nearest = basis @ (basis.T @ (b + multipliers))
    assert nearest.min() >= -1e-8
    least = 0.5 * float(np.sum((nearest - b) ** 2))
    assert found.value == pytest.approx(least, rel=1e-5, abs=1e-5)
    assert distance(tables, problem.marginals, problem.weights) == pytest.approx(2 * found.value, rel=1e-9)


@pytest.mark.parametrize("most", [1, 3, 10, 2000])
def test_the_proof_holds_wherever_the_search_ends(most: int) -> None:
    """For every table of rows v: ||u' - v||^2 <= ||u^ - v||^2 - 2 f(u') + 2 gap; empty and crowded ones come near."""
    tight = np.inf
    for seed in range(5):
        problem, true = world(seed)
        tables, found = problem.solve(most=most)
        rng = np.random.default_rng(seed)
        cells = [np.repeat([[int(rng.integers(d)) for d in SIZES]], n, axis=0) for n in (1, 40, 400)]
        for v in [true, marginals(np.zeros((0, 4), dtype=int)), *map(marginals, cells)]:
            before = distance(problem.marginals, v, problem.weights)
            slack = before - 2 * found.value + 2 * found.gap - distance(tables, v, problem.weights)
            assert slack >= -1e-6 * before
            tight = min(tight, slack / before)
    assert tight < (0.05 if most == 2000 else 1.0)  # the bound is no empty one


@pytest.mark.long
def test_it_pays_and_is_never_worse() -> None:
    gained = []
    for seed in range(20):
        problem, true = world(seed)
        tables, found = problem.solve()
        assert found.never_worse()
        before, after = (distance(x, true, problem.weights) for x in (problem.marginals, tables))
        assert after <= before
        gained.append(after / before)
    assert np.mean(gained) < 0.8


def test_possible_marginals_stay_as_they_are() -> None:
    rng = np.random.default_rng(3)
    true = marginals(np.stack([rng.integers(d, size=500) for d in SIZES], axis=1))
    problem = PossibleMarginals(true, dict.fromkeys(SETS, 1.0))
    tables, found = problem.solve()
    assert found.value == pytest.approx(0.0, abs=1e-18)
    for S in SETS:
        np.testing.assert_allclose(tables[S], true[S], atol=1e-9)
