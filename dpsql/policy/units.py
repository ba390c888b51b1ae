"""Units across tables: which columns say whom a row belongs to, and which tables share a unit.

A privacy unit is all rows of one value in all tables that share the unit. Tables share it where

- a declared reference leads from the unit column of one to the unit column of another
  (``visits.patient_id`` refers to ``patients.id``),
- the unit of one is found in another through references (``unit = "visits.patient_id"``), or
- their unit columns have the same name, in any case,

and by any chain of these. Such tables are protected together: what one unit does to each of them
adds up. Tables that are linked by none of these are protected apart, each against its own unit: if
one person is behind units of two names, declare the references that link them; ``doubtful_units`` warns where that
is likely. A table with
``unit = "row"`` shares its unit with no other table.

Two rows have one unit where their values are equal, text in binary order; all rows without a value
are one unit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dpsql.errors import PolicyError, nearest
from dpsql.policy.model import TablePolicy
from dpsql.policy.settings import Findings
from dpsql.policy.values import dotted, fold

LONGEST_PATH = 8


@dataclass(frozen=True)
class ForeignKey:
    """A declared reference: ``columns[i]`` of a table holds ``key[i]`` of a row of ``table``, whose key that is."""

    columns: tuple[str, ...]
    table: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """Where a table's unit is: in ``column`` of ``table``, which ``path`` leads to (empty: the table's own)."""

    column: str
    table: str
    path: tuple[ForeignKey, ...]


def foreign_keys(tables: Mapping[str, TablePolicy], table: TablePolicy) -> tuple[ForeignKey, ...]:
    """The references of ``table``, those that share a target with a key of several columns made one.

    Raises PolicyError where a target is not declared or is no key.
    """
    known = {fold(name): declared for name, declared in tables.items()}
    composite: dict[str, list[tuple[str, str]]] = {}
    found = []
    for column, (name, target) in table.references.items():
        here = table.key("references", column)
        other = known.get(fold(name))
        if other is None:
            raise PolicyError(f"{here}: the policy has no table {name}; {nearest(name, tables)}")
        matching = next((key for key in other.unique if fold(key) == fold(target)), None)
        if matching is None:
            has = (
                f"its key is {', '.join(other.unique)}" if other.unique else f'write {other.key("key")} = ["{target}"]'
            )
            raise PolicyError(f"{here}: {target} is not in the key of {other.name}; {has}")
        if len(other.unique) == 1:
            found.append(ForeignKey((column,), other.name, (matching,)))
        else:
            composite.setdefault(other.name, []).append((column, matching))
    for name, pairs in composite.items():
        by_key = {key: column for column, key in pairs}
        needed = known[fold(name)].unique
        if len(by_key) < len(pairs) or len(by_key) < len(needed):
            raise PolicyError(
                f"{table.key('references')} must name each column of the key of {name} once: {', '.join(needed)}"
            )
        found.append(ForeignKey(tuple(by_key[key] for key in needed), name, needed))
    return tuple(found)


def unit_of(tables: Mapping[str, TablePolicy], table: TablePolicy) -> Unit | None:
    """Where the unit of ``table`` is; None for a unit of one row.

    A unit "visits.patient_id" is the one of the table ``visits`` where the policy has that table; the path
    of references to it must be the only one. Raises PolicyError.
    """
    if table.unit == "row":
        return None
    name, _, column = table.unit.rpartition(".")
    known = {fold(n): declared for n, declared in tables.items()}
    holder = known.get(fold(name)) if name else None
    if holder is None:
        return Unit(table.unit, table.name, ())
    here = f"{table.key('unit')} is {table.unit}"
    if holder.public or fold(holder.unit) != fold(column):
        raise PolicyError(f"{here}, but {column} is not the unit of {holder.name}; write the unit that it declares")
    paths = [path for path in _paths(tables, table, holder.name, frozenset()) if path]
    if not paths:
        raise PolicyError(
            f"{here}, but no declared reference leads from {table.name} to {holder.name}; declare "
            f'{table.key("references")} = {{ column = "{holder.name}.key" }}'
        )
    if len(paths) > 1:
        raise PolicyError(
            f"{here}, but references lead from {table.name} to {holder.name} in {len(paths)} ways; drop all but "
            "the one that leads to the unit"
        )
    found = Unit(holder.unit, holder.name, paths[0])
    for step, key in enumerate(found.path[:-1]):
        # Else the rows on the way would belong to somebody else than the rows that are found through them.
        between = tables[key.table]
        if unit_of(tables, between) != Unit(holder.unit, holder.name, found.path[step + 1 :]):
            stored = between.unit != "row" and "." not in between.unit
            advice = (
                f'{table.key("unit")} = "{between.name}.{between.unit}"'
                if stored
                else f'{between.key("unit")} = "{table.unit}" too'
            )
            raise PolicyError(f"{here}, found through {between.name}, whose unit is {between.unit}; write {advice}")
    return found


def _paths(
    tables: Mapping[str, TablePolicy], table: TablePolicy, goal: str, seen: frozenset[str]
) -> Iterator[tuple[ForeignKey, ...]]:
    if table.name == goal:
        yield ()
        return
    if len(seen) >= LONGEST_PATH:
        return
    for key in foreign_keys(tables, table):
        target = tables[key.table]
        if not target.public and key.table not in seen and key.table != table.name:
            for rest in _paths(tables, target, goal, seen | {table.name}):
                yield (key, *rest)


def check_units(tables: Mapping[str, TablePolicy]) -> None:
    """Nothing, or PolicyError where references and units contradict each other."""
    found = Findings()
    for table in tables.values():
        with found.each():
            _check_unit(tables, table)
    found.refuse()


def _check_unit(tables: Mapping[str, TablePolicy], table: TablePolicy) -> None:
    keys = foreign_keys(tables, table)
    if not table.public and table.unit != "row":
        unit = unit_of(tables, table)
        for key in keys:
            for column, target in zip(key.columns, key.key, strict=True):
                other = tables[key.table]
                mine = unit is not None and not unit.path and fold(column) == fold(unit.column)
                if mine and not other.public and fold(other.unit) != fold(target):
                    advice = (
                        f'{other.key("unit")} = "{target}" and {dotted("max_rows_per_unit")} = 1'
                        if other.unit == "row"
                        else f'{table.key("unit")} = "{other.name}.{other.unit}"'
                    )
                    raise PolicyError(
                        f"{table.key('unit')} {column} refers to {other.name}.{target}, but the unit of {other.name} "
                        f"is {other.unit}; one of the two must change, such as {advice}"
                    )


def units_in(tables: Mapping[str, TablePolicy], names: Iterable[str]) -> dict[str, str]:
    """The declared unit of each private table of those names: what the ledger keeps beside a charge."""
    return {name: tables[name].unit for name in names if not tables[name].public}


def unit_labels(tables: Mapping[str, TablePolicy]) -> dict[str, str]:
    """For each private table what its unit is called; tables of equal labels share a unit (see the module).

    "row of visits" for single rows, else the name of a unit column.
    """
    private = [table for table in tables.values() if not table.public]
    units = {table.name: unit_of(tables, table) for table in private}
    group = {table.name: table.name for table in private}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    by_column: dict[str, str] = {}
    for table in private:
        unit = units[table.name]
        if unit is None:
            continue
        linked = [unit.table, by_column.setdefault(fold(unit.column), table.name)]
        if not unit.path:
            linked += [
                key.table
                for key in foreign_keys(tables, table)
                for column in key.columns
                if fold(column) == fold(unit.column) and not tables[key.table].public
            ]
        for other in linked:
            group[root(other)] = root(table.name)
    labels: dict[str, str] = {}
    for table in private:
        unit = units[table.name]
        if unit is None:
            labels[table.name] = f"row of {table.name}"
            continue
        # The name that references use says more than the key it refers to: patient_id rather than id.
        mates = [mate for mate in private if root(mate.name) == root(table.name)]
        named = [found.column for mate in mates for found in [units[mate.name]] if found is not None]
        outside = [
            found.column
            for mate in mates
            for found in [units[mate.name]]
            if found is not None and not found.path and fold(found.column) not in {fold(k) for k in mate.unique}
        ]
        labels[table.name] = (outside or named)[0]
    return labels


@dataclass(frozen=True)
class UnitColumn:
    """The unit column of a table, and the keys that it leads to, as (table, column) in lower case."""

    table: str
    column: str
    leads: frozenset[tuple[str, str]]


def doubtful_units(units: Iterable[UnitColumn], linked: Callable[[str, str], bool]) -> list[str]:
    """A line for each two unit columns that may well hold one person, whose tables are protected apart.

    Their names differ by case, space or underscore alone, or their values come from one key. ``linked``: whether two
    tables share their unit. Of tables that are linked to each other one stands for all.
    """
    found: list[str] = []
    first: list[UnitColumn] = []
    for one in units:
        if any(linked(other.table, one.table) and _squeezed(other.column) == _squeezed(one.column) for other in first):
            continue
        for other in first:
            common = sorted(other.leads & one.leads)
            if linked(other.table, one.table) or not (common or _squeezed(other.column) == _squeezed(one.column)):
                continue
            why = f"both refer to {'.'.join(common[0])}" if common else "their names are nearly the same"
            found.append(
                f"{other.table} protects each {other.column} and {one.table} each {one.column}, apart from each other, "
                f"though {why}: whoever is behind both has the sum of both epsilons; link them by a reference from "
                "one unit column to the other, which is a key there, or give both columns one name"
            )
        first.append(one)
    return found


def doubtful_units_of(tables: Mapping[str, TablePolicy]) -> list[str]:
    """``doubtful_units`` of a policy."""
    labels = unit_labels(tables)
    units = []
    for table in tables.values():
        unit = None if table.public else unit_of(tables, table)
        if unit is not None and not unit.path:
            units.append(UnitColumn(table.name, unit.column, _leads(tables, table, unit.column)))
    return doubtful_units(units, lambda one, other: labels[one] == labels[other])


def _leads(tables: Mapping[str, TablePolicy], table: TablePolicy, column: str) -> frozenset[tuple[str, str]]:
    """The keys that a column refers to, through public tables too, and itself where it is one."""
    found: set[tuple[str, str]] = set()
    waiting = [(table, column)]
    while waiting:
        here, name = waiting.pop()
        if (fold(here.name), fold(name)) in found:
            continue
        if here is not table or [fold(key) for key in here.unique] == [fold(name)]:
            found.add((fold(here.name), fold(name)))
        for key in foreign_keys(tables, here):
            for mine, target in zip(key.columns, key.key, strict=True):
                if fold(mine) == fold(name):
                    waiting.append((tables[key.table], target))
    return frozenset(found)


def _squeezed(column: str) -> str:
    return fold(column).replace("_", "").replace(" ", "")
