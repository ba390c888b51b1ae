"""L B x of one state of the tables: the scans of a job, added up by cell. Exact values live in these frames alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeAlias

import numpy as np

from dpsql.common.arrays import Json
from dpsql.engines.base import Engine, Scanning, TableSource
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.measure.counts_over_same_rows import ENTRY, Keep, Kept
from dpsql.measure.reading import kept_together, scans_of
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
    scans, known = scans_of(job.layouts, keeps=isinstance(engine, KEEPING)), dict[int, Kept]()
    with opened_for(engine, job) as (held, keep):
        for scan in scans:
            if scan.rows:
                for layout, sums in counted(scan, pieces(held, keep(scan.scan(job.sources)))):
                    add(x, layout, sums, job.common_steps)
                continue
            together, kept = scan.layout.together, None
            if together is not None:
                kept = known.get(id(together)) or kept_together(scan.layout, job.sources, keep)
                known[id(together)] = kept
            found = _inside(held.scan(scan.scan(job.sources, kept)), scan.layout)
            for layout, columns in scan.parts:
                add(x, layout, {name: found[column] for name, column in columns.items()}, job.common_steps)
    return x


@contextmanager
def opened_for(engine: Engine, job: Scanned) -> Iterator[tuple[Scanning, Keep]]:
    """The engine, opened once for all scans where it can be, and what it keeps for later ones meanwhile."""
    if not isinstance(engine, KEEPING):
        yield engine, lambda asked: asked
        return
    names = (table for layout in job.layouts for table in layout.source.tables)
    with opened(engine, names, job.sources, job.schemas) as held, ExitStack() as stack:
        yield held, lambda asked: stack.enter_context(held.kept(asked))


def _inside(found: Scan, layout: Layout) -> Scan:
    """What a scan for several layouts found, less the groups without a region on some axis."""
    keys = [column for name, column in found.items() if name == KEPT or name.startswith("a")]
    if layout.every is None or not keys:
        return found
    inside = np.logical_and.reduce([np.asarray(column) >= 0 for column in keys])
    return {name: np.asarray(column, dtype=np.int64)[inside] for name, column in found.items()}


def add(x: np.ndarray, layout: Layout, found: Scan, common: int) -> None:
    """Add one table's scan to x, in units of 1/L: L per row, L / steps per half step of a measure."""
    if "n" not in found:
        # A column for each entry.
        at = np.array([int(name.removeprefix(ENTRY)) for name in found])
        _add_at(x, at, np.array([column[0] for column in found.values()], dtype=np.int64), common)
        return
    counts = np.asarray(found["n"], dtype=np.int64)
    if layout.source.distinct or layout.together is not None:
        # The scan found the entries itself.
        at = np.asarray(found["a0"], dtype=np.int64)
        if layout.source.added is None:
            _add_at(x, at, counts, common)
        else:
            _add_sums(x, at, layout.measures[0], (found["s0_low"], found["s0_high"], counts), common)
        return
    regions = [np.asarray(found[f"a{i}"], dtype=np.int64) for i in range(len(layout.cells.axes))]
    cell = layout.cells.locate(regions) if regions else np.zeros(len(counts), dtype=np.int64)
    if layout.boxes is not None:
        # A row is counted by every block that holds for it, each in an entry of its own.
        inside = cell >= 0
        for entry, total in zip(layout.entry[:, 0], layout.boxes.totals(cell[inside], counts[inside]), strict=True):
            x[entry] += common * total
        return
    inside = (cell >= 0) & (cell < len(layout.cells))
    if KEPT in found:
        inside &= np.asarray(found[KEPT], dtype=np.int64) >= 0
    if not inside.all():
        cell, counts = cell[inside], counts[inside]
    _add_at(x, layout.entry[0][cell], counts, common)
    held = {name: np.asarray(column, dtype=np.int64)[inside] for name, column in found.items()}
    for number, measure_ in enumerate(layout.measures):
        if measure_.steps:
            sums = held[f"s{number}_low"], held[f"s{number}_high"], counts
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
    kept = at >= 0
    at, values = at[kept], values[kept]
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
