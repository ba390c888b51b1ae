"""Compile: a batch of queries to the workload matrix W over cells and measures.

The data vector x has one entry per pair of a cell and a measure that some query uses: the
number of rows in the cell, and the sum of each centred measure over them (see
``dpsql.workloads.expr.measures``). All tables of a batch share one x, block by block; with the row
as privacy unit a neighbour changes one cell of one table.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Floats
from dpsql.common.chain import Step, order_of
from dpsql.common.numerics import TOGETHER
from dpsql.errors import SQLError
from dpsql.linalg.blocks import RowBlock
from dpsql.linalg.columns import distinct_columns
from dpsql.workloads.cells.boxes import Boxes, BoxWorkload
from dpsql.workloads.cells.cell_table import Block, Cells
from dpsql.workloads.cells.merging import compile_cells
from dpsql.workloads.compile.cells_of_a_row import possible_cells
from dpsql.workloads.compile.layout import Layout, Span, common_steps, spans_of
from dpsql.workloads.compile.repeated_columns import Once, distinct_spans
from dpsql.workloads.compile.same_rows import MOST_STATES, same_rows
from dpsql.workloads.compile.units import contributions_of, tied_layouts
from dpsql.workloads.expr.batch import CaseKey, Query, RangeKey, Table, Term
from dpsql.workloads.expr.conditions import FALSE, And, LineAtom, atoms, conjunction, gather
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.expr.measures import Measure
from dpsql.workloads.expr.regions import BoolArray, IntArray, KeyDomain
from dpsql.workloads.expr.related import Functions
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.terms import Measures, axes_of, case_groups, common_unit, keys_of
from dpsql.workloads.expr.too_many import check_numbers
from dpsql.workloads.families.contributions import Contributions
from dpsql.workloads.families.matrix import Workload

MAX_NUMBERS = 1_000_000


class Batch(ABC):
    """A compiled batch, carried in one of three ways: as one ``matrix``, as ``blocks``, or along a long ``line``.

    What only some ways have is None or empty in the others: ``units`` is what one unit can change.
    """

    queries: tuple[Query, ...]
    layouts: tuple[Layout, ...]
    spans: tuple[Span, ...]
    blocks: tuple[RowBlock, ...] = ()
    line: RangeKey | None = None
    units: Contributions | None = None

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many cells the batch distinguishes, over all tables."""

    @property
    def numbers(self) -> int:
        """How many numbers are released: the rows of W."""
        return self.spans[-1].stop if self.spans else 0

    @property
    @abstractmethod
    def answered(self) -> IntArray:
        """The numbers, of a line those of its small batch, whose answer depends on the data."""

    @cached_property
    def common_steps(self) -> int:
        """L, the least common multiple of the measures' steps: x in units of 1/L is an integer."""
        return common_steps(self.layouts)

    @property
    def ceilings(self) -> Floats | None:
        """What each number is at most (m,), inf where that is not known; None where nothing is."""
        return None

    def limits(self, part: slice) -> tuple[Floats, Floats]:
        """The least and the largest value that each number of ``part`` can have by ``ceilings``, infinite elsewhere."""
        most = np.full(part.stop - part.start, np.inf) if self.ceilings is None else self.ceilings[part]
        return np.where(np.isfinite(most), 0.0, -np.inf), most

    @property
    def matrix(self) -> Compiled | None:
        """Itself where W is written out, over cells or boxes."""
        return None

    @property
    def small(self) -> Batch:
        """The batch at one value of its line; itself where there is no line."""
        return self

    @property
    def weights(self) -> Floats | None:
        """What the error of each number is multiplied by in the objective (m,); None along a line."""
        return None

    @property
    def repeats(self) -> bool:
        """Whether W has a row twice, which is planned once."""
        return False

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """The reductions from statements to what a strategy is planned for."""

    @abstractmethod
    def weighed(self, weights: Floats) -> Self:
        """The batch with other ``weights``: one for each number, of a line for each of its small batch."""

    @property
    def weighted(self) -> Workload | Batch:
        """What its errors are computed for: W with the weights of its objective, or the batch itself."""
        return self

    @property
    def total_weighted(self) -> Workload | Batch:
        """What a strategy is planned for: ``weighted``, with rows that are there twice as one."""
        return self


@dataclass(frozen=True)
class Compiled(Batch):
    """A compiled batch: answers = diag(scale) @ rows @ x + constants.

    ``rows`` (m x n, primitive integer rows), ``scale`` (m,), ``objective`` (m,): the scale that
    the strategy minimises errors by, that is weight x scale / single-query sensitivity where
    sums are involved. ``units``: what one unit can change of all tables. ``contributions`` (n x c), or None for unit
    vectors: its columns, over ``units.common``; where it is not listable, and for ``Boxes``, some of them. ``groups``
    (m,) labels rows over the same columns. ``cache``: what is worked out of rows, scale and units once.
    """

    queries: tuple[Query, ...]
    layouts: tuple[Layout, ...]
    spans: tuple[Span, ...]
    rows: sparse.csr_array = field(repr=False)
    scale: np.ndarray = field(repr=False)
    objective: np.ndarray = field(repr=False)
    units: Contributions = field(repr=False)
    contributions: sparse.csr_array | None = field(repr=False)
    groups: IntArray = field(repr=False)
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def matrix(self) -> Compiled:
        """Itself."""
        return self

    @property
    def weights(self) -> Floats:
        """What the error of each number is multiplied by in the objective (m,), 0 where no data can change it."""
        scale = self.scale
        return np.asarray(np.divide(self.objective, scale, out=np.zeros(self.numbers), where=scale != 0))

    @property
    def repeats(self) -> bool:
        """Whether W has a row twice, which is planned once."""
        return self.once.repeats

    @property
    def steps(self) -> tuple[Step, ...]:
        """Rows that are there twice once, and combinations of values merged to cells or left as conditions."""
        found: list[Step] = []
        if self.repeats:
            once = f"{self.numbers:,} numbers, of which {self.once.rows.shape[0]:,} differ"
            found.append(Step("deduplicate", True, once))
        for layout in self.layouts:
            values = f"{layout.table}: {order_of(layout.cells.combinations)} combinations of values"
            if layout.boxes is not None:
                text = f"{values} are not listed; each of {len(layout.boxes):,} conditions is counted by itself"
                found.append(Step("conditions", False, text))
                continue
            cells = np.unique(layout.entry[:, _used(layout)], axis=1).shape[1]
            found.append(Step("merge cells", True, f"{values}; {cells:,} cells that the queries tell apart"))
        return tuple(found)

    def weighed(self, weights: Floats) -> Self:
        """The same batch with an objective of other weights (m,)."""
        made = replace(self, objective=self.scale * weights)
        made.cache.update(self.cache)
        return made

    @property
    def weighted(self) -> Workload:
        """W over the rows that are not zero, with the weights of its objective."""
        return self.workload(self.objective)

    @property
    def total_weighted(self) -> Workload:
        """The same total squared error without rows that are there twice."""
        return self.total(self.objective)

    @cached_property
    def cells(self) -> int:
        """How many cells the batch distinguishes, over all tables."""
        if self.layouts[0].boxes is not None:
            return self.layouts[0].boxes.pairs
        # Merged cells share all their entries of x, so the largest entry tells cells apart.
        largest = (layout.entry[:, _used(layout)].max(axis=0) for layout in self.layouts)
        return sum(int(np.count_nonzero(np.bincount(entries))) for entries in largest)

    @property
    def numbers(self) -> int:
        """How many numbers are released: the rows of W."""
        return len(self.scale)

    @property
    def answered(self) -> IntArray:
        """The rows of W that are not zero, that is whose answer depends on the data."""
        return np.flatnonzero(np.diff(self.rows.indptr))

    @property
    def once(self) -> Once:
        """The rows of W without what is asked for again."""
        if "once" not in self.cache:
            self.cache["once"] = Once(self.rows, self.scale, self.spans, np.arange(self.numbers))
        found: Once = self.cache["once"]
        return found

    @cached_property
    def ceilings(self) -> Floats | None:
        """What each number is at most (m,), inf where that is not known: COUNT(DISTINCT ...) of values is at least 0
        and at most the number of values that a row of its group can have. None where nothing is counted so.
        """
        mine = [layout for layout in self.layouts if layout.source.each is not None]
        if not mine:
            return None
        most = np.full(self.rows.shape[1], np.inf)
        for layout in mine:
            entries, values = layout.values_counted
            most[entries] = values
        # Such a number is that of one entry; of all others an entry has no limit.
        found = np.full(self.numbers, np.inf)
        alone = np.flatnonzero(np.diff(self.rows.indptr) == 1)
        at = self.rows.indptr[alone]
        found[alone] = self.scale[alone] * self.rows.data[at] * most[self.rows.indices[at]]
        return found

    @property
    def most_rank(self) -> int:
        """At least the rank of W."""
        return min(self.once.answered.size, self.rows.shape[1])

    def workload(self, scale: np.ndarray) -> Workload:
        """diag(scale) @ rows over the rows that are not zero."""
        kept = self.answered
        boxes = self.layouts[0].boxes
        if boxes is not None:
            return BoxWorkload.over(boxes, self.rows[kept], scale[kept], self.groups[kept], self.contributions)
        if self.once.repeats:
            return self._workload(self.rows, self.groups, kept).weighed(scale[kept])
        return self.distinct.weighed(scale[kept])

    @property
    def distinct(self) -> Workload:
        """The rows of ``once`` that are not zero, each of weight 1."""
        if "distinct" not in self.cache:
            once = self.once
            groups = np.zeros(once.scale.size, dtype=np.int64)
            groups[once.place] = self.groups
            self.cache["distinct"] = self._workload(once.rows, groups, once.answered)
        found: Workload = self.cache["distinct"]
        return found

    @property
    def distinct_place(self) -> IntArray:
        """Which row of ``distinct`` each row of ``workload`` is."""
        return np.searchsorted(self.once.answered, self.once.place[self.answered])

    def total(self, scale: np.ndarray) -> Workload:
        """A workload of the same total squared error: squared scales of what is asked for again are added up."""
        if not self.once.repeats:
            return self.workload(scale)
        squares = np.bincount(self.distinct_place, scale[self.answered] ** 2, self.once.answered.size)
        return self.distinct.weighed(np.sqrt(squares))

    def _workload(self, rows: sparse.csr_array, groups: IntArray, at: IntArray) -> Workload:
        return Workload.from_rows(
            rows[at],
            np.ones(at.size),
            contributions=self.contributions,
            groups=groups[at],
            units=None if self.units.single else self.units,
        )


def _used(layout: Layout) -> BoolArray:
    return np.asarray((layout.entry >= 0).any(axis=0))


def compile_batch(
    queries: Sequence[Query], tables: Mapping[str, Table], boxes: bool = True, deadline: Deadline = NONE
) -> Compiled:
    """Compile queries (already held against the policy) to cells and W.

    Cost: regions are O(predicates log predicates) a column; cells as ``compile_cells``; W is
    sparse. ``boxes``: very many cells of one table's conjunctions may stay unlisted (``dpsql.workloads.cells.boxes``).
    Raises SQLError past the caps on combinations, coefficients and measures, and past ``deadline``.
    """
    spans = spans_of(queries)
    layouts, once = _compiled(queries, tables, boxes, deadline)
    place = once.place
    common_steps(layouts)
    weight = np.ones(place.size)
    for span in spans:
        weight[span.start : span.stop] = queries[span.query].weight
    objective = weight * (once.scale / _units(once, layouts))[place]
    units = contributions_of(layouts, once.rows.shape[1])
    contributions = None if units.plain else units.columns
    rows = once.rows[place] if once.repeats else once.rows
    held = layouts, spans, rows, once.scale[place], objective, units, contributions, _groups(queries, once)
    made = Compiled(tuple(queries), *held)
    if layouts[0].boxes is None:
        made.cache["once"] = once
    return made


def compile_rows(
    queries: Sequence[Query], tables: Mapping[str, Table]
) -> tuple[tuple[Layout, ...], sparse.csr_array, np.ndarray]:
    """Layouts, rows and scale of ``Compiled``: what the queries say of x, without what one row can do to it."""
    layouts, once = _compiled(queries, tables)
    return layouts, once.rows[once.place] if once.repeats else once.rows, once.scale[once.place]


