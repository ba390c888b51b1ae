"""Lists all that one unit alone can add to a batch: its contributions, by construction.

**Claim.** Every measured number is a sum over units of a function of the unit's own rows and of public data
(``dpsql.workloads.expr.rows``), so a unit adds what the batch measures on a database of that unit alone.
``contributions_of_unit`` goes through these databases, as far as the scans distinguish them, and lists what each adds:
all that a unit can add, up to means of what is listed, and nothing else, except that several sums of one column are
taken as independent within their bounds.

- *Attributes* (``dpsql.workloads.compile.attributes``) are the same in all rows of a unit, and in all tables.
- Of one table a unit has rows of some *kinds* (``dpsql.workloads.compile.row_kinds``), and each scan retains some of
  them (``dpsql.workloads.compile.retained_rows``). Rows of units look at all rows, whether they count or not.
- Of what is retained each row adds a corner, all rows of one kind the same, since norms are convex; a count of units
  adds 1 in each cell that has a row, and a count of values any number up to what the rows of a cell could add and there
  are values. Rows without a unit are in no count of units.
- Given the attributes, the rows of a unit in different tables are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Ints
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.attributes import State, states_of
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.retained_rows import Choices, choices_of, readers_of
from dpsql.workloads.compile.row_kinds import NotListedError, row_kinds, without
from dpsql.workloads.expr.regions import LineAxis
from dpsql.workloads.expr.related import region_of
from dpsql.workloads.expr.values import Constant
from dpsql.workloads.families.patterns import ENOUGH

MOST_STATES = 64
"""Combinations of attributes that are tried."""
_MOST_NUMBERS = 1_000  # entries of x
_MOST_VECTORS = 4 * ENOUGH  # before equal ones are one


def contributions_of_unit(layouts: Sequence[Layout], size: int) -> sparse.csc_array | None:
    """All that one unit can add to ``size`` entries of x by these layouts, which share it (n x count), zero left out.

    None where these are more than 5,000 (20,000 before equal ones are merged), of more than 1,000 entries, and for what
    is not followed: several bounds of ``at_most`` of several readers, bounds of a function of what the batch reads,
    windows, nearest rows, subqueries by unit with anything but COUNT(*), axes that compute something of an attribute,
    and cells that are not listed. Cost: a walk of each table for each of 64 states, and 100,000 choices of rows.
    """
    states = states_of(layouts, MOST_STATES) if 0 < size <= _MOST_NUMBERS and all(map(_followed, layouts)) else None
    if states is None:
        return None
    tables: dict[str, list[int]] = {}
    for number, layout in enumerate(layouts):
        tables.setdefault(layout.source.table, []).append(number)
    found = []
    for state in states:
        sums = np.zeros((1, size), dtype=np.int64)
        for numbers in tables.values():
            try:
                added = _of_table([layouts[number] for number in numbers], numbers, state, size)
            except NotListedError:
                return None
            if len(sums) * len(added) > _MOST_VECTORS:
                return None
            sums = np.unique((sums[:, None, :] + added[None, :, :]).reshape(-1, size), axis=0)
        found.append(sums)
    whole = np.unique(np.concatenate(found), axis=0)
    whole = whole[(whole != 0).any(axis=1)]
    entries = np.concatenate([layout.entry[layout.entry >= 0] for layout in layouts])
    # An entry that never changes, as of a condition that holds for no value, gets noise all the same.
    moved = bool((whole[:, entries] != 0).any(axis=0).all())
    return sparse.csc_array(whole.T) if moved and len(whole) <= ENOUGH else None


def _followed(layout: Layout) -> bool:
    """Whether a layout is of a form that the module goes through."""
    source = layout.source
    plain = isinstance(layout.cells, Cells) and layout.every is None and source.unit is not None
    plain = plain and source.windows is None and source.added is None
    plain = plain and all(join.of is None and join.nearest is None for join in source.joins)
    by_path = {part.source for axis in layout.cells.axes for part in layout.functions.of(axis).of} & set(source.path)
    return plain and not by_path and (source.of is None or _counts_rows(layout))


def _counts_rows(layout: Layout) -> bool:
    """Whether rows of units are told apart by how many rows the unit has, and by nothing else."""
    units, axes = layout.source.of, layout.cells.axes
    assert units is not None  # noqa: S101 - asked before
    plain = units.where is None and units.having is None and units.along is None and not units.of.joins
    plain = plain and not units.keys
    plain = plain and not units.of.conditional and units.of.windows is None and not layout.measures
    counts = [
        column.name
        for column in units.columns
        if column.function == "count" and column.where is None and isinstance(column.value, Constant)
    ]
    return plain and all(
        isinstance(axis, LineAxis) and axis.column in counts and _last(axis) <= _MOST_NUMBERS for axis in axes
    )


def _last(axis: LineAxis) -> int:
    """A number of rows from which on all numbers are in one region."""
    return max((int(cut[0]) for cut in axis.cuts), default=0) + 1


def _of_table(layouts: Sequence[Layout], numbers: Sequence[int], state: State, size: int) -> Ints:
    """What the rows of a unit in one table add (count x size), the zero vector included. Raises NotListedError."""
    of_units = [layout for layout in layouts if layout.source.of is not None]
    places = [number for number, layout in zip(numbers, layouts, strict=True) if layout.source.of is None]
    scans = [layout for layout in layouts if layout.source.of is None]
    sources = [scan.source for scan in scans]
    if len({(one.limit, one.caps, one.path, one.only, one.order) for one in sources}) > 1:
        raise NotListedError
    if len(scans) > 1 and any(not join.private for source in sources for join in source.joins):
        raise NotListedError  # of several public rows with one key each scan finds the least in what it reads
    kinds, readers = row_kinds(scans, [state.regions[number] for number in places], state), readers_of(scans)
    has_row = state.has_row[places[0]] if places else None
    one_row = bool(scans) and sources[0].agrees
    choices = choices_of(readers, kinds, has_row=has_row, one_row=one_row, all_rows=bool(of_units))
    if len(choices.rows) * size > _MOST_VECTORS * _MOST_NUMBERS:
        raise NotListedError
    vectors, at = np.zeros((len(choices.rows), size), dtype=np.int64), np.arange(len(choices.rows))
    for reader, retained in zip(readers, choices.retained, strict=True):
        for number in reader.units:
            vectors += _units(scans[number], kinds.cell[number], retained, size)[at]
        options = [each for n in reader.rows for each in _corners(scans[n], kinds.cell[n], retained, size)]
        options += [each for n in reader.values for each in _values(scans[n], kinds.cell[n], retained, size)]
        for many, each in options:
            vectors, at = _with_each(vectors, at, many, each)
    for layout in of_units:
        vectors, at = _with_counts(layout, vectors, at, choices)
    return np.unique(vectors, axis=0)


def _with_each(vectors: Ints, at: Ints, times: Ints, options: Ints) -> tuple[Ints, Ints]:
    """The vectors with so many ``times`` one of the ``options`` added, and the choice that each is of."""
    if len(options) == 1:
        return vectors + times[at][:, None] * options, at
    there = times[at] > 0
    if len(vectors) + (len(options) - 1) * int(there.sum()) > _MOST_VECTORS:
        raise NotListedError
    more = [vectors[there] + times[at[there]][:, None] * option for option in options]
    return np.concatenate([vectors[~there], *more]), np.concatenate([at[~there], *[at[there]] * len(options)])


def without_attributes(layouts: Sequence[Layout]) -> list[Layout]:
    """The layouts, which share a unit, with the axes alone on which its rows may differ."""
    states = states_of(layouts, MOST_STATES)
    if not states:
        return list(layouts)
    fixed = [[None if region is None else 0 for region in regions] for regions in states[0].regions]
    return [without(layout, regions) for layout, regions in zip(layouts, fixed, strict=True)]


def _corners(layout: Layout, cell: Ints, retained: Ints, size: int) -> list[tuple[Ints, Ints]]:
    """Of each kind how many rows there are (choices,), and what one of them may add (options x size)."""
    counted = np.flatnonzero(cell >= 0)
    result = []
    for kind, entries in zip(counted.tolist(), layout.entry[:, cell[counted]].T, strict=True):
        sums = entries[1:][entries[1:] >= 0]
        if 2**sums.size > ENOUGH // size:
            raise NotListedError
        options = np.zeros((2**sums.size, size), dtype=np.int64)
        options[:, sums] = list(product((1, -1), repeat=sums.size))
        if entries[0] >= 0:
            options[:, entries[0]] = 1
        result.append((retained[:, kind], options))
    return result


def _units(layout: Layout, cell: Ints, retained: Ints, size: int) -> Ints:
    """1 in each entry where a unit has a row (choices x size)."""
    where = np.zeros((cell.size, size), dtype=np.int64)
    inside = np.flatnonzero(cell >= 0)
    where[inside, layout.entry[0, cell[inside]]] = 1
    found: Ints = np.minimum(retained @ where, 1)
    return found


def _values(layout: Layout, cell: Ints, retained: Ints, size: int) -> list[tuple[Ints, Ints]]:
    """Of each entry that counts values how many a unit could add (choices,), and that it may add them or none."""
    result = []
    for entry, limit in np.stack(layout.values_once, axis=1).tolist():
        options = np.zeros((2, size), dtype=np.int64)
        options[1, entry] = 1
        rows = retained[:, (cell >= 0) & (layout.entry[0, cell] == entry)].sum(axis=1)
        result.append((np.minimum(rows, limit), options))
    return result


def _with_counts(layout: Layout, vectors: Ints, at: Ints, choices: Choices) -> tuple[Ints, Ints]:
    """The vectors with the unit's one row where it is told apart by how many rows the unit has."""
    cells = layout.listed_cells
    axes = cells.axes
    least = choices.rows.sum(axis=1)
    last = max((_last(axis) for axis in axes if isinstance(axis, LineAxis)), default=1)
    many = np.where(choices.more, last + 1 - np.minimum(least, last), 1)
    if many[at].sum() > _MOST_VECTORS:
        raise NotListedError
    found, whose = [], []
    for number in range(last + 1):
        may = (np.minimum(least, last) == number) | (choices.more & (least < number))
        mine = may[at]
        added = np.zeros(vectors.shape[1], dtype=np.int64)
        regions = [np.array([region_of(axis, number)]) for axis in axes if isinstance(axis, LineAxis)]
        cell = int(cells.locate(regions)[0]) if axes else 0
        if number and cell >= 0 and layout.entry[0, cell] >= 0:
            added[layout.entry[0, cell]] = 1
        found.append(vectors[mine] + added)
        whose.append(at[mine])
    return np.concatenate(found), np.concatenate(whose)
