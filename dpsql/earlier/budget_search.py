"""The least budget for wanted errors where earlier releases know a part of the answers: a search, not a scaling.

With precision P0 known already, half-widths no longer fall as 1 / epsilon or 1 / mu. The strategy depends on the
amount, too, so the two are found in turn: at an amount the queries are weighed, w <- w (half-width over target)^2, and
the complement of least weighed error is planned (``dpsql.earlier.search``); for that strategy the least amount is
searched, every step by generalised least squares over earlier measurements and the new one; and again at that amount.
A few rounds of weighing come near the strategy of least largest error, as ``dpsql.strategy.choose.minimax`` does
without P0; that is not certified. Where earlier releases meet the wish alone, the least budget is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpsql.earlier import Combination, Complement, Setting, complement
from dpsql.earlier.complement import observed_complement
from dpsql.earlier.complement_plan import complement_plan, noted
from dpsql.errors import BudgetError
from dpsql.planning.budget_search import FoundWay, NeededBudget, Way, level_for, others_of, ratio_of, refusal
from dpsql.planning.payment import NEAR, Route, least_amount
from dpsql.planning.plan import Origin, Plan, plan_of
from dpsql.planning.prepare import Prepared, scaled_sensitivity
from dpsql.planning.target_errors import Goal, Wanted
from dpsql.privacy.accountant import BudgetState
from dpsql.privacy.charge import Charge
from dpsql.strategy import MatrixStrategy
from dpsql.workload.compile.compiled import Compiled

_ROUNDS = 6  # of weighing queries at one amount
_TURNS = 3  # of planning at the amount found
_WORTH = 0.01  # of the amount: what earlier releases must save


@dataclass(frozen=True, eq=False)
class KnownBefore:
    """What earlier releases say of a batch: all of it (``combination``), a part (``setting``), or nothing (None)."""

    combination: Combination | None
    setting: Setting | None

    def better(
        self,
        prepared: Prepared,
        state: BudgetState,
        wanted: Wanted,
        goal: Goal,
        found: Sequence[FoundWay],
        tolerance: float,
    ) -> NeededBudget | None:
        """The least budget with them, None where they save less than a hundredth of it.

        ``found``: the ways without them, the one that would be taken first. BudgetError where even that is too much.
        """
        alone = _planned(prepared, state, tolerance, found, found[0], wanted)
        if self.combination is not None and met(self.combination, prepared, goal, wanted):
            return NeededBudget(0.0, noted(alone, self.combination.rests_on), found[0][2])
        if self.setting is None:
            return None
        priced: list[tuple[FoundWay, Beside]] = []
        for _, _, _, paid, way in found:
            beside = _beside(self.setting, prepared, wanted, goal, way, paid.units, tolerance)
            if beside is None:
                continue
            most, units = way.route.most(state), beside.units
            if most < units <= most * (1 + 2 * NEAR) and beside.ratio(most) <= 1:
                units = most  # the search ends a millionth above the least
            request = way.route.request(units)
            charge = way.route.price(request)
            value = float(request.rho or request.epsilon or 0)
            priced.append(((not state.affords(charge), value, request, charge, way), beside))
        priced.sort(key=lambda entry: entry[0][:2])
        if not priced or (not found[0][0] and priced[0][0][1] > (1 - _WORTH) * found[0][1]):
            return None
        chosen, beside = priced[0]
        if chosen[0]:
            raise BudgetError(refusal([b for _, b in priced], [entry[3] for entry, _ in priced], state, wanted))
        taken = _taken(beside, self.setting, chosen[3])
        if taken is None:
            return None
        others = [entry for entry in found if entry[4] is not chosen[4]]
        plan = _planned(prepared, state, tolerance, [chosen, *others], chosen, wanted)
        return NeededBudget(chosen[1], complement_plan(replace(plan, alpha=beside.alpha), taken, wanted), chosen[2])


def met(combination: Combination, prepared: Prepared, goal: Goal, wanted: Wanted) -> bool:
    """Whether earlier releases alone give every number the half-width asked of it."""
    answers, compiled = combination.answers, combination.compiled
    alpha = level_for(prepared, goal, wanted, answers.law.kind, compiled.rows.shape[1])
    widths = answers.widths(None, alpha)
    rows = [answers.rows(derived.parts) for derived in goal.derived]
    return ratio_of(goal, widths, lambda k: rows[k], answers.law, alpha, compiled.common_steps) <= 1.0


@dataclass(eq=False)
class Beside:
    """One complement along one route, and the least amount at which it gives what is asked."""

    way: Way
    goal: Goal
    alpha: float
    found: Complement
    units: int = 0
    _ratios: dict[int, float] = field(default_factory=dict)

    @property
    def route(self) -> Route:
        """How it is paid."""
        return self.way.route

    def ratio(self, units: int) -> float:
        """The largest half-width over what is asked of it; infinite where not all is determined."""
        if units not in self._ratios:
            self._ratios[units] = _ratio(self.found, self.route, self.goal, self.alpha, units)[0]
        return self._ratios[units]


def _ratio(found: Complement, route: Route, goal: Goal, alpha: float, units: int) -> tuple[float, Any]:
    """``Beside.ratio`` and the variances (m,)."""
    noise = route.step(units).calibrate(scaled_sensitivity(found.strategy, found.compiled))
    combined = observed_complement(found.answers, noise)
    if combined is None:
        return float("inf"), None
    rows = [combined.rows(derived.parts) for derived in goal.derived]
    widths = combined.widths(None, alpha)
    ratio = ratio_of(goal, widths, lambda k: rows[k], combined.law, alpha, found.compiled.common_steps)
    return ratio, combined.errors()


def _beside(
    setting: Setting, prepared: Prepared, wanted: Wanted, goal: Goal, way: Way, units: int, tolerance: float
) -> Beside | None:
    """The complement and amount that were found in turn, the least of all turns."""
    if not isinstance(way.strategy, MatrixStrategy) or not isinstance(prepared.compiled, Compiled):
        return None
    kinds = {one.noise for one in setting.joint.observations} | {way.route.noise}
    kind = "gaussian" if kinds == {"gaussian"} else "laplace"
    alpha = level_for(prepared, goal, wanted, kind, prepared.compiled.rows.shape[1])
    best: Beside | None = None
    for _ in range(_TURNS):
        found = _weighed(setting, goal, way, alpha, units, tolerance)
        if found is None:
            break
        held = Beside(way, goal, alpha, found)
        amount = least_amount(held.ratio, 2.0 if way.route.noise == "gaussian" else 1.0, start=units)
        if amount is None or (best is not None and amount >= best.units):
            break
        held.units = amount
        gained = best is None or amount < 0.999 * best.units
        best, units = held, amount
        if not gained:
            break
    return best


def _weighed(setting: Setting, goal: Goal, way: Way, alpha: float, units: int, tolerance: float) -> Complement | None:
    """The complement at ``units`` whose largest half-width over its target is least of some rounds of weighing.

    Where the way's strategy has the least total error, that of the complement is least, too.
    """
    charge, strategy, numbers = way.route.step(units), way.strategy, setting.compiled.numbers
    assert isinstance(strategy, MatrixStrategy)  # noqa: S101 - _beside has refused others
    if strategy.objective == "total":
        return complement(setting, strategy, charge, tolerance)
    strategy = replace(strategy, objective="total")
    targets, answered = goal.targets(numbers), setting.compiled.answered
    weight = np.zeros(numbers)
    weight[answered] = 1.0 / len(answered)
    best: tuple[float, float, Complement] | None = None
    for _ in range(_ROUNDS):
        objective = setting.compiled.scale * np.sqrt(weight) / targets
        found = complement(setting.weighed(objective), strategy, charge, tolerance)
        ratio, errors = (np.inf, None) if found is None else _ratio(found, way.route, goal, alpha, units)
        if found is None or errors is None or (best is not None and ratio > best[0] * (1 - 1e-3)):
            break
        squares = (errors / targets) ** 2
        best = ratio, float(squares[answered].max()), found
        weight = np.where(weight > 0, np.maximum(weight * squares / float(weight @ squares), 1e-9), 0.0)
        weight = weight / weight.sum()
    return None if best is None else _largest(best[2], best[1], setting.tau(charge))


def _largest(found: Complement, largest: float, tau: float) -> Complement:
    """The complement with the largest (variance over squared target) as its objective; not certified."""
    made = replace(found.strategy, objective="max", largest_error=largest * tau, lower_bound=None)
    return replace(found, strategy=made, error=largest)


def _taken(beside: Beside, setting: Setting, charge: Charge) -> Complement | None:
    """The complement that was found, measured at ``charge``."""
    found, tau = beside.found, setting.tau(charge)
    combined = observed_complement(found.answers, charge.calibrate(scaled_sensitivity(found.strategy, found.compiled)))
    if combined is None:
        return None
    taken = replace(found, answers=replace(found.answers, combined=combined))
    if found.strategy.objective == "max":
        squares = (combined.errors() / beside.goal.targets(found.compiled.numbers)) ** 2
        return _largest(taken, float(squares[found.compiled.answered].max()), tau)
    scale = np.where(found.compiled.scale == 0, 1.0, found.compiled.scale)
    error = float(((combined.errors() * found.compiled.objective / scale) ** 2).sum())
    # What was proven was proven at an amount nearby.
    return replace(taken, strategy=replace(found.strategy, expected=error * tau, lower_bound=None), error=error)


def _planned(
    prepared: Prepared,
    state: BudgetState,
    tolerance: float,
    found: Sequence[FoundWay],
    chosen: FoundWay,
    wanted: Wanted,
) -> Plan:
    """The plan of a way without earlier releases."""
    _, _, request, charge, way = chosen
    origin = Origin(prepared, state, request, tolerance, way.strategy.objective)
    return plan_of(origin, charge, way.strategy, way.alpha, others_of(found), wanted)
