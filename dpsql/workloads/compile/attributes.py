"""Columns that are equal in all rows of one unit: the unit itself, and those of rows that are found by the unit.

A visit that finds its patient by the patient's number finds the same row as every other visit of that patient, in every
scan of a batch (``dpsql.workloads.expr.rows``). Columns of such rows are *attributes* of the unit. So are the columns
of a table of one row a unit in scans of that table itself, where other tables find the row by the unit.

A *state* says in which regions the attributes of a unit are, in all tables at once. Of each table a unit finds a row or
none, and where it finds none all columns of it are NULL. Rows without a unit are one unit more: NULL equals nothing, so
that they find no row. In a table of one row a unit rows without a unit may have any values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import TypeAlias

from dpsql.common.arrays import Ints
from dpsql.policy.types import column_type
from dpsql.policy.values import fold
from dpsql.workloads.compile.cells_of_a_row import joint_regions
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.related import region_of
from dpsql.workloads.expr.rows import MATCHED, Join, RowSource, agrees
from dpsql.workloads.expr.values import Stored, stored

Origin: TypeAlias = tuple[str, frozenset[str]]
"""A row that a unit finds: its table, and the columns of that which equal the unit."""
_NEVER_NULL = ("integer", "text", "boolean")
"""Types of which each value that is a unit is read as one; NaN is a unit, but reads as NULL."""
_UNIT: Origin = ("", frozenset())
"""The origin of the unit's own column, which is there but for rows without a unit."""


@dataclass(frozen=True)
class State:
    """The attributes of a unit: of each layout the region on each axis, None where rows of the unit may differ.

    ``nobody``: of rows without a unit. ``has_row``: of each layout whether the unit has the one row of its table
    that others find, or none; None where it may have any.
    """

    regions: tuple[tuple[int | None, ...], ...]
    has_row: tuple[bool | None, ...]
    nobody: bool


@dataclass(frozen=True, eq=False)
class _Attribute:
    """One column of one row that is found: its ``places`` (layout, axis), and its regions there (places x joint ones).

    ``present`` and ``absent``: the joint regions that it may have where the row is found, and where it is not.
    """

    places: tuple[tuple[int, int], ...]
    regions: Ints
    origin: Origin
    present: tuple[int, ...]
    absent: tuple[int, ...]


def states_of(layouts: Sequence[Layout], most: int) -> list[State] | None:
    """The states of a unit of these layouts, which share it, and of rows without a unit, if any are read.

    None for more than ``most``, and for what is not followed:

    - an axis over a function of an attribute, an attribute that is summed for each of several rows, or where
      another layout cuts it;
    - a join by a column of a row that the unit finds;
    - a table of which one row is found while several rows of a unit are counted;
    - a unit that tables store under different types.
    """
    by_unit = [_by_unit(layout.source) for layout in layouts]
    shared = {origin for one in by_unit for origin in one.values()}
    bases = [base if (base := _base(layout.source)) in shared else None for layout in layouts]
    others = {fold(layout.source.table) for layout, base in zip(layouts, bases, strict=True) if base is None}
    if others & {table for table, _ in shared}:
        return None
    if any(_by_others(layout.source, one, others) for layout, one in zip(layouts, by_unit, strict=True)):
        return None
    attributes = _attributes(layouts, by_unit, bases)
    if attributes is None:
        return None
    named = dict.fromkeys([*(one.origin for one in attributes), *(base for base in bases if base is not None)])
    origins = [origin for origin in named if origin != _UNIT]
    ways = [{_UNIT, *some} for number in range(len(origins) + 1) for some in combinations(origins, number)]
    states: dict[State, None] = {}
    without_unit = [] if all(layout.source.no_row_without_unit for layout in layouts) else [set[Origin]()]
    for there in [*ways, *without_unit]:
        each = [one.present if one.origin in there else one.absent for one in attributes]
        if prod(map(len, each)) + len(states) > most:
            return None
        nobody = _UNIT not in there
        has_row = tuple(None if base is None or nobody else base in there for base in bases)
        for chosen in product(*each):
            regions: list[list[int | None]] = [[None] * len(layout.cells.axes) for layout in layouts]
            for one, joint in zip(attributes, chosen, strict=True):
                for row, (layout, axis) in enumerate(one.places):
                    if not (nobody and one.origin == bases[layout]):
                        regions[layout][axis] = int(one.regions[row, joint])
            states[State(tuple(map(tuple, regions)), has_row, nobody)] = None
    return list(states)


