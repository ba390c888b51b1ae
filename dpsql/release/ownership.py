"""Whether a file may be replaced by a releases database: only if it is one, or none is there."""

from __future__ import annotations

from pathlib import Path

import duckdb

from dpsql.errors import OperationalError
from dpsql.quoting import string


def check_replaceable(path: Path) -> None:
    """Raise OperationalError where ``path`` holds anything but a releases database.

    The releases file is derived and is replaced as a whole, so a mistyped path would otherwise
    cost the file that is there. A file that DuckDB cannot read is taken for a damaged releases
    database only where the lock file of an earlier write stands beside it.
    """
    if not path.exists():
        return
    found: list[tuple[int]] | None = None
    try:
        connection = duckdb.connect(":memory:", config={"threads": "1"})
        try:
            connection.execute(f"ATTACH {string(str(path))} AS held (READ_ONLY)")
            found = connection.execute(
                "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'held' AND schema_name = 'main' "
                "AND table_name = 'releases'"
            ).fetchall()
        finally:
            connection.close()
    except duckdb.Error:
        # Busy or unreadable: whether it is ours shows below.
        pass
    ours = path.with_name(path.name + ".lock").exists() if found is None else found[0][0] == 1
    if not ours:
        raise OperationalError(
            f"{path} is not a releases database, and writing releases would replace it; name another with releases="
        )
