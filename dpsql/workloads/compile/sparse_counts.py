"""Counts by very many groups of one table: where each group's rows are, without a number for every group.

The batch is one COUNT by groups, perhaps of the rows that meet conditions, of which no two columns are tied together.
Then a row's group follows axis by axis: each axis sends its regions to places of the keys that read it, or nowhere, and
the number of the group is that of its places, the last key fastest, as in every result. A row is in one group at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Self

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.chain import Step
from dpsql.errors import DataError
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.cut_tables import CutTables
from dpsql.workloads.compile.layout import Layout, Span
from dpsql.workloads.expr.batch import Query, Table
from dpsql.workloads.expr.regions import IntArray

MOST_GROUPS = 2**33
"""Groups of a batch, whose numbers are shown as they are."""


@dataclass(frozen=True, eq=False)
class SparseCounts(Batch):
    """A batch of one count by ``groups`` groups, read through its one layout, which has no entries.

    ``places[i]`` (regions,) are what the regions of axis i add to the number of a row's group, -1 where it is in none.
    The one of ``spans`` has the numbers that are at hand, one that stands for all before anything is measured.
    """

    queries: tuple[Query, ...]
    layouts: tuple[Layout, ...] = field(repr=False)
    spans: tuple[Span, ...]
    places: tuple[IntArray, ...] = field(repr=False)
    groups: int

    @property
    def layout(self) -> Layout:
        """The one layout."""
        return self.layouts[0]

    @property
    def answered(self) -> IntArray:
        """All that are at hand."""
        return np.arange(self.spans[0].stop)

    @property
    def steps(self) -> tuple[Step, ...]:
        """One count a group, of those that noise does not hide."""
        return (Step("groups", True, f"{self.groups:,} groups, each counted by itself; most are never listed"),)

    def weighed(self, weights: Floats) -> Self:
        """Itself: one count has one weight."""
        return self

    def listing(self, numbers: int) -> SparseCounts:
        """The batch with so many numbers at hand."""
        return replace(self, spans=(replace(self.spans[0], stop=numbers),))

    @property
    def numbers(self) -> int:
        """How many counts there are."""
        return self.groups

    @property
    def cells(self) -> int:
        """The groups."""
        return self.groups

    def group(self, regions: Sequence[IntArray]) -> IntArray:
        """The number of the group of every combination of regions (one array an axis), -1 where it is in none."""
        found = np.zeros(len(regions[0]), dtype=np.int64)
        outside = np.zeros(len(found), dtype=bool)
        for region, places in zip(regions, self.places, strict=True):
            place = np.where(region < 0, -1, places[np.maximum(region, 0)])
            outside |= place < 0
            found += np.maximum(place, 0)
        return np.where(outside, -1, found)

    def digest(self) -> str:
        """A hash of what is counted."""
        digest = hashlib.sha256(str(self.groups).encode())
        for places in self.places:
            digest.update(places.astype("<i8").tobytes())
        return digest.hexdigest()


def compile_sparse(queries: Sequence[Query], tables: Mapping[str, Table]) -> SparseCounts:
    """A batch of one count by groups. Cost: the sizes of its axes. Raises SQLError as cutting them, DataError else."""
    if len(queries) != 1 or len(queries[0].outputs) != 1 or not queries[0].keys:
        raise DataError(
            "method='sparse' is for one COUNT by groups: SELECT a, b, COUNT(*) FROM t GROUP BY a, b; ask for other "
            "numbers in a batch of their own"
        )
    cut = CutTables(queries, tables)
    if cut.counted_once:
        raise DataError("method='sparse' counts rows, and the batch counts values or units once; use COUNT(*)")
    (held,) = cut.held.values()
    blocks = held.blocks()
    tied = any(len(factor.axes) != 1 for block in blocks for factor in block.factors)
    if len(blocks) != 1 or tied or blocks[0].component or blocks[0].coefficient != 1:
        raise DataError(
            "method='sparse' counts rows by groups, with conditions on one column each, joined by AND; ask for sums, "
            "and for what depends on several columns at once, with another method"
        )
    (block,) = blocks
    groups = prod(block.key_sizes)
    places = [np.zeros(size, dtype=np.int64) for size in held.sizes]
    for factor in block.factors:
        (axis,) = factor.axes
        matrix = factor.matrix.tocsc()
        if matrix.shape[1] != held.sizes[axis] or int(np.diff(matrix.indptr).max()) > 1 or (matrix.data != 1).any():
            raise DataError("method='sparse' needs groups of which a row is in one at most")
        inside = np.diff(matrix.indptr) == 1
        of_keys = np.unravel_index(matrix.indices, tuple(block.key_sizes[key] for key in factor.keys) or (1,))
        step = [prod(block.key_sizes[key + 1 :]) for key in factor.keys] or [1]
        places[axis] = np.full(held.sizes[axis], -1, dtype=np.int64)
        places[axis][inside] = sum(at.astype(np.int64) * s for at, s in zip(of_keys, step, strict=True))
    layout = replace(held.whole, entry=np.zeros((1, 0), dtype=np.int64))
    span = Span(0, queries[0].outputs[0], 0, 1)
    return SparseCounts(tuple(queries), (layout,), (span,), tuple(places), groups)
