"""Columns of rows to be made up: the regions that the groups of released tables tell apart, and values within them.

Every key over a column is a set of groups; regions are what all of them together tell apart, so that a row is a region
of every column. Within a region values are spread evenly over what the column's type and bounds let it hold; where an
end is open, it is the value nearest to the other end. Post-processing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil, floor, inf

import numpy as np

from dpsql.common.arrays import Floats, Ints
from dpsql.common.quoting import free_name
from dpsql.errors import DataError
from dpsql.extensions.synthetic.row_fit import Face
from dpsql.release.columns import Coded
from dpsql.replicates.noise import Generator
from dpsql.workloads.expr.batch import CaseKey, Column, constant
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.lines import Interval
from dpsql.workloads.expr.regions import KeyDomain, line_axis
from dpsql.workloads.expr.values import Stored

Region = tuple[Interval, ...] | None
"""Where the values of a region lie on the column's line; None for NULL."""
_WIDE = 2**62
_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True, eq=False)
class Axis:
    """A column with its regions, and how each key over it sees them. ``others``: what OTHER is called, by region."""

    column: Column
    regions: tuple[Region, ...] = field(repr=False)
    faces: tuple[tuple[KeyDomain | CaseKey, Face], ...] = field(repr=False)
    others: dict[int, str | None] = field(repr=False)

    @property
    def name(self) -> str:
        """What the table that stores the column calls it."""
        value = self.column.value
        return value.name if isinstance(value, Stored) else self.column.name

    @property
    def source(self) -> str:
        """The join that has the column, empty for the table itself."""
        return self.column.value.source if isinstance(self.column.value, Stored) else ""

    def face(self, key: KeyDomain | CaseKey) -> Face | None:
        """How a key sees the regions; None where its groups do not part them."""
        return next((face for held, face in self.faces if held == key), None)


def axis_of(number: int, column: Column, keys: Sequence[KeyDomain | CaseKey]) -> Axis:
    """The regions of a column, which is number ``number`` of the rows, under all ``keys`` over it.

    A key whose groups overlap or leave out what another key counts gets no face. Raises DataError where none is left.
    """
    listed = [atom for key in keys for atom in key.atoms if atom is not None]
    truths = line_axis(column.name, column.line, listed, closed=column.closed, nulls=column.nulls)
    axis = truths.axis
    pieces = np.append(axis.pieces, axis.null_region)  # type: ignore[union-attr]
    cuts = (None, *axis.cuts, None)  # type: ignore[union-attr]
    regions: list[list[Interval] | None] = [[] for _ in range(axis.size)]
    for piece, region in enumerate(pieces[:-1].tolist()):
        held = regions[region]
        if region >= 0 and held is not None:
            held.append((cuts[piece], cuts[piece + 1]))
    null = int(pieces[-1])
    if null >= 0 and not regions[null]:
        regions[null] = None
    seen: list[tuple[KeyDomain | CaseKey, Ints]] = []
    for key in keys:
        group = np.full(axis.size, -1, dtype=np.int64)
        times = np.zeros(axis.size, dtype=np.int64)
        rest = None
        for at, atom in enumerate(key.atoms):
            if atom is None:
                rest = at
                continue
            held_by = truths.regions(LineAtom(atom.column, atom.intervals, atom.on_null))
            group[held_by], times[held_by] = at, times[held_by] + 1
        if rest is not None:
            group[(times == 0) & (np.arange(axis.size) != null)] = rest
        if key.atoms and times.max(initial=0) <= 1:
            seen.append((key, group))
    kept = np.zeros(axis.size, dtype=np.bool_)
    for _, group in seen:
        kept |= group >= 0
    seen = [(key, group) for key, group in seen if (group[kept] >= 0).all()]
    if not seen or not kept.any():
        raise DataError(f"the groups of {column.name} are no parts of its values")
    where = np.flatnonzero(kept)
    others: dict[int, str | None] = {}
    faces = []
    for key, group in seen:
        if isinstance(key, KeyDomain) and key.other_index is not None:
            others |= dict.fromkeys(np.flatnonzero(group[where] == key.other_index).tolist(), key.other_label)
        faces.append((key, Face(number, group[where], len(key))))
    shown = tuple(None if regions[at] is None else tuple(regions[at] or ()) for at in where.tolist())
    return Axis(column, shown, tuple(faces), others)


# -- values -----------------------------------------------------------------------------------------


def values_of(axis: Axis, rows: Ints, generator: Generator) -> Coded:
    """A value for each row from its region."""
    distinct: dict[object, int] = {}
    codes = np.zeros(len(rows), dtype=np.int32)
    count = np.bincount(rows, minlength=len(axis.regions))
    order = np.argsort(rows, kind="stable")
    ends = np.cumsum(count)
    for at in np.flatnonzero(count).tolist():
        mine = order[ends[at] - count[at] : ends[at]]
        values, places = _drawn(axis, at, int(count[at]), generator)
        numbers = np.array([distinct.setdefault(value, len(distinct)) for value in values], dtype=np.int32)
        codes[mine] = numbers[places]
    return Coded(tuple(distinct), codes)


def type_of(axis: Axis) -> str:
    """The DuckDB type of a column: that of the table, but text for ENUM, and UTC TIMESTAMP for zoned ones."""
    kind = axis.column.line.kind
    return {"text": "VARCHAR", "timestamptz": "TIMESTAMP"}.get(kind, axis.column.type)


