"""What one unit moves counts of units and the rows by the same groups, grouping by grouping, against all it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from test_kinds import CASES, all_of, patterns

from dpsql.errors import InternalError
from dpsql.workloads.compile import unlisted_tied
from dpsql.workloads.compile.unlisted_tied import norm_by_grouping
from dpsql.workloads.families.contributions import Tied, tied_to
from dpsql.workloads.families.patterns import Patterns

BOTH = [case for case in CASES if case[1] is not None and len(case) == 5]  # no classes


def measured(given: Patterns, draw: np.random.Generator) -> tuple[np.ndarray, sparse.csr_array]:
    """Random measurements of each count of units with the rows by its groups, and of rows alone."""
    basis, blocks = [], []
    rows = np.asarray(given.rows)
    for cells in given.cells:
        groups, start = np.unique(cells[cells >= 0]), len(basis)
        for group in groups.tolist():
            both = np.zeros((2, given.size), dtype=np.int64)
            counted = rows[(cells == group) & (rows >= 0)]
            both[0, counted] = 1
            both[1, group] = 1
            basis += list(both)
        block = draw.integers(-3, 4, size=(len(basis) - start,) * 2)
        if draw.integers(2):  # each group by itself
            block *= np.kron(np.eye(groups.size, dtype=np.int64), np.ones((2, 2), dtype=np.int64))
        blocks.append(block)
    if draw.integers(2):
        alone = np.zeros((1, given.size), dtype=np.int64)
        alone[0, rows[rows >= 0]] = draw.integers(-2, 3)
        basis += list(alone)
        blocks.append(draw.integers(-3, 4, size=(1, 1)))
    size = len(basis)
    mixing, at = np.zeros((size, size), dtype=np.int64), 0
    for block in blocks:
        mixing[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return mixing, sparse.csr_array(np.array(basis))


def shortfall(case: tuple, seed: int, times: int, *, nobody: bool = True) -> tuple[int, int]:  # type: ignore[type-arg]
    """How often the bound is below the longest vector, and how often it is reached."""
    given, draw = replace(patterns(*case), nobody=nobody), np.random.default_rng(seed)
    moved = given.columns @ all_of(given).T
    below = reached = 0
    for _ in range(times):
        mixing, basis = measured(given, draw)
        bound = norm_by_grouping(mixing, basis, given)
        true = int(((mixing @ (basis @ moved)) ** 2).sum(axis=0).max())
        assert bound is not None
        below += bound < true
        reached += bound == true
    return below, reached


@pytest.mark.parametrize("case", BOTH)
@pytest.mark.parametrize("nobody", [True, False])
@pytest.mark.few(every=3)
def test_the_bound_is_never_below(case: tuple, nobody: bool) -> None:  # type: ignore[type-arg]
    assert shortfall(case, 3, 30, nobody=nobody)[0] == 0


def test_the_bound_is_often_reached() -> None:
    assert sum(shortfall(case, 3, 20)[1] for case in BOTH) > 25


@pytest.mark.parametrize("bits", [29, 30, 31, 33])
def test_products_that_no_word_holds(bits: int) -> None:
    """Squared norms from 2^58 to beyond 2^70: the bound is in whole numbers of any size."""
    draw = np.random.default_rng(bits)
    for case in BOTH:
        given = patterns(*case)
        mixing, basis = measured(given, draw)
        large = mixing * 2**bits + draw.integers(-(2**20), 2**20, size=mixing.shape) * (mixing != 0)
        moved = large.astype(object) @ (basis @ (given.columns @ all_of(given).T)).astype(object)
        bound = norm_by_grouping(large, basis, given)
        assert bound is not None
        assert bound >= max((moved**2).sum(axis=0))


def test_two_corners_of_three_groups_beyond_a_word() -> None:
    groups, most, entry = 3, 4, 934_746_549
    eye = sparse.eye_array(2 * groups, dtype=np.int64, format="csc")
    more = eye[:, :groups]
    tied = Tied(sparse.csc_array(more + eye[:, groups:]), more, np.arange(groups), most)
    mixing = np.eye(2 * groups, dtype=np.int64) * entry
    mixing[0, 1] = 1  # so that groups are not measured apart
    assert unlisted_tied.tied_norm(mixing, sparse.csr_array(eye), tied) >= (most**2 + 1) * entry**2  # type: ignore[operator]


def test_of_too_many_columns_that_share_measurements_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given = patterns(("a", "b"), "both", (2, 3), 3, (0, 0))
    mixing, basis = measured(given, np.random.default_rng(2))
    mixing[0, 2] = 1  # two groups of the first count
    monkeypatch.setattr(unlisted_tied, "ALL_PRODUCTS", 0)
    assert norm_by_grouping(mixing, basis, given) is None


def test_rows_that_no_unit_is_counted_by_are_bounded_with_the_others() -> None:
    """Of two groups of rows one has no units: four rows of the other, and their unit, move the farthest."""
    cells, rows = np.array([[0, -1]]), np.array([1, 2])
    given = Patterns(cells, 4, (0, 1), 3, rows)
    assert norm_by_grouping(np.eye(3, dtype=np.int64), sparse.csr_array(np.eye(3, dtype=np.int64)), given) == 17
    joined = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    moved = joined @ (given.columns @ all_of(given).T)
    bound = norm_by_grouping(joined, sparse.csr_array(np.eye(3, dtype=np.int64)), given)
    assert bound is not None
    assert bound >= (moved**2).sum(axis=0).max()


def one_row_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlisted_tied, "tied_to", lambda given, t: replace(tied_to(given, t), most=given.most - 1))


def nobody_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlisted_tied, "tied_to", lambda given, t: replace(tied_to(given, t), nobody=False))


def rows_left_out(patch: pytest.MonkeyPatch) -> None:
    real = unlisted_tied.column_norms
    patch.setattr(unlisted_tied, "column_norms", lambda *given: tuple(0 * norm for norm in real(*given)))


def units_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlisted_tied, "tied_to", lambda given, t: replace(tied_to(given, t), first=tied_to(given, t).more))


def corners_merged(patch: pytest.MonkeyPatch) -> None:
    """Corners that are alike but for their further rows are taken for one."""
    real = Tied.through
    patch.setattr(Tied, "through", lambda tied, seen: replace(real(tied, seen), more=real(tied, seen).more * 0))


@pytest.mark.parametrize("mutant", [one_row_less, nobody_left_out, rows_left_out, units_left_out, corners_merged])
def test_the_search_sees(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert sum(shortfall(case, 4, 20)[0] for case in BOTH) > 0


def test_measurements_of_two_counts_are_bounded_by_others() -> None:
    given = patterns(*BOTH[2])
    mixing, basis = measured(given, np.random.default_rng(1))
    mixing[0] = 1
    assert norm_by_grouping(mixing, basis, given) is None
    assert norm_by_grouping(mixing, basis, given.without_rows()) is None
    assert norm_by_grouping(mixing, basis, replace(given, classes=np.zeros(given.cells.shape[1], dtype=int))) is None
    with pytest.raises(InternalError, match="counted rows"):
        tied_to(given.without_rows(), 0)


def test_a_measurement_of_two_counts_that_shares_only_a_basis_row() -> None:
    """Blocks are linked by what they read: rows of one count that another measurement has, too."""
    given = patterns(("a", "b"), "both", (2, 2), 3, (0, 0))
    basis = np.zeros((3, given.size), dtype=np.int64)
    basis[0, np.unique(given.rows)] = 1
    basis[1, given.cells[0].max()] = basis[2, given.cells[1].max()] = 1
    mixing = np.array([[1, 1, 0], [1, 0, 1]])
    assert norm_by_grouping(mixing, sparse.csr_array(basis), given) is None
