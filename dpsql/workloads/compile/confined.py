"""Which days the rows have that a layout counts or looks at: what a charge that names periods relies on.

Rows elsewhere are in no cell where the batch reads the day of a row on an axis that has regions for these days only: a
row without a region on one of the axes that a batch reads is in no cell of any layout (``measure.reading``). Of rows of
units it is so where WHERE, on the way into a unit's one row, leaves nothing else. A window reads rows of other days.
What IN, EXISTS and joins find for a row that counts is a look at rows that need not count themselves: `looks` lists
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.conditions import FALSE, TRUE, And, Condition, LineAtom, Or, complement, gather
from dpsql.workloads.expr.lines import Interval, Line
from dpsql.workloads.expr.regions import Axis, LineAxis, RunAxis
from dpsql.workloads.expr.rows import RowSource, Units
from dpsql.workloads.expr.values import Every, Node, Some, Stored, Test, Within, stored
from dpsql.workloads.expr.within import meets


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


@dataclass(frozen=True)
class Look:
    """Rows of ``table`` that say something of a row which counts: those that make ``units``, or what a join finds.

    ``join`` names the join, of the rows that make ``units`` (None: of those that are counted); "" for these rows
    themselves.
    """

    table: str
    units: Units | None
    join: str = ""


def looks(source: RowSource, values: Iterable[Node]) -> Iterator[Look]:
    """Every look of a source's rows at others, of which ``values`` are read; what only says whose a row is, is none.

    The rows of the source itself are left out, as are those of which a base of units is made.
    """
    used = {part.source for value in values for part in stored(value)}
    for join in reversed(source.joins):
        if join.name not in used and join.of is None:
            continue
        # A key that is taken from another join is read there, but for the unit, which says whose the row is.
        used |= {left.source for left in join.lefts if left != source.unit}
        if join.of is None:
            yield Look(join.table, None, join.name)
        else:
            yield Look(join.of.of.table, join.of)
            yield from _looks_of(join.of)
    if source.of is not None:
        yield from _looks_of(source.of)


def _looks_of(units: Units) -> Iterator[Look]:
    """The looks of the rows that make rows of units."""
    read: list[Node] = [] if units.where is None else [units.where]
    for column in units.columns:
        read += [column.value, *([] if column.by is None else [column.by[0]])]
        read += [] if column.where is None else [column.where]
    read += [] if units.along is None else [units.along.value]
    for look in looks(units.of, read):
        yield look if look.units is not None else replace(look, units=units)
    if units.of.of is not None:
        yield Look(units.of.of.of.table, units.of.of)


def days_of(units: Units, column: str, join: str = "") -> Condition:
    """What the rows that make rows of units, or a join of theirs, have in ``column``, as far as WHERE tells by it."""
    if units.where is None or units.of.of is not None or units.of.windows is not None:
        return TRUE
    return _projected(units.where, column, join)


def looks_within(look: Look, column: str, days: tuple[Interval, ...]) -> bool:
    """Whether all rows of a look have their ``column`` in ``days``, as WHERE of a subquery over them says."""
    if look.units is None:
        return False
    found = days_of(look.units, column, look.join)
    return found == FALSE or (isinstance(found, LineAtom) and not found.on_null and _covered(found.intervals, days))


def _projected(test: Test, column: str, join: str) -> Condition:
    if isinstance(test, Every | Some):
        node = And if isinstance(test, Every) else Or
        found = gather(node, *(_projected(part, column, join) for part in test.tests))
        return TRUE if isinstance(found, And | Or) else found
    if not isinstance(test, Within) or not isinstance(test.value, Stored) or test.value.source != join:
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
