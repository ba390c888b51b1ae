"""Batches over all ranges, or all prefixes, of a long line: W = line x rest, a product that is never written out.

All statements are grouped by the same ``RangeKey``. The rest of each (what it counts and sums, its conditions and other
keys) is a small batch by itself, compiled as any other; x has an entry for each entry e of that batch and each of the
n values i of the line, at place e n + i. What is measured is line x rest in integers, B = M (x) L: M the small
batch's strategy, L that of the line (``dpsql.linalg.lines``).

Sensitivity. A row lies in one cell of the small batch and at one value of the line, so it moves x by c (x) u_i, c
one of the small batch's corners and u_i a unit vector, and B x by (M c) (x) (L u_i). Both norms of a product of
vectors are the products of theirs, so the largest is that of M times that of L, exactly, and k rows of a unit
move B x by at most k times it (``dpsql.workloads.compile.sensitivity``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats
from dpsql.common.chain import Step
from dpsql.errors import InternalError, SQLError
from dpsql.linalg.lines import Line
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.compiled import Batch, Compiled, compile_batch, once_text
from dpsql.workloads.compile.layout import Layout, Span
from dpsql.workloads.expr.batch import Query, RangeKey, Table
from dpsql.workloads.expr.regions import Axis, IntArray, KeyDomain, RunAxis, line_axis

MOST_ENTRIES = 4_200_000
"""The most entries of x: each is a group of the scan and, about, a measurement."""
_FEW = 64


@dataclass(frozen=True)
class Lined(Batch):
    """A batch over one line: ``inner`` is the small batch; see the module.

    Number r of the small batch is ``len(line)`` numbers of this one, one after the other.
    """

    inner: Compiled = field(repr=False)
    line: RangeKey = field()  # of its own: the base has a default
    queries: tuple[Query, ...]
    layouts: tuple[Layout, ...]
    spans: tuple[Span, ...]

    @property
    def small(self) -> Compiled:
        """The batch over the entries of x at one value of the line."""
        return self.inner

    @property
    def steps(self) -> tuple[Step, ...]:
        """The line apart from the rest."""
        text = f"{self.line.text}: one strategy for its {self.length:,} values, times one for all else"
        return Step("line", False, text), *self.inner.steps

    def weighed(self, weights: Floats) -> Self:
        """The same batch with other weights of its small batch's numbers."""
        return replace(self, inner=self.inner.weighed(weights))

    @property
    def length(self) -> int:
        """n, the values of the line."""
        return len(self.line.values)

    @property
    def cells(self) -> int:
        """How many cells the batch distinguishes."""
        return self.inner.cells * self.length

    @property
    def answered(self) -> IntArray:
        """The numbers of the small batch whose answer depends on the data."""
        return self.inner.answered


