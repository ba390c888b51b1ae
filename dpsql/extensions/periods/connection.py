"""The methods of a connection to tables that grow: standing batches, and the budget of each period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection import Connection

if TYPE_CHECKING:  # imported where they are asked for: a plan needs none of them
    from dpsql.extensions.periods.period_budgets import PeriodBudget
    from dpsql.extensions.periods.schedules import Schedules


@guards_calls
class Standing(Connection):
    """The part of a ``Connection`` that releases a batch of every period."""

    @property
    def schedules(self) -> Schedules:
        """The standing batches: ``add``, ``standing``, ``remove``, and ``release_due`` for what is over by now."""
        from dpsql.extensions.periods.schedules import Schedules

        self._check_open()
        return Schedules(self.policy, self._batches, self._books, self._plans)

    def budget_by_period(self) -> list[PeriodBudget]:
        """What is spent and left of every period of a growing table that is over."""
        from dpsql.extensions.periods.period_budgets import budget_by_period

        return budget_by_period(self.policy, self.budget)
