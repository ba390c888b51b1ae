"""Contributions: all that one privacy unit can change, as a finite set C of vectors over the entries of x.

A unit's rows that count in one source add a sum of corners (``dpsql.workload.cells.corners``) to x: in a source of rows
at most ``limit`` of any cells, in a distinct source one of each of at most ``limit`` different cells. Norms of B c are
convex in c and a sum of k corners is a mean of k times each of them, so of rows that may all fall into one cell the k
times single corners decide; of different cells all sums do, as no cell counts twice. In both the unit may have none.
Where the policy bounds how many rows a unit has in each class of cells, all of them are best in one cell of the class:
sums of one corner of each class decide, each as often as rows of the class count.

Sources that share a unit: it adds to each what it likes, so C has the sums of one change, or none, of each source.
Where two of them read one table, its rows decide both, and C may hold sums that no unit makes: a superset is sound.
Sources that share none are moved by different neighbours: the union.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product

import numpy as np
from scipy import sparse

from dpsql.arrays import Array, Csr, Ints, Matrix, Sparse

MOST_LISTED = 5_000
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


@dataclass(frozen=True, eq=False)
class Contributions:
    """C over ``size`` entries of x: for each kind of unit what it can change of each of its sources."""

    units: tuple[tuple[Part, ...], ...]
    size: int

    @cached_property
    def common(self) -> int:
        """The greatest common divisor of all ``times``: lists leave it out, so that it is a factor of the norm."""
        return math.gcd(*(part.times for parts in self.units for part in parts)) or 1

    @cached_property
    def count(self) -> int:
        """How many vectors C has, without the zero vector."""
        return sum(math.prod(1 + part.count for part in parts) - 1 for parts in self.units)

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
        return all(part.corners.nnz == part.corners.shape[1] for parts in self.units for part in parts)

    @cached_property
    def columns(self) -> Csr:
        """C over ``common`` (n x vectors, integer csr); where it is not ``listable`` each source's part alone, in
        single corners and the sum of the first ``most``.
        """
        found = [self._listed(parts) if self.listable else self._some(parts) for parts in self.units]
        return sparse.csr_array(sparse.hstack(found, format="csr", dtype=np.int64))

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

    def _listed(self, parts: Sequence[Part]) -> Sparse:
        """All sums of one change, or none, of each source of a unit, but for none of all."""
        if len(parts) == 1 and parts[0].most == 1:
            return parts[0].corners * (parts[0].times // self.common)
        held = sparse.hstack([part.corners * (part.times // self.common) for part in parts], format="csc")
        starts = np.cumsum([0, *(part.corners.shape[1] for part in parts)]).tolist()
        choices = [
            [(), *(tuple(start + i for i in one) for one in part.sums())]
            for part, start in zip(parts, starts, strict=False)
        ]
        chosen = [tuple(i for one in sums for i in one) for sums in product(*choices)][1:]
        return sparse.csc_array(held @ _indicators(chosen, held.shape[1]))

    def _some(self, parts: Sequence[Part]) -> Sparse:
        found = []
        for part in parts:
            scaled = part.corners * (part.times // self.common)
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


def _in_one_row(part: Part, moved: Matrix) -> float:
    """The most that a sum of columns of ``moved``, the rows times a part's corners, has in one row."""
    entries = sparse.coo_array(moved)
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
