"""Accuracy first: the least budget that gives every number of a batch the half-width asked of it.

1. ``dpsql.planning.target_errors`` says which half-width every number is to have, at which confidence.
2. ``dpsql.strategies.targets`` chooses the strategy: the least budget subject to one constraint a number is the least
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
from dataclasses import dataclass, field, replace
from fractions import Fraction
from time import monotonic
from typing import Any, Protocol

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Matrix
from dpsql.errors import BudgetError, DataError
from dpsql.linalg.columns import distinct_columns
from dpsql.planning.named_strategy import paying_for
from dpsql.planning.needed_budget import NeededBudget
from dpsql.planning.options import PlanOptions
from dpsql.planning.payment import NEAR, Route, least_amount, routes_of, up
from dpsql.planning.plan import Plan, plan_of, told
from dpsql.planning.planned_batch import Alternative, Origin
from dpsql.planning.prepare import Prepared, scaled_sensitivity, true_error, watched
from dpsql.planning.target_errors import Goal, Wanted, goal_of, rows_for
from dpsql.planning.text import WIDE
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.amounts import GRID, LARGEST, show
from dpsql.privacy.charge import Charge
from dpsql.reconstruct import Answers, Errors, simultaneous_alpha
from dpsql.sql.parse.options import budget_of, read_options
from dpsql.strategies import MatrixStrategy, Strategy
from dpsql.strategies.core.base import PURE
from dpsql.strategies.targets import Limits, strategies_for, strategies_within
from dpsql.workloads.compile.compiled import Batch

Ratio = Callable[[int], float]


@dataclass(eq=False)
class Way:
    """One strategy along one route: how far its half-widths are from what is asked, at any amount."""

    route: Route
    strategy: Strategy
    compiled: Batch
    goal: Goal
    alpha: float
    answers: Answers = field(init=False)
    _sensitivity: int = field(init=False)
    _rows: dict[int, Matrix] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = self.strategy.answers_of(self.compiled)
        self._sensitivity = scaled_sensitivity(self.strategy, self.compiled)

    def ratio(self, units: int) -> float:
        """The largest half-width over what is asked of it, of all numbers."""
        noise = self.route.step(units).calibrate(self._sensitivity, self.strategy.blocks)
        common = self.strategy.as_measured(self.compiled).common_steps

        def rows(number: int) -> Matrix:
            if number not in self._rows:
                derived = self.goal.derived[number]
                self._rows[number] = rows_for(derived.column, self.answers, derived.parts, noise)
            return self._rows[number]

        return ratio_of(self.goal, self.answers.widths(noise, self.alpha, common), rows, noise, self.alpha, common)


def ratio_of(
    goal: Goal,
    widths: Errors,
    rows: Callable[[int], Matrix],
    noise: Any,
    alpha: float,
    common: int,
) -> float:
    """The largest half-width over what is asked of it. ``rows(k)``: of the parts of the k-th formula, for ``noise``."""
    largest = max((float(widths[part].max(initial=0.0)) / asked for part, asked in goal.asked), default=0.0)
    for number, derived in enumerate(goal.derived):
        reach = derived.reach(rows(number), noise, alpha, common)
        largest = max(largest, reach / derived.asked)
    return largest


@dataclass(frozen=True, eq=False)
class Search:
    """A batch for whose target errors a budget is searched. ``goal``: the half-width that each number is to have."""

    prepared: Prepared
    state: BudgetState
    targets: Wanted
    goal: Goal
    options: PlanOptions


@dataclass(frozen=True, eq=False)
class PricedWay:
    """A way and its least charge. ``affordable``: whether what is left and the cap on one release allow it."""

    way: Way
    request: Request
    charge: Charge
    affordable: bool

    @property
    def value(self) -> float:
        """The figure asked for: rho or epsilon."""
        return float(self.request.rho or self.request.epsilon or 0)

    @property
    def order(self) -> tuple[bool, float]:
        """What is allowed comes first, then what asks for less."""
        return not self.affordable, self.value


class Known(Protocol):
    """What earlier releases say of a batch; ``dpsql.running.earlier.budget_search``."""

    def needed(self, search: Search, ways: Sequence[PricedWay]) -> NeededBudget | None:
        """The least budget with them, None where they help little. BudgetError where even that is too much."""
        ...


def find_budget(
    prepared: Prepared,
    state: BudgetState,
    targets: Wanted,
    options: PlanOptions,
    *,
    delta: Fraction | None = None,
    measure: str | None = None,
    known: Known | None = None,
) -> NeededBudget:
    """The least budget at which every number of the batch has the half-width asked of it, with its plan. Free.

    ``targets.objective`` "least" chooses the strategy that needs the least, of the batch compiled in all the ways that
    ``plan`` compares; the others keep the strategy that ``plan`` takes for that objective, so that planning at the
    number found gives the same. Where an account for each
    kind of noise could pay, the least epsilon that is still allowed wins. ``known``: what earlier releases say, whose
    measurements then count, too (``dpsql.running.earlier.budget_search``), and 0 is found where they suffice. Raises
    BudgetError, with the least error within reach, where neither what is left nor the cap on one release holds what is
    needed; DataError and SQLError for targets that do not fit the batch (``goal_of``).
    """
    began, found, refusals = monotonic(), list[_Priced](), list[DataError]()
    compared = targets.objective == "least" and not prepared.named
    others = (prepared.without_bounds, prepared.without_sum_bounds, prepared.with_units_apart) if compared else ()
    routes = paying_for(prepared.named, routes_of(state, delta, measure))
    for number, compiled in enumerate((lambda: prepared, *others)):
        gap = min(found, key=lambda one: one.order).gap if found else None
        batch = None if number == len(others) and number and gap is not None and gap <= WIDE else compiled()
        if batch is None:
            continue
        search, left = Search(batch, state, targets, goal_of(batch, targets), options), None
        if options.time_limit is not None:
            left = max(options.time_limit - (monotonic() - began), 1e-9)
        try:
            found.append(_priced(search, routes, left))
        except DataError as refused:  # as where one matrix is too large
            refusals.append(refused)
    if not found:
        raise refusals[0]
    best = min(found, key=lambda one: one.order)
    search, priced = best.search, best.priced
    if known is not None and priced:
        better = known.needed(search, priced)
        if better is not None:
            return better
    if not priced or not priced[0].affordable:
        raise BudgetError(refusal([(w.route, w.ratio) for w in best.ways], [p.charge for p in priced], state, targets))
    least = priced[0]
    return NeededBudget(least.value, told(plan_of_way(search, least, priced), prepared, options), least.request)


@dataclass(frozen=True, eq=False)
class _Priced:
    """A batch compiled in one way, with all ways to pay for it and those that suffice, the best of them first."""

    search: Search
    ways: Sequence[Way]
    priced: Sequence[PricedWay]

    @property
    def order(self) -> tuple[bool, float]:
        return self.priced[0].order if self.priced else (True, math.inf)

    @property
    def gap(self) -> float | None:
        return self.priced[0].way.strategy.gap if self.priced else None


def _priced(search: Search, routes: Sequence[Route], time_limit: float | None) -> _Priced:
    """Every strategy along every route, with its least charge."""
    began, prepared, options = monotonic(), search.prepared, search.options
    ways: list[Way] = []
    priced: list[PricedWay] = []
    for number, route in enumerate(routes):
        left = None
        if time_limit is not None:
            left = max(time_limit - (monotonic() - began), 1e-9) / (len(routes) - number)
        for strategy in _strategies(search, route.noise, options.within(left)):
            level = level_of(prepared, search.goal, search.targets, strategy)
            ways.append(Way(route, strategy, prepared.compiled, search.goal, level))
            found = least_priced(ways[-1], ways[-1].ratio, search.state)
            if found is not None:
                options.say(f"{strategy.method}: {found.charge.guarantee}")
                priced.append(found)
    return _Priced(search, ways, sorted(priced, key=lambda one: one.order))


def least_priced(
    way: Way, ratio: Ratio, state: BudgetState, start: int = GRID, *, near: float = NEAR, learn: bool = False
) -> PricedWay | None:
    """The least charge of a way at which all half-widths are as asked; None where no amount gives that.

    ``ratio``: the largest half-width over what is asked of it, by units; the rest as of ``least_amount``.
    """
    route = way.route
    units = least_amount(ratio, 2.0 if route.noise == "gaussian" else 1.0, start, near=near, learn=learn)
    if units is None:
        return None
    most = route.most(state)
    if most < units <= most * (1 + 2 * near) and ratio(most) <= 1:
        units = most  # the search ends as near as that above the least
    request = route.request(units)
    charge = route.price(request)
    return PricedWay(way, request, charge, state.affords(charge))


def plan_of_way(search: Search, least: PricedWay, ways: Sequence[PricedWay], alpha: float | None = None) -> Plan:
    """The plan that spends the charge of ``least``, with the ``ways`` of other routes as alternatives to it."""
    way = least.way
    others = tuple(
        Alternative(
            *(one.charge, one.way.strategy.method),
            one.charge.unit_variance * true_error(one.way.strategy, one.way.compiled),
            one.affordable,
        )
        for one in ways
        if one.way.route != way.route
    )
    origin = Origin(search.prepared, search.state, least.request)
    return plan_of(origin, least.charge, way.strategy, way.alpha if alpha is None else alpha, others, search.targets)


def _strategies(search: Search, noise: str, options: PlanOptions) -> Sequence[Strategy]:
    prepared, objective = search.prepared, search.targets.objective
    compiled = prepared.compiled
    # Ranges of one line differ little: the total serves.
    if objective != "least" or compiled.line is not None or prepared.named:
        kept = "total" if objective == "least" else objective
        if kept == "balanced":
            return (prepared.balanced_strategy(noise, options),)
        return (prepared.strategy(noise, replace(options, objective=kept)),)
    targets, began, limit = search.goal.targets(compiled.numbers), monotonic(), options.time_limit
    with watched(options if limit is None else options.within(limit / 2), prepared.late) as mine:
        limits = Limits(mine.tolerance, mine.time_limit, mine.progress)
        found = strategies_within(compiled, targets, noise, limits)
    gap = found[0].gap
    if gap is not None and gap <= options.tolerance:
        return found
    left = options if limit is None else options.within(max(limit - (monotonic() - began), 1e-9) / 2)
    try:
        other = prepared.balanced_strategy(noise, left)
    except DataError:
        return found
    if isinstance(found[0], MatrixStrategy) and isinstance(other, MatrixStrategy) and noise == "laplace":
        with watched(left, prepared.late) as mine:
            limits = Limits(mine.tolerance, mine.time_limit, mine.progress)
            return (*found, *strategies_for(found[0].planned, PURE, limits, other))
    return (*found, other)


def level_of(prepared: Prepared, goal: Goal, wanted: Wanted, strategy: Strategy) -> float:
    """The level of single intervals that the wish needs: alpha, or one at which all hold together; see the module."""
    return level_for(prepared, goal, wanted, strategy.noise, strategy.independent)


def level_for(prepared: Prepared, goal: Goal, wanted: Wanted, noise: str, independent: int) -> float:
    """``level_of`` for a kind of noise and numbers that are combinations of ``independent`` Gaussian variables."""
    if not wanted.simultaneous:
        return wanted.alpha
    if goal.derived:
        return wanted.alpha / max(goal.numbers, 1)
    matrix = prepared.compiled.matrix
    count = sum(part.stop - part.start for part, _ in goal.asked)
    if matrix is not None:
        rows = sparse.csr_array(matrix.rows[np.concatenate([np.arange(p.start, p.stop) for p, _ in goal.asked])])
        # Numbers that are multiples of each other hold or fail together.
        count = int(distinct_columns(sparse.csr_array(rows.T), up_to_sign=True).keep.size)
    level = simultaneous_alpha(wanted.alpha, count, noise)
    if noise != "gaussian":
        return level
    return max(
        level, 2.0 * float(scipy.special.ndtr(-math.sqrt(float(scipy.special.chdtri(independent, wanted.alpha)))))
    )


def refusal(
    ratios: Sequence[tuple[Route, Ratio]], charges: Sequence[Charge], state: BudgetState, targets: Wanted
) -> str:
    """One line: what is needed, what is allowed, the least error within reach, what next."""
    need = f"the wanted error needs {charges[0].guarantee}" if charges else "no budget gives the wanted error"
    reached = [(ratio(most), route, most) for route, ratio in ratios if (most := route.most(state)) > 0]
    if not reached:
        return (
            f"{need}, and nothing is left of the {ratios[0][0].account} account: query earlier releases, which is free"
        )
    factor, route, most = min(reached, key=lambda entry: entry[0])
    account = state.account(route.account)
    left = 0 if account is None else account.remaining_units
    why = "one release may cost" if state.budget.caps.get(route.account, LARGEST) < left else "is left"
    if not math.isfinite(factor):
        return f"{need}, and {route.named(most)}, all that {why}, gives no bound at all; ask for its counts and sums"
    reach = f"{up(factor)} times what is asked"
    if targets.relative is not None:
        reach = f"relative={up(targets.relative * factor)}"
    elif targets.max_error is not None:
        reach = f"\u00b1{up(targets.max_error * factor)}"
    return (
        f"{need}, more than {route.named(most)}, which is what {why}; the least error within reach is {reach}: ask for "
        f"that or for fewer numbers, {_other_account(route, state)}or query earlier releases, which is free"
    )


def _other_account(route: Route, state: BudgetState) -> str:
    other = state.account("gaussian")
    if route.account != "pure" or route.delta is not None or other is None or not other.remaining_units:
        return ""
    return f"give delta={show(state.budget.delta or Fraction(0))} for the gaussian account, "


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
