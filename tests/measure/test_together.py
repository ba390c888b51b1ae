"""Several counts of units over the same rows: each counts a unit in the groups of the same k rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from unit_worlds import COLUMNS, VALUES, Ask, World, broken

from dpsql.measure import from_sql, reading, scan_sql
from dpsql.workload.compile import layout as layouts
from dpsql.workload.compile.compiled import Compiled

MOST = {**dict.fromkeys(COLUMNS, 1), "visits": 2}


@dataclass(frozen=True)
class Closed(Ask):
    """Wards are those that are declared, and no others."""

    def policy(self, noise: str) -> str:
        return super().policy(noise).replace("other = true", "nulls = false")


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
    "rows by others": counts("", "ward") + "; SELECT day, COUNT(*) FROM visits GROUP BY day; SELECT COUNT(*) FROM labs",
    "rows alike": "SELECT ward, COUNT(*), COUNT(DISTINCT patient) FROM visits GROUP BY ward; "
    "SELECT COUNT(DISTINCT patient), COUNT(*) FILTER (WHERE day > 1) FROM visits",
    "closed": counts("", "ward", "day") + "; SELECT COUNT(*) FROM visits",
    "one, and joined rows": "SELECT sex, age > 4, COUNT(*) FROM visits JOIN patients USING (patient) GROUP BY 1, 2; "
    + counts("age > 4", rows="visits JOIN patients USING (patient)"),
    "rows in groups": counts("ward, day", "day") + "; SELECT ward, COUNT(*) FROM visits WHERE cost > 0 GROUP BY ward",
}


CAPS: dict[str, tuple[tuple[int | None, int | None, str], ...]] = {
    "one a day": ((1, None, "day"),),
    "one a day, rows": ((1, None, "day"),),
    "one a day, few": ((1, 2, "day"),),
    "one a ward, and a day": ((1, None, "ward"), (1, None, "day")),
}
BATCHES |= {
    "one a day": counts("ward, day", "ward", ""),
    "one a day, rows": "SELECT ward, day, COUNT(*) FROM visits GROUP BY 1, 2; " + counts("ward"),
    "one a day, few": "SELECT day, COUNT(*) FROM visits WHERE ward = 'a' GROUP BY 1; " + counts("ward", "cost > 0"),
    "one a ward, and a day": "SELECT ward, COUNT(*) FROM visits GROUP BY 1; "
    "SELECT COUNT(*) FROM visits WHERE ward = 'a' AND cost > 2; " + counts("ward"),
}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def compiled(world: World, folder: Path, name: str, most: int) -> Compiled:
    caps = tuple((rows, groups and min(groups, most), per) for rows, groups, per in CAPS.get(name, ()))
    ask = (Closed if name == "closed" else Ask)(BATCHES[name], {**MOST, "visits": most}, caps)
    found = world.plan(ask, "gaussian" if caps else "laplace", folder).compiled
    assert isinstance(found, Compiled)
    return found


def of_counts(batch: Compiled) -> tuple[np.ndarray, set[tuple[int, ...]]]:
    """The entries of x that count units of visits and such visits, and all that rows of one unit may add to them."""
    ((given,),) = batch.units.patterns.values()
    rows = np.full(given.cells.shape[1], -1) if given.rows is None else given.rows
    used = np.unique([*given.cells[given.cells >= 0], *rows[rows >= 0]])
    units, row = np.zeros((2, used.size, len(rows)), dtype=int)
    t, column = np.nonzero(given.cells >= 0)
    units[np.searchsorted(used, given.cells[t, column]), column] = 1
    row[np.searchsorted(used, rows[rows >= 0]), np.flatnonzero(rows >= 0)] = 1
    held = {(0,) * used.size}
    for size in range(1, given.most + 1):
        for chosen in itertools.combinations_with_replacement(range(len(rows)), size):
            classes = [] if given.classes is None else given.classes[list(chosen)].tolist()
            if len(set(classes)) < len(classes):
                continue
            alone = row[:, chosen].sum(axis=1)
            held |= {tuple((units[:, chosen].max(axis=1) + alone).tolist()), tuple(alone.tolist())}
    return used, held


def added(world: World, batch: Compiled, persons: dict) -> list[tuple[int, ...]]:  # type: ignore[type-arg]
    """What each person adds to these entries, by the scans."""
    world.fill(persons)
    used, _ = of_counts(batch)
    mine = [layout for layout in batch.layouts if layout.together is not None]
    return [tuple(x) for x in world.each(batch, mine, len(persons))[:, used].tolist()]


def keeps_within(world: World, batch: Compiled, tables: int) -> bool:
    """Whether all persons of tables that break their bounds, and a key, add what C holds."""
    _, held = of_counts(batch)
    for seed in range(tables):
        persons = dict(enumerate(broken(random.Random(seed), 24).values()))
        if not set(added(world, batch, persons)) <= held:
            return False
    return True


@pytest.mark.parametrize(("name", "most"), list(itertools.product(BATCHES, (1, 2, 3))))
@pytest.mark.few(
    "crossed-2", "joined-2", "rows alike-2", "rows in groups-3", "one, and joined rows-2", "one a day, rows-2"
)
def test_a_unit_adds_a_union_of_what_so_many_rows_add(world: World, tmp_path: Path, name: str, most: int) -> None:
    assert keeps_within(world, compiled(world, tmp_path, name, most), 4)


@pytest.mark.parametrize("name", ["crossed", "nested", "filtered", "rows alike", "rows in groups"])
@pytest.mark.few("nested", "rows alike")
def test_every_union_is_added_by_some_unit(world: World, tmp_path: Path, name: str) -> None:
    batch = compiled(world, tmp_path, name, 2)
    rows = list(itertools.product(*VALUES["visits"]))
    pairs = [*((row,) for row in rows), *itertools.combinations_with_replacement(rows, 2)]
    found = set(added(world, batch, {i: {"visits": list(pair)} for i, pair in enumerate(pairs)}))
    (both,) = batch.units.patterns[0]
    used, held = of_counts(batch)
    unit = np.isin(used, both.entries)
    assert found | {(0,) * used.size} == {one for one in held if not any(one) or any(np.array(one)[unit])} | found
    assert found <= held


def test_rows_of_nobody_count_and_are_no_unit(world: World, tmp_path: Path) -> None:
    batch = compiled(world, tmp_path, "rows alike", 2)
    world.fill({None: {"visits": [("a", 1, 0)] * 3 + [("b", 2, 1)] * 4}})
    (both,) = batch.units.patterns[0]
    x = world.whole(batch)
    assert both.rows is not None
    assert x[both.entries].sum() == 0
    assert x[np.unique(both.rows[both.rows >= 0])].sum() == 2


def test_what_units_add_may_be_dependent(world: World, tmp_path: Path) -> None:
    """One row a unit is in as many halves as parities of days: as many contributions as queries, but dependent."""
    sql = counts("day / 2", "day % 2") + "; SELECT ward, day, COUNT(*) FROM visits GROUP BY ward, day"
    plan = world.plan(Closed(sql, {**MOST, "visits": 1}), "gaussian", tmp_path)
    assert plan.gap is not None
    assert plan.gap < 0.01


def each_keeps_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layouts.Together, "cuts", lambda together, table: False)


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
        return real(rows, names, [*first, *map(from_sql.tree.Name, beside[1:])], limit, *beside)

    patch.setattr(from_sql, "_truncated", changed)


def any_row_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_first_of_cells", lambda rows, held, names, first: (rows, list(first)))


def other_columns_first(patch: pytest.MonkeyPatch) -> None:
    """One row in each column comes first, but the columns in another order than that of the counts of units."""
    real = from_sql._first_of_cells
    patch.setattr(from_sql, "_first_of_cells", lambda *given: (lambda rows, first: (rows, first[:1]))(*real(*given)))


def open_domains(patch: pytest.MonkeyPatch) -> None:
    """Rows outside a closed domain are counted by what does not look at it."""
    patch.setattr(scan_sql, "is_inside", lambda axis, values: scan_sql.tree.ALWAYS)


def caps_by_its_own(patch: pytest.MonkeyPatch) -> None:
    """Which rows the bounds of ``at_most`` keep is decided by what each scan reads."""
    patch.setattr(
        from_sql, "_capped", lambda rows, names, first, cap, by=(), real=from_sql._capped: real(rows, names, first, cap)
    )


def caps_before_what_counts(patch: pytest.MonkeyPatch) -> None:
    """Rows of every scan's own come first."""
    real = from_sql._capped

    def own_first(rows, names, first, cap, by=()):  # type: ignore[no-untyped-def]
        return real(rows, names, [from_sql.tree.Name(names[-1])], cap, by)

    patch.setattr(from_sql, "_capped", own_first)


def one_cap_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Rows that are equal in their cells are taken in any order, though other bounds tell them apart."""
    real = from_sql._capped
    patch.setattr(from_sql, "_capped", lambda rows, names, first, cap, by=(): real(rows, names, first, cap, by[:1]))


def never_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layouts.Together, "few", True)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "each scan keeps its own": (each_keeps_its_own, "nested"),
    "an order of its own": (ordered_by_its_own, "nested"),
    "joined rows of its own": (by_its_own_columns, "joined"),
    "outside a closed domain": (open_domains, "closed"),
    "any row first": (any_row_first, "rows alike"),
    "columns in another order": (other_columns_first, "rows alike"),
    "bounds by own columns": (caps_by_its_own, "one a day, few"),
    "bounds by own rows first": (caps_before_what_counts, "one a day, few"),
    "bounds one by one": (one_cap_at_a_time, "one a ward, and a day"),
    "more than count": (never_too_many, "one a day"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_left_out_is_seen(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    change, name = MUTANTS[mutant]
    batch = compiled(world, tmp_path, name, 2)
    change(monkeypatch)
    assert not keeps_within(world, batch, 12)
