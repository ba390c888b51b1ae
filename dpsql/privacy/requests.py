"""Requests: batches of analysts that wait as plans until the custodian approves them, where the policy asks for it.

A request is what an analyst asked, its text and its plan, both public, and a key that text, plan and policy give. A
charge of an analyst's is granted only where an approved request has its key, its label, its data version and its price;
the transaction that spends it marks the request charged, so that an approval pays once, whatever runs at the same
moment. Another text, budget or policy is another request.

Rows are appended, never changed: the newest of a request counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dpsql.common.arrays import Json
from dpsql.errors import BudgetError, IntegrityError, ProgrammingError, RequestError, one_line
from dpsql.privacy import analysts, chain
from dpsql.privacy.charge import Charge

MOST_WAITING = 20
"""Requests of one analyst that wait at once."""
_STANDING = ("waiting", "approved", "refused")


@dataclass(frozen=True)
class BatchRequest:
    """One request as of its newest row. ``state``: waiting, approved, refused or charged; ``release``: its number then.

    ``time``, ``decided``: UTC, ISO 8601. ``note``: what the custodian said.
    """

    number: int
    time: str
    dataset: str
    label: str
    key: str
    charge: Charge
    sql: str
    plan: str
    state: str = "waiting"
    note: str = ""
    decided: str | None = None
    release: int | None = None

    @property
    def summary(self) -> str:
        """Where it stands, in a few words."""
        end = f", release {self.release}" if self.release is not None else f": {self.note}" if self.note else ""
        return self.state + end


def every(connection: sqlite3.Connection) -> dict[int, BatchRequest]:
    """All requests by number, oldest first."""
    found: dict[int, BatchRequest] = {}
    for row, time, number, state, text in connection.execute(
        "SELECT id, time, request, state, body FROM requests ORDER BY id"
    ):
        body = json.loads(text)
        if row == number:
            charge = Charge.from_dict(body.pop("charge"))
            found[number] = BatchRequest(number, time, charge=charge, **body)
        else:
            found[number] = replace(found[number], state=state, decided=time, **body)
    return found


def numbered(requests: Iterable[BatchRequest], number: int) -> BatchRequest:
    """The request of that number. Raises ProgrammingError where there is none."""
    found = next((one for one in requests if one.number == number), None)
    if found is None:
        raise ProgrammingError(f"there is no request {number}; 'dpsql requests list --all' shows those there are")
    return found


def submit(
    connection: sqlite3.Connection,
    dataset: str,
    label: str,
    charge: Charge,
    description: Json,
    text: tuple[str, str],
) -> BatchRequest | None:
    """The request of an analyst for a charge, written down where it is new; None for a label that is nobody's name.

    ``text``: the batch, and its plan in words. Raises as `analysts.check`, for what could not be charged anyway, and
    BudgetError where too many requests wait.
    """
    if label not in analysts.newest(connection, label):
        return None
    analysts.check(connection, label, charge, description)
    key = str(description.get("request", ""))
    held = every(connection)
    known = _standing(held, dataset, label, key, charge)
    if known is not None:
        return known
    if sum(one.label == label and one.state == "waiting" for one in held.values()) >= MOST_WAITING:
        raise BudgetError(
            f"{MOST_WAITING} requests of {label} wait already; ask again once the custodian has decided some (nothing "
            "was charged)"
        )
    sql, plan = text
    body = {"dataset": dataset, "label": label, "key": key, "charge": charge.as_dict(), "sql": sql, "plan": plan}
    number = 1 + int(connection.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0])
    _append(connection, number, "waiting", body)
    return every(connection)[number]


def check(request: BatchRequest) -> None:
    """Raise RequestError for a request that waits, BudgetError for one that was refused."""
    if request.state == "waiting":
        raise RequestError(
            f"request {request.number}, {request.charge.guarantee}, waits for the custodian's approval; ask again once "
            "it is approved (nothing was charged)"
        )
    if request.state == "refused":
        note = f" ({one_line(request.note)})" if request.note else ""
        raise BudgetError(
            f"the custodian refused request {request.number}{note}; ask for another budget or another batch (nothing "
            "was charged)"
        )


def decide(connection: sqlite3.Connection, number: int, state: str, note: str) -> BatchRequest:
    """Approve or refuse a request (``state``). A decision may be changed until the request is charged.

    Raises ProgrammingError where there is none of that number, IntegrityError for one that was charged.
    """
    request = numbered(every(connection).values(), number)
    if request.state == "charged":
        raise IntegrityError(f"request {number} was charged already, as release {request.release}; that stays")
    if (request.state, request.note) != (state, note):
        _append(connection, number, state, {"note": note})
    return every(connection)[number]


def take_back(connection: sqlite3.Connection) -> None:
    """Refuse what was approved and not charged by then: after a restore nobody knows whether it was charged since."""
    for request in every(connection).values():
        if request.state == "approved":
            decide(connection, request.number, "refused", "approved before the ledger was restored")


def spend(
    connection: sqlite3.Connection,
    dataset: str,
    label: str,
    charge: Charge,
    description: Json,
    release: int,
) -> None:
    """Mark the approved request charged that allows an analyst's charge, inside the transaction that spends it.

    Raises BudgetError where there is none. Labels of no analyst need none.
    """
    if label not in analysts.newest(connection, label):
        return
    request = _standing(every(connection), dataset, label, str(description.get("request", "")), charge)
    if request is None or request.state != "approved":
        raise BudgetError(
            f"the custodian approves each batch of {label} before it is charged, and has not approved this one; ask "
            "for it once more (nothing was charged)"
        )
    _append(connection, request.number, "charged", {"release": release})


def _standing(
    requests: Mapping[int, BatchRequest], dataset: str, label: str, key: str, charge: Charge
) -> BatchRequest | None:
    """The newest request of this kind that was not charged."""
    target = (dataset, label, key, charge)
    return next(
        (
            one
            for one in reversed(list(requests.values()))
            if key and one.state in _STANDING and (one.dataset, one.label, one.key, one.charge) == target
        ),
        None,
    )


def _append(connection: sqlite3.Connection, number: int, state: str, body: Json) -> None:
    row = (chain.now(), number, state, chain.canonical(dict(body)))
    inserted = connection.execute("INSERT INTO requests (time, request, state, body) VALUES (?, ?, ?, ?)", row)
    made = int(inserted.lastrowid or 0)
    chain.append(connection, "request", made, (made, *row))
