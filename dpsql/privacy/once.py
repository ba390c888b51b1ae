"""What may be randomised once only: the ledger's rule for local releases.

A charge whose description lists ``once`` (names of released columns, "visits.smoker") pays for randomised rows of
these columns. The ledger holds at most one recorded release of each such name for one version of the data:

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
from collections.abc import Mapping
from typing import Any

from dpsql.errors import IntegrityError


def check_once(connection: sqlite3.Connection, dataset: str, description: Mapping[str, Any], mine: int = 0) -> None:
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
