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
from dpsql.policy.values import fold


def result_names(items: Sequence[exp.Expression], schema: Mapping[str, str]) -> list[str]:
    """The column names of SELECT ``items`` over a table with that schema, in order."""
    names = []
    for item in items:
        if isinstance(item, exp.Alias):
            names.append(str(item.alias))
        elif isinstance(item, exp.Column):
            names.append(next((name for name in schema if fold(name) == fold(item.name)), str(item.name)))
        else:
            found = list(item.find_all(exp.Column))
            used = {fold(column.name) for column in found}
            # A statement has one table, so that all its columns are qualified alike, if at all.
            qualifier = next((column.table for column in found if column.table), "t")
            kinds = tuple((name, kind) for name, kind in schema.items() if fold(name) in used)
            names.append(_ask(item.sql("duckdb", comments=False), kinds or (("no_column", "INTEGER"),), qualifier))
    return names


@functools.lru_cache(maxsize=65_536)
def _ask(text: str, schema: tuple[tuple[str, str], ...], table: str) -> str:
    columns = ", ".join(f"NULL::{_plain(kind)} AS {_quote(name)}" for name, kind in schema)
    question = f"DESCRIBE SELECT {text} FROM (SELECT {columns}) AS {_quote(table)}"  # noqa: S608
    try:
        found = _empty_database().cursor().execute(question).fetchone()
    except duckdb.Error:
        # DuckDB cannot bind all that is admitted, such as a constant beyond the column's type: its text names it.
        return text
    if found is None:
        raise SQLError(f"DuckDB has no name for {text[:60]}; give it an alias")
    return str(found[0])


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plain(kind: str) -> str:
    """A type of which NULL can be cast without knowing user types."""
    return "VARCHAR" if kind.upper().startswith("ENUM") else kind


@functools.cache
def _empty_database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={"enable_external_access": "false", "threads": "1", "lock_configuration": "true"},
    )
