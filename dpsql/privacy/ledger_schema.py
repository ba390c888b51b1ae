"""The ledger's tables, version by version, and how an older file becomes a newer one.

Version 1 has the tables. Version 2 makes the file itself append-only: triggers refuse to change or
delete a row, to lower what was spent and to move a total, so that a slip with any SQLite tool is no
refund; and the table ``upgrades`` says when a file changed its version. Version 3 has the table ``answers``:
releases that rest on earlier ones and cost nothing, numbered with the charges; and ``views``: under which
names the results of a release are shown, and which are no longer shown. Version 4 has the table
``files``: marks of the files of a data set (`file_marks`). Version 5 has the table ``events``: since when the file is
held to an anchor (`anchor`), and that it was made of a backup (`ledger_restore`). Version 6 has the
table ``analysts``: who has which budget inside the policy's (`analysts`). Version 7 has the table ``requests``:
batches that wait for the custodian's approval (`requests`). Version 8 has no table more: charges may name periods
(`periods`), so that what is spent is no longer their sum, and standing batches are among the events (`schedules`).

An upgrade is one transaction over a file whose chain was verified under its old version: it adds, never
rewrites a row, and links itself to the chain, so that an anchor of before still finds its link. A process
that dies in it leaves the old version. Newer versions than this module knows are refused.
"""

from __future__ import annotations

import secrets
import sqlite3
from functools import cache

from dpsql.privacy import chain
from dpsql.privacy.budget import Budget

APPLICATION_ID = 0x64707371  # "dpsq" in the file's header: tells a ledger from any other SQLite file

_FIRST = (
    """CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), ledger TEXT NOT NULL, budget TEXT NOT NULL, created TEXT NOT NULL
) STRICT""",
    """CREATE TABLE purses (
    name TEXT PRIMARY KEY, total INTEGER NOT NULL, spent INTEGER NOT NULL DEFAULT 0,
    CHECK (0 <= spent AND spent <= total)
) STRICT""",
    "CREATE TABLE datasets (id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL UNIQUE) STRICT",
    """CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT NOT NULL UNIQUE, time TEXT NOT NULL,
    dataset TEXT NOT NULL, label TEXT NOT NULL, purse TEXT NOT NULL REFERENCES purses (name),
    units INTEGER NOT NULL CHECK (units > 0), cost TEXT NOT NULL, description TEXT NOT NULL
) STRICT""",
    """CREATE TABLE releases (
    id INTEGER PRIMARY KEY REFERENCES charges (id), time TEXT NOT NULL, payload BLOB NOT NULL,
    digest TEXT NOT NULL
) STRICT""",
    """CREATE TABLE chain (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, head TEXT NOT NULL,
    UNIQUE (kind, row)
) STRICT""",
)


def _append_only(*tables: str) -> tuple[str, ...]:
    """Triggers that refuse to change or delete a row of these tables."""
    return tuple(
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} {_REFUSE}"
        for table in tables
        for event in ("UPDATE", "DELETE")
    )


_REFUSE = "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
_LOWERED = "NEW.spent < OLD.spent OR NEW.total <> OLD.total OR NEW.name <> OLD.name"
_SECOND = (
    "CREATE TABLE upgrades (id INTEGER PRIMARY KEY, time TEXT NOT NULL, version INTEGER NOT NULL) STRICT",
    *_append_only("identity", "datasets", "charges", "releases", "chain", "upgrades"),
    f"CREATE TRIGGER purses_no_refund BEFORE UPDATE ON purses WHEN {_LOWERED} {_REFUSE}",
    f"CREATE TRIGGER purses_no_delete BEFORE DELETE ON purses {_REFUSE}",
)

_THIRD = (
    """CREATE TABLE answers (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, label TEXT NOT NULL,
    description TEXT NOT NULL, payload BLOB NOT NULL, digest TEXT NOT NULL
) STRICT""",
    """CREATE TABLE views (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, release INTEGER NOT NULL, names TEXT NOT NULL
) STRICT""",
    *_append_only("answers", "views"),
)