@dataclass(frozen=True, eq=False)
class LineIntegers:
    """B = M (x) L for x by entries e n + i: row r p + q is row r of M = ``rest`` and row q of ``line``."""

    rest: Integers
    line: Line

    @property
    def shape(self) -> tuple[int, int]:
        """(measurements, entries of x)."""
        p, n = self.rest.shape
        return p * self.line.rows, n * self.line.n

    @property
    def written(self) -> None:
        """None: B is never written out."""
        return None

    def check(self) -> None:
        """As M: the line's products are exact for every number of bits."""
        self.rest.check()

    def times(self, x: Sequence[int], bits: int) -> list[int]:
        """Along the line first, which takes long integers, then M at each measurement of it."""
        rows, entries = self.rest.shape
        n = self.line.n
        along = [self.line.times(x[e * n : (e + 1) * n], bits) for e in range(entries)]
        if entries <= _FEW:  # M is small and the line long: M's entries times whole measurements of the line
            columns = [self.rest.times([int(e == other) for other in range(entries)], 1) for e in range(entries)]
            held = [np.array(part, dtype=object) for part in along]
            out: list[int] = []
            for r in range(rows):
                total = np.zeros(self.line.rows, dtype=object)
                for column, part in zip(columns, held, strict=True):
                    if column[r]:
                        total = total + column[r] * part
                out.extend(total.tolist())
            return out
        grown = bits + self.line.l1.bit_length()
        each = [self.rest.times(list(values), grown) for values in zip(*along, strict=True)]
        return [values[r] for r in range(rows) for values in each]

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """Products of the norms of M, over the small batch's corners, and of L: exact."""
        l1, l2 = self.rest.norms(self._rest_of(entry))
        return l1 * self.line.l1, l2 * self.line.l2_squared

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """The product of both factors' own."""
        return self.rest.largest_norm(self._rest_of(entry), order) * self.line.largest_norm(order)

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        return len(entries) == 1

    def digest(self) -> str:
        """The SHA-256 of both factors."""
        return hashlib.sha256(self.rest.digest().encode() + self.line.digest()).hexdigest()

    def _rest_of(self, entry: IntArray) -> IntArray:
        """The small batch's entries, where the layout is its cells times the line's values; InternalError elsewhere."""
        n = self.line.n
        held = entry[:, ::n]
        inner = np.where(held >= 0, held // n, -1)
        whole = np.where(inner[:, :, None] >= 0, inner[:, :, None] * n + np.arange(n), -1)
        if entry.shape[1] % n or not np.array_equal(whole.reshape(entry.shape), entry):
            raise InternalError("measure: the cells of a line are not those of its small batch times its values")
        return np.asarray(inner)


def line_of_batch(queries: Sequence[Query]) -> RangeKey | None:
    """The long line by which queries of the batch are grouped; None where there is none.

    Raises SQLError where they are grouped by several, or some by none: such a batch is no product.
    """
    found = [[key for key in query.keys if not key.listed] for query in queries]
    keys = [key for mine in found for key in mine]
    if not keys:
        return None
    if any(len(mine) != 1 or mine[0] != keys[0] for mine in found) or len({query.table for query in queries}) > 1:
        raise SQLError(
            f"{keys[0].text} has {len(keys[0]):,} groups, too many to list; a batch with it holds statements over one "
            "table that are all grouped by it: run the others as a batch of their own",
            code="too-many-groups",
        )
    return keys[0]


def compile_line(queries: Sequence[Query], tables: Mapping[str, Table], key: RangeKey) -> Lined:
    """Compile queries that are all grouped by ``key``. Raises SQLError past the caps, or where units are counted."""
    table = tables[queries[0].table]
    if table.source is not None and table.source.distinct:
        raise SQLError(
            f"{once_text(table)} over {key.text} counts units twice, as its groups overlap; count rows",
            code="count-distinct",
        )
    rest = tuple(replace(query, keys=tuple(other for other in query.keys if other.listed)) for query in queries)
    inner = compile_batch(rest, tables, boxes=False)
    n = len(key.values)
    if inner.rows.shape[1] * n > MOST_ENTRIES:
        raise SQLError(
            f"the batch tells {inner.rows.shape[1] * n:,} cells apart, {inner.rows.shape[1]:,} at each of {n:,} values "
            f"of {key.column}; at most {MOST_ENTRIES:,} are planned: group by fewer columns beside {key.text}, or "
            "split the batch",
            code="too-large",
        )
    (layout,) = inner.layouts
    cells = _along(layout.listed_cells, _axis(key), n)
    entry = np.where(layout.entry[:, :, None] >= 0, layout.entry[:, :, None] * n + np.arange(n), -1)
    spread = replace(layout, cells=cells, entry=entry.reshape(len(layout.entry), -1))
    groups = len(key)
    spans = tuple(replace(span, start=span.start * groups, stop=span.stop * groups) for span in inner.spans)
    return Lined(inner, key, tuple(queries), (spread,), spans)


def _axis(key: RangeKey) -> Axis:
    """The line's values, each a region of its own, in their order."""
    n = len(key.values)
    if key.first is not None:
        return RunAxis(key.column, key.line, key.first, n)
    domain = KeyDomain(key.column, key.type, tuple(key.values), key.points, False, False)
    found = line_axis(key.column, key.line, (), closed=key.points, nulls=False, keys=domain)
    if found.key_of_region is None or not np.array_equal(found.key_of_region, np.arange(n)):
        raise InternalError("workload: a line's values are not its regions in their order")
    return found.axis


def _along(cells: Cells, axis: Axis, n: int) -> Cells:
    """The cells of the small batch times the values of the line, these fastest."""
    states = len(cells.cell_of_state)
    size = len(cells) * n
    last = np.arange(states * n, dtype=np.int32).reshape(states, n)
    of_state = np.where(cells.cell_of_state[:, None] >= 0, cells.cell_of_state[:, None] * n + np.arange(n), -1)
    none: Csr = sparse.csr_array(sparse.coo_array((0, size), dtype=np.int32))
    return Cells((*cells.axes, axis), (*cells.transitions, last), of_state.ravel(), none)
