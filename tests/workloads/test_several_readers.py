"""What several readers retain together, against all that a unit may have, tried row by row; and with faults put in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product
from math import inf

import numpy as np
import pytest
from scipy.optimize import linprog

from dpsql.workloads.compile import several_readers
from dpsql.workloads.compile.row_kinds import NotListedError
from dpsql.workloads.compile.several_readers import Sight, retained_together

Rows = tuple[int, ...]
"""How many rows of each kind, or of each column."""
Choice = tuple[tuple[frozenset[int], ...], Rows]
"""The columns that each reader of cells retains, and the rows of each column."""
MOST_ROWS = 6


def parts(rows: Sequence[int]) -> Iterator[Rows]:
    return product(*(range(number + 1) for number in rows))


def left(sight: Sight, seen: Sequence[int]) -> Iterator[Rows]:
    """What the bound may leave of rows that a reader sees: ``most`` of each group, then all of ``groups`` groups."""
    there = np.bincount(sight.group, weights=seen)
    for rows in parts(seen):
        inside = np.bincount(sight.group, weights=rows)
        taken = np.where(inside > 0, np.minimum(there, sight.most), 0)
        if (inside == taken).all() and (inside > 0).sum() == min((there > 0).sum(), sight.groups):
            yield rows


def true_choices(sight: Sight) -> set[Choice]:
    """All that readers retain of units with a few rows, each reader by itself."""
    found: set[Choice] = set()
    kinds, width = sight.group.size, int(sight.rows.max(initial=-1)) + 1
    for size in range(MOST_ROWS + 1):
        for some in combinations_with_replacement(range(kinds), size):
            rows = np.bincount(some, minlength=kinds)
            options: list[set[frozenset[int]]] = []
            for column in sight.cells:
                every = [column[np.flatnonzero(one)] for one in left(sight, rows * (column >= 0))]
                each = [sorted(set(cells.tolist())) for cells in every]
                options.append(
                    {frozenset(few) for one in each for few in combinations(one, min(sight.limit, len(one)))}
                )
            of_rows = set[Rows]()
            for one in left(sight, rows * (sight.rows >= 0)):
                for part in parts(one):
                    if sum(part) == min(sight.limit, sum(one)) or (sum(part) < sight.limit and not sight.tells_cells):
                        told = [
                            sum(n for n, at in zip(part, sight.rows, strict=True) if at == to) for to in range(width)
                        ]
                        of_rows.add(tuple(told))
            found |= {(cells, one) for cells in product(*options) for one in of_rows}
    return found


def listed_choices(sight: Sight) -> set[Choice]:
    cells, rows = retained_together(sight)
    each = [[frozenset(np.flatnonzero(row).tolist()) for row in one] for one in cells]
    return set(zip(zip(*each, strict=True) if each else [()] * len(rows), map(tuple, rows.tolist()), strict=True))


def is_mean(point: Rows, others: Sequence[Rows]) -> bool:
    if point in others or not others:
        return point in others
    bounds = np.vstack([np.array(others).T, np.ones(len(others))])
    return bool(linprog(np.zeros(len(others)), A_eq=bounds, b_eq=[*point, 1]).status == 0)


def drawn(seed: int) -> Sight:
    """A few kinds of rows, some of which up to three readers see alike."""
    draw = random.Random(seed)
    readers, labels = draw.choice((0, 1, 1, 1, 2)), draw.choice((1, 2, 2, 3))
    offered = [one for one in product(range(-1, 2), repeat=readers + 1) if max(one) >= 0]
    kinds = list(product(offered, range(labels)))
    some = draw.choices(kinds, k=draw.randint(2, 4))
    columns = [np.array(column) for column in zip(*(seen for seen, _ in some), strict=True)]
    columns[-1] = np.array([-1 if seen[-1] < 0 else seen[-1] * labels + label for seen, label in some])
    *cells, rows = (np.unique(one, return_inverse=True)[1] - int(one.min() < 0) for one in columns)
    group = np.unique([label for _, label in some], return_inverse=True)[1]
    bound = draw.choice(((inf, inf), (1, inf), (2, inf), (inf, 1), (inf, 2), (1, 2), (2, 1)))
    return Sight(tuple(cells), rows, draw.random() < 0.9, group, draw.randint(1, 3), *bound)


def missed(sight: Sight) -> bool:
    """Whether readers retain something that is no mean of what is listed."""
    listed = dict[tuple[frozenset[int], ...], list[Rows]]()
    for cells, rows in listed_choices(sight):
        listed.setdefault(cells, []).append(rows)
    return not all(is_mean(rows, listed.get(cells, [])) for cells, rows in true_choices(sight))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.few(every=3)
def test_all_that_readers_retain_is_listed_and_nothing_else(seed: int) -> None:
    for number in range(5):
        sight = drawn(5 * seed + number)
        assert not missed(sight), sight
        assert listed_choices(sight) <= true_choices(sight), sight


# -- what these tests would see ---------------------------------------------------------------------


def a_bound_too_low(patch: pytest.MonkeyPatch) -> None:
    real = several_readers._candidates
    patch.setattr(several_readers, "_candidates", lambda sight, before: real(replace(sight, most=1), before))


def full_groups_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = several_readers._of_group
    patch.setattr(several_readers, "_of_group", lambda *given: (way for way in real(*given) if len(way.rows) < 2))


def further_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Readers of cells are taken to be disturbed by any row of a cell that they count."""
    real = several_readers._needed

    def changed(number: int, sight: Sight) -> several_readers._Needed:
        found = real(number, sight)
        return replace(found, further=found.further & ((found.rows > 0) | (sight.cells[number] < 0)))

    patch.setattr(several_readers, "_needed", changed)


