"""Plans: what a batch would release, how, at what cost and with which errors. Public and free."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.best_so_far import Offers
from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.notes import ERROR, Note, in_order
from dpsql.common.one_thread import one_thread
from dpsql.errors import DataError
from dpsql.planning.counted_values import counted_notes
from dpsql.planning.fine_noise import finest, weighed_squares
from dpsql.planning.named_strategy import paying_for, strategy_named
from dpsql.planning.one_by_one import Columns
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan_values import Accuracy, Alternative, Origin, Payment, Statements
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.prepare import (
    Prepared,
    cores_of,
    no_worse_than_one_by_one,
    one_by_one_strategy,
    prepare,
    scaled_sensitivity,
    true_error,
)
from dpsql.planning.remarks import cut_short
from dpsql.planning.target_errors import Wanted, hint_notes
from dpsql.planning.text import plan_rows, plan_text
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.registry import extensible
from dpsql.sql.parse.trees import uncollected
from dpsql.strategies import Strategy
from dpsql.strategies.choose.best import STRATEGIES
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.expr.deadline import Deadline

if TYPE_CHECKING:
    import pandas


NEAR_ENOUGH = 0.05  # gap up to which no other way is tried for counts of units


@guards_calls
@extensible("plan")
@dataclass(frozen=True, eq=False)
class Plan(PlannedBatch):
    """A batch understood and planned (``PlannedBatch`` has its figures), to be looked at before anything is spent.

    ``Connection.run`` measures it.
    """

    @property
    def alone(self) -> Plan:
        """The plan without earlier releases: itself, where it rests on none."""
        return self

    def rows(self) -> list[dict[str, Any]]:
        """One record a result column: its name, how many numbers, errors; what ``str`` and ``df`` show."""
        return plan_rows(self)

    @property
    def gain(self) -> dict[str, dict[str, float | None]]:
        """Standard error one by one over that of this plan, by result and column: ``plan.gain["by_ward"]["n"]``.

        None where the error depends on the answer and cannot be estimated, or is 0.
        """
        found: dict[str, dict[str, float | None]] = {}
        for row in self.rows():
            ratio = row["naive_stderr"] / row["stderr"] if row["stderr"] else None
            found.setdefault(row["result"], {}).setdefault(row["column"], ratio)
        return found

    @property
    def chain(self) -> str:
        """The reductions that lead from the statements to what is measured, a line each, and the certificate.

        An exact step loses nothing; what heuristics may lose is at most what the certificate says.
        """
        from dpsql.planning.explain import chain

        return chain(self)

    def df(self) -> pandas.DataFrame:
        """``rows`` as a pandas frame. Raises InterfaceError where pandas is not installed."""
        from dpsql.release.result import Result

        return Result.from_columns(_columns(self.rows())).df()

    def explain(self) -> str:
        """The strategy, and what of each statement is private, derived from it, and done by DuckDB afterwards."""
        from dpsql.planning.explain import explain

        return explain(self)

    def __str__(self) -> str:
        return str(plan_text(self))


PLANS: Offers[Plan] = Offers("plans")
"""Complete plans of the batch that is planned, each better than the one before."""


def _columns(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[Any]]]:
    kinds = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    # What no plan can say before the answers are there is None.
    known = {
        name: next((kinds[type(value)] for value in held if value is not None), "DOUBLE")
        for name, held in columns.items()
    }
    return [(name, known[name], held) for name, held in columns.items()]


@one_thread()
def make_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    options: PlanOptions,
) -> Plan:
    """Plan a batch. Free: reads no row and spends nothing.

    Where several accounts could pay (``charge_for``), every way is planned, as far as it may win, and the one of least
    total squared error (or least largest error, with ``objective="max"``) that the accounts still hold is taken.
    OPTIONS clauses of the batch (``dpsql.sql.parse.options``) are held against the policy; their budget is the
    request's (``request_of``). ``options.time_limit`` counts from now: what understanding and compiling leave of it is
    for the search, shared by all ways; past 1.1 of it and half a second these two refuse. A strategy that took long to
    select is kept in a folder and found again (``dpsql.strategies.cached.cache``; ``DPSQL_CACHE=off`` keeps none).
    Raises SQLError, PolicyError, DataError and BudgetError before any data are touched.
    """
    began = monotonic()
    deadline = Deadline.within(began, options.time_limit)
    named = strategy_named(options.method)
    prepared = prepare(sql, policy, schemas, options.progress, deadline, options.rows_per_unit).by(named)
    planner = Planner(state.within(prepared.reads), request, options, began)
    if named:
        return note_limit(planner.by_best_payment(prepared), prepared, options)
    blocks = planner.in_blocks(prepared)
    if blocks is None or not planner.matches(blocks):
        blocks = planner.of_least_error(prepared, blocks)
    return note_limit(blocks, prepared, options)


def note_limit(plan: Plan, prepared: Prepared, options: PlanOptions) -> Plan:
    """The plan with a note of what a time limit left out of its search; it as it is where its error is certified."""
    late, limit = prepared.late, options.time_limit
    if not late or limit is None or (plan.strategy.gap is not None and plan.strategy.gap <= options.tolerance):
        return plan
    return replace(plan, notes=(*plan.notes, Note(cut_short(plan, limit, late), ERROR)))


@dataclass(frozen=True)
class Planner:
    """Plans batches for one request, by the accounts of what they read; ``began``: the start of its time limit."""

    state: BudgetState
    request: Request
    options: PlanOptions
    began: float

    @property
    def objective(self) -> str:
        """The error to minimise."""
        return self.options.objective or "balanced"

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return self.options.time_limit is not None and monotonic() - self.began >= self.options.time_limit

    def in_blocks(self, prepared: Prepared) -> Plan | None:
        """The plan in blocks of a batch that is one matrix and takes long, where Gaussian noise alone pays.

        None where blocks are no proven match for the matrix, unless a time limit may leave no better plan.
        """
        options, objective = self.options, self.objective
        noises = {charge.noise for charge in charge_for(self.request, self.state.budget)}
        if objective == "max" or noises != {"gaussian"}:
            return None
        blocks = prepared.as_blocks(objective, options.tolerance, Deadline.within(self.began, options.time_limit))
        if blocks is None:
            return None
        try:
            made = replace(self, options=replace(options, objective=objective)).planned(blocks)
        except DataError:
            return None  # as where a column has too many regions
        PLANS.offer(lambda: made)
        return made if options.time_limit is not None or self.matches(made) else None

    def matches(self, blocks: Plan) -> bool:
        """Whether the error is certified within the tolerance, and no column is worse than one by one, for columns of
        blocks are not held to that (``no_worse_than_one_by_one``).
        """
        gap = blocks.strategy.gap
        return gap is not None and gap <= self.options.tolerance and not blocks.worse_in(Columns.of(blocks.compiled))

    def of_least_error(self, prepared: Prepared, blocks: Plan | None = None) -> Plan:
        """The plan of a batch; of one that counts units, or sums what they add, the best of it, of it without such
        bounds, and of it in blocks.

        Blocks are tried where the best is not proven to be near the least, and first where one matrix takes long, whose
        search then ends where it has more error. ``blocks``: a plan that is there already. An error of planning is that
        of the first.
        """
        plans: list[Plan] = [] if blocks is None else [blocks]
        refusals: list[DataError] = []  # as where one matrix is too large

        def consider(prepare_other: Callable[[], Prepared | None]) -> None:
            beside = next((plan for plan in plans if not _worse_than_one_by_one(plan)), None)
            if beside is not None and self.late:
                prepared.late.append("")
            elif (other := prepare_other()) is not None:
                try:
                    with contextlib.nullcontext() if not plans else PLANS.taken():
                        plans.append(self.by_best_payment(other, beside))
                except DataError as refused:
                    refusals.append(refused)
                plans.sort(key=lambda plan: bool(plan.compiled.blocks))
                if plans:
                    PLANS.offer(best)

        def best() -> Plan:
            if len(plans) == 1:
                return plans[0]
            if self.objective != "balanced":
                weigh, joint = np.max if self.objective == "max" else np.sum, prepared.compiled.matrix
                assert joint is not None  # noqa: S101 - others are planned in one way
                return min(plans, key=lambda plan: float(weigh(weighed_squares(joint, np.asarray(plan.errors)))))
            alone = np.asarray(plans[0].naive_errors)
            # Columns of one matrix may still be held to one by one.
            return min(plans, key=lambda plan: (_worse_than_one_by_one(plan), _value(plan, alone)))

        early = self.objective == "balanced" and prepared.long_with_units
        if early:
            consider(prepared.with_units_in_blocks)
        consider(lambda: prepared)
        consider(prepared.without_bounds)
        consider(prepared.without_sum_bounds)
        gap = best().gap if plans else None
        if not early and (gap is None or gap > NEAR_ENOUGH):
            consider(prepared.with_units_in_blocks)
        if not plans:
            raise refusals[0]
        return self.no_worse_than_one_by_one(best())

    def planned(self, prepared: Prepared) -> Plan:
        """``by_best_payment``, with no column worse than one by one where that can be had."""
        return self.no_worse_than_one_by_one(self.by_best_payment(prepared))

    def no_worse_than_one_by_one(self, made: Plan) -> Plan:
        """The plan, or one under which no column does worse than one by one (``no_worse_than_one_by_one``)."""
        origin = made.origin
        if self.objective != "balanced" or origin is None or not made.worse_than_alone:
            return made
        limit = self.options.time_limit
        left = None if limit is None else max(limit - (monotonic() - self.began), 0.0)
        mine = replace(self.options, time_limit=left, objective="balanced")
        strategy = no_worse_than_one_by_one(origin.prepared, made.strategy, mine)
        if strategy is made.strategy:
            return made
        return plan_of(origin, made.charge, strategy, self.options.alpha, made.alternatives)

    def by_best_payment(self, prepared: Prepared, beside: Plan | None = None) -> Plan:
        """The best way to pay for a batch. DataError where it is seen to have more error than the plan ``beside``."""
        options, objective, state = self.options, self.objective, self.state
        origin = Origin(prepared, state, self.request)
        ways: list[tuple[float, Charge, Strategy]] = []
        beaten: list[Alternative] = []
        charges = paying_for(prepared.named, charge_for(self.request, state.budget))
        batches = {charge.noise: prepared.weighed(charge.noise, objective) for charge in charges}
        if beside is not None and self.late:
            prepared.late.append("")
            raise DataError("planning: the time limit leaves no time for another way; allow more time")
        weighs = charges[0].noise  # whose weights compare ways of different noise
        # Gaussian noise last: what it can do at best is known before it is searched for.
        for number, charge in enumerate(sorted(charges, key=lambda charge: charge.noise == "gaussian")):
            batch = batches[charge.noise]
            least = charge.unit_variance * batch.chooser.gaussian_bound(objective) if ways else 0.0
            if any(error < least and state.affords(c) >= state.affords(charge) for error, c, _ in ways):
                beaten.append(Alternative(charge, "optimal", least, state.affords(charge), at_least=True))
                continue
            share = options.time_limit
            if share is not None and share > 0:  # what is left, in equal parts; select refuses the rest
                share = max(share - (monotonic() - self.began), 1e-9) / (len(charges) - number)
            mine = replace(options, time_limit=share, objective=objective)
            rival = np.inf if beside is None or len(charges) > 1 else _strategy_value(beside, batch.compiled, charge)
            with STRATEGIES.heard_by(None if ways else _offering(origin, charge, mine)):
                strategy = prepared.strategy(charge.noise, mine, rival)
            strategy = strategy if prepared.named else finest(batch, charge, strategy, mine)
            error = true_error(strategy, batch.compiled, batches[weighs].compiled)
            ways.append((charge.unit_variance * error, charge, strategy))
            ways.sort(key=lambda way: (not state.affords(way[1]), way[0]))
            PLANS.offer(functools.partial(plan_of, origin, *ways[0][1:], options.alpha))
        _, charge, strategy = ways[0]
        alternatives = (*(Alternative(c, s.method, error, state.affords(c)) for error, c, s in ways[1:]), *beaten)
        return plan_of(origin, charge, strategy, options.alpha, alternatives)


def _worse_than_one_by_one(plan: Plan) -> bool:
    """Whether a column of a batch of blocks, which is not held to that, has a larger error than one by one."""
    return bool(plan.compiled.blocks) and plan.worse_in(Columns.of(plan.compiled))


def _value(plan: Plan, alone: Floats) -> float:
    """The total squared error of all columns, each over that of the errors ``alone``, by their weights."""
    columns = Columns.of(plan.compiled)
    squares = columns.sums(np.square(np.asarray(plan.errors)))
    beside = columns.sums(np.square(alone))
    return float((columns.weights**2 * squares / np.where(beside > 0, beside, 1.0)).sum())


def _offering(origin: Origin, charge: Charge, options: PlanOptions) -> Callable[[Callable[[], Strategy]], None]:
    """What offers plans by the strategies that a search finds; at first the queries as they are asked, without any."""
    prepared, alpha = origin.prepared, options.alpha
    if prepared.compiled.matrix is not None and not prepared.named:
        PLANS.offer(lambda: plan_of(origin, charge, one_by_one_strategy(prepared, charge.noise, options), alpha))
    return lambda make: PLANS.offer(lambda: plan_of(origin, charge, make(), alpha))


def _strategy_value(plan: Plan, compiled: Batch, charge: Charge) -> float:
    """The error of a plan of the same batch in the units of ``Strategy.value``; inf where these are not known."""
    if compiled.matrix is None or charge.noise != "gaussian":
        return np.inf
    total = float(weighed_squares(compiled.matrix, np.asarray(plan.errors)).sum())
    return total / (charge.unit_variance * compiled.matrix.units.common**2)


@uncollected()
def plan_of(
    origin: Origin,
    charge: Charge,
    strategy: Strategy,
    alpha: float,
    alternatives: tuple[Alternative, ...] = (),
    targets: Wanted | None = None,
) -> Plan:
    """The plan that spends ``charge`` on ``strategy``. Cost: the errors and half-widths of every number, once."""
    prepared = origin.prepared.weighed(strategy.noise, strategy.objective)
    origin, compiled = replace(origin, prepared=prepared), strategy.as_measured(prepared.compiled)
    understood = prepared.understood
    noise = charge.calibrate(scaled_sensitivity(strategy, compiled), strategy.blocks)
    accuracy = Accuracy.of(strategy.answers_of(compiled), noise, alpha, compiled.common_steps)
    cores = cores_of(understood.answers, compiled.spans)
    notes = [*understood.notes, *counted_notes(understood.answers, cores, compiled)]
    if targets is None:
        notes += hint_notes(understood.answers, cores, accuracy.widths)
    return Plan(
        statements=Statements.of(prepared, compiled),
        compiled=compiled,
        strategy=strategy,
        payment=Payment(charge, origin.state.affords(charge), alternatives),
        accuracy=accuracy,
        notes=in_order(notes),
        origin=origin,
        wanted=targets,
    )
