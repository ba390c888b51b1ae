"""Several things found out at one charge: counts of planned batches, and the values of columns.

Neighbours: all rows of one unit are added or removed. Every part is fixed before any is measured: batches are mu_i-GDP
(``dpsql.measure``), thresholds mu_i-GDP but for a chance d_i (``dpsql.privacy.threshold``), whatever tables they read.
Together they are mu-GDP with mu^2 the sum of the mu_i^2, but for a chance of the sum of the d_i: GDP composes so (Dong,
Roth and Su 2022, Cor. 3.3), and the chances add up as the module of thresholds shows. The charge is held to both sums
before anything is read: none of the parts is charged by itself.

Order: the charge is committed, the noise of the batches drawn, their tables scanned, then values found, then all of it
is committed to the ledger at once. A part that fails leaves the charge and no release.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import dpsql.measure as room
from dpsql.common.arrays import Json
from dpsql.engines.base import Opening
from dpsql.errors import InternalError
from dpsql.measure import discovery
from dpsql.measure.discovery import DiscoveryJob, Found
from dpsql.measure.failed_sources import noting_failure, refuse_failed
from dpsql.measure.job import Job
from dpsql.measure.shield import shielded
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger

Observed = tuple[list[list[int]], list[Found]]
"""The noisy integers of each batch, and the values and noisy counts of each column."""


@dataclass(frozen=True)
class SurveyJob:
    """Everything public that a survey needs. The ``charge`` pays for all parts together: checked here."""

    counts: tuple[Job, ...]
    values: tuple[DiscoveryJob, ...]
    charge: Charge
    description: Json = field(repr=False)
    label: str = ""
    aside: tuple[Charge, Json] | None = None

    def __post_init__(self) -> None:
        parts = [*(job.charge for job in self.counts), *(job.charge for job in self.values)]
        if any(part.noise != "gaussian" for part in parts):
            raise InternalError("a survey has Gaussian parts alone")
        fails = sum((part.delta or Fraction(0) for part in parts), Fraction(0))
        if sum(part.mu_squared for part in parts) > self.charge.mu_squared or fails > (self.charge.delta or 0):
            raise InternalError("the charge does not pay for all parts of the survey")


def survey(
    job: SurveyJob, engine: Opening, ledger: Ledger, payload: Callable[[int, Observed], bytes]
) -> tuple[int, Observed]:
    """Charge, measure and record all parts; the release's number and what was observed. Raises as ``discover``."""
    read = [source for counted in job.counts for source in room.read_by(counted)]
    read += [column.sources[name] for column in job.values for name in column.source.tables]
    sources = {source.name: source for source in read}
    refuse_failed(engine, ledger, sources.values())
    for counted in job.counts:
        room._check_schemas(counted, engine)
        room._check_sensitivity(counted)
    for column in job.values:
        discovery.check_job(column, engine)
    release = ledger.charge(job.charge, secrets.token_hex(16), job.description, label=job.label, before=job.aside)
    observed = noting_failure(
        *(engine, ledger, release, sources),
        lambda: (
            [_counted(counted, engine) for counted in job.counts],
            [shielded(partial(discovery._observe, column, engine), discovery.FAILED) for column in job.values],
        ),
    )
    ledger.record(release, payload(release, observed))
    return release, observed


def _counted(job: Job, engine: Opening) -> list[int]:
    """y of one batch; its noise has no name here, as in ``measure``."""
    return shielded(partial(room._observe, job, engine, job.noise.sample(job.integers.shape[0])), room.FAILED)
