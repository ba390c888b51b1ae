"""Rows whose tables agree with given ones: public numbers in, public rows out.

Sought are n rows of region numbers, column by column, whose counts c_S agree with targets t_S of every table S:

    least E = sum_S w_S ||c_S - t_S||^2.

Start. A tree over the columns, of largest mutual information between neighbours by the tables that hold both (Chow and
Liu 1968), is sampled from its root on: the rows of each group of the parent are spread over the groups of the child by
one systematic sample, so that every count is within one of its expectation, and unbiased.

Steps. Table after table, rows of cells with too many are moved to cells with too few, one column of a row changed
where that can be and all of them else, as gradual updates do (Zhang and others 2021, PrivSyn). Unlike there a move is
made only where E falls by it, all tables counted that hold a changed column: what is right already is kept.

Cost of a sweep: O(n) a table, and O(tables) a moved row; no model of all cells, so that columns may be as many and the
tables as tangled as they like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.replicates.noise import Generator

_SWEEPS = 24
_STALLED = 0.05
"""A sweep that lowers E by less than this part of it is the last."""


@dataclass(frozen=True, eq=False)
class Face:
    """A column as a table sees it: the group of each region, of ``size`` groups, none of them empty."""

    column: int
    groups: Ints = field(repr=False)
    size: int

    @cached_property
    def by_group(self) -> tuple[Ints, Ints]:
        """The regions in the order of their groups, and where each group's begin."""
        order = np.argsort(self.groups, kind="stable")
        return order, np.searchsorted(self.groups[order], np.arange(self.size + 1))

    def region(self, groups: Ints, draws: Floats) -> Ints:
        """A region of each group, evenly by draws from [0, 1)."""
        order, starts = self.by_group
        begin = starts[groups]
        return np.asarray(order[begin + (draws * (starts[groups + 1] - begin)).astype(np.int64)])


