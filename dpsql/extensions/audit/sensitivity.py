"""Sensitivity by brute force: neighbouring databases are made and measured without noise, and the change is held
against what the noise was calibrated to. All in integers, so that a single unit of excess is a fault.

Three kinds of pairs, for each kind of unit that the batch reads:

- *orderly*: a unit with as many rows as count (and with more), all alike, beside rows of others; the values are
  searched, column by column, for the largest change. This is what attains the claim.
- *disorderly*: databases that break every promise of the policy (keys that units share, keys twice, dangling and
  missing ones, rows without a unit), each against itself without one unit.
- *tables of single rows*: every table of up to three of twenty rows, against itself without one of its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsql.common.quoting import dotted
from dpsql.extensions.audit.database import SHARED, Cell, Row, Rows, Table, values_text
from dpsql.extensions.audit.values import Draws
from dpsql.extensions.audit.world import World
from dpsql.measure import synthetic
from dpsql.policy.values import fold

Cells = dict[str, dict[str, Cell]]
"""The values of an orderly unit's rows, by table and folded column."""

FEW = 20
"""Of so many rows every table of at most three is made."""
CROWD, ROUNDS = 240, 20
"""Units at once, and how often, where a unit that moves anything must be searched for."""
_COPIES, _DISTINCT = "dpsql_copies", "dpsql_rows"
NUMBER = 1
"""The number of the unit that is added or removed; others stand beside it."""


@dataclass
class Search:
    """The result of brute force: the largest change, how many pairs were tried, the orderly unit that moves most."""

    pairs: int = 0
    scans: int = 0
    largest: int = 0
    reached: int = 0
    label: str = ""
    cells: Cells = field(default_factory=dict, repr=False)
    base: Rows = field(default_factory=dict, repr=False)


def brute_force(world: World, *, pairs: int = 200) -> Search:
    """Try neighbours of every kind; ``pairs`` is about how many scans are spent on each kind of unit.

    Raises OperationalError where a row makes a scan fail, which no row may.
    """
    search = Search()
    for label in dict.fromkeys(layout.source.protects for layout in world.job.layouts):
        _orderly(world, label, search, pairs)
    _disorderly(world, search, pairs)
    return search


# -- orderly units ----------------------------------------------------------------------------------


