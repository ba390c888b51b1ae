"""What the scan of a layout reads and selects: the request that goes to the engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpsql.engines.base import Rows, TableSource
from dpsql.measure.from_sql import rows_text
from dpsql.measure.scan_sql import row_columns, select_list
from dpsql.workload.compile import Layout
from dpsql.workload.conditions import Like
from dpsql.workload.regions import OpaqueAxis
from dpsql.workload.values import Stored, stored


def scan_of(layout: Layout, sources: Mapping[str, TableSource]) -> tuple[TableSource | Rows, str, int]:
    """The arguments of ``Engine.scan`` for one layout: its rows, the SELECT list, the number of group keys.

    ``sources`` hold every table of ``layout.source.tables``. A table of single rows without joins is
    scanned as it is.
    """
    select, keys = select_list(layout)
    source = layout.source
    if source.plain:
        return sources[source.table], select, keys
    cells = len(np.unique(layout.entry[layout.entry >= 0]))
    text = rows_text(source, joined_columns(layout), row_columns(layout), cells=cells)
    return Rows(source.table, tuple(sources[name] for name in source.tables), text), select, keys


def joined_columns(layout: Layout) -> tuple[Stored, ...]:
    """The columns of joined tables that the scan's axes and measures read, each once."""
    names = [measure.column for measure in layout.measures]
    for axis in layout.cells.axes:
        if not isinstance(axis, OpaqueAxis):
            names.append(axis.column)
        elif isinstance(axis.predicate, Like):
            names.append(axis.predicate.column)
        else:
            names += [axis.predicate.left, axis.predicate.right]
    found = [part for name in names if name in layout.values for part in stored(layout.values[name])]
    return tuple(dict.fromkeys(column for column in found if column.source))
