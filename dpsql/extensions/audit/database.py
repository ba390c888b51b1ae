"""Generated databases: tables as the policy declares them, rows of units, and who owns a row.

A row is a tuple of cells, one a column. Cells of columns that hold units, keys or references are numbers
(an index into the values of that key, None for NULL); all other cells are SQL texts. Columns that a
reference or a common unit links take their values from one list, so that rows find each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dpsql.common.quoting import dotted
from dpsql.errors import PolicyError
from dpsql.extensions.audit.values import Draws, creatable, key_text, pool, type_of
from dpsql.measure.synthetic import SyntheticEngine
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.units import ForeignKey, foreign_keys
from dpsql.policy.values import fold

Cell: TypeAlias = "str | int | None"
Row: TypeAlias = "tuple[Cell, ...]"
Rows: TypeAlias = "dict[str, list[Row]]"
"""Rows by table: a whole database, or those of one unit."""

SHARED = 6
"""Keys below this are drawn by all units, so that they meet; each unit has others to itself."""
OWN = 8
"""How many keys of its own a unit has in a table."""
KEYS = 2048
"""How many keys a column has at most, and how many units can stand beside each other with keys of their own."""


@dataclass(frozen=True)
class Column:
    """A column of a generated table; ``keys`` are the SQL texts of its keys, or ``values`` those of its values."""

    name: str
    type: str
    policy: ColumnPolicy | None
    keys: tuple[str, ...] = field(default=(), repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)

    def text(self, cell: Cell) -> str:
        if isinstance(cell, int):
            return self.keys[cell % len(self.keys)]
        return cell or "NULL"


@dataclass(frozen=True)
class Table:
    """A generated table, what leads from it to others, and where its unit is."""

    policy: TablePolicy
    columns: tuple[Column, ...]
    references: tuple[ForeignKey, ...]

    @property
    def name(self) -> str:
        """The policy's name of the table."""
        return self.policy.name

    def at(self, name: str) -> int:
        """The position of a column."""
        return next(i for i, column in enumerate(self.columns) if fold(column.name) == fold(name))

    def pick(self, row: Row, names: Iterable[str]) -> tuple[Cell, ...]:
        """The cells of some columns."""
        return tuple(row[self.at(name)] for name in names)