def _orderly(world: World, label: str, search: Search, pairs: int) -> None:
    draws = Draws(f"orderly/{label}")
    tables = [t for t in world.tables.tables.values() if world.tables.policy.labels.get(t.name) == label]
    base = world.tables.public_rows(draws)
    for name, rows in world.tables.orderly_unit(label, 2, _drawn(tables, draws)).items():
        base[name] = rows
    measure = _Measured(world, label, base, search)
    # Conditions of many parts hold on few rows. Single rows are tried many in one scan, so many are tried.
    candidates = [_drawn(tables, draws) for _ in range(2 * pairs if measure.plain else max(8, pairs // 5))]
    sizes = measure.sizes(candidates)
    if not max(sizes):
        candidates = [_mover(world, label, tables, draws, measure) or candidates[0]]
        sizes = measure.sizes(candidates)
    best, size = max(zip(candidates, sizes, strict=True), key=lambda pair: pair[1])
    spent, improving = 0 if measure.plain else len(candidates), True
    while improving and spent < pairs:
        improving = False
        for table in tables:
            for name, choices in _choices(world, table):
                tried = [_changed(best, table.name, name, value) for value in choices]
                sizes = measure.sizes(tried)
                spent += len(tried)
                if max(sizes, default=0) > size:
                    size = max(sizes)
                    best, improving = tried[sizes.index(size)], True
                if spent >= pairs:
                    break
    if not measure.plain:
        # Rows of two kinds: what counts units counts one of several kinds more than once.
        for _ in range(pairs // 20):
            size = max(size, measure.change(best, 0, _drawn(tables, draws)))
    # More rows than count: no further than as many as count.
    for more in (1, 3):
        measure.change(best, more)
        measure.change(_drawn(tables, draws), more)
    alone = measure.change(best)
    if alone > search.reached:
        search.reached, search.label, search.cells, search.base = alone, label, best, base
    if measure.plain:
        _small_tables(world, tables[0], best, draws, search)


def _mover(world: World, label: str, tables: Sequence[Table], draws: Draws, measure: _Measured) -> Cells | None:
    """The cells of some unit that moves anything, where few do: many units at once, halved until one is left."""
    for _ in range(ROUNDS):
        crowd = [_drawn(tables, draws) for _ in range(CROWD)]
        if not measure.crowd(crowd):
            continue
        while len(crowd) > 1:
            first = crowd[: len(crowd) // 2]
            crowd = first if measure.crowd(first) else crowd[len(first) :]
        return crowd[0]
    return None


def _drawn(tables: Sequence[Table], draws: Draws) -> Cells:
    return {
        table.name: {fold(c.name): draws.below(SHARED - 1) if c.keys else draws.choice(c.values) for c in table.columns}
        for table in tables
    }


def _changed(cells: Cells, table: str, column: str, value: Cell) -> Cells:
    return {**cells, table: {**cells[table], column: value}}


def _choices(world: World, table: Table) -> list[tuple[str, Sequence[Cell]]]:
    """The columns that may matter, with all their values; of a reference the public rows that it may lead to."""
    found: list[tuple[str, Sequence[Cell]]] = []
    own = {fold(name) for name in table.policy.unique}
    for column in table.columns:
        name = fold(column.name)
        if column.keys and name not in own:
            found.append((name, range(SHARED - 1)))
        elif not column.keys and name in world.used:
            found.append((name, column.values))
    return found


class _Measured:
    """Sizes of the changes that orderly units make, for tables of single rows many in one scan."""

    def __init__(self, world: World, label: str, base: Rows, search: Search) -> None:
        self._world, self._label, self._base, self._search = world, label, base, search
        self._layouts = [layout for layout in world.job.layouts if layout.source.protects == label]
        self.plain = all(layout.source.plain for layout in self._layouts)
        world.tables.fill(base)
        self._before = world.exact()

    def change(self, cells: Cells, more: int = 0, other: Cells | None = None) -> int:
        """The size of one unit's change, by a scan of the whole database; every second row from ``other``."""
        rows = self._world.tables.orderly_unit(self._label, NUMBER, cells, more, other)
        if self._world.tables.policy.units[self._layouts[0].source.table] is None:
            rows = {name: mine[:1] for name, mine in rows.items()}
        after = self._world.with_rows(rows)
        size = self._world.size([a - b for a, b in zip(after, self._before, strict=True)])
        self._search.pairs += 1
        self._search.scans += 1
        self._search.largest = max(self._search.largest, size)
        return size

    def crowd(self, many: Sequence[Cells]) -> bool:
        """Whether units of one row a table, all there at once, change anything."""
        rows: Rows = {}
        for number, cells in enumerate(many):
            for name, mine in self._world.tables.orderly_unit(self._label, number + 3, cells, rows=1).items():
                rows.setdefault(name, []).extend(mine)
        self._search.scans += 1
        return self._world.with_rows(rows) != self._before

    def sizes(self, candidates: Sequence[Cells]) -> list[int]:
        """The sizes of several units' changes."""
        if not self.plain:
            return [self.change(cells) for cells in candidates]
        name = self._layouts[0].source.table
        rows = [self._world.tables.orderly_unit(self._label, NUMBER, cells)[name][0] for cells in candidates]
        changes = changes_of_copies(self._world, self._world.tables.tables[name], [[row] for row in rows])
        sizes = [self._world.size(change) for change in changes]
        self._search.pairs += len(sizes)
        self._search.scans += 1
        self._search.largest = max([self._search.largest, *sizes])
        return sizes


# -- tables of single rows --------------------------------------------------------------------------


def _vectors(world: World, table: Table, copies: Sequence[Sequence[Row]]) -> np.ndarray:
    """L x of each copy of a plain table (copies x entries, Python ints)."""
    connection = world.tables.connection
    places: dict[str, int] = {}  # the same few rows stand in many copies: each is written and read as SQL once
    pairs = [
        (number, places.setdefault(values_text(table, row)[1:], len(places)))
        for number, rows in enumerate(copies)
        for row in rows
    ]
    connection.execute(
        f"CREATE OR REPLACE TABLE {_DISTINCT} AS "  # noqa: S608 - quoted names
        f"SELECT CAST(0 AS INTEGER) AS dpsql_copy, * FROM {dotted(table.name)} LIMIT 0"
    )
    listed = [f"({place}, {text}" for text, place in places.items()]
    for start in range(0, len(listed), 2000):
        connection.execute(f"INSERT INTO {_DISTINCT} VALUES {', '.join(listed[start : start + 2000])}")  # noqa: S608
    connection.execute(
        f"CREATE OR REPLACE TABLE {_COPIES} AS SELECT copy AS dpsql_copy, rows.* EXCLUDE (dpsql_copy) FROM "  # noqa: S608
        f"(SELECT unnest(?::INTEGER[]) AS copy, unnest(?::INTEGER[]) AS place) JOIN {_DISTINCT} AS rows "
        "ON place = dpsql_copy",
        [[number for number, _ in pairs], [place for _, place in pairs]],
    )
    total: np.ndarray | None = None
    for layout in world.job.layouts:
        if layout.source.table == table.name:
            found = synthetic.exact_of_many(world.job, layout, world.tables.engine, _COPIES, len(copies))
            held = np.array(found, dtype=object)
            total = held if total is None else total + held
    return np.zeros((len(copies), world.job.integers.shape[1]), dtype=object) if total is None else total


def changes_of_copies(world: World, table: Table, copies: Sequence[Sequence[Row]]) -> list[list[int]]:
    """L B x of each copy of a plain table, from the empty one."""
    return [synthetic.measured_change(world.job, change) for change in _vectors(world, table, copies).tolist()]


def _small_tables(world: World, table: Table, best: Cells, draws: Draws, search: Search, few: int = FEW) -> None:
    """All tables of at most three of ``few`` rows, each against itself without one row: changes of L B x."""
    cells = [best, *(_drawn([table], draws) for _ in range(few - 1))]
    rows = [world.tables._orderly(table, i, 0, {}, c[table.name]) for i, c in enumerate(cells)]
    chosen = [c for size in range(4) for c in itertools.combinations(range(few), size)]
    x = _vectors(world, table, [[rows[i] for i in c] for c in chosen])
    at = {c: number for number, c in enumerate(chosen)}
    seen: set[tuple[int, ...]] = set()
    for c in chosen:
        for gone in c:
            change = x[at[c]] - x[at[tuple(i for i in c if i != gone)]]
            seen.add(tuple(change.tolist()))
            search.pairs += 1
    search.scans += 1
    for change in seen:
        search.largest = max(search.largest, world.size(synthetic.measured_change(world.job, list(change))))


# -- disorderly databases ---------------------------------------------------------------------------


def _disorderly(world: World, search: Search, pairs: int) -> None:
    draws = Draws("disorderly")
    read = {name for layout in world.job.layouts for name in layout.source.tables}
    labels = list(dict.fromkeys(layout.source.protects for layout in world.job.layouts))
    if all(layout.source.plain for layout in world.job.layouts):
        pairs = min(pairs, 40)  # the small tables say it all; these only run other rows through the scan
    spent = 0
    while spent < pairs:
        database = {name: rows for name, rows in world.tables.disorderly(draws).items() if name in read}
        spent += 1
        for label in labels:
            for unit in _units(world, database, label):
                rest = _less(database, unit)
                size = world.size(world.change(rest, unit))
                spent += 2
                search.pairs += 1
                search.scans += 2
                search.largest = max(search.largest, size)


def _units(world: World, database: Rows, label: str) -> list[Rows]:
    """The rows of every unit of a database."""
    tables, units = world.tables, world.tables.policy.units
    mine = [name for name in database if tables.policy.labels.get(name) == label]
    if all(units[name] is None for name in mine):
        return [{name: [row]} for name in mine for row in database[name]]
    owners = {tables.owner(database, tables.tables[name], row) for name in mine for row in database[name]}
    return [tables.owned_by(database, label, owner) for owner in sorted(owners, key=str)]


def _less(database: Rows, unit: Rows) -> Rows:
    """The database without those rows, each as often as the unit has it."""
    rest = {name: list(rows) for name, rows in database.items()}
    for name, rows in unit.items():
        for row in rows:
            rest[name].remove(row)
    return rest
