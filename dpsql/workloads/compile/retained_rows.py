"""Which of a unit's rows of one table count, by the kinds that its scans tell apart.

Scans that keep the same rows of a unit are one *reader*, every other scan is a reader by itself. Let a unit have R
rows, any number of each kind, more than the limit of the table, too. A reader retains all rows of R that it counts if
these are no more than its limit, else any of them, as many as its limit: a hash over the unit decides which. Where it
only counts units, rows in one cell count once. Where a batch does not read the groups of a bound, rows may be in any.

**Which choices are enough.** Readers of cells and at most one of rows are enumerated together
(``dpsql.workloads.compile.several_readers``), under one bound at most. Norms are convex: what another reader alone
retains of a fixed set of kinds is a mean of choices with one row of each kind and all others of one kind; under bounds
it is any choice that satisfies all. For other readers together all numbers of rows are enumerated, without bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, combinations_with_replacement
from math import comb, inf, prod

import numpy as np

from dpsql.common.arrays import Flags, Ints
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.row_kinds import Bound, NotListedError, RowKinds
from dpsql.workloads.compile.several_readers import Sight, retained_together
from dpsql.workloads.families.patterns import ENOUGH, TRIED


@dataclass(frozen=True, eq=False)
class Reader:
    """Scans of one table that keep the same rows of a unit, at most ``limit``, by their numbers.

    ``rows`` counts rows and sums, ``values`` counts values, ``units`` count units. Without rows and values the limit is
    on cells, or on cells in each group of a bound (``by_group``). ``tells_cells``: whether counted rows are kept before
    all others; else others may displace them.
    """

    rows: tuple[int, ...]
    values: tuple[int, ...]
    units: tuple[int, ...]
    limit: int
    tells_cells: bool = True
    by_group: bool = False

    @property
    def by_cells(self) -> bool:
        """Whether it counts units alone, so that rows of one cell are one."""
        return not self.rows and not self.values

    def columns(self, cell: Ints) -> Ints:
        """Of each kind (scans x kinds) the number of its cells here, all together; -1 where it is in none."""
        mine = cell[[*self.rows, *self.values, *self.units]]
        counted = (mine >= 0).any(axis=0)
        number = np.full(counted.size, -1)
        number[counted] = np.unique(mine[:, counted], axis=1, return_inverse=True)[1].ravel()
        return number


@dataclass(frozen=True, eq=False)
class Choices:
    """``rows`` (choices x kinds) that a unit has, as far as that is enough, and what each reader retains of them.

    ``more`` (choices,): whether the unit may have further rows that change none of this.
    """

    rows: Ints
    retained: tuple[Ints, ...]
    more: Flags


def readers_of(scans: Sequence[Layout]) -> list[Reader]:
    """The readers of one table."""
    tables = [scan.table for scan in scans]
    group = list(range(len(scans)))
    for number, scan in enumerate(scans):
        others = () if scan.together is None else tuple(one.table for one in scan.together.all)
        if scan.tie is not None:
            others = (scan.tie.counted.table,)
        for table in others:
            joined = group[tables.index(table)]
            group = [group[number] if one == joined else one for one in group]
    readers = []
    for one in dict.fromkeys(group):
        members = [number for number, other in enumerate(group) if other == one]
        units = tuple(number for number in members if scans[number].source.counts_units)
        values = tuple(number for number in members if scans[number].source.each is not None)
        rows = tuple(number for number in members if number not in (*units, *values))
        tells = all(scans[number].tells_cells for number in rows if scans[number].together is None)
        together = scans[members[0]].together
        by_group = together is not None and together.classes is not None
        readers.append(Reader(rows, values, units, scans[members[0]].source.limit, tells, by_group))
    return readers


def choices_of(
    readers: Sequence[Reader], kinds: RowKinds, *, has_row: bool | None, one_row: bool, all_rows: bool
) -> Choices:
    """The rows that a unit may have, and what readers retain of them. Raises NotListedError for very many.

    ``one_row``: whether all readers see the one row that the table takes of a unit; ``has_row`` then says whether there
    is one, None where there may be. ``all_rows``: whether something depends on all rows that the unit has.
    """
    J = kinds.cell.shape[1]
    if one_row:
        rows = np.zeros((0, J), dtype=np.int64) if has_row is False else np.eye(J, dtype=np.int64)
        if not has_row or not J or kinds.uncounted:
            rows = np.concatenate([rows, np.zeros((1, J), dtype=np.int64)])
        return Choices(rows, (rows,) * len(readers), np.zeros(len(rows), dtype=bool))
    bounds = _that_matter(kinds.bounds, readers[0].limit) if readers else []
    others = [reader for reader in readers if not reader.by_cells]
    of_rows = len(others) < 2 and not any(reader.values or reader.units for reader in others)
    if readers and of_rows and not all_rows and len(bounds) < 2:
        retained = _of_cells_and_rows(readers, kinds, bounds[0] if bounds else None)
        return Choices(retained[0], retained, np.zeros(len(retained[0]), dtype=bool))
    if len(readers) == 1 and not all_rows:
        rows = _of_one(readers[0], kinds)
        return Choices(rows, (rows,), np.zeros(len(rows), dtype=bool))
    if bounds:
        raise NotListedError
    return _of_several(readers, kinds, all_rows=all_rows)


def _that_matter(bounds: Sequence[Bound], limit: int) -> list[Bound]:
    """The bounds that may leave a unit less than those before them and the limit do; none beside a limit of one, as any
    row may be the first of all.
    """
    found, total = list[Bound](), inf
    for bound in bounds if limit > 1 else ():
        there = bound.size if bound.group is None else int(bound.group.max(initial=-1)) + 1
        if (bound.rows or inf) < total or (bound.groups or inf) < min(there, total):
            found.append(bound)
            total = min(total, (bound.rows or inf) * min(bound.groups or there, there))
    return found


def _of_cells_and_rows(readers: Sequence[Reader], kinds: RowKinds, bound: Bound | None) -> tuple[Ints, ...]:
    """What each reader retains (choices x kinds); at most one reader is of rows, the others are of cells."""
    J, limit = kinds.cell.shape[1], readers[0].limit
    group, kind = np.zeros(J, dtype=np.int64), np.arange(J)
    if bound is not None and bound.group is not None:
        group = bound.group
    elif bound is not None and len(readers) == 1:
        limit, bound = min(limit, bound.most), None
    elif bound is not None:  # rows of a kind may be of any group
        group, kind = np.tile(np.arange(bound.size), J), np.repeat(kind, bound.size)
    own = [reader.columns(kinds.cell) for reader in readers]
    columns = []
    for reader, column in zip(readers, own, strict=True):
        told = (
            column[kind]
            if reader.by_cells and not reader.by_group
            else column[kind] * (group.max(initial=0) + 1) + group
        )
        columns.append(np.where(column[kind] < 0, -1, np.searchsorted(np.unique(told[column[kind] >= 0]), told)))
    of_rows = [column for reader, column in zip(readers, columns, strict=True) if not reader.by_cells]
    sight = Sight(
        tuple(column for reader, column in zip(readers, columns, strict=True) if reader.by_cells),
        of_rows[0] if of_rows else np.full(kind.size, -1),
        all(reader.tells_cells for reader in readers),
        group,
        limit,
        inf if bound is None or bound.rows is None else bound.rows,
        inf if bound is None or bound.groups is None else bound.groups,
    )
    cells, rows = retained_together(sight)
    each, found = iter(cells), []
    for reader, column, cell in zip(readers, columns, own, strict=True):
        retained = next(each).astype(np.int64) if reader.by_cells else rows
        # Rows of one cell are of one kind, whatever their groups.
        place = [int(np.argmax(cell == cell[kind[np.argmax(column == at)]])) for at in range(retained.shape[1])]
        found.append(np.zeros((len(retained), J), dtype=np.int64))
        np.add.at(found[-1].T, place, retained.T)
    first = np.unique(np.concatenate(found, axis=1), axis=0, return_index=True)[1]
    return tuple(one[first] for one in found)


def _of_one(reader: Reader, kinds: RowKinds) -> Ints:
    """What a single reader retains (choices x kinds)."""
    J = kinds.cell.shape[1]
    most = min([reader.limit, *(bound.most for bound in kinds.bounds)])
    bounds = [bound for bound in kinds.bounds if bound.group is not None]
    if not J:
        return np.zeros((1, 0), dtype=np.int64)
    if reader.values or not reader.rows or not reader.units or bounds:
        rows = _multisets(most, np.ones(J, dtype=bool), TRIED if bounds else ENOUGH)
        for bound in bounds:
            rows = rows[bound.allows(rows)]
        return rows
    eye, sizes = np.eye(J, dtype=np.int64), range(min(J, most) + 1)
    _check_few((comb(J, s) * (1 + s) for s in sizes), ENOUGH)
    choices = []
    for some in (some for s in sizes for some in combinations(range(J), s)):
        once = eye[list(some)].sum(axis=0)
        choices += [once, *(once + (most - len(some)) * eye[one] for one in some if most > len(some))]
    return np.array(choices, dtype=np.int64).reshape(-1, J)


def _of_several(readers: Sequence[Reader], kinds: RowKinds, *, all_rows: bool) -> Choices:
    """What readers retain, where they may retain different rows or all rows matter."""
    J = kinds.cell.shape[1]
    columns = [reader.columns(kinds.cell) for reader in readers]
    each = [
        _sets(reader.limit, column) if reader.by_cells else _multisets(reader.limit, column >= 0)
        for reader, column in zip(readers, columns, strict=True)
    ]
    # Where units are counted in cells, or how many rows there are, kinds that no reader retains a row of matter, too.
    further = all_rows or any(reader.by_cells for reader in readers)
    each.append(_sets(J, np.arange(J)) if further else np.zeros((1, J), dtype=np.int64))
    if prod(map(len, each)) > TRIED:
        raise NotListedError
    grid = np.indices([len(one) for one in each]).reshape(len(each), -1)
    retained = [one[at] for one, at in zip(each, grid, strict=True)]
    of_rows = [mine for reader, mine in zip(readers, retained, strict=False) if not reader.by_cells]
    rows = np.maximum.reduce([*of_rows, retained[-1]])
    fits, free = np.ones(len(rows), dtype=bool), rows > 0
    for reader, column, mine in zip(readers, columns, retained, strict=False):
        full = mine.sum(axis=1) == reader.limit
        if reader.by_cells:
            there, counted = (_by_column(one, column) for one in (rows, mine))
            fits &= np.where(full[:, None], there >= counted, there == counted).all(axis=1)
        elif reader.tells_cells:
            fits &= full | (rows * (column >= 0) == mine).all(axis=1)
            free &= full[:, None] | (column < 0)
    more = free.any(axis=1) | kinds.uncounted
    return Choices(rows[fits], tuple(mine[fits] for mine in retained[:-1]), more[fits])


def _check_few(counts: Iterable[int], most: int) -> None:
    """Raises NotListedError if their sum exceeds ``most``; stops early."""
    if any(total > most for total in accumulate(counts)):
        raise NotListedError


def _by_column(rows: Ints, column: Ints) -> Flags:
    """In which columns there are rows (choices x columns)."""
    numbers = range(column.max(initial=0) + 1)
    there: Flags = np.stack([(rows[:, column == one] > 0).any(axis=1) for one in numbers], axis=1)
    return there


def _sets(most: int, column: Ints) -> Ints:
    """At most ``most`` different columns, by the first kind of rows in each (choices x kinds)."""
    first = [int(np.argmax(column == one)) for one in range(column.max(initial=-1) + 1)]
    sizes = range(min(most, len(first)) + 1)
    _check_few((comb(len(first), size) for size in sizes), TRIED)
    some = [one for size in sizes for one in combinations(first, size)]
    sets = np.zeros((len(some), column.size), dtype=np.int64)
    for row, one in zip(sets, some, strict=True):
        row[list(one)] = 1
    return sets


def _multisets(most: int, counted: Flags, tried: int = ENOUGH) -> Ints:
    """All numbers of rows of the kinds that are ``counted``, at most ``most`` in all (choices x kinds)."""
    places = np.flatnonzero(counted).tolist()
    if comb(len(places) + most, most) > tried:
        raise NotListedError
    some = [one for size in range(most + 1) for one in combinations_with_replacement(places, size)]
    sets = np.zeros((len(some), counted.size), dtype=np.int64)
    for row, one in zip(sets, some, strict=True):
        np.add.at(row, list(one), 1)
    return sets
