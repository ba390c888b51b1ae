"""What a ledger must show before it is believed: whose it is, that it is the newest, that it adds up.

And what may be randomised once only, the rule for local releases. A charge whose description lists ``once`` (names of
released columns, "visits.smoker") pays for randomised rows of these columns. The ledger holds at most one recorded
release of each such name for one version of the data:

- a charge for a name that is released already is refused before anything is spent, in the charge's own transaction;
- of two charges for one name that run at the same time the first to be recorded is released; the second is refused
  when it is recorded, in that transaction, and its rows are thrown away. Its charge stands, like any other;
- a charge that was cut off (kill -9, no disk) has released nothing: its rows were never seen by anybody, and the name
  is free for a charge of its own. The one that was cut off can never be recorded afterwards, as its rows are gone.

So whatever dies when, each name is randomised into one released table, and each randomisation was paid for.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from dpsql.common.arrays import Json
from dpsql.errors import DataError, IntegrityError
from dpsql.privacy import anchor as anchors
from dpsql.privacy import chain, ledger_schema, periods
from dpsql.privacy.budget import Budget, BudgetAccount
from dpsql.privacy.ledger_file import LedgerFile

FIND_NEWER = "find the newest file and put it back, or restore a backup with 'dpsql ledger restore'"

NAME_ANCHOR = 'write anchor = "FILE" into the policy, or give --anchor'


def check_kind(connection: sqlite3.Connection, file: LedgerFile) -> int:
    """The schema version of a file that is a ledger of ours, in a version that this dpsql knows."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != ledger_schema.APPLICATION_ID:
        raise file.error("is a SQLite database but no ledger of dpsql; name the ledger file of this policy")
    version = ledger_schema.version_of(connection)
    if not 1 <= version <= ledger_schema.SCHEMA_VERSION:
        raise file.error(
            f"has schema version {version}, this dpsql reads up to {ledger_schema.SCHEMA_VERSION};"
            " use the dpsql that wrote it"
        )
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "delete":
        raise file.error("is in another journal mode; set journal_mode=DELETE, a lost WAL is a refund")
    return version


def check_identity(
    connection: sqlite3.Connection, file: LedgerFile, dataset: str, budget: Budget, marks: Iterable[anchors.Mark | None]
) -> int:
    """The file is a ledger of ours, of this data set and budget, and has every link of ``marks``; its version."""
    version = check_kind(connection, file)
    identity = connection.execute(
        "SELECT ledger, budget, dataset FROM identity, datasets ORDER BY datasets.id DESC LIMIT 1"
    ).fetchone()
    if identity is None:
        raise file.error("is damaged: its identity is gone; restore the newest backup")
    ledger, figures, found = identity
    if found != dataset:
        raise file.error(
            f"belongs to data set {found!r}, not {dataset!r}; name this policy's own ledger, or, if this is a new"
            " version of the same data, declare it with 'dpsql policy renew'"
        )
    if figures != chain.canonical(budget.figures()):
        raise file.error(
            f"was created with another budget ({_describe(figures)}), not {budget}; totals are"
            " fixed at creation, so put the old figures back in the policy"
        )
    for mark in marks:
        if mark is None or mark.link == 0:
            continue
        row = connection.execute("SELECT head FROM chain WHERE link = ?", (mark.link,)).fetchone()
        if mark.ledger != ledger or row is None or row[0] != mark.head:
            raise file.error(f"is another or an older one than was used last, which would forget charges; {FIND_NEWER}")
    return version


def is_anchored(connection: sqlite3.Connection) -> bool:
    """Whether the ledger, of the present schema version, ever had an anchor."""
    return connection.execute("SELECT 1 FROM events WHERE kind = 'anchored'").fetchone() is not None


def check_anchored(
    connection: sqlite3.Connection, file: LedgerFile, version: int, anchor: Path | None, mark: anchors.Mark | None
) -> None:
    """LedgerError if the ledger had an anchor and none is named, or the named one is gone."""
    if "event" not in ledger_schema.kinds(version) or (mark is not None) or not is_anchored(connection):
        return
    if anchor is None:
        raise file.error(
            f"is held to an anchor, without which an older copy would go unnoticed, and none is named; {NAME_ANCHOR}"
        )
    raise file.error(
        f"is held to the anchor {anchor}, which is gone; bring it back (is its disk there?), or, where it is lost for"
        f" good, say what was spent since with 'dpsql ledger restore {file.path} --lost'"
    )