class Synthetic:
    """Generated tables in an engine of their own, under a policy without sources."""

    def __init__(self, policy: Policy, schemas: Mapping[str, Mapping[str, str]] | None, texts: Sequence[str]) -> None:
        """Make the tables, empty. ``schemas``: types by table and column, else they follow from the policy.

        Values are drawn from ``texts``, too. Raises PolicyError.
        """
        self.policy = replace(policy, tables={n: replace(t, source=None) for n, t in policy.tables.items()}, path=None)
        self.engine = SyntheticEngine()
        self.connection = self.engine.connection
        self.connection.execute("SET TimeZone = 'UTC'")
        links = _Links(self.policy)
        self.tables = {
            table.name: self._table(table, None if schemas is None else schemas[table.name], links, texts)
            for table in self.policy.tables.values()
        }
        for name in _schemas(self.tables):
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        for table in self.tables.values():
            self.connection.execute(f"CREATE TABLE {dotted(table.name)}({_listed(table)})")

    def _table(
        self, table: TablePolicy, schema: Mapping[str, str] | None, links: _Links, texts: Sequence[str]
    ) -> Table:
        special = _special(self.policy, table)
        declared = {fold(c.name): c for c in table.columns.values()}
        if schema is None:
            names = [*(c.name for c in table.columns.values())]
            names += [name for name in special.values() if fold(name) not in declared]
            kinds = {name: self._type(declared.get(fold(name)), (table.name, name), links) for name in names}
        else:
            kept = {fold(name) for name in (*declared, *special)}
            kinds = {name: kind for name, kind in schema.items() if fold(name) in kept}
        columns = []
        for name, kind in kinds.items():
            column = declared.get(fold(name))
            made = creatable(kind, column)
            if fold(name) in special:
                shown = links.policy_of((table.name, name)) or column
                columns.append(Column(name, made, column, keys=self._keys(made, shown)))
            else:
                values = pool(self.connection, made, column, texts)
                columns.append(Column(name, made, column, values=tuple(values)))
        return Table(table, tuple(columns), foreign_keys(self.policy.tables, table))

    def _type(self, column: ColumnPolicy | None, place: tuple[str, str], links: _Links) -> str:
        shown = column if column is not None and (column.type or column.values or column.lower is not None) else None
        linked = shown or links.policy_of(place)
        if linked is not None:
            return type_of(linked)
        return "BIGINT" if column is None or links.of(place) else type_of(column)

    def _keys(self, kind: str, column: ColumnPolicy | None) -> tuple[str, ...]:
        """As many different keys as the type has, up to ``KEYS``."""
        texts = [key_text(kind, column, index) for index in range(KEYS)]
        shown = self.connection.execute(f"SELECT unnest([{', '.join(texts)}])").fetchall()
        seen, kept = set(), []
        for text, (value,) in zip(texts, shown, strict=True):
            if value is None or value in seen:
                break
            seen.add(value)
            kept.append(text)
        return tuple(kept)

    # -- rows ------------------------------------------------------------------------------------

    def insert(self, rows: Rows) -> None:
        for name, mine in rows.items():
            if mine:
                table = self.tables[name]
                listed = ", ".join(values_text(table, row) for row in mine)
                self.connection.execute(f"INSERT INTO {dotted(name)} VALUES {listed}")  # noqa: S608 - own texts

    def fill(self, rows: Rows) -> None:
        """These rows and no others."""
        for name in self.tables:
            self.connection.execute(f"DELETE FROM {dotted(name)}")  # noqa: S608 - a quoted name
        self.insert(rows)

    def owner(self, rows: Rows, table: Table, row: Row) -> object:
        """The unit that owns a row of a database: its cell, None for the unit of rows without one.

        Worked out from what docs/units.md says, apart from the code that scans: where several rows have the key
        that a reference looks for, the least decides. Single rows own themselves.
        """
        unit = self.policy.units[table.name]
        if unit is None:
            return (table.name, row)
        for step, key in enumerate(unit.path):
            wanted = table.pick(row, key.columns)
            table = self.tables[key.table]
            decide = unit.path[step + 1].columns if step + 1 < len(unit.path) else (unit.column,)
            found = [
                candidate
                for candidate in rows.get(table.name, [])
                if None not in wanted and table.pick(candidate, key.key) == wanted
            ]
            if not found:
                return None
            deciding = table
            row = min(found, key=lambda r: tuple((c is None, c or 0) for c in deciding.pick(r, decide)))
        return table.pick(row, (unit.column,))[0]

    def owned_by(self, rows: Rows, label: str, unit: object) -> Rows:
        """All rows of one unit, in every private table whose unit has that label."""
        labels = self.policy.labels
        return {
            name: [row for row in mine if self.owner(rows, self.tables[name], row) == unit]
            for name, mine in rows.items()
            if labels.get(name) == label
        }

    # -- making rows -----------------------------------------------------------------------------

    def in_order(self) -> list[Table]:
        """The tables, each after those that it refers to."""
        placed: list[Table] = []
        waiting = list(self.tables.values())
        while waiting:
            known = {table.name for table in placed}
            ready = [t for t in waiting if all(key.table in known or key.table == t.name for key in t.references)]
            if not ready:
                raise PolicyError("the references of the policy go round in a circle, which the audit cannot fill")
            placed += ready
            waiting = [table for table in waiting if table not in ready]
        return placed

    def public_rows(self, draws: Draws, count: int = 6) -> Rows:
        """Rows of the public tables, with every key once and some twice."""
        found: Rows = {}
        for table in self.in_order():
            if table.policy.public:
                keys = [i % (count - 1) for i in range(count)]
                found[table.name] = [
                    tuple(key if c.keys else draws.choice(c.values) for c in table.columns) for key in keys
                ]
        return found

    def orderly_unit(
        self,
        label: str,
        number: int,
        cells: Mapping[str, Mapping[str, Cell]],
        more: int = 0,
        other: Mapping[str, Mapping[str, Cell]] | None = None,
        rows: int | None = None,
    ) -> Rows:
        """Rows of unit ``number`` with keys of its own: as many as count in each table of ``label``, and ``more``.

        ``rows`` in each table instead, if given.

        All rows of a table are alike but for their keys; ``cells`` gives the values by table and column, for every
        second row ``other`` where it is given. A
        reference leads to the unit's own rows, or to a public row that ``cells`` may name.
        """
        made: Rows = {}
        for table in self.in_order():
            if self.policy.labels.get(table.name) == label:
                size = (table.policy.max_rows_per_unit or 1) + more if rows is None else rows
                by_turns = (cells[table.name], (other or cells)[table.name])
                made[table.name] = [self._orderly(table, number, j, made, by_turns[j % 2]) for j in range(size)]
        return made

    def _orderly(self, table: Table, number: int, j: int, made: Rows, cells: Mapping[str, Cell]) -> Row:
        unit = self.policy.units[table.name]
        row: dict[str, Cell] = {}
        for column in table.columns:
            row[fold(column.name)] = cells[fold(column.name)] if not column.keys else SHARED + number * OWN + j % OWN
        for key in table.references:
            rows = made.get(key.table)
            target = self.tables[key.table]
            for name, theirs in zip(key.columns, key.key, strict=True):
                if rows:
                    row[fold(name)] = target.pick(rows[j % len(rows)], (theirs,))[0]
                elif target.policy.public:
                    row[fold(name)] = cells.get(fold(name), 0)
        if unit is not None and not unit.path:
            row[fold(unit.column)] = number
        return tuple(row.values())

    def disorderly(self, draws: Draws, most: int = 7) -> Rows:
        """A database that breaks promises: keys that units share, keys twice, dangling and missing ones, NULL units."""
        found = self.public_rows(draws)
        for table in self.tables.values():
            if not table.policy.public:
                found[table.name] = [
                    tuple(self._loose(column, draws) for column in table.columns) for _ in range(draws.below(most))
                ]
        return found

    @staticmethod
    def _loose(column: Column, draws: Draws) -> Cell:
        if not column.keys:
            return draws.choice(column.values)
        return draws.choice((0, 0, 1, 1, 2, 3, None))


