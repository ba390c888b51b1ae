"""DuckDB instances in which releases files are read and written.

Opening one takes ten times as long as what is done in it, so those that nobody uses stay open for the next time. A
file is attached for that moment only. One that reads can reach its file alone, and no setting of it can be changed,
since a file may hold views that dpsql did not make. One that writes runs statements of dpsql's over tables of its own
draft. What somebody asks runs in other instances than what dpsql reads by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dpsql.common.connection_pool import SpareInstances
from dpsql.common.quoting import string

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
# Sixty small tables then take 1 MB and 0.01 s instead of 16 MB and 0.05 s. Of a draft that was not finished nothing is
# needed, so that it has no log.
_WRITING = "BLOCK_SIZE 16384, RECOVERY_MODE no_wal_writes"
_BESIDE = ("", ".wal", ".wal.checkpoint", ".wal.recovery")  # what DuckDB looks for when it attaches a file
# What a question over the releases may take; there is no spilling, so memory is the bound of its work.
FOR_USER: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "2GB"}
_MOST_SPARE = 4
_spare: SpareInstances[tuple[Path | None, bool]] = SpareInstances(_MOST_SPARE)
"""By the file that each reads, None where it writes, and whether somebody asks it."""


@contextlib.contextmanager
def attached(path: Path, *, writing: bool = False, for_user: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """An instance with the file attached as catalog ``dpsql_releases``, which names without a catalog mean.

    Read-only, by an instance that reaches no other; or ``writing`` to a file that may not be there yet and that nobody
    else has open: all of it is in the file at the end. ``for_user``: for what somebody else asks. Raises duckdb.Error;
    after an error of any kind the instance is not used again.
    """
    reads = None if writing else path
    with _spare.taken((reads, for_user), lambda: _opened(reads, for_user)) as connection:
        connection.execute(f"ATTACH {string(str(path))} AS {CATALOG} ({_WRITING if writing else _READING})")
        connection.execute(f"USE {CATALOG}")
        yield connection
        if writing:
            connection.execute("CHECKPOINT")
        connection.execute(f"USE memory; DETACH {CATALOG}")


def _opened(reads: Path | None, for_user: bool) -> duckdb.DuckDBPyConnection:
    config = ISOLATED | {"enable_external_file_cache": "false"} | (FOR_USER if for_user else {"threads": "1"})
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    if not for_user:  # nor is there anything to gain on inserts of literals
        connection.execute("PRAGMA disable_optimizer")
    if reads is None:
        # Whoever made a draft syncs it once, when it is whole (``ReleaseStore``). Before DuckDB 2 each step does.
        with contextlib.suppress(duckdb.CatalogException):
            connection.execute("SET fsync_mode = 'NONE'")
    else:
        listed = ", ".join(string(f"{reads}{end}") for end in _BESIDE)
        connection.execute(f"SET allowed_paths = [{listed}]; SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection
