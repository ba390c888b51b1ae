"""Layouts and spans: where a table's rows go in x, and which numbers a result column takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import InternalError, SQLError
from dpsql.workloads.cells.boxes import Boxes
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.values_once import values_of
from dpsql.workloads.expr.batch import Output, Query
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import Axis, IntArray
from dpsql.workloads.expr.related import Functions
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.values import Value

MAX_COMMON_BITS = 200
_MOST_AXES, _MOST_CONSTANTS = 4, 4_096
"""By how many axes and constants a scan of rows tells whether a row is in a cell that is read."""


@dataclass(frozen=True)
class Tie:
    """Units ``counted`` by the very rows of a layout that count.

    ``meets`` (2 x pairs): the cells of both in which a row can be at once, -1 for none. Of a unit's rows the scan keeps
    one in each cell of ``counted`` first, in the order in which these count the unit.
    """

    counted: Layout
    meets: IntArray = field(repr=False)


@dataclass(frozen=True)
class Walk:
    """Which of several columns of groups a row is in.

    ``tables[k]`` (states before axis k x regions of axis k) gives the state after it, the last the column, -1 for none.
    Of an axis on which a row may have no region the first region in its table stands for that.
    """

    axes: tuple[Axis, ...]
    tables: tuple[IntArray, ...] = field(repr=False)


@dataclass(frozen=True)
class Together:
    """Counts of units ``layouts`` over the same rows of units, and the count of these ``rows``, if there is one.

    ``cells`` (T x columns): the entries of x in which one row has its unit counted, -1 for none, of each; that of
    ``rows`` comes last. ``walk`` says which column a row is in. ``classes`` (columns,): the group of such a row by a
    bound of ``at_most`` that lets a unit have one row in each.
    """

    layouts: tuple[Layout, ...]
    cells: IntArray = field(repr=False)
    walk: Walk = field(repr=False)
    rows: Layout | None = field(default=None, repr=False)
    classes: IntArray | None = field(default=None, repr=False)

    @property
    def all(self) -> tuple[Layout, ...]:
        """All of them, in the order of ``cells``."""
        return self.layouts if self.rows is None else (*self.layouts, self.rows)

    @property
    def source(self) -> RowSource:
        """What all of them read."""
        return self.layouts[0].source

    @property
    def cut(self) -> bool:
        """Whether not all that bounds leave of a unit may be kept of it."""
        if self.classes is not None and np.unique(self.classes).size <= self.source.limit:
            return False  # it has one row in each class
        return self.rows is not None or self.cells.shape[1] > self.source.limit

    def entries(self, layout: Layout) -> IntArray:
        """The entry of x of one of them, in each column."""
        found: IntArray = self.cells[[one.table for one in self.all].index(layout.table)]
        return found


@dataclass(frozen=True)
class Layout:
    """Where one table's rows go in x.

    ``entry[k, c]`` is the entry of x that holds measure k of cell c (0 is the count, k > 0 is
    ``measures[k - 1]``), or -1 where no query uses it. ``source`` is what the scan reads; ``values`` says what
    it computes for the columns (of axes and measures) that the table does not store, ``functions`` what axes are of a
    row. A table may have several
    layouts, each a histogram over some of its axes; ``every`` are then all axes and measures that the batch reads of
    the table: a row without a region on one of the axes is in no cell of any. For ``Boxes`` there is an entry for each
    block, all of them those of one cell. ``tie``: the units that are counted of the same rows, where their count
    decides which rows of a unit are kept. ``together``: all that count units over the same rows.
    """

    table: str
    cells: Cells | Grid | Boxes
    measures: tuple[Measure, ...]
    entry: IntArray = field(repr=False)
    source: RowSource
    values: Mapping[str, Value] = field(default_factory=dict, repr=False)
    every: tuple[tuple[Axis, ...], tuple[Measure, ...]] | None = None
    tie: Tie | None = field(default=None, repr=False)
    together: Together | None = field(default=None, repr=False)
    functions: Functions = field(default=Functions({}), repr=False, compare=False)

    @property
    def whole(self) -> Layout:
        """The layout with all that the batch reads of a row; where its entries are others', they mean nothing."""
        if self.every is None:
            return self
        return replace(self, cells=Grid(self.every[0]), measures=self.every[1], every=None)

    @property
    def boxes(self) -> Boxes | None:
        """The boxes, where its cells are too many to be listed."""
        return self.cells if isinstance(self.cells, Boxes) else None

    @property
    def listed_cells(self) -> Cells:
        """The cells, which are listed. Raises InternalError where they are not."""
        if not isinstance(self.cells, Cells):
            raise InternalError(f"{self.table}: its cells are not listed")
        return self.cells

    @property
    def tells_cells(self) -> bool:
        """Whether its scan of rows keeps counted rows before all others; if not, uncounted rows may displace them
        where a unit has more rows than its limit.
        """
        cells = self.cells
        if not isinstance(cells, Cells):
            return True
        every_cell = bool((self.entry >= 0).any(axis=0).all()) and not (cells.cell_of_state < 0).any()
        short = sum(table.size for table in cells.transitions) <= _MOST_CONSTANTS
        return every_cell or (len(cells.axes) <= _MOST_AXES and short)

    @property
    def multiplicity(self) -> int:
        """How many rows one unit has at most; of a distinct source in how many entries of x it counts, or how many
        values it adds to all of them.
        """
        if self.source.each is not None:
            return max(1, min(self.source.most, int(np.sort(self.values_once[1])[-self.groups :].sum())))
        if self.source.added is not None:
            return max(1, min(self.source.added.cells, len(self.filled)))
        return self.groups if self.source.counts_units else self.source.most

    @cached_property
    def filled(self) -> IntArray:
        """The entries of x that it fills."""
        return np.flatnonzero(np.bincount(self.entry[self.entry >= 0]))

    @cached_property
    def values_counted(self) -> tuple[IntArray, Floats]:
        """The entries of x that count values, and how many there can be in each, inf where that is not known."""
        assert self.source.each is not None  # noqa: S101 - asked before
        return values_of(self.source.each, self.cells, self.entry[0], self.values)

    @property
    def values_once(self) -> tuple[IntArray, IntArray]:
        """The entries of x that count values, and how many a unit adds to each at most."""
        entries, most = self.values_counted
        return entries, np.minimum(most, self.source.most).astype(np.int64)

    @cached_property
    def of_unit(self) -> tuple[bool, ...]:
        """Of each axis whether all rows of a unit are in one region of it: what it looks at was found by the unit.

        A join on the unit's own column, as visits join patients by their patient, finds the same row for all of them.
        """
        source = self.source
        if source.unit is None:
            return (False,) * len(self.cells.axes)
        known: set[str] = set()
        for join in source.joins:
            if all(left == source.unit or left.source in known for left in join.lefts):
                known.add(join.name)
        read = [self.functions.of(axis) for axis in self.cells.axes]
        return tuple(
            bool(one.of) and one.follows and all(part == source.unit or part.source in known for part in one.of)
            for one in read
        )

    @cached_property
    def groups(self) -> int:
        """In how many entries a unit counts at most."""
        if isinstance(self.cells, Cells) and any(self.of_unit):
            pairs = self.cells.cells_of(self.of_unit)
            if pairs is not None:
                place, cell = pairs
                entry = self.entry[0][cell]
                held = np.unique(np.stack([place, entry])[:, entry >= 0], axis=1)[0]
                return max(1, min(self.source.most, int(np.unique(held, return_counts=True)[1].max(initial=0))))
        elif isinstance(self.cells, Grid) and all(self.of_unit):
            return 1
        return max(1, min(self.source.most, len(self.filled)))


@dataclass(frozen=True)
class Span:
    """The rows of W that one private column of a result takes, in the order of its groups."""

    query: int
    output: Output
    start: int
    stop: int


def spans_of(queries: Sequence[Query]) -> tuple[Span, ...]:
    """The rows of W, query by query and output by output."""
    found, start = [], 0
    for number, query in enumerate(queries):
        for output in query.outputs:
            found.append(Span(number, output, start, start + query.rows))
            start += query.rows
    return tuple(found)


def common_multiplicity(layouts: Sequence[Layout]) -> int:
    """The greatest common divisor of the layouts' multiplicities."""
    return math.gcd(*(layout.multiplicity for layout in layouts)) or 1


def common_steps(layouts: Sequence[Layout]) -> int:
    """L, the least common multiple of the measures' steps: x in units of 1/L is an integer.

    Raises SQLError past 2^200.
    """
    steps = [measure.steps for layout in layouts for measure in layout.measures if measure.steps]
    common = math.lcm(1, *steps)
    if common.bit_length() > MAX_COMMON_BITS:
        raise SQLError(
            f"the summed columns' numbers of steps have no common multiple below 2^{MAX_COMMON_BITS}: declare bounds "
            "and steps with rounder widths, or sum fewer columns in one batch"
        )
    return common
