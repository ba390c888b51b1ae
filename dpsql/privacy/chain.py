"""The hash chain over a ledger's rows.

A link's head is SHA-256 of the head before it, the kind of row and the row; the first head is that of
the ledger's id, budget, creation time and totals. Rows: charges, releases and free answers (the
payload through its digest), the names that the data set has had, those under which results are
shown, marks of the data's files, the schema upgrades of the ledger, when it was held to an anchor or
made of a backup, the budgets of analysts and what becomes of their requests. Changing, dropping or
adding any row by hand breaks the chain, unless all later links are computed anew; that, an anchor notices.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime

from dpsql.privacy.anchor import Mark
from dpsql.privacy.periods import Reads, Spending

CHAIN_FORMAT = 1  # how rows are hashed; the same in every schema version, so that old links stay valid

CHARGE_COLUMNS = "id, charge, time, dataset, label, purse, units, cost, description"
ANSWER_COLUMNS = "id, time, dataset, label, description"

TABLES = {
    "charge": "charges",
    "release": "releases",
    "dataset": "datasets",
    "upgrade": "upgrades",
    "answer": "answers",
    "views": "views",
    "file": "files",
    "event": "events",
    "analyst": "analysts",
    "request": "requests",
}

_CONTENT = {
    "charge": f"SELECT {CHARGE_COLUMNS} FROM charges WHERE id = ?",  # noqa: S608 - fixed text
    "release": "SELECT id, time, digest FROM releases WHERE id = ?",
    "dataset": "SELECT id, time, dataset FROM datasets WHERE id = ?",
    "upgrade": "SELECT id, time, version FROM upgrades WHERE id = ?",
    "answer": f"SELECT {ANSWER_COLUMNS}, digest FROM answers WHERE id = ?",  # noqa: S608 - fixed text
    "views": "SELECT id, time, release, names FROM views WHERE id = ?",
    "file": "SELECT id, time, dataset, place, salt, mark FROM files WHERE id = ?",
    "event": "SELECT id, time, kind, number, details FROM events WHERE id = ?",
    "analyst": "SELECT id, time, name, terms FROM analysts WHERE id = ?",
    "request": "SELECT id, time, request, state, body FROM requests WHERE id = ?",
}


def now() -> str:
    """The time in UTC, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def canonical(value: object) -> str:
    """JSON with one spelling per value; ValueError or TypeError for what JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(*parts: object) -> str:
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def genesis(connection: sqlite3.Connection) -> str:
    """Where the chain starts: who the ledger is and what its totals are."""
    identity = connection.execute("SELECT ledger, budget, created FROM identity").fetchone()
    totals = connection.execute("SELECT name, total FROM purses ORDER BY name").fetchall()
    return _hash(CHAIN_FORMAT, identity, totals)


def append(connection: sqlite3.Connection, kind: str, row_id: int, row: tuple[object, ...]) -> None:
    """Link ``row`` to the chain, inside the transaction that inserts it."""
    last = connection.execute("SELECT link, head FROM chain ORDER BY link DESC LIMIT 1").fetchone()
    link, head = last if last is not None else (0, genesis(connection))
    connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (link + 1, kind, row_id, _hash(head, kind, row)))


def newest(connection: sqlite3.Connection) -> Mark:
    """The last link of the chain, and what was charged (in all, whichever periods it read) and numbered by then."""
    ledger, link, head = connection.execute(
        "SELECT (SELECT ledger FROM identity), link, head FROM chain ORDER BY link DESC LIMIT 1"
    ).fetchone()
    spent = dict.fromkeys((name for (name,) in connection.execute("SELECT name FROM purses")), 0)
    spent |= dict(connection.execute("SELECT purse, sum(units) FROM charges GROUP BY purse"))
    return Mark(ledger, link, head, last_number(connection), spent)


def last_number(connection: sqlite3.Connection) -> int:
    """The newest number that a charge or an answer has, or had in a ledger that was lost; 0 where there is none."""
    last = 0
    for table in ("charges.id", "answers.id", "events.number"):
        name, column = table.split(".")
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
            last = max(last, connection.execute(f"SELECT coalesce(max({column}), 0) FROM {name}").fetchone()[0])  # noqa: S608
    return last


def note(connection: sqlite3.Connection, kind: str, number: int, details: object) -> None:
    """Write an event of the ledger itself and link it. ``number``: none up to it is given out again."""
    row = (now(), kind, number, canonical(details))
    inserted = connection.execute("INSERT INTO events (time, kind, number, details) VALUES (?, ?, ?, ?)", row)
    event = int(inserted.lastrowid or 0)
    append(connection, "event", event, (event, *row))


def fault(connection: sqlite3.Connection, kinds: Sequence[str], *, payloads: bool) -> str | None:
    """The first thing that does not agree, None if all does: chain, tables, sums, with payloads if asked.

    ``kinds`` of rows that the file's schema version has. Cost O(charges), plus one read of every payload.
    """
    head = genesis(connection)
    accounts = {name: (total, spent) for name, total, spent in connection.execute("SELECT * FROM purses")}
    charged = Spending()
    counts = dict.fromkeys(kinds, 0)
    links = connection.execute("SELECT link, kind, row, head FROM chain ORDER BY link")
    for number, (link, kind, row_id, stored) in enumerate(links, start=1):
        row = connection.execute(_CONTENT[kind], (row_id,)).fetchone() if kind in counts else None
        head = _hash(head, kind, row)
        if link != number or stored != head or row is None:
            return f"is damaged at link {number}: its hash chain breaks"
        counts[kind] += 1
        if kind == "charge":
            _, _, _, _, _, account, units, cost, description = row
            said = json.loads(cost)
            if (account, units) != (said["purse"], said["units"]):
                return f"is damaged at link {number}: a charge contradicts itself"
            charged.add(account, units, Reads.of(json.loads(description)))
    for kind in kinds:
        table = TABLES[kind]
        if connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] != counts[kind]:  # noqa: S608
            return f"is damaged: {table} has rows outside the hash chain"
    if any(charged.within(name, total) != spent for name, (total, spent) in accounts.items()):
        return "is damaged: spent is not the sum of its charges"
    if payloads:
        held = "SELECT id, payload, digest FROM releases"
        if "answer" in kinds:
            held += " UNION ALL SELECT id, payload, digest FROM answers"
        for number, payload, digest in connection.execute(held):
            if not intact(payload, digest):
                return f"is damaged: measurement {number} was altered"
    return None


def intact(payload: bytes, digest: str) -> bool:
    """Whether ``payload`` is what was recorded with ``digest``."""
    return hashlib.sha256(payload).hexdigest() == digest
