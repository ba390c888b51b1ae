"""Integer measurements on the levels of axes (``dpsql.linalg.levels``), of counts and sums together.

A part is one level for each axis of a table. A *reading* is a histogram with weights over the orbits of each axis: the
weighted sums over the regions of each child, and contrasts of those among alike children, axis by axis. Of r readings
of a part k_1, ..., k_r a matrix C (r x r) of integers is measured: sum_s C_qs (contrasts of reading s).

Sensitivity, exactly. A row is in one region of each axis and adds to the k-th sum some z_k in [-1, 1]. What it moves of
reading s is h_s = z_k times the product over the axes of the weight of its region's orbit, times a vector that no
reading but only the place depends on: contrasts of one child, whose squared length is the product of k (k - 1) over
the levels. So it moves a part by (prod k (k - 1)) |C h|^2, or nothing where the region is below no child, and orbits
and the corners of the box of z decide the largest sum over the parts. Where the column that is summed is NULL z is 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Ints
from dpsql.errors import InternalError
from dpsql.linalg.levels import AxisLevels, Level
from dpsql.workloads.compile.kronecker import Histogram, InWords
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.regions import IntArray, LineAxis


@dataclass(frozen=True, eq=False)
class Reading:
    """``weights``: of the orbits of each axis of the table, all 1 on axes that the histogram has not."""

    component: int
    histogram: int
    weights: tuple[Ints, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Part:
    """``levels``: the number of the level of each axis; ``matrix`` C (r x r) int64."""

    levels: tuple[int, ...]
    readings: tuple[Reading, ...] = field(repr=False)
    matrix: Ints = field(repr=False)


@dataclass(frozen=True, eq=False)
class LevelIntegers(InWords[Part]):
    """B on levels, an ``Integers`` of one table. y has the parts one after the other, each r x the children.

    Raises InternalError where an orbit is partly below children of a level, or a reading lacks an axis of its part.
    """

    histograms: tuple[Histogram, ...]
    axes: tuple[AxisLevels, ...] = field(repr=False)
    parts: tuple[Part, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for axis in self.axes:
            for level in axis.levels:
                below = level.child >= 0
                if (below != below[axis.regions][axis.orbit]).any() or int(level.child.max()) >= level.children:
                    raise InternalError("an orbit of regions is not alike on a level")
        for part in self.parts:
            for reading in part.readings:
                read = self.histograms[reading.histogram].axes
                for at, (own, weights) in enumerate(zip(part.levels, reading.weights, strict=True)):
                    if at not in read and (own or (weights != 1).any()):
                        raise InternalError("a reading does not fit its histogram")

    def levels(self, part: Part) -> list[Level]:
        return [axis.levels[at] for axis, at in zip(self.axes, part.levels, strict=True)]

    def shape_of(self, part: Part) -> tuple[int, ...]:
        """(r, children of each axis)."""
        return (len(part.readings), *(level.children for level in self.levels(part)))

    @cached_property
    def starts(self) -> Ints:
        """Where each part begins in y, and the end."""
        return np.cumsum([0, *(prod(self.shape_of(part)) for part in self.parts)])

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.starts[-1]), max((h.stop for h in self.histograms), default=0)

    def _measured(self) -> Sequence[Part]:
        return self.parts

    @cached_property
    def _sums(self) -> dict[tuple[int, int, bytes], Csr]:
        """(children x regions) of an axis, a level and weights."""
        return {}

    def _summing(self, axis: int, level: int, weights: Ints) -> Csr:
        key = (axis, level, weights.tobytes())
        if key not in self._sums:
            held, own = self.axes[axis], self.axes[axis].levels[level]
            each = np.where(own.child >= 0, weights[held.orbit], 0)
            used = np.flatnonzero(each)
            self._sums[key] = sparse.csr_array(
                (each[used], (own.child[used], used)), shape=(own.children, own.child.size)
            )
        return self._sums[key]

    def _growth(self, part: Part) -> int:
        """|B x| <= growth x the largest |entry| of x."""
        each = []
        for reading in part.readings:
            axes = self.histograms[reading.histogram].axes
            one = 1
            for axis, level in enumerate(self.levels(part)):
                if axis in axes:
                    sums = self._summing(axis, part.levels[axis], reading.weights[axis])
                    one *= level.size * int(abs(sums).sum(axis=1).max())
            each.append(one)
        rows: list[list[int]] = part.matrix.tolist()
        return max(sum(abs(c) * n for c, n in zip(row, each, strict=True)) for row in rows)

    def _product(self, word: Ints) -> Ints:
        found = []
        for part in self.parts:
            read = np.stack([self._read(part, reading, word).ravel() for reading in part.readings])
            found.append((part.matrix @ read).ravel())
        return np.concatenate(found)

    def _read(self, part: Part, reading: Reading, word: Ints) -> Ints:
        """The contrasts of one reading (children of each axis)."""
        held = self.histograms[reading.histogram]
        table = word[held.start : held.stop].reshape(held.sizes)
        for at, axis in enumerate(held.axes):
            moved = np.moveaxis(table, at, 0)
            sums = self._summing(axis, part.levels[axis], reading.weights[axis]) @ moved.reshape(moved.shape[0], -1)
            table = np.moveaxis(sums.reshape(-1, *moved.shape[1:]), 0, at)
        table = table.reshape([size if at in held.axes else 1 for at, size in self._children(part)])
        for at, level in enumerate(self.levels(part)):
            table = level.contrasts(table, at)
        return table

    def _children(self, part: Part) -> list[tuple[int, int]]:
        return [(at, level.children) for at, level in enumerate(self.levels(part))]

    # -- how far one row moves it -----------------------------------------------------------------

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """(L1, squared L2) norm of what a row moves by the histograms of one layout."""
        return self._longest(self._filled(entry), {})

    def joint_norms(self, layouts: Sequence[Layout]) -> tuple[int, int]:
        """The same of all layouts of the table at once, of which a row is in one cell each: exact."""
        filled = set().union(*(self._filled(layout.entry) for layout in layouts))
        return self._longest(filled, nulls_of(self.histograms, layouts))

    def _filled(self, entry: IntArray) -> set[int]:
        used = entry[entry >= 0]
        return {n for n, h in enumerate(self.histograms) if ((used >= h.start) & (used < h.stop)).any()}

    def _longest(self, filled: set[int], nulls: Mapping[tuple[int, int], int]) -> tuple[int, int]:
        l1 = l2 = 0
        for regions, signs in self.corners(nulls):
            orbits = [int(axis.orbit[at]) for axis, at in zip(self.axes, regions, strict=True)]
            own1 = own2 = 0
            for part in self.parts:
                levels = self.levels(part)
                if any(level.child[at] < 0 for level, at in zip(levels, regions, strict=True)):
                    continue
                h = np.array(
                    [
                        signs[r.component] * prod(int(w[o]) for w, o in zip(r.weights, orbits, strict=True))
                        if r.histogram in filled
                        else 0
                        for r in part.readings
                    ],
                    dtype=object,
                )
                moved = part.matrix.astype(object) @ h
                own1 += prod(level.size for level in levels) * sum(abs(v) for v in moved)
                own2 += prod(level.square for level in levels) * sum(v * v for v in moved)
            l1, l2 = max(l1, own1), max(l2, own2)
        return int(l1), int(l2)

    def corners(self, nulls: Mapping[tuple[int, int], int]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """One region of each axis for each combination of orbits, with each corner of what a row adds (the count 1).

        ``nulls``: by (component, axis) the region where a sum gets 0.
        """
        components = sorted({h.component for h in self.histograms})
        for regions in product(*(axis.regions.tolist() for axis in self.axes)):
            free = [
                () if k == 0 else (0,) if any(regions[a] == at for (c, a), at in nulls.items() if c == k) else (1, -1)
                for k in components
            ]
            for signs in product(*(values or (1,) for values in free)):
                held = [0] * (max(components) + 1)
                for k, sign in zip(components, signs, strict=True):
                    held[k] = sign
                yield regions, held

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """``norms`` from products with unit vectors, in floats."""
        return self._rough(self._filled(entry), {}, order)

    def joint_norm(self, layouts: Sequence[Layout], order: int) -> float:
        """``joint_norms`` from products with unit vectors, in floats: of one row for each corner."""
        filled = set().union(*(self._filled(layout.entry) for layout in layouts))
        return self._rough(filled, nulls_of(self.histograms, layouts), order)

    def _rough(self, filled: set[int], nulls: Mapping[tuple[int, int], int], order: int) -> float:
        found, word = 0.0, np.zeros(self.shape[1], dtype=np.int64)
        for regions, signs in self.corners(nulls):
            places = []
            for number in sorted(filled):
                held = self.histograms[number]
                at = int(np.ravel_multi_index([regions[axis] for axis in held.axes], held.sizes)) if held.axes else 0
                places.append(held.start + at)
                word[places[-1]] = signs[held.component]
            moved = self._product(word).astype(np.float64)
            word[places] = 0
            found = max(found, float((np.abs(moved) ** order).sum()))
        return found

    def share_no_measurement(self, entries: Sequence[IntArray]) -> bool:
        """False of several layouts: a part reads counts and sums of more than one."""
        return len(entries) == 1

    def digest(self) -> str:
        """Of histograms, levels, readings and matrices."""
        digest = hashlib.sha256(repr(self.histograms).encode())
        for axis in self.axes:
            digest.update(axis.orbit.tobytes())
            for level in axis.levels:
                digest.update(f"level {level.alike} {level.children} ".encode() + level.child.tobytes())
        for part in self.parts:
            digest.update(f"part {part.levels} ".encode() + np.ascontiguousarray(part.matrix).tobytes())
            for reading in part.readings:
                digest.update(f"reading {reading.component} {reading.histogram} ".encode())
                for weights in reading.weights:
                    digest.update(weights.tobytes())
        return digest.hexdigest()


def nulls_of(histograms: Sequence[Histogram], layouts: Sequence[Layout]) -> dict[tuple[int, int], int]:
    """The NULL region of each measure's own column, by (component, axis): a row there adds 0 to its sums.

    Of one line with its axis, so that both read the same value, and of no measure that says what NULL adds.
    """
    at = {held.start: held for held in histograms}
    summed: dict[tuple[str, Line], set[int]] = {}
    for layout in layouts:
        for measure, start in zip(layout.measures, layout.entry[1:, 0].tolist(), strict=True):
            if measure.at_null is None:
                summed.setdefault((measure.column, measure.line), set()).add(at[start].component)
    out: dict[tuple[int, int], int] = {}
    for layout in layouts if summed else ():
        for axis, cut in zip(at[int(layout.entry[0, 0])].axes, layout.cells.axes, strict=True):
            if isinstance(cut, LineAxis) and cut.null_region >= 0:
                mine = summed.get((cut.column, cut.line), set())
                out.update(((component, axis), cut.null_region) for component in mine)
    return out


__all__ = ["LevelIntegers", "Part", "Reading", "nulls_of"]