@dataclass(frozen=True, eq=False)
class Target:
    """A table that rows are to agree with: its faces of different columns, their counts, and how much it matters."""

    faces: tuple[Face, ...]
    counts: Floats = field(repr=False)
    weight: float = 1.0

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By how much a group of each face moves the number of the cell."""
        sizes = [face.size for face in self.faces]
        return tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))

    def cells(self, rows: Ints, at: Ints | slice = slice(None)) -> Ints:
        """The cell of each row (columns x n), of those ``at`` some places."""
        out = np.zeros(rows[:1, at].shape[1], dtype=np.int64)
        for face, stride in zip(self.faces, self.strides, strict=True):
            out += face.groups[rows[face.column, at]] * stride
        return out


def fitted(sizes: Sequence[int], targets: Sequence[Target], n: int, generator: Generator) -> Ints:
    """``n`` rows (columns x n) over ``sizes`` regions, whose tables agree with ``targets``, of n rows each, nearly."""
    rows = _start(sizes, targets, n, generator)
    return _Search(rows, targets, generator).run() if n else rows


# -- the start --------------------------------------------------------------------------------------


def _start(sizes: Sequence[int], targets: Sequence[Target], n: int, generator: Generator) -> Ints:
    rows = np.zeros((len(sizes), n), dtype=np.int32)
    finest = _finest(len(sizes), targets)
    pairs = _pairs(finest, targets)
    placed: list[int] = []
    while len(placed) < len(sizes):
        edges = [(p[0], a, b) for (a, b), p in pairs.items() if (a in placed) != (b in placed)]
        if edges and placed:
            _, a, b = max(edges, key=lambda edge: edge[0])
            parent, child = (a, b) if a in placed else (b, a)
            table = pairs[a, b][1]
            table = table if parent == a else table.T
            groups = finest[parent][0].groups[rows[parent]]
        else:
            child = next(c for c in range(len(sizes)) if c not in placed)
            table, groups = finest[child][1][None, :], np.zeros(n, dtype=np.int64)
        face, alone = finest[child]
        found = _spread(groups, table, alone, generator)
        rows[child] = face.region(found, generator.random(n))
        placed.append(child)
    return np.ascontiguousarray(rows)


def _finest(columns: int, targets: Sequence[Target]) -> dict[int, tuple[Face, Floats]]:
    """The face of most groups of each column, and its counts."""
    found: dict[int, tuple[Face, Floats]] = {}
    for target in targets:
        for at, face in enumerate(target.faces):
            if face.column not in found or face.size > found[face.column][0].size:
                others = tuple(axis for axis in range(len(target.faces)) if axis != at)
                found[face.column] = face, target.counts.sum(axis=others)
    return {column: found[column] for column in range(columns)}


def _pairs(
    finest: dict[int, tuple[Face, Floats]], targets: Sequence[Target]
) -> dict[tuple[int, int], tuple[float, Floats]]:
    """(mutual information, counts) of every two columns whose finest faces are in one table, by column numbers."""
    found: dict[tuple[int, int], tuple[float, Floats]] = {}
    for target in targets:
        whole = [at for at, face in enumerate(target.faces) if finest[face.column][0] is face]
        for i, j in combinations(sorted(whole, key=lambda at: target.faces[at].column), 2):
            key = target.faces[i].column, target.faces[j].column
            if key not in found:
                table = target.counts.sum(axis=tuple(a for a in range(len(target.faces)) if a not in (i, j)))
                table = table if i < j else table.T
                found[key] = _information(table), table
    return found


def _information(table: Floats) -> float:
    share = table / max(float(table.sum()), 1e-300)
    apart = share.sum(axis=1, keepdims=True) * share.sum(axis=0, keepdims=True)
    held = share > 0
    return float((share[held] * np.log(share[held] / apart[held])).sum())


def _spread(groups: Ints, table: Floats, alone: Floats, generator: Generator) -> Ints:
    """A group of the child for each row, by the row of ``table`` of its parent's group; ``alone`` where that is empty.

    Cell counts are those of one systematic sample over all cells in turn: each within one of its expectation, and all
    rows of a parent's group are used up exactly.
    """
    count = np.bincount(groups, minlength=len(table)).astype(np.float64)
    weights = np.where(table.sum(axis=1, keepdims=True) > 0, table, alone)
    total = weights.sum(axis=1, keepdims=True)
    share = np.divide(weights, total, out=np.full_like(weights, 1.0 / weights.shape[1]), where=total > 0)
    ends = np.cumsum(share, axis=1)
    ends[:, -1] = 1.0
    ends = np.floor(count[:, None] * ends + np.cumsum(count)[:, None] - count[:, None] + generator.random())
    ends[:, -1] = np.cumsum(count)
    cells = np.diff(ends.ravel(), prepend=0.0).astype(np.int64)
    found = np.empty(len(groups), dtype=np.int64)
    order = generator.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    found[order] = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), cells)
    return found


def rounded(expected: Floats, generator: Generator) -> Ints:
    """Whole numbers within one of ``expected``, unbiased, whose sum is within one of theirs: a systematic sample."""
    ends = np.floor(np.cumsum(expected) + generator.random())
    return np.diff(ends, prepend=0.0).astype(np.int64)


# -- the steps --------------------------------------------------------------------------------------


class _Search:
    """Moves rows while E falls."""

    def __init__(self, rows: Ints, targets: Sequence[Target], generator: Generator) -> None:
        self.rows = rows
        self.targets = targets
        self.generator = generator
        self.over = [
            np.bincount(t.cells(rows), minlength=t.counts.size).astype(np.float64) - t.counts.ravel() for t in targets
        ]
        self.holding: list[list[int]] = [[] for _ in rows]  # tables by column
        for number, target in enumerate(targets):
            for face in target.faces:
                self.holding[face.column].append(number)

    @property
    def energy(self) -> float:
        """E."""
        return sum(t.weight * float(over @ over) for t, over in zip(self.targets, self.over, strict=True))

    def run(self) -> Ints:
        """The rows of least E that were met: sweeps until one gains little. Many moves at once may raise E a little."""
        least, best = self.energy, self.rows.copy()
        for _ in range(_SWEEPS):
            for number in self.generator.permutation(len(self.targets)):
                self._improve(int(number))
            now, before = self.energy, least
            if now < least:
                least, best = now, self.rows.copy()
            if now >= before * (1.0 - _STALLED):
                break
        return best

    def _improve(self, number: int) -> None:
        """Move rows of one table's cells with too many to those with too few, where E falls."""
        target, over = self.targets[number], self.over[number]
        dice = self.generator.random((2, over.size))
        leave = np.floor(np.maximum(over, 0.0) + dice[0]).astype(np.int64)
        enter = np.floor(np.maximum(-over, 0.0) + dice[1]).astype(np.int64)
        if not leave.any() or not enter.any():
            return
        cells = target.cells(self.rows)
        going = np.flatnonzero(leave[cells] > 0)
        going = going[self.generator.permutation(len(going))]
        going = going[_ranks(cells[going]) < leave[cells[going]]]
        places = np.repeat(np.arange(over.size), enter)
        places = places[self.generator.permutation(len(places))]
        for axis in self.generator.permutation(len(target.faces)).tolist():
            face, stride = target.faces[axis], target.strides[axis]
            here, there = cells[going], places
            rest = here - here // stride % face.size * stride
            room = there - there // stride % face.size * stride
            one, two = matched(rest, room)
            self._move(target, going[one], places[two], (face,))
            going, places = np.delete(going, one), np.delete(places, two)
        both = min(len(going), len(places))
        self._move(target, going[:both], places[:both], target.faces)

    def _move(self, target: Target, at: Ints, places: Ints, faces: Sequence[Face]) -> None:
        """Change the columns of ``faces`` of the rows ``at`` to those of the cells ``places``, where E falls by it."""
        if not len(at):
            return
        new = self.rows[:, at]
        for face, stride in zip(target.faces, target.strides, strict=True):
            if face in faces:
                groups = places // stride % face.size
                held = face.groups[new[face.column]] == groups
                drawn = face.region(groups, self.generator.random(len(at)))
                new[face.column] = np.where(held, new[face.column], drawn)
        touched = sorted({number for face in faces for number in self.holding[face.column]})
        was = {number: self.targets[number].cells(self.rows, at) for number in touched}
        becomes = {number: self.targets[number].cells(new) for number in touched}
        gain = np.zeros(len(at))
        for number in touched:
            a, b, over = was[number], becomes[number], self.over[number]
            gain += self.targets[number].weight * np.where(a == b, 0.0, 2.0 * (over[b] - over[a]) + 2.0)
        kept = np.flatnonzero(gain < 0)
        changes = {
            number: _change(was[number][kept], becomes[number][kept], self.over[number].size) for number in touched
        }
        slope = sum(2.0 * self.targets[n].weight * float(self.over[n] @ change) for n, change in changes.items())
        bend = sum(self.targets[n].weight * float(change @ change) for n, change in changes.items())
        if bend > 0 and -slope < 2.0 * bend:  # all at once go too far: the part of them by which E falls most
            kept = kept[self.generator.random(len(kept)) * 2.0 * bend < -slope]
            changes = {n: _change(was[n][kept], becomes[n][kept], self.over[n].size) for n in touched}
        self.rows[:, at[kept]] = new[:, kept]
        for number, change in changes.items():
            self.over[number] += change


def _change(was: Ints, becomes: Ints, size: int) -> Floats:
    """By how much moved rows change the counts of cells."""
    return (np.bincount(becomes, minlength=size) - np.bincount(was, minlength=size)).astype(np.float64)


def _ranks(keys: Ints) -> Ints:
    """How many equal keys come before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(keys) else order
    lengths = np.diff(first, append=len(keys))
    out = np.empty(len(keys), dtype=np.int64)
    out[order] = np.arange(len(keys)) - np.repeat(first, lengths)
    return out


def matched(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Places of pairs of equal keys, each place in one pair at most."""
    wide = max(len(left), len(right), 1)
    _, one, two = np.intersect1d(
        left * wide + _ranks(left), right * wide + _ranks(right), assume_unique=True, return_indices=True
    )
    return one, two
