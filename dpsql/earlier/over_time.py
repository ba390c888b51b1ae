"""Releases of a horizon: a period's answers from what was measured after it and after each earlier one.

Release t measures sum_s C_ts B x_s with fresh noise (``dpsql.workload.compile.over_periods``). C is lower triangular,
so the estimate of B x_t is (C^-1 y)_t, from y_0 to y_t: the numbers of every release follow from measurements whose
laws are known, and whatever is computed of several releases has its errors by them (``dpsql.replicates``). In sums over
windows and over all so far most of the noise of one period cancels that of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from dpsql.arrays import Csr, Json, Matrix
from dpsql.errors import IntegrityError, PolicyError, SQLError
from dpsql.linalg.over_time import LONGEST as LONGEST
from dpsql.linalg.over_time import OverTime
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import LastPlans, Plan, plan_of
from dpsql.planning.planned_batch import Origin
from dpsql.planning.prepare import Prepared, prepare
from dpsql.policy import Policy
from dpsql.policy.periods import Periods
from dpsql.policy.types import Schemas
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.schedules import Schedule
from dpsql.reconstruct.combined import MOST_ENTRIES, Observed, answers_over_time
from dpsql.release.payload import Measurement
from dpsql.strategy import MatrixStrategy
from dpsql.strategy.ranges.over_time import least_endless, least_over_time
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.over_periods import Over

from .combined import Combination
from .combined_plan import AnswersWithEarlier, CombinedPlan, plan_with
from .kept import integers_of, workload_hash

_ALPHA = 0.05


def with_horizon(made: Schedule, n: int | None, windows: Sequence[int], plan: Plan, periods: Periods) -> Schedule:
    """The schedule with what is measured over ``n`` periods of ``plan``'s batch, of least error for ``windows``.

    None: without an end, over as many periods at a time as the longest window has. Raises SQLError, DataError where
    that is too large, or where the batch asks more of rows than a horizon counts.
    """
    numbers, rows, endless = plan.compiled.numbers, plan.strategy.shape[0], n is None
    n = max(windows) if n is None else n
    if numbers * rows * n > MOST_ENTRIES:
        raise SQLError(
            f"{numbers:,} numbers from {rows:,} measurements after each of {n:,} periods are too many for a horizon; "
            "ask for fewer groups, or for fewer periods"
        )
    measured = least_endless(windows) if endless else least_over_time(n, windows).measured
    made = replace(
        made,
        kernel=measured.kernel,
        factors=measured.factors,
        windows=tuple(sorted(set(windows))),
        strategy=plan.strategy.measured.digest(),
    )
    # As it will be asked after the last period, or with the most that are read: what that refuses is refused now.
    last = over_of(made, periods, (periods.named(made.first) or 0) + n - 1, plan)
    last.all_layouts()
    last.all_integers().check()
    return made


def over_of(one: Schedule, periods: Periods, number: int, plan: Plan) -> Over:
    """What the release of a period reads, ``plan`` being that of its batch, and the charges that paid for it."""
    first = periods.named(one.first) or 0
    paid = tuple(one.charge_id(periods.start(earlier).isoformat()) for earlier in range(first, number))
    held = (plan.compiled.layouts, plan.strategy.measured)
    return Over(measured_over(one), periods, first, number - first, paid, *held)


def measured_over(one: Schedule) -> OverTime:
    """What a schedule with a horizon measures after each of its periods."""
    return OverTime(one.kernel, one.factors)


def plan_of_period(
    sql: str, policy: Policy, schemas: Schemas, state: BudgetState, request: Request, plans: LastPlans
) -> Plan:
    """The plan of one period with Gaussian noise, the only kind whose variances add up over the periods of a column.

    Raises as ``make_plan``, PolicyError where no account pays for such noise.
    """
    prepared = prepare(sql, policy, schemas).weighed("gaussian", "total")
    charges = [charge for charge in charge_for(request, state.budget) if charge.noise == "gaussian"]
    if not charges:
        raise PolicyError(
            "a horizon is measured with Gaussian noise, for which the budget has no account; declare delta, or rho"
        )
    within, options = state.within(prepared.reads), PlanOptions(objective="total")

    def made() -> Plan:
        strategy = prepared.chooser.strategy("gaussian", options)
        if not isinstance(strategy, MatrixStrategy) or not isinstance(prepared.compiled, Compiled):
            raise SQLError("a batch over a horizon is measured by one matrix; ask for fewer groups")
        return plan_of(Origin(prepared, within, request), charges[0], strategy, _ALPHA)

    return plans.again(prepared, within, request, options, made, "gaussian")


def plan_over_time(plan: Plan, one: Schedule, place: int, before: Mapping[int, Measurement]) -> CombinedPlan:
    """``plan`` of the period at ``place``, with the answers that rest on the releases ``before`` it, too.

    Raises IntegrityError where another strategy was chosen than for those.
    """
    compiled = plan.compiled
    assert isinstance(compiled, Compiled)  # noqa: S101 - ``plan_of_period`` asked
    meant = {str(held.kept["over_time"]["workload"]) for held in before.values() if held.kept is not None}
    if plan.strategy.measured.digest() != one.strategy or meant - {workload_hash(compiled.rows, compiled.scale)}:
        raise IntegrityError(
            f"{one.name} measures each period as the first one was, and this plan measures otherwise, as other "
            "libraries, another policy or another number of threads may have it; release it where it was added "
            "(nothing was charged)"
        )
    measured = measured_over(one)
    noise = plan.charge.calibrate(measured.l2_squared * plan.sensitivity)
    matrix = _matrix(plan.strategy.measured.written)
    new = Observed(matrix, compiled.common_steps, (0,) * matrix.shape[0], noise)
    observed = [*(Observed(matrix, held.common_steps, held.y, held.law) for held in before.values()), new]
    workload = _workload(compiled)
    answers = answers_over_time(workload, observed, measured.weights(place).tolist(), compiled.common_steps)
    if answers is None:
        raise SQLError("the batch has too many numbers for a horizon; ask for fewer groups, or for fewer periods")
    return plan_with(plan, AnswersWithEarlier(answers, workload), tuple(before))


def kept_over_time(kept: Json | None) -> Json | None:
    """What a payload holds of a release of a horizon, so that nobody takes it for a measurement of its period alone."""
    return None if kept is None else {"over_time": {name: kept[name] for name in ("workload", "mixing", "basis")}}


def combination_over_time(
    prepared: Prepared, one: Schedule, held: Mapping[int, Measurement], alpha: float
) -> Combination | None:
    """How the numbers of the last of the releases ``held`` follow from all of them; None where they are too large.

    ``held``: every release of the horizon so far, oldest first. None, too, where the batch comes to another W by now.
    """
    last, compiled = list(held.values())[-1], prepared.compiled
    kept = (last.kept or {}).get("over_time")
    if kept is None or not isinstance(compiled, Compiled) or any(m.strategy != one.strategy for m in held.values()):
        return None
    if workload_hash(compiled.rows, compiled.scale) != kept["workload"]:
        return None
    matrix = _matrix(integers_of(kept).written)
    observed = [Observed(matrix, m.common_steps, m.y, m.law) for m in held.values()]
    weights = measured_over(one).weights(len(held) - 1).tolist()
    answers = answers_over_time(_workload(compiled), observed, weights, compiled.common_steps)
    if answers is None:
        return None
    queries, widths = prepared.understood.answers, answers.widths(None, alpha)
    return Combination(queries, compiled, answers, answers.errors(), widths, alpha, tuple(held))


def errors_over_time(one: Schedule, plan: Plan, alone: Plan) -> list[tuple[int, float, float]]:
    """(window, error of releases of each period alone, error over the horizon) of each window, the longest last.

    Root mean squared standard errors, over all numbers and over the periods after which a window is asked. ``plan``: of
    one period with Gaussian noise; ``alone``: the plan that a schedule without a horizon has. Of an endless horizon
    after long, and of no total of all so far, whose error has no end either.
    """
    measured = measured_over(one)
    single, independent = (float(np.mean(np.asarray(p.errors) ** 2)) for p in (plan, alone))
    found = []
    if measured.endless:  # whatever is asked of the beginning is forgotten
        shown = [(window, measured.settled(window)) for window in sorted({1, *one.windows})]
        return [(k, float(np.sqrt(independent * k)), float(np.sqrt(single * over))) for k, over in shown]
    for window in sorted({1, *one.windows, len(measured)}):
        often = np.minimum(np.arange(1, len(measured) + 1), window).mean()
        over = measured.spread(window).mean()
        found.append((window, float(np.sqrt(independent * often)), float(np.sqrt(single * over))))
    return found


def _matrix(written: tuple[Matrix, Csr] | None) -> Csr:
    assert written is not None  # noqa: S101 - the strategy is one matrix
    mixing, basis = written
    return sparse.csr_array(sparse.csr_array(mixing) @ basis)


def _workload(compiled: Compiled) -> Csr:
    return sparse.csr_array(sparse.diags_array(compiled.scale) @ sparse.csr_array(compiled.rows).astype(np.float64))
