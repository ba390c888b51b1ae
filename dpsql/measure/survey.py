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

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from dpsql.common.arrays import Json
from dpsql.engines.base import Opening, TableSource
from dpsql.errors import InternalError
from dpsql.measure.discovery import DiscoveryJob, Found
from dpsql.measure.job import FAILED, Job
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
    charge_id, failed = "", FAILED

    def __post_init__(self) -> None:
        parts = [*(job.charge for job in self.counts), *(job.charge for job in self.values)]
        if any(part.noise != "gaussian" for part in parts):
            raise InternalError("a survey has Gaussian parts alone")
        fails = sum((part.delta or Fraction(0) for part in parts), Fraction(0))
        if sum(part.mu_squared for part in parts) > self.charge.mu_squared or fails > (self.charge.delta or 0):
            raise InternalError("the charge does not pay for all parts of the survey")

    @property
    def _parts(self) -> tuple[Job | DiscoveryJob, ...]:
        return (*self.counts, *self.values)

    @property
    def reads(self) -> Mapping[str, TableSource]:
        """The sources of the tables that are read."""
        return {name: source for job in self._parts for name, source in job.reads.items()}

    def check(self, engine: Opening, ledger: Ledger) -> None:
        """Hold every part against the tables, and its noise against its own part of the charge."""
        for job in self._parts:
            job.check(engine, ledger)

    def observe(self, engine: Opening) -> Observed:
        """All parts, one after the other: batches, then values."""
        counts = [shielded(partial(job.observe, engine), job.failed) for job in self.counts]
        return counts, [shielded(partial(job.observe, engine), job.failed) for job in self.values]
