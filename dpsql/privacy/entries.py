"""The rows of a ledger as values, and how they are read."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from dpsql.errors import DataError
from dpsql.privacy import chain
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger_file import LedgerFile


@dataclass(frozen=True)
class Entry:
    """One row of the ledger: a charge and its release if there was one, or an answer that was free. All is public.

    id: release number, from 1. charge_id: the caller's idempotency key. time, released: UTC, ISO 8601;
    released and payload are None where the measurement was never recorded. label: who asked, as the caller
    said it. renamed: the names under which its results are shown by now, None for one that was dropped; None
    altogether where nothing was renamed or dropped.
    """

    id: int
    charge_id: str
    time: str
    dataset: str
    label: str
    charge: Charge
    description: dict[str, Any]
    released: str | None = None
    payload: bytes | None = None
    renamed: tuple[str | None, ...] | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results that the charge pays for, as its batch calls them."""
        return tuple(str(name) for name in self.description.get("names", ()))

    @property
    def shown(self) -> tuple[str | None, ...]:
        """The name of each result in the releases by now; None for one that was dropped."""
        return self.results if self.renamed is None else self.renamed

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the results that are shown."""
        return tuple(name for name in self.shown if name is not None)


def read_entries(
    connection: sqlite3.Connection,
    file: LedgerFile,
    where: str = "",
    values: tuple[Any, ...] = (),
    *,
    free: str | None = "",
    payload: bool = False,
) -> list[Entry]:
    """Charges that meet ``where`` (fixed text), and free answers that meet ``free`` (None: none of them), oldest first.

    Payloads only if asked, digests checked.
    """
    columns = ", ".join(f"charges.{name}" for name in chain.CHARGE_COLUMNS.split(", "))
    extra = "releases.payload, releases.digest" if payload else "NULL, NULL"
    rows = connection.execute(
        f"SELECT {columns}, releases.time, {extra} FROM charges"  # noqa: S608 - fixed texts
        f" LEFT JOIN releases ON releases.id = charges.id {where} ORDER BY charges.id",
        values,
    )
    renamed = {
        release: tuple(json.loads(names))
        for release, names in connection.execute("SELECT release, names FROM views ORDER BY id")
    }
    found = []
    for number, charge_id, time, dataset, label, _, _, cost, text, released, data, digest in rows:
        if data is not None and not chain.intact(data, digest):
            raise file.error(f"is damaged: measurement {number} was altered; restore the newest backup")
        spent = _charge(cost)
        if spent is None:
            raise file.error(f"is damaged: charge {number} is none that dpsql makes; restore the newest backup")
        body = json.loads(text)
        found.append(Entry(number, charge_id, time, dataset, label, spent, body, released, data, renamed.get(number)))
    if free is None:
        return found
    extra = "payload, digest" if payload else "NULL, NULL"
    answers = connection.execute(
        f"SELECT {chain.ANSWER_COLUMNS}, {extra} FROM answers {free} ORDER BY id",  # noqa: S608 - fixed texts
        values,
    )
    for number, time, dataset, label, text, data, digest in answers:
        if data is not None and not chain.intact(data, digest):
            raise file.error(f"is damaged: answer {number} was altered; restore the newest backup")
        body = json.loads(text)
        charge = Charge.free(str(body.get("guarantee", "")))
        found.append(Entry(number, "", time, dataset, label, charge, body, time, data, renamed.get(number)))
    return sorted(found, key=lambda entry: entry.id)


def _charge(cost: str) -> Charge | None:
    """The charge as it was written, None where no charge is so."""
    try:
        return Charge.from_dict(json.loads(cost))
    except DataError:
        return None
