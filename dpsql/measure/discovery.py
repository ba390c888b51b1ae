"""The values of a column, found by a private scan: counted by DuckDB, decided in bulk, shown above a threshold.

Neighbours, what is counted and the guarantee: ``dpsql.privacy.threshold``. In a table of single rows every row is a
unit, which has one value. Else the pairs of a unit and a value are counted, each once, and of a unit at most
``groups``: those with the least hash of both, then the least values, so that they are a function of the unit's own
rows. A NULL is no value, nor is a text of more than ``LONGEST`` bytes, and a row without a unit is no unit that could
be counted.

Two statements read the table. The first counts how many values have each count, the second reads the values whose
count is at least the least that passed with its noise. So values far below the threshold never leave DuckDB, nor does
any value become an object before it is known that one of its count is shown. Values of one count have their noise in
the order of their text: the draws are independent, so that any order which does not look at them is right. Both read
the same rows: in a database inside one transaction, or of a file that nobody can write to; where files changed in
between, that is noticed and the discovery fails.

Order: the charge is committed, then the rows are read, then noise is drawn, as many draws as there are values, then the
outcome is committed. Noise cannot be drawn before: how many values there are is private. So the time that a discovery
takes tells roughly how many values a column has (docs/discover.md). Exact counts live in the frames of ``_observe``
alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dpsql.arrays import Json
from dpsql.engines.base import Engine, Scan, TableSource
from dpsql.engines.duckdb import ConnectionEngine, FileEngine, runs_over_nulls
from dpsql.errors import IntegrityError, InternalError, NotSupportedError, OperationalError
from dpsql.measure.from_sql import pairs_of
from dpsql.measure.shield import shielded
from dpsql.policy.types import column_type
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.threshold import Integers, Threshold
from dpsql.workload.expr import values as tree
from dpsql.workload.expr.lines import Line
from dpsql.workload.expr.rows import RowSource
from dpsql.workload.expr.scan import Select, same
from dpsql.workload.expr.total import read_once

VALUE, ROWS = "value", "n"
LONGEST = 2**21
"""Bytes of a text that is a value; of a longer one, one row could fill the memory and so decide the outcome."""
MOST_SHOWN = 1_000_000
"""The most values that a column may have by a policy."""
_CHUNK = 1 << 20  # draws at a time

FAILED = (
    "the discovery failed; details may depend on private data and are not shown. "
    "What was charged stays charged; check memory and disk, then try again"
)
MANY = (
    f"more than {MOST_SHOWN:,} values passed the threshold, more than a policy may list. What was charged stays "
    "charged; ask with less epsilon"
)

Found = tuple[list[str], Integers]
"""The values that are shown, as DuckDB writes them, in binary order, and their noisy counts."""


@dataclass(frozen=True)
class DiscoveryJob:
    """Everything public that finding the values of ``column`` needs. The charge pays for ``law``: checked here.

    ``aside``: what is charged first, where no delta was set aside for thresholds before (``dpsql.privacy.reserve``).
    """

    column: tree.Stored
    line: Line
    source: RowSource
    law: Threshold
    charge: Charge
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Json = field(repr=False)
    label: str = ""
    aside: tuple[Charge, Json] | None = None

    def __post_init__(self) -> None:
        groups, charge = self.law.groups, self.charge
        paid = charge.mu_squared if charge.noise == "gaussian" else charge.epsilon
        if (charge.noise, paid, charge.delta) != (self.law.kind, self.law.parameter, self.law.delta):
            raise InternalError("the charge does not pay for the threshold")
        if groups < 1 or (self.source.unit is None and groups != 1):
            raise InternalError("a unit of one row has one value")

    def counted(self) -> Select:
        """The values with the number of units that have each: ``VALUE``, NULL in one row of them, and ``ROWS``."""
        once = read_once(self.column, self.line, VALUE)
        if column_type(self.column.type).kind == "text":
            value = tree.Name(VALUE)
            short = tree.Compared(tree.bare("strlen", value), "<=", tree.whole(LONGEST))
            once = replace(once, then=tree.Guarded(short, value))
        rows = pairs_of(self.source, once, self.column.type, self.law.groups)
        return Select((*same(VALUE), (ROWS, tree.CountRows())), rows, group_by=1)

    def scan(self, select: Select) -> Scan:
        """A scan of the job's tables."""
        return Scan(self.source.table, tuple(self.sources[name] for name in self.source.tables), select)

    @property
    def histogram(self) -> Scan:
        """How many values have each count; "missing" is 1 for NULL, which is none."""
        missing = tree.Truth(tree.IsNull(tree.Name(VALUE), negated=True))
        keys = (*same(ROWS), ("missing", missing), ("number", tree.CountRows()))
        return self.scan(Select(keys, self.counted(), group_by=2))

    def values_from(self, least: int) -> Scan:
        """The values of which at least so many units have each, as text, and how many."""
        text = tree.Cast(tree.Name(VALUE), "VARCHAR", bare=True)
        at_least = tree.Compared(tree.Name(ROWS), ">=", tree.whole(least))
        return self.scan(Select(((VALUE, text), *same(ROWS)), self.counted(), where=at_least))


