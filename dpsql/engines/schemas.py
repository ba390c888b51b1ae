"""What columns a table has, of which types, as DuckDB describes it: no row is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from dpsql.common.quoting import identifier, string
from dpsql.engines import csv_files, parquet
from dpsql.engines.base import TableSource
from dpsql.errors import OperationalError, PolicyError

ALIAS = "dpsql_source"
_BESIDE = ("", ".wal", ".wal.checkpoint", ".wal.recovery")  # what DuckDB looks for when it attaches a file
_GENERATED = "GENERATED ALWAYS AS"  # in the text of a table, of each column that is computed


def reached(database: Path | None, files: Sequence[Path]) -> tuple[Path, ...]:
    """What an instance must reach that reads these files and a database."""
    return (*files, *([] if database is None else (Path(f"{database}{end}") for end in _BESIDE)))


def close_in(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """From now on an instance reaches these files and no other, and its settings are locked."""
    if files:
        listed = ", ".join(string(str(path)) for path in files)
        connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def attach(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Attach a file read-only under ``ALIAS``. Raises OperationalError."""
    if not database.is_file():
        other = any(":" in part for part in database.parts)
        copied = "; tables elsewhere, such as of Delta, are copied into one with CREATE TABLE ... AS" if other else ""
        raise OperationalError(f"{database} is not a file; give the path of the DuckDB database{copied}")
    message = ""
    try:
        connection.execute(f"ATTACH {string(str(database))} AS {ALIAS} (READ_ONLY)")
    except duckdb.Error as error:
        # The path itself may hold any word that is looked for below.
        message = str(error).replace(str(database), "")
    if not message:
        return
    if "lock" in message:
        raise OperationalError(f"{database} is open for writing in another process; close it there, then try again")
    if "already" in message or "same database file" in message or "handle" in message:
        raise OperationalError(
            f"{database} is open for writing in this process; pass that connection: "
            "dpsql.connect(connection, policy=..., ledger=...)"
        )
    raise OperationalError(f"{database} cannot be opened as a DuckDB database; check the file and DuckDB's version")


def schema_of(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> dict[str, str]:
    """Column types by name of a table of ``catalog`` or a file. Raises OperationalError, PolicyError."""
    if source.csv_types is not None and source.path is not None:
        return csv_files.schema(source)
    written, failed = "", False
    types: dict[str, str] = {}
    try:
        written = "" if source.path is not None else _base_table(connection, source, catalog)
        if source.path is not None:
            types = parquet.schema(connection, source)
        else:
            reference = ".".join(map(identifier, (catalog, *schema_and_table(source))))
            rows = connection.execute(f"DESCRIBE SELECT * FROM {reference}").fetchall()  # noqa: S608
            types = {str(row[0]): str(row[1]) for row in rows}
    except (duckdb.Error, ValueError):
        failed = True
    if failed:
        where = f"the source {source.path}" if source.path else "the database"
        raise OperationalError(f"the schema of {source.name} cannot be read from {where}; check that it exists")
    computed = _generated(connection, source, catalog) if _GENERATED in written else set()
    return {name: kind for name, kind in types.items() if name not in computed}


def _generated(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> set[str]:
    """Generated columns, which no batch may use: their expressions run in the scan and may fail on a row.

    Asked only where the table's text has these words, which are those of a generated column or within a default.
    Before DuckDB 2 the catalog does not tell a generated column from one with a default: there, a table with such a
    text loses its columns with defaults too.
    """
    schema, table = schema_and_table(source)
    rows = connection.execute(
        "SELECT column_name, is_generated, column_default IS NOT NULL FROM system.information_schema.columns "
        "WHERE table_catalog = ? AND system.main.lower(table_schema) = system.main.lower(?) "
        "AND system.main.lower(table_name) = system.main.lower(?)",
        [catalog, schema, table],
    ).fetchall()
    return {
        str(name)
        for name, generated, has_default in rows
        if generated == "ALWAYS" or (generated is None and has_default)
    }


def schema_and_table(source: TableSource) -> tuple[str, str]:
    schema, _, table = source.name.rpartition(".")
    return schema or "main", table


def _base_table(connection: duckdb.DuckDBPyConnection, source: TableSource, catalog: str) -> str:
    """The text of a table in capitals. No view is one: it may hold any SQL, and the policy says nothing of it."""
    schema, table = schema_and_table(source)
    # A third of what the information schema takes, which lists every column of every catalog.
    rows = connection.execute(
        "SELECT sql FROM system.main.duckdb_tables() WHERE database_name = ? AND NOT temporary "
        "AND system.main.lower(schema_name) = system.main.lower(?) "
        "AND system.main.lower(table_name) = system.main.lower(?)",
        [catalog, schema, table],
    ).fetchone()
    if rows is not None:
        return _GENERATED if rows[0] is None else str(rows[0]).upper()
    views = connection.execute(
        "SELECT table_type FROM system.information_schema.tables WHERE table_catalog = ? "
        "AND system.main.lower(table_schema) = system.main.lower(?) "
        "AND system.main.lower(table_name) = system.main.lower(?)",
        [catalog, schema, table],
    ).fetchone()
    if views is None:
        copied = ", or copy it with CREATE TABLE ... AS if it is of an attached one" if "." in source.name else ""
        raise PolicyError(
            f"tables.{source.name}: the database has no such table; correct the policy's name for it{copied}"
        )
    raise PolicyError(f"tables.{source.name} is a {str(views[0]).lower()}; the policy must name a table")
