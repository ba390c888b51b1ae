"""What is spent where tables grow: charges that name the periods they read, and what one unit loses by all of them.

A charge's description may say ``periods``: the table, the rule that puts each of its rows into one period by what the
row itself says, and the names of the periods whose rows the release counts. All other charges read everything.

**Claim.** Neighbours are D and D - u, u one row of a table whose unit is the row, else all rows of one unit, whenever
they arrive: rows may come between releases, and the two differ in u's alone at any time. Let u have rows in m_t of the
periods of each table t at any time: a row whose day is changed is in each period that it was in. For one account, let g
be the sum of the charges that name no period, and S_t(p) that of those that name period p of t. By all releases
together u loses, in the measure of the account, at most

    g + sum_t (the m_t largest of S_t(p) over the periods p of t).

**Proof.** A release that reads the periods R of t is a function of the rows of t in R, of what its joins find for these
rows, which belongs to their units (``dpsql.workloads.expr.rows``), and of fresh noise: ``measure`` holds every cell
that it counts to lie in R before it charges. If u has no row in R, then, whatever was released before, its law is the
same with u and without, and it adds nothing. Otherwise it adds at most its charge, which is calibrated to all rows of u
that count there. So what u loses is the sum, by the composition of the account (``dpsql.privacy.accountant``: sums of
epsilon, or of mu squared under a filter), of the charges that name no period or one of u's; a charge that names several
of them counts for each, once would do. The m_t largest sums are at least those of u's own periods.

**One period of a unit.** What IN and EXISTS look up in t is in R, too (``measure`` holds it to that), and a release
whose joins or subqueries look at rows of another table that grows names no period. So let two tables differ in rows of
u in period p of t alone, u's rows elsewhere staying as they are: a release that names periods, and not p, has the same
law over both. Every other is changed by two neighbouring steps at most (u away, and u as it is now). So what u did in p
is told by g and S_t(p), two steps of each, however many other periods u has rows in. Left out is what says whose a row
is: a table may find its unit by a key that leads through t.

A release of a horizon names its last period alone and reads earlier ones, too: what these lose by it was charged to
each of them before, by the charge of that horizon that names it (``dpsql.measure.job``, `_check_over`, has the proof).

To replace a row by one of another period is to remove one and to add one: two neighbouring steps, each with its bound.

The unit "row" has m_t = 1: periods compose in parallel, and each has the whole budget. With a unit column the policy
says for units with rows in how many periods the budget is to hold, k = ``max_periods_per_unit``; without it for any
number, and then every charge adds. ``Spending.spent`` is the bound at m_t = k, and it is what the account has spent:
the ledger keeps it below the total, on every path of adaptive questions, so that the filter holds for each unit.
So that no period takes what others need, the charges of one period may take a k-th of the account.

**What is not promised.** A unit with rows in more than k periods counts in all of them and loses more than the total:
that of its m largest periods, at most m / k times it, rounded up. To count it in k of them alone would need a look at
the others, which grow after the answer is out; a choice by a hash of unit and period would leave out k / N of all rows
of N periods, which costs more than noise for all N does. Choose k for those who are to be protected in full.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from dpsql.common.arrays import Json
from dpsql.errors import BudgetError, DataError, IntegrityError, listed

_KEPT = 2**13  # texts of periods that were read
_ROWS = """SELECT purse, periods, sum(units) FROM (
SELECT purse, units, CASE WHEN instr(description, '"periods":{{') THEN json_extract(description, '$.periods') END AS
periods FROM charges NOT INDEXED {where}) GROUP BY purse, periods"""


@dataclass(frozen=True)
class Reads:
    """Which periods of a table a release reads. ``most``: the k of the module, None for any number."""

    table: str
    column: str
    every: str
    first: str
    most: int | None
    read: tuple[str, ...]

    def __post_init__(self) -> None:
        texts = (self.table, self.column, self.every, self.first, *self.read)
        known = self.most is None or (isinstance(self.most, int) and not isinstance(self.most, bool) and self.most > 0)
        if not (known and self.read and all(isinstance(text, str) and text for text in texts)):
            raise DataError("a charge that names periods says the table, their rule and which ones it reads")
        if len(set(self.read)) < len(self.read):
            raise DataError("a charge names each of its periods once")

    def as_dict(self) -> Json:
        """Public and JSON-ready; `of` reads it back."""
        rule = {"column": self.column, "every": self.every, "first": self.first, "most": self.most}
        return {"table": self.table, **rule, "read": list(self.read)}

    @classmethod
    def of(cls, description: Json) -> Reads | None:
        """What a charge's description says; None where it names no period. DataError where it is no such."""
        held = description.get("periods")
        if held is None:
            return None
        failure = not isinstance(held, dict)
        if not failure:
            try:
                return cls(**{**held, "read": tuple(held["read"])})
            except (KeyError, TypeError):
                failure = True
        raise DataError("a charge that names periods says the table, their rule and which ones it reads")

    @property
    def rule(self) -> tuple[str, str, str, int | None]:
        """What must not change once a period was charged."""
        return (self.column, self.every, self.first, self.most)

    def __str__(self) -> str:
        return f"{self.table} of {listed(self.read, 3)}"


