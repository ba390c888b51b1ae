"""Regions: one axis of the data, cut so finely that every predicate is constant on each part.

The cuts of all atoms over one column split its line into pieces; pieces (and NULL) that no
atom and no group key tells apart are merged into one region. A column with a closed domain
has no region for values outside it: such rows belong to no cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, nextafter
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dpsql.workloads.expr.conditions import Like, LineAtom, OpaqueAtom, Predicate
from dpsql.workloads.expr.lines import Cut, Interval, Line, Scalar, Value

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LabelColumn:
    """A public column of a result that labels the groups of a key: one value a group."""

    name: str
    type: str
    values: tuple[Scalar, ...] = field(repr=False)


@dataclass(frozen=True)
class KeyDomain:
    """The groups of one GROUP BY column, in the order in which they are released.

    ``values`` are the declared keys; after them comes OTHER where ``other``, then NULL
    where ``nulls``. ``type`` is the DuckDB type of the released column. ``other_label`` is what OTHER is called in it,
    None where it is NULL with a companion.
    """

    column: str
    type: str
    values: tuple[Scalar, ...]
    points: tuple[Interval | None, ...] = field(repr=False)
    other: bool = False
    nulls: bool = True
    other_label: str | None = field(default=None, repr=False)
    listed: ClassVar[Literal[True]] = True

    def __len__(self) -> int:
        return len(self.values) + int(self.other) + int(self.nulls)

    @property
    def name(self) -> str:
        """The name that plans show."""
        return self.column

    @cached_property
    def labels(self) -> tuple[LabelColumn, ...]:
        """Its released column."""
        values = (*self.values, *[self.other_label] * self.other, *[None] * self.nulls)
        return (LabelColumn(self.column, self.type, values),)

    @property
    def atoms(self) -> tuple[LineAtom | None, ...]:
        """Where its column lies in each group, None for OTHER."""
        points = (LineAtom(self.column, () if point is None else (point,)) for point in self.points)
        return (*points, *[None] * self.other, *[LineAtom(self.column, (), True)] * self.nulls)

    @property
    def has_other(self) -> bool:
        """Whether it has a group of unlisted values that a companion tells from NULL."""
        return self.other and self.other_label is None

    @property
    def others(self) -> tuple[bool, ...]:
        """Whether each group is OTHER."""
        return tuple(at == self.other_index for at in range(len(self)))

    @property
    def other_index(self) -> int | None:
        """Position of the OTHER group, None without one."""
        return len(self.values) if self.other else None

    @property
    def null_index(self) -> int | None:
        """Position of the NULL group, None without one."""
        return len(self) - 1 if self.nulls else None


@dataclass(frozen=True)
class LineAxis:
    """A column of a line: region ``pieces[i]`` lies between cuts i-1 and i; -1 is no region."""

    column: str
    line: Line
    cuts: tuple[Cut, ...]
    pieces: IntArray = field(repr=False)
    null_region: int
    size: int

    @property
    def name(self) -> str:
        """The name that plans show."""
        return self.column


@dataclass(frozen=True)
class OpaqueAxis:
    """A predicate whose truth is not a set of one column's intervals: true, false, NULL."""

    predicate: Predicate
    line: Line
    size: int = 3

    @property
    def name(self) -> str:
        """The name that plans show."""
        predicate = self.predicate
        if isinstance(predicate, Like):
            return f"{predicate.column} LIKE {predicate.pattern!r}"
        return f"{predicate.left} {predicate.operator} {predicate.right}"


@dataclass(frozen=True)
class RunAxis:
    """A column of whole numbers or days, each of ``size`` values from place ``first`` on a region of its own.

    Other values and NULL are in none. What ``LineAxis`` would say with a cut at every value, without a list of them.
    """

    column: str
    line: Line
    first: int
    size: int

    @property
    def name(self) -> str:
        """The name that plans show."""
        return self.column


Axis = LineAxis | OpaqueAxis | RunAxis
# The region numbers of an opaque axis.
OPAQUE_TRUTHS: tuple[bool | None, ...] = (True, False, None)


