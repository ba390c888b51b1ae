"""Compile: a batch of queries to the workload matrix W over cells and measures.

The data vector x has one entry per pair of a cell and a measure that some query uses: the
number of rows in the cell, and the sum of each centred measure over them (see
``dpsql.workload.measures``). All tables of a batch share one x, block by block; with the row
as privacy unit a neighbour changes one cell of one table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.errors import SQLError
from dpsql.linalg.columns import distinct_columns
from dpsql.policy.values import fold
from dpsql.workload.batch import CaseKey, Output, Query, Table, Term
from dpsql.workload.cells import Block, Cells, compile_cells
from dpsql.workload.conditions import (
    FALSE,
    And,
    Condition,
    Like,
    LineAtom,
    OpaqueAtom,
    Predicate,
    atoms,
    conjunction,
    gather,
)
from dpsql.workload.corners import corners_of
from dpsql.workload.matrix import Workload
from dpsql.workload.measures import Measure, measure_of
from dpsql.workload.regions import AxisTruths, BoolArray, IntArray, KeyDomain, line_axis, opaque_axis
from dpsql.workload.rows import RowSource
from dpsql.workload.values import Value

MAX_COEFFICIENT = 2**40
MAX_NUMBERS = 1_000_000
MAX_COMMON_BITS = 200
MAX_DISTINCT_STATES = 200_000


@dataclass(frozen=True)
class Layout:
    """Where one table's rows go in x.

    ``entry[k, c]`` is the entry of x that holds measure k of cell c (0 is the count, k > 0 is
    ``measures[k - 1]``), or -1 where no query uses it. ``source`` is what the scan reads; ``values`` says what
    it computes for the columns (of axes and measures) that the table does not store.
    """

    table: str
    cells: Cells
    measures: tuple[Measure, ...]
    entry: IntArray = field(repr=False)
    source: RowSource
    values: Mapping[str, Value] = field(default_factory=dict, repr=False)

    @property
    def multiplicity(self) -> int:
        """How many rows one unit has at most; for a distinct source, in how many entries of x it counts."""
        if not self.source.distinct:
            return self.source.limit
        return max(1, min(self.source.limit, len(np.unique(self.entry[self.entry >= 0]))))


@dataclass(frozen=True)
class Span:
    """The rows of W that one private column of a result takes, in the order of its groups."""

    query: int
    output: Output
    start: int
    stop: int


@dataclass(frozen=True)
class Compiled:
    """A compiled batch: answers = diag(scale) @ rows @ x + constants.

    ``rows`` (m x n, primitive integer rows), ``scale`` (m,), ``objective`` (m,): the scale that
    the strategy minimises errors by, that is weight x scale / single-query sensitivity where
    sums are involved. ``contributions`` (n x c) or None: the corners by which the rows of one unit in one
    table can change x, over ``common_multiplicity``. ``groups`` (m,) labels rows over the same columns.
    """

    queries: tuple[Query, ...]
    layouts: tuple[Layout, ...]
    spans: tuple[Span, ...]
    rows: sparse.csr_array = field(repr=False)
    scale: np.ndarray = field(repr=False)
    objective: np.ndarray = field(repr=False)
    contributions: sparse.csr_array | None = field(repr=False)
    groups: IntArray = field(repr=False)

    @property
    def cells(self) -> int:
        """How many cells the batch distinguishes, over all tables."""
        # Merged cells share all their entries of x, so the largest entry tells cells apart.
        return sum(len(np.unique(layout.entry[:, _used(layout)].max(axis=0))) for layout in self.layouts)

    @property
    def common_steps(self) -> int:
        """L, the least common multiple of the measures' steps: x in units of 1/L is an integer."""
        steps = [measure.steps for layout in self.layouts for measure in layout.measures if measure.steps]
        return math.lcm(1, *steps)

    @property
    def answered(self) -> IntArray:
        """The rows of W that are not zero, that is whose answer depends on the data."""
        return np.flatnonzero(np.diff(self.rows.indptr))

    def workload(self, scale: np.ndarray) -> Workload:
        """diag(scale) @ rows over the rows that are not zero."""
        kept = self.answered
        return Workload.from_rows(
            self.rows[kept], scale[kept], contributions=self.contributions, groups=self.groups[kept]
        )


