"""What is spent of each period of tables that grow, in figures and as a calendar."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.planning.by_period import reads_of
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.privacy.accountant import BudgetState

_MONTH = 31  # a period of at most so many days is shown by month, others by year


@dataclass(frozen=True)
class PeriodBudget:
    """What one account holds of one closed period: ``spent`` and ``remaining`` of ``total``, in the account's measure.

    ``total``, ``remaining`` and ``text`` are what charges of this period alone may take. ``releases``: how many charges
    named it.
    """

    table: str
    period: str
    account: str
    total: float
    spent: float
    remaining: float
    text: tuple[str, str, str]
    releases: int


def budget_by_period(policy: Policy, state: BudgetState) -> list[PeriodBudget]:
    """The budget of every period of every growing table that is over, oldest first. Free."""
    found = list[PeriodBudget]()
    count: dict[tuple[str, str, str], int] = {}
    for entry in state.charges:
        if entry.reads is not None:
            for period in entry.reads.read:
                key = fold(entry.reads.table), period, entry.charge.account
                count[key] = count.get(key, 0) + 1
    for table in policy.tables.values():
        if table.periods is None:
            continue
        for number in range(table.periods.closed(policy.day)):
            within = state.within(reads_of(table, [number]))
            for account in within.accounts:
                if account.name == "local":
                    continue
                period, (total, spent, left, _) = table.periods.start(number).isoformat(), within.figures(account)
                times = count.get((fold(table.name), period, account.name), 0)
                figures = (account.total, account.spent, account.remaining)
                found.append(PeriodBudget(table.name, period, account.name, *figures, (total, spent, left), times))
    return found


def calendar(budgets: Sequence[PeriodBudget]) -> list[tuple[str, list[float]]]:
    """A line a year, or a month of short periods: its label, and the share of each of its periods that is spent."""
    held = [(dt.date.fromisoformat(one.period), one) for one in budgets]
    days = [(after - day).days for (day, _), (after, _) in itertools.pairwise(held)]
    form = "%Y-%m" if days and min(days) < _MONTH - 3 else "%Y"
    lines: dict[str, list[float]] = {}
    for day, one in held:
        lines.setdefault(day.strftime(form), []).append(one.spent / one.total if one.total else 0.0)
    return list(lines.items())
