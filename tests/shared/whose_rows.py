"""Whose a row is in the tables of patients, visits, labs and notes, worked out apart from the code; no row is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = tuple[Any, ...]
Database = dict[str, list[Row]]


def without(database: Database, unit: object) -> Database:
    """The database less all rows of a unit: patients and notes name theirs first, visits second.

    A lab result belongs to the least patient of the visits that it may be of, to nobody (None) where there is none.
    Rows of other tables have no unit and stay.
    """
    owners: dict[object, Any] = {}
    for visit, patient, *_ in database.get("visits", []):
        if visit is None:
            continue
        if visit not in owners or owners[visit] is None or (patient is not None and patient < owners[visit]):
            owners[visit] = patient
    owner: dict[str, Callable[[Row], object]] = {
        "patients": lambda row: row[0],
        "visits": lambda row: row[1],
        "labs": lambda row: owners.get(row[0]),
        "notes": lambda row: row[0],
    }
    return {
        name: [row for row in rows if name not in owner or owner[name](row) != unit] for name, rows in database.items()
    }
