"""All that one unit alone can add to a batch, listed: its contributions by construction.

**Claim.** Every measured number is a sum over units of a function of the unit's own rows and of public data
(``dpsql.workloads.expr.rows``), so a unit adds what the batch measures on a database of that unit alone.
``contributions_of_unit`` goes through these databases, as far as the scans tell them apart, and lists what each adds:
all that a unit can add, up to means of what is listed, and nothing else.

- *Attributes* (``dpsql.workloads.compile.attributes``) are the same in all rows of a unit, and in all tables.
- A *kind of rows* is the cell that a row of one table is in, of each scan of the table: all are walked at once, axis by
  axis (``dpsql.workloads.compile.walks``).
- Scans that keep the same rows of a unit are one *reader*, every other scan is a reader by itself. Let a unit have R
  rows, any number of each kind, more than the limit of the table, too. A reader keeps all rows of R that it counts if
  these are no more than its limit, else as many of them as its limit, whichever. Which ones a hash over the unit
  decides, so that none can be ruled out. Where it only counts units, rows of one cell are one. Rows of units look at
  all of R.
- Bounds of ``at_most`` leave a single reader what keeps to all of them. Kinds are told apart by the groups of a bound
  that the batch reads; rows may be in any group of one that it does not read.
- Of what a reader keeps each row adds a corner, a count of units adds 1 in each cell that has a row, and a count of
  values any number up to what the rows of a cell could add and there are values. Rows without a unit are in no count of
  units.

A unit fills its tables apart from each other but for attributes.

**Which rows are enough.** Norms are convex. What one reader keeps of a fixed set of kinds is a mean of choices with one
row of each kind and all others of one kind, in which all rows of one kind have the same corner. Of several readers all
numbers of rows are gone through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement, product
from math import comb, prod

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Flags, Ints
from dpsql.policy.values import fold
from dpsql.workloads.cells.cell_table import Cells
from dpsql.workloads.compile.attributes import State, states_of
from dpsql.workloads.compile.caps import groups_of, is_over
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.walks import walked
from dpsql.workloads.expr.regions import LineAxis, is_total
from dpsql.workloads.expr.related import region_of
from dpsql.workloads.expr.rows import Cap
from dpsql.workloads.expr.values import Constant, stored
from dpsql.workloads.families.patterns import ENOUGH

_MOST_STATES = 64  # combinations of attributes that are tried
_MOST_KINDS = 1_000  # of rows of one table
_MOST_SUMS = 3  # summed columns of one cell
_MOST_NUMBERS = 1_000  # entries of x
_MOST_VECTORS = 4 * ENOUGH  # before equal ones are one
_MOST_CHOICES = 100_000  # of rows that the readers of a table keep


class _NotListedError(Exception):
    """What one unit can add is not listed: there is too much of it, or it is not followed."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """Scans of one table that keep the same rows of a unit, at most ``limit``, by their numbers among its layouts.

    ``rows`` counts rows and sums, ``values`` counts values, ``units`` count units. Without rows and values the limit is
    on cells, in which the unit is counted.
    """

    rows: tuple[int, ...]
    values: tuple[int, ...]
    units: tuple[int, ...]
    limit: int

    @property
    def members(self) -> tuple[int, ...]:
        return (*self.rows, *self.values, *self.units)

    @property
    def by_cells(self) -> bool:
        """Whether it counts units alone, so that rows of one cell are one."""
        return not self.rows and not self.values

    def columns(self, cell: Ints) -> Ints:
        """Of each kind the number of its cells, all together, among those that differ; -1 where it is in none."""
        mine = cell[list(self.members)]
        counted = (mine >= 0).any(axis=0)
        number = np.full(counted.size, -1)
        number[counted] = np.unique(mine[:, counted], axis=1, return_inverse=True)[1].ravel()
        return number


@dataclass(frozen=True, eq=False)
class _Bound:
    """A bound of ``at_most``: ``rows`` in each group, and rows of as many ``groups``; ``group`` (kinds,) if it is read.

    ``most``: how many rows it leaves.
    """

    rows: int | None
    groups: int | None
    group: Ints | None
    most: int

    def allows(self, kept: Ints) -> Flags:
        """Which choices (choices x kinds) keep to it."""
        assert self.group is not None  # noqa: S101 - asked before
        each = np.stack([kept[:, self.group == one].sum(axis=1) for one in np.unique(self.group)], axis=1)
        found = np.ones(len(kept), dtype=bool)
        if self.rows is not None:
            found &= (each <= self.rows).all(axis=1)
        if self.groups is not None:
            found &= (each > 0).sum(axis=1) <= self.groups
        return found


@dataclass(frozen=True, eq=False)
class _Choices:
    """What may be kept of a unit's rows: ``rows`` (choices x kinds) are all that it has, or some that say enough.

    ``kept``: of each reader what it keeps (choices x kinds). ``more``: whether the unit may have further rows.
    """

    rows: Ints
    kept: tuple[Ints, ...]
    more: Flags


def contributions_of_unit(layouts: Sequence[Layout], size: int) -> sparse.csc_array | None:
    """All that one unit can add to ``size`` entries of x by these layouts, which share it (n x count), zero left out.

    None where these are more than 5,000 or take long to find, and for what is not followed: bounds of ``at_most`` of
    several readers or of a function of what the batch reads, windows, nearest rows, rows of units by more than how many
    rows they have, axes that compute something of an attribute, and cells that are not listed. Cost: a walk of each
    table for each of 64 states at most, and 100,000 choices of rows.
    """
    states = states_of(layouts, _MOST_STATES) if 0 < size <= _MOST_NUMBERS and all(map(_followed, layouts)) else None
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
            except _NotListedError:
                return None
            if len(sums) * len(added) > _MOST_VECTORS:
                return None
            sums = np.unique((sums[:, None, :] + added[None, :, :]).reshape(-1, size), axis=0)
        found.append(sums)
    whole = np.unique(np.concatenate(found), axis=0)
    whole = whole[(whole != 0).any(axis=1)]
    entries = np.concatenate([layout.entry[layout.entry >= 0] for layout in layouts])
    # A number that no unit moves, as of a condition that holds for no value, is planned as if one did.
    moved = bool((whole[:, entries] != 0).any(axis=0).all())
    return sparse.csc_array(whole.T) if moved and len(whole) <= ENOUGH else None


def _followed(layout: Layout) -> bool:
    """Whether a layout is of a form that the module goes through."""
    source = layout.source
    plain = isinstance(layout.cells, Cells) and layout.every is None and source.unit is not None
    plain = plain and source.windows is None
    plain = plain and all(join.of is None and join.nearest is None for join in source.joins)
    by_path = {part.source for axis in layout.cells.axes for part in layout.functions.of(axis).of} & set(source.path)
    return plain and not by_path and len(layout.measures) <= _MOST_SUMS and (source.of is None or _counts_rows(layout))


def _counts_rows(layout: Layout) -> bool:
    """Whether rows of units are told apart by how many rows the unit has, and by nothing else."""
    units, axes = layout.source.of, layout.cells.axes
    assert units is not None  # noqa: S101 - asked before
    plain = units.where is None and units.having is None and units.along is None and not units.of.joins
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
    """What the rows that a unit has of one table add (count x size), nothing among it. Raises _NotListedError."""
    of_units = [layout for layout in layouts if layout.source.of is not None]
    plain = [number for number, layout in zip(numbers, layouts, strict=True) if layout.source.of is None]
    scans = [layout for layout in layouts if layout.source.of is None]
    if len({(scan.source.limit, scan.source.caps, scan.source.path, scan.source.only) for scan in scans}) > 1:
        raise _NotListedError
    owns = state.owns[plain[0]] if plain else None
    cell, nothing, bounds = _kinds(scans, [state.regions[number] for number in plain], state.nobody, owns)
    readers = _readers(scans)
    choices = _choices(readers, cell, bounds, nothing=nothing, owns=owns, look=bool(of_units))
    if len(choices.rows) * size > _MOST_VECTORS * _MOST_NUMBERS:
        raise _NotListedError
    vectors, at = np.zeros((len(choices.rows), size), dtype=np.int64), np.arange(len(choices.rows))
    for reader, kept in zip(readers, choices.kept, strict=True):
        for number in reader.units:
            vectors += _counted_once(scans[number], cell[number], kept, size)[at]
        for number in reader.rows:
            corners = [_corners(scans[number], one, size) for one in cell[number].tolist()]
            alone = np.array([one[0] * (len(one) == 1) for one in corners], dtype=np.int64).reshape(-1, size)
            vectors += (kept @ alone)[at]
            for many, options in zip(kept.T, corners, strict=True):
                if len(options) > 1:
                    vectors, at = _each(vectors, at, many, options)
        for number in reader.values:
            for entry, many in _values(scans[number], cell[number], kept):
                one = np.zeros((2, size), dtype=np.int64)
                one[1, entry] = 1
                vectors, at = _each(vectors, at, many, one)
    for layout in of_units:
        vectors, at = _with_counts(layout, vectors, at, choices)
    return np.unique(vectors, axis=0)


def _each(vectors: Ints, at: Ints, times: Ints, options: Ints) -> tuple[Ints, Ints]:
    """The vectors with so many ``times`` each of the ``options`` where that is not 0, and whose choice they are."""
    there = times[at] > 0
    if len(vectors) + (len(options) - 1) * int(there.sum()) > _MOST_VECTORS:
        raise _NotListedError
    more = [vectors[there] + times[at[there]][:, None] * option for option in options]
    return np.concatenate([vectors[~there], *more]), np.concatenate([at[~there], *[at[there]] * len(options)])


def _kinds(
    scans: Sequence[Layout], regions: Sequence[tuple[int | None, ...]], nobody: bool, owns: bool | None
) -> tuple[Ints, bool, list[_Bound]]:
    """The cell of each kind of rows in each scan, -1 for none (scans x kinds); whether a row may count in none; bounds.

    Bounds are left out where a unit ``owns`` one row, which they all leave.
    """
    alive = [number for number, fixed in enumerate(regions) if -1 not in fixed]
    left = [without(scans[number], regions[number]) for number in alive]
    caps = scans[0].source.caps if scans and owns is None else ()
    groups = [_groups(cap, left) for cap in caps]
    read = [one for one in groups if one is not None]
    followed = walked([*left, *read]) if left else None
    if left and followed is None:
        raise _NotListedError
    ends = 1 if followed is None else followed.states.shape[1]
    state, cell = np.full((2, len(scans), ends), -1, dtype=np.int64)
    for row, (number, layout) in enumerate(zip(alive, left, strict=True)):
        assert followed is not None  # noqa: S101 - there are layouts
        state[number] = followed.states[row]
        cell[number] = _counted_cells(layout, state[number])
    tables = [scan.table for scan in scans]
    for number, scan in enumerate(scans):
        if scan.together is not None and scan.source.counts_units:
            # A row that has no region on an axis of one of them counts in none.
            members = [tables.index(one.table) for one in scan.together.all]
            cell[number, (state[members] < 0).any(axis=0)] = -1
        if nobody and scan.source.counts_units:
            cell[number] = -1
    group = np.zeros((0, ends), dtype=np.int64)
    if followed is not None:
        group = followed.states[len(left) : len(left) + len(read)]
    both = np.unique(np.concatenate([cell, group]), axis=1)
    counts = (both[: len(scans)] >= 0).any(axis=0)
    cell, found = both[: len(scans), counts], iter(both[len(scans) :, counts])
    bounds = []
    for cap, one in zip(caps, groups, strict=True):
        mine = None if one is None else next(found)
        bounds.append(_Bound(cap.rows, cap.groups, mine, cap.most(scans[0].source.limit)))
    return cell, not counts.all(), bounds


def _counted_cells(layout: Layout, state: Ints) -> Ints:
    """The cell in which rows count that end in a state, -1 for none."""
    assert isinstance(layout.cells, Cells)  # noqa: S101 - asked before
    reached = np.where(state >= 0, layout.cells.cell_of_state[state], -1)
    used = np.append((layout.entry >= 0).any(axis=0), False)
    return np.where(used[reached], reached, -1)


def _groups(cap: Cap, scans: Sequence[Layout]) -> Layout | None:
    """A table of the groups of a bound; None where the scans read nothing of it.

    Raises _NotListedError where they read something else of the same columns.
    """
    over = [groups_of(cap, axis, scan) for scan in scans for axis in scan.cells.axes if is_over(axis, scan, cap)]
    if over and is_total(cap.axis):
        return over[0]
    read = {part for scan in scans for axis in scan.cells.axes for part in scan.functions.of(axis).of}
    others = [scan.functions.value(one.column, one.line) for scan in scans for one in scan.measures]
    others += [scan.source.each.computed for scan in scans if scan.source.each is not None]
    read |= {part for value in others for part in stored(value)}
    bounded = {(part.source, fold(part.name)) for part in stored(cap.computed)}
    if over or bounded & {(part.source, fold(part.name)) for part in read}:
        raise _NotListedError
    return None


def without_attributes(layouts: Sequence[Layout]) -> list[Layout]:
    """The layouts, which share a unit, with the axes alone on which its rows may differ."""
    states = states_of(layouts, _MOST_STATES)
    if not states:
        return list(layouts)
    known = [[None if region is None else 0 for region in regions] for regions in states[0].regions]
    return [without(layout, fixed) for layout, fixed in zip(layouts, known, strict=True)]


def without(layout: Layout, fixed: Sequence[int | None]) -> Layout:
    """The layout without the axes on which the region is known."""
    cells = layout.cells
    assert isinstance(cells, Cells)  # noqa: S101 - asked before
    axes, tables, start = [], list[Ints](), np.zeros(1, dtype=np.int64)
    for axis, narrow, region in zip(cells.axes, cells.transitions, fixed, strict=True):
        table = narrow.astype(np.int64)
        if region is None:
            axes.append(axis)
            tables.append(table[start] if not tables else table)
        elif tables:
            tables[-1] = table[:, region][tables[-1]]
        else:
            start = table[start, region]
    last = cells.cell_of_state if tables else cells.cell_of_state[start]
    steps = tuple(table.astype(np.int32) for table in tables)
    return replace(layout, cells=replace(cells, axes=tuple(axes), transitions=steps, cell_of_state=last))


def _readers(scans: Sequence[Layout]) -> list[_Reader]:
    """The scans that keep the same rows, together."""
    tables = [scan.table for scan in scans]
    group = list(range(len(scans)))
    for number, scan in enumerate(scans):
        others = () if scan.together is None else tuple(one.table for one in scan.together.all)
        if scan.tie is not None:
            others = (scan.tie.counted.table,)
        for table in others:
            joined = group[tables.index(table)]
            group = [group[number] if one == joined else one for one in group]
    found = []
    for one in dict.fromkeys(group):
        members = [number for number, other in enumerate(group) if other == one]
        units = tuple(number for number in members if scans[number].source.counts_units)
        values = tuple(number for number in members if scans[number].source.each is not None)
        rows = tuple(number for number in members if number not in (*units, *values))
        found.append(_Reader(rows, values, units, scans[members[0]].source.limit))
    return found


def _choices(
    readers: Sequence[_Reader], cell: Ints, bounds: Sequence[_Bound], *, nothing: bool, owns: bool | None, look: bool
) -> _Choices:
    """The rows that a unit may have, and what readers keep of them. Raises _NotListedError for very many.

    ``look``: whether something depends on all rows that the unit has.
    """
    J = cell.shape[1]
    if owns is not None:
        one = np.eye(J, dtype=np.int64) if owns else np.zeros((0, J), dtype=np.int64)
        rows = np.concatenate([one, one[:0] if owns and J and not nothing else np.zeros((1, J), dtype=np.int64)])
        return _Choices(rows, (rows,) * len(readers), np.zeros(len(rows), dtype=bool))
    if len(readers) == 1 and not look:
        rows = _by_one(readers[0], cell, bounds)
        return _Choices(rows, (rows,), np.zeros(len(rows), dtype=bool))
    if bounds:
        raise _NotListedError
    columns = [reader.columns(cell) for reader in readers]
    each = [
        _sets(reader.limit, column) if reader.by_cells else _multisets(reader.limit, column >= 0)
        for reader, column in zip(readers, columns, strict=True)
    ]
    # Where units are counted in cells, or how many rows there are, kinds that no reader keeps a row of matter, too.
    further = look or any(reader.by_cells for reader in readers)
    each.append(_sets(J, np.arange(J)) if further else np.zeros((1, J), dtype=np.int64))
    if prod(map(len, each)) > _MOST_CHOICES:
        raise _NotListedError
    grid = np.indices([len(one) for one in each]).reshape(len(each), -1)
    kept = [one[at] for one, at in zip(each, grid, strict=True)]
    own = [mine for reader, mine in zip(readers, kept, strict=False) if not reader.by_cells]
    rows = np.maximum.reduce([*own, kept[-1]])
    fits, free = np.ones(len(rows), dtype=bool), rows > 0
    for reader, column, mine in zip(readers, columns, kept, strict=False):
        full = mine.sum(axis=1) == reader.limit
        if reader.by_cells:
            there, counted = (_by_column(one, column) for one in (rows, mine))
            fits &= np.where(full[:, None], there >= counted, there == counted).all(axis=1)
        else:
            fits &= full | (rows * (column >= 0) == mine).all(axis=1)
            free &= full[:, None] | (column < 0)
    return _Choices(rows[fits], tuple(mine[fits] for mine in kept[:-1]), (free.any(axis=1) | nothing)[fits])


def _by_column(rows: Ints, column: Ints) -> Flags:
    """In which columns there are rows (choices x columns)."""
    found: Flags = np.stack(
        [(rows[:, column == one] > 0).any(axis=1) for one in range(column.max(initial=0) + 1)], axis=1
    )
    return found


def _sets(most: int, column: Ints) -> Ints:
    """At most ``most`` different columns, by the first kind of rows in each (choices x kinds)."""
    first = [int(np.argmax(column == one)) for one in range(column.max(initial=-1) + 1)]
    sizes = range(min(most, len(first)) + 1)
    if len(first) > _MOST_KINDS or sum(comb(len(first), size) for size in sizes) > _MOST_CHOICES:
        raise _NotListedError
    some = [one for size in sizes for one in combinations(first, size)]
    found = np.zeros((len(some), column.size), dtype=np.int64)
    for row, one in zip(found, some, strict=True):
        row[list(one)] = 1
    return found


def _by_one(reader: _Reader, cell: Ints, bounds: Sequence[_Bound]) -> Ints:
    """What one reader keeps of any rows (choices x kinds), as far as is enough. Raises _NotListedError."""
    k, J = reader.limit, cell.shape[1]
    k = min([k, *(bound.most for bound in bounds)])
    told = [bound for bound in bounds if bound.group is not None]
    if not J:
        return np.zeros((1, 0), dtype=np.int64)
    if reader.values or told:
        rows = _multisets(k, np.ones(J, dtype=bool))
        for bound in told:
            rows = rows[bound.allows(rows)]
        return rows
    eye = np.eye(J, dtype=np.int64)
    if not reader.units:
        return np.concatenate([k * eye, 0 * eye[:1]])
    sizes = range(min(J, k) + 1)
    if J > _MOST_KINDS or sum(comb(J, s) * (1 + s * bool(reader.rows)) for s in sizes) > ENOUGH:
        raise _NotListedError
    found = []
    for s in sizes:
        for some in combinations(range(J), s):
            first = eye[list(some)].sum(axis=0)
            found.append(first)
            found += [first + (k - s) * eye[one] for one in some if reader.rows and k > s]
    return np.array(found, dtype=np.int64).reshape(-1, J)


def _multisets(k: int, counted: Flags) -> Ints:
    """All numbers of rows of the kinds that are ``counted``, at most ``k`` in all (choices x kinds)."""
    places, J = np.flatnonzero(counted).tolist(), counted.size
    if comb(len(places) + k, k) > ENOUGH:
        raise _NotListedError
    some = [one for s in range(k + 1) for one in combinations_with_replacement(places, s)]
    found = np.zeros((len(some), J), dtype=np.int64)
    for row, one in zip(found, some, strict=True):
        np.add.at(row, list(one), 1)
    return found


def _corners(layout: Layout, cell: int, size: int) -> Ints:
    """What one row in a cell may add (options x size)."""
    if cell < 0:
        return np.zeros((1, size), dtype=np.int64)
    entries = layout.entry[:, cell]
    sums = entries[1:][entries[1:] >= 0]
    found = np.zeros((2**sums.size, size), dtype=np.int64)
    found[:, sums] = list(product((1, -1), repeat=sums.size))
    if entries[0] >= 0:
        found[:, entries[0]] = 1
    return found


def _counted_once(layout: Layout, cell: Ints, kept: Ints, size: int) -> Ints:
    """1 in each entry where a unit has a row (choices x size)."""
    where = np.zeros((cell.size, size), dtype=np.int64)
    inside = np.flatnonzero(cell >= 0)
    where[inside, layout.entry[0, cell[inside]]] = 1
    found: Ints = np.minimum(kept @ where, 1)
    return found


def _values(layout: Layout, cell: Ints, kept: Ints) -> list[tuple[int, Ints]]:
    """The entries that count values, and how many a unit could add to each (choices,)."""
    entries, most = layout.values_once
    found = []
    for entry, limit in zip(entries.tolist(), most.tolist(), strict=True):
        mine = (cell >= 0) & (layout.entry[0, cell] == entry)
        found.append((entry, np.minimum(kept[:, mine].sum(axis=1), limit)))
    return found


def _with_counts(layout: Layout, vectors: Ints, at: Ints, choices: _Choices) -> tuple[Ints, Ints]:
    """The vectors with the unit's one row where it is told apart by how many rows the unit has."""
    axes, cells = layout.cells.axes, layout.cells
    assert isinstance(cells, Cells)  # noqa: S101 - asked before
    least = choices.rows.sum(axis=1)
    last = max((_last(axis) for axis in axes if isinstance(axis, LineAxis)), default=1)
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
