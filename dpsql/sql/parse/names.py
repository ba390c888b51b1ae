"""Names of result columns that have no alias: DuckDB's own, asked of an empty DuckDB.

DuckDB is asked about the user's own text of an expression that was admitted, or else about
what sqlglot writes for it; the database that names them has no tables, no files and no data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import duckdb
from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.quoting import identifier
from dpsql.sql.parse.trees import nodes, written

# Characters of a name that dpsql makes up itself.
_LONGEST = 200


def result_names(
    items: Sequence[exp.Expression], schema: Mapping[str, str], texts: Sequence[str] | None = None
) -> list[str]:
    """The column names of SELECT ``items`` over a table with that schema, in order.

    ``texts`` are the items as the user wrote them, one an item, if known. The items must have been
    admitted. Where DuckDB cannot bind an item, at most 200 characters of its text name it.
    """
    names = []
    for number, item in enumerate(items):
        if isinstance(item, exp.Alias):
            names.append(str(item.alias))
        elif isinstance(item, exp.Column):
            names.append(next((name for name in schema if fold(name) == fold(item.name)), str(item.name)))
        else:
            found = [part for part in nodes(item) if isinstance(part, exp.Column)]
            used = {fold(column.name) for column in found}
            # A statement has one table, so that all its columns are qualified alike, if at all.
            qualifier = next((column.table for column in found if column.table), "t")
            kinds = tuple((name, kind) for name, kind in schema.items() if fold(name) in used)
            kinds = kinds or (("no_column", "INTEGER"),)
            name = _ask(texts[number], kinds, qualifier) if texts is not None else None
            if name is None:
                text = written(item)
                name = _ask(text, kinds, qualifier)
            # DuckDB cannot bind all that is admitted, such as a constant beyond the column's type.
            names.append(text[:_LONGEST] if name is None else name)
    return names


@functools.lru_cache(maxsize=65_536)
def _ask(text: str, schema: tuple[tuple[str, str], ...], table: str) -> str | None:
    """DuckDB's name for an expression; None where it does not read it as one column."""
    columns = ", ".join(f"NULL::{_plain(kind)} AS {identifier(name)}" for name, kind in schema)
    question = f"DESCRIBE SELECT {text} FROM (SELECT {columns}) AS {identifier(table)}"  # noqa: S608
    try:
        cursor = _empty_database().cursor()
        if len(cursor.extract_statements(question)) != 1:
            return None
        found = cursor.execute(question).fetchall()
    except duckdb.Error:
        return None
    return str(found[0][0]) if len(found) == 1 else None


def _plain(kind: str) -> str:
    """A type of which NULL can be cast without knowing user types."""
    return "VARCHAR" if kind.upper().startswith("ENUM") else kind


@functools.cache
def _empty_database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={"enable_external_access": "false", "threads": "1", "lock_configuration": "true"},
    )