@dataclass
class Spending:
    """Sums of charges by account: those that name no period, and those of each period of each table."""

    everywhere: dict[str, int] = field(default_factory=dict)
    by_period: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Units by table (folded), account and period."""
    rules: dict[str, Reads] = field(default_factory=dict)

    @classmethod
    def among(cls, charges: Iterable[tuple[str, int, Reads | None]]) -> Spending:
        """(account, units, what it reads) of charges, added up."""
        found = cls()
        for account, units, reads in charges:
            found.add(account, units, reads)
        return found

    def add(self, account: str, units: int, reads: Reads | None) -> None:
        """Count one charge more."""
        if reads is None:
            self.everywhere[account] = self.everywhere.get(account, 0) + units
            return
        self.rules.setdefault(reads.table.casefold(), reads)
        held = self.by_period.setdefault(reads.table.casefold(), {}).setdefault(account, {})
        for period in reads.read:
            held[period] = held.get(period, 0) + units

    @property
    def accounts(self) -> set[str]:
        """The accounts that were charged."""
        return {*self.everywhere, *(account for held in self.by_period.values() for account in held)}

    def spent(self, account: str) -> int:
        """What a unit with rows in ``most`` periods of each table has lost at most: what the account has spent."""
        return self.everywhere.get(account, 0) + sum(
            _largest(self.rules[table].most, held.get(account, {}).values()) for table, held in self.by_period.items()
        )

    def within(self, account: str, total: int) -> int:
        """``spent``, at most the total: a lost ledger may have read any period, and counts for each (`restore`)."""
        return min(total, self.spent(account)) if self.by_period else self.spent(account)

    def of(self, account: str, reads: Reads) -> list[int]:
        """What the account has spent of each period that is read."""
        held = self.by_period.get(reads.table.casefold(), {}).get(account, {})
        return [held.get(period, 0) for period in reads.read]

    def after(self, account: str, units: int, reads: Reads | None) -> int:
        """``spent``, were these units charged, too."""
        before = self.spent(account)
        if reads is None:
            return before + units
        held = self.by_period.get(reads.table.casefold(), {}).get(account, {})
        now = {**held, **{period: held.get(period, 0) + units for period in reads.read}}
        return before - _largest(reads.most, held.values()) + _largest(reads.most, now.values())

    def room(self, account: str, total: int, reads: Reads) -> int:
        """The most units that one charge of these periods may take."""
        low, high = -1, min(share_of(total, reads) - max(self.of(account, reads)), total)
        if high >= 0 and self.after(account, high, reads) <= total:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self.after(account, middle, reads) <= total:
                low = middle
            else:
                high = middle - 1
        return max(low, 0)

    def check_rule(self, reads: Reads) -> None:
        """IntegrityError where the table's periods are not those of earlier charges: their sums would mean nothing."""
        held = self.rules.get(reads.table.casefold(), reads)
        if held.rule != reads.rule:
            raise IntegrityError(
                f"the periods of {reads.table} are {_words(reads)} by the policy and were {_words(held)} when the "
                "first of them was released, so that what was spent of each would no longer be known: put them back "
                "(nothing was charged)"
            )


def share_of(total: int, reads: Reads) -> int:
    """The part of an account that the charges of one period may take."""
    return total if reads.most is None else total // reads.most


def _largest(most: int | None, sums: Iterable[int]) -> int:
    return sum(sums) if most is None else sum(heapq.nlargest(most, sums))


def _words(reads: Reads) -> str:
    most = "" if reads.most is None else f", with max_periods_per_unit {reads.most}"
    return f"every {reads.every} of {reads.column} from {reads.first}{most}"


def spending(connection: sqlite3.Connection, where: str = "", values: tuple[object, ...] = ()) -> Spending:
    """What the charges of a ledger that meet ``where`` (fixed text) add up to. Cost O(charges), in SQLite."""
    rows = connection.execute(_ROWS.format(where=where), values)
    return Spending.among((account, units, None if held is None else _read(held)) for account, held, units in rows)


@lru_cache(_KEPT)
def _read(text: str) -> Reads | None:
    """What the JSON of ``Reads.as_dict`` says; a ledger is added up often, and its rows never change."""
    return Reads.of({"periods": json.loads(text)})


def check(spending: Spending, account: str, units: int, total: int, reads: Reads | None) -> int | None:
    """How much more the account has spent after a charge of these units, None where that is above its total.

    Inside the caller's transaction. Raises IntegrityError where the periods of the table are others than before,
    BudgetError where one of those that are read has no such share left.
    """
    if reads is not None:
        spending.check_rule(reads)
        part = share_of(total, reads)
        for period, spent in zip(reads.read, spending.of(account, reads), strict=True):
            if spent + units > part:
                whole = max(part, 1)  # a share of many periods may be less than the account can count
                left, needed = 100 * max(0, part - spent) / whole, 100 * units / whole
                raise BudgetError(
                    f"period {period} of {reads.table} has {left:.3g}% left of its part of the {account} account, and "
                    f"the release needs {needed:.3g}%: ask for less, or query earlier releases of it, which is free "
                    "(nothing was charged)"
                )
    after = spending.after(account, units, reads)
    return after - spending.spent(account) if after <= total else None
