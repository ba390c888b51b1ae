"""The limits and bounds of tables as the ledger keeps them beside a charge, and what changed between two releases.

The same budget answers another question under other limits, and a policy can be edited at any time: what a release was
made under is kept with it. All of it is public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fractions import Fraction

from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import TablePolicy

Limits = Mapping[str, Mapping[str, str]]
"""By table what bounds it, each under its key in the policy, as a text."""

_LONGEST = 200
_OF_TABLES = ("unit", "max_rows_per_unit", "max_periods_per_unit", "minimum", "periods")


def limits_in(tables: Mapping[str, TablePolicy], names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The limits of the tables of those names that are declared."""
    return {name: _of_table(tables[name]) for name in names if name in tables}


def changed_limits(before: Limits, after: Limits, where: str = "") -> list[str]:
    """What is otherwise in the tables that both have, a line each: "visits.minimum was 10, is 5".

    ``where`` follows "was 10", such as " in release 2".
    """
    found = []
    for table in before:
        old, new = before[table], after.get(table, before[table])
        for key in dict.fromkeys([*old, *new]):
            was, now = old.get(key, "not declared"), new.get(key, "not declared")
            if was != now:
                found.append(f"{table}.{key} was {was}{where}, is {now}")
    return found


def limits_by_release(made: Iterable[tuple[int, Limits]]) -> dict[int, list[str]]:
    """For each release, oldest first, what is otherwise than in the last release before it that read the same table.

    Releases of versions that kept no limits have none, and are passed over.
    """
    last: dict[str, tuple[int, Mapping[str, str]]] = {}
    found: dict[int, list[str]] = {}
    for release, limits in made:
        found[release] = []
        for table, own in limits.items():
            if table in last:
                before, old = last[table]
                found[release] += changed_limits({table: old}, {table: own}, f" in release {before}")
            last[table] = release, own
    return found


def _of_table(table: TablePolicy) -> dict[str, str]:
    found = {}
    for name in _OF_TABLES:
        value = getattr(table, name)
        if value is not None and not (table.public and name == "unit"):
            found[name] = str(value)
    if table.at_most:
        found["at_most"] = "; ".join(map(str, table.at_most))
    if table.unique:
        found["key"] = ", ".join(table.unique)
    for column, (other, target) in table.references.items():
        found[f"references.{column}"] = f"{other}.{target}"
    for declared in table.columns.values():
        found[f"columns.{declared.name}"] = _of_column(declared)
    return found


def _of_column(column: ColumnPolicy) -> str:
    said = []
    if column.values is not None:
        values = ", ".join(map(str, column.values))
        if len(values) > _LONGEST:  # a list of thousands is told from another, and not kept
            values = f"{len(column.values):,} values, SHA-256 {hashlib.sha256(values.encode()).hexdigest()[:16]}"
        said.append(f"values {values}")
    if column.lower is not None or column.upper is not None:
        said.append(f"{_figure(column.lower)} to {_figure(column.upper)}")
    if column.step is not None:
        said.append(f"step {_figure(column.step)}")
    if column.other:
        said.append("other")
    said.append("nulls" if column.nulls else "no nulls")
    return ", ".join(said)


def _figure(value: object) -> str:
    if isinstance(value, Fraction):
        return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"
    return "none" if value is None else str(value)
