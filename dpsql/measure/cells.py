"""L B x of one state of the tables: the scans of a job, added up by cell. Exact values live in these frames alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeAlias

import numpy as np

from dpsql.common.arrays import Json
from dpsql.engines.base import Engine, Scanning, TableSource
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.measure.counts_over_same_rows import ENTRY, Bounded, Materialize
from dpsql.measure.reading import scans_of, units_of
from dpsql.measure.row_by_row import counted, pieces
from dpsql.measure.scan_sql import KEPT, WORD
from dpsql.measure.unchanged import opened
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.measures import Measure

Scan: TypeAlias = "dict[str, np.ndarray]"

KEEPING = FileEngine | ConnectionEngine
"""Engines that can keep rows for later scans."""


class Scanned(Protocol):
    """What scans need of a job, of whatever kind it is."""

    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def schemas(self) -> Mapping[str, Mapping[str, str]]: ...
    @property
    def sources(self) -> Mapping[str, TableSource]: ...
    @property
    def description(self) -> Json: ...


class Multiplied(Scanned, Protocol):
    """A job that measures integers times x."""

    @property
    def integers(self) -> Integers: ...
    @property
    def common_steps(self) -> int: ...


def observed(job: Multiplied, engine: Engine, noise: list[int]) -> list[int]:
    """y = L B x + noise; the exact vector dies with this frame."""
    # COUNT(*) is a BIGINT, and an entry of x moves by at most L for a row.
    exact = job.integers.times(cells_of(job, engine).tolist(), 63 + job.common_steps.bit_length())
    return [value + z for value, z in zip(exact, noise, strict=True)]


def cells_of(job: Multiplied, engine: Engine) -> np.ndarray:
    """L x, by the scans of a release."""
    x = np.zeros(job.integers.shape[1], dtype=object)
    scans, by_id = scans_of(job.layouts, keeps=isinstance(engine, KEEPING)), dict[int, Bounded]()
    with opened_for(engine, job) as (open_engine, materialize):
        for scan in scans:
            if scan.rows:
                for layout, sums in counted(scan, pieces(open_engine, materialize(scan.scan(job.sources)))):
                    add(x, layout, sums, job.common_steps)
                continue
            together, units = scan.layout.together, None
            if together is not None:
                units = by_id.get(id(together)) or units_of(scan.layout, job.sources, materialize)
                by_id[id(together)] = units
            result = _inside(open_engine.scan(scan.scan(job.sources, units)), scan.layout)
            for layout, columns in scan.parts:
                add(x, layout, {name: result[column] for name, column in columns.items()}, job.common_steps)
    return x


@contextmanager
def opened_for(engine: Engine, job: Scanned) -> Iterator[tuple[Scanning, Materialize]]:
    """The engine, opened once for all scans where it can be, and what it keeps for later ones meanwhile."""
    if not isinstance(engine, KEEPING):
        yield engine, lambda scan: scan
        return
    names = (table for layout in job.layouts for table in layout.source.tables)
    with opened(engine, names, job.sources, job.schemas) as open_engine, ExitStack() as stack:
        yield open_engine, lambda scan: stack.enter_context(open_engine.materialized(scan))


def _inside(columns: Scan, layout: Layout) -> Scan:
    """What a scan for several layouts found, less the groups without a region on some axis."""
    keys = [column for name, column in columns.items() if name == KEPT or name.startswith("a")]
    if layout.every is None or not keys:
        return columns
    inside = np.logical_and.reduce([np.asarray(column) >= 0 for column in keys])
    return {name: np.asarray(column, dtype=np.int64)[inside] for name, column in columns.items()}


def add(x: np.ndarray, layout: Layout, columns: Scan, common: int) -> None:
    """Add one table's scan to x, in units of 1/L: L per row, L / steps per half step of a measure."""
    if "n" not in columns:
        # A column for each entry.
        at = np.array([int(name.removeprefix(ENTRY)) for name in columns])
        _add_at(x, at, np.array([column[0] for column in columns.values()], dtype=np.int64), common)
        return
    counts = np.asarray(columns["n"], dtype=np.int64)
    if layout.source.distinct or layout.together is not None:
        # The scan found the entries itself.
        at = np.asarray(columns["a0"], dtype=np.int64)
        if layout.source.added is None:
            _add_at(x, at, counts, common)
        else:
            _add_sums(x, at, layout.measures[0], (columns["s0_low"], columns["s0_high"], counts), common)
        return
    regions = [np.asarray(columns[f"a{i}"], dtype=np.int64) for i in range(len(layout.cells.axes))]
    cell = layout.cells.locate(regions) if regions else np.zeros(len(counts), dtype=np.int64)
    if layout.boxes is not None:
        # A row is counted by every block that holds for it, each in an entry of its own.
        inside = cell >= 0
        for entry, total in zip(layout.entry[:, 0], layout.boxes.totals(cell[inside], counts[inside]), strict=True):
            x[entry] += common * total
        return
    inside = (cell >= 0) & (cell < len(layout.cells))
    if KEPT in columns:
        inside &= np.asarray(columns[KEPT], dtype=np.int64) >= 0
    if not inside.all():
        cell, counts = cell[inside], counts[inside]
    _add_at(x, layout.entry[0][cell], counts, common)
    inner = {name: np.asarray(column, dtype=np.int64)[inside] for name, column in columns.items()}
    for number, measure_ in enumerate(layout.measures):
        if measure_.steps:
            sums = inner[f"s{number}_low"], inner[f"s{number}_high"], counts
            _add_sums(x, layout.entry[number + 1][cell], measure_, sums, common)


def _add_sums(
    x: np.ndarray, at: np.ndarray, measure_: Measure, sums: tuple[object, object, object], common: int
) -> None:
    """Add the sums of a measure to x[at], of u = z' + steps: their low words, high words, and numbers of rows."""
    unit = common // measure_.steps
    for column, by in zip(sums, (unit, unit * WORD, -unit * measure_.steps), strict=True):
        _add_at(x, at, np.asarray(column, dtype=np.int64), by)


def _add_at(x: np.ndarray, at: np.ndarray, values: np.ndarray, unit: int) -> None:
    """x[at] += unit * values where at >= 0; words are summed as 32-bit halves, which cannot overflow."""
    read = at >= 0
    at, values = at[read], values[read]
    if not at.size:
        return
    first = int(at.min())  # one layout of many fills a short stretch of x
    at = at - first
    few = values.size < 2**20  # sums of so many 32-bit halves are exact in floats
    for shift, half in ((0, values & (WORD - 1)), (32, values >> 32)):
        if not half.any():
            continue
        if few:
            total = np.bincount(at, weights=half).astype(np.int64)
        else:
            total = np.zeros(int(at.max()) + 1, dtype=np.int64)
            np.add.at(total, at, half)
        used = np.flatnonzero(total)
        if used.size:
            x[first + used] += total[used].astype(object) * (unit << shift)
