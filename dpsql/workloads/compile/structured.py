"""Structured compile: a batch as Kronecker blocks over histograms of few axes each, the product of all never built.

A block (rows of W with one condition and keys) needs only the axes that it names: its rows are Kronecker products of
small matrices, one for each set of axes that the condition ties together. x holds one histogram for each set of axes
that lies in no other, and every block reads one that has all its axes.

Residuals. For axes i with d_i regions let C_i = I - 1 1^T / d_i. A row w over the axes S splits into w_T, T in S:
centred along the axes of T and averaged over the others,

    <w, x_S> = sum over T in S of <w_T, x_T>,        x_T the marginal on T,

since I = C_i + 1 1^T / d_i on every axis and 1^T sums x_S over it. That is an identity, for any rows that x_S counts:
what is measured of the x_T separately adds up to every answer (``dpsql.strategies.kronecker.structured``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import Self

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats
from dpsql.common.chain import Step, order_of
from dpsql.errors import SQLError
from dpsql.linalg.blocks import RowBlock, RowFactor, joined
from dpsql.workloads.compile.compiled import Batch, compile_rows, once_text
from dpsql.workloads.compile.cut_tables import CutTables
from dpsql.workloads.compile.histograms import lay_out
from dpsql.workloads.compile.kronecker import Histogram
from dpsql.workloads.compile.layout import Layout, Span, common_steps, spans_of
from dpsql.workloads.expr.batch import Query, Table
from dpsql.workloads.expr.regions import IntArray
from dpsql.workloads.expr.too_many import check_numbers

MAX_NUMBERS = 4_000_000
MAX_SHOWN = 25_000_000
"""Numbers of a batch of marginals, or of one of which only a part may be measured."""


@dataclass(frozen=True, eq=False)
class Structured(Batch):
    """A batch compiled to blocks: number r of a span is the sum of its blocks' rows r, and a constant.

    ``sizes[t]`` are the numbers of regions of table t's axes, ``tables`` their names, ``names[t]`` those of its axes.
    ``layouts`` fill ``histograms``, one for each component (0 the count, k > 0 the k-th measure) needed there.
    """

    queries: tuple[Query, ...]
    spans: tuple[Span, ...]
    tables: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    names: tuple[tuple[str, ...], ...]
    blocks: tuple[RowBlock, ...] = field(repr=False)
    layouts: tuple[Layout, ...] = field(repr=False)
    histograms: tuple[Histogram, ...] = field(repr=False)
    owners: tuple[tuple[int, ...], ...] = field(repr=False)  # layouts of each table, by number

    @property
    def cells(self) -> int:
        """How many combinations of regions there are, over all tables."""
        return sum(prod(sizes) for sizes in self.sizes)

    @cached_property
    def answered(self) -> IntArray:
        """The numbers that a block contributes to."""
        found = np.zeros(self.numbers, dtype=bool)
        for block in self.blocks:
            found[block.start : block.stop] = True
        return np.flatnonzero(found)

    @property
    def weights(self) -> Floats:
        """What the error of each number is multiplied by in the objective (m,)."""
        found = np.zeros(self.numbers)
        for block in self.blocks:
            found[block.start : block.stop] = block.weight
        return found

    @property
    def steps(self) -> tuple[Step, ...]:
        """Columns kept apart."""
        tables = "1 table" if len(self.histograms) == 1 else f"{len(self.histograms):,} tables"
        text = f"{order_of(self.cells)} cells are never listed; {tables} over a few columns each have all that is read"
        return (Step("columns", True, text),)

    def weighed(self, weights: Floats) -> Self:
        """The same batch with an objective of other weights (m,), alike within each block."""
        return replace(self, blocks=tuple(replace(b, weight=float(weights[b.start])) for b in self.blocks))

    @cached_property
    def pure(self) -> bool:
        """Whether every block counts each group of each of its axes by itself, as marginals do."""
        return all(len(f.axes) == 1 and is_marginal(f.matrix) for b in self.blocks for f in b.factors)


def is_marginal(matrix: Csr) -> bool:
    """A square permutation matrix: every region is a group."""
    p, d = matrix.shape
    return bool(p == d == matrix.nnz and (matrix.data == 1).all() and len(np.unique(matrix.indices)) == d)


def is_nearly_marginal(matrix: Csr) -> bool:
    """Whether every group is one region of its own, and nearly all regions are groups."""
    m, d = matrix.shape
    return m >= 0.9 * d and is_single(matrix)


def is_single(matrix: Csr) -> bool:
    """Whether every group is one region of its own."""
    m = matrix.shape[0]
    single = matrix.nnz == m > 0 and bool((np.diff(matrix.indptr) == 1).all()) and np.ptp(matrix.data) == 0
    return bool(single) and len(np.unique(matrix.indices)) == m


def compile_structured(
    queries: Sequence[Query], tables: Mapping[str, Table], cut: CutTables | None = None, *, shown: bool = False
) -> Structured:
    """Compile queries to blocks. Cost: the sizes of the histograms and of conditions over several columns.

    ``cut`` are the same tables where they have been cut before. ``shown``: only a part of the numbers may be measured;
    of more than ``MAX_NUMBERS`` the histograms are then those of single axes, and others follow by ``with_histograms``.
    Raises SQLError above ``MAX_SHOWN`` numbers, and where a histogram, the entries of x or a factor are above the caps,
    with the columns to drop.
    """
    spans = spans_of(queries)
    check_numbers(queries, MAX_SHOWN)
    alone = shown and bool(spans) and spans[-1].stop > MAX_NUMBERS
    blocks: list[RowBlock] = []
    layouts: list[Layout] = []
    histograms: list[Histogram] = []
    owners: list[tuple[int, ...]] = []
    sizes: list[tuple[int, ...]] = []
    names: list[tuple[str, ...]] = []
    listed = tuple(dict.fromkeys(query.table for query in queries))
    cut = CutTables(queries, tables) if cut is None else cut
    for name in cut.counted_once:
        if shown or not _counts_units(tables[name]):
            raise SQLError(
                f"{once_text(tables[name])} is not planned beside so many groups: ask for it in a batch of its own"
            )
    for number, name in enumerate(listed):
        entries = histograms[-1].stop if histograms else 0
        if name in cut.counted_once:
            layout, mine = _units_counted(queries, tables, spans, number, name)
            sizes.append((max(1, len(np.unique(layout.entry[layout.entry >= 0]))),))  # one even where none is counted
            names.append((" x ".join(axis.name for axis in layout.cells.axes),))
            found = lay_out(number, layout, sizes[-1], {}, entries)
        else:
            compiled = cut.held[name]
            mine = _joined(compiled.blocks(), spans, compiled.sizes)
            sizes.append(compiled.sizes)
            names.append(tuple(truths.axis.name for truths in compiled.axes))
            found = compiled.layouts(mine, entries, alone=alone)
        owners.append(tuple(range(len(layouts), len(layouts) + len(found))))
        for layout, held in found:
            layouts.append(layout)
            histograms.extend(held)
        blocks.extend(mine)
    common_steps(layouts)
    return Structured(
        tuple(queries), spans, listed, tuple(sizes), tuple(names), tuple(blocks), tuple(layouts), tuple(histograms),
        tuple(owners),
    )  # fmt: skip


def _counts_units(table: Table) -> bool:
    return table.source is not None and table.source.counts_units


def _units_counted(
    queries: Sequence[Query], tables: Mapping[str, Table], spans: Sequence[Span], number: int, name: str
) -> tuple[Layout, list[RowBlock]]:
    """The layout and blocks of table ``number``, of which a unit counts once in each group: one axis has all groups.

    A group is a merged cell, as of one matrix; regions of columns would count a unit in each of them.
    """
    mine = [i for i, query in enumerate(queries) if query.table == name]
    (layout,), rows, scale = compile_rows([queries[i] for i in mine], tables)
    blocks, start = [], 0
    for span in (span for span in spans if span.query in set(mine)):
        query, stop = queries[span.query], start + span.stop - span.start
        held = sparse.csr_array(sparse.diags_array(scale[start:stop]) @ rows[start:stop])
        key_sizes = tuple(len(key) for key in query.keys)
        factor = RowFactor((0,), tuple(range(len(key_sizes))), held)
        if held.nnz:
            blocks.append(RowBlock(span.start, span.stop, number, 0, 1.0, query.weight, key_sizes, (factor,)))
        start = stop
    return layout, blocks


def _joined(blocks: Sequence[RowBlock], spans: Sequence[Span], sizes: Sequence[int]) -> list[RowBlock]:
    """The blocks, with all counts of one quantile as one block wherever they differ in the condition on it alone."""
    series = {span.start: (span.query, span.output.part_of) for span in spans if span.output.part_of}
    alone = Counter(block.start for block in blocks)

    def kind(block: RowBlock) -> object:
        held = series.get(block.start) if alone[block.start] == 1 else None
        return (held, block.coefficient, block.weight) if held else block.start

    out: list[RowBlock] = []
    for _, found in groupby(blocks, kind):
        mine = list(found)
        follow = all(one.stop == other.start for one, other in pairwise(mine))
        made = joined(mine, sizes) if len(mine) > 1 and follow and mine[0].start in series else None
        out.extend(mine if made is None else [made])
    return out


def with_histograms(batch: Structured, needed: Mapping[int, Mapping[tuple[int, ...], set[int]]]) -> Structured:
    """The batch with other histograms: for each table the sets of axes, and the components that are needed there.

    Raises SQLError where they are too large.
    """
    layouts: list[Layout] = []
    histograms: list[Histogram] = []
    owners = []
    for number, owned in enumerate(batch.owners):
        first = len(layouts)
        if owned:
            whole = batch.layouts[owned[0]].whole
            start = histograms[-1].stop if histograms else 0
            for layout, held in lay_out(number, whole, batch.sizes[number], needed.get(number, {(): {0}}), start):
                layouts.append(layout)
                histograms.extend(held)
        owners.append(tuple(range(first, len(layouts))))
    return replace(batch, layouts=tuple(layouts), histograms=tuple(histograms), owners=tuple(owners))


def regions_of(queries: Sequence[Query], tables: Mapping[str, Table]) -> list[tuple[int, ...]]:
    """The numbers of regions of each table's axes, tables of units counted once left out. Cost: cutting the axes."""
    return CutTables(queries, tables).sizes
