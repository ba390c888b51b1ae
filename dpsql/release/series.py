"""Results of standing batches in a releases file: the rows of all periods in one table, however many there are.

A table and a branch of a view for each period would make every night cost a little more than the one before, since
DuckDB reads all of a file's catalog when it is attached. So the rows of a result that has the same columns in every
period stand in one table of schema ``main``, each with its release and its period, and ``r<id>.<name>`` is a view of
those of one release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import duckdb

from dpsql.common.quoting import identifier

from .record import ReleaseTable

LATEST = "_latest"
"""What the view of the last period is called after its result."""
_COLUMN = "dpsql_release"
_AT_ONCE = 100


def place_of(table: ReleaseTable) -> tuple[str, str]:
    """The name of the table that holds the rows of a result's periods, and of its column of releases.

    The first column; ``period`` is the second, and the result's follow, none of which is called so
    (``extensions/periods/schedules.py``).
    """
    kinds = [(name, kind) for name, kind, _ in table.columns]
    mark = hashlib.sha256(repr(kinds).encode()).hexdigest()[:12]
    taken, column = {name.lower() for name, _ in kinds}, _COLUMN
    while column in taken:
        column += "_"
    return f"{table.name.lower()} {mark}", column


def make_place(connection: duckdb.DuckDBPyConnection, table: ReleaseTable) -> str:
    """The table for the rows of a result's periods, as SQL names it; made where it is not there yet."""
    name, column = place_of(table)
    columns = ", ".join(f"{identifier(name)} {kind}" for name, kind, _ in table.columns)
    target = f"main.{identifier(name)}"
    connection.execute(f"CREATE TABLE IF NOT EXISTS {target} ({identifier(column)} BIGINT, period DATE, {columns})")
    return target


def one_release(table: ReleaseTable, release: int) -> str:
    """The SELECT of one release's rows."""
    name, column = map(identifier, place_of(table))
    return f"SELECT * EXCLUDE ({column}, period) FROM main.{name} WHERE {column} = {release}"  # noqa: S608


def places(connection: duckdb.DuckDBPyConnection, catalogue: str, name: str = "") -> list[tuple[str, str]]:
    """(table, its column of releases) of each table of rows of periods; of one result's, if it is named."""
    # Not of duckdb_columns(), which looks into every view.
    rows = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' "
        "AND table_name <> 'releases' ORDER BY 1",
        [catalogue],
    ).fetchall()
    mine = [str(table) for (table,) in rows if not name or table.rpartition(" ")[0] == name.lower()]
    return [(table, columns_of(connection, f"main.{identifier(table)}")[0]) for table in mine]


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    """The names of a table's columns."""
    return [str(column[0]) for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]  # noqa: S608


def take_out(connection: duckdb.DuckDBPyConnection, catalogue: str, release: int) -> None:
    """Delete what the tables of periods hold of a release."""
    for table, column in places(connection, catalogue):
        connection.execute(f"DELETE FROM main.{identifier(table)} WHERE {identifier(column)} = {release}")  # noqa: S608


def rows_sql(connection: duckdb.DuckDBPyConnection, catalogue: str, name: str, of_period: Mapping[str, int]) -> str:
    """A result of the releases of several periods, the period before its columns, oldest first in each table."""
    wanted, parts = set(of_period.values()), []
    for table, column in places(connection, catalogue, name):
        held = f"main.{identifier(table)}"
        there = {row[0] for row in connection.execute(f"SELECT DISTINCT {identifier(column)} FROM {held}").fetchall()}  # noqa: S608
        if not there & wanted:
            continue
        others = ", ".join(map(str, sorted(there - wanted)))
        where = f" WHERE {identifier(column)} NOT IN ({others})" if others else ""
        parts.append(f"(SELECT * EXCLUDE ({identifier(column)}) FROM {held}{where} ORDER BY period, rowid)")  # noqa: S608
        wanted -= there
    apart = {period: number for period, number in of_period.items() if number in wanted}
    # Tables of a release each are of a version before, so of earlier periods.
    return " UNION ALL ".join([*([series_sql(name, apart)] if apart else []), *parts])


def series_sql(name: str, of_period: Mapping[str, int]) -> str:
    """The same from the releases themselves, one by one."""
    return _united(
        [
            f"SELECT DATE '{period}' AS period, * FROM r{of_period[period]}.{identifier(name)}"  # noqa: S608
            for period in sorted(of_period)
        ]
    )


def _united(parts: Sequence[str]) -> str:
    """All rows of many SELECTs, in their order; halves in brackets, since who reads it descends into each UNION."""
    if len(parts) <= _AT_ONCE:
        return " UNION ALL ".join(parts)
    middle = len(parts) // 2
    return f"({_united(parts[:middle])}) UNION ALL ({_united(parts[middle:])})"