def budget_accounts(connection: sqlite3.Connection, file: LedgerFile, budget: Budget) -> tuple[BudgetAccount, ...]:
    """Totals and what is spent of them, as the charges add up (`periods`). Cost O(charges), in SQLite."""
    rows = {name: (total, spent) for name, total, spent in connection.execute("SELECT name, total, spent FROM purses")}
    held = periods.spending(connection)
    charged = {name: held.within(name, rows.get(name, (0, 0))[0]) for name in held.accounts}
    expected = budget.totals
    # The declared figures are the same; mu may differ in its last digit between builds of libm.
    if set(rows) != set(expected) or any(
        abs(rows[name][0] - total) > 2 + total // 10**9 or not 0 <= rows[name][1] <= rows[name][0]
        for name, total in expected.items()
    ):
        raise file.error("holds totals that do not follow from its budget; restore the newest backup")
    if {name: spent for name, (_, spent) in rows.items() if spent} != charged:
        raise file.error("is damaged: spent is not the sum of its charges; restore the newest backup")
    return tuple(BudgetAccount(name, *rows[name]) for name in expected)


def check_whole(connection: sqlite3.Connection, file: LedgerFile, version: int, *, payloads: bool) -> None:
    """Schema, chain and sums agree; with ``payloads`` also every payload and every page of the file."""
    fault = None if ledger_schema.is_whole(connection, version) else "is damaged: its tables are not a ledger's"
    fault = fault or chain.fault(connection, ledger_schema.kinds(version), payloads=payloads)
    if fault is None and payloads and connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
        fault = "is damaged: SQLite finds an inconsistent page"
    if fault is not None:
        raise file.error(f"{fault}; keep the file and restore the newest backup")


def _describe(figures: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in json.loads(figures).items())


def check_once(connection: sqlite3.Connection, dataset: str, description: Json, mine: int = 0) -> None:
    """IntegrityError where a release other than ``mine`` has one of the names that ``description`` lists under once.

    ``mine``: the charge that is about to be recorded, 0 before a charge. Inside the caller's transaction.
    """
    names = {str(name).casefold(): str(name) for name in description.get("once", ())}
    if not names:
        return
    rows = connection.execute(
        "SELECT charges.id, charges.description FROM charges JOIN releases ON releases.id = charges.id"
        " WHERE charges.purse = 'local' AND charges.dataset = ? AND charges.id <> ? ORDER BY charges.id",
        (dataset, mine),
    )
    for number, text in rows:
        body = json.loads(text)
        taken = {str(name).casefold() for name in body.get("once", ())} & set(names)
        if taken:
            shown = ", ".join(names[name] for name in sorted(taken))
            called = ", ".join(str(name) for name in body.get("names", ()))
            end = "what was charged stays charged" if mine else "nothing was charged"
            raise IntegrityError(
                f"{shown} was released locally already, as {called} (release {number}), and a second look at the same "
                f"rows would add to what is known of each: ask {called} again, which is free ({end})"
            )


def check_units(connection: sqlite3.Connection, description: Json) -> None:
    """IntegrityError where a table protects another unit than in earlier charges: one budget would bound neither.

    Charges say it under ``units``, by table; those of earlier versions do not. Inside the caller's transaction.
    """
    wanted = {str(table): str(unit) for table, unit in description.get("units", {}).items()}
    rows = connection.execute(
        "SELECT id, description FROM charges WHERE json_extract(description, '$.units') IS NOT NULL ORDER BY id DESC"
    )
    for number, text in rows:
        if not wanted:
            return
        for table, unit in json.loads(text)["units"].items():
            now = wanted.pop(table, unit)
            if now.casefold() != str(unit).casefold():
                raise IntegrityError(
                    f"{table} protects one {now} by the policy and protected one {unit} in release {number}, so that "
                    f"what is spent would bound what is known of neither: put {unit} back as its unit (nothing was "
                    "charged)"
                )


def check_text(name: str, value: object, least: int = 1) -> None:
    """DataError where a name or a label is not a text that can be stored, of ``least`` to 500 characters."""
    if not isinstance(value, str) or not least <= len(value) <= 500 or not _encodable(value):
        raise DataError(f"{name} must be a text of {least} to 500 characters; give it a name")


def _encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
