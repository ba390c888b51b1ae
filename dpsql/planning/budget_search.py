"""Accuracy first: the least budget that gives every number of a batch the half-width asked of it.

1. ``dpsql.planning.target_errors`` says which half-width every number is to have, at which confidence.
2. ``dpsql.strategy.targets`` chooses the strategy: the least budget subject to one constraint a number is the least
   largest variance of W scaled by the targets, certified for Gaussian noise.
3. The amount is searched (``dpsql.planning.payment.least_amount``): half-widths fall as it rises, for one strategy as 1
   / epsilon or 1 / mu, but for the lattice of the noise, for formulas whose intervals are not linear, and for sums of
   Laplace variables. Every step works out the half-widths from the law of the noise that would be drawn; the last one
   is within 1e-6 of the least amount at which all hold.

All intervals together (``simultaneous``): each is given the level alpha' at which that is proven, the largest of

- 1 - (1 - alpha)^(1/m), m different numbers, Gaussian noise (Sidak 1967, Thm 1, for any correlation);
- that of sqrt(chi^2_r quantile) standard errors, r independent measurements (Scheffe 1953: all linear combinations);
- alpha / m for Laplace noise, and where averages, ratios or quantiles are promised (union bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from time import monotonic
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.special import chdtri, ndtr

from dpsql.errors import BudgetError, DataError
from dpsql.linalg.columns import distinct_columns
from dpsql.planning.payment import NEAR, Route, least_amount, routes_of, up
from dpsql.planning.plan import Alternative, Origin, Plan, plan_of
from dpsql.planning.prepare import Chooser, Prepared, Say, scaled_sensitivity, true_error
from dpsql.planning.target_errors import Goal, Wanted, goal_of
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.amounts import LARGEST, show
from dpsql.privacy.charge import Charge
from dpsql.reconstruct import Answers, LineAnswers, simultaneous_alpha
from dpsql.sql.parse.options import budget_of, read_options
from dpsql.strategy import Strategy
from dpsql.strategy.targets import Limits, strategies_for, structured_for
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.line_batch import Lined
from dpsql.workload.compile.structured import Structured


class NeededBudget(float):
    """The least budget that gives the wanted errors: a number, epsilon or (``rho``) rho, and what comes with it.

    It compares, adds and prints as the number. ``epsilon`` and ``delta``, or ``rho``, are the arguments that ``plan``
    and ``run`` take, None where not part of it; ``guarantee`` and ``cost`` what a run spends, in the purse's measure;
    ``plan`` is the plan found; ``con.run(needed)`` runs it. As an amount of ``plan`` or ``run`` it is the number alone.
    """

    plan: Plan
    request: Request

    def __new__(cls, value: float, plan: Plan, request: Request) -> NeededBudget:
        found = super().__new__(cls, value)
        found.plan, found.request = plan, request
        return found

    @property
    def epsilon(self) -> float | None:
        """The epsilon to ask for; None where it is a rho."""
        return None if self.request.epsilon is None else float(self)

    @property
    def delta(self) -> float | None:
        """The delta beside epsilon; None for a pure guarantee or a rho."""
        return None if self.request.delta is None else float(self.request.delta)

    @property
    def rho(self) -> float | None:
        """The rho to ask for; None where it is an epsilon."""
        return None if self.request.rho is None else float(self)

    @property
    def guarantee(self) -> str:
        """What the release alone satisfies."""
        return self.plan.charge.guarantee if self else "free, from earlier releases"

    @property
    def cost(self) -> float:
        """What a run charges, in the purse's measure: epsilon, or mu squared."""
        return self.plan.charge.amount if self else 0.0

    def __repr__(self) -> str:
        return f"<NeededBudget {self.guarantee}>"

    def __str__(self) -> str:
        return f"{float(self):.9g}"


