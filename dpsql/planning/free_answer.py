"""An answer that costs nothing, as it is told: which releases it comes from, and how far its numbers may be off."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.common.arrays import Floats, Json
from dpsql.linalg.lines import ByBlocks, ByLength
from dpsql.planning.figures import Columns, aligned, figure
from dpsql.planning.text import errors_text
from dpsql.reconstruct import RangeErrors
from dpsql.release import RangeTable, ResultTable

_FREE = "free, from "
_PARTS = ("stderr", "stderr_max", "half_width")


@dataclass(frozen=True)
class Free:
    """An answer from earlier releases: ``source`` names them, such as "releases 1, 2".

    ``columns``: a record a private column, as of ``Plan.rows``: result, column, numbers, stderr (root mean square),
    stderr_max, half_width (the largest distance of a number from an end of its interval); None where there is none.
    """

    source: str
    columns: tuple[Json, ...]

    @classmethod
    def of(cls, guarantee: str, release: int, tables: Sequence[ResultTable]) -> Free:
        """The answer ``tables`` of a release: of its own measurement, or of those that its guarantee names."""
        source = guarantee.removeprefix(_FREE) if guarantee.startswith(_FREE) else f"release {release}"
        return cls(source, tuple(record for table in tables for record in _records(table)))

    @property
    def provenance(self) -> str:
        """Who has the answers, as a sentence."""
        return f"{self.source} {'knows' if self.source.startswith('release ') else 'know'} the answers"

    @property
    def errors(self) -> str:
        """The standard error of every column in a few words."""
        return errors_text(self.columns) or "no error stands beside its numbers"

    def __str__(self) -> str:
        return f"free, as {self.provenance}; {self.errors}"

    def text(self) -> str:
        """The same with a line a column, as EXPLAIN shows it."""
        head = ("result", "column", "numbers", "std error", "largest", "within")
        body = [
            (row["result"], row["column"], f"{row['numbers']:,}", *(_figure(row[part]) for part in _PARTS))
            for row in self.columns
        ]
        shown = ["", *aligned(head, body, (0, 1), Columns.ALL)] if body else [f"({self.errors})"]
        return "\n".join([f"Free: {self.provenance} already", *shown])


def _figure(value: float | None) -> str:
    return "NULL" if value is None else figure(value)


def _records(table: ResultTable) -> list[Json]:
    """A record a column of a result that has errors beside it; its companions follow it."""
    if not table.listed:
        shown = {at for _, _, (part, at) in table.shown if part == "stderr"}
        return [_of_ranges(table, name, at) for name, _, (part, at) in table.shown if part == "value" and at in shown]
    found: list[Json] = []
    for at, (name, _, values) in enumerate(table.columns[:-3]):
        (error, _, errors), (_, _, low), (_, _, high) = table.columns[at + 1 : at + 4]
        if re.fullmatch(re.escape(name) + r"_stderr(_\d+)?", error):
            middle, off = _numbers(values), _numbers(errors)
            half = np.fmax(_numbers(high) - middle, middle - _numbers(low))
            off, half = off[np.isfinite(off)], half[np.isfinite(half)]
            mean = float(np.mean(off**2)) ** 0.5 if off.size else None
            found.append(_record(table.name, name, len(values), mean, _largest(off), _largest(half)))
    return found


def _of_ranges(table: RangeTable, name: str, at: int) -> Json:
    held = table.numbers[at]
    spread = ByLength(table.lengths.data) if table.lengths is not None else ByBlocks(*zip(*table.blocks, strict=True))
    errors = RangeErrors(np.asarray(held.scale), spread, table.n)
    largest = errors.max()
    return _record(table.name, name, len(table), errors.mean_square() ** 0.5, largest, largest * held.deviations)


def _record(result: str, column: str, numbers: int, *figures: float | None) -> Json:
    return {"result": result, "column": column, "numbers": numbers, **dict(zip(_PARTS, figures, strict=True))}


def _numbers(values: Iterable[object]) -> Floats:
    """Numbers as they are, days by their number, NaN for NULL."""
    plain = (value.toordinal() if isinstance(value, dt.date) else value for value in values)
    return np.array([value if isinstance(value, int | float) else np.nan for value in plain], dtype=np.float64)


def _largest(figures: Floats) -> float | None:
    return float(figures.max()) if figures.size else None
