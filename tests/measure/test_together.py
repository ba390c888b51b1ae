"""Several counts of units over the same rows: each counts a unit in the groups of the same k rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unit_worlds import COLUMNS, VALUES, Ask, World, broken

from dpsql.measure import from_sql, reading
from dpsql.workload.compile import layout as layouts
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.families.patterns import ENOUGH

MOST = {**dict.fromkeys(COLUMNS, 1), "visits": 2}


def counts(*keys: str, rows: str = "visits") -> str:
    """COUNT(DISTINCT patient) by each of these keys, "" for in all."""
    wanted = ((f"{key}, ", f" GROUP BY {key}") if key else ("", "") for key in keys)
    return "; ".join(f"SELECT {shown}COUNT(DISTINCT patient) FROM {rows}{group}" for shown, group in wanted)


BATCHES = {
    "crossed": counts("", "ward", "day"),
    "nested": counts("day", "day % 2", "ward, day"),
    "filtered": counts("ward") + "; SELECT ward, COUNT(DISTINCT CASE WHEN day > 1 THEN patient END) FROM visits "
    "GROUP BY ward; SELECT COUNT(DISTINCT patient) FROM visits WHERE cost > 0 OR ward = 'b'",
    "joined": counts("sex", "age > 4", "sex, age > 4", rows="visits JOIN patients USING (patient)"),
    "beside rows": counts("", "ward") + "; SELECT day, COUNT(*) FROM visits GROUP BY day; SELECT COUNT(*) FROM labs",
}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def compiled(world: World, folder: Path, name: str, most: int) -> Compiled:
    found = world.plan(Ask(BATCHES[name], {**MOST, "visits": most}), "laplace", folder).compiled
    assert isinstance(found, Compiled)
    return found


def of_counts(batch: Compiled) -> tuple[np.ndarray, set[tuple[int, ...]]]:
    """The entries of x that count units of visits, and all that C lets a unit add to them."""
    ((patterns,),) = batch.units.patterns.values()
    assert patterns.count <= ENOUGH
    used = np.unique(patterns.cells[patterns.cells >= 0])
    return used, {tuple(column) for column in patterns.listed().toarray()[used].T} | {(0,) * used.size}


def added(world: World, batch: Compiled, persons: dict) -> list[tuple[int, ...]]:  # type: ignore[type-arg]
    """What each person adds to these entries, by the scans."""
    world.fill(persons)
    used, _ = of_counts(batch)
    mine = [layout for layout in batch.layouts if layout.together is not None]
    return [tuple(x) for x in world.each(batch, mine, len(persons))[:, used].tolist()]


def keeps_within(world: World, batch: Compiled, tables: int) -> bool:
    """Whether all persons of tables that break their bounds, and a key, add what C holds."""
    _, held = of_counts(batch)
    found = (
        one
        for seed in range(tables)
        for one in added(world, batch, dict(enumerate(broken(random.Random(seed), 24).values())))
    )
    return all(one in held for one in found)


@pytest.mark.parametrize(("name", "most"), list(itertools.product(BATCHES, (1, 2, 3))))
@pytest.mark.few("crossed-2", "joined-2")
def test_a_unit_adds_a_union_of_what_so_many_rows_add(world: World, tmp_path: Path, name: str, most: int) -> None:
    assert keeps_within(world, compiled(world, tmp_path, name, most), 4)


@pytest.mark.parametrize("name", ["crossed", "nested", "filtered"])
@pytest.mark.few("nested")
def test_every_union_is_added_by_some_unit(world: World, tmp_path: Path, name: str) -> None:
    batch = compiled(world, tmp_path, name, 2)
    rows = list(itertools.product(*VALUES["visits"]))
    pairs = [*((row,) for row in rows), *itertools.combinations(rows, 2)]
    found = set(added(world, batch, {i: {"visits": list(pair)} for i, pair in enumerate(pairs)}))
    used, held = of_counts(batch)
    assert found | {(0,) * used.size} == held


def each_keeps_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layouts.Together, "cut", False)


def by_its_own_columns(patch: pytest.MonkeyPatch) -> None:
    """Scans find joined rows by what each of them reads."""
    real = reading.joined_columns

    def own_first(layout):  # type: ignore[no-untyped-def]
        return tuple(dict.fromkeys([*real(replace(layout, together=None)), *real(layout)]))

    patch.setattr(reading, "joined_columns", own_first)


def ordered_by_its_own(patch: pytest.MonkeyPatch) -> None:
    """The columns that a scan keeps are the first in an order of its own."""
    real = from_sql._truncated

    def changed(rows, names, first, limit, *beside):  # type: ignore[no-untyped-def]
        return real(rows, names, [*first, from_sql.tree.Name(own[-1])], limit, *beside)

    rows_of, own = reading.rows_of, [""]

    def noted(*given, **named):  # type: ignore[no-untyped-def]
        own.append(named["own"])
        return rows_of(*given, **named)

    patch.setattr(from_sql, "_truncated", changed)
    patch.setattr(reading, "rows_of", noted)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "each scan keeps its own": (each_keeps_its_own, "nested"),
    "an order of its own": (ordered_by_its_own, "nested"),
    "joined rows of its own": (by_its_own_columns, "joined"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_left_out_is_seen(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    change, name = MUTANTS[mutant]
    batch = compiled(world, tmp_path, name, 2)
    change(monkeypatch)
    assert not keeps_within(world, batch, 12)
