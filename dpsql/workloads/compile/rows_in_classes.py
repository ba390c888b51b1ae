"""Rows of a unit in different groups of a bound: how far they move residuals that are never written out.

A bound of ``at_most`` puts the regions of one axis m in classes, of which a unit has at most so many rows in one. Norms
are convex, so all rows of a class are best alike, and as many as the class or the unit may have: c is a sum of r_i rows
in each of s classes, all r_i but one the most of a class. Let n count them by everything but m, R be their number and Q
the sum of r_i^2. With U the other axes of a residual, B_U what it measures of them and N_U the squared length of its
longest column, a residual that does not read m adds k^2 ||B_U n||^2 to ||B c||^2. One that reads m by G = B_m^T B_m
adds k^2 times the sum of r_i r_j G_ij <B_U e_i, B_U e_j>; with G = H - g J, J all ones, that is the sum with H, less
g ||B_U n||^2. As the products of B_U are at most N_U,

    ||B c||^2 <= max_s (sum of k^2 N_U H_s + R^2 sum_U N_U max(b_U, 0)),      b_U = sum of k^2 - sum of k^2 g,

both inner sums of b_U over the residuals that measure U by B_U, without m and with it, and H_s the largest sum of r_i
r_j |H_ij|. The count of all rows alone is R whatever they are: its b may be less than 0, which is taken as it is. For
d I - 1 1^T on m, H is d^2 I, g is d and H_s = d^2 Q: then, where all columns of B_U have one length and no other b_U is
less than 0, rows that agree on all but m reach the bound: it is exact. Sums of a measure are at most those of counts,
as a row adds at most 1 in size, but may be 0, so that none of their b below 0 is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import numpy as np

from dpsql.common.arrays import Array, Floats, Ints
from dpsql.linalg.blocks import AxisIntegers, Centre, Mixed, Plain, Residual
from dpsql.linalg.exact import max_abs
from dpsql.workloads.compile.caps import is_over, regions_by_group, rows_of_classes, side_by_side
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.regions import LineAxis

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class ClassBound:
    """At most ``each`` rows of a unit in each class of the regions of a table's ``axis``.

    ``rows``: (R, Q) of rows in s = 1, 2, ... classes. ``label`` (d,): the class of each region, -1 for none. ``least``:
    at most so many rows may be in one cell, whatever the cell. ``free``: all of ``rows`` can be, alike on other axes or
    each class by itself there, unless another bound forbids it: classes have as many regions and rows, all regions one.
    """

    axis: int
    each: int
    rows: tuple[tuple[int, int], ...]
    least: int
    free: bool
    label: Ints = field(repr=False, compare=False)

    @property
    def most(self) -> int:
        """In how many classes a unit has rows."""
        return len(self.rows)

    @property
    def classes(self) -> int:
        return int(self.label.max()) + 1


def class_bounds(layout: Layout) -> list[ClassBound]:
    """What each bound of a layout's source says of one of the axes that its batch reads of the table.

    Bounds that leave all rows of a unit in one class say nothing, nor do those of how many groups there are. A unit
    that is counted once in each group is a row in each of some.
    """
    found = []
    if layout.source.counts_units and layout.multiplicity > 1:
        groups, anywhere = np.arange(np.unique(layout.entry[layout.entry >= 0]).size), not layout.source.caps
        rows = tuple((s, s) for s in range(1, layout.multiplicity + 1))
        return [ClassBound(0, 1, rows, int(anywhere), anywhere, groups)]
    for place, axis, cap in _bounds(layout):
        classes = regions_by_group(axis, cap)
        times = rows_of_classes(layout, cap, classes)
        if not classes or max(times) >= layout.multiplicity:
            continue
        label = np.full(axis.size, -1, dtype=np.int64)
        for number, (regions, _) in enumerate(classes):
            label[regions] = number
        least = min(_rows_of_regions(layout, axis, cap))
        alike = min(times) == max(times) == least and len({regions.size for regions, _ in classes}) == 1
        alike &= bool((label >= 0).all())
        allowed = min(len(classes), cap.groups or len(classes))
        rows = _sizes(max(times), min(layout.multiplicity, sum(sorted(times)[-allowed:])))
        found.append(ClassBound(place, max(times), rows, least, alike, label))
    return found


def rows_anywhere(layout: Layout) -> int:
    """So many rows of a unit may be in any one cell, whichever it is."""
    if layout.source.counts_units:
        return 1
    held = (_rows_of_regions(layout, axis, cap) for _, axis, cap in _bounds(layout))
    return min([layout.multiplicity, *(rows for each in held for rows in each)])


def _rows_of_regions(layout: Layout, axis: LineAxis, cap: Cap) -> list[int]:
    """The rows that a unit may have in one region: some of a class may have fewer of its groups than others."""
    mine, groups = side_by_side(axis, cap.axis)
    held = np.bincount(np.unique(np.stack([mine, groups])[:, mine >= 0], axis=1)[0])
    return rows_of_classes(
        layout, cap, [(np.flatnonzero(held == count), int(count)) for count in np.unique(held[held > 0])]
    )


def _bounds(layout: Layout) -> Iterator[tuple[int, LineAxis, Cap]]:
    """Each bound of rows over an axis that is read, and which axis that is."""
    source, axes = layout.source, layout.every[0] if layout.every is not None else ()
    for cap in source.caps:
        place = next((i for i, axis in enumerate(axes) if is_over(axis, layout, cap)), -1)
        if place < 0 or cap.rows is None or source.counts_units:
            continue
        axis = axes[place]
        assert isinstance(axis, LineAxis)  # noqa: S101 - asked before
        yield place, axis, cap


def _sizes(each: int, limit: int) -> tuple[tuple[int, int], ...]:
    """(R, Q) of at most ``each`` rows in each of 1, 2, ... classes and ``limit`` in all."""
    full, left = divmod(limit, each)
    found = [(s * each, s * each**2) for s in range(1, full + 1)]
    return (*found, (limit, full * each**2 + left**2)) if left else tuple(found)


@dataclass(frozen=True, eq=False)
class Reach:
    """The bound above as a function of the squared multipliers of residuals.

    Of residual i: ``linear`` is N_U H_s / Q where that does not depend on s, ``level`` g with a minus (1 where m is not
    read), ``norm`` N_U, ``key`` the number of its U and B_U. ``sums`` has N_U H_s for s = 1, 2, ... of the others.
    """

    bound: ClassBound
    linear: tuple[int, ...]
    level: tuple[int, ...]
    norm: tuple[int, ...]
    key: tuple[int, ...]
    sums: dict[int, tuple[int, ...]]
    total: int
    """The key of the count of all rows; -1 if nothing measures it."""

    @classmethod
    def of(cls, residuals: Sequence[Residual], bound: ClassBound) -> Reach | None:
        """Of the residuals of one table, their multipliers left out; None where a product leaves int64."""
        keys: dict[object, int] = {}
        linear, level, norm, key = [], [], [], []
        sums: dict[int, tuple[int, ...]] = {}
        forms: dict[int, tuple[int, int, tuple[int, ...]] | None] = {}
        for number, residual in enumerate(residuals):
            parts = dict(zip(residual.axes, residual.integers, strict=True))
            mine = parts.pop(bound.axis, None)
            tag = (residual.component, *((axis, _tag(part)) for axis, part in parts.items()))
            key.append(keys.setdefault(tag, len(keys)))
            norm.append(prod(part.norms[1] for part in parts.values()))
            if mine is None:
                linear.append(0)
                level.append(1)
                continue
            alone = not parts and not residual.component
            place = 2 * id(mine) + alone
            if place not in forms:
                forms[place] = _form(mine, bound, signed=alone)
            form = forms[place]
            if form is None:
                return None
            linear.append(form[0] * norm[-1])
            level.append(-form[1])
            if form[2]:
                sums[number] = tuple(norm[-1] * value for value in form[2])
        return cls(bound, tuple(linear), tuple(level), tuple(norm), tuple(key), sums, keys.get((0,), -1))

    def squared(self, squares: Sequence[int]) -> int:
        """The bound of ||B c||^2 for residuals multiplied by the roots of ``squares``."""
        rises = sum(k * a for k, a in zip(squares, self.linear, strict=True))
        held = [0] * (max(self.key, default=-1) + 1)
        longest = list(held)
        for k, level, norm, key in zip(squares, self.level, self.norm, self.key, strict=True):
            held[key] += k * level
            longest[key] = norm
        pairs = enumerate(zip(held, longest, strict=True))
        flat = sum(norm * (b if key == self.total else max(b, 0)) for key, (b, norm) in pairs)
        return max(
            Q * rises + R * R * flat + sum(squares[i] * values[s] for i, values in self.sums.items())
            for s, (R, Q) in enumerate(self.bound.rows)
        )


def _tag(part: AxisIntegers) -> object:
    """What tells measurements of one axis apart."""
    return part.matrix.tobytes() if isinstance(part, Mixed) else (type(part), part.d)


def _form(part: AxisIntegers, bound: ClassBound, *, signed: bool) -> tuple[int, int, tuple[int, ...]] | None:
    """(H_s / Q, g, none) of the matrix of the axis, or (0, g, H_s for s = 1, 2, ...); None where int64 is too short.

    ``signed``: no product of other axes changes the signs of H.
    """
    if isinstance(part, Centre):
        return part.d**2, part.d, ()
    if isinstance(part, Plain):
        return 1, 0, ()
    if max_abs(part.matrix) ** 2 * part.p * (part.d + 1) ** 2 >= 2**62:
        return None
    gram = part.matrix.T @ part.matrix
    shift = int(level_of(gram, bound.label))
    found = largest_sums(gram + shift, bound, signed=signed)
    return 0, shift, tuple(spread_sums(found.tolist(), bound))


def spread_sums(sums: list[Number], bound: ClassBound) -> list[Number]:
    """H_s from the sums of single rows: it is convex in the rows of the last class, which may be less than ``each``."""
    each, out = bound.each, [bound.each**2 * value for value in sums]
    left = bound.rows[-1][0] - each * (bound.most - 1)
    if left < each:
        out[-1] = each * ((each - left) * (sums[-2] if len(sums) > 1 else 0) + left * sums[-1])
    return out


def level_of(gram: Array, label: Ints) -> float:
    """g of a matrix: the median of what two regions of different classes have in common, where that is below 0."""
    other = gram[(label[:, None] != label[None, :]) & (label >= 0)[:, None] & (label >= 0)[None, :]]
    middle = other.size // 2
    return max(0, -np.partition(other, middle)[middle].item()) if other.size else 0


def largest_sums(H: Array, bound: ClassBound, *, signed: bool) -> Array:
    """At least the sum of H (of |H|, but for the diagonal, unless ``signed``) over all pairs of s regions of different
    classes, for s = 1, 2, ...

    The row of a region has its own entry and s - 1 of other classes, at most the largest; s rows of as many classes
    are at most the largest.
    """
    size = H if signed else abs(H)
    count = bound.classes
    across = np.stack([size[:, bound.label == one].max(axis=1) for one in range(count)], axis=1)
    rows = np.zeros((count, bound.most), dtype=H.dtype)
    for one in range(count):
        mine = np.flatnonzero(bound.label == one)
        others = np.sort(np.delete(across[mine], one, axis=1), axis=1)[:, ::-1][:, : bound.most - 1]
        own = np.diagonal(H)[mine, None]
        rows[one] = np.concatenate([own, own + np.cumsum(others, axis=1)], axis=1).max(axis=0)
    return np.array([np.sort(rows[:, s])[::-1][: s + 1].sum() for s in range(bound.most)], dtype=H.dtype)


def rough_squared(residuals: Sequence[Residual], bound: ClassBound) -> float:
    """The bound by another way, in floats, from products of columns; never below what rows that agree on all other axes
    move.
    """
    total: dict[object, float] = {}
    longest: dict[object, float] = {}
    sums, reached = np.zeros(bound.most), np.zeros(bound.most)
    R, Q = np.array(bound.rows, dtype=np.float64).T
    full = bound.each * np.arange(1.0, bound.most + 1.0) == R
    first = np.unique(bound.label[bound.label >= 0], return_index=True)[1]
    chosen = np.flatnonzero(bound.label >= 0)[first][: bound.most]
    for residual in residuals:
        parts = dict(zip(residual.axes, residual.integers, strict=True))
        mine = parts.pop(bound.axis, None)
        key = (residual.component, *((axis, _tag(part)) for axis, part in parts.items()))
        norm, own = 1.0, float(residual.multiplier) ** 2
        for part in parts.values():
            held = _products(part, np.array([0]))
            norm, own = norm * _longest_product(part), own * float(held[0, 0])
        square = float(residual.multiplier) ** 2
        longest[key] = norm
        if mine is None:
            total[key] = total.get(key, 0.0) + square
            reached += own * R**2
            continue
        if isinstance(mine, Mixed):
            gram = mine.matrix.astype(np.float64).T @ mine.matrix.astype(np.float64)
            shift = level_of(gram, bound.label)
            found = largest_sums(gram + shift, bound, signed=key == (0,))
            sums += square * norm * np.array(spread_sums(found.tolist(), bound))
        else:
            two = _products(mine, np.array([0, mine.d - 1]))
            shift = -float(two[0, 1])
            sums += square * norm * (float(two[0, 0]) + shift) * Q
        total[key] = total.get(key, 0.0) - square * shift
        held = _products(mine, chosen)
        reached += own * float(bound.each) ** 2 * np.array([held[:s, :s].sum() for s in range(1, bound.most + 1)])
    flat = sum(longest[key] * (b if key == (0,) else max(b, 0.0)) for key, b in total.items())
    return max(float((sums + flat * R**2).max()), float(reached[full].max()))


def _products(part: AxisIntegers, columns: Ints) -> Floats:
    """What columns of a matrix have in common, from the columns."""
    units = np.zeros((part.d, columns.size), dtype=np.int64)
    units[columns, np.arange(columns.size)] = 1
    held = part.times(units, 0).astype(np.float64)
    return np.asarray(held.T @ held)


def _longest_product(part: AxisIntegers) -> float:
    if isinstance(part, Mixed):
        return float((part.matrix.astype(np.float64) ** 2).sum(axis=0).max())
    return float(_products(part, np.array([0]))[0, 0])