def _compiled(
    queries: Sequence[Query], tables: Mapping[str, Table], boxes: bool = False, deadline: Deadline = NONE
) -> tuple[tuple[Layout, ...], Once]:
    """Layouts, and rows and scale of W, each column of a result once."""
    check_numbers(queries, MAX_NUMBERS)
    spans, place = distinct_spans(queries, spans_of(queries))
    total = spans[-1].stop if spans else 0
    pieces = []
    names = list(dict.fromkeys(query.table for query in queries))
    for name in names:
        table = _Table(tables[name], queries, [span for span in spans if queries[span.query].table == name])
        pieces.append(table.compile(total, boxes and len(names) == 1, deadline))
    rows = pieces[0].rows if len(pieces) == 1 else sparse.hstack([piece.rows for piece in pieces], format="csr")
    offset, layouts = 0, []
    for piece in pieces:
        entry = np.where(piece.layout.entry >= 0, piece.layout.entry + offset, -1)
        layouts.append(replace(piece.layout, entry=entry))
        offset += piece.rows.shape[1]
    rows, divisor = _primitive(sparse.csr_array(rows))
    found = same_rows(tied_layouts(layouts, rows))
    scale = np.sum([piece.scale for piece in pieces], axis=0) * divisor
    return found, Once(rows, scale, spans, place)


def once_text(table: Table) -> str:
    """What an analyst wrote where a unit, or what it adds to a sum, counts once in a cell of ``table``."""
    added = table.source is not None and table.source.added is not None
    return "a SUM under a bound of at_most" if added else "COUNT(DISTINCT ...)"


def _check_distinct(table: Table, rows: sparse.csr_array, cells: Cells) -> None:
    """Units are counted once a cell: every number must be of one cell, and the way to it short enough for SQL."""
    if table.source is None or not table.source.distinct:
        return
    if rows.nnz and int(np.diff(sparse.csr_array(rows).indptr).max()) > 1:
        raise SQLError(
            "COUNT(DISTINCT ...) over groups that overlap counts units twice: give each group its own statement"
            if table.source.added is None
            else "a bound on what one unit adds to a sum is not held over groups that overlap: give each group its own "
            "statement",
            code="count-distinct",
        )
    size = sum(transition.size for transition in cells.transitions)
    if size > MOST_STATES:
        raise SQLError(
            f"{once_text(table)} tells {size:,} combinations of values apart, at most {MOST_STATES:,} are "
            "counted: group by fewer columns, or simplify the condition",
            code="too-large",
        )


def _primitive(rows: sparse.csr_array) -> tuple[sparse.csr_array, np.ndarray]:
    """Divide each row by the greatest common divisor of its entries; the divisors (1 for zero rows)."""
    rows.sum_duplicates()
    rows.eliminate_zeros()
    filled = np.flatnonzero(np.diff(rows.indptr))
    divisor = np.ones(rows.shape[0], dtype=np.int64)
    if filled.size:
        divisor[filled] = np.gcd.reduceat(np.abs(rows.data), rows.indptr[:-1][filled])
        rows.data = rows.data // np.repeat(divisor, np.diff(rows.indptr))
    return rows, divisor


def _units(once: Once, layouts: Sequence[Layout]) -> np.ndarray:
    """What errors of each row are divided by to compare them: 1 for counts, the sensitivity of sums.

    One row adds 1 to its cell's count and at most 1 to each sum of it, of either sign.
    """
    rows, scale = once.rows, once.scale
    units = np.ones(rows.shape[0])
    if not rows.shape[1] or not any(layout.measures for layout in layouts):
        return units
    whole = _cells_of_entries(layouts, rows.shape[1])
    sums = [span for span in once.spans if span.output.sums]
    entries = np.cumsum([rows.indptr[span.stop] - rows.indptr[span.start] for span in sums]) // TOGETHER
    for _, found in itertools.groupby(zip(entries.tolist(), sums, strict=True), lambda pair: pair[0]):
        some = [span for _, span in found]
        starts = np.cumsum([0, *(span.stop - span.start for span in some)])
        mine = np.concatenate([np.arange(span.start, span.stop) for span in some])
        reach = (abs(rows[mine]) @ whole).max(axis=1).toarray()
        most = np.maximum.reduceat(reach, starts[:-1]) * np.maximum.reduceat(np.abs(scale[mine]), starts[:-1])
        units[mine] = np.repeat(np.where(most == 0, 1.0, most), np.diff(starts))
    return units