def region_of(axis: Axis, value: object) -> int:
    """The region that a value of the column lies in, -1 for none."""
    if value is None:
        return next((at for at, region in enumerate(axis.regions) if region is None), -1)
    point = axis.column.line.point(constant(value))
    for at, region in enumerate(axis.regions):
        for low, high in region or ():
            if (
                point is not None
                and (low is None or (point[0] is not None and low <= point[0]))
                and (high is None or (point[1] is not None and point[1] <= high))
            ):
                return at
    return -1


def _drawn(axis: Axis, at: int, count: int, generator: Generator) -> tuple[list[object], Ints]:
    """Distinct values of a region and which of them each of ``count`` rows has."""
    region, line = axis.regions[at], axis.column.line
    if region is None:
        return [None], np.zeros(count, dtype=np.int64)
    if line.kind == "text":
        return [_text(axis, at, region)], np.zeros(count, dtype=np.int64)
    if line.kind == "real":
        reals = np.array([_ends(axis, interval) for interval in region])
        found = _spread(reals[:, 0], reals[:, 1], count, generator)
        if line.single:
            found = found.astype(np.float32).astype(np.float64)
        low, high = reals[:, 0].min(), reals[:, 1].max()
        distinct, places = np.unique(np.clip(found, low, high), return_inverse=True)
        return distinct.tolist(), places.ravel()
    wholes = [_ends(axis, interval) for interval in region]
    low = min(int(start) for start, _ in wholes)
    starts = np.array([float(int(start) - low) for start, _ in wholes])
    stops = np.array([float(int(stop) - low) for _, stop in wholes])
    steps = np.floor(_spread(starts, stops, count, generator)).astype(np.int64)
    held, places = np.unique(np.minimum(steps, int(stops.max()) - 1), return_inverse=True)
    return [_python(axis.column, low + step) for step in held.tolist()], places.ravel()


def _spread(starts: Floats, stops: Floats, count: int, generator: Generator) -> Floats:
    """Numbers spread evenly over intervals; of intervals that are points, one point after the other."""
    lengths = stops - starts
    if lengths.sum() <= 0:
        return np.asarray(starts[generator.integers(0, len(starts), count)])
    ends = np.cumsum(lengths)
    drawn = generator.random(count) * ends[-1]
    which = np.minimum(np.searchsorted(ends, drawn, side="right"), len(ends) - 1)
    return np.asarray(
        np.minimum(starts[which] + drawn - (ends[which] - lengths[which]), np.nextafter(stops[which], -inf))
    )


def _ends(axis: Axis, interval: Interval) -> tuple[float, float]:
    """The first value of an interval and what all are below, where the column's bounds meet it within these."""
    low, high = interval
    line, declared = axis.column.line, axis.column.policy
    real = line.kind == "real"

    def first(cut: tuple[float, int]) -> float:
        return float(np.nextafter(cut[0], inf)) if real and cut[1] else cut[0]

    start = None if low is None else first(low)
    stop = None if high is None else first(high)
    bounds = [None if end is None else line.place(constant(end)) for end in (declared.lower, declared.upper)]
    least = None if bounds[0] is None else float(bounds[0]) if real else ceil(bounds[0])  # type: ignore[arg-type]
    most = None if bounds[1] is None else float(bounds[1]) if real else floor(bounds[1]) + 1  # type: ignore[arg-type]
    one = 0.0 if real else 1
    if least is not None and (start is None or least > start) and (stop is None or least < stop):
        start = least
    if most is not None and (stop is None or most < stop) and (start is None or most > start):
        stop = most
    if start is None and stop is None:
        return 0, one
    if start is None:
        assert stop is not None  # noqa: S101 - narrows the type for the checker
        return (float(np.nextafter(stop, -inf)), stop) if real else (stop - 1, stop)
    if stop is None:
        return start, start + one
    return start, stop


def _text(axis: Axis, at: int, region: Sequence[Interval]) -> str:
    """A text of a region: the one that it holds, what OTHER is called, or the least."""

    def inside(text: str) -> bool:
        return any((a is None or a <= (text, 0)) and (b is None or (text, 1) <= b) for a, b in region)

    low, high = region[0]
    if len(region) == 1 and low is not None and high == (low[0], 1) and low[1] == 0:
        return str(low[0])
    if at in axis.others:
        label = axis.others[at] or "other"
        taken = {str(end[0]).lower() for part in region for end in part if end is not None}
        label = label if inside(label) else free_name(label, taken)
        if inside(label):
            return label
    for low, _ in region:
        for text in ("",) if low is None else (low[0], low[0] + " ", low[0] + "\t"):
            if inside(text):
                return str(text)
    raise DataError(f"no text is known of a group of {axis.column.name}")


def _python(column: Column, place: int) -> object:
    """The value at a place of a column's line."""
    line = column.line
    if line.kind == "boolean":
        return bool(place)
    if line.kind == "decimal":
        return Decimal(place).scaleb(-line.scale)
    if line.kind == "date":
        return (_EPOCH + dt.timedelta(days=place)).date()
    if line.kind in ("timestamp", "timestamptz"):
        return _EPOCH + dt.timedelta(microseconds=place)
    return place