_FOURTH = (
    """CREATE TABLE files (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, place TEXT NOT NULL, salt TEXT NOT NULL,
    mark TEXT NOT NULL
) STRICT""",
    *_append_only("files"),
)

_FIFTH = (
    """CREATE TABLE events (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, details TEXT NOT NULL
) STRICT""",
    *_append_only("events"),
)

_SIXTH = (
    """CREATE TABLE analysts (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, name TEXT NOT NULL, terms TEXT NOT NULL
) STRICT""",
    *_append_only("analysts"),
)

_SEVENTH = (
    """CREATE TABLE requests (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, request INTEGER NOT NULL, state TEXT NOT NULL, body TEXT NOT NULL
) STRICT""",
    *_append_only("requests"),
)

# What brings a file from version i to i + 1, and the kinds of rows that the chain of version i + 1 links.
VERSIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (_FIRST, ("charge", "release", "dataset")),
    (_SECOND, ("charge", "release", "dataset", "upgrade")),
    (_THIRD, ("charge", "release", "dataset", "upgrade", "answer", "views")),
    (_FOURTH, ("charge", "release", "dataset", "upgrade", "answer", "views", "file")),
    (_FIFTH, ("charge", "release", "dataset", "upgrade", "answer", "views", "file", "event")),
    (_SIXTH, ("charge", "release", "dataset", "upgrade", "answer", "views", "file", "event", "analyst")),
    (_SEVENTH, ("charge", "release", "dataset", "upgrade", "answer", "views", "file", "event", "analyst", "request")),
    ((), ("charge", "release", "dataset", "upgrade", "answer", "views", "file", "event", "analyst", "request")),
)
SCHEMA_VERSION = len(VERSIONS)


def kinds(version: int) -> tuple[str, ...]:
    """The kinds of rows that the chain of a file of that version links."""
    return VERSIONS[version - 1][1]


def initialise(connection: sqlite3.Connection, dataset: str, budget: Budget) -> None:
    """Tables, identity and totals of a new ledger, in one transaction."""
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("BEGIN IMMEDIATE")
    for statements, _ in VERSIONS:
        for statement in statements:
            connection.execute(statement)
    created = chain.now()
    connection.execute(
        "INSERT INTO identity VALUES (1, ?, ?, ?)",
        (secrets.token_hex(16), chain.canonical(budget.figures()), created),
    )
    connection.executemany("INSERT INTO purses (name, total) VALUES (?, ?)", budget.totals.items())
    connection.execute("INSERT INTO datasets VALUES (1, ?, ?)", (created, dataset))
    chain.append(connection, "dataset", 1, (1, created, dataset))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version that the file says it has."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a verified older file to `SCHEMA_VERSION`, inside the caller's transaction; a step is one link."""
    for version in range(version_of(connection), SCHEMA_VERSION):
        for statement in VERSIONS[version][0]:
            connection.execute(statement)
        row = (chain.now(), version + 1)
        inserted = connection.execute("INSERT INTO upgrades (time, version) VALUES (?, ?)", row)
        number = int(inserted.lastrowid or 0)
        chain.append(connection, "upgrade", number, (number, *row))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_whole(connection: sqlite3.Connection, version: int) -> bool:
    """Whether the file has exactly the tables, constraints and triggers of ``version``."""
    return _shape(connection) == _expected(version)


def _shape(connection: sqlite3.Connection) -> tuple[tuple[object, ...], ...]:
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
    return tuple(tuple(row) for row in found)


@cache
def _expected(version: int) -> tuple[tuple[object, ...], ...]:
    connection = sqlite3.connect(":memory:")
    try:
        for statements, _ in VERSIONS[:version]:
            for statement in statements:
                connection.execute(statement)
        return _shape(connection)
    finally:
        connection.close()
