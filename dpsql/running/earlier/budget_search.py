"""The least budget for target errors where earlier releases know a part of the answers: a search, not a scaling.

The strategies are those of the batch alone. With what earlier releases know, half-widths no longer fall as 1 / epsilon
or 1 / mu: every step of the search works them out by generalised least squares over earlier measurements and the new
one. Where earlier releases meet the target alone, the least budget is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsql.errors import BudgetError
from dpsql.planning.budget_search import (
    PricedWay,
    Search,
    Way,
    least_priced,
    level_for,
    plan_of_way,
    ratio_of,
    refusal,
)
from dpsql.planning.needed_budget import NeededBudget
from dpsql.planning.prepare import Prepared
from dpsql.planning.target_errors import Goal, Wanted
from dpsql.running.earlier.combined import Combination
from dpsql.running.earlier.combined_plan import Combining, combining, noted
from dpsql.running.earlier.joint import Past

_WORTH = 0.01  # of the amount: what earlier releases must save
_NEAR = 1e-4  # how near the least amount is found, relatively: each step works out all answers anew


@dataclass(frozen=True, eq=False)
class EarlierReleases:
    """What earlier releases say of a batch: all of it (``combination``), or a part that ``pasts`` know.

    ``first``: those that must count (``dpsql.running.earlier.combined.joined``).
    """

    combination: Combination | None
    pasts: Sequence[Past]
    first: frozenset[int]

    def needed(self, search: Search, ways: Sequence[PricedWay]) -> NeededBudget | None:
        """The least budget with them, None where they save less than a hundredth of it.

        ``ways``: those without them, the one that would be taken first. BudgetError where even that is too much.
        """
        prepared, state, targets = search.prepared, search.state, search.targets
        if self.combination is not None and met(self.combination, prepared, search.goal, targets):
            alone = plan_of_way(search, ways[0], ways)
            return NeededBudget(0.0, noted(alone, self.combination), ways[0].request)
        found = []
        for way in ways:
            beside, units = self._beside(search, way.way), way.charge.units
            if beside is None or (ways[0].affordable and beside.ratio(round(units * (1 - _WORTH))) > 1):
                continue
            priced = least_priced(way.way, beside.ratio, state, units, near=_NEAR, learn=True)
            if priced is not None:
                found.append((priced, beside))
        if not found:
            return None
        found.sort(key=lambda pair: pair[0].order)
        (chosen, beside), without = found[0], ways[0]
        if without.affordable and chosen.value > (1 - _WORTH) * without.value:
            return None
        if not chosen.affordable:
            ratios = [(one.way.route, b.ratio) for one, b in found]
            raise BudgetError(refusal(ratios, [one.charge for one, _ in found], state, targets))
        answers = beside.combining.answers(chosen.charge)
        if answers is None:
            return None
        plan = plan_of_way(search, chosen, ways, beside.alpha)
        return NeededBudget(chosen.value, beside.combining.plan(plan, answers), chosen.request)

    def _beside(self, search: Search, way: Way) -> WayWithEarlier | None:
        """A strategy along a route, with them; None where they know nothing of it."""
        found = combining(search.prepared, way.strategy, self.pasts, self.first)
        if found is None:
            return None
        kinds = {one.noise.kind for one in found.joint.observations} | {way.route.noise}
        kind = "gaussian" if kinds == {"gaussian"} else "laplace"
        alpha = level_for(search.prepared, search.goal, search.targets, kind, found.compiled.rows.shape[1])
        return WayWithEarlier(way, found, alpha)


def met(combination: Combination, prepared: Prepared, goal: Goal, targets: Wanted) -> bool:
    """Whether earlier releases alone give every number the half-width asked of it."""
    answers, compiled = combination.answers, combination.compiled
    alpha = level_for(prepared, goal, targets, answers.law.kind, compiled.rows.shape[1])
    widths = answers.widths(None, alpha)
    rows = [answers.rows(derived.parts) for derived in goal.derived]
    return ratio_of(goal, widths, lambda k: rows[k], answers.law, alpha, compiled.common_steps) <= 1.0


@dataclass(eq=False)
class WayWithEarlier:
    """One strategy along one route, beside earlier releases: how far half-widths are from what is asked."""

    way: Way
    combining: Combining
    alpha: float
    _ratios: dict[int, float] = field(default_factory=dict)

    def ratio(self, units: int) -> float:
        """The largest half-width over what is asked of it; infinite where not all is determined."""
        if units not in self._ratios:
            self._ratios[units] = self._ratio(units)
        return self._ratios[units]

    def _ratio(self, units: int) -> float:
        answers = self.combining.answers(self.way.route.step(units))
        if answers is None:
            return float(np.inf)
        goal, combined = self.way.goal, answers.combined
        rows = [combined.rows(derived.parts) for derived in goal.derived]
        widths = combined.widths(None, self.alpha)
        return ratio_of(goal, widths, lambda k: rows[k], combined.law, self.alpha, self.combining.compiled.common_steps)
