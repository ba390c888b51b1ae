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
from dpsql.planning.planned_batch import Alternative, Origin, PlannedBatch
from dpsql.planning.prepare import (
    Prepared,
    cores_of,
    held_balanced,
    one_by_one_strategy,
    prepare,
    scaled_sensitivity,
    true_error,
)
from dpsql.planning.remarks import cut_short
from dpsql.planning.target_errors import Wanted, hint_notes
from dpsql.planning.text import WIDE, plan_rows, plan_text
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
    state = state.within(prepared.reads)
    if named:
        return told(_unheld(prepared, state, request, options, began), prepared, options)
    blocks = _in_blocks(prepared, state, request, options, began)
    if blocks is None or not _matched(blocks, options):
        blocks = _of_least_error(prepared, state, request, options, began, blocks)
    return told(blocks, prepared, options)


def told(plan: Plan, prepared: Prepared, options: PlanOptions) -> Plan:
    """The plan with a note of what a time limit left out of its search; it as it is where its error is certified."""
    late, limit = prepared.late, options.time_limit
    if not late or limit is None or (plan.strategy.gap is not None and plan.strategy.gap <= options.tolerance):
        return plan
    return replace(plan, notes=(*plan.notes, Note(cut_short(plan, limit, late), ERROR)))


def _in_blocks(
    prepared: Prepared, state: BudgetState, request: Request, options: PlanOptions, began: float
) -> Plan | None:
    """The plan in blocks of a batch that is one matrix and takes long, where Gaussian noise alone pays.

    None where blocks are no proven match for the matrix, unless a time limit may leave no better plan.
    """
    charges, objective = tuple(charge_for(request, state.budget)), options.objective or "balanced"
    if objective == "max" or {charge.noise for charge in charges} != {"gaussian"}:
        return None
    blocks = prepared.as_blocks(objective, options.tolerance, Deadline.within(began, options.time_limit))
    if blocks is None:
        return None
    try:
        made = planned(blocks, state, request, replace(options, objective=objective), began)
    except DataError:
        return None  # as where a column has too many regions
    PLANS.offer(lambda: made)
    return made if options.time_limit is not None or _matched(made, options) else None


def _matched(blocks: Plan, options: PlanOptions) -> bool:
    """Whether the error is certified within the tolerance, and no column is worse than one by one, for columns of
    blocks are not held to that (``held_balanced``).
    """
    gap = blocks.strategy.gap
    matched = gap is not None and gap <= options.tolerance
    return matched and not blocks.worse_in(Columns.of(blocks.compiled))


def _of_least_error(
    prepared: Prepared,
    state: BudgetState,
    request: Request,
    options: PlanOptions,
    began: float,
    blocks: Plan | None = None,
) -> Plan:
    """The plan of a batch; of one that counts units, or sums what they add, the best of it, of it without such bounds,
    and of it in blocks.

    Blocks are tried where the best is not proven to be near the least, and first where one matrix takes long, whose
    search then ends where it has more error. ``blocks``: a plan that is there already. An error of planning is that
    of the first.
    """
    objective = options.objective or "balanced"
    found: list[Plan] = [] if blocks is None else [blocks]
    refusals: list[DataError] = []  # as where one matrix is too large

    def consider(prepare_other: Callable[[], Prepared | None]) -> None:
        beside = next((plan for plan in found if not _cannot_be_held(plan)), None)
        if beside is not None and _late(options, began):
            prepared.late.append("")
        elif (other := prepare_other()) is not None:
            try:
                with contextlib.nullcontext() if not found else PLANS.taken():
                    made = _unheld(other, state, request, options, began, beside)
                found.append(made)
            except DataError as refused:
                refusals.append(refused)
            found.sort(key=lambda plan: bool(plan.compiled.blocks))
            if found:
                PLANS.offer(best)

    def best() -> Plan:
        if len(found) == 1:
            return found[0]
        if objective != "balanced":
            weigh, joint = np.max if objective == "max" else np.sum, prepared.compiled.matrix
            assert joint is not None  # noqa: S101 - others are planned in one way
            return min(found, key=lambda plan: float(weigh(weighed_squares(joint, np.asarray(plan.errors)))))
        alone = np.asarray(found[0].naive_errors)
        # Columns of one matrix may still be held to one by one.
        return min(found, key=lambda plan: (_cannot_be_held(plan), _value(plan, alone)))

    early = objective == "balanced" and prepared.long_with_units
    if early:
        consider(prepared.with_units_apart)
    consider(lambda: prepared)
    consider(prepared.without_bounds)
    consider(prepared.without_sum_bounds)
    gap = best().gap if found else None
    if not early and (gap is None or gap > WIDE):
        consider(prepared.with_units_apart)
    if not found:
        raise refusals[0]
    return _held(best(), options, began)


def _late(options: PlanOptions, began: float) -> bool:
    """Whether the time limit has passed."""
    return options.time_limit is not None and monotonic() - began >= options.time_limit


def _cannot_be_held(plan: Plan) -> bool:
    """Whether a column of a batch of blocks, which is not held to that, has a larger error than one by one."""
    return bool(plan.compiled.blocks) and plan.worse_in(Columns.of(plan.compiled))


