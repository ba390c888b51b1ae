"""When the files of a data set were last written to, as a ledger remembers it, so that a change under it is noticed.

A mark is SHA-256 of a random salt, the names of a place's files and the times of their last change: neither contents
nor sizes, which depend on rows, and nothing that could be read back. It decides nothing: answers, charges, errors and
releases are the same whatever it is, and it is compared for the custodian's log and command line alone. A mark is
written when a version of the data is first used and when the custodian confirms a change, never because files changed.
Marks of tables whose scan failed, which do decide something, are apart (``failed_scans``).
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Mapping

from dpsql.privacy import chain


def changed(connection: sqlite3.Connection, dataset: str, files: Mapping[str, str]) -> dict[str, str]:
    """Places whose files are not those of their newest mark, and when it was made; ``files`` are those of now."""
    found = {}
    for place, (time, salt, mark) in _newest(connection, dataset).items():
        if place in files and mark_of(salt, files[place]) != mark:
            found[place] = time
    return found


def unmarked(connection: sqlite3.Connection, dataset: str, files: Mapping[str, str]) -> set[str]:
    """Places that have no mark yet."""
    return set(files) - set(_newest(connection, dataset))


def note(connection: sqlite3.Connection, dataset: str, files: Mapping[str, str], *, again: bool) -> None:
    """Mark the files of each place that has no mark yet, or with ``again`` one of other files."""
    due = unmarked(connection, dataset, files)
    if again:
        due |= changed(connection, dataset, files).keys()
    for place in sorted(due):
        salt = secrets.token_hex(16)
        row = (chain.now(), dataset, place, salt, mark_of(salt, files[place]))
        inserted = connection.execute(
            "INSERT INTO files (time, dataset, place, salt, mark) VALUES (?, ?, ?, ?, ?)", row
        )
        number = int(inserted.lastrowid or 0)
        chain.append(connection, "file", number, (number, *row))


def _newest(connection: sqlite3.Connection, dataset: str) -> dict[str, tuple[str, str, str]]:
    rows = connection.execute("SELECT place, time, salt, mark FROM files WHERE dataset = ? ORDER BY id", (dataset,))
    return {place: (time, salt, mark) for place, time, salt, mark in rows}


def mark_of(salt: str, text: str) -> str:
    """The salted hash of the ``text`` of some files, which says nothing to anybody who cannot guess that text."""
    return hashlib.sha256(f"{salt}\n{text}".encode(errors="surrogateescape")).hexdigest()
