"""What to expect of a batch before anything is spent: which way of answering it is likely nearest, and by how much.

From public facts alone: the batch, the policy's expected_rows, the plan. Each way is carried out on public stand-ins
for the data (``dpsql.strategies.core.stand_ins``), the measurement with the plan's own strategy and noise, and the mean
absolute error of all numbers is taken, of the worst stand-in. That of unbiased estimates is the same for all data; the
others depend on the data, so that what is said of them holds for data like the stand-ins.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError
from dpsql.extensions.adaptive.adaptive_plan import AdaptivePlan
from dpsql.extensions.discovery.sparse_plan import SparsePlan
from dpsql.extensions.discovery.sparse_strategy import error_of
from dpsql.planning.plan import Plan
from dpsql.reconstruct.residual_answers import ResidualAnswers
from dpsql.release import Result
from dpsql.running.feasible import check_estimates, feasible
from dpsql.strategies.core.stand_ins import noise_like, stand_in_rays, stand_in_tables
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.cone import cone_of
from dpsql.workloads.compile.structured import Structured

ENOUGH = 0.98
"""Feasible estimates are taken where their expected error is below so much of the unbiased one's."""
_ROUGH = 1e-2
"""How near the best a fit on a stand-in comes: its mean error hardly depends on it."""
_ROUNDING = 1e-6
"""Errors below which nothing but rounding is left, in rows."""


@dataclass(frozen=True)
class Prospect:
    """One way: its mean absolute error on the worst stand-in, and that over the error of unbiased estimates."""

    way: str
    error: float
    times: float


def prospects(
    plan: Plan, adaptive: AdaptivePlan | None = None, sparse: SparsePlan | None = None
) -> tuple[Prospect, ...]:
    """The ways to answer the batch of ``plan``, the best first; ``adaptive`` is it in rounds, ``sparse`` thresholded.

    Cost: a feasible fit for each stand-in. Raises DataError where there is nothing to compare: no feasible estimates,
    or no expected_rows.
    """
    check_estimates(plan, "feasible")
    unbiased, possible, passed = 0.0, 0.0, 0.0
    for y, true in _measured(plan):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shown = feasible(plan, y, "feasible", accuracy=_ROUGH).values
        unbiased = max(unbiased, _off(plan.answers.estimate(y, plan.compiled.common_steps), true))
        possible = max(possible, _off(shown, true))
        if sparse is not None:
            passed = max(passed, float(error_of(true, float(sparse.strategy.scale), sparse.strategy.least).mean()))
    found = [Prospect("unbiased", unbiased, 1.0), Prospect("feasible", possible, _times(possible, unbiased))]
    if adaptive is not None and adaptive.strategy.method == "adaptive":
        error = min(error for _, error in adaptive.strategy.considered)
        found.append(Prospect("adaptive", error, _times(error, unbiased)))
    if sparse is not None:
        found.append(Prospect("sparse", passed, _times(passed, unbiased)))
    return tuple(sorted(found, key=lambda prospect: prospect.error))


def prospects_of_sparse(plan: SparsePlan) -> tuple[Prospect, ...]:
    """The same where there are too many groups for any other way: beside all counts with their noise, if they were."""
    found, groups = plan.strategy, plan.strategy.groups
    error, unbiased = found.expected_error / groups, found.unbiased_error / groups
    return Prospect("sparse", error, _times(error, unbiased)), Prospect("unbiased", unbiased, 1.0)


def expected_estimates(plan: Plan) -> str:
    """What ``estimates="auto"`` shows: "feasible" where they should be nearer by 2 % or more, else "unbiased".

    Also of a plan that rests on earlier releases: what those say is of the data, and no stand-in has it.
    """
    if plan.rests_on:
        return "unbiased"
    try:
        error = next(found.times for found in prospects(plan) if found.way == "feasible")
    except DataError:
        return "unbiased"
    return "feasible" if error < ENOUGH else "unbiased"


def table_of(prospects: tuple[Prospect, ...]) -> Result:
    """Prospects as a table."""
    return Result.from_columns(
        [
            ("way", "VARCHAR", [prospect.way for prospect in prospects]),
            ("expected_error", "DOUBLE", [prospect.error for prospect in prospects]),
            ("of_unbiased", "DOUBLE", [prospect.times for prospect in prospects]),
        ]
    )


def _times(error: float, unbiased: float) -> float:
    """``error`` over that of unbiased estimates; where a budget leaves no noise both are 0 but for rounding."""
    if max(error, unbiased) < _ROUNDING:
        return 1.0
    return error / unbiased if unbiased else float("inf")


def _off(values: Floats, true: Floats) -> float:
    return float(np.abs(values - true).mean())


def _measured(plan: Plan) -> Iterator[tuple[list[int], Floats]]:
    """What the plan would measure of each stand-in, and the true numbers."""
    batch, tables = plan.compiled, {layout.source.table for layout in plan.compiled.layouts}
    rows = plan.expected_rows.get(next(iter(tables))) if len(tables) == 1 else None
    if rows is None:
        raise DataError(
            "what to expect is said of batches over one table whose expected_rows the policy has; add them there"
        )
    for x, true in _structured(plan, rows) if isinstance(batch, Structured) else _compiled(plan, rows):
        whole = (np.rint(x).astype(np.int64) * batch.common_steps).tolist()
        exact = np.array(plan.strategy.measured.times(whole, 63), dtype=np.float64)
        kind, law = ("laplace", plan.noise.variances) if plan.noise.blocks else (plan.noise.kind, plan.noise.variance)
        noisy = np.rint(exact + noise_like(kind, law, len(exact)))
        yield [int(value) for value in noisy.tolist()], true


def _structured(plan: Plan, rows: int) -> Iterator[tuple[Floats, Floats]]:
    batch = plan.compiled
    assert isinstance(batch, Structured)  # noqa: S101 - its caller knows
    answers = ResidualAnswers(batch.blocks, (), batch.sizes, batch.numbers)
    if any(held.component for held in batch.histograms):
        raise DataError("what to expect is said of counts, and the batch has sums or averages")
    wanted = list(dict.fromkeys([*(h.axes for h in batch.histograms), *(b.axes for b in batch.blocks)]))
    (table,) = {held.table for held in batch.histograms}
    for tables in stand_in_tables(batch.sizes[table], wanted, rows):
        x = np.concatenate([tables[h.axes].ravel() for h in batch.histograms])
        yield x, answers.numbers_of({(table, 0, axes): found for axes, found in tables.items()})


def _compiled(plan: Plan, rows: int) -> Iterator[tuple[Floats, Floats]]:
    batch = plan.compiled
    if not isinstance(batch, Compiled):
        raise DataError("what to expect is said of counts by groups, not of all ranges of a long line")
    rays = cone_of(batch).rays
    for w in stand_in_rays(rays.shape[1], rows):
        x = np.asarray(rays @ np.rint(w))
        yield x, batch.scale * np.asarray(batch.rows @ x)