def _cells_of_entries(layouts: Sequence[Layout], size: int) -> sparse.csr_array:
    """(size x cells): which entries of x each cell of each table has. Merged cells share all their entries."""
    at_entry, at_cell, cells = list[IntArray](), list[IntArray](), 0
    for layout in layouts:
        counted = layout.entry[:, _used(layout)]
        entries = counted[:, np.unique(counted.max(axis=0), return_index=True)[1]]
        measure, cell = np.nonzero(entries >= 0)
        at_entry.append(entries[measure, cell])
        at_cell.append(cell + cells)
        cells += entries.shape[1]
    places = np.concatenate(at_entry), np.concatenate(at_cell)
    ones = np.ones(places[0].size, dtype=np.int64)
    return sparse.csr_array(sparse.coo_array((ones, places), shape=(size, cells)))


def _groups(queries: Sequence[Query], once: Once) -> IntArray:
    labels: dict[frozenset[object], int] = {}
    groups = np.zeros(once.scale.size, dtype=np.int64)
    for span in once.spans:
        query = queries[span.query]
        used: set[object] = {query.table}
        conditions = [term.condition for term in span.output.terms]
        for key in query.keys:
            if isinstance(key, CaseKey):
                conditions.extend(key.conditions)
            else:
                used.add((query.table, key.column))
        for condition in conditions:
            for atom in atoms(condition):
                used.add((query.table, atom.column if isinstance(atom, LineAtom) else atom.predicate))
        groups[span.start : span.stop] = labels.setdefault(frozenset(used), len(labels))
    return groups[once.place]


@dataclass(frozen=True)
class _Piece:
    """One table's part of the workload: its columns of W (all rows) and row scales."""

    layout: Layout
    rows: sparse.csr_array
    scale: np.ndarray


@dataclass(frozen=True)
class _Use:
    """One term of an output: the blocks that count it, and the row of each label of theirs, block after block.

    Row ``rows[starts[i] + label]`` of the output counts what block ``blocks[i]`` has under ``label``.
    """

    term: Term
    measure: Measure | None
    blocks: IntArray = field(repr=False)
    starts: IntArray = field(repr=False)
    rows: IntArray = field(repr=False)