def _value(plan: Plan, alone: Floats) -> float:
    """The total squared error of all columns, each over that of the errors ``alone``, by their weights."""
    columns = Columns.of(plan.compiled)
    squares = columns.sums(np.square(np.asarray(plan.errors)))
    beside = columns.sums(np.square(alone))
    return float((columns.weights**2 * squares / np.where(beside > 0, beside, 1.0)).sum())


def planned(prepared: Prepared, state: BudgetState, request: Request, options: PlanOptions, began: float) -> Plan:
    """``_unheld``, with no column worse than one by one where that can be had."""
    return _held(_unheld(prepared, state, request, options, began), options, began)


def _held(made: Plan, options: PlanOptions, began: float) -> Plan:
    """The plan, or one under which no column does worse than one by one (``held_balanced``)."""
    time_limit, origin = options.time_limit, made.origin
    if options.objective not in (None, "balanced") or origin is None or not made.worse_than_alone:
        return made
    left = None if time_limit is None else max(time_limit - (monotonic() - began), 0.0)
    mine = replace(options, time_limit=left, objective="balanced")
    held = held_balanced(origin.prepared, made.strategy, mine)
    if held is made.strategy:
        return made
    return plan_of(origin, made.charge, held, options.alpha, made.alternatives)


def _unheld(
    prepared: Prepared,
    state: BudgetState,
    request: Request,
    options: PlanOptions,
    began: float,
    beside: Plan | None = None,
) -> Plan:
    """The best way to pay for a batch, by the accounts of what it reads; ``began``: when its time limit did.

    DataError where it is seen to have more error than the plan ``beside``.
    """
    time_limit, objective = options.time_limit, options.objective or "balanced"
    origin = Origin(prepared, state, request)
    ways: list[tuple[float, Charge, Strategy]] = []
    beaten: list[Alternative] = []
    charges = paying_for(prepared.named, charge_for(request, state.budget))
    batches = {charge.noise: prepared.weighed(charge.noise, objective) for charge in charges}
    if beside is not None and _late(options, began):
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
        share = time_limit
        if time_limit is not None and time_limit > 0:  # what is left, in equal parts; select refuses the rest
            share = max(time_limit - (monotonic() - began), 1e-9) / (len(charges) - number)
        mine = replace(options, time_limit=share, objective=objective)
        known = np.inf if beside is None or len(charges) > 1 else _known(beside, batch.compiled, charge)
        with STRATEGIES.heard_by(None if ways else _offering(origin, charge, mine)):
            strategy = prepared.strategy(charge.noise, mine, known)
        strategy = strategy if prepared.named else finest(batch, charge, strategy, mine)
        error = true_error(strategy, batch.compiled, batches[weighs].compiled)
        ways.append((charge.unit_variance * error, charge, strategy))
        ways.sort(key=lambda way: (not state.affords(way[1]), way[0]))
        PLANS.offer(functools.partial(plan_of, origin, *ways[0][1:], options.alpha))
    _, charge, strategy = ways[0]
    alternatives = (*(Alternative(c, s.method, error, state.affords(c)) for error, c, s in ways[1:]), *beaten)
    return plan_of(origin, charge, strategy, options.alpha, alternatives)


def _offering(origin: Origin, charge: Charge, options: PlanOptions) -> Callable[[Callable[[], Strategy]], None]:
    """What offers plans by the strategies that a search finds; at first the queries as they are asked, without any."""
    prepared, alpha = origin.prepared, options.alpha
    if prepared.compiled.matrix is not None and not prepared.named:
        PLANS.offer(lambda: plan_of(origin, charge, one_by_one_strategy(prepared, charge.noise, options), alpha))
    return lambda make: PLANS.offer(lambda: plan_of(origin, charge, make(), alpha))


def _known(plan: Plan, compiled: Batch, charge: Charge) -> float:
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
    wanted: Wanted | None = None,
) -> Plan:
    """The plan that spends ``charge`` on ``strategy``. Cost: the errors and half-widths of every number, once."""
    prepared = origin.prepared.weighed(strategy.noise, strategy.objective)
    origin, compiled = replace(origin, prepared=prepared), strategy.as_measured(prepared.compiled)
    policy, schemas, understood = prepared.policy, prepared.schemas, prepared.understood
    noise = charge.calibrate(scaled_sensitivity(strategy, compiled), strategy.blocks)
    answers = strategy.answers_of(compiled)
    common = compiled.common_steps
    widths = answers.widths(noise, alpha, common)
    cores = cores_of(understood.answers, compiled.spans)
    notes = [*understood.notes, *counted_notes(understood.answers, cores, compiled)]
    if wanted is None:
        notes += hint_notes(understood.answers, cores, widths)
    return Plan(
        sql=prepared.sql,
        dataset=policy.dataset,
        queries=understood.answers,
        compiled=compiled,
        strategy=strategy,
        charge=charge,
        noise=noise,
        alternatives=alternatives,
        alpha=alpha,
        policy=policy.to_toml(),
        schemas={name: dict(schemas[name]) for layout in compiled.layouts for name in layout.source.tables},
        answers=answers,
        errors=answers.errors(noise, common),
        widths=widths,
        affordable=origin.state.affords(charge),
        notes=in_order(notes),
        expected_rows={name: t.expected_rows for name, t in policy.tables.items() if t.expected_rows is not None},
        origin=origin,
        wanted=wanted,
        named=prepared.named,
        rows_per_unit=prepared.rows_per_unit,
        reads=prepared.reads,
    )