def _used(layout: Layout) -> BoolArray:
    return np.asarray((layout.entry >= 0).any(axis=0))


def compile_batch(queries: Sequence[Query], tables: Mapping[str, Table]) -> Compiled:
    """Compile queries (already held against the policy) to cells and W.

    Cost: regions are O(predicates log predicates) a column; cells as ``compile_cells``; W is
    sparse. Raises SQLError past the caps on combinations, coefficients and measures.
    """
    starts, total = _row_starts(queries)
    if total > MAX_NUMBERS:
        raise SQLError(f"the batch has {total:,} numbers, at most {MAX_NUMBERS:,} are planned together: split it")
    pieces = []
    for name in dict.fromkeys(query.table for query in queries):
        mine = [i for i, query in enumerate(queries) if query.table == name]
        pieces.append(_Table(tables[name], queries, mine, starts).compile(total))
    rows = pieces[0].rows if len(pieces) == 1 else sparse.hstack([piece.rows for piece in pieces], format="csr")
    offset, layouts = 0, []
    for piece in pieces:
        entry = np.where(piece.layout.entry >= 0, piece.layout.entry + offset, -1)
        layouts.append(replace(piece.layout, entry=entry))
        offset += piece.rows.shape[1]
    plain = None
    if any(layout.measures for layout in layouts):
        plain = corners_of([layout.entry for layout in layouts], offset)
    _check_steps(layouts)
    scale = np.sum([piece.scale for piece in pieces], axis=0)
    rows, divisor = _primitive(sparse.csr_array(rows))
    scale = scale * divisor
    spans = tuple(
        Span(i, output, start, start + query.rows)
        for i, query in enumerate(queries)
        for output, start in zip(query.outputs, starts[i], strict=True)
    )
    weight = np.ones(total)
    for span in spans:
        weight[span.start : span.stop] = queries[span.query].weight
    objective = weight * scale / _units(spans, rows, scale, plain)
    contributions = _contributions(layouts, plain, offset)
    return Compiled(
        tuple(queries), tuple(layouts), spans, rows, scale, objective, contributions, _groups(queries, spans)
    )


