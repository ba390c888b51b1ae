"""Tables whose last scan failed: no charge is made for them until their files change or the custodian clears them.

That a scan failed is public: whoever asked for it was told, and was charged. Each failure is an event of the ledger, so
that every process refuses the tables, with the number of its release and a mark of the files of each table: SHA-256
over a random salt, their paths, devices, inodes and times, neither contents nor sizes. So whether the files of such a
table have changed since becomes public, too, by way of the next answer; of all other tables nothing does
(``file_marks``).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from dpsql.privacy import chain
from dpsql.privacy.file_marks import mark_of

FAILED, CLEARED = "scan failed", "failed scans cleared"


@dataclass(frozen=True)
class FailedScan:
    """The release whose scan failed, when, and the mark that the files of a table had then."""

    release: int
    time: str
    salt: str
    mark: str

    def is_of(self, files: str) -> bool:
        """Whether the files are still as they were."""
        return mark_of(self.salt, files) == self.mark


def newest(connection: sqlite3.Connection, dataset: str) -> dict[str, FailedScan]:
    """The newest failure of each table that was not cleared since."""
    found: dict[str, FailedScan] = {}
    rows = connection.execute(
        "SELECT kind, number, time, details FROM events WHERE kind IN (?, ?) ORDER BY id", (FAILED, CLEARED)
    )
    for kind, number, time, text in rows:
        held = json.loads(text)
        if held["dataset"] != dataset:
            continue
        if kind == CLEARED:
            found = {}
        else:
            found |= {table: FailedScan(number, time, salt, seen) for table, (salt, seen) in held["tables"].items()}
    return found


def note(connection: sqlite3.Connection, dataset: str, release: int, files: Mapping[str, str]) -> None:
    """Write that the scan of a release failed, over tables with these files."""
    marks = {}
    for table, text in files.items():
        salt = secrets.token_hex(16)
        marks[table] = [salt, mark_of(salt, text)]
    chain.note(connection, FAILED, release, {"dataset": dataset, "tables": marks})


def clear(connection: sqlite3.Connection, dataset: str) -> None:
    """Write that charges for all tables may be made again."""
    if newest(connection, dataset):
        chain.note(connection, CLEARED, chain.last_number(connection), {"dataset": dataset})
