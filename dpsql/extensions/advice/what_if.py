"""What if: a plan at other budgets, and without one of its statements.

Every figure comes from planning again: the strategy is chosen anew and its errors worked out as those of any plan. All
of it is public and free. Errors of different units are compared as the strategy compares them: divided by what one row
can change the number, times the statement's weight; where a budget was found for wanted errors, over these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.common.arguments import maybe, real, taking, whole
from dpsql.common.arrays import Floats, Row
from dpsql.errors import DataError, Error, InterfaceError
from dpsql.planning.options import PlanOptions
from dpsql.planning.payment import Route
from dpsql.planning.plan_values import Origin
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.prepare import Chooser, scaled_sensitivity, true_error
from dpsql.planning.target_errors import goal_of
from dpsql.privacy.accountant import Request
from dpsql.privacy.calibrate import gaussian_epsilon
from dpsql.reconstruct import Errors, mean_square
from dpsql.release import Result
from dpsql.strategies import Strategy
from dpsql.strategies.targets import Limits, strategies_within
from dpsql.workloads.compile.compiled import Batch, Compiled
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.expr.batch import Measured

MOST = 40  # statements that are left out one by one, those of the largest errors first
TOLERANCE = 5e-3  # of planning again: what changes less is not told apart


def origin_of(plan: PlannedBatch) -> Origin:
    """What a plan was made from. InterfaceError where it does not know."""
    if plan.origin is None:
        raise InterfaceError("the plan does not know what it was made from; plan the batch again")
    return plan.origin


def amount_of(plan: PlannedBatch) -> Fraction:
    """The rho or epsilon that a plan was asked for."""
    request = origin_of(plan).request
    return request.rho or request.epsilon or Fraction(0)


def route_of(plan: PlannedBatch) -> Route:
    """The way in which a plan is paid."""
    origin = origin_of(plan)
    request, budget = origin.request, origin.state.budget
    measure = "rho" if request.rho is not None else "epsilon"
    gaussian = plan.charge.noise == "gaussian" and measure == "epsilon"
    delta = request.delta or (budget.delta if gaussian else None)
    return Route(budget, plan.charge.noise, plan.charge.account, measure, delta)


@taking(points=whole(-(2**63), 2**63))
def curve(plan: PlannedBatch, points: int = 17, span: float = 8.0) -> Result:
    """Error against epsilon (or rho): the plan's strategy at ``points`` budgets from 1/span to span times its own.

    One row a budget and result column: the budget, whether what is left and the cap on one release allow it, root mean
    squared standard error and largest half-width. The strategy does not depend on the budget, so this is what
    planning at each of them gives, for the plan's kind of noise; the plan's own budget is one of the points. Averages,
    ratios and quantiles, whose errors depend on the answer, are left out. Raises DataError for points or spans out of
    range.
    """
    if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= 1000:
        raise DataError("points must be a whole number from 1 to 1000")
    if not isinstance(span, int | float) or not 1 < span <= 1e6:
        raise DataError("span must be above 1 and at most 1e6; 8 shows from an eighth to eight times the budget")
    origin, route = origin_of(plan), route_of(plan)
    own = amount_of(plan)
    powers = np.linspace(-1.0, 1.0, points) if points > 1 else np.zeros(1)
    sensitivity = scaled_sensitivity(plan.strategy, plan.compiled)
    columns = list(_measured(plan))
    rows: list[Row] = []
    for power in powers:
        amount = own if abs(power) < 1e-12 else Fraction(float(own) * span ** float(power))
        try:
            request = Request(rho=amount) if route.measure == "rho" else Request(amount, origin.request.delta)
            charge = route.price(request)
            noise = charge.calibrate(sensitivity, plan.strategy.blocks)
        except Error:
            continue  # below the ledger's grid, or beyond what noise is drawn for
        common = plan.strategy.as_measured(plan.compiled).common_steps
        errors = plan.answers.errors(noise, common)
        widths = plan.answers.widths(noise, plan.alpha, common)
        allowed = origin.state.affords(charge)
        rows.extend(
            (float(amount), allowed, name, title, _rms(errors[part]), float(widths[part].max(initial=0.0)))
            for name, title, part in columns
        )
    names = (route.measure, "allowed", "result", "column", "stderr", "half_width")
    return Result(names, ("DOUBLE", "BOOLEAN", "VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE"), rows)


def _measured(plan: PlannedBatch) -> Iterator[tuple[str, str, slice]]:
    """(result, column, its numbers) of every measured column."""
    names = [answer.name for answer in plan.queries for _ in answer.cores]
    for name, (core, slices) in zip(names, plan.cores, strict=True):
        for column in core.columns:
            if isinstance(column, Measured):
                yield name, column.title or column.name, slices[column.output]


def _rms(errors: Errors) -> float:
    return math.sqrt(mean_square(errors)) if len(errors) else 0.0


# -- leaving statements out -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one statement costs the others. ``times``: their error with it over that without it, at the same budget.

    ``amount``: how much of the plan's charge could be saved without it at the others' present error, in the
    account's measure; all of it where there are no others (``times`` is None).
    """

    result: str
    numbers: int
    times: float | None
    amount: float


def saved_amount(plan: PlannedBatch, cost: Cost) -> float:
    """How much less epsilon (or rho) the others need for their present error where a statement is left out."""
    own, route = float(amount_of(plan)), route_of(plan)
    if cost.times is None:
        return own
    if plan.charge.noise == "laplace":
        return own * (1.0 - 1.0 / cost.times)
    if route.measure == "rho" or route.delta is None:
        return own * (1.0 - cost.times**-2)
    return own - gaussian_epsilon(math.sqrt(plan.charge.mu_squared) / cost.times, float(route.delta))


