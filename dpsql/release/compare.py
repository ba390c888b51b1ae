"""Whether a releases file holds what its ledger says, table by table and row by row."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb

from dpsql.quoting import identifier, string

from .record import ReleaseRecord
from .store import ReleaseStore

_TABLES = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{}' ORDER BY ALL"


def differing(store: ReleaseStore, records: Sequence[ReleaseRecord]) -> list[str]:
    """The tables of the file that are not as the ledger's ``records`` make them, such as "r3.by_state".

    Of releases that the file has; one that it lacks is written at the next use. Where a view of schema dp shows an
    earlier release is no difference. Raises as ``ReleaseStore.sql``.
    """
    present = set(store.moments())
    with tempfile.TemporaryDirectory() as folder:
        expected = ReleaseStore(Path(folder) / "expected.duckdb")
        expected.rebuild([record for record in records if record.release_id in present])
        with duckdb.connect(":memory:", config={"threads": "1", "autoinstall_known_extensions": "false"}) as connection:
            for name, path in (("held", store.path), ("made", expected.path)):
                connection.execute(f"ATTACH {string(str(path))} AS {name} (READ_ONLY)")
            tables = [set(connection.execute(_TABLES.format(name)).fetchall()) for name in ("held", "made")]
            found = tables[0] ^ tables[1]
            found |= {table for table in tables[0] & tables[1] if _differ(connection, *table)}
    return [f"{schema}.{table}" for schema, table in sorted(found)]


def _differ(connection: duckdb.DuckDBPyConnection, schema: str, table: str) -> bool:
    name = f"{identifier(schema)}.{identifier(table)}"
    described = [
        connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {file}.{name}) ORDER BY 1").fetchall()  # noqa: S608
        for file in ("held", "made")
    ]
    if described[0] != described[1]:
        return True
    columns = ", ".join(identifier(column) for column, _ in described[0])
    sides = [f"SELECT {columns} FROM {file}.{name}" for file in ("held", "made")]  # noqa: S608
    return any(
        connection.execute(f"SELECT 1 FROM ({one} EXCEPT ALL {other}) LIMIT 1").fetchone() is not None  # noqa: S608
        for one, other in (sides, sides[::-1])
    )