def discover(
    job: DiscoveryJob, engine: Engine, ledger: Ledger, payload: Callable[[int, list[str], Integers], bytes]
) -> tuple[int, list[str], Integers]:
    """Charge, find and record the values of a column: the release's number, the values and their noisy counts.

    ``payload(release, values, counts)`` serialises what the ledger keeps. Raises IntegrityError where a schema is no
    longer the one of the job, InternalError where DuckDB runs the scan on no table (nothing is charged), BudgetError
    and LedgerError as ``Ledger.charge``, OperationalError where a scan fails (the charge stands).
    """
    held = finding_engine(engine)
    check_job(job, held)
    release = ledger.charge(job.charge, secrets.token_hex(16), job.description, label=job.label, before=job.aside)
    values, counts = shielded(partial(_observe, job, held), FAILED)
    ledger.record(release, payload(release, values, counts))
    return release, values, counts


def finding_engine(engine: Engine) -> FileEngine | ConnectionEngine:
    """The engine, which speaks DuckDB's SQL; NotSupportedError for any other, before a charge."""
    if not isinstance(engine, FileEngine | ConnectionEngine):
        raise NotSupportedError("values are found in DuckDB and in files; a table of Spark needs them listed")
    return engine


def check_job(job: DiscoveryJob, engine: FileEngine | ConnectionEngine) -> None:
    """Hold a job against the tables' types, before the charge. Raises IntegrityError, InternalError."""
    tables = job.source.tables
    found = engine.schemas([job.sources[table] for table in tables])
    for table in tables:
        if found[table] != job.schemas[table]:
            raise IntegrityError(f"the columns of {table} have changed since; try again (nothing was charged)")
    for asked in (job.histogram, job.values_from(1)):
        if not runs_over_nulls(asked, job.schemas):
            raise InternalError("DuckDB cannot run this discovery on any table; report the policy and the column")


def set_aside(ledger: Ledger, aside: tuple[Charge, Json]) -> None:
    """Keep a part of delta for thresholds, at its price (``dpsql.privacy.reserve``). BudgetError once that is late."""
    ledger.charge(aside[0], secrets.token_hex(16), aside[1])


def _observe(job: DiscoveryJob, engine: FileEngine | ConnectionEngine) -> Found:
    """The values that pass and their noisy counts; exact counts die with this frame and those that it calls."""
    with engine.opened([job.sources[table] for table in job.source.tables]) as held:
        found: Json = held.scan(job.histogram)
        kept = np.asarray(found["missing"]) == 0
        counts, sizes = np.asarray(found[ROWS])[kept], np.asarray(found["number"])[kept]
        order = np.argsort(counts)
        counts, sizes = counts[order], sizes[order]
        which, places, noisy = _passed(job.law, counts, sizes)
        if not len(noisy):
            return [], np.empty(0, dtype=np.int64)
        if len(noisy) > MOST_SHOWN:
            raise OperationalError(MANY)
        read: Json = held.scan(job.values_from(int(counts[which.min()])))
    return _named(read, counts, sizes, (which, places, noisy), job.source.table)


def _passed(law: Threshold, counts: Integers, sizes: Integers) -> tuple[Integers, Integers, Integers]:
    """Of ``sizes`` values of each count, with noise: the class, the place in it and the noisy count of those that pass.

    One draw for each value, a chunk of them at a time.
    """
    found: list[tuple[Integers, Integers, Integers]] = []
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, _CHUNK):
        at = np.arange(first, min(total, first + _CHUNK))
        which = np.searchsorted(ends, at, side="right")
        noisy = counts[which] + law.sample(len(at))
        kept = noisy >= law.least
        which, noisy = which[kept], noisy[kept]
        found.append((which, at[kept] - (ends[which] - sizes[which]), noisy))
    empty = np.empty(0, dtype=np.int64)
    parts = [np.concatenate([part[i] for part in found]) if found else empty for i in range(3)]
    return parts[0], parts[1], parts[2]


def _named(
    read: Json, counts: Integers, sizes: Integers, passed: tuple[Integers, Integers, Integers], table: str
) -> Found:
    """The values behind classes and places, in binary order of their text."""
    which, places, noisy = passed
    known = ~np.ma.getmaskarray(read[VALUE])
    texts, numbers = np.ma.getdata(read[VALUE])[known].tolist(), np.asarray(read[ROWS])[known].tolist()
    ordered = sorted(zip(numbers, texts, strict=True))
    first = int(which.min())
    starts = np.cumsum(sizes[first:]) - sizes[first:]
    same_rows = [number for number, _ in ordered] == np.repeat(counts[first:], sizes[first:]).tolist()
    if not same_rows:
        raise OperationalError(
            f"the rows of {table} changed while they were read. What was charged stays charged; try again when "
            "nobody writes"
        )
    shown = sorted((ordered[at][1], count) for at, count in zip(starts[which - first] + places, noisy, strict=True))
    return [value for value, _ in shown], np.array([count for _, count in shown], dtype=np.int64)
