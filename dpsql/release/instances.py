"""DuckDB instances in which dpsql reads and writes releases files by itself.

Opening one takes ten times as long as what is done in it, so those that nobody uses stay open for the next time. A
file is attached for that moment only. They run statements that dpsql made and no other: what somebody asks runs in an
instance of its own, which reaches nothing else (``dpsql.release.reading.isolated``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dpsql.quoting import string

CATALOG = "dpsql_releases"

# Nothing outside the file: no extensions, no Python variables as tables.
ISOLATED: dict[str, str | bool | int | float | list[str]] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "temp_directory": "",
}
_READING = "READ_ONLY"
_WRITING = "BLOCK_SIZE 16384"  # sixty small tables then take 1 MB and 0.01 s instead of 16 MB and 0.05 s
_MOST_SPARE = 2  # a writer reads the file that it replaces
_spare: list[duckdb.DuckDBPyConnection] = []
_forgotten: list[duckdb.DuckDBPyConnection] = []


def _forked() -> None:
    # Those of the parent are neither used nor closed in a child: their threads are not there.
    _forgotten.extend(_spare)
    _spare.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def attached(path: Path, *, writing: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """An instance with the file attached as catalog ``dpsql_releases``, which names without a catalog mean.

    Read-only; or ``writing`` to a file that may not be there yet and that nobody else has open: all of it is in the
    file at the end. Raises duckdb.Error; after one of any kind the instance is not used again.
    """
    try:
        connection = _spare.pop()
    except IndexError:
        connection = _opened()
    with contextlib.ExitStack() as unless_kept:
        unless_kept.callback(connection.close)
        connection.execute(f"ATTACH {string(str(path))} AS {CATALOG} ({_WRITING if writing else _READING})")
        connection.execute(f"USE {CATALOG}")
        yield connection
        if writing:
            connection.execute("CHECKPOINT")
        connection.execute(f"USE memory; DETACH {CATALOG}")
        if len(_spare) < _MOST_SPARE:
            _spare.append(connection)
            unless_kept.pop_all()


def _opened() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=ISOLATED | {"threads": "1"})
    # There is nothing to gain on inserts of literals.
    connection.execute("PRAGMA disable_optimizer; SET TimeZone = 'UTC'")
    return connection