def _contributions(layouts: Sequence[Layout], plain: sparse.csr_array | None, size: int) -> sparse.csr_array | None:
    """The corners of each table times its multiplicity, all over ``common_multiplicity``; None for unit vectors."""
    common = common_multiplicity(layouts)
    times = [layout.multiplicity // common for layout in layouts]
    if set(times) <= {1}:
        return plain
    parts = [corners_of([layout.entry], size) * k for layout, k in zip(layouts, times, strict=True)]
    return sparse.csr_array(sparse.hstack(parts, format="csr"))


def common_multiplicity(layouts: Sequence[Layout]) -> int:
    """What ``Compiled.contributions`` leave out: one of them stands for that many rows of a unit."""
    return math.gcd(*(layout.multiplicity for layout in layouts)) or 1


def _check_distinct(table: Table, rows: sparse.csr_array, cells: Cells) -> None:
    """Units are counted once a cell: every number must be of one cell, and the way to it short enough for SQL."""
    if table.source is None or not table.source.distinct:
        return
    if rows.nnz and int(np.diff(sparse.csr_array(rows).indptr).max()) > 1:
        raise SQLError(
            "COUNT(DISTINCT ...) over groups that overlap counts units twice: give each group its own statement"
        )
    size = sum(transition.size for transition in cells.transitions)
    if size > MAX_DISTINCT_STATES:
        raise SQLError(
            f"COUNT(DISTINCT ...) tells {size:,} combinations of values apart, at most {MAX_DISTINCT_STATES:,} are "
            "counted: group by fewer columns, or simplify the condition"
        )


def _check_steps(layouts: Sequence[Layout]) -> None:
    steps = [measure.steps for layout in layouts for measure in layout.measures if measure.steps]
    if math.lcm(1, *steps).bit_length() > MAX_COMMON_BITS:
        raise SQLError(
            f"the summed columns' numbers of steps have no common multiple below 2^{MAX_COMMON_BITS}: declare bounds "
            "and steps with rounder widths, or sum fewer columns in one batch"
        )


def _row_starts(queries: Sequence[Query]) -> tuple[list[list[int]], int]:
    starts, total = [], 0
    for query in queries:
        mine = []
        for _ in query.outputs:
            mine.append(total)
            total += query.rows
        starts.append(mine)
    return starts, total


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


def _units(
    spans: Sequence[Span], rows: sparse.csr_array, scale: np.ndarray, contributions: sparse.csr_array | None
) -> np.ndarray:
    """What errors of each row are divided by to compare them: 1 for counts, the sensitivity of sums."""
    units = np.ones(rows.shape[0])
    if contributions is None or not rows.shape[1]:
        return units
    for span in spans:
        if span.output.sums:
            reach = (
                abs(rows[span.start : span.stop] @ contributions).max() * np.abs(scale[span.start : span.stop]).max()
            )
            units[span.start : span.stop] = reach or 1.0
    return units


def _groups(queries: Sequence[Query], spans: Sequence[Span]) -> IntArray:
    labels: dict[frozenset[object], int] = {}
    groups = np.zeros(spans[-1].stop if spans else 0, dtype=np.int64)
    for span in spans:
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
    return groups


@dataclass(frozen=True)
class _Piece:
    """One table's part of the workload: its columns of W (all rows) and row scales."""

    layout: Layout
    rows: sparse.csr_array
    scale: np.ndarray


@dataclass(frozen=True)
class _Use:
    """One term of an output in some of its groups: which block counts it, and the row of each label of the block."""

    block: int
    term: Term
    measure: Measure | None
    rows: IntArray = field(repr=False)


def _case_groups(query: Query) -> Iterator[tuple[tuple[Condition, ...], IntArray]]:
    """For each combination of the query's case groups: their conditions, and the row of each label over the other keys.

    Labels and rows count groups with the last key running fastest.
    """
    sizes = [len(key) for key in query.keys]
    row = np.arange(query.rows).reshape(sizes)
    cased = [at for at, key in enumerate(query.keys) if isinstance(key, CaseKey)]
    for chosen in itertools.product(*(range(sizes[at]) for at in cased)):
        where: list[int | slice] = [slice(None)] * len(sizes)
        conditions: list[Condition] = []
        for at, group in zip(cased, chosen, strict=True):
            key = query.keys[at]
            assert isinstance(key, CaseKey)  # noqa: S101 - narrows the type for the checker
            where[at] = group
            conditions.append(key.conditions[group])
        yield tuple(conditions), row[tuple(where)].ravel()


class _Table:
    """Compiles the queries of one table."""

    def __init__(
        self, table: Table, queries: Sequence[Query], mine: Sequence[int], starts: Sequence[Sequence[int]]
    ) -> None:
        self.table = table
        self.queries = queries
        self.mine = mine
        self.starts = starts
        self.sizes = {start: queries[i].rows for i in mine for start in starts[i]}
        self.keys: dict[str, KeyDomain] = {
            key.column: key for i in mine for key in queries[i].keys if isinstance(key, KeyDomain)
        }
        self.measures: dict[tuple[str, int], Measure] = {}
        self.blocks: dict[Block, int] = {}

    def compile(self, total: int) -> _Piece:
        """The table's piece of a workload with ``total`` rows."""
        uses = [
            (start, output, [use for term in output.terms for use in self._uses(query, term)])
            for i in self.mine
            for query in [self.queries[i]]
            for output, start in zip(query.outputs, self.starts[i], strict=True)
        ]
        cells = compile_cells(self._axes(), list(self.blocks), {name: len(key) for name, key in self.keys.items()})
        rows, scale = self._rows(uses, cells, total)
        return self._merged(cells, rows, scale)

    def _uses(self, query: Query, term: Term) -> list[_Use]:
        """The blocks and measure of a term; a sum counts only rows where its column is not NULL."""
        condition, measure = term.condition, None
        if term.column is not None:
            column = self.table.columns[fold(term.column)]
            policy = column.policy
            if (term.column, term.power) not in self.measures:
                lower, upper = Fraction(policy.lower), Fraction(policy.upper)  # type: ignore[arg-type]
                self.measures[term.column, term.power] = measure_of(
                    *(term.column, column.line, lower, upper, policy.step),
                    self.table.policy.key("columns", column.name),
                    term.power,
                )
            measure = self.measures[term.column, term.power]
            if policy.nulls:
                condition = conjunction(condition, LineAtom(column.name, ((None, None),)))
        names = tuple(key.column for key in query.keys if isinstance(key, KeyDomain))
        return [
            _Use(self.blocks.setdefault(block, len(self.blocks)), term, measure, rows)
            for chosen, rows in _case_groups(query)
            for block in [Block(gather(And, condition, *chosen), names)]
            if block.condition != FALSE
        ]

    def _axes(self) -> list[AxisTruths]:
        on_line: dict[str, list[LineAtom]] = {name: [] for name in self.keys}
        opaque: dict[Predicate, None] = {}
        for block in self.blocks:
            for atom in atoms(block.condition):
                if isinstance(atom, OpaqueAtom):
                    opaque[atom.predicate] = None
                else:
                    on_line.setdefault(atom.column, []).append(atom)
        axes = [
            opaque_axis(p, self.table.columns[fold(p.column if isinstance(p, Like) else p.left)].line) for p in opaque
        ]
        for name, found in on_line.items():
            column = self.table.columns[fold(name)]
            axes.append(
                line_axis(
                    name,
                    column.line,
                    found,
                    closed=column.closed,
                    nulls=column.policy.nulls,
                    keys=self.keys.get(name),
                )
            )
        return axes

    def _rows(
        self,
        uses: Sequence[tuple[int, Output, Sequence[_Use]]],
        cells: Cells,
        total: int,
    ) -> tuple[sparse.csr_array, np.ndarray]:
        """Integer rows over (measure, cell) pairs, entry k * cells + c, and the rows' scales."""
        n = len(cells)
        place = {name: 1 + k for k, name in enumerate(self.measures)}
        labels = np.asfortranarray(cells.labels)
        members: dict[int, tuple[IntArray, IntArray]] = {}
        at_row: list[Any] = []
        at_entry: list[Any] = []
        values: list[IntArray] = []
        scale = np.zeros(total)
        shape = (total, (1 + len(self.measures)) * n)
        # Half the memory and time of long indices, where the numbers fit.
        index = np.int32 if max(shape) < 2**31 else np.int64
        for start, output, terms in uses:
            parts: list[tuple[_Use, int, Fraction]] = []
            for use in terms:
                coefficient, measure = use.term.coefficient, use.measure
                if measure is None:
                    parts.append((use, 0, coefficient))
                else:
                    parts.append((use, 0, coefficient * measure.mid))
                    parts.append((use, place[measure.column, measure.power], coefficient * measure.half))
            parts = [part for part in parts if part[2]]
            unit = _common_unit([part[2] for part in parts], output.name)
            scale[start : start + self.sizes[start]] = float(unit)
            for use, k, coefficient in parts:
                if use.block not in members:
                    found = np.flatnonzero(labels[:, use.block] >= 0)
                    members[use.block] = found.astype(index), labels[found, use.block]
                inside, label = members[use.block]
                rows_of = (start + use.rows).astype(index)
                at_row.append(rows_of[label])
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
        n, s = len(cells), len(self.measures)
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

    def _layout(self, cells: Cells, entry: IntArray) -> Layout:
        computed = {column.name: column.value for column in self.table.columns.values() if column.value is not None}
        source = self.table.source or RowSource(self.table.name)
        return Layout(self.table.name, cells, tuple(self.measures.values()), entry, source, computed)


def _common_unit(values: Sequence[Fraction], name: str) -> Fraction:
    """The largest unit of which all values are integer multiples."""
    if not values:
        return Fraction(1)
    denominator = math.lcm(*(value.denominator for value in values))
    numerators = [int(value * denominator) for value in values]
    unit = Fraction(math.gcd(*numerators), denominator)
    if max(abs(value / unit) for value in values) > MAX_COEFFICIENT:
        raise SQLError(
            f"the coefficients and bounds of {name} differ too finely (beyond 2^40 of their common unit): "
            "use rounder coefficients or bounds"
        )
    return unit
