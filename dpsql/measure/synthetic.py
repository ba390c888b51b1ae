"""Measurement of generated rows without noise and without a charge: for the audit, over its own engine only.

The exact vector of a private table exists in ``dpsql.measure.cells`` alone. Of rows that the audit made up it may be
seen: that is what brute force compares. Nothing here takes any engine but ``SyntheticEngine``.

An engine over generated rows alone, for the audit: exact values of it are nobody's.

Its database lives in memory and is made here, so that no file and no connection of a user can stand
behind it. It runs the very statements that the other engines run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
from scipy import sparse

from dpsql import measure as room
from dpsql.common.arrays import Csr, Matrix
from dpsql.engines import duckdb as real
from dpsql.engines.base import IntArray, Scan, TableSource
from dpsql.engines.schemas import schema_of
from dpsql.errors import InternalError
from dpsql.measure import cells
from dpsql.measure.adaptive import AdaptiveJob, Step, _rounds
from dpsql.measure.cells import Multiplied
from dpsql.measure.job import Job
from dpsql.measure.reading import scan_of
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import select_text
from dpsql.workloads.expr.values import Name


def _in_memory() -> duckdb.DuckDBPyConnection:
    # One thread: these tables have a few rows, and threads cost more than they save.
    return duckdb.connect(":memory:", config={"threads": 1, "python_enable_replacements": "false"})


@dataclass(frozen=True, eq=False)
class SyntheticEngine:
    """Tables of generated rows. ``connection`` is its own, to create and fill them.

    Scans run on that connection itself, so that rows of a transaction still open are seen: two neighbouring
    databases are one ROLLBACK apart. Column types are read once.
    """

    connection: duckdb.DuckDBPyConnection = field(default_factory=_in_memory, init=False, repr=False)
    _schemas: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table."""
        for source in sources:
            if source.name not in self._schemas:
                self._schemas[source.name] = schema_of(self.connection, source, "memory")
        return {source.name: self._schemas[source.name] for source in sources}

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        return real._scan(self.connection, scan, "memory")


@dataclass(frozen=True, eq=False)
class StillEngine:
    """Remembers the scans of ``engine``, whose tables do not change: a second measurement costs its noise alone."""

    engine: SyntheticEngine
    _seen: dict[str, dict[str, IntArray]] = field(default_factory=dict, init=False, repr=False)

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """The schemas of the engine behind it."""
        return self.engine.schemas(sources)

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """As the engine behind it, once for each statement."""
        key = select_text(scan.select, {table.name: table.name for table in scan.tables})
        if key not in self._seen:
            self._seen[key] = self.engine.scan(scan)
        return self._seen[key]


__all__ = [
    "StillEngine",
    "SyntheticEngine",
    "exact",
    "exact_of_many",
    "noisy",
    "selections_of",
    "transcript_of",
    "with_pure_noise",
]

_BITS = 512


def exact(job: Multiplied, engine: SyntheticEngine) -> list[int]:
    """L B x of the generated rows, without noise. Raises OperationalError where a scan fails."""
    _check(engine)
    return cells.observed(job, engine, [0] * job.integers.shape[0])


def exact_of_many(job: Multiplied, layout: Layout, engine: SyntheticEngine, table: str, copies: int) -> list[list[int]]:
    """L x of ``copies`` versions of one plain table, in one scan.

    ``table`` has the columns of ``layout``'s table and an INTEGER column ``dpsql_copy`` that says which of the
    versions (from 0) a row is in.
    """
    _check(engine)
    if not layout.source.plain:
        raise InternalError(f"{layout.table}: only a table of single rows can be scanned in several copies")
    copy = Name("dpsql_copy", BASE)
    columns = engine.scan(scan_of(layout, {layout.table: TableSource(table)}, (copy.name, copy)))
    order = np.argsort(columns[copy.name], kind="stable")
    bounds = np.searchsorted(columns[copy.name][order], np.arange(copies + 1))
    out = []
    for start, stop in pairwise(bounds.tolist()):
        x = np.zeros(job.integers.shape[1], dtype=object)
        mine = order[start:stop]
        cells.add(x, layout, {name: column[mine] for name, column in columns.items()}, job.common_steps)
        out.append(x.tolist())
    return out


