"""L1 norms of nested rows over sets of columns, against every set."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from dpsql.workloads.compile import nested
from dpsql.workloads.compile.nested import largest_sums
from dpsql.workloads.compile.sensitivity import sensitivity_over
from dpsql.workloads.families import contributions
from dpsql.workloads.families.contributions import Contributions, Part


def every(rows: np.ndarray, most: int) -> list[int]:
    """The largest L1 norm over sets of exactly 0, 1, ..., ``most`` columns."""
    held = rows.astype(object)
    sets = [combinations(range(rows.shape[1]), size) for size in range(min(most, rows.shape[1]) + 1)]
    return [max(int(abs(held[:, list(one)].sum(axis=1)).sum()) for one in chosen) for chosen in sets]


def nested_rows(rng: np.random.Generator, groups: int) -> np.ndarray:
    """Rows that bind up to three bundles at a time, one or two each time, with entries of all sizes up to 10^16."""
    rows, bundles = [], [[i] for i in range(groups)]
    while True:
        picked = rng.choice(len(bundles), int(rng.integers(1, min(4, len(bundles)) + 1)), replace=False)
        for _ in range(int(rng.integers(1, 3))):
            row = np.zeros(groups, dtype=np.int64)
            for bundle in picked:
                row[bundles[bundle]] = rng.choice([-3, -2, -1, 1, 2, 3, 10 ** int(rng.integers(0, 17))])
            rows.append(row)
        joined = [i for bundle in picked for i in bundles[bundle]]
        bundles = [*(held for i, held in enumerate(bundles) if i not in picked), joined]
        if rng.random() < 0.15 or len(bundles) == 1:
            return np.array(rows)[rng.permutation(len(rows))]


def hold(rows: np.ndarray, most: int) -> bool:
    """Whether they are nested; then every size has the largest norm, which the set named attains."""
    found, wanted = largest_sums(rows, most), every(rows, most)
    if found is None:
        return False
    assert [int(value) for value in found.best] == wanted, (rows, most)
    for size, value in enumerate(wanted):
        inside = list(found.attaining(size))
        assert len(set(inside)) == len(inside) == size
        assert int(abs(rows[:, inside].astype(object).sum(axis=1)).sum()) == value
    return True


def sweep(count: int, seed: int) -> tuple[int, int]:
    """How many of nested and of any rows were taken."""
    rng, taken = np.random.default_rng(seed), [0, 0]
    for _ in range(count):
        rows = nested_rows(rng, groups := int(rng.integers(1, 8)))
        taken[0] += hold(rows, int(rng.integers(1, groups + 1)))
        rows = rng.integers(-2, 3, size=(int(rng.integers(1, 4)), groups := int(rng.integers(1, 6))))
        taken[1] += hold(rows, int(rng.integers(1, groups + 1)))
    return taken[0], taken[1]


def test_no_set_moves_more_and_one_as_much() -> None:
    taken, any_rows = sweep(60, 1)
    assert taken >= 55
    assert any_rows >= 20


@pytest.mark.long
def test_of_three_thousand_rows() -> None:
    assert sweep(3_000, 2)[0] >= 2_850


def test_by_hand() -> None:
    # Sum and difference of two: neither alone, nor both, moves more than 2.
    held = largest_sums(np.array([[1, 1], [1, -1]]), 2)
    assert held is not None
    assert held.best.tolist() == [0, 2, 2]
    # 2^61 and more: Python integers.
    held = largest_sums(np.array([[2**61, 2**61], [2**61, -(2**61)]]), 2)
    assert held is not None
    assert held.best.tolist() == [0, 2**62, 2**62]
    assert largest_sums(np.array([[1, 1, 0], [0, 1, 1]]), 2) is None
    # A bundle is read as a whole, by whatever rows bound it.
    assert largest_sums(np.array([[1, 2, 0], [5, 5, 3]]), 2) is not None
    assert largest_sums(np.array([[1, 1, 0], [1, 2, 3]]), 2) is None


@pytest.mark.parametrize(("most", "rows_each"), [(8, 1), (8, 3), (3, 2)])
def test_a_unit_in_many_groups_costs_what_it_moves(most: int, rows_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of 8 groups, and of these, and pairs: at r rows in up to l groups, exactly r times the worst set."""
    monkeypatch.setattr(contributions, "MOST_LISTED", 0)
    pairs = np.kron(np.eye(4, dtype=np.int64), np.array([[1, -1]]))
    B = np.concatenate([np.ones((1, 8), dtype=np.int64), [[2] * 4 + [-2] * 4], pairs])
    part = Part(sparse.csc_array(sparse.eye_array(8, dtype=np.int64)), rows_each, most)
    units = Contributions(((part,),), 8)
    assert not units.listable
    claimed = sensitivity_over("laplace", np.eye(6, dtype=np.int64), sparse.csr_array(B), units)
    assert claimed == rows_each * max(every(B, most))
    assert claimed < rows_each * most * 4 or most == 3


def test_a_set_one_too_small_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nested._convolved
    monkeypatch.setattr(nested, "_convolved", lambda one, other, most: real(one, other, max(1, most - 1)))
    with pytest.raises(AssertionError):
        sweep(20, 3)
