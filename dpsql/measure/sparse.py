"""Measurement of counts by very many groups: the groups that have rows are scanned, those that pass are kept.

Neighbours as in ``dpsql.measure``; guarantee and proof: ``dpsql.privacy.counts_above_threshold``. A row is in one
group at most, and
of a unit at most ``Layout.multiplicity`` rows count, by which it moves all counts together in L1 norm. The scan groups
rows as every scan does, without a WHERE, and finds the combinations that some row has. Noise is drawn after it: how
much is needed is private, as how many groups have rows is. Exact counts live in the frames of ``SparseJob.observe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from dpsql.common.arrays import Json
from dpsql.engines.base import Engine, TableSource
from dpsql.errors import DataError, IntegrityError
from dpsql.measure.cells import opened_for
from dpsql.measure.checks import check_periods, check_schemas, read_by
from dpsql.measure.job import FAILED
from dpsql.measure.reading import scan_of
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
    aside, failed = None, FAILED

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """What is scanned."""
        return self.counts.layouts

    @property
    def audited(self) -> NoReturn:
        """DataError: a scan of so many groups is compared with no other."""
        raise DataError("method='sparse' is not audited: too many groups to compare; audit the batch over fewer")

    @property
    def noise(self) -> Noise:
        """The law of the noise of each count."""
        return self.law.noise

    reads = property(read_by)

    def check(self, engine: Engine, ledger: Ledger) -> None:
        """Hold tables, noise and periods to what is charged."""
        check_schemas(self, engine)
        self.check_noise()
        check_periods(self)

    def check_noise(self) -> None:
        """Hold the noise to what one unit can move, exactly."""
        epsilon, (layout,) = self.charge.epsilon, self.layouts
        if epsilon is None or self.charge.noise != "laplace" or self.law.scale * epsilon < layout.multiplicity:
            raise IntegrityError("the plan's noise is less than one unit can move; plan again (nothing was charged)")

    def observe(self, engine: Engine) -> list[int]:
        """For each group that is shown its number and its count, one after the other, groups ascending."""
        with opened_for(engine, self) as (open_engine, _):
            columns = open_engine.scan(scan_of(self.counts.layout, self.sources))
        return passed(self, columns)


def passed(job: SparseJob, columns: Mapping[str, Integers]) -> list[int]:
    """What passes of a scan: group, count, group, count."""
    axes = len(job.counts.places)
    group = job.counts.group([np.asarray(columns[f"a{axis}"], dtype=np.int64) for axis in range(axes)])
    rows = np.asarray(columns["n"], dtype=np.int64)
    taken, which = np.unique(group[group >= 0], return_inverse=True)
    exact = np.zeros(len(taken), dtype=np.int64)
    np.add.at(exact, which.ravel(), rows[group >= 0])
    groups, counts = job.law.sample(exact, job.counts.groups, taken)
    if len(groups) > job.most:
        largest = np.sort(np.argsort(-counts, kind="stable")[: job.most])
        groups, counts = groups[largest], counts[largest]
    return [int(value) for value in np.stack([groups, counts], axis=1).ravel().tolist()]
