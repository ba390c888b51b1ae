"""The private side of a local release: rows read, randomised one by one, and recorded.

Neighbouring relation: *replace* the released values of the rows of one privacy unit; how many rows there are, how many
each unit has, and the columns that the policy declares public, are the same in both and public. So it protects what
the rows say, not that they are there.

Guarantee. Every row that counts is one of k combinations of categories x (the extension ``local``; a
total function of the row, so that nothing fails), and what is released of it is x kept or replaced by one of the k - 1
others (``dpsql.privacy.response``, where keep/lie <= e^epsilon is proved in exact fractions). Rows are randomised
independently, and at most ``limit`` rows of a unit count. Which, the public columns that are kept decide
(``dpsql.measure.from_sql``), and values only among rows of one unit that are equal in all of these. So neighbours have
as many remaining rows of each unit and public columns, which match one to one: the probability of any outcome changes
by at most e^(limit * epsilon), which is what is charged.

What is recorded is the multiset of (public columns, randomised combination): rows are sorted by what is released of
them, and the order in which a table holds its rows, which may follow from private values, is gone.

Order: the charge is committed, the rows are counted (a public number), all lies are drawn, then one generated
statement without WHERE reads the rows, then the randomised rows are committed to the ledger in the transaction that
marks them released. A crash at any step leaves the charge and shows nothing. Offsets are drawn once for a charge and
live in this process only, so that no row is randomised twice under one charge, and the ledger holds one release of a
column (``dpsql.privacy.ledger_checks.check_once``). Exact combinations live in the frames of ``_observe`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpsql.common.arrays import Array, Json, Values
from dpsql.engines.base import Engine, Opening, Scan, Scanning, TableSource
from dpsql.engines.rehearsal import passes_rehearsal
from dpsql.errors import InternalError, OperationalError
from dpsql.measure.from_sql import rows_of
from dpsql.measure.region_sql import region
from dpsql.measure.unchanged import checked_tables, opened
from dpsql.policy import TablePolicy
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.response import Codes, Response
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.scan import Column, Relation, Select, Table, same
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import Cast, CountRows, Name

Ids = tuple[Array, ...]
"""The public columns of the rows, an array each."""

FAILED = (
    "the local release failed; details may depend on private data and are not shown. "
    "What was charged stays charged; check memory and disk, then release again"
)


@dataclass(frozen=True)
class ReleasedColumn:
    """A column that is randomised: the region of a value in the scan, and the category that the region is.

    ``category`` (regions + 1,): the last one is that of a value without a region (-1).
    """

    axis: LineAxis
    category: NDArray[np.int64] = field(repr=False)
    size: int

    def __post_init__(self) -> None:
        category = self.category
        if len(category) != self.axis.size + 1 or not 0 <= int(category.min()) <= int(category.max()) < self.size:
            raise InternalError(f"{self.axis.column}: a region has no category")


@dataclass(frozen=True)
class LocalJob:
    """Everything public that a local release needs, fixed before any data are read.

    ``ids`` are (name, type) of the public columns that are kept. The charge pays ``source.limit`` times the epsilon of
    ``response``: checked here.
    """

    columns: tuple[ReleasedColumn, ...]
    ids: tuple[tuple[str, str], ...]
    response: Response
    charge: Charge
    source: RowSource
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Json = field(repr=False)
    label: str = ""
    aside, charge_id, failed = None, "", FAILED

    def __post_init__(self) -> None:
        if prod(column.size for column in self.columns) != self.response.domain_size:
            raise InternalError("the response is over another number of combinations than the columns have")
        rows = 1 if self.source.unit is None else self.source.limit
        if self.charge.noise != "response" or self.charge.epsilon != self.response.unit_epsilon(rows):
            raise InternalError("the charge does not pay for the rows that a unit may have")

    @property
    def scans(self) -> tuple[Scan, Scan]:
        """The rows that count, and their number."""
        columns: list[Column] = [(f"a{at}", region(column.axis, {})) for at, column in enumerate(self.columns)]
        columns += [(f"i{at}", Name(name, BASE)) for at, (name, _) in enumerate(self.ids)]
        rows: Relation = Table(self.source.table)
        if not self.source.plain:
            rows = rows_of(self.source, (), columns, public=[f"i{at}" for at in range(len(self.ids))])
            columns = list(same(*(name for name, _ in columns)))
        tables = tuple(self.sources[name] for name in self.source.tables)
        selects = Select(tuple(columns), rows), Select((("n", CountRows()),), rows)
        axes = tuple(((column.axis.column,), column.axis) for column in self.columns)
        every, count = (Scan(self.source.table, tables, select, axes) for select in selects)
        return every, count

    @property
    def reads(self) -> Mapping[str, TableSource]:
        """The sources of the tables that are read."""
        return {name: self.sources[name] for name in self.source.tables}

    def check(self, engine: Opening, _: Ledger) -> None:
        """Hold the job against the tables' types and what the engine can run."""
        tables = checked_tables(engine, self.source.tables, self.sources, self.schemas, "since; try again")
        if tables is not None:
            tables.check(self.scans[0])
        elif not all(passes_rehearsal(scan, self.schemas) for scan in self.scans):
            raise InternalError(
                "DuckDB cannot run this local release on generated rows; report the policy and the columns (nothing "
                "was charged)"
            )

    def observe(self, engine: Opening) -> tuple[Codes, Ids]:
        """The randomised combinations (n,) and the public columns beside them, in an order that follows from them.

        Of one state of the tables: the number of rows, the lies and the rows, in this order.
        """
        with opened(engine, self.source.tables, self.sources, self.schemas) as open_engine:
            return _observe(self, open_engine, self.response.sample(_count(self, open_engine)))


