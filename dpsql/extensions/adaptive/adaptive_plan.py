"""Plans of ``method="adaptive"``, and what plans of all methods in rounds share. Public and free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dpsql.common.arrays import Floats, Json
from dpsql.errors import DataError
from dpsql.extensions.adaptive.marginals import AdaptiveMarginals, adaptive_marginals
from dpsql.measure import TableSource
from dpsql.measure.adaptive import AdaptiveJob
from dpsql.planning.estimated import EstimatedPlan, TranscriptAnswers, charge_of, no_rows
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan_values import Accuracy, Payment, Statements
from dpsql.planning.prepare import Prepared, prepare
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise
from dpsql.privacy.selection import MU_SQUARED
from dpsql.running.jobs import job_of
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.structured import Structured, compile_structured
from dpsql.workloads.expr.batch import Derived, Ranked

Rounds: TypeAlias = "tuple[Batch, Any, Noise, TranscriptAnswers]"
"""What is planned of a batch in rounds: the batch, its strategy, the noise of the first round, and its answers."""


class AdaptivePlan(EstimatedPlan):
    """A plan whose strategy measures in rounds that depend on what came out."""


@job_of.register
def _job(plan: AdaptivePlan, sources: Mapping[str, TableSource], description: Json, label: str) -> AdaptiveJob:
    """Everything public that measuring in rounds needs."""
    run, compiled = plan.strategy, plan.compiled
    return AdaptiveJob(
        *(compiled.layouts, run.measured, compiled.common_steps, plan.sensitivity, plan.charge, plan.schemas, sources),
        description={**description, "rounds": run.rounds},
        stops=run.stops,
        reach=run.reach,
        weights=run.weights,
        steep=run.steep,
        spends=run.spends,
        course=run.course,
        label=label,
    )


@dataclass(frozen=True, eq=False)
class MarginalAnswers(TranscriptAnswers):
    """Answers of the marginals that a transcript makes up."""

    strategy: AdaptiveMarginals

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """The batch's numbers (m,). A rehearsal's zeros are an empty transcript."""
        transcript = list(y)
        if not any(transcript):
            return np.zeros(len(self.squares))
        return self.strategy.numbers(transcript)


def make_adaptive_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    options: PlanOptions,
) -> AdaptivePlan:
    """Plan a batch for rounds that choose marginals by the data. Free: reads no row and spends nothing.

    Paid by any account of additive noise. The policy's ``expected_rows`` are needed for the estimates; the number of
    rows is measured. Raises SQLError, PolicyError, DataError and BudgetError before any data are touched.
    """
    prepared = prepare(sql, policy, schemas, options.progress, rows_per_unit=options.rows_per_unit, blocks=True)
    compiled = prepared.compiled
    if not isinstance(compiled, Structured):
        compiled = compile_structured(prepared.understood.queries, prepared.understood.tables)

    def rounds(charge: Charge, expected: int) -> Rounds:
        strategy, squares = adaptive_marginals(
            *(compiled, charge.noise, charge.epsilon or charge.mu_squared),
            *(partial(_selecting, charge.noise), expected),
            rounds=options.rounds,
            progress=options.progress,
        )
        noise = _first_noise(charge.noise, strategy.unit, strategy.each_measure)
        return strategy.planned, strategy, noise, MarginalAnswers(strategy, no_rows(), squares)

    return plan_in_rounds(prepared, compiled, state, request, options, rounds)


def plan_in_rounds(
    prepared: Prepared,
    compiled: Batch,
    state: BudgetState,
    request: Request,
    options: PlanOptions,
    rounds: Callable[[Charge, int], Rounds],
) -> AdaptivePlan:
    """The plan of a batch by a method in rounds. ``rounds``: what it makes of the charge and the expected rows.

    Raises DataError for a batch of more than counts and sums, and where the policy expects no number of rows;
    BudgetError.
    """
    understood, policy, method = prepared.understood, prepared.policy, options.method
    state = state.within(prepared.reads)
    for core in (core for answer in understood.answers for core in answer.cores):
        for column in core.columns:
            if isinstance(column, Derived | Ranked):
                raise DataError(
                    f"method={method!r} answers counts and sums; {column.title or column.name} is worked out from "
                    "several of them, with an interval that needs their joint error: ask for the counts and sums and "
                    "divide the results, or use method='auto'"
                )
    charge = charge_of(method, request, state)
    (table, *_) = [layout.source.table for layout in compiled.layouts]
    expected = policy.table(table).expected_rows
    if expected is None:
        raise DataError(
            f"method={method!r} estimates its error on public stand-ins for the data, and the policy does not say how "
            f"many rows {table} is expected to have; add expected_rows to [tables.{table}]"
        )
    compiled, strategy, noise, answers = rounds(charge, expected)
    return AdaptivePlan(
        statements=Statements.of(prepared, compiled),
        compiled=compiled,
        strategy=strategy,
        payment=Payment(charge, state.affords(charge)),
        accuracy=Accuracy.of(answers, noise, options.alpha, 1),
        notes=understood.notes,
    )


def _selecting(noise: str, epsilon: Fraction) -> Fraction:
    """What a selection at ``epsilon`` costs of a budget for that noise."""
    return MU_SQUARED * epsilon**2 if noise == "gaussian" else epsilon


def _first_noise(noise: str, unit: int, budget: Fraction) -> Noise:
    return gaussian_noise(unit * unit, budget) if noise == "gaussian" else pure_noise(unit, budget)
