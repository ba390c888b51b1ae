"""Analysts of a data set: each has a budget of its own inside the policy's, kept and enforced by the ledger.

What a charge's label says is who asked. Where a label is an analyst's name, the charge is held to that analyst's budget
in the transaction that spends it: of two requests for the last of it one is granted. All analysts together spend at
most what the policy allows, whatever they were given: the policy's own accounts are charged each time. A label that is
nobody's name is held to the policy alone; only a server can vouch for a name.

Rows are appended, never changed: the newest of a name counts, and what was spent under a name stays spent, also when
it is removed and given again.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from dpsql.common.arrays import Json
from dpsql.errors import BudgetError, PolicyError, RequestError
from dpsql.privacy import chain
from dpsql.privacy.budget import Budget, BudgetAccount
from dpsql.privacy.charge import Charge
from dpsql.privacy.periods import Reads, spending
from dpsql.privacy.state import BudgetState

_CAP = "cap on one release"
_OF = """WHERE label = ? OR (json_extract(description, '$.lost') AND id IN (
    SELECT row FROM chain WHERE kind = 'charge' AND link > (
    SELECT min(link) FROM chain JOIN analysts ON kind = 'analyst' AND row = analysts.id WHERE analysts.name = ?)))"""


class ForbiddenTableError(PolicyError, RequestError):
    """An analyst asks tables that are not theirs."""


@dataclass(frozen=True)
class Analyst:
    """What an analyst may spend, of which tables (None: all), until when (UTC), and whether at all."""

    name: str
    budget: Budget
    tables: tuple[str, ...] | None = None
    expires: datetime | None = None
    suspended: bool = False
    removed: bool = False

    def refusal(self, now: datetime | None = None) -> str:
        """Why the analyst may not ask now; empty where they may."""
        if self.removed:
            return "was removed"
        if self.suspended:
            return "is suspended"
        if self.expires is not None and (now or datetime.now(UTC)) >= self.expires:
            return f"expired at {self.expires:%Y-%m-%d %H:%M} UTC"
        return ""

    def as_dict(self) -> dict[str, object]:
        """Public and JSON-ready; `from_dict` reads it back."""
        amounts = {held.name: getattr(self.budget, held.name) for held in fields(Budget)}
        return {
            "budget": {name: str(amount) for name, amount in amounts.items() if amount},
            "tables": None if self.tables is None else list(self.tables),
            "expires": None if self.expires is None else self.expires.isoformat(),
            "suspended": self.suspended,
            "removed": self.removed,
        }

    @classmethod
    def from_dict(cls, name: str, stored: Json) -> Analyst:
        """Inverse of `as_dict`."""
        tables, expires = stored["tables"], stored["expires"]
        amounts: dict[str, Any] = {key: Fraction(amount) for key, amount in stored["budget"].items()}
        return cls(
            name,
            Budget(**amounts),
            None if tables is None else tuple(tables),
            None if expires is None else datetime.fromisoformat(expires),
            bool(stored["suspended"]),
            bool(stored["removed"]),
        )


def newest(connection: sqlite3.Connection, name: str | None = None) -> dict[str, Analyst]:
    """Every analyst by name, removed ones too; or the one of a name."""
    where, values = ("", ()) if name is None else ("WHERE name = ?", (name,))
    rows = connection.execute(f"SELECT name, terms FROM analysts {where} ORDER BY id", values)  # noqa: S608 - fixed
    return {held: Analyst.from_dict(held, json.loads(terms)) for held, terms in rows}


def declare(connection: sqlite3.Connection, analyst: Analyst) -> None:
    """Append what holds of an analyst from now on, as a link of the chain."""
    row = (chain.now(), analyst.name, chain.canonical(analyst.as_dict()))
    inserted = connection.execute("INSERT INTO analysts (time, name, terms) VALUES (?, ?, ?)", row)
    number = int(inserted.lastrowid or 0)
    chain.append(connection, "analyst", number, (number, *row))


def suspend_all(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Suspend everybody who may ask, until the custodian resumes them; their names."""
    found = [analyst for analyst in newest(connection).values() if not (analyst.removed or analyst.suspended)]
    for analyst in found:
        declare(connection, replace(analyst, suspended=True))
    return tuple(sorted(analyst.name for analyst in found))


def state(connection: sqlite3.Connection, analyst: Analyst) -> BudgetState:
    """What an analyst's budget holds, and what is spent of it; never more than all of it.

    What a ledger had spent that was lost (`ledger_restore`) may have been spent by any analyst of that time, and so it
    counts for each of them.
    """
    held = spending(connection, _OF, (analyst.name, analyst.name))
    accounts = tuple(
        BudgetAccount(name, total, min(total, held.spent(name))) for name, total in analyst.budget.totals.items()
    )
    return BudgetState(analyst.budget, accounts)


def check(connection: sqlite3.Connection, label: str, charge: Charge, description: Json) -> None:
    """Hold a charge to the budget of the analyst whose name its label is; inside the caller's transaction.

    Raises BudgetError for one who may not ask, or not so much, PolicyError for tables that are not theirs.
    """
    analyst = newest(connection, label).get(label)
    if analyst is None:
        return
    why = analyst.refusal()
    if why:
        raise BudgetError(f"the analyst {label} {why}; ask the custodian (nothing was charged)")
    if charge.delta is not None:
        raise finds_nothing(label)  # no part of the policy's delta for thresholds is an analyst's
    check_tables(analyst, [str(name) for name in description.get("tables", ())])
    if not analyst.budget.allows(charge):
        raise BudgetError(analyst.budget.refusal(charge, f"the {_CAP} of the analyst {label}"))
    held = state(connection, analyst)
    if held.account(charge.account) is None:
        raise BudgetError(f"the analyst {label} has no {charge.account} account; ask for another guarantee")
    within = held.within(Reads.of(description))
    if not within.affords(charge):
        raise BudgetError(f"the analyst {label}: {within.refusal(charge)}")


def finds_nothing(label: str) -> BudgetError:
    """Why an analyst cannot find values or bounds (`threshold`)."""
    return BudgetError(
        f"the custodian finds values and bounds, for everybody, and {label} is an analyst; ask the custodian (nothing "
        "was charged)"
    )


def check_tables(analyst: Analyst, tables: list[str]) -> None:
    """Raise PolicyError where one of the tables is not the analyst's."""
    allowed = None if analyst.tables is None else {name.casefold() for name in analyst.tables}
    others = [] if allowed is None else [name for name in tables if name.casefold() not in allowed]
    if others:
        raise ForbiddenTableError(
            f"the analyst {analyst.name} may not ask {', '.join(others)}; ask {', '.join(analyst.tables or ())}, or "
            "the custodian for more (nothing was charged)"
        )
