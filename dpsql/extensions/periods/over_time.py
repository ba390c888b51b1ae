"""Releases of a horizon: a period's answers from what was measured after it and after each earlier one.

Release t measures sum_s C_ts B x_s with fresh noise (``dpsql.workloads.compile.over_periods``). C is lower triangular,
so the estimate of B x_t is (C^-1 y)_t, from y_0 to y_t: the numbers of every release follow from measurements whose
laws are known, and whatever is computed of several releases has its errors by them (``dpsql.replicates``). In sums over
windows and over all so far most of the noise of one period cancels that of the next. A release keeps its estimate, so
that the next ones follow from their own measurement and the estimates of the periods that they read: what a night of an
endless horizon asks for does not depend on how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Json, Matrix
from dpsql.errors import IntegrityError, PolicyError, SQLError
from dpsql.extensions.periods.horizon_strategy import least_endless, least_over_time
from dpsql.linalg.over_time import LONGEST as LONGEST
from dpsql.linalg.over_time import OverTime
from dpsql.planning.last_plans import LastPlans
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, Planner, plan_of
from dpsql.planning.plan_values import Origin
from dpsql.planning.prepare import Prepared, prepare
from dpsql.policy import Policy
from dpsql.policy.periods import Periods
from dpsql.policy.types import Schemas
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.privacy.schedules import Schedule
from dpsql.reconstruct.combined import MOST_ALONE, AnswersOverTime, Observed, answers_over_time
from dpsql.release.payload import Measurement
from dpsql.running.earlier.combined import Combination
from dpsql.running.earlier.combined_plan import AnswersWithEarlier, CombinedPlan, plan_with
from dpsql.running.earlier.stored_measurements import integers_of, is_of
from dpsql.strategies import MatrixStrategy
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.over_periods import Over

_ALPHA = 0.05
MOST_CELLS = 2**22
"""Cells of all periods that one measurement reads, by which it is scanned."""
_FADED = 1e-9
"""Of the variance of an estimate of an endless horizon: what the oldest noise adds that is not drawn again."""


def with_horizon(made: Schedule, n: int | None, windows: Sequence[int], plan: Plan, periods: Periods) -> Schedule:
    """The schedule with what is measured over ``n`` periods of ``plan``'s batch, of least error for ``windows``.

    None: without an end, over as many periods at a time as the longest window has. Raises SQLError, DataError where
    that is too large, or where the batch asks more of rows than a horizon counts.
    """
    cells, endless = plan.strategy.shape[1], n is None
    n = max(windows) if n is None else n
    if plan.strategy.shape[0] > MOST_ALONE or cells * n > MOST_CELLS:
        raise SQLError(
            f"{plan.strategy.shape[0]:,} measurements over {cells:,} cells, of {n:,} periods at a time, are too many "
            f"for a horizon, which has at most {MOST_ALONE:,} and {MOST_CELLS:,} cells of all these periods; ask for "
            "fewer groups, or for fewer periods"
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
    planner = Planner(state.within(prepared.reads), request, PlanOptions(objective="total"), monotonic())

    def made() -> Plan:
        strategy = prepared.chooser.strategy("gaussian", planner.options)
        if not isinstance(strategy, MatrixStrategy) or prepared.compiled.matrix is None:
            raise SQLError("a batch over a horizon is measured by one matrix; ask for fewer groups")
        return plan_of(Origin(prepared, planner.state, request), charges[0], strategy, _ALPHA)

    return plans.again(prepared, planner, made, "gaussian")


def plan_over_time(
    plan: Plan, one: Schedule, releases: Sequence[int], charges: Sequence[Charge], load: Callable[[int], Measurement]
) -> CombinedPlan:
    """``plan`` of the period after those of ``releases``, with the answers that rest on these, too.

    ``charges``: by which each of them was paid; ``load``: what the release of a number measured, called for as many as
    are read (of all, where a version before this one released them). Raises IntegrityError where another strategy was
    chosen than for those.
    """
    compiled, measured, place = plan.compiled.matrix, measured_over(one), len(releases)
    assert compiled is not None  # noqa: S101 - ``plan_of_period`` asked
    before = {number: load(number) for number in (releases[at] for at in measured.reads(place)[:-1])}
    stored = [found.stored["over_time"] for found in before.values() if found.stored is not None]
    meant = {(body.get("cells"), body["workload"]): body for body in stored}
    same = all(is_of(body, compiled.rows, compiled.scale) for body in meant.values())
    if plan.strategy.measured.digest() != one.strategy or not same:
        raise IntegrityError(
            f"{one.name} measures each period as the first one was, and this plan measures otherwise, as other "
            "libraries, another policy or another number of threads may have it; release it where it was added "
            "(nothing was charged)"
        )
    squared = measured.l2_squared * plan.sensitivity
    laws = {charge: charge.calibrate(squared) for charge in {*charges, plan.charge}}
    matrix = _matrix(plan.strategy.measured.written)
    new = Observed(matrix, compiled.common_steps, (0,) * matrix.shape[0], laws[plan.charge])
    observed = [*(Observed(matrix, old.common_steps, old.y, old.law) for old in before.values()), new]
    deviations = [math.sqrt(laws[charge].variance) for charge in (*charges, plan.charge)]
    workload, rest = _workload(compiled), _before(measured, place, lambda at: load(releases[at]))
    answers = answers_over_time(workload, observed, deviations, measured, rest, compiled.common_steps)
    if answers is None:
        raise SQLError("the batch has too many numbers for a horizon; ask for fewer groups")
    return plan_with(plan, AnswersWithEarlier(answers, workload), tuple(before))


def _before(measured: OverTime, place: int, load: Callable[[int], Measurement]) -> tuple[int, ...]:
    """What earlier periods add to the measurement at ``place``: by the estimates that their releases hold.

    Of a release that holds none, for an earlier version made it, its own follows from those before it.
    """
    read = measured.reads(place)[:-1]
    found = {at: estimate for at in read if (estimate := _estimate_of(load(at))) is not None}
    for at in range(0 if len(found) == len(read) else place):
        known = _estimate_of(load(at))
        found[at] = measured.estimate(at, load(at).y, measured.before(at, found)) if known is None else known
    return measured.before(place, found)


def _estimate_of(measurement: Measurement) -> tuple[int, ...] | None:
    stored = ((measurement.stored or {}).get("over_time") or {}).get("estimate")
    return None if stored is None else tuple(int(value) for value in stored)


def stored_over_time(stored: Json | None, plan: Plan, y: Sequence[int]) -> Json | None:
    """What a payload holds of a release of a horizon, so that nobody takes it for a measurement of its period alone.

    With the estimate of B x that it comes to, by which later periods need no older release than their own do.
    """
    answers = plan.answers
    if stored is None or not isinstance(answers, AnswersWithEarlier):
        return None
    *before, new = answers.combined.observed
    found = replace(answers.combined, observed=(*before, replace(new, y=tuple(y))))
    assert isinstance(found, AnswersOverTime)  # noqa: S101 - ``plan_over_time`` made it
    integers = {name: stored[name] for name in ("cells", "workload", "mixing", "basis")}
    return {"over_time": {**integers, "estimate": [str(value) for value in found.estimated()]}}


def combination_over_time(
    prepared: Prepared, one: Schedule, releases: Sequence[int], load: Callable[[int], Measurement], alpha: float
) -> Combination | None:
    """How the numbers of the last of ``releases`` follow from all of them; None where they are too large.

    ``releases``: every one of the horizon so far, oldest first; ``load`` as in ``plan_over_time``. Those are left out
    whose noise has faded. None, too, where the batch comes to another W by now.
    """
    measured, place, compiled = measured_over(one), len(releases) - 1, prepared.compiled.matrix
    times = measured.weights(place)
    faded = np.cumsum(times * times) <= (_FADED if measured.endless else 0.0) * float(times @ times)
    start = min(int(faded.sum()), measured.reads(place).start)
    found = {number: load(number) for number in releases[start:]}
    last = found[releases[-1]]
    stored = (last.stored or {}).get("over_time")
    if stored is None or compiled is None or any(m.strategy != one.strategy for m in found.values()):
        return None
    if not is_of(stored, compiled.rows, compiled.scale):
        return None
    matrix = _matrix(integers_of(stored).written)
    observed = [Observed(matrix, m.common_steps, m.y, m.law) for m in found.values()]
    deviations = [math.sqrt(m.law.variance) for m in found.values()]
    deviations = [*deviations[:1] * start, *deviations]  # of noise that has faded
    rest = _before(measured, place, lambda at: load(releases[at]))
    answers = answers_over_time(_workload(compiled), observed, deviations, measured, rest, compiled.common_steps)
    if answers is None:
        return None
    queries, widths = prepared.understood.answers, answers.widths(None, alpha)
    return Combination(queries, compiled, answers, answers.errors(), widths, alpha, tuple(found))


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
