"""Contributions: all that one privacy unit can change, as a finite set C of vectors over the entries of x.

A unit's rows that count in one source add a sum of corners (``dpsql.workloads.cells.corners``) to x: in a source of
rows at most ``limit`` of any cells, in a distinct source one of each of at most ``limit`` different cells. Norms of B c
are convex in c and a sum of k corners is a mean of k times each of them, so of rows that may all fall into one cell the
k times single corners decide; of different cells all sums do, as no cell counts twice. In both the unit may have none.
Of a source that counts values a unit adds any number from 0 on to an entry, as many as its rows bring and there can be
(``dpsql.workloads.compile.values_once``): the corners are entries at their limit, of which any sum counts, or where
that is too much all extreme sums, one at a time. Where the policy bounds how many rows a unit has in each class of
cells, all of them are best in one cell of the class: sums of one corner of each class decide, each as often as rows of
the class count.

Sources that share a unit: it adds to each what it likes, so C has the sums of one change, or none, of each source.
Where two of them read one table, its rows decide both. A count of units beside the rows that they are counted by is
``Tied``, several counts of units over the same rows are ``Patterns``; of others C may hold sums that no unit makes: a
superset is sound.
Sources that share none are moved by different neighbours: the union.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Ints, Matrix, Sparse
from dpsql.errors import InternalError
from dpsql.linalg.columns import distinct_columns
from dpsql.workloads.families.patterns import ENOUGH, Patterns

MOST_LISTED = ENOUGH
"""Vectors of C up to which they are written out, one by one."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one source adds: ``times`` a sum of at most ``most`` of the columns of ``corners`` (n x c), all different.

    ``label`` (c,): the class of each corner, of which at most one is in a sum; None where each is a class of its own.
    """

    corners: Sparse = field(repr=False)
    times: int
    most: int
    label: Ints | None = field(default=None, repr=False)

    @property
    def labels(self) -> Ints:
        """The class of each corner (c,)."""
        return np.arange(self.corners.shape[1]) if self.label is None else self.label

    @property
    def classes(self) -> list[Ints]:
        """The numbers of the corners of each class."""
        if self.label is None:
            return [np.array([i]) for i in range(self.corners.shape[1])]
        return [np.flatnonzero(self.label == one) for one in np.unique(self.label)]

    @property
    def count(self) -> int:
        """How many sums there are, the empty one not among them."""
        if self.label is None:
            return sum(math.comb(self.corners.shape[1], size) for size in range(1, self.most + 1))
        ways = [1] + [0] * self.most
        for number in np.unique(self.label, return_counts=True)[1].tolist():
            for size in range(self.most, 0, -1):
                ways[size] += number * ways[size - 1]
        return sum(ways[1:])

    def sums(self) -> Iterator[tuple[int, ...]]:
        """The numbers of the corners of each sum."""
        classes = [one.tolist() for one in self.classes]
        for size in range(1, self.most + 1):
            for chosen in combinations(classes, size):
                yield from product(*chosen)

    def longest(self, norms: Array) -> Array:
        """Of each class the largest of ``norms`` (c,), which are given corner by corner."""
        if self.label is None:
            return norms
        return np.array([norms[one].max() for one in self.classes], dtype=norms.dtype)

    def listed(self) -> Sparse:
        """All sums but the empty one (n x count), not yet ``times`` them."""
        return sparse.csc_array(self.corners @ _indicators(list(self.sums()), self.corners.shape[1]))


@dataclass(frozen=True, eq=False)
class Tied:
    """What one unit adds to a source of rows and to the count of units over the very rows that count.

    A corner is one of the rows' source and the cell, its class ``label`` (c,), in which such a row has the unit
    counted, -1 where in none. ``more`` (n x c) is what a row adds to the rows' source, ``first`` (n x c) the same with
    the unit's count. A unit with rows in s classes adds a sum over these of rows of each, at most ``most`` in all, and
    is counted once in each class. For fixed classes that is a mean of sums that have one row in each, and none or all
    other rows that may count of one of these corners, or of one without a class. A norm is largest at one of them.
    Rows that have no unit, which no count counts, add ``most`` rows of one corner at the farthest; there are none where
    the scan keeps none of them (``nobody``). ``classes``: in how many of them a unit is at most, where a bound says so.
    """

    first: Sparse = field(repr=False)
    more: Sparse = field(repr=False)
    label: Ints = field(repr=False)
    most: int
    classes: int | None = None
    nobody: bool = True

    @property
    def alone(self) -> Ints:
        """The corners of which all rows may be, without a count of their unit."""
        return np.flatnonzero(self.label < 0) if not self.nobody else np.arange(self.label.size)

    @cached_property
    def limit(self) -> int:
        """In how many classes a unit is at most."""
        limit = min(self.most, np.unique(self.label[self.label >= 0]).size)
        return limit if self.classes is None else min(limit, self.classes)

    @property
    def columns(self) -> Sparse:
        """``first`` beside ``more`` (n x 2c)."""
        return sparse.csc_array(sparse.hstack([self.first, self.more], format="csc"))

    @property
    def count(self) -> int:
        """How many sums there are."""
        ways, free = [1] + [0] * self.limit, int((self.label < 0).sum())
        for number in np.unique(self.label[self.label >= 0], return_counts=True)[1].tolist():
            for size in range(self.limit, 0, -1):
                ways[size] += number * ways[size - 1]
        by_size = (ways[size] * (1 + (size + free) * (size < self.most)) for size in range(1, self.limit + 1))
        return self.alone.size + sum(by_size)

    def listed(self) -> Sparse:
        """All sums (n x count)."""
        c, free = self.label.size, np.flatnonzero(self.label < 0).tolist()
        once: list[tuple[int, ...]] = [()] * self.alone.size
        again = [(i, self.most) for i in self.alone.tolist()]
        inside = np.flatnonzero(self.label >= 0)
        for chosen in Part(self.first[:, inside], 1, self.limit, self.label[inside]).sums():
            mine, rest = tuple(inside[list(chosen)].tolist()), self.most - len(chosen)
            others = [(0, 0), *((i, rest) for i in (*mine, *free) if rest)]
            once += [mine] * len(others)
            again += others
        at, times = np.array(again, dtype=np.int64).T
        further = sparse.csc_array((times, (at, np.arange(times.size))), shape=(c, times.size))
        return sparse.csc_array(self.first @ _indicators(once, c) + self.more @ further)

    def through(self, seen: Sparse) -> Tied:
        """The same over ``seen`` @ x (v x n), without corners of zeros and with one of those that are equal there."""
        both, c = sparse.csc_array(seen @ self.columns), self.label.size
        stacked = sparse.csc_array(sparse.vstack([both[:, :c], both[:, c:]], format="csc"))
        alike = distinct_columns(stacked).label
        moving = np.flatnonzero(alike >= 0)
        _, at = np.unique(np.stack([self.label[moving], alike[moving]]), axis=1, return_index=True)
        kept = moving[at]
        return replace(self, first=both[:, kept], more=both[:, c + kept], label=self.label[kept])

    def some(self) -> Sparse:
        """A few of the sums: one class each, many of them, and rows without a unit."""
        inside = np.flatnonzero(self.label >= 0)
        each = np.unique(self.label[inside], return_index=True)[1][: self.limit]
        most = self.first[:, inside] @ _indicators([tuple(each.tolist())], inside.size)
        free = sparse.csc_array(self.more)[:, self.alone] * self.most
        return sparse.csc_array(sparse.hstack([free, self.first[:, inside], most], format="csc"))


def tied_to(patterns: Patterns, number: int) -> Tied:
    """What a unit adds to one count of units of ``patterns``, which have rows and no classes, and to these rows.

    What is kept of a unit is at most ``most`` rows for all counts together, so that it is so for each of them.
    """
    if patterns.rows is None or patterns.classes is not None:
        raise InternalError("units are tied to counted rows, of patterns without classes")
    row, label = np.unique(np.stack([patterns.rows, patterns.cells[number]]), axis=1)
    counted, units = np.flatnonzero(row >= 0), np.flatnonzero(label >= 0)
    more = sparse.csc_array((np.ones_like(counted), (row[counted], counted)), shape=(patterns.size, row.size))
    unit = sparse.csc_array((np.ones_like(units), (label[units], units)), shape=more.shape)
    return Tied(sparse.csc_array(more + unit), more, label, patterns.most, nobody=patterns.nobody)


@dataclass(frozen=True, eq=False)
class Contributions:
    """C over ``size`` entries of x: for each kind of unit what it can change of each of its sources.

    ``tied`` has, for some kinds of unit, what it can change of its first two sources together: less than the sums of
    one change of each. ``patterns`` has what it can change of some of its sources together. ``cache``: what was
    planned for them, to be found again when the same queries are weighed anew. ``exact``: the labels of units of which
    C is just what they can change (``dpsql.workloads.compile.one_unit``). ``over``: all of it is written so many times
    as long as it is, where it has fractions (``dpsql.workloads.compile.counts_with_sums``).
    """

    units: tuple[tuple[Part, ...], ...]
    size: int
    tied: Mapping[int, Tied] = field(default_factory=dict)
    patterns: Mapping[int, tuple[Patterns, ...]] = field(default_factory=dict)
    cache: dict[object, Any] = field(default_factory=dict, repr=False)
    exact: frozenset[str] = frozenset()
    over: int = 1

    @cached_property
    def common(self) -> Fraction | int:
        """The greatest common divisor of all ``times`` over ``over``: a factor of the norm, which lists leave out."""
        return self.divisor if self.over == 1 else Fraction(self.divisor, self.over)

    @cached_property
    def divisor(self) -> int:
        """``common`` of what is written."""
        return math.gcd(*(part.times for parts in self.units for part in parts)) or 1

    @cached_property
    def count(self) -> int:
        """How many vectors C has, without the zero vector."""
        return sum(math.prod(1 + part.count for part in self._independent(kind)) - 1 for kind in range(len(self.units)))

    def _independent(self, kind: int) -> tuple[Part | Tied | Patterns, ...]:
        """What a kind of unit changes, as it likes in each."""
        parts, tied, patterns = self.units[kind], self.tied.get(kind), self.patterns.get(kind, ())
        held = {number for one in patterns for number in one.parts}
        apart = parts if tied is None else parts[2:]
        first = () if tied is None else (tied,)
        return (*first, *patterns, *(part for number, part in enumerate(apart) if number not in held))

    @property
    def by_grouping(self) -> bool:
        """Whether every count of units is planned with the rows by its own groups: C is of rows and their units."""
        return bool(self.units) and all(
            any(one.rows is not None and one.classes is None and len(one.parts) == len(parts) for one in patterns)
            for kind, parts in enumerate(self.units)
            for patterns in (self.patterns.get(kind, ()),)
        )

    @property
    def single(self) -> bool:
        """Whether every unit moves one corner of one source, some times."""
        return all(len(parts) == 1 and parts[0].most == 1 for parts in self.units)

    @property
    def listable(self) -> bool:
        """Whether C is written out whole; else ``columns`` hold some of it."""
        return self.count <= MOST_LISTED or self.single

    @property
    def plain(self) -> bool:
        """Whether ``columns`` are the unit vectors: one count in one cell, as often for every kind of unit."""
        if not self.single or any(parts[0].times != self.common for parts in self.units):
            return False
        corners = [part.corners for parts in self.units for part in parts]
        return all(one.nnz == one.shape[1] and bool((abs(one.data) == 1).all()) for one in corners)

    @cached_property
    def columns(self) -> Csr:
        """C over ``common`` (n x vectors, integer csr); where it is not ``listable`` each source's part alone, in
        single corners and the sum of the first ``most``.
        """
        return sparse.csr_array(self.by_column)

    @cached_property
    def by_column(self) -> Sparse:
        """``columns`` as csc."""
        listed = self.listable
        kinds = [self._independent(kind) for kind in range(len(self.units))]
        found = [self._listed(parts) if listed else self._some(parts) for parts in kinds]
        return sparse.csc_array(sparse.hstack(found, format="csc", dtype=np.int64))

    def longest(self, rows: Csr, order: int) -> float:
        """The largest L1 (``order`` 1) or squared L2 norm (2) of rows @ c, c in C, in floats.

        Where C is not listable, for ``rows`` that read one source; of L2 then a bound, the product of the largest sum
        in one row and the largest L1 norm, which is met where sums spread over rows or fall into one.
        """
        if self.listable:
            held = abs(sparse.csc_array(rows @ self.columns).astype(np.float64)) ** order
            return float(held.sum(axis=0).max(initial=0.0)) * float(self.common) ** order
        found = 0.0
        for part in (part for parts in self.units for part in parts):
            moved = abs(sparse.csc_array(rows @ part.corners).astype(np.float64))
            norms = part.longest(np.asarray(moved.sum(axis=0)))
            norm = float(np.sort(norms)[::-1][: part.most].sum())
            if order == 2:
                norm *= _in_one_row(part, moved)
            found = max(found, float(part.times) ** order * norm)
        return found

    def _listed(self, parts: Sequence[Part | Tied | Patterns]) -> Sparse:
        """All sums of one change, or none, of each source of a unit, but for none of all."""
        if len(parts) == 1 and isinstance(parts[0], Part) and parts[0].most == 1:
            times = parts[0].times // self.divisor
            return parts[0].corners if times == 1 else parts[0].corners * times
        listed = [part.listed() * (self._times(part) // self.divisor) for part in parts]
        if len(listed) == 1:
            return listed[0]
        starts = np.cumsum([0, *(one.shape[1] for one in listed)]).tolist()
        choices = [[(), *((i,) for i in range(a, b))] for a, b in pairwise(starts)]
        chosen = [tuple(i for one in sums for i in one) for sums in product(*choices)][1:]
        return sparse.csc_array(sparse.hstack(listed, format="csc") @ _indicators(chosen, starts[-1]))

    def _times(self, part: Part | Tied | Patterns) -> int:
        return part.times if isinstance(part, Part) else 1

    def _some(self, parts: Sequence[Part | Tied | Patterns]) -> Sparse:
        found = []
        for part in parts:
            if not isinstance(part, Part):
                found.append(part.some())
                continue
            scaled = part.corners * (part.times // self.divisor)
            found.append(scaled)
            if part.most > 1:
                first = tuple(int(one[0]) for one in part.classes[: part.most])
                found.append(scaled @ _indicators([first], scaled.shape[1]))
        return sparse.csc_array(sparse.hstack(found, format="csc"))


def _indicators(chosen: Sequence[tuple[int, ...]], size: int) -> sparse.csc_array:
    """0/1 columns (size x len(chosen)) with ones at the numbers of each."""
    lengths = np.fromiter(map(len, chosen), dtype=np.int64, count=len(chosen))
    flat = np.fromiter((i for one in chosen for i in one), dtype=np.int64, count=int(lengths.sum()))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csc_array((np.ones(flat.size, dtype=np.int64), flat, starts), shape=(size, len(chosen)))


def _in_one_row(part: Part, columns: Matrix) -> float:
    """The most that a sum of columns of ``columns``, the rows times a part's corners, has in one row."""
    entries = sparse.coo_array(columns)
    label = part.labels
    place = entries.row * (int(label.max(initial=0)) + 1) + label[entries.col]
    _, start = np.unique(place, return_inverse=True)
    best = np.zeros(int(start.max(initial=-1)) + 1)
    np.maximum.at(best, start, entries.data)
    row = np.zeros(best.size, dtype=np.int64)
    row[start] = entries.row
    order = np.lexsort((-best, row))
    rank = np.arange(order.size) - np.searchsorted(row[order], row[order])
    held = order[rank < part.most]
    return float(np.bincount(row[held], weights=best[held], minlength=1).max())
