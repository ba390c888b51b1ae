"""Units are counted in the cells of just those of their rows that count, whatever the data are."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from unit_worlds import COLUMNS, Ask, World, broken

from dpsql.measure import from_sql
from dpsql.workloads.compile import units
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr import values as tree

MOST = {**dict.fromkeys(COLUMNS, 1), "visits": 3}
ASKS = {
    "by the same groups": "SELECT ward, day, COUNT(*), COUNT(DISTINCT patient) FROM visits GROUP BY 1, 2",
    "by finer rows": """SELECT ward, day, COUNT(*) FROM visits GROUP BY 1, 2;
        SELECT day, COUNT(DISTINCT patient) FROM visits GROUP BY 1""",
    "of all": """SELECT ward, COUNT(*) FROM visits GROUP BY 1;
        SELECT COUNT(DISTINCT patient) FROM visits WHERE ward = 'b'""",
    "in few wards": """SELECT ward, COUNT(*) FROM visits GROUP BY 1;
        SELECT ward, COUNT(DISTINCT patient) FROM visits WHERE ward <> 'a' GROUP BY 1""",
}
CAPS = {"in few wards": ((None, 1, "ward"),)}


@pytest.fixture(autouse=True)
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What units add is not listed as a whole, so that what is said of many is looked at."""
    monkeypatch.setattr(units, "contributions_of_unit", lambda *_: None)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@cache
def compiled(world: World, name: str) -> Compiled:
    return world.compiled(Ask(ASKS[name], MOST, CAPS.get(name, ())))


def agrees(world: World, batch: Compiled, tables: int = 4) -> bool:
    """Whether each person of tables that break their bounds is counted in the cells of the rows that count."""
    (rows,) = (layout for layout in batch.layouts if layout.tie is not None)
    assert rows.tie is not None
    cell, own = rows.tie.meets
    seen = (cell >= 0) & (rows.entry[0, cell] >= 0)
    assert np.unique(cell[seen]).size == seen.sum()  # so that a row's cell says where its unit is counted
    counted, limit = rows.tie.counted.entry[0], batch.units.tied[0].limit
    for seed in range(tables):
        persons = dict(enumerate(broken(random.Random(seed), 12).values()))
        world.fill(persons)
        for x in world.each(batch, batch.layouts, len(persons)):
            assert x[rows.entry[rows.entry >= 0]].sum() <= MOST["visits"]
            if x[counted[counted >= 0]].sum() > limit:
                return False
            for number in range(len(counted)):
                inside = seen & (own == number)
                if (x[rows.entry[0, cell[inside]]].sum() > 0) != (x[counted[number]] == 1):
                    return False
    return True


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.few("of all")
def test_units_are_counted_by_the_rows_that_count(world: World, name: str) -> None:
    assert agrees(world, compiled(world, name), 2)


def test_rows_of_nobody_count_and_are_no_unit(world: World) -> None:
    batch = compiled(world, "of all")
    world.fill({None: {"visits": [("a", 1, 0)] * 2 + [("b", 2, 1)] * 7}})
    (rows,) = (layout for layout in batch.layouts if layout.tie is not None)
    x = world.whole(batch)
    assert x[rows.entry[rows.entry >= 0]].sum() == x.sum() == MOST["visits"]


def any_row_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_first_of_cells", lambda rows, held, names, first: (rows, list(first)))


def other_cells_first(patch: pytest.MonkeyPatch) -> None:
    """Cells are taken in another order than that in which units are counted."""
    real = from_sql._first_of_cells
    patch.setattr(from_sql, "_first_of_cells", lambda *given: (lambda rows, first: (rows, first[:1]))(*real(*given)))


def all_rows_alike(patch: pytest.MonkeyPatch) -> None:
    """The one cell of a count of all does not come first."""
    real = from_sql._truncated

    def changed(rows, names, first, limit):  # type: ignore[no-untyped-def]
        return real(rows, names, [node for node in first if not isinstance(node, tree.Compared)], limit)

    patch.setattr(from_sql, "_truncated", changed)


def groups_of_bounds_by_own_rows(patch: pytest.MonkeyPatch) -> None:
    """The groups of a bound that hold rows of every scan's own come first."""
    real = from_sql._capped

    def changed(rows, names, first, cap, by=()):  # type: ignore[no-untyped-def]
        return real(rows, names, [tree.Name(names[-1])], cap, by)

    patch.setattr(from_sql, "_capped", changed)


def no_bounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_capped", lambda rows, *given: rows)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "any row first": (any_row_first, "by the same groups"),
    "cells in another order": (other_cells_first, "by the same groups"),
    "rows of the one cell not first": (all_rows_alike, "of all"),
    "groups of bounds by own rows": (groups_of_bounds_by_own_rows, "in few wards"),
    "bounds not held": (no_bounds, "in few wards"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_left_out_is_seen(world: World, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    change, name = MUTANTS[mutant]
    batch = compiled(world, name)
    change(monkeypatch)
    assert not agrees(world, batch)