@dataclass(frozen=True)
class AxisTruths:
    """An axis with the truth of its atoms and the group of its keys, region by region."""

    axis: Axis
    representatives: IntArray  # a piece of each region; the NULL region's is the number of pieces
    spans: dict[LineAtom, tuple[tuple[int, int], ...]]
    key_of_region: IntArray | None  # -1 where a region is in no group

    def truth(self, atom: LineAtom | OpaqueAtom) -> BoolArray:
        """Where the atom holds, one Boolean per region."""
        if isinstance(atom, OpaqueAtom):
            return np.array([truth in atom.truths for truth in OPAQUE_TRUTHS])
        holds = np.zeros(len(self.representatives), dtype=bool)
        holds[self.regions(atom)] = True
        return holds

    def regions(self, atom: LineAtom) -> IntArray:
        """The numbers of the regions where the atom holds, ascending. O(k log r) for k intervals and r regions."""
        assert isinstance(self.axis, LineAxis)  # noqa: S101 - narrows the type for the checker
        found = [np.arange(*np.searchsorted(self.representatives, span)) for span in self.spans[atom]]
        # A region of NULL alone is the last; else the atom holds for values of its region as well.
        if atom.on_null and self.axis.size and self.representatives[-1] > len(self.axis.cuts):
            found.append(np.array([self.axis.null_region]))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def within(self, counted: BoolArray) -> AxisTruths:
        """The axis of a line with the ``counted`` regions alone, numbered anew: rows of others have no region."""
        axis = self.axis
        if not isinstance(axis, LineAxis) or counted.all() or not counted.any():
            return self
        number = np.append(np.where(counted, np.cumsum(counted) - 1, -1), -1)  # the last for no region
        held = replace(
            axis, pieces=number[axis.pieces], null_region=int(number[axis.null_region]), size=int(counted.sum())
        )
        group = None if self.key_of_region is None else self.key_of_region[counted]
        return AxisTruths(held, self.representatives[counted], self.spans, group)


def opaque_axis(predicate: Predicate, line: Line) -> AxisTruths:
    """The three-region axis of a predicate over columns of ``line`` that is no set of one column's intervals."""
    return AxisTruths(OpaqueAxis(predicate, line), np.arange(3), {}, None)


def line_axis(
    column: str,
    line: Line,
    atoms: Iterable[LineAtom],
    *,
    closed: Sequence[Interval | None] | None = None,
    nulls: bool = True,
    keys: KeyDomain | None = None,
) -> AxisTruths:
    """Cut a column's line by ``atoms`` and group keys and merge what they do not tell apart.

    ``closed`` holds the points of a closed domain (rows elsewhere have no region), ``nulls``
    is False where the policy rules NULL out, ``keys`` is given where the column is grouped. Every
    interval is clipped to the line here, so that a cut of the axis is a value that the column's type holds.
    Cost O(a + p) for a atoms and p cuts, besides sorting.
    """
    unique = list(dict.fromkeys(atoms))
    points = [p for p in keys.points if p is not None] if keys else []
    universe = [p for p in closed if p is not None] if closed is not None else []
    found: set[Cut] = set()
    for atom in unique:
        for interval in atom.intervals:
            found.update(cut for cut in interval if cut is not None)
    for interval in (*points, *universe):
        found.update(cut for cut in interval if cut is not None)
    listed = sorted(found)
    start, stop = line.inside(listed)
    cuts = listed[start:stop]
    n_pieces = len(cuts) + 1
    index = {cut: min(max(i - start + 1, 0), n_pieces) for i, cut in enumerate(listed)}

    def span(interval: Interval) -> tuple[int, int]:
        low, high = interval
        return (0 if low is None else index[low], n_pieces if high is None else index[high])

    spans = {atom: tuple(span(i) for i in atom.intervals) for atom in unique}
    signature: list[object] = list(_atoms_that_hold(unique, spans, n_pieces))

    possible = np.ones(n_pieces + 1, dtype=bool)
    if closed is not None:
        possible[:n_pieces] = False
        for interval in universe:
            start, stop = span(interval)
            possible[start:stop] = True
    possible[n_pieces] = nulls

    key_of_piece: IntArray | None = None
    if keys is not None:
        key_of_piece = np.full(n_pieces + 1, -1, dtype=np.int64)
        if keys.other_index is not None:
            key_of_piece[:n_pieces] = keys.other_index
        for number, point in enumerate(keys.points):
            if point is not None:
                start, stop = span(point)
                key_of_piece[start:stop] = number
        key_of_piece[n_pieces] = -1 if keys.null_index is None else keys.null_index
        # The key is one more atom: regions in different groups must not merge.
        signature = list(zip(signature, key_of_piece.tolist(), strict=True))

    region_of_piece = np.full(n_pieces + 1, -1, dtype=np.int64)
    where = np.flatnonzero(possible)
    # Regions are numbered in the order of the line, so that neighbours stay neighbours in plans and SQL.
    numbers: dict[object, int] = {}
    first: list[int] = []
    for piece in where.tolist():
        number = numbers.setdefault(signature[piece], len(numbers))
        region_of_piece[piece] = number
        if number == len(first):
            first.append(piece)
    representatives = np.array(first, dtype=np.int64)
    axis = LineAxis(column, line, tuple(cuts), region_of_piece[:n_pieces], int(region_of_piece[n_pieces]), len(first))
    key_of_region = None if key_of_piece is None else key_of_piece[representatives]
    return AxisTruths(axis, representatives, spans, key_of_region)


