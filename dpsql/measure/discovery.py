"""The values of a column, found by a private scan: counted by DuckDB, decided in bulk, shown above a threshold.

Neighbours, what is counted and the guarantee: ``dpsql.privacy.threshold``. In a table of single rows every row is a
unit, which has one value. Else the pairs of a unit and a value are counted, each once, and of a unit at most
``groups``: those with the least hash of both, then the least values, so that they are a function of the unit's own
rows. A NULL is no value, nor is a text of more than ``LONGEST`` bytes, and a row without a unit is no unit that could
be counted.

The table is read once where the engine can keep the counts, and two statements read these. The first counts how many
values have each count, the second reads the values whose count is at least the least that passed with its noise. So
values far below the threshold never leave the engine, nor does any value become an object before it is known that one
of its count is shown. Values of one count have their noise in the order of their text: the draws are independent, so
that any order which does not look at them is right.

Spark counts anew for the second statement. It draws nothing: noise is made here, of all values, from how many have each
count, so that a task that is tried again changes nothing. Where the rows changed in between, the counts that are read
are not those that had noise: that is noticed, and the discovery fails.

Values of a public universe (``PureThreshold``): the texts whose noise passes by itself are drawn before anything is
read, and the others are decided as above.

Order: the charge is committed, then the rows are read, then noise is drawn, for as many values as there are, then the
outcome is committed (``dpsql.measure.measure``). Noise cannot be drawn before: how many values there are is private. So
the time that a discovery takes tells roughly how many values a column has (docs/discover.md). Exact counts live in the
frames of ``DiscoveryJob.observe`` alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpsql.common.arrays import Json
from dpsql.engines.base import Opened, Opening, Scan, TableSource
from dpsql.engines.rehearsal import passes_rehearsal
from dpsql.errors import InternalError, OperationalError, RequestError
from dpsql.measure.from_sql import pairs_of
from dpsql.measure.unchanged import checked_tables, opened
from dpsql.policy.types import column_type
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.pure_threshold import PureThreshold
from dpsql.privacy.threshold import Integers, Passed, Threshold
from dpsql.privacy.universe import Universe
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.scan import Select, same
from dpsql.workloads.expr.total import Once, read_once

VALUE, ROWS = "value", "n"
LONGEST = 2**21
"""Bytes of a text that is a value; of a longer one, one row could fill the memory and so decide the outcome."""
MOST_SHOWN = 1_000_000
"""The most values that a column may have by a policy."""

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
    charge_id, failed = "", FAILED

    def __post_init__(self) -> None:
        groups, charge = self.law.groups, self.charge
        paid = charge.mu_squared if charge.noise == "gaussian" else charge.epsilon
        if (charge.noise, paid, charge.delta) != (self.law.kind, self.law.parameter, self.law.delta):
            raise InternalError("the charge does not pay for the threshold")
        if groups < 1 or (self.source.unit is None and groups != 1):
            raise InternalError("a unit of one row has one value")

    def counted(self) -> Select:
        """The values with the number of units that have each: ``VALUE``, NULL in one row of them, and ``ROWS``."""
        rows = pairs_of(self.source, self._once(), self.column.type, self.law.groups)
        return Select((*same(VALUE), (ROWS, tree.CountRows())), rows, group_by=1)

    def _once(self) -> Once:
        """The value of a row, NULL for what is no value."""
        once, value = read_once(self.column, self.line, VALUE), tree.Name(VALUE)
        if isinstance(self.law, PureThreshold):
            tests = _within(self.law.universe)
        elif column_type(self.column.type).kind == "text":
            tests = [_at_most(value, LONGEST)]
        else:
            return once
        return replace(once, then=tree.Guarded(tree.Every(tuple(tests)), once.then or value))

    def scan(self, select: Select) -> Scan:
        """A scan of the job's tables."""
        return Scan(self.source.table, tuple(self.sources[name] for name in self.source.tables), select)

    def histogram(self, counted: Scan) -> Scan:
        """How many values have each count; "missing" is 1 for NULL, which is none."""
        missing = tree.Truth(tree.IsNull(tree.Name(VALUE), negated=True))
        keys = (*same(ROWS), ("missing", missing), ("number", tree.CountRows()))
        return replace(counted, select=Select(keys, counted.select, group_by=2))

    def values_from(self, least: int, counted: Scan) -> Scan:
        """The values of which at least so many units have each, as text, and how many."""
        text, is_value = tree.Cast(tree.Name(VALUE), "VARCHAR", bare=True), tree.IsNull(tree.Name(VALUE), negated=True)
        at_least = tree.Compared(tree.Name(ROWS), ">=", tree.whole(least))
        columns = ((VALUE, text), *same(ROWS))
        return replace(counted, select=Select(columns, counted.select, where=tree.Every((at_least, is_value))))

    def scans(self) -> tuple[Scan, Scan]:
        """What is read of the counts, as it is checked before a charge."""
        scan = self.scan(self.counted())
        return self.histogram(scan), self.values_from(1, scan)

    @property
    def reads(self) -> Mapping[str, TableSource]:
        """The sources of the tables that are read."""
        return {name: self.sources[name] for name in self.source.tables}

    def check(self, engine: Opening, _: Ledger) -> None:
        """Hold the job against the tables' types and what the engine can run. NotSupportedError where it cannot."""
        tables = checked_tables(engine, self.source.tables, self.sources, self.schemas, "since; try again")
        for scan in self.scans():
            if tables is not None:
                tables.check(scan)
            elif not passes_rehearsal(scan, self.schemas):
                raise InternalError(
                    "DuckDB cannot run this discovery on generated rows; report the policy and the column (nothing "
                    "was charged)"
                )

    def observe(self, engine: Opening) -> Found:
        """The values that pass and their noisy counts; exact counts die with this frame and those that it calls."""
        with opened(engine, self.source.tables, self.sources, self.schemas) as open_engine:
            if isinstance(self.law, PureThreshold):
                return _in_universe(self, self.law, open_engine)
            with open_engine.materialized(self.scan(self.counted())) as counted:
                return _decided(self, counted, open_engine)