class _Table:
    """Compiles the queries of one table."""

    def __init__(self, table: Table, queries: Sequence[Query], spans: Sequence[Span]) -> None:
        self.table = table
        self.queries = queries
        self.spans = spans
        self.keys = keys_of(queries[span.query] for span in spans)
        self.measures = Measures(table)
        self.blocks: dict[Block, int] = {}
        self.found: dict[object, tuple[IntArray, IntArray, IntArray]] = {}

    def compile(self, total: int, boxes: bool, deadline: Deadline) -> _Piece:
        """The table's piece of a workload with ``total`` rows; its cells may be ``boxes`` where that is one table."""
        uses: list[tuple[Span, list[_Use]]] = []
        for span in self.spans:
            deadline.check(len(uses), len(self.spans), "columns of results")
            uses.append((span, [self._use(self.queries[span.query], term) for term in span.output.terms]))
        axes = axes_of(self.table, (block.condition for block in self.blocks), self.keys)
        boxes = boxes and not self.measures.found and not (self.table.source and self.table.source.distinct)
        cells = compile_cells(
            axes, list(self.blocks), {name: len(key) for name, key in self.keys.items()}, boxes, deadline
        )
        if isinstance(cells, Cells):
            cells = possible_cells(self._layout(cells, np.zeros((1, len(cells)), dtype=np.int64)))
        rows, scale = self._rows(uses, cells, total)
        if isinstance(cells, Boxes):
            # A row may move all entries: as one cell's, so that nothing takes them for cells of their own.
            return _Piece(self._layout(cells, np.arange(len(cells))[:, None]), rows, scale)
        return self._merged(cells, rows, scale)

    def _use(self, query: Query, term: Term) -> _Use:
        """The blocks and measure of a term; a sum counts only rows where its column is not NULL."""
        measure, known = self.measures.of(term), self.measures.not_null(term)
        condition = term.condition if known is None else conjunction(term.condition, known)
        names = tuple(key.column for key in query.keys if isinstance(key, KeyDomain))
        # Outputs of one query, and queries over the same groups, often have the same condition.
        same = (condition, names, tuple(id(key) for key in query.keys))
        if same not in self.found:
            blocks: list[int] = []
            rows: list[IntArray] = []
            for chosen, row in case_groups(query):
                block = Block(gather(And, condition, *chosen), names)
                if block.condition != FALSE:
                    blocks.append(self.blocks.setdefault(block, len(self.blocks)))
                    rows.append(row)
            length = rows[0].size if rows else 0
            found = np.array(blocks, dtype=np.int64), np.arange(len(blocks)) * length, np.array(rows, dtype=np.int64)
            self.found[same] = found[0], found[1], found[2].ravel()
        return _Use(term, measure, *self.found[same])

    def _rows(
        self,
        uses: Sequence[tuple[Span, Sequence[_Use]]],
        cells: Cells | Boxes,
        total: int,
    ) -> tuple[sparse.csr_array, np.ndarray]:
        """Integer rows over (measure, cell) pairs, entry k * cells + c, and the rows' scales."""
        n = len(cells)
        members: dict[int, tuple[IntArray, IntArray]] = {}
        at_row: list[Array] = []
        at_entry: list[Array] = []
        values: list[IntArray] = []
        scale = np.zeros(total)
        shape = (total, (1 + len(self.measures.found)) * n)
        # Half the memory and time of long indices, where the numbers fit.
        index = np.int32 if max(shape) < 2**31 else np.int64
        for span, terms in uses:
            parts: list[tuple[_Use, int, Fraction]] = []
            for use in terms:
                coefficient, measure = use.term.coefficient, use.measure
                if not use.blocks.size:
                    continue
                if measure is None:
                    parts.append((use, 0, coefficient))
                else:
                    parts.append((use, 0, coefficient * measure.mid))
                    parts.append((use, self.measures.place(measure), coefficient * measure.half))
            parts = [part for part in parts if part[2]]
            unit = common_unit([part[2] for part in parts], span.output.name)
            scale[span.start : span.stop] = float(unit)
            for use, k, coefficient in parts:
                if id(use.rows) not in members:
                    place, inside, label = cells.members(use.blocks)
                    members[id(use.rows)] = inside.astype(index), use.rows[use.starts[place] + label].astype(index)
                inside, row = members[id(use.rows)]
                at_row.append(row + index(span.start))
                at_entry.append(inside + index(k * n))
                values.append(np.full(len(inside), int(coefficient / unit), dtype=np.int64))
        if not at_row or n == 0:
            return sparse.csr_array(shape, dtype=np.int64), scale
        entries = (np.concatenate(values), (np.concatenate(at_row), np.concatenate(at_entry)))
        rows = sparse.csr_array(sparse.coo_array(entries, shape=shape))
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows, scale

    def _merged(self, cells: Cells, rows: sparse.csr_array, scale: np.ndarray) -> _Piece:
        """Merge cells whose columns of W are equal and drop columns of zeros."""
        n, s = len(cells), len(self.measures.found)
        if n == 0 or rows.nnz == 0:
            layout = self._layout(cells, np.full((1 + s, n), -1))
            return _Piece(layout, sparse.csr_array((rows.shape[0], 0), dtype=np.int64), scale)
        # One column a cell: its columns of W for every measure, one under the other.
        stacked = rows
        if s:
            stacked = sparse.vstack([rows[:, k * n : (k + 1) * n] for k in range(1 + s)], format="csr")
        found = distinct_columns(stacked)
        merged, keep = found.label, found.keep
        used = np.bincount(rows.indices, minlength=(1 + s) * n).reshape(1 + s, n)[:, keep] > 0
        # Entries of x run cell by cell, the count before the sums.
        numbers = np.full(used.T.size, -1, dtype=np.int64)
        numbers[used.T.ravel()] = np.arange(int(used.sum()))
        entry_of_kept = numbers.reshape(used.T.shape).T
        columns = (np.arange(1 + s)[:, None] * n + keep[None, :]).T[used.T]
        entry = np.where(merged >= 0, entry_of_kept[:, merged], -1)
        every = np.array_equal(columns, np.arange(rows.shape[1]))
        kept = rows if every else sparse.csr_array(rows.tocsc()[:, columns])
        _check_distinct(self.table, kept, cells)
        return _Piece(self._layout(cells, entry), kept, scale)

    def _layout(self, cells: Cells | Boxes, entry: IntArray) -> Layout:
        computed = {column.name: column.value for column in self.table.columns.values() if column.value is not None}
        source = self.table.source or RowSource(self.table.name)
        functions = Functions(self.table.columns, self.table.evaluate)
        measures = tuple(self.measures.found.values())
        return Layout(self.table.name, cells, measures, entry, source, computed, functions=functions)