def _by_unit(source: RowSource) -> dict[str, Origin]:
    """The rows that joins of a source find by the unit alone, by the join's name.

    Under types of another kind a row that the unit owns might not be found.
    """
    joins = [
        join
        for join in source.joins
        if set(join.lefts) == {left for left, _ in join.pairs} == {source.unit}
        and all(column_type(left.type).kind == column_type(right.type).kind for left, right in join.pairs)
        and all(left.type == right.type or column_type(left.type).kind in _NEVER_NULL for left, right in join.pairs)
        and agrees(source, join)
    ]
    return {join.name: _origin(join) for join in joins}


def _by_others(source: RowSource, by_unit: dict[str, Origin], counted: set[str]) -> bool:
    """Whether a join key is of a row that the unit finds, or a join finds one of the unit's rows that are counted."""
    rest = [join for join in source.joins if join.name not in by_unit]
    return any(join.private and fold(join.table) in counted for join in rest) or any(
        left.source in by_unit or set(join.lefts) == {source.unit} for join in rest for left in join.lefts
    )


def _origin(join: Join) -> Origin:
    pairs = (*join.pairs, *(() if join.unit is None else (join.unit,)))
    return fold(join.table), frozenset(fold(right.name) for _, right in pairs)


def _base(source: RowSource) -> Origin | None:
    """What the rows of a table of one row a unit are where they are found by the unit; None for other tables."""
    if not source.agrees or source.unit is None:
        return None
    return fold(source.table), frozenset({fold(source.unit.name)})


def _attributes(
    layouts: Sequence[Layout], by_unit: Sequence[dict[str, Origin]], bases: Sequence[Origin | None]
) -> list[_Attribute] | None:
    """The attributes that the layouts have axes over; None where one of them computes something of these."""
    places: dict[tuple[Origin, str], list[tuple[int, int]]] = {}
    summed: dict[tuple[Origin, str], int] = {}
    for number, (layout, rows, base) in enumerate(zip(layouts, by_unit, bases, strict=True)):
        for at, axis in enumerate(layout.cells.axes):
            read = layout.functions.of(axis)
            names = [_name(column, layout.source, rows, base) for column in read.of]
            if names and names[0] is not None and isinstance(axis, LineAxis) and isinstance(read.value, Stored):
                places.setdefault(names[0], []).append((number, at))
            elif any(names):
                return None
        values = [layout.functions.value(one.column, one.line) for one in layout.measures]
        for name in (_name(part, layout.source, rows, base) for value in values for part in stored(value)):
            if name is not None and (base is None or summed.setdefault(name, number) != number):
                return None
    if any(number != summed[name] for name in places.keys() & summed.keys() for number, _ in places[name]):
        return None  # one layout cuts what another one sums
    joint = [_attribute(layouts, name, mine) for name, mine in places.items()]
    return None if None in joint else [one for one in joint if one is not None]


def _attribute(
    layouts: Sequence[Layout], name: tuple[Origin, str], places: Sequence[tuple[int, int]]
) -> _Attribute | None:
    """One attribute, with the regions that all axes over it have at once; None where it is not on a line."""
    axes = [layouts[number].cells.axes[at] for number, at in places]
    if len({axis.line for axis in axes}) > 1:
        return None  # one unit under two types, whose places are not on one scale
    joint = joint_regions(axes)
    line = None if joint is None else joint[1]
    if joint is None or not isinstance(line, LineAxis):
        return None
    present = {*line.pieces.tolist(), line.null_region}
    if name[1] == MATCHED:
        present = {region_of(line, value=True)}
    elif name[0] == _UNIT and column_type(line.line.type).kind in _NEVER_NULL:
        present = set(line.pieces.tolist())
    return _Attribute(tuple(places), joint[0], name[0], tuple(sorted(present)), (line.null_region,))


def _name(
    column: Stored, source: RowSource, by_unit: dict[str, Origin], base: Origin | None
) -> tuple[Origin, str] | None:
    """The attribute that a column is; None for a column of a row alone."""
    if column == source.unit:
        return _UNIT, ""
    origin = by_unit.get(column.source) if column.source else base
    return None if origin is None else (origin, column.name if column.name == MATCHED else fold(column.name))
