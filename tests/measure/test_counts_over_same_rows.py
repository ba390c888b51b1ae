"""Several counts of units over the same rows: each counts a unit in the groups of the same k rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
from helpers import compiled_of, engine_of, tables_of
from unit_worlds import COLUMNS, SOURCES, VALUES, Ask, World, broken

from dpsql.engines.base import TableSource
from dpsql.measure import ConnectionEngine, cells, counts_over_same_rows, from_sql, reading
from dpsql.measure.from_sql import PLACE
from dpsql.policy import Policy
from dpsql.workloads.compile import layout as layouts
from dpsql.workloads.compile import units
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.values import Name, whole

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


@pytest.fixture(autouse=True)
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What units add is not listed as a whole, so that what is said of many is looked at."""
    monkeypatch.setattr(units, "contributions_of_unit", lambda *_: None)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@cache
def compiled(world: World, name: str, most: int) -> Compiled:
    caps = tuple((rows, groups and min(groups, most), per) for rows, groups, per in CAPS.get(name, ()))
    ask = (Closed if name == "closed" else Ask)(BATCHES[name], {**MOST, "visits": most}, caps)
    return world.compiled(ask)


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
@pytest.mark.few("joined-2", "rows in groups-2", "one a day, rows-2")
def test_a_unit_adds_a_union_of_what_so_many_rows_add(world: World, name: str, most: int) -> None:
    assert keeps_within(world, compiled(world, name, most), 4)


@pytest.mark.parametrize("name", ["crossed", "nested", "filtered", "rows alike", "rows in groups"])
@pytest.mark.few("nested", "rows alike")
def test_every_union_is_added_by_some_unit(world: World, name: str) -> None:
    batch = compiled(world, name, 2)
    rows = list(itertools.product(*VALUES["visits"]))
    pairs = [*((row,) for row in rows), *itertools.combinations_with_replacement(rows, 2)]
    found = set(added(world, batch, {i: {"visits": list(pair)} for i, pair in enumerate(pairs)}))
    (both,) = batch.units.patterns[0]
    used, held = of_counts(batch)
    unit = np.isin(used, both.entries)
    assert found | {(0,) * used.size} == {one for one in held if not any(one) or any(np.array(one)[unit])} | found
    assert found <= held


def test_rows_of_nobody_count_and_are_no_unit(world: World) -> None:
    batch = compiled(world, "rows alike", 2)
    world.fill({None: {"visits": [("a", 1, 0)] * 3 + [("b", 2, 1)] * 4}})
    (both,) = batch.units.patterns[0]
    x = world.whole(batch)
    assert both.rows is not None
    assert x[both.entries].sum() == 0
    assert x[np.unique(both.rows[both.rows >= 0])].sum() == 2


def run(batch: Compiled, duck: duckdb.DuckDBPyConnection, sources: Mapping[str, TableSource] = SOURCES) -> np.ndarray:
    """L x as a run finds it, what is kept of units once for all counts."""
    n = batch.rows.shape[1]
    itself = SimpleNamespace(shape=(n, n), times=lambda x, bits: x)
    named = {"layouts": batch.layouts, "sources": sources, "schemas": {}}
    job = SimpleNamespace(**named, common_steps=batch.common_steps, integers=itself)
    return np.array(cells.observed(job, ConnectionEngine(duck), [0] * n), dtype=object)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few("rows alike")
def test_a_run_changes_by_what_one_unit_may_add(world: World, name: str) -> None:
    """Over tables that break their bounds; each neighbour is scanned by itself."""
    batch = compiled(world, name, 2)
    used, held = of_counts(batch)
    for seed in range(3):
        persons = broken(random.Random(seed), 7)
        world.fill(persons)
        x = run(batch, world.duck)
        assert (x == world.whole(batch)).all()
        for gone in persons:
            world.fill({number: person for number, person in persons.items() if number != gone})
            assert tuple((x - run(batch, world.duck))[used].tolist()) in held
    assert world.duck.execute("SELECT COUNT(*) FROM duckdb_tables() WHERE temporary").fetchone() == (0,)


ORDERLY = {
    "SELECT ward, COUNT(*), COUNT(DISTINCT patient) FROM visits GROUP BY ward": 1,
    "SELECT day, COUNT(DISTINCT patient) FROM visits GROUP BY day": 1,
    "SELECT COUNT(*), COUNT(DISTINCT patient) FROM visits": 0,
}


def exact(batch: Compiled, x: np.ndarray) -> list[int]:
    """All answers, in whole numbers."""
    scale = np.array([int(value) for value in batch.scale], dtype=object)
    return (scale * (batch.rows.toarray().astype(int).astype(object) @ x)).tolist()  # type: ignore[no-any-return]


def test_units_with_few_rows_count_whole(world: World) -> None:
    """As DuckDB answers."""
    found = world.compiled(Ask("; ".join(ORDERLY), {**MOST, "visits": 3}))
    draw = random.Random(7)
    rows = list(itertools.product("ab", (1, 2, 3), (0,)))
    persons = {n: {"visits": [draw.choice(rows) for _ in range(draw.randrange(4))]} for n in range(40)}
    world.fill(persons)
    counted = exact(found, run(found, world.duck))
    answers = {sql: world.duck.execute(sql).fetchall() for sql in ORDERLY}
    wanted = [value for sql, keys in ORDERLY.items() for row in answers[sql] for value in row[keys:]]
    assert sorted(value for value in counted if value) == sorted(wanted)