@taking(most=whole(0, 10**6), time_limit=maybe(real()))
def costs(plan: PlannedBatch, most: int = MOST, time_limit: float | None = 30.0) -> tuple[Cost, ...]:
    """The marginal cost of each statement, by planning the batch without it; dearest first.

    At most ``most`` statements, those whose numbers have the largest part in what is minimised first, and none any
    more after ``time_limit`` seconds. Cost: one selection each, quick where it is certified. With Laplace noise nobody
    knows the best strategy, so that ``times`` compares the best that were found.
    """
    began = monotonic()
    owners = _owners(plan)
    units = comparable(plan)
    found: list[Cost] = []
    for name in sorted(owners, key=lambda n: -_value(plan, units, owners[n]))[:most]:
        if time_limit is not None and found and monotonic() - began > time_limit:
            break
        others = [part for other, parts in owners.items() if other != name for part in parts]
        numbers = sum(part.stop - part.start for part in owners[name])
        reduced = _without(origin_of(plan).prepared.compiled, owners[name])
        if not others or reduced is None:
            found.append(Cost(name, numbers, None, plan.charge.amount))
            continue
        least = _again(plan, reduced)
        # A budget found for wanted errors falls with the largest of all; else the others' own errors are compared.
        before = _value(plan, units, None if _for_targets(plan) else others)
        times = max(1.0, math.sqrt(before / least)) if least > 0 else 1.0
        power = 2.0 if plan.charge.account == "gaussian" else 1.0
        found.append(Cost(name, numbers, times, plan.charge.amount * (1.0 - times**-power)))
    return tuple(sorted(found, key=lambda cost: -cost.amount))


def marginal_costs(plan: PlannedBatch, most: int = MOST, time_limit: float | None = 30.0) -> Result:
    """``costs`` as a table: result, numbers, others_error (times), cost as its account counts, share of it."""
    names = ("result", "numbers", "others_error", "cost", "share")
    kinds = ("VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE")
    rows = [
        (c.result, c.numbers, c.times, c.amount, c.amount / plan.charge.amount) for c in costs(plan, most, time_limit)
    ]
    return Result(names, kinds, rows)


def _for_targets(plan: PlannedBatch) -> bool:
    """Whether the strategy was chosen for target errors."""
    return plan.wanted is not None and plan.wanted.objective == "least"


def _owners(plan: PlannedBatch) -> dict[str, list[slice]]:
    """The numbers that each statement's private part takes, by result; statements over other results have none."""
    found: dict[str, list[slice]] = {}
    names = [answer.name for answer in plan.queries for _ in answer.cores]
    for name, (_, slices) in zip(names, plan.cores, strict=True):
        held = found.setdefault(name, [])
        for part in slices:
            held.extend([part] if part not in held else [])
    return found


def comparable(plan: PlannedBatch) -> Floats | None:
    """What each number's error is multiplied by to be compared, (m,); None where there are too many numbers."""
    compiled = origin_of(plan).prepared.compiled
    if plan.wanted is not None and compiled.line is None and _for_targets(plan):
        return np.asarray(1.0 / goal_of(origin_of(plan).prepared, plan.wanted).targets(compiled.numbers))
    return compiled.weights


def _value(plan: PlannedBatch, units: Floats | None, parts: list[slice] | None) -> float:
    """What the plan's objective is over some of its numbers (all for None): total, or largest, squared error."""
    if units is None:
        return sum(_rms(plan.errors[part]) ** 2 for part in parts or [])
    squares = (np.asarray(plan.errors) * units) ** 2
    held = squares if parts is None else np.concatenate([squares[part] for part in parts] or [np.zeros(1)])
    return float(held.max() if plan.strategy.objective == "max" else held.sum())


def _without(compiled: Batch, parts: list[slice]) -> Batch | None:
    """The batch without some of its numbers; None where nothing is left that depends on the data."""
    gone = {number for part in parts for number in range(part.start, part.stop)}
    if isinstance(compiled, Structured):
        blocks = tuple(block for block in compiled.blocks if block.start not in gone)
        return replace(compiled, blocks=blocks) if blocks else None
    if compiled.matrix is None:
        return None
    keep = np.ones(compiled.numbers, dtype=np.int64)
    keep[list(gone)] = 0
    return _restricted(compiled.matrix, keep)


def _restricted(compiled: Compiled, keep: npt.NDArray[np.int64]) -> Compiled | None:
    rows = sparse.csr_array(sparse.diags_array(keep, dtype=np.int64) @ compiled.rows)
    rows.eliminate_zeros()
    return replace(compiled, rows=rows) if rows.nnz else None


def _again(plan: PlannedBatch, compiled: Batch) -> float:
    """What the plan's objective comes to over ``compiled`` at the same charge."""
    noise, limits = plan.charge.noise, Limits(TOLERANCE)
    if plan.wanted is not None and _for_targets(plan):
        targets = goal_of(origin_of(plan).prepared, plan.wanted).targets(compiled.numbers)
        found: Strategy = strategies_within(compiled, targets, noise, limits)[0]
    else:
        chooser = Chooser(compiled, cached=False)
        found = chooser.strategy(noise, PlanOptions(tolerance=TOLERANCE, objective=plan.strategy.objective))
    return plan.charge.unit_variance * true_error(found, compiled)
