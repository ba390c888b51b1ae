"""The ledger's tables and the hash chain over their rows.

A link's head is SHA-256 of the head before it, the kind of row and the row; the first head is that of
the ledger's id, budget, creation time and totals. Rows: charges, releases (the payload through its
digest), and the names that the data set has had. Changing, dropping or adding any row by hand
breaks the chain, unless all later links are computed anew; that, an anchor notices.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from datetime import UTC, datetime
from typing import Any

from dpsql.privacy.anchor import Mark
from dpsql.privacy.budget import Budget

SCHEMA_VERSION = 1
APPLICATION_ID = 0x64707371  # "dpsq" in the file's header: tells a ledger from any other SQLite file

_SCHEMA = """
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), ledger TEXT NOT NULL, budget TEXT NOT NULL, created TEXT NOT NULL
) STRICT;
CREATE TABLE purses (
    name TEXT PRIMARY KEY, total INTEGER NOT NULL, spent INTEGER NOT NULL DEFAULT 0,
    CHECK (0 <= spent AND spent <= total)
) STRICT;
CREATE TABLE datasets (id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT NOT NULL UNIQUE, time TEXT NOT NULL,
    dataset TEXT NOT NULL, label TEXT NOT NULL, purse TEXT NOT NULL REFERENCES purses (name),
    units INTEGER NOT NULL CHECK (units > 0), cost TEXT NOT NULL, description TEXT NOT NULL
) STRICT;
CREATE TABLE releases (
    id INTEGER PRIMARY KEY REFERENCES charges (id), time TEXT NOT NULL, payload BLOB NOT NULL,
    digest TEXT NOT NULL
) STRICT;
CREATE TABLE chain (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, head TEXT NOT NULL,
    UNIQUE (kind, row)
) STRICT;
"""

CHARGE_COLUMNS = "id, charge, time, dataset, label, purse, units, cost, description"

_TABLES = {"charge": "charges", "release": "releases", "dataset": "datasets"}


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def canonical(value: object) -> str:
    """JSON with one spelling per value; ValueError or TypeError for what JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(*parts: object) -> str:
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def initialise(connection: sqlite3.Connection, dataset: str, budget: Budget) -> None:
    """Tables, identity and totals of a new ledger, in one transaction."""
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA.split(";\n"):
        connection.execute(statement)
    created = now()
    connection.execute(
        "INSERT INTO identity VALUES (1, ?, ?, ?)",
        (secrets.token_hex(16), canonical(budget.figures()), created),
    )
    connection.executemany("INSERT INTO purses (name, total) VALUES (?, ?)", budget.totals.items())
    connection.execute("INSERT INTO datasets VALUES (1, ?, ?)", (created, dataset))
    append(connection, "dataset", 1, (1, created, dataset))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def genesis(connection: sqlite3.Connection) -> str:
    """Where the chain starts: who the ledger is and what its totals are."""
    identity = connection.execute("SELECT ledger, budget, created FROM identity").fetchone()
    totals = connection.execute("SELECT name, total FROM purses ORDER BY name").fetchall()
    return _hash(SCHEMA_VERSION, identity, totals)


def _content(connection: sqlite3.Connection, kind: str, row: int) -> tuple[Any, ...] | None:
    """The row that a link stands for, as it was hashed. A payload enters through its digest."""
    queries = {
        "charge": f"SELECT {CHARGE_COLUMNS} FROM charges WHERE id = ?",  # noqa: S608 - fixed text
        "release": "SELECT id, time, digest FROM releases WHERE id = ?",
        "dataset": "SELECT id, time, dataset FROM datasets WHERE id = ?",
    }
    found: tuple[Any, ...] | None = None
    if kind in queries:
        found = connection.execute(queries[kind], (row,)).fetchone()
    return found


def append(connection: sqlite3.Connection, kind: str, row_id: int, row: tuple[Any, ...]) -> None:
    """Link ``row`` to the chain, inside the transaction that inserts it."""
    last = connection.execute("SELECT link, head FROM chain ORDER BY link DESC LIMIT 1").fetchone()
    link, head = last if last is not None else (0, genesis(connection))
    connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (link + 1, kind, row_id, _hash(head, kind, row)))


def newest(connection: sqlite3.Connection) -> Mark:
    """The last link."""
    return Mark(
        *connection.execute(
            "SELECT (SELECT ledger FROM identity), link, head FROM chain ORDER BY link DESC LIMIT 1"
        ).fetchone()
    )


def fault(connection: sqlite3.Connection, *, payloads: bool) -> str | None:
    """The first thing that does not agree, None if all does: chain, tables, sums, with payloads if asked.

    Cost O(charges), plus one read of every payload.
    """
    head = genesis(connection)
    purses = dict(connection.execute("SELECT name, spent FROM purses"))
    spent = dict.fromkeys(purses, 0)
    counts = dict.fromkeys(_TABLES, 0)
    links = connection.execute("SELECT link, kind, row, head FROM chain ORDER BY link")
    for number, (link, kind, row_id, stored) in enumerate(links, start=1):
        row = _content(connection, kind, row_id)
        head = _hash(head, kind, row)
        if link != number or stored != head or row is None:
            return f"is damaged at link {link}: its hash chain breaks"
        counts[kind] += 1
        if kind == "charge":
            _, _, _, _, _, purse, units, cost, _ = row
            if (purse, units) != (json.loads(cost)["purse"], json.loads(cost)["units"]):
                return f"is damaged at link {link}: a charge contradicts itself"
            spent[purse] += units
    for kind, table in _TABLES.items():
        if connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] != counts[kind]:  # noqa: S608
            return f"is damaged: {table} has rows outside the hash chain"
    if spent != purses:
        return "is damaged: spent is not the sum of its charges"
    if payloads:
        for number, payload, digest in connection.execute("SELECT id, payload, digest FROM releases"):
            if not intact(payload, digest):
                return f"is damaged: measurement {number} was altered"
    return None


def intact(payload: bytes, digest: str) -> bool:
    """Whether ``payload`` is what was recorded with ``digest``."""
    return hashlib.sha256(payload).hexdigest() == digest