@dataclass(eq=False)
class Way:
    """One strategy along one route: how far its half-widths are from what is asked, at any amount."""

    route: Route
    strategy: Strategy
    compiled: Compiled | Structured | Lined
    goal: Goal
    alpha: float
    answers: Answers | LineAnswers = field(init=False)
    _sensitivity: int = field(init=False)
    _rows: dict[int, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = self.strategy.answers_of(self.compiled)
        self._sensitivity = scaled_sensitivity(self.strategy, self.compiled)

    def ratio(self, units: int) -> float:
        """The largest half-width over what is asked of it, of all numbers."""
        noise = self.route.step(units).calibrate(self._sensitivity)
        common = self.strategy.as_measured(self.compiled).common_steps

        def rows(number: int) -> Any:
            if number not in self._rows:
                assert not isinstance(self.answers, LineAnswers)  # noqa: S101 - formulas over a line are refused
                self._rows[number] = self.answers.rows(self.goal.derived[number].parts, noise)
            return self._rows[number]

        return ratio_of(self.goal, self.answers.widths(noise, self.alpha, common), rows, noise, self.alpha, common)


def ratio_of(goal: Goal, widths: Any, rows: Callable[[int], Any], noise: Any, alpha: float, common: int) -> float:
    """The largest half-width over what is asked of it. ``rows(k)``: of the parts of the k-th formula, for ``noise``."""
    largest = max((float(widths[part].max(initial=0.0)) / asked for part, asked in goal.asked), default=0.0)
    for number, derived in enumerate(goal.derived):
        reach = derived.reach(rows(number), noise, alpha, common)
        largest = max(largest, reach / derived.asked)
    return largest


def find_budget(
    prepared: Prepared,
    state: BudgetState,
    wanted: Wanted,
    *,
    delta: Fraction | None = None,
    measure: str | None = None,
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Say | None = None,
    known: Known | None = None,
) -> NeededBudget:
    """The least budget at which every number of the batch has the half-width asked of it, with its plan. Free.

    ``wanted.objective`` "least" chooses the strategy that needs the least; "total" and "max" keep the strategy that
    ``plan`` takes for that objective, so that planning at the number found gives the same. Where a purse for each kind
    of noise could pay, the least epsilon that is still allowed wins. ``known``: what earlier releases say; the new
    measurement then complements them (``dpsql.earlier.budget_search``), and 0 is found where they suffice. Raises
    BudgetError, with the least error within reach, where neither what is left nor the cap on one release holds what is
    needed; DataError and SQLError for wishes that do not fit the batch (``goal_of``).
    """
    began, say = monotonic(), progress or (lambda _: None)
    goal = goal_of(prepared, wanted)
    routes = routes_of(state, delta, measure)
    found: list[tuple[bool, float, Request, Charge, Way]] = []
    ways: list[Way] = []
    for number, route in enumerate(routes):
        left = None
        if time_limit is not None:
            left = max(time_limit - (monotonic() - began), 1e-9) / (len(routes) - number)
        for strategy in _strategies(prepared.compiled, goal, route.noise, wanted.objective, tolerance, left, progress):
            way = Way(route, strategy, prepared.compiled, goal, level_of(prepared, goal, wanted, strategy))
            ways.append(way)
            units = least_amount(way.ratio, 2.0 if route.noise == "gaussian" else 1.0)
            if units is None:
                continue
            most = route.most(state)
            if most < units <= most * (1 + 2 * NEAR) and way.ratio(most) <= 1:
                units = most  # the search ends a millionth above the least
            request = route.request(units)
            charge = route.price(request)
            say(f"{strategy.method}: {charge.guarantee}")
            found.append((not state.affords(charge), float(request.rho or request.epsilon or 0), request, charge, way))
    found.sort(key=lambda entry: entry[:2])
    if known is not None and found:
        better = known.better(prepared, state, wanted, goal, found, tolerance)
        if better is not None:
            return better
    if not found or found[0][0]:
        raise BudgetError(refusal(ways, [entry[3] for entry in found], state, wanted))
    _, value, request, charge, way = found[0]
    origin = Origin(prepared, state, request, tolerance, way.strategy.objective)
    others = others_of(found)
    return NeededBudget(value, plan_of(origin, charge, way.strategy, way.alpha, others, wanted), request)


FoundWay = tuple[bool, float, Request, Charge, Way]
"""A way and its least charge: whether that is more than is allowed, its figure, the request for it, the charge."""


class Known(Protocol):
    """What earlier releases say of a batch; ``dpsql.earlier.budget_search``."""

    def better(
        self,
        prepared: Prepared,
        state: BudgetState,
        wanted: Wanted,
        goal: Goal,
        found: Sequence[FoundWay],
        tolerance: float,
    ) -> NeededBudget | None:
        """The least budget with them, None where they help little. BudgetError where even that is too much."""
        ...


def others_of(found: Sequence[FoundWay]) -> tuple[Alternative, ...]:
    """The other ways to pay than the first."""
    return tuple(
        Alternative(c, w.strategy.method, c.unit_variance * true_error(w.strategy, w.compiled), not short)
        for short, _, _, c, w in found[1:]
        if w.route != found[0][4].route
    )


def _strategies(
    compiled: Compiled | Structured | Lined,
    goal: Goal,
    noise: str,
    objective: str,
    tolerance: float,
    time_limit: float | None,
    progress: Say | None,
) -> Sequence[Strategy]:
    limits = Limits(tolerance, time_limit, progress)
    if objective != "least" or isinstance(compiled, Lined):  # ranges of one line differ little: the total serves
        kept = "total" if objective == "least" else objective
        chooser = Chooser(compiled)
        return (chooser.strategy(noise, tolerance=tolerance, time_limit=time_limit, progress=progress, objective=kept),)
    if isinstance(compiled, Structured):
        return (structured_for(compiled, goal.targets(compiled.numbers), noise, limits),)
    return strategies_for(compiled.workload(compiled.scale / goal.targets(compiled.numbers)), noise, limits)


def level_of(prepared: Prepared, goal: Goal, wanted: Wanted, strategy: Strategy) -> float:
    """The level of single intervals that the wish needs: alpha, or one at which all hold together; see the module."""
    return level_for(prepared, goal, wanted, strategy.noise, strategy.independent)


def level_for(prepared: Prepared, goal: Goal, wanted: Wanted, noise: str, independent: int) -> float:
    """``level_of`` for a kind of noise and numbers that are combinations of ``independent`` Gaussian variables."""
    if not wanted.simultaneous:
        return wanted.alpha
    if goal.derived:
        return wanted.alpha / max(goal.numbers, 1)
    compiled = prepared.compiled
    count = sum(part.stop - part.start for part, _ in goal.asked)
    if isinstance(compiled, Compiled):
        rows = sparse.csr_array(compiled.rows[np.concatenate([np.arange(p.start, p.stop) for p, _ in goal.asked])])
        # Numbers that are multiples of each other hold or fail together.
        count = int(distinct_columns(sparse.csr_array(rows.T), up_to_sign=True).keep.size)
    level = simultaneous_alpha(wanted.alpha, count, noise)
    if noise != "gaussian":
        return level
    return max(level, 2.0 * float(ndtr(-math.sqrt(float(chdtri(independent, wanted.alpha))))))


class Reaching(Protocol):
    """A way to pay, and how far its half-widths are from what is asked."""

    @property
    def route(self) -> Route: ...
    def ratio(self, units: int) -> float: ...


def refusal(ways: Sequence[Reaching], charges: Sequence[Charge], state: BudgetState, wanted: Wanted) -> str:
    """One line: what is needed, what is allowed, the least error within reach, what next."""
    need = f"the wanted error needs {charges[0].guarantee}" if charges else "no budget gives the wanted error"
    reached = [(way.ratio(most), way.route, most) for way in ways if (most := way.route.most(state)) > 0]
    if not reached:
        return f"{need}, and nothing is left of the {ways[0].route.purse} purse: query earlier releases, which is free"
    factor, route, most = min(reached, key=lambda entry: entry[0])
    purse = state.purse(route.purse)
    left = 0 if purse is None else purse.remaining_units
    why = "one release may cost" if state.budget.caps.get(route.purse, LARGEST) < left else "is left"
    if not math.isfinite(factor):
        return f"{need}, and {route.named(most)}, all that {why}, gives no bound at all; ask for its counts and sums"
    reach = f"{up(factor)} times what is asked"
    if wanted.relative is not None:
        reach = f"relative={up(wanted.relative * factor)}"
    elif wanted.max_error is not None:
        reach = f"\u00b1{up(wanted.max_error * factor)}"
    return (
        f"{need}, more than {route.named(most)}, which is what {why}; the least error within reach is {reach}: ask for "
        f"that or for fewer numbers, {_other_purse(route, state)}or query earlier releases, which is free"
    )


def _other_purse(route: Route, state: BudgetState) -> str:
    other = state.purse("gaussian")
    if route.purse != "pure" or route.delta is not None or other is None or not other.remaining_units:
        return ""
    return f"give delta={show(state.budget.delta or Fraction(0))} for the gaussian purse, "


# -- what a call asks --------------------------------------------------------------------------------------


def wish_of(sql: str, epsilon: object, rho: object, wanted: Wanted) -> Wanted | None:
    """What is wanted, where the budget is to be found; None where the call or the batch's OPTIONS name one.

    Raises DataError where both are said.
    """
    named = epsilon is not None or rho is not None or budget_of(read_options(sql)[1]) is not None
    if wanted.empty:
        hinted = isinstance(sql, str) and "MAX_ERROR" in sql.upper()
        if hinted and not named:
            return wanted
        if wanted.simultaneous or wanted.expected:
            raise DataError("simultaneous and expected go with a wanted error; give max_error or relative beside them")
        return None
    if named:
        raise DataError("a wanted error and a budget are both given; keep one of the two (delta may go with an error)")
    return wanted
