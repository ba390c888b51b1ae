"""The methods of a plan that say what other budgets, and another batch, would give."""

from __future__ import annotations

from dpsql.common.arguments import maybe, real, taking, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.planning.plan import Plan
from dpsql.release import Result


@guards_calls
class Advised(Plan):
    """What a ``Plan`` says of plans that are like it. All of it is free."""

    @taking(points=whole(-(2**63), 2**63))
    def curve(self, points: int = 17, span: float = 8.0) -> Result:
        """Error against epsilon (or rho): a row for each budget and result column."""
        from dpsql.extensions.advice.what_if import curve

        return curve(self, points, span)

    @taking(most=whole(0, 10**6), time_limit=maybe(real()))
    def marginal_costs(self, most: int = 40, time_limit: float | None = 30.0) -> Result:
        """How much worse each statement makes the others, and what it costs
        (``dpsql.extensions.advice.what_if.costs``).
        """
        from dpsql.extensions.advice.what_if import marginal_costs

        return marginal_costs(self.alone, most, time_limit)

    @taking(time_limit=maybe(real()))
    def suggestions(self, time_limit: float | None = 30.0) -> Result:
        """What to drop, coarsen or bound more tightly, with the effect of each."""
        from dpsql.extensions.advice.suggestions import suggestions

        return suggestions(self.alone, time_limit)

    @taking(time_limit=maybe(real()))
    def what_if(self, time_limit: float | None = 30.0) -> str:
        """Other budgets, costs and suggestions, as text."""
        from dpsql.extensions.advice.what_if_text import what_if_text

        said = what_if_text(self.alone, time_limit)
        return said if self.alone is self else f"Without earlier releases:\n{said}"
