"""The part of a policy's delta that thresholds may use, and who used it: apart from what Gaussian releases use.

A threshold that finds the values of a column fails with a chance ``Charge.delta`` (`dpsql.privacy.threshold`). These
chances add up, whatever the order of releases, and the sum stays within a reserve d, so that all releases together are
(epsilon, delta)-DP where the Gaussian account's mu is that of (epsilon - epsilon_P, delta - d). In a rho policy all
releases together are d-approximately rho-zCDP (Bun and Steinke 2016, Def. 8.1). Where the reserve comes from:

- The policy names it, ``discovery_delta``, before the ledger is made: the Gaussian account is made for delta - d.
- Else it is set aside when the first values are found: half of delta. Its price is charged to the Gaussian account: the
  units by which mu^2 at delta exceeds mu^2 at delta - d. That is sound only while nothing was paid from that account:
  then all that follows is (epsilon, delta)-DP whichever of the two is chosen, so it may be chosen by what pure
  releases showed. Later, an analyst could set delta aside where the past makes Gaussian releases harmless, and not
  elsewhere, and have more than delta; so it is refused. No price in mu^2 makes up for that.

A ledger that was restored without knowing all charges has nothing left of it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from dpsql.common.arrays import Json
from dpsql.errors import BudgetError, PolicyError
from dpsql.privacy.amounts import show, show_left
from dpsql.privacy.budget import Budget, mu_units
from dpsql.privacy.charge import Charge
from dpsql.privacy.entries import Entry

SHARE = Fraction(1, 2)
"""The part of delta that is set aside where the policy says nothing: it costs some percent of mu^2."""


@dataclass(frozen=True)
class Reserve:
    """``total`` and what was ``spent`` of it, exactly."""

    total: Fraction
    spent: Fraction

    @property
    def left(self) -> Fraction:
        """What thresholds may still use."""
        return max(Fraction(0), self.total - self.spent)

    def __str__(self) -> str:
        return f"delta {show_left(self.left)} left of {show(self.total)} for finding groups"


def makes(description: Json) -> bool:
    """Whether a charge sets delta aside and pays for no release."""
    return description.get("kind") == "reserve"


def price(budget: Budget) -> tuple[Charge, Json]:
    """The charge that sets `SHARE` of delta aside, and the description that the ledger keeps beside it.

    Raises PolicyError for a policy that promises no delta.
    """
    check_possible(budget)
    assert budget.epsilon is not None  # noqa: S101 - it was checked
    assert budget.delta is not None  # noqa: S101
    aside = budget.delta * SHARE
    units = budget.totals["gaussian"] - mu_units(budget.epsilon - budget.pure, budget.delta - aside)
    said = f"delta {show(aside)} set aside for finding groups"
    return Charge("gaussian", units, "gaussian", said), {"kind": "reserve", "delta": str(aside), "names": []}


def missing(budget: Budget, entries: Iterable[Entry]) -> tuple[Charge, Json] | None:
    """`price` where delta is to be set aside and still can be; None where it is, or cannot be."""
    charges = [(entry.charge, entry.description) for entry in entries]
    possible = budget.rho is None and budget.delta is not None and "gaussian" in budget.totals
    touched = any(charge.account == "gaussian" for charge, _ in charges)
    return price(budget) if possible and not touched and among(budget, charges) is None else None


def check_possible(budget: Budget) -> None:
    """PolicyError where a policy has no delta that thresholds could use, or no account that pays for them."""
    if budget.rho is not None and budget.discovery_delta is None:
        raise PolicyError(
            "[budget] has rho and no discovery_delta, and what nobody has listed cannot be found without a chance of "
            "failure: write discovery_delta = 1e-9 beside rho before the ledger is made, or list the values"
        )
    if budget.rho is None and budget.delta is None:
        raise PolicyError(
            "[budget] has no delta, and what nobody has listed cannot be found under pure epsilon: whoever is the only "
            "one with a value must not be told from nobody; add delta to the policy before its ledger is made, find "
            "short texts with max_bytes, or list the values"
        )
    if "gaussian" not in budget.totals:
        raise PolicyError(
            "[budget] keeps all of epsilon pure, and values found with delta are paid from a Gaussian account: find "
            "short texts with max_bytes and no delta, list the values, or write a pure_epsilon below epsilon before "
            "the ledger is made"
        )


def of(connection: sqlite3.Connection, budget: Budget) -> Reserve | None:
    """The reserve by now, None where there is none yet. Inside the caller's transaction. O(charges), in SQLite."""
    rows = connection.execute(
        "SELECT cost, description FROM charges WHERE json_extract(cost, '$.delta') IS NOT NULL"
        " OR json_extract(description, '$.kind') = 'reserve' OR json_extract(description, '$.lost')"
    )
    return among(budget, [(Charge.from_dict(json.loads(cost)), json.loads(text)) for cost, text in rows])


def among(budget: Budget, charges: Iterable[tuple[Charge, Json]]) -> Reserve | None:
    """The reserve once these charges, each with its description, are made; None where there is none yet."""
    total, spent, lost = budget.discovery_delta, Fraction(0), False
    for charge, body in charges:
        spent += charge.delta or 0
        lost = lost or bool(body.get("lost"))
        total = Fraction(body["delta"]) if makes(body) else total
    if total is None:
        return None
    return Reserve(total, total if lost else spent)


def check(connection: sqlite3.Connection, budget: Budget, charge: Charge) -> None:
    """BudgetError where a threshold takes more of delta than is left; inside the caller's transaction."""
    if charge.delta is None:
        return
    held = of(connection, budget) or Reserve(Fraction(0), Fraction(0))
    if charge.delta > held.left:
        raise BudgetError(
            f"finding these groups takes delta {show(charge.delta)} of what is kept for it, which has "
            f"{show_left(held.left)} left of {show(held.total)}; ask with less delta, or list the values in the policy"
        )


def check_untouched(connection: sqlite3.Connection, budget: Budget) -> None:
    """BudgetError where delta can no longer be set aside; inside the caller's transaction."""
    if of(connection, budget) is not None:
        raise BudgetError("delta is set aside for finding groups already; ask again (nothing was charged)")
    if connection.execute("SELECT 1 FROM charges WHERE purse = 'gaussian'").fetchone():
        raise too_late()


def too_late() -> BudgetError:
    """Why delta can no longer be set aside."""
    return BudgetError(
        "finding groups needs a part of delta that is set aside before the first Gaussian release, and this ledger "
        "has some: list the values in the policy, or write discovery_delta into the policy of a new data set"
    )