def excluded_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The number of groups is taken to exclude no rows from what a reader of rows retains."""
    real = several_readers._rows_beside
    patch.setattr(several_readers, "_rows_beside", lambda sight, *given: real(replace(sight, groups=9), *given))


def one_kind_of_a_cell(patch: pytest.MonkeyPatch) -> None:
    real = several_readers._least_seen

    def changed(number: int, sight: Sight) -> list[int]:
        column = sight.cells[number]
        return list({(column[kind], sight.group[kind]): kind for kind in real(number, sight)}.values())

    patch.setattr(several_readers, "_least_seen", changed)


def needed_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Just the rows that others need are no longer among what the reader of rows may retain."""
    real = several_readers._candidates
    patch.setattr(several_readers, "_candidates", lambda sight, before: real(sight, before * 0))


def all_cells_told(patch: pytest.MonkeyPatch) -> None:
    real = several_readers._rows_beside
    patch.setattr(several_readers, "_rows_beside", lambda sight, *given: real(replace(sight, tells_cells=True), *given))


@pytest.mark.parametrize(
    "fault",
    [
        a_bound_too_low,
        full_groups_forgotten,
        further_rows_forgotten,
        excluded_rows_forgotten,
        one_kind_of_a_cell,
        needed_rows_forgotten,
        all_cells_told,
    ],
)
def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    fault(monkeypatch)
    assert any(missed(drawn(number)) for number in range(300))


@pytest.mark.parametrize("groups", [8.0, 2.0])
def test_choices_that_would_fill_the_memory_are_not_listed(groups: float) -> None:
    """Of 168 columns in 24 groups: 700,000 choices of three groups, each of 168 numbers; or as many of fewer rows."""
    columns = np.arange(168)
    sight = Sight((), columns, True, columns // 7, 9, 3.0, groups)
    with pytest.raises(NotListedError):
        retained_together(sight)


@pytest.mark.parametrize("most", [inf, 10.0])
def test_ways_of_many_cells_are_counted_before_they_are_listed(most: float) -> None:
    """Of 82 cells, of which a unit has ten at most: 2 million million ways."""
    cells = np.arange(82)
    sight = Sight((cells,), np.full(82, -1), True, np.zeros(82, dtype=np.int64), 10, most, inf)
    with pytest.raises(NotListedError):
        retained_together(sight)
