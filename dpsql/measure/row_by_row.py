"""Many histograms over the same rows: the regions of the rows are read once, and counted here piece by piece.

A statement for each of thousands of histograms, or for a few of them together, groups all rows anew. A row that is
counted here adds to one entry of each histogram, in a nanosecond or two whatever it holds. Counts and sums are those
of the statements: rows that do not count are left out, and sums are of the words of whole numbers.

The engine keeps the regions of all rows meanwhile, a byte or two for each axis, on disk where memory is short; they are
read by where a row stands in what is kept, never by a value. What is read here is as private as a table, and the
frames of ``dpsql.measure`` alone hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from dpsql.common.arrays import Array, Ints
from dpsql.engines.base import Scan, Scanning
from dpsql.measure.reading import Reading
from dpsql.measure.scan_sql import KEPT, WORD
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.values import Compared, CountRows, Every, Gathered, Name, long

PIECE = 2**17
"""Rows of one piece: sums of so many words of 32 bits are exact in floats."""


def pieces(open_engine: Scanning, stored: Scan) -> Iterator[Mapping[str, Array]]:
    """The rows of a table that DuckDB keeps, each once."""
    (table,) = stored.tables
    source, row = Table(table.name), Name("rowid")
    ends = (("n", CountRows()), ("low", Gathered("min", row)), ("high", Gathered("max", row)))
    rows, low, high = (column[0] for column in open_engine.scan(replace(stored, select=Select(ends, source))).values())
    for start in range(int(low), int(high) + 1, PIECE) if rows else ():
        within = Compared(row, ">=", long(start)), Compared(row, "<", long(start + PIECE))
        yield open_engine.scan(replace(stored, select=Select((), source, where=Every(within))))


def counted(reading: Reading, rows: Iterable[Mapping[str, Array]]) -> Iterator[tuple[Layout, dict[str, Ints]]]:
    """Each layout of a reading of rows, with the columns of a scan by its axes alone: a row for each of its cells.

    ``rows`` are ``pieces`` of what it scans. Cost: rows x layouts, and memory for the cells of all layouts.
    """
    tallies = [_Tally(layout, columns) for layout, columns in reading.parts]
    for piece in rows:
        matching = np.asarray(piece[KEPT]) >= 0
        columns = {name: np.asarray(column)[matching] for name, column in piece.items()}
        regions = {name: column.astype(np.int32) for name, column in columns.items() if name.startswith("a")}
        first: tuple[str, ...] = ()
        code = np.zeros(np.count_nonzero(matching), dtype=np.int32)
        for tally in tallies:
            if tally.names[:-1] != first:  # histograms that follow each other often differ in the last axis alone
                first, code = tally.names[:-1], np.zeros(len(code), dtype=np.int32)
                for name, size in zip(first, tally.shape, strict=False):
                    code = code * np.int32(size) + regions[name]
            tally.add(code * np.int32(tally.shape[-1]) + regions[tally.names[-1]] if tally.names else code, columns)
    places: dict[tuple[int, ...], dict[str, Ints]] = {}
    for tally in tallies:
        if tally.shape not in places:
            regions_of_cells = np.unravel_index(np.arange(len(tally.layout.cells)), tally.shape) if tally.shape else ()
            places[tally.shape] = {f"a{number}": place for number, place in enumerate(regions_of_cells)}
        yield tally.layout, {**places[tally.shape], **tally.sums}


class _Tally:
    """What is counted for one layout: ``names`` are the columns of its axes, the last fastest."""

    def __init__(self, layout: Layout, columns: Mapping[str, str]) -> None:
        assert isinstance(layout.cells, Grid)  # noqa: S101 - rows are read for histograms alone
        self.layout, self.shape = layout, layout.cells.shape
        self.names = tuple(columns[f"a{number}"] for number in range(len(self.shape)))
        self.values = [f"u{layout.whole.measures.index(measure)}" for measure in layout.measures]
        words = [f"s{number}_{half}" for number in range(len(self.values)) for half in ("low", "high")]
        self.sums = {name: np.zeros(len(layout.cells), dtype=np.int64) for name in ("n", *words)}

    def add(self, cell: Array, rows: Mapping[str, Array]) -> None:
        """Add rows of cells ``cell``, of which ``rows`` has what is summed."""
        size = len(self.layout.cells)
        self.sums["n"] += np.bincount(cell, minlength=size)
        for number, name in enumerate(self.values):
            for half, word in (("low", rows[name] & (WORD - 1)), ("high", rows[name] >> 32)):
                self.sums[f"s{number}_{half}"] += np.bincount(cell, weights=word, minlength=size).astype(np.int64)
