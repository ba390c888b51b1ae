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
    """One row of the ledger: a charge, and its release if there was one. All of it is public.

    id: release number, from 1. charge_id: the caller's idempotency key. time, released: UTC, ISO 8601;
    released and payload are None where the measurement was never recorded. label: who asked, as the caller
    said it.
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

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results that the charge pays for."""
        return tuple(str(name) for name in self.description.get("names", ()))


def read_entries(
    connection: sqlite3.Connection,
    file: LedgerFile,
    where: str = "",
    values: tuple[Any, ...] = (),
    *,
    payload: bool = False,
) -> list[Entry]:
    """Charges that meet ``where`` (fixed text), oldest first; payloads only if asked, digests checked."""
    columns = ", ".join(f"charges.{name}" for name in chain.CHARGE_COLUMNS.split(", "))
    extra = "releases.payload, releases.digest" if payload else "NULL, NULL"
    rows = connection.execute(
        f"SELECT {columns}, releases.time, {extra} FROM charges"  # noqa: S608 - fixed texts
        f" LEFT JOIN releases ON releases.id = charges.id {where} ORDER BY charges.id",
        values,
    )
    found = []
    for number, charge_id, time, dataset, label, _, _, cost, text, released, data, digest in rows:
        if data is not None and not chain.intact(data, digest):
            raise file.error(f"is damaged: measurement {number} was altered; restore the newest backup")
        spent = _charge(cost)
        if spent is None:
            raise file.error(f"is damaged: charge {number} is none that dpsql makes; restore the newest backup")
        found.append(Entry(number, charge_id, time, dataset, label, spent, json.loads(text), released, data))
    return found


def _charge(cost: str) -> Charge | None:
    """The charge as it was written, None where no charge is so."""
    try:
        return Charge.from_dict(json.loads(cost))
    except DataError:
        return None
