"""The last plans of one connection, so that the same batch is planned once.

What a plan depends on is public, and all of it is compared: text, policy, day, column types, request, options, and what
the accounts of the budget can pay. ``progress`` changes no plan. A plan under a time limit may be cut short: it is
found again by the same limit only, and a plan without a limit by any. Of the plans of large matrices the last one
alone is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Generic, TypeVar

from dpsql.planning.named_strategy import strategy_named
from dpsql.planning.needed_budget import NeededBudget
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, Planner, make_plan, plan_of
from dpsql.planning.plan_values import Origin
from dpsql.planning.prepare import Prepared, prepare
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.strategies.cached.cache import key_of
from dpsql.workloads.compile.compiled import Batch

_KEPT, _LARGE = 4, 2**22  # plans of each kind; entries of W

T = TypeVar("T", bound=Plan | NeededBudget)


class _Recent(Generic[T]):
    """The last values, newest first, by keys that are compared part by part."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, T], ...] = ()

    def find(self, key: object, fits: Callable[[T], bool] = lambda _: True) -> T | None:
        return next((value for other, value in self._last if _equal(other, key) and fits(value)), None)

    def keep(self, key: object, value: T) -> T:
        large = _is_large(_plan(value).compiled)
        others = [one for one in self._last if not (large and _is_large(_plan(one[1]).compiled))]
        self._last = ((key, value), *others)[:_KEPT]
        return value


class LastPlans:
    """The last plans and needed budgets of one connection, and the strategies of tables with periods.

    Such tables are closed by the day and paid for by period: a batch of another period comes to the same workload over
    cells of its own, and takes the strategy alone.
    """

    def __init__(self) -> None:
        self._plans: _Recent[Plan] = _Recent()
        self._budgets: _Recent[NeededBudget] = _Recent()
        self._batches: _Recent[Plan] = _Recent()
        self._of_periods: _Recent[Plan] = _Recent()

    def plan_of_call(self, key: tuple[object, ...], options: PlanOptions, make: Callable[[], Plan]) -> Plan:
        """The plan that ``make`` makes, or made for an equal ``key``, which names all that ``options`` do not."""
        return _once(self._plans, key, options, make)

    def budget_of_call(
        self, key: tuple[object, ...], options: PlanOptions, make: Callable[[], NeededBudget]
    ) -> NeededBudget:
        """The same of a budget that is found for wanted errors."""
        return _once(self._budgets, key, options, make)

    def plan(
        self,
        sql: str,
        policy: Policy,
        schemas: Mapping[str, Mapping[str, str]],
        state: BudgetState,
        request: Request,
        options: PlanOptions,
    ) -> Plan:
        """As ``make_plan``, which does not depend on ``options.earlier``."""
        charges = charge_for(request, state.budget)

        def affordable(state: BudgetState) -> tuple[bool, ...]:
            return tuple(state.affords(charge) for charge in charges)

        def fits(plan: Plan) -> bool:
            made = plan.origin
            return made is not None and affordable(made.state) == affordable(state.within(plan.reads))

        def make() -> Plan:
            if options.time_limit is None and any(table.periods is not None for table in policy.tables.values()):
                return self._plan_of_periods(sql, policy, schemas, state, request, options)
            return make_plan(sql, policy, schemas, state, request, options)

        # The cheapest first, as it decides most often; a policy that is another object may still be the same.
        types = {name: dict(columns) for name, columns in schemas.items()}
        key = sql, request, state.budget, policy.day, types, policy
        plan = _once(self._batches, key, replace(options, earlier=True), make, fits)
        return plan if plan.origin is None else replace(plan, origin=_at(plan.origin, state.within(plan.reads)))

    def _plan_of_periods(
        self,
        sql: str,
        policy: Policy,
        schemas: Mapping[str, Mapping[str, str]],
        state: BudgetState,
        request: Request,
        options: PlanOptions,
    ) -> Plan:
        prepared = prepare(sql, policy, schemas, options.progress, rows_per_unit=options.rows_per_unit)
        prepared = prepared.by(strategy_named(options.method))
        planner = Planner(state.within(prepared.reads), request, options, monotonic())
        return self.again(prepared, planner, lambda: planner.planned(prepared))

    def again(self, prepared: Prepared, planner: Planner, make: Callable[[], Plan], noise: str = "") -> Plan:
        """The plan that ``make`` makes of a batch, by the strategy of an earlier one of the very workload if there is
        one: selection depends on nothing else that is not compared here. What a unit can move is worked out from the
        cells of this batch before it is charged (``dpsql.measure``). ``noise``: the only kind that ``make`` takes, if
        it is one.
        """
        state, request, options = planner.state, planner.request, planner.options
        affords = tuple(state.affords(charge) for charge in charge_for(request, state.budget))
        key = request, replace(options, progress=None), affords, state.budget, noise
        found = self._of_periods.find(key, lambda plan: _same_workload(plan, prepared))
        if found is not None:
            origin = Origin(prepared, state, request)
            return plan_of(origin, found.charge, found.strategy, options.alpha, found.alternatives)
        made = make()
        return made if made.compiled.matrix is None else self._of_periods.keep(key, made)


def _once(
    recent: _Recent[T],
    key: tuple[object, ...],
    options: PlanOptions,
    make: Callable[[], T],
    fits: Callable[[T], bool] = lambda _: True,
) -> T:
    """The value of an equal key and options, whatever hears of its progress, else the one that ``make`` makes."""
    limit = options.time_limit
    if limit is not None and not limit > 0:
        return make()  # planning refuses it
    for time_limit in dict.fromkeys((None, limit)):
        found = recent.find((*key, replace(options, progress=None, time_limit=time_limit)), fits)
        if found is not None:
            return found
    return recent.keep((*key, replace(options, progress=None)), make())


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except (ValueError, TypeError):  # of arrays, which have no one truth
        return False


def _plan(value: Plan | NeededBudget) -> Plan:
    return value.plan if isinstance(value, NeededBudget) else value


def _at(origin: Origin, state: BudgetState) -> Origin:
    return replace(origin, state=state)


def _is_large(batch: Batch) -> bool:
    return batch.matrix is not None and bool(batch.matrix.rows.nnz > _LARGE)


def _same_workload(plan: Plan, prepared: Prepared) -> bool:
    """Whether a batch asks for the rows, weights and contributions that the strategy of ``plan`` was selected for."""
    if plan.origin is None:
        return False
    strategy, found = plan.strategy, list[str | None]()
    for one in (plan.origin.prepared, prepared):
        compiled = one.weighed(strategy.noise, strategy.objective).compiled.matrix
        if compiled is None:
            return False
        numbers = compiled.workload(compiled.objective), strategy.noise, strategy.method, 1.0, 1.0
        found.append(key_of(*numbers))
        steps = compiled.common_steps, compiled.units.common
        found.append(f"{steps} {compiled.scale.tobytes().hex()}")
    return found[0] is not None and found[:2] == found[2:]
