"""What is measured of a plan: a job, of the kind that the plan is of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import TypeAlias

from dpsql.common.arrays import Json
from dpsql.measure import Job, TableSource
from dpsql.measure.sparse import SparseJob
from dpsql.planning.plan import Plan

AnyJob: TypeAlias = Job | SparseJob


def job_at_once(plan: Plan, sources: Mapping[str, TableSource], description: Json, label: str) -> Job:
    """What measuring the strategy of ``plan`` needs, all public. ``description``: what the ledger keeps of it."""
    strategy, compiled = plan.strategy, plan.compiled
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
        blocks=strategy.blocks,
    )


@singledispatch
def job_of(plan: Plan, sources: Mapping[str, TableSource], description: Json, label: str) -> AnyJob:
    """The job of a plan; an extension registers its own kind of plan (``functools.singledispatch``)."""
    return job_at_once(plan, sources, description, label)
