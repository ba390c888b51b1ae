"""The tables of a structured batch, cut: their axes, and the factors of each query's condition and keys over them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array
from dpsql.errors import InternalError, SQLError
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.histograms import MAX_ENTRIES, lay_out, too_large
from dpsql.workloads.compile.kronecker import Histogram
from dpsql.workloads.compile.layout import Layout, Span, spans_of
from dpsql.workloads.expr.batch import CaseKey, Key, Query, Table
from dpsql.workloads.expr.conditions import (
    FALSE,
    TRUE,
    And,
    Condition,
    Constant,
    LineAtom,
    Or,
    atoms,
    conjunction,
    gather,
)
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.expr.regions import AxisTruths, BoolArray, KeyDomain
from dpsql.workloads.expr.related import Functions
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.terms import Measures, axes_of, distinguished_columns, keys_of

MAX_STEPS = 2**32  # steps to write one out, some seconds: its entries times the parts of its conditions
MAX_TRIED = 10_000  # combinations of a statement's groups that are looked at to see whether any can hold


class CutTables:
    """The tables of a batch with their axes, which are cut once they are looked at. Cost: cutting the axes.

    ``counted_once``: the names of those of which a unit, or a value, counts once in a group, which are not cut.
    SQLError past ``deadline``, from whatever is asked of them.
    """

    def __init__(self, queries: Sequence[Query], tables: Mapping[str, Table], deadline: Deadline = NONE) -> None:
        self.spans = spans_of(queries)
        self.counted_once: list[str] = []
        self.held: dict[str, _Table] = {}
        for number, name in enumerate(dict.fromkeys(query.table for query in queries)):
            source = tables[name].source
            if source is not None and source.distinct:
                self.counted_once.append(name)
                continue
            mine = [span for span in self.spans if queries[span.query].table == name]
            self.held[name] = _Table(tables[name], number, queries, mine, deadline)

    @property
    def single(self) -> bool:
        """Whether no table has more than one axis or sums, tables of units counted once left out. Cuts none."""
        return all(len(table.names) <= 1 and not table.measures.found for table in self.held.values())

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The numbers of regions of each table's axes, tables of units counted once left out."""
        return [table.sizes for table in self.held.values()]

    @property
    def widest(self) -> int:
        """The most combinations of regions that one part of a condition is over."""
        return max((table.widest for table in self.held.values()), default=1)


@dataclass(frozen=True)
class _Use:
    """A term on one component: the rows for which ``condition`` holds, times ``coefficient``."""

    component: int
    coefficient: Fraction
    condition: Condition


