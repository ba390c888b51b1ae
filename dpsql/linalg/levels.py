"""Levels of one axis: what groupings of its regions that nest leave alike, as spaces orthogonal to each other.

Sets of regions of which any two are apart or one inside the other make a tree, its leaves the regions. Children of one
parent are alike where the trees below them are, with the same sets at the same places: the months of quarters of years
are, those of 30 days, the groups of a column, NULL apart from them. Exchanging alike children changes no Gram matrix
of the sets. The vectors over the regions fall into

    the vectors that are constant on *orbits*, regions that can take each other's place, and
    for each kind of children of which a parent has k > 1, the contrasts between alike ones: for every orbit below
    such a child, sums over the regions of the orbit in each child, centred among siblings,

which are the isotypic components of the group of all exchanges (it acts on the contrasts of one kind of children in the
same irreducible way for every orbit below them, and on no two kinds alike). So a matrix that exchanges leave alone is,
on each level, one small matrix over orbits, times the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints

MOST_LEVELS, MOST_ORBITS = 32, 64
_MOST_ENTRIES = 2_000_000  # of all sets together


@dataclass(frozen=True, eq=False)
class Level:
    """``child`` (d,): the child that a region is below, -1 for none; one after the other, ``alike`` of each parent.

    The first level of an axis has all regions below one child without siblings (``alike`` 1), which is not centred.
    """

    alike: int
    children: int
    child: Ints = field(repr=False)

    @property
    def square(self) -> int:
        """The squared length of a column of what ``contrasts`` measures."""
        return self.alike * (self.alike - 1) if self.alike > 1 else 1

    @property
    def size(self) -> int:
        """The sum of the absolute values of such a column, and of a row."""
        return 2 * (self.alike - 1) if self.alike > 1 else 1

    @property
    def share(self) -> float:
        """The squared length of one child centred among its siblings; dimensions over children."""
        return 1.0 - 1.0 / self.alike if self.alike > 1 else 1.0

    def contrasts(self, sums: Ints, axis: int) -> Ints:
        """k times each child less its siblings and itself, along an axis over the children."""
        if self.alike == 1:
            return sums
        children = self._by_parent(sums, axis)
        return np.asarray((self.alike * children - children.sum(axis=axis + 1, keepdims=True)).reshape(sums.shape))

    def solve(self, measured: Floats, axis: int) -> Floats:
        """The centred sums of least squares from noisy ``contrasts``."""
        if self.alike == 1:
            return measured
        children = self._by_parent(measured, axis)
        return np.asarray((children - children.mean(axis=axis + 1, keepdims=True)).reshape(measured.shape) / self.alike)

    def _by_parent(self, counts: np.ndarray, axis: int) -> np.ndarray:
        return counts.reshape(*counts.shape[:axis], -1, self.alike, *counts.shape[axis + 1 :])

    def product(self, left: Ints, right: Ints) -> Floats:
        """Inner products of children centred among siblings, number by number."""
        if self.alike == 1:
            return np.ones(left.size)
        return np.asarray((left == right) - (left // self.alike == right // self.alike) / self.alike)


@dataclass(frozen=True, eq=False)
class LevelRows:
    """The rows of one matrix over an axis on its levels.

    Row r is of ``kind[r]`` (-1: no region), and on level l ``times[l, kind]`` times the sums of ``whole[l, kind]``
    (0 or 1 of each orbit) of child ``at[l, r]``, centred; nothing where that is -1.
    """

    kind: Ints
    at: Ints
    whole: Ints
    times: Floats

    def parts(self) -> list[tuple[int, int]]:
        """(level, kind) where rows are not nothing."""
        return [(int(a), int(b)) for a, b in zip(*np.nonzero(self.times), strict=True)]


@dataclass(frozen=True, eq=False)
class AxisLevels:
    """The levels of an axis, the ``orbit`` (d,) of each region, and the rows of each matrix."""

    levels: tuple[Level, ...]
    orbit: Ints = field(repr=False)
    rows: tuple[LevelRows, ...] = field(repr=False)

    @property
    def orbits(self) -> int:
        return int(self.orbit.max()) + 1

    @property
    def regions(self) -> Ints:
        """One region of each orbit."""
        return np.asarray(np.unique(self.orbit, return_index=True)[1])


def levels_of(d: int, matrices: Sequence[Csr]) -> AxisLevels | None:
    """The levels of an axis of ``d`` regions for the rows of some matrices, and for single regions.

    The rows of a matrix may be exchanged with each other. ``rows`` has one more, all regions as one. None where sets
    overlap, a row is no multiple of a set, or levels and orbits are many. Cost: the entries of the matrices.
    """
    if sum(m.nnz for m in matrices) > _MOST_ENTRIES:
        return None
    tree = _Tree(d)
    rows = [tree.takes(number, matrix) for number, matrix in enumerate(matrices)]
    if any(held is None for held in rows) or not tree.grown():
        return None
    return tree.levels([*(held for held in rows if held is not None), [(0, 1.0)]])


class _Tree:
    """Sets of regions, first the one of all of them."""

    def __init__(self, d: int) -> None:
        self.d = d
        self.sets: list[Ints] = [np.arange(d)]
        self.labels: list[list[tuple[int, float]]] = [[]]
        self.place = {self.sets[0].tobytes(): 0}

    def takes(self, number: int, matrix: Csr) -> list[tuple[int, float]] | None:
        """(set, entry) of each row, set -1 for an empty one; None where entries of a row differ."""
        matrix = sparse.csr_array(matrix)
        matrix.sort_indices()
        out = []
        for a, b in zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True):
            values = matrix.data[a:b]
            if a == b or not values.any():
                out.append((-1, 0.0))
                continue
            if (values != values[0]).any():
                return None
            at = self._at(matrix.indices[a:b].astype(np.int64))
            self.labels[at].append((number, float(values[0])))
            out.append((at, float(values[0])))
        return out

    def _at(self, members: Ints) -> int:
        at = self.place.setdefault(members.tobytes(), len(self.sets))
        if at == len(self.sets):
            self.sets.append(members)
            self.labels.append([])
        return at

    def grown(self) -> bool:
        """Find every set's parent; whether no two sets overlap."""
        if self.d > 1:
            for region in range(self.d):
                self._at(np.array([region], dtype=np.int64))
        self.order = sorted(range(len(self.sets)), key=lambda at: -self.sets[at].size)
        self.parent = [-1] * len(self.sets)
        owner = np.zeros(self.d, dtype=np.int64)
        for at in self.order[1:]:
            above = owner[self.sets[at]]
            if (above != above[0]).any():
                return False
            self.parent[at] = int(above[0])
            owner[self.sets[at]] = at
        self.leaf = owner
        return True

    def levels(self, rows: Sequence[list[tuple[int, float]]]) -> AxisLevels | None:
        shapes: dict[object, int] = {}
        below: list[list[int]] = [[] for _ in self.sets]
        shape = [0] * len(self.sets)
        for at in reversed(self.order):
            told = tuple(sorted(self.labels[at])), tuple(sorted(below[at]))
            shape[at] = shapes.setdefault(told, len(shapes))
            if self.parent[at] >= 0:
                below[self.parent[at]].append(shape[at])
        names: dict[object, int] = {}
        self.kind = [0] * len(self.sets)
        members: dict[int, list[int]] = {}
        for at in self.order:
            above = self.kind[self.parent[at]] if self.parent[at] >= 0 else -1
            self.kind[at] = names.setdefault((above, shape[at]), len(names))
            members.setdefault(self.kind[at], []).append(at)
        kind = np.array(self.kind)
        orbit = np.unique(kind[self.leaf], return_inverse=True)[1].ravel()
        found = [Level(1, 1, np.zeros(self.d, dtype=np.int64))]
        inside = [np.bincount(orbit)]  # of each level: the regions of each orbit below one child
        of_kind: dict[int, int] = {}
        for number, held in members.items():
            parents = len({self.parent[at] for at in held})
            if len(held) == parents:
                continue
            child = np.full(self.d, -1)
            for position, at in enumerate(sorted(held, key=lambda at: (self.parent[at], int(self.sets[at][0])))):
                child[self.sets[at]] = position
            of_kind[number] = len(found)
            found.append(Level(len(held) // parents, len(held), child))
            inside.append(np.bincount(orbit[self.sets[held[0]]], minlength=inside[0].size))
        if len(found) > MOST_LEVELS or inside[0].size > MOST_ORBITS:
            return None
        return AxisLevels(tuple(found), orbit, tuple(self._rows(mine, found, of_kind, inside, orbit) for mine in rows))

    def _rows(
        self,
        rows: Sequence[tuple[int, float]],
        levels: Sequence[Level],
        of_kind: dict[int, int],
        inside: Sequence[Ints],
        orbit: Ints,
    ) -> LevelRows:
        told: dict[tuple[int, float], int] = {}
        kind = np.array([told.setdefault((self.kind[at], by), len(told)) if at >= 0 else -1 for at, by in rows])
        first = np.array([int(self.sets[at][0]) if at >= 0 else 0 for at, _ in rows])
        at_child = np.full((len(levels), len(rows)), -1)
        whole = np.zeros((len(levels), len(told), inside[0].size), dtype=np.int64)
        times = np.zeros((len(levels), len(told)))
        for (_, by), number in told.items():
            mine = np.flatnonzero(kind == number)
            at = rows[int(mine[0])][0]
            held = np.bincount(orbit[self.sets[at]], minlength=inside[0].size)
            reached, above = [0], at
            while above >= 0:
                if self.kind[above] in of_kind:
                    reached.append(of_kind[self.kind[above]])
                above = self.parent[above]
            # Sets alike are as many above every region of the orbits below them, so that of each orbit one has the same
            # share of what is below a child.
            some = int(np.argmax(held))
            for level in reached:
                whole[level, number] = held > 0
                times[level, number] = by * float(held[some]) / float(inside[level][some])
                at_child[level, mine] = levels[level].child[first[mine]]
        return LevelRows(kind, at_child, whole, times)


__all__ = ["AxisLevels", "Level", "LevelRows", "levels_of"]