def values_text(table: Table, row: Row) -> str:
    """A row as SQL, in parentheses; of a table without columns, that of ``_listed``."""
    return "(" + (", ".join(c.text(cell) for c, cell in zip(table.columns, row, strict=True)) or "NULL") + ")"


def _listed(table: Table) -> str:
    return ", ".join(f"{dotted(column.name)} {column.type}" for column in table.columns) or "dpsql_nothing INTEGER"


def _schemas(tables: Iterable[str]) -> list[str]:
    return sorted({dotted(name.rpartition(".")[0]) for name in tables if "." in name})


def _special(policy: Policy, table: TablePolicy) -> dict[str, str]:
    """The columns of a table that hold units, keys or references, by folded name."""
    unit = None if table.public else policy.units[table.name]
    names = [*table.unique, *table.references, *([unit.column] if unit is not None and not unit.path else [])]
    return {fold(name): name for name in names}


class _Links:
    """Which columns share their keys: those that references join, and the unit columns of tables with one unit."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._group: dict[tuple[str, str], tuple[str, str]] = {}
        by_label: dict[str, tuple[str, str]] = {}
        for table in policy.tables.values():
            for key in foreign_keys(policy.tables, table):
                for column, target in zip(key.columns, key.key, strict=True):
                    self._join((table.name, fold(column)), (key.table, fold(target)))
            unit = None if table.public else policy.units[table.name]
            if unit is not None and not unit.path:
                place = (table.name, fold(unit.column))
                self._join(place, by_label.setdefault(policy.labels[table.name], place))

    def _root(self, place: tuple[str, str]) -> tuple[str, str]:
        while self._group.get(place, place) != place:
            place = self._group[place]
        return place

    def _join(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        first, second = self._root(one), self._root(other)
        self._group.setdefault(second, second)
        self._group[first] = second

    def of(self, place: tuple[str, str]) -> list[tuple[str, str]]:
        """The columns that share the keys of one, itself among them; none where it is linked to none."""
        place = (place[0], fold(place[1]))
        return [other for other in self._group if self._root(other) == self._root(place)]

    def policy_of(self, place: tuple[str, str]) -> ColumnPolicy | None:
        """The first declared domain among linked columns."""
        for table, name in [(place[0], fold(place[1])), *self.of(place)]:
            for column in self._policy.tables[table].columns.values():
                if fold(column.name) == name and (column.type or column.values or column.lower is not None):
                    return column
        return None
