"""What a scan will take, from public figures alone: the rows that the policy expects and what is read of each.

The constants were measured on one machine (a server's core, DuckDB in memory, 4 million rows of 32-bit integers): 20 ns
a row, 35 ns more for each axis (15 where it has few cuts, 45 with 400 regions), 35 ns for each sum. Reading from
disk, text and dates cost more. A guess for people who plan, and never anything that a program decides by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.layout import Layout

A_ROW, A_COLUMN = 20e-9, 35e-9


def scan_seconds(layout: Layout, rows: int) -> float | None:
    """Core seconds of one layout's scan of ``rows`` rows; None where joins, units or shared scans leave it open."""
    if not layout.source.plain or isinstance(layout.cells, Grid):
        return None
    return rows * (A_ROW + A_COLUMN * (len(layout.cells.axes) + len(layout.measures)))


def scan_text(layouts: Sequence[Layout], expected: Mapping[str, int]) -> str:
    """As "about 20,000 rows of t expected, under 0.1 s of one core"; empty where no table of the batch expects any."""
    shown = []
    for table in dict.fromkeys(layout.table for layout in layouts):
        rows = expected.get(table)
        if rows is None:
            continue
        each = [scan_seconds(layout, rows) for layout in layouts if layout.table == table]
        known = [seconds for seconds in each if seconds is not None]
        total = sum(known)
        time = "under 0.1 s" if total < 0.1 else f"about {total:.1f} s" if total < 10 else f"about {total:,.0f} s"
        cost = f", {time} of one core" if len(known) == len(each) else ""
        shown.append(f"about {rows:,} row{'' if rows == 1 else 's'} of {table} expected{cost}")
    return "; ".join(shown)
