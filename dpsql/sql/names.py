"""Names of result columns that have no alias: DuckDB's own, asked of an empty DuckDB.

The expressions were parsed already and are written out again by sqlglot; the database that
names them has no tables, no files and no data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import duckdb
from sqlglot import exp

from dpsql.errors import SQLError


def result_names(items: Sequence[exp.Expression], schema: Mapping[str, str]) -> list[str]:
    """The column names of SELECT ``items`` over a table with that schema, in order."""
    names = []
    for item in items:
        if isinstance(item, exp.Alias):
            names.append(str(item.alias))
        elif isinstance(item, exp.Column):
            names.append(str(item.name))
        else:
            bare = item.copy()
            for column in bare.find_all(exp.Column):
                column.set("table", None)
            names.append(_ask(bare.sql("duckdb", comments=False), tuple(schema.items())))
    return names


@functools.lru_cache(maxsize=65_536)
def _ask(text: str, schema: tuple[tuple[str, str], ...]) -> str:
    columns = ", ".join(f'NULL::{_plain(kind)} AS "{name.replace(chr(34), chr(34) * 2)}"' for name, kind in schema)
    try:
        found = _empty_database().execute(f"DESCRIBE SELECT {text} FROM (SELECT {columns})").fetchone()  # noqa: S608
    except duckdb.Error:
        # What DuckDB cannot bind is refused later with a reason; until then its text names it.
        return text
    if found is None:
        raise SQLError(f"DuckDB has no name for {text[:60]}; give it an alias")
    return str(found[0])


def _plain(kind: str) -> str:
    """A type of which NULL can be cast without knowing user types."""
    return "VARCHAR" if kind.upper().startswith("ENUM") else kind


@functools.cache
def _empty_database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={"enable_external_access": "false", "threads": "1", "lock_configuration": "true"},
    )
