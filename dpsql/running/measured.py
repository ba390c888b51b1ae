"""A plan handed to the room that measures: its job, of the kind that it needs, and the call that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpsql.measure import Engine, Job, TableSource, measure
from dpsql.measure.adaptive import AdaptiveJob, measure_adaptively
from dpsql.planning.mwem import AdaptivePlan
from dpsql.planning.plan import Plan
from dpsql.privacy.ledger import Ledger


def job_of(
    plan: Plan, sources: Mapping[str, TableSource], description: Mapping[str, Any], label: str
) -> Job | AdaptiveJob:
    """Everything public that measuring ``plan`` needs. ``description`` is what the ledger keeps beside the charge."""
    strategy, compiled = plan.strategy, plan.compiled
    if isinstance(plan, AdaptivePlan):
        run = plan.strategy
        return AdaptiveJob(
            layouts=compiled.layouts,
            integers=run.measured,
            common_steps=compiled.common_steps,
            reach=run.reach,
            rounds=run.rounds,
            each_selection=run.each_selection,
            each_measure=run.each_measure,
            start=run.model.start,
            charge=plan.charge,
            schemas=plan.schemas,
            sources=sources,
            description={**description, "rounds": run.rounds},
            label=label,
        )
    return Job(
        layouts=compiled.layouts,
        integers=strategy.measured,
        common_steps=compiled.common_steps,
        sensitivity=plan.sensitivity,
        charge=plan.charge,
        schemas=plan.schemas,
        sources=sources,
        description=description,
        label=label,
    )


def carried_out(
    job: Job | AdaptiveJob, engine: Engine, ledger: Ledger, payload: Callable[[int, list[int]], bytes]
) -> int:
    """Charge, measure and record; the number of the release. Raises as ``dpsql.measure.measure``."""
    if isinstance(job, AdaptiveJob):
        return measure_adaptively(job, engine, ledger, payload)[0]
    return measure(job, engine, ledger, payload)[0]