def measured_change(job: Multiplied, change: list[int]) -> list[int]:
    """B times a change of L x, in Python integers."""
    return job.integers.times(change, _BITS)


class _Granted:
    """Stands where the ledger stands: the audit's measurements are of nobody and cost nothing."""

    def charge(self, *_: object, **__: object) -> int:
        return 1

    def record(self, *_: object) -> None:
        return None

    def failed_scans(self) -> dict[str, object]:
        return {}


def noisy(
    job: Job,
    engine: SyntheticEngine | StillEngine,
    ledger: Any = None,
    *,
    before_scan: Callable[[], None] | None = None,
) -> list[int]:
    """One noisy measurement of the generated rows, by ``measure`` itself.

    ``ledger`` grants everything if not given; ``before_scan`` is called before every scan, and may raise.
    """
    _check(engine.engine if isinstance(engine, StillEngine) else engine)
    watched = engine if before_scan is None else _Watched(engine, before_scan)
    granting: Any = ledger or _Granted()
    return room.measure(job, watched, granting, lambda _, __: b"")[1]


def transcript_of(job: AdaptiveJob, exact: Sequence[int]) -> list[int]:
    """A run in rounds over exact candidates (1 + m,) of generated rows."""
    return _rounds(job, exact)


def selections_of(job: AdaptiveJob, step: Step, exact: Sequence[int], count: int) -> list[int]:
    """How often each candidate came in ``count`` draws of a step's selection, from generated rows."""
    law, scores = job.selection(step), job.scores(step, exact)
    counts = [0] * len(scores)
    for _ in range(count):
        counts[law.sample(scores)] += 1
    return counts


def noise_of(job: AdaptiveJob, count: int) -> list[int]:
    """``count`` draws of the noise of the first answer."""
    return job.noise.sample(count)


@dataclass(frozen=True)
class _Watched:
    engine: SyntheticEngine | StillEngine
    before_scan: Callable[[], None]

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        return self.engine.schemas(sources)

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        self.before_scan()
        return self.engine.scan(scan)


def with_pure_noise(job: Job, count: int) -> Job:
    """The job with ``count`` more measurements, all of nothing: rows of zeros, which no unit can move.

    Of noise in blocks they are as many blocks of the largest size as fit, the last of them rounded up.
    """
    if not job.blocks:
        return replace(job, integers=_WithZeros(job.integers, count))
    size = max(job.blocks)
    more = -(-count // size)
    return replace(job, integers=_WithZeros(job.integers, more * size, True), blocks=job.blocks + (size,) * more)


@dataclass(frozen=True, eq=False)
class _WithZeros:
    """Integers with ``count`` rows of zeros below them."""

    integers: Integers
    count: int
    below: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        p, n = self.integers.shape
        return p + self.count, n

    @property
    def written(self) -> tuple[Matrix, Csr] | None:
        """Those of the integers: rows of zeros move nothing, and stand below them for blocks alone."""
        factors = self.integers.written
        if factors is None or not self.below:
            return factors
        mixing = sparse.csr_array(factors[0])
        nothing = sparse.csr_array((self.count, mixing.shape[1]), dtype=np.int64)
        return sparse.csr_array(sparse.vstack([mixing, nothing], format="csr")), factors[1]

    def check(self) -> None:
        self.integers.check()

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        return [*self.integers.times(x, bits), *[0] * self.count]

    def norms(self, entry: IntArray) -> tuple[int, int]:
        return self.integers.norms(entry)

    def largest_norm(self, entry: IntArray, order: int) -> float:
        return self.integers.largest_norm(entry, order)

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        return self.integers.share_no_measurement(entries)

    def digest(self) -> str:
        return f"{self.integers.digest()} and {self.count} rows of zeros"


def _check(engine: object) -> None:
    if type(engine) is not SyntheticEngine:
        raise InternalError("exact values exist of generated rows only; the audit has an engine of its own")
