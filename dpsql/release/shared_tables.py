"""Small results of one release that have the same columns: one table for all of them, and a view for each.

A batch of a hundred counts would else be a hundred tables of one row, each of which takes longer to make, to store and
to attach than a view. The table stands beside the views, in the schema of the release, with each row's result as its
first column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from dpsql.common.arrays import Values
from dpsql.common.quoting import identifier

from .record import ReleaseTable, ResultTable

FEWEST = 8
"""Fewer results of the same columns have a table each."""
MOST_ROWS = 1_000
"""A result of more rows has a table of its own, so that no view reads much of others."""


def sharing(tables: Sequence[ResultTable]) -> dict[str, list[ReleaseTable]]:
    """The results of a release that share a table, in their order, by a name for it that no result has."""
    by_columns: dict[tuple[tuple[str, str], ...], list[ReleaseTable]] = {}
    for table in tables:
        if table.listed and len(table) <= MOST_ROWS:
            by_columns.setdefault(tuple((name, kind) for name, kind, _ in table.columns), []).append(table)
    taken = {table.name for table in tables}
    free = (name for number in range(1, 2 * len(tables) + 1) if (name := f"#{number}") not in taken)
    return {next(free): found for found in by_columns.values() if len(found) >= FEWEST}


def united(tables: Sequence[ReleaseTable]) -> list[tuple[str, str, Values]]:
    """The columns of the one table: the number of each row's result, from 1 on, then what the results have."""
    numbers = [number for number, table in enumerate(tables, 1) for _ in range(len(table))]
    columns = zip(*(table.columns for table in tables), strict=True)
    shared = [(*one[0][:2], tuple(chain.from_iterable(values for _, _, values in one))) for one in columns]
    return [(_number(tables[0]), "INTEGER", numbers), *shared]


def views_sql(tables: Sequence[ReleaseTable], schema: str, name: str) -> str:
    """The statements that make the view of each result over their table."""
    place, column = f"{schema}.{identifier(name)}", identifier(_number(tables[0]))
    return ";\n".join(
        f"CREATE VIEW {schema}.{identifier(table.name)} AS SELECT * EXCLUDE ({column}) FROM {place} "  # noqa: S608
        f"WHERE {column} = {number}"
        for number, table in enumerate(tables, 1)
    )


def _number(table: ReleaseTable) -> str:
    """The name of the first column, which none of the results has."""
    taken, column = {name.lower() for name, _, _ in table.columns}, "dpsql_result"
    while column in taken:
        column += "_"
    return column