def _count(job: LocalJob, engine: Scanning) -> int:
    """How many rows are randomised: public, by the policy."""
    return int(engine.scan(job.scans[1])["n"][0])


def _observe(job: LocalJob, engine: Scanning, offsets: Codes) -> tuple[Codes, Ids]:
    """The randomised combinations of all rows and their public columns, in an order that follows from these.

    Exact combinations, and the order of the table, die with this frame.
    """
    columns: dict[str, Array] = engine.scan(job.scans[0])
    codes = np.zeros(offsets.size, dtype=np.int64)
    for at, column in enumerate(job.columns):
        places = column.category[columns.pop(f"a{at}")]
        if places.shape != codes.shape:
            raise OperationalError(
                f"the number of rows of {job.source.table} changed while they were read. What was charged stays "
                "charged; release again when nobody writes"
            )
        codes *= column.size
        codes += places
    ids = tuple(columns[f"i{at}"] for at in range(len(job.ids)))
    return _in_order(job.response.shifted(codes, offsets), ids)


def _in_order(codes: Codes, ids: Ids) -> tuple[Codes, Ids]:
    """The rows by their public columns, then by their randomised combination; NULL is last."""
    if not ids:
        most = int(codes.max(initial=-1)) + 1
        if most > 4 * codes.size + 1_000_000:
            return np.sort(codes), ids
        return np.repeat(np.arange(most), np.bincount(codes, minlength=most)), ids  # a counting sort
    keys: list[Array] = [codes]
    for column in reversed(ids):
        null = np.ma.getmaskarray(column)
        values = np.ma.getdata(column)
        if values.dtype.kind == "O":
            values = np.where(null, "", values).astype(str)
        # Values may stand under a mask: they are no part of the column.
        keys += [np.where(null, np.zeros(1, values.dtype), values), null]
    order = np.lexsort(keys)
    return codes[order], tuple(column[order] for column in ids)


def public_rows(engine: Engine, table: TablePolicy, source: TableSource, columns: Mapping[str, str]) -> list[Values]:
    """The values of ``columns`` (name -> DuckDB type) of a public table, as text, None for NULL, in order.

    Text that DuckDB casts back to the same values. InternalError for a private table, before it is read.
    """
    if not table.public:
        raise InternalError(f"{table.name} is private; only public tables are read without a charge")
    if not columns:
        return []
    listed = tuple((f"c{at}", Cast(Name(name, BASE), "VARCHAR", bare=True)) for at, name in enumerate(columns))
    scan = Scan(source.name, (source,), Select(listed, Table(source.name)))
    result: dict[str, Array] = engine.scan(scan)
    return [np.ma.array(result[f"c{at}"]).tolist() for at in range(len(columns))]
