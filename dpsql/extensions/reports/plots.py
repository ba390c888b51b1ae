"""Pictures of results, plans, workloads, strategies, budgets and ranges: a function each, for people and notebooks.

Needs the extra ``dpsql[plot]``. Every function takes ``ax``, matplotlib axes to draw into, or makes a figure; it
returns the figure, which a notebook shows and ``figure.savefig("picture.png")`` writes. pyplot is never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.errors import InterfaceError
from dpsql.extensions.periods.period_budgets import PeriodBudget, calendar
from dpsql.extensions.reports.matrix_picture import strategy_picture as plot_strategy
from dpsql.extensions.reports.matrix_picture import workload_picture as plot_workload
from dpsql.extensions.reports.picture import plan_picture as plot_plan
from dpsql.extensions.reports.spending import SHARES, budget_picture, calendar_picture
from dpsql.privacy.state import BudgetState
from dpsql.release.pictures import plot_ranges, plot_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_budget", "plot_periods", "plot_plan", "plot_ranges", "plot_result", "plot_strategy", "plot_workload"]


def plot_budget(state: BudgetState, ax: Axes | None = None) -> Figure:
    """What was spent over time, a panel an account, coloured by label, up to the account's total (``con.budget``)."""
    accounts = []
    for account in state.accounts:
        measure, times = account.measure, 1.0
        if account.name == "gaussian":  # counts mu squared: shares, or rho, say more
            measure, times = (SHARES, 100.0 / account.total) if state.budget.rho is None else ("rho", 0.5)
        spent = [(e.time, e.label, e.charge.amount * times) for e in state.charges if e.charge.account == account.name]
        accounts.append((account.name, measure, account.total * times, spent))
    return budget_picture(accounts, ax)


def plot_periods(budgets: Sequence[PeriodBudget], ax: Axes | None = None) -> Figure:
    """What is spent of each closed period, as a calendar, a panel a table and account (``con.budget_by_period()``)."""
    if not budgets:
        raise InterfaceError("no period of a table is over, so there is no calendar to draw")
    kinds = dict.fromkeys((one.table, one.account) for one in budgets)
    return calendar_picture(
        [
            (f"{table}, {account} account", calendar([one for one in budgets if (one.table, one.account) == kind]))
            for kind in kinds
            for table, account in [kind]
        ],
        ax,
    )
