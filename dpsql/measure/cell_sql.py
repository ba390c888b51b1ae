"""The cell of a row as SQL: for sources that count each unit once a cell, which must be known before the groups are.

``Cells`` sends a row's regions to its cell by one table for each axis. Here the tables are lists of constants and
the walk is nested ``list_extract``; a region -1 (no cell) asks for position 0, which gives NULL to the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsql.workload.cells.cell_table import Cells
from dpsql.workload.compile.layout import Layout


def cell_text(layout: Layout, regions: Sequence[str]) -> str:
    """The entry of x that a row's cell has, as BIGINT; -1 for a row that no query counts.

    ``regions`` are expressions of the region numbers, an axis each. ``layout`` has no measures. Its tables
    are held small by ``dpsql.workload.compile.compiled``.
    """
    cells, entry = layout.cells, layout.entry[0]
    assert isinstance(cells, Cells)  # noqa: S101 - distinct sources are compiled to merged cells
    if not cells.axes:
        return f"CAST({int(entry[0]) if len(entry) else -1} AS BIGINT)"
    # What the last state stands for: a cell, and the entry of x that holds its count.
    known = cells.cell_of_state >= 0
    last = np.full(len(cells.cell_of_state), -1, dtype=np.int64)
    last[known] = entry[cells.cell_of_state[known]]
    state = ""
    for number, (axis, table, region) in enumerate(zip(cells.axes, cells.transitions, regions, strict=True)):
        values = last[table] if number + 1 == len(cells.axes) else table
        place = f'system.main."+"(CAST({region} AS BIGINT), CAST(1 AS BIGINT))'
        if state:
            row = f'system.main."*"(CAST({state} AS BIGINT), CAST({axis.size} AS BIGINT))'
            place = f'system.main."+"({row}, {place})'
        inside = f"CASE WHEN {region} < 0 THEN CAST(0 AS BIGINT) ELSE {place} END"
        listed = ", ".join(map(str, values.ravel().tolist()))
        state = f"system.main.list_extract([{listed}], {inside})"
    return f"CAST(COALESCE({state}, -1) AS BIGINT)"
