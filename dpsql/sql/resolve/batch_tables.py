"""Tables of a batch: what one scan reads for all statements about a table, and units counted instead of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpsql.errors import InternalError
from dpsql.workload.expr.batch import CaseKey, Column, Key, Table
from dpsql.workload.expr.conditions import Condition
from dpsql.workload.expr.rows import united as united_sources


def distinct_table(table: Table, condition: Condition, keys: Sequence[Key]) -> Table:
    """``table`` as units: one Query over it, with these keys and one count of ``condition``, counts units with a row.

    The name is fresh, one for equal tables, conditions and keys. Each unit counts in at most
    ``max_rows_per_unit`` groups, and not where it is NULL. Groups must not overlap (compile refuses them).
    Raises InternalError for a table of single rows.
    """
    if table.source is None or table.source.unit is None:
        raise InternalError(f"{table.name} has no unit to count")
    asked = [
        (key.name, key.labels, key.conditions) if isinstance(key, CaseKey) else (key.column, len(key)) for key in keys
    ]
    mark = hashlib.sha256(repr((condition, asked)).encode()).hexdigest()[:16]
    name = f"{table.name} by {table.source.unit.name} #{mark}"
    return replace(table, name=name, source=replace(table.source, distinct=True))


def united(tables: Iterable[Table]) -> dict[str, Table]:
    """One table for each name, with the columns and joins of all tables of that name.

    Raises InternalError where two of them mean different things by one column.
    """
    found: dict[str, dict[int, Table]] = {}
    for table in tables:
        found.setdefault(table.name, {})[id(table)] = table
    return {name: _union(list(mates.values())) for name, mates in found.items()}


def _union(tables: Sequence[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    columns: dict[str, Column] = {}
    for table in tables:
        for name, column in table.columns.items():
            before = columns.setdefault(name, column)
            if before is not column and (before.value, before.type, before.line) != (
                column.value,
                column.type,
                column.line,
            ):
                raise InternalError(f"two columns of {table.name} are named {column.name}")
    sources = list(dict.fromkeys(table.source for table in tables if table.source is not None))
    return replace(tables[0], columns=columns, source=united_sources(sources) if sources else None)
