"""Measurement of counts by very many groups: the groups that have rows are scanned, those that pass are kept.

Neighbours as in ``dpsql.measure``; guarantee and proof: ``dpsql.privacy.counts_above_threshold``. A row is in one
group at most, and
of a unit at most ``Layout.multiplicity`` rows count, by which it moves all counts together in L1 norm. The scan groups
rows as every scan does, without a WHERE, and finds the combinations that some row has. Noise is drawn after it: how
much is needed is private, as how many groups have rows is. Exact counts live in the frames of ``_observed``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpsql import measure as room
from dpsql.common.arrays import Json
from dpsql.engines.base import Engine, TableSource
from dpsql.errors import IntegrityError
from dpsql.measure.failed_sources import noting_failure, refuse_failed
from dpsql.measure.reading import scan_of
from dpsql.measure.shield import shielded
from dpsql.privacy.charge import Charge
from dpsql.privacy.counts_above_threshold import GeometricThreshold
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.noise import Noise
from dpsql.privacy.threshold import Integers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.sparse_counts import SparseCounts


@dataclass(frozen=True)
class SparseJob:
    """Counts by the groups of ``counts``, shown where they pass ``law``; other fields as in ``Job``.

    ``most``: of more that pass the largest so many are kept.
    """

    counts: SparseCounts
    law: GeometricThreshold
    most: int
    charge: Charge
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Json = field(repr=False)
    label: str = ""
    charge_id: str = ""
    common_steps: int = 1

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """What is scanned."""
        return self.counts.layouts

    @property
    def noise(self) -> Noise:
        """The law of the noise of each count."""
        return self.law.noise


def measure_sparse(
    job: SparseJob, engine: Engine, ledger: Ledger, payload: Callable[[int, list[int]], bytes]
) -> tuple[int, list[int]]:
    """Charge, measure and record; the release's number, and for each group that is shown its number and its count.

    One after the other, groups ascending. ``payload`` and errors as ``measure``.
    """
    refuse_failed(engine, ledger, room.read_by(job))
    room._check_schemas(job, engine)
    check_pays(job)
    room.check_periods(job)
    release = ledger.charge(job.charge, job.charge_id or secrets.token_hex(16), job.description, label=job.label)
    observe = partial(_observed, job, engine)
    y = noting_failure(engine, ledger, release, job.sources, lambda: shielded(observe, room.FAILED))
    ledger.record(release, payload(release, y))
    return release, y


def check_pays(job: SparseJob) -> None:
    """Hold the noise against what one unit can move and what is charged, exactly. Before the charge; public.

    Raises IntegrityError.
    """
    epsilon, (layout,) = job.charge.epsilon, job.layouts
    if epsilon is None or job.charge.noise != "laplace" or job.law.scale * epsilon < layout.multiplicity:
        raise IntegrityError("the plan's noise is less than one unit can move; plan again (nothing was charged)")


def _observed(job: SparseJob, engine: Engine) -> list[int]:
    """What passes; exact counts die with this frame."""
    with room._opened(engine, job) as (held, _):
        found = held.scan(scan_of(job.counts.layout, job.sources))
    return passed(job, found)


def passed(job: SparseJob, found: Mapping[str, Integers]) -> list[int]:
    """What passes of a scan: group, count, group, count."""
    axes = len(job.counts.places)
    group = job.counts.group([np.asarray(found[f"a{axis}"], dtype=np.int64) for axis in range(axes)])
    rows = np.asarray(found["n"], dtype=np.int64)
    taken, which = np.unique(group[group >= 0], return_inverse=True)
    exact = np.zeros(len(taken), dtype=np.int64)
    np.add.at(exact, which.ravel(), rows[group >= 0])
    groups, counts = job.law.sample(exact, job.counts.groups, taken)
    if len(groups) > job.most:
        kept = np.sort(np.argsort(-counts, kind="stable")[: job.most])
        groups, counts = groups[kept], counts[kept]
    return [int(value) for value in np.stack([groups, counts], axis=1).ravel().tolist()]
