"""Differences between halves of groups: orthogonal, never moved by more than 1, and as good as their weights allow."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy
from dpsql.strategies.pure.halves import differences, halves
from dpsql.workloads.families.contributions import Contributions, Part
from dpsql.workloads.families.matrix import Workload


def farthest(A: np.ndarray, most: int) -> float:
    """The largest L1 norm that a set of columns adds up to."""
    sets = [one for size in range(1, most + 1) for one in combinations(range(A.shape[1]), size)]
    return max(float(abs(A[:, list(one)].sum(axis=1)).sum()) for one in sets)


@pytest.mark.parametrize("groups", [1, 2, 5, 13, 16, 50])
def test_differences_are_orthogonal(groups: int) -> None:
    rows = differences(groups)
    products = rows @ rows.T
    assert np.abs(products - np.diag(np.diag(products))).max() < 1e-12
    assert (rows[0] == 1).all()


@pytest.mark.parametrize(("groups", "most"), [(2, 2), (5, 5), (7, 4), (8, 8), (10, 10)])
@pytest.mark.parametrize("alike", [True, False])
def test_no_set_of_groups_moves_more_than_one(groups: int, most: int, alike: bool) -> None:
    rng = np.random.default_rng(groups)
    root = np.eye(groups) if alike else rng.normal(size=(groups, groups))
    gram = root.T @ root
    found = halves(gram, most, 1e-3, np.inf)
    assert found is not None
    A, error = found
    assert farthest(A, most) == pytest.approx(1.0)
    assert error == pytest.approx(float(np.trace(gram @ np.linalg.inv(A.T @ A))))
    # No weights of the same rows are better.
    unit = A / np.linalg.norm(A, axis=1)[:, None]
    _, kind = np.unique(np.abs(unit).max(axis=1).round(9) if alike else np.arange(groups), return_inverse=True)
    for spread in (0.01, 0.1, 1.0) * 7:
        weights = np.linalg.norm(A, axis=1) * np.exp(spread * rng.normal(size=groups))[kind]
        other = unit * weights[:, None]
        other = other / farthest(other, most)
        assert float(np.trace(gram @ np.linalg.inv(other.T @ other))) >= error * (1 - 2e-3)


@pytest.mark.parametrize(("groups", "most"), [(3, 3), (22, 10), (40, 4), (66, 10), (7, 9)])
def test_no_search_where_single_groups_are_proven_to_be_better(groups: int, most: int) -> None:
    """The bound lies below what is found, also where no unit can be in so many groups."""
    found = halves(np.eye(groups), most, 1e-3, np.inf)
    assert found is not None
    again = halves(np.eye(groups), most, 1e-3, np.inf, found[1])
    assert again is not None
    assert again[1] == found[1]
    single = groups * float(most) ** 2
    assert (halves(np.eye(groups), most, 1e-3, np.inf, single) is None) == (groups in (40, 66))
    assert groups not in (40, 66) or found[1] > single


def test_two_groups_by_sum_and_difference() -> None:
    found = halves(np.eye(2), 2, 1e-6, np.inf)
    assert found is not None
    A, error = found
    assert error == pytest.approx(4.0)
    assert abs(A) == pytest.approx(np.full((2, 2), 0.5))


@pytest.mark.parametrize(("groups", "most", "share"), [(13, 13, 0.28), (50, 50, 0.212), (50, 35, 0.43), (50, 10, 1.0)])
def test_long_lists_of_groups_cost_less_than_so_many_times_one(groups: int, most: int, share: float) -> None:
    eye = sparse.csc_array(sparse.eye_array(groups, dtype=np.int64))
    units = Contributions(((Part(eye, 1, most),),), groups)
    W = Workload.from_rows(eye.toarray(), np.ones(groups), contributions=units.columns, units=units)
    found = strategy.select(W, "laplace")
    assert found.expected <= 1.001 * share * most**2 * groups
    rows = found.matrix()
    rng = np.random.default_rng(1)
    for size in rng.integers(1, most + 1, size=200):
        moved = rows[:, rng.choice(groups, size, replace=False)].sum(axis=1)
        assert abs(moved).sum() <= found.l1