def _at_most(text: tree.Value, size: int) -> tree.Test:
    return tree.Compared(tree.bare("strlen", text), "<=", tree.whole(size))


def _within(universe: Universe) -> list[tree.Test]:
    """Whether ``VALUE`` is a text of the universe: nothing is left of it without the characters that it may have."""
    value = tree.Name(VALUE)
    tests = [_at_most(value, universe.longest)]
    if universe.alphabet is not None:
        left = tree.bare("trim", value, tree.Constant(universe.alphabet, "VARCHAR"), type="VARCHAR")
        tests.append(_at_most(left, 0))
    return tests


def _of(counted: Scan, texts: Collection[str], *, only: bool) -> Scan:
    """The counts of these texts alone, or of all others."""
    value = tree.Binary(tree.Name(VALUE))
    tests = tuple(tree.Compared(value, "=" if only else "<>", tree.Constant(text, "VARCHAR")) for text in texts)
    where = tree.Some(tests) if only else tree.Every(tests)
    return replace(counted, select=Select(same(VALUE, ROWS), counted.select, where=where))


def set_aside(ledger: Ledger, aside: tuple[Charge, Json]) -> None:
    """Keep a part of delta for thresholds, at its price (``dpsql.privacy.reserve``). BudgetError once that is late."""
    ledger.charge(aside[0], secrets.token_hex(16), aside[1])


def _in_universe(job: DiscoveryJob, law: PureThreshold, open_engine: Opened) -> Found:
    """The texts that pass and their noisy counts: those that pass whatever their count is, and the others."""
    alone = law.alone()
    with open_engine.materialized(job.scan(job.counted())) as counted:
        if not alone:
            return _decided(job, counted, open_engine)
        values, shown = _decided(job, _of(counted, alone, only=False), open_engine)
        read: Json = open_engine.scan(job.values_from(1, _of(counted, alone, only=True)))
    have = dict(zip(_texts(read), np.asarray(read[ROWS]).tolist(), strict=True))
    noisy = dict(zip(values, shown.tolist(), strict=True)) | {text: have.get(text, 0) + z for text, z in alone.items()}
    values = sorted(noisy)
    return values, np.array([noisy[value] for value in values], dtype=np.int64)


def _decided(job: DiscoveryJob, counted: Scan, open_engine: Opened) -> Found:
    """The values that pass, and their noisy counts."""
    histogram: Json = open_engine.scan(job.histogram(counted))
    present = np.asarray(histogram["missing"]) == 0
    counts, sizes = np.asarray(histogram[ROWS])[present], np.asarray(histogram["number"])[present]
    order = np.argsort(counts)
    counts, sizes = counts[order], sizes[order]
    which, places, noisy = job.law.passed(counts, sizes)
    if not len(noisy):
        return [], np.empty(0, dtype=np.int64)
    if len(noisy) > MOST_SHOWN:
        raise RequestError(MANY)
    read: Json = open_engine.scan(job.values_from(int(counts[which.min()]), counted))
    return _named(read, counts, sizes, (which, places, noisy), job.source.table)


def _texts(read: Json) -> list[str | None]:
    """The values, None for what is no text."""
    texts: list[str | None] = np.ma.array(read[VALUE]).tolist()
    return texts


def _named(read: Json, counts: Integers, sizes: Integers, passed: Passed, table: str) -> Found:
    """The values behind classes and places, in binary order of their text; what is no text has no name."""
    which, places, noisy = passed
    numbers = np.asarray(read[ROWS]).tolist()
    ordered = sorted(zip(numbers, _texts(read), strict=True), key=lambda pair: (pair[0], pair[1] or ""))
    first = int(which.min())
    starts = np.cumsum(sizes[first:]) - sizes[first:]
    same_rows = [number for number, _ in ordered] == np.repeat(counts[first:], sizes[first:]).tolist()
    if not same_rows:
        raise OperationalError(
            f"the rows of {table} changed while they were read. What was charged stays charged; try again when "
            "nobody writes"
        )
    texts = [ordered[at][1] for at in starts[which - first] + places]
    shown = sorted((text, count) for text, count in zip(texts, noisy.tolist(), strict=True) if text is not None)
    return [text for text, _ in shown], np.array([count for _, count in shown], dtype=np.int64)