class _Table:
    """Compiles the queries of one table."""

    def __init__(
        self, table: Table, number: int, queries: Sequence[Query], spans: Sequence[Span], deadline: Deadline
    ) -> None:
        self.table = table
        self.deadline = deadline
        self.done = 0  # spans
        self.number = number
        self.queries = queries
        self.spans = spans
        self.measures = Measures(table, distinguished_columns(queries[one] for one in {span.query for span in spans}))
        self.asked: dict[Condition, None] = {}
        self.uses: dict[int, list[_Use]] = {}
        for span in spans:
            self._on_time()
            self.uses[span.start] = self._uses(span)
            self.done += 1
        self.keys = keys_of(queries[span.query] for span in spans)
        self.factors: dict[object, RowFactor | None] = {}
        self.regions_of: dict[int, dict[int, BoolArray]] = {}  # by keys, as are the next: many spans have the same ones
        self.axes_by: dict[int, frozenset[int]] = {}

    @cached_property
    def names(self) -> set[object]:
        """The columns and opaque predicates that are an axis each."""
        found = {a.column if isinstance(a, LineAtom) else a.predicate for held in self.asked for a in atoms(held)}
        return found | set(self.keys)

    @cached_property
    def cut(self) -> list[AxisTruths]:
        """The axes with all regions that a row can be in."""
        return axes_of(self.table, self.asked, self.keys)

    @cached_property
    def axes(self) -> list[AxisTruths]:
        """The axes with the regions that some number counts: where each asks for some values of a column, as for its
        groups, rows of other values are in no cell, as are those outside of a closed domain.
        """
        counted = [np.zeros(truths.axis.size, dtype=bool) for truths in self.cut]
        for span in self.spans:
            keys = self.queries[span.query].keys
            for use in self.uses[span.start]:
                regions_at = self._counted_regions(use.condition, keys)
                for at, regions in enumerate(counted):
                    regions |= regions_at.get(at, True)
        return [truths.within(regions) for truths, regions in zip(self.cut, counted, strict=True)]

    def _counted_regions(self, condition: Condition, keys: Sequence[Key]) -> dict[int, BoolArray]:
        """Of single axes the regions outside of which no row is counted."""
        regions_at: dict[int, BoolArray] = {}
        for part in condition.operands if isinstance(condition, And) else (condition,):
            if isinstance(part, LineAtom):
                at = self.place[part.column]
                regions_at[at] = regions_at.get(at, True) & self.cut[at].truth(part)
        for key in keys:
            if id(key) not in self.regions_of:
                self.regions_of[id(key)] = self._regions_of_groups(key)
            for at, some in self.regions_of[id(key)].items():
                regions_at[at] = regions_at.get(at, True) & some
        return regions_at

    def _regions_of_groups(self, key: Key) -> dict[int, BoolArray]:
        """The same of the groups of one key."""
        if isinstance(key, KeyDomain):
            at, group = self.place[key.column], self.cut[self.place[key.column]].key_of_region
            return {} if group is None else {at: group >= 0}
        if not key.listed or not key.atoms:
            return {}
        at = self.place[key.atoms[0].column]
        some = np.zeros(self.cut[at].axis.size, dtype=bool)
        for atom in key.atoms:
            some[self.cut[at].regions(atom)] = True
        return {at: some}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of regions of each axis."""
        return tuple(truths.axis.size for truths in self.axes)

    @cached_property
    def place(self) -> dict[object, int]:
        """The number of each axis, by its name."""
        return {_name(truths): at for at, truths in enumerate(self.cut)}

    @cached_property
    def widest(self) -> int:
        """The most combinations of regions that one part of a condition is over."""
        parts = {part for held in self.asked for part in (held.operands if isinstance(held, And) else (held,))}
        return max((prod(self.sizes[axis] for axis in self._used(part)) for part in parts), default=1)

    def _on_time(self) -> None:
        self.deadline.check(self.done, len(self.spans), "columns of results")

    # -- blocks -----------------------------------------------------------------------------------

    def _uses(self, span: Span) -> list[_Use]:
        """What a span sums. Notes all conditions of the batch, also those of sums that come to nothing.

        A row without a region on an axis is in no cell, so the axes must be those of one matrix over all of them.
        """
        found: list[_Use] = []
        for term in span.output.terms:
            measure, known = self.measures.of(term), self.measures.not_null(term)
            where = term.condition if known is None else conjunction(term.condition, known)
            groups = [key.conditions for key in self.queries[span.query].keys if isinstance(key, CaseKey)]
            some = itertools.islice(itertools.product(*groups), MAX_TRIED)
            if all(gather(And, where, *chosen) == FALSE for chosen in some):
                continue
            self.asked.update(dict.fromkeys([where, *(condition for held in groups for condition in held)]))
            if measure is None:
                found.append(_Use(0, term.coefficient, where))
                continue
            found.append(_Use(0, term.coefficient * measure.mid, where))
            # z is 0 where the column is NULL, so that its sum needs no condition on that.
            found.append(_Use(self.measures.place(measure), term.coefficient * measure.half, term.condition))
        return [use for use in found if use.coefficient]

    def blocks(self) -> list[RowBlock]:
        """One block for each span and component."""
        out = []
        for done, span in enumerate(self.spans):
            self.done = done
            self._on_time()
            query = self.queries[span.query]
            held: dict[int, list[tuple[_Use, tuple[RowFactor, ...]]]] = {}
            for use in self.uses[span.start]:
                factors = self._factors(query, use.condition, span.output.name)
                if factors is not None:
                    held.setdefault(use.component, []).append((use, factors))
            reach = sum(abs(float(use.coefficient)) for found in held.values() for use, _ in found)
            weight = query.weight / (reach if span.output.sums and reach else 1.0)
            key_sizes = tuple(len(key) for key in query.keys)
            for component, found in held.items():
                coefficient, factors = float(found[0][0].coefficient), found[0][1]
                if len(found) > 1:
                    coefficient, factors = 1.0, self._sum(found, key_sizes, span.output.name)
                    if not factors:
                        continue
                out.append(
                    RowBlock(span.start, span.stop, self.number, component, coefficient, weight, key_sizes, factors)
                )
        return out

    def _factors(self, query: Query, condition: Condition, name: str) -> tuple[RowFactor, ...] | None:
        """The factors of a condition and the query's keys: axes that neither ties together stay apart.

        None where no row satisfies it.
        """
        conjuncts = condition.operands if isinstance(condition, And) else (condition,)
        parts: list[tuple[frozenset[int], Any, int]] = [
            (frozenset(self._used(part)), part, -1) for part in conjuncts if part != TRUE
        ]
        parts += [(self._key_axes(key), key, at) for at, key in enumerate(query.keys)]
        groups: list[tuple[frozenset[int], list[tuple[Any, int]]]] = []
        for axes, part, at in parts:
            near = [group for group in groups if group[0] & axes]
            groups = [group for group in groups if not group[0] & axes]
            merged = [item for group in near for item in group[1]]
            groups.append((axes.union(*(group[0] for group in near)), [*merged, (part, at)]))
        out = []
        for axes, items in groups:
            items.sort(key=lambda item: item[1])
            memo = (axes, tuple((id(part) if at >= 0 else part, at) for part, at in items))
            if memo not in self.factors:
                self.factors[memo] = self._factor(tuple(sorted(axes)), items, name)
            factor = self.factors[memo]
            if factor is None:
                return None
            out.append(factor)
        return tuple(out)

    def _used(self, condition: Condition) -> set[int]:
        return {self.place[a.column if isinstance(a, LineAtom) else a.predicate] for a in atoms(condition)}

    def _key_axes(self, key: Key) -> frozenset[int]:
        if isinstance(key, KeyDomain):
            return frozenset((self.place[key.column],))
        if not key.listed:  # a batch with one is compiled by ``line_batch``
            raise InternalError(f"workload: {key.name} is no key of blocks")
        if id(key) not in self.axes_by:
            self.axes_by[id(key)] = frozenset(axis for held in key.conditions for axis in self._used(held))
        return self.axes_by[id(key)]

    def _factor(self, axes: tuple[int, ...], items: Sequence[tuple[Any, int]], name: str) -> RowFactor | None:
        conditions = [part for part, at in items if at < 0]
        keys = [(part, at) for part, at in items if at >= 0]
        sizes = tuple(self.sizes[axis] for axis in axes)
        _check_factor(prod(sizes), [self.axes[axis].axis.name for axis in axes], sizes, name)
        _check_steps(sum(map(_parts, conditions)), [self.axes[axis].axis.name for axis in axes], sizes)
        holds = np.ones(sizes, dtype=bool)
        for condition in conditions:
            holds = holds & self._truth(condition, axes)
        if len(axes) == 1 and len(keys) == 1 and isinstance(keys[0][0], KeyDomain):
            group = self.axes[axes[0]].key_of_region
            assert group is not None  # noqa: S101 - a key column is cut with its groups
            used = np.flatnonzero(holds & (group >= 0))
            entries = (np.ones(len(used)), (group[used], used))
            matrix = sparse.csr_array(entries, shape=(len(keys[0][0]), sizes[0]))
        elif len(axes) == 1 and len(keys) == 1 and all(isinstance(part, LineAtom) for part in keys[0][0].conditions):
            members = [self.axes[axes[0]].regions(part) for part in keys[0][0].conditions]
            members = [regions[holds[regions]] for regions in members]
            starts = np.cumsum([0, *map(len, members)])
            shape = (len(members), sizes[0])
            matrix = sparse.csr_array((np.ones(starts[-1]), np.concatenate(members), starts), shape=shape)
        elif not keys:
            inside = np.flatnonzero(holds).astype(np.int32)
            ends = np.array([0, inside.size], dtype=np.int32)
            matrix = sparse.csr_array((np.ones(inside.size), inside, ends), shape=(1, prod(sizes)))
        else:
            rows = prod(len(key) for key, _ in keys)
            _check_factor(rows * prod(sizes), [self.axes[axis].axis.name for axis in axes], sizes, name)
            table = holds.reshape(1, -1)
            for key, _ in keys:
                self._on_time()
                table = (table[:, None, :] & self._members(key, axes)[None]).reshape(-1, prod(sizes))
            matrix = sparse.csr_array(table.astype(np.float64))
        return RowFactor(axes, tuple(at for _, at in keys), matrix) if matrix.nnz else None

    def _members(self, key: Key, axes: tuple[int, ...]) -> BoolArray:
        """(groups x combinations): which combinations of regions are in which group of a key."""
        shape = tuple(self.sizes[axis] for axis in axes)
        if isinstance(key, CaseKey):
            held = [np.broadcast_to(self._truth(condition, axes), shape).ravel() for condition in key.conditions]
            return np.array(held).reshape(len(key), -1)
        group = self.axes[self.place[key.column]].key_of_region
        assert group is not None  # noqa: S101 - a key column is cut with its groups
        along = np.broadcast_to(self._along(group, self.place[key.column], axes), shape).ravel()
        return np.asarray(along[None, :] == np.arange(len(key))[:, None])

    def _along(self, values: Array, axis: int, axes: tuple[int, ...]) -> Array:
        return values.reshape([-1 if at == axis else 1 for at in axes])

    def _truth(self, condition: Condition, axes: tuple[int, ...]) -> BoolArray:
        """Where a condition holds, over the product of ``axes`` (to be broadcast)."""
        if isinstance(condition, Constant):
            return np.full((1,) * len(axes), condition.truth)
        if isinstance(condition, And | Or):
            combine = np.logical_and if isinstance(condition, And) else np.logical_or
            out = self._truth(condition.operands[0], axes)
            for part in condition.operands[1:]:
                self._on_time()  # millions of combinations a part
                out = combine(out, self._truth(part, axes))
            return np.asarray(out)
        axis = self.place[condition.column if isinstance(condition, LineAtom) else condition.predicate]
        return np.asarray(self._along(self.axes[axis].truth(condition), axis, axes))

    def _sum(
        self, terms: Sequence[tuple[_Use, tuple[RowFactor, ...]]], key_sizes: tuple[int, ...], name: str
    ) -> tuple[RowFactor, ...]:
        """Several terms on one component as one factor over all their axes; none where they cancel."""
        axes = tuple(sorted({axis for _, factors in terms for factor in factors for axis in factor.axes}))
        sizes = tuple(self.sizes[axis] for axis in axes)
        _check_factor(prod(key_sizes) * prod(sizes), [self.axes[a].axis.name for a in axes], sizes, name)
        total = np.zeros((*key_sizes, *sizes))
        for use, factors in terms:
            one = np.ones((1,) * (len(key_sizes) + len(axes)))
            for factor in factors:
                held = factor.matrix.toarray()
                held = held.reshape([key_sizes[k] for k in factor.keys] + [self.sizes[a] for a in factor.axes])
                places = [*factor.keys, *(len(key_sizes) + axes.index(a) for a in factor.axes)]
                shape = [1] * one.ndim
                for place, size in zip(places, held.shape, strict=True):
                    shape[place] = size
                one = one * held.transpose(np.argsort(places)).reshape(shape)
            total = total + float(use.coefficient) * one
        matrix = sparse.csr_array(np.ascontiguousarray(total).reshape(prod(key_sizes), prod(sizes)))
        matrix.eliminate_zeros()
        return (RowFactor(axes, tuple(range(len(key_sizes))), matrix),) if matrix.nnz else ()

    # -- histograms -------------------------------------------------------------------------------

    def layouts(
        self, blocks: Sequence[RowBlock], start: int, *, alone: bool = False
    ) -> list[tuple[Layout, list[Histogram]]]:
        """A layout for each set of axes that lies in no other, with the components that its blocks need.

        ``alone``: for each axis instead.
        """
        wanted: dict[tuple[int, ...], set[int]] = {}
        for block in blocks:
            for axes in [(axis,) for axis in block.axes] if alone else [block.axes]:
                wanted.setdefault(axes, set()).add(block.component)
        return lay_out(self.number, self.whole, self.sizes, wanted, start)

    @property
    def whole(self) -> Layout:
        """The layout over all axes and measures, without entries."""
        computed = {c.name: c.value for c in self.table.columns.values() if c.value is not None}
        return Layout(
            self.table.name,
            Grid(tuple(truths.axis for truths in self.axes)),
            tuple(self.measures.found.values()),
            np.zeros((0, 0), dtype=np.int64),
            self.table.source or RowSource(self.table.name),
            computed,
            functions=Functions(self.table.columns, self.table.evaluate),
        )


def _name(truths: AxisTruths) -> object:
    axis: Any = truths.axis
    return axis.column if hasattr(axis, "column") else axis.predicate


def _parts(condition: Condition) -> int:
    return sum(map(_parts, condition.operands)) if isinstance(condition, And | Or) else 1


def _check_steps(parts: int, names: Sequence[str], sizes: Sequence[int]) -> None:
    if len(sizes) > 1 and parts * prod(sizes) > MAX_STEPS:
        raise SQLError(
            f"a condition has {parts:,} parts over {prod(sizes):,} combinations of regions of {' and '.join(names)}, "
            f"at most {MAX_STEPS // prod(sizes):,} parts are planned there: split it over several statements",
            code="too-large",
        )


def _check_factor(entries: int, names: Sequence[str], sizes: Sequence[int], name: str) -> None:
    if entries > MAX_ENTRIES:
        raise too_large(names, sizes, MAX_ENTRIES, f" for each of the groups of {name}" if name else "")
