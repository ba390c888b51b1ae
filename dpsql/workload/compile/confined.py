"""Which days the rows have that a layout counts: what a charge that names periods relies on.

Rows elsewhere are in no cell where the batch reads the day of a row on an axis that has regions for these days only: a
row without a region on one of the axes that a batch reads is in no cell of any layout (``measure.reading``). Of rows of
units it is so where WHERE, on the way into a unit's one row, leaves nothing else. A window reads rows of other days.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.workload.compile.layout import Layout
from dpsql.workload.expr.conditions import TRUE, And, Condition, LineAtom, Or, complement, gather
from dpsql.workload.expr.lines import Interval, Line
from dpsql.workload.expr.regions import Axis, LineAxis, RunAxis
from dpsql.workload.expr.rows import Units
from dpsql.workload.expr.values import Every, Some, Stored, Test, Within
from dpsql.workload.expr.within import meets


def is_confined(layout: Layout, column: str, days: tuple[Interval, ...]) -> bool:
    """Whether each row that an entry of x counts has its ``column``, which its table stores, in ``days``.

    ``days`` are disjoint and ascending. Public: it depends on what is scanned, on no row.
    """
    units = layout.source.of
    if layout.source.windows is not None:
        return False
    if units is not None:
        found = days_of(units, column)
        return isinstance(found, LineAtom) and not found.on_null and _covered(found.intervals, days)
    return any(_within(axis, layout, column, days) for axis in layout.whole.cells.axes)


def days_of(units: Units, column: str) -> Condition:
    """What the rows that make rows of units have in ``column``, as far as their WHERE tells by that column alone."""
    if units.where is None or units.of.of is not None or units.of.windows is not None:
        return TRUE
    return _projected(units.where, column)


def _projected(test: Test, column: str) -> Condition:
    if isinstance(test, Every | Some):
        node = And if isinstance(test, Every) else Or
        found = gather(node, *(_projected(part, column) for part in test.tests))
        return TRUE if isinstance(found, And | Or) else found
    if not isinstance(test, Within) or not isinstance(test.value, Stored) or test.value.source:
        return TRUE
    return LineAtom(column, test.intervals, test.on_null) if fold(test.value.name) == fold(column) else TRUE


def _within(axis: Axis, layout: Layout, column: str, days: tuple[Interval, ...]) -> bool:
    if not isinstance(axis, LineAxis | RunAxis) or fold(axis.column) != fold(column) or axis.column in layout.values:
        return False
    if isinstance(axis, RunAxis):
        return _covered([((axis.first, 0), (axis.first + axis.size, 0))], days)
    ends = [None, *axis.cuts, None]
    inside = [(ends[at], ends[at + 1]) for at, region in enumerate(axis.pieces.tolist()) if region >= 0]
    return axis.null_region < 0 and _covered(inside, days)


def _covered(inside: Sequence[Interval], days: tuple[Interval, ...]) -> bool:
    """Whether no value of the intervals lies outside ``days``."""
    outside = complement(days)
    return not any(meets(interval, outside) for interval in inside)


def interval_of(periods: Periods, line: Line, number: int) -> Interval:
    """Where the days, or times, of a period lie on the line of its column."""
    return line.below(line.place(periods.start(number))), line.below(line.place(periods.start(number + 1)))