def _atoms_that_hold(
    atoms: list[LineAtom], spans: dict[LineAtom, tuple[tuple[int, int], ...]], n_pieces: int
) -> Iterator[frozenset[tuple[int, int]]]:
    """For each piece, then for NULL, the exact set of atoms that hold: bits in words, of which those of 0 are left out.

    One integer of all bits would cost as much for one atom out of 100,000 as for all of them.
    """
    steps: dict[int, list[int]] = {}
    on_null: dict[int, int] = {}
    for number, atom in enumerate(atoms):
        for start, stop in spans[atom]:
            steps.setdefault(start, []).append(number)
            steps.setdefault(stop, []).append(number)
        if atom.on_null:
            _toggle(on_null, number)
    holding: dict[int, int] = {}
    for piece in range(n_pieces):
        for number in steps.get(piece, ()):
            _toggle(holding, number)
        yield frozenset(holding.items())
    yield frozenset(on_null.items())


def _toggle(words: dict[int, int], number: int) -> None:
    """Add a number to a set in words, or take it out."""
    place, bit = divmod(number, 1024)  # so many bits a word
    bits = words.pop(place, 0) ^ 1 << bit
    if bits:
        words[place] = bits


def representatives(axis: Axis) -> list[tuple[Value, ...]]:
    """A row in each region of an axis: values of the columns that it looks at, NULL apart.

    Of a run, whose regions differ by a number alone, rows in the first and the last, and beside them.
    """
    if isinstance(axis, OpaqueAxis):
        if isinstance(axis.predicate, Like):
            return [(axis.predicate.pattern.replace("%", "").replace("_", "a"),), ("",)]
        low, high = (False, True) if axis.line.kind == "boolean" else ("", "a") if axis.line.kind == "text" else (0, 1)
        return [(low, low), (low, high), (high, low)]
    if isinstance(axis, RunAxis):
        last = axis.first + axis.size - 1
        least, greatest = axis.line.ends
        ends = (axis.first - 1, axis.first, last, last + 1)
        return [(end,) for end in ends if (least is None or least <= end) and (greatest is None or end <= greatest)]
    first = _before(axis.line, axis.cuts[0]) if axis.cuts else None
    return [*([] if first is None else [(first,)]), *((_after(axis.line, cut),) for cut in axis.cuts)]


def _after(line: Line, cut: Cut) -> Value:
    """The first value of a line after a cut."""
    value, side = cut
    if not side:
        return value
    return value + "\0" if line.kind == "text" else nextafter(value, inf)


def _before(line: Line, cut: Cut) -> Value:
    """A value of a line before a cut; None where there may be none."""
    value, side = cut
    if side:
        return value
    if line.kind == "text":
        return "" if value else None
    return value - 1 if line.discrete else nextafter(value, -inf)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a fixed bijection that looks random."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def is_total(axis: Axis) -> bool:
    """Whether every value and NULL has a region."""
    if isinstance(axis, RunAxis):
        return False
    return isinstance(axis, OpaqueAxis) or bool((axis.pieces >= 0).all() and axis.null_region >= 0)
