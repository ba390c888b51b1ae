"""What is held to be true of scans before a charge, from public values alone."""

from __future__ import annotations

import datetime as dt

from dpsql.engines.base import Engine, TableSource
from dpsql.engines.rehearsal import passes_rehearsal
from dpsql.errors import IntegrityError, InternalError
from dpsql.measure.cells import KEEPING, Scanned
from dpsql.measure.reading import scans_of
from dpsql.measure.unchanged import checked_tables
from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.privacy.periods import Reads
from dpsql.workloads.compile.confined import interval_of, is_confined, looks, looks_within
from dpsql.workloads.compile.over_periods import Over
from dpsql.workloads.expr.conditions import union
from dpsql.workloads.expr.lines import line_of


def read_by(job: Scanned) -> dict[str, TableSource]:
    """The sources of the tables that a job reads, by name."""
    return {name: job.sources[name] for layout in job.layouts for name in layout.source.tables}


def check_schemas(job: Scanned, engine: Engine) -> None:
    names = (table for layout in job.layouts for table in layout.source.tables)
    tables = checked_tables(engine, names, job.sources, job.schemas)
    for scan in scans_of(job.layouts, keeps=isinstance(engine, KEEPING)):
        statement = scan.scan(job.sources)
        if tables is not None:
            tables.check(statement)
        elif not passes_rehearsal(statement, job.schemas):
            raise InternalError(
                "DuckDB cannot run the scan of this batch on generated rows; report the SQL and the policy "
                "(nothing was charged)"
            )


def check_periods(job: Scanned, over: Over | None = None) -> None:
    """Hold the scans to the periods that the charge names. Depends on public values.

    No row elsewhere is in a cell, and no subquery or join of theirs looks at another row of the table. A release of a
    horizon names the last of its periods (``Job._check_over`` has the others).
    """
    reads = Reads.of(job.description)
    if reads is None:
        return
    periods = Periods(reads.column, reads.every, dt.date.fromisoformat(reads.first))
    numbers: list[int | None] = [periods.named(name) for name in reads.read]
    if over is not None:
        numbers = [*over.numbers] if numbers == [over.numbers[-1]] else [None]
    for layout in job.layouts:
        source = layout.source if layout.source.of is None else layout.source.of.of
        types = {fold(name): kind for name, kind in job.schemas[source.table].items()}
        line = line_of(types[fold(reads.column)])
        days = union([interval_of(periods, line, number) for number in numbers if number is not None])
        others = [look for look in looks(layout.source, layout.values.values()) if look.table == reads.table]
        within = is_confined(layout, reads.column, days) and all(looks_within(o, reads.column, days) for o in others)
        if source.table != reads.table or None in numbers or not within:
            raise IntegrityError(
                f"the batch counts rows outside of the periods of {reads.table} that it is charged to; plan again "
                "(nothing was charged)"
            )