def test_units_of_text_are_told_apart_whatever_the_collation() -> None:
    """What the engine keeps has the connection's collation, in which 'A' and 'a' were one unit."""
    policy = """dataset = "t"
[budget]
epsilon = 1e6
[tables.t]
unit = "who"
max_rows_per_unit = 2
[tables.t.columns]
g = { values = [1, 2, 3], nulls = false }
"""
    sql = "SELECT g, COUNT(*) AS n, COUNT(DISTINCT who) AS u FROM t GROUP BY g; SELECT COUNT(DISTINCT who) AS u FROM t"
    duck = duckdb.connect()
    duck.execute("SET default_collation = 'NOCASE'")
    duck.execute("CREATE TABLE t (who VARCHAR, g INTEGER)")
    duck.execute("INSERT INTO t SELECT who, g FROM (VALUES ('a'), ('A')) a(who), range(1, 4) r(g)")
    declared = Policy.parse(policy)
    batch = compiled_of(sql, declared, tables_of(declared, engine_of(duck)))
    found = exact(batch, run(batch, duck, {"t": TableSource("t")}))
    assert (sum(found[:3]), sum(found[3:6]), found[6]) == (4, 4, 2)


def test_what_units_add_may_be_dependent(world: World, tmp_path: Path) -> None:
    """One row a unit is in as many halves as parities of days: as many contributions as queries, but dependent."""
    sql = counts("day / 2", "day % 2") + "; SELECT ward, day, COUNT(*) FROM visits GROUP BY ward, day"
    plan = world.plan(Closed(sql, {**MOST, "visits": 1}), "gaussian", tmp_path)
    assert plan.gap is not None
    assert plan.gap < 0.01


def nothing_is_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layouts.Together, "cut", False)


def by_its_own_columns(patch: pytest.MonkeyPatch) -> None:
    """Scans find joined rows by what each of them reads, in no order that all share."""
    real, ordered = reading.joined_columns, from_sql._ordered
    patch.setattr(from_sql, "_ordered", lambda first, order, used, key: ordered(first, (), used, key))

    def own_first(layout):  # type: ignore[no-untyped-def]
        return tuple(dict.fromkeys([*real(replace(layout, together=None)), *real(layout)]))

    patch.setattr(reading, "joined_columns", own_first)


def ordered_in_turn(patch: pytest.MonkeyPatch) -> None:
    """Every second scan keeps the last columns of a unit."""
    real, turn = counts_over_same_rows._first, itertools.count()

    def changed(*given):  # type: ignore[no-untyped-def]
        found = real(*given)
        way = (0,) if next(turn) % 2 else ()
        columns = [(n, replace(v, falling=way) if n == PLACE else v) for n, v in found.source.columns]
        return replace(found, source=replace(found.source, columns=tuple(columns)))

    patch.setattr(counts_over_same_rows, "_first", changed)


def all_rows_of_columns(patch: pytest.MonkeyPatch) -> None:
    """Of the columns that are kept all rows are."""
    real = counts_over_same_rows._first

    def changed(*given):  # type: ignore[no-untyped-def]
        found = real(*given)
        return replace(found, columns=tuple((name, Name(name)) for name, _ in found.columns))

    patch.setattr(counts_over_same_rows, "_first", changed)


def larger_units_whole(patch: pytest.MonkeyPatch) -> None:
    """Units that have too much keep all beside what is kept of them."""
    real = counts_over_same_rows._split

    def changed(*given, too_much):  # type: ignore[no-untyped-def]
        found = real(*given, too_much=too_much)
        return found if too_much else replace(found, where=None)

    patch.setattr(counts_over_same_rows, "_split", changed)


def one_more(patch: pytest.MonkeyPatch) -> None:
    """One more column of a unit is kept than rows count."""
    real = counts_over_same_rows._first

    def changed(*given):  # type: ignore[no-untyped-def]
        found = real(*given)
        return replace(found, where=replace(found.where, operator="<=", right=whole(found.where.right.value + 1)))

    patch.setattr(counts_over_same_rows, "_first", changed)


def no_bounds(patch: pytest.MonkeyPatch) -> None:
    """Of ``at_most`` nothing is held."""
    patch.setattr(from_sql, "_capped", lambda rows, *given: rows)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "nothing is cut": (nothing_is_cut, "nested"),
    "an order in turn": (ordered_in_turn, "nested"),
    "rows in another order": (ordered_in_turn, "rows alike"),
    "joined rows of its own": (by_its_own_columns, "joined"),
    "all rows of a column": (all_rows_of_columns, "rows alike"),
    "larger units whole": (larger_units_whole, "rows in groups"),
    "one more": (one_more, "crossed"),
    "bounds not held": (no_bounds, "one a day, rows"),
    "nothing is cut beside bounds": (nothing_is_cut, "one a day"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_left_out_is_seen(world: World, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    change, name = MUTANTS[mutant]
    batch = compiled(world, name, 2)
    change(monkeypatch)
    assert not keeps_within(world, batch, 12)
