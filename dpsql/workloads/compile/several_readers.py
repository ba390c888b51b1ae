"""What several scans of one table retain of a unit's rows together, under a bound of ``at_most`` or none.

At most one reader adds up rows, any number of others count units in cells. The bound leaves at most ``most`` rows of
each group, and rows of at most ``groups`` groups. Which rows and groups is decided by hashes, so that each reader is
taken to choose by itself.

**Claim.** Let a reader see the rows of R that it counts. Under the bound it selects a maximal S of these: each row
outside S is *excluded*, as S has ``most`` rows of its group already, or rows of ``groups`` other groups. If S has
fewer rows, or cells, than the limit, the reader retains all of it, else any part T that is as large as the limit. So T
may be anything of that size that R has and the bound allows.

**What is enough.** (1) Each condition concerns one row of R, so that R may be taken as S, or T, of each reader. (2) A
reader of cells needs one row in each cell that it retains, ``most`` rows in each full group, and, to exclude other
groups, rows of ``groups`` groups; more rows in cells that it retains change nothing. (3) A row that others see nothing
of, or no more than of another one in the same cell and group, is as good as that. (4) Let readers of cells need R_0.
Of further rows a unit may have any that change nothing for them. What the reader of rows retains of all these, K, is
either as many rows as the limit, or in each group that is not excluded ``most`` rows or all of R_0. For given groups
norms are convex in K, so that extreme K are enough. With as many rows as the limit each group has ``most`` rows of one
column or none, but for one group that has the rest; otherwise each group has ``most`` rows of one column, just its
rows of R_0, or, where the number of groups is bounded, one row. Any other K lies between two that differ in the rows
of one column. (5) Rows of one cell add the same corner, by convexity, too.

Without ``Reader.tells_cells`` uncounted rows may displace those that a reader counts: it retains any of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import comb, inf, prod

import numpy as np

from dpsql.common.arrays import Flags, Ints
from dpsql.workloads.compile.row_kinds import NotListedError
from dpsql.workloads.families.patterns import TRIED


@dataclass(frozen=True, eq=False)
class Sight:
    """What readers see of some kinds of rows, each of one ``group`` (kinds,) of a bound.

    ``cells``: for each reader of cells the index of each kind's cell (kinds,), -1 for none. ``rows`` (kinds,): the same
    for the reader of rows, -1 everywhere where there is none; ``tells_cells`` is of this reader. ``limit``: how many
    rows or cells are retained. At most ``most`` rows in each of at most ``groups`` groups, inf where not bounded.
    """

    cells: tuple[Ints, ...]
    rows: Ints
    tells_cells: bool
    group: Ints
    limit: int
    most: float
    groups: float

    @property
    def labels(self) -> int:
        """How many groups there are."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def group_of_columns(self) -> Ints:
        """The group of each column of the reader of rows."""
        counted = np.flatnonzero(self.rows >= 0)
        group = np.zeros(int(self.rows.max(initial=-1)) + 1, dtype=np.int64)
        group[self.rows[counted]] = self.group[counted]
        return group


@dataclass(frozen=True)
class _Way:
    """``rows``, by their kinds, of which a reader of cells retains ``cells``; ``most`` rows of the ``full`` groups."""

    rows: tuple[int, ...] = ()
    cells: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class _Needed:
    """The ways of one reader of cells: ``cells`` (ways x columns), ``rows`` and further rows (ways x kinds)."""

    cells: Flags
    rows: Ints
    further: Flags


def retained_together(sight: Sight) -> tuple[list[Flags], Ints]:
    """The columns that each reader of cells retains, and how many rows of each column the reader of rows does.

    Each (choices x columns). Raises NotListedError where they are many.
    """
    needed = [_needed(number, sight) for number in range(len(sight.cells))]
    count, kinds = prod(len(one.rows) for one in needed), sight.group.size
    if count > TRIED:
        raise NotListedError
    cells, rows = np.zeros((count, 0), dtype=np.int64), np.zeros((count, kinds), dtype=np.int64)
    further = np.ones((count, kinds), dtype=bool)
    for one, way in zip(needed, np.indices([len(one.rows) for one in needed]).reshape(len(needed), count), strict=True):
        cells = np.concatenate([cells, one.cells[way]], axis=1)
        rows = np.maximum(rows, one.rows[way])
        further &= one.further[way]
    seen = sight.rows[:, None] == np.arange(sight.group_of_columns.size)
    fits = ~((rows > 0) & ~further).any(axis=1)
    keys = np.unique(np.concatenate([cells, further @ seen, rows @ seen], axis=1)[fits], axis=0)
    mine, reached, before = np.split(keys, [cells.shape[1], cells.shape[1] + seen.shape[1]], axis=1)
    key, retained = _rows_beside(sight, reached > 0, before)
    each = np.split(mine[key], np.cumsum([one.cells.shape[1] for one in needed], dtype=int)[:-1].tolist(), axis=1)
    return [one > 0 for one in each[: len(needed)]], retained


def _needed(number: int, sight: Sight) -> _Needed:
    """What one reader of cells may retain, and what it needs for that."""
    column, group = sight.cells[number], sight.group
    ways = list(_ways(number, sight))
    cells = np.zeros((len(ways), int(column.max(initial=-1)) + 1), dtype=np.int64)
    inside, full = np.zeros((2, len(ways), sight.labels), dtype=bool)
    rows = np.zeros((len(ways), group.size), dtype=np.int64)
    for at, way in enumerate(ways):
        cells[at, list(way.cells)] = 1
        inside[at, list(way.groups)] = full[at, list(way.full)] = True
        np.add.at(rows[at], list(way.rows), 1)
    whole = cells.sum(axis=1) == sight.limit
    excluded = full[:, group] | ((inside.sum(axis=1) == sight.groups)[:, None] & ~inside[:, group])
    further = excluded | whole[:, None] | (column < 0)
    further[:, column >= 0] |= cells[:, column[column >= 0]] > 0
    return _Needed(cells > 0, rows, further)


def _ways(number: int, sight: Sight) -> Iterator[_Way]:
    """All that one reader of cells may retain, in all ways in which what it needs matters to others."""
    places = _least_seen(number, sight)
    partial = [_Way()]
    for label in range(sight.labels):
        options = list(_of_group([kind for kind in places if sight.group[kind] == label], label, number, sight))
        longer = list(partial)
        for way in partial:
            for one in options if len(way.groups) < sight.groups else ():
                both = _Way(way.rows + one.rows, way.cells | one.cells, way.groups | one.groups, way.full | one.full)
                # A cell that is there need not be once more, but for groups that are bounded or full.
                again = sight.groups == inf and not one.full and way.cells & one.cells
                if len(both.cells) <= sight.limit and not again:
                    longer.append(both)
            if len(longer) > TRIED:
                raise NotListedError
        partial = longer
    for way in partial:
        if len(way.cells) < sight.limit or len(way.cells) == len(way.rows):
            yield way


def _of_group(places: Sequence[int], label: int, number: int, sight: Sight) -> Iterator[_Way]:
    """The rows of one group that a reader of cells may need: different cells, or as many rows as there may be.

    Raises NotListedError where they are many.
    """
    column, here, n = sight.cells[number], frozenset({label}), len(places)
    sizes = range(1, min(n, int(min(sight.most - 1, sight.limit))) + 1)
    again = comb(n + int(sight.most) - 1, int(sight.most)) if sight.most < inf and n else 0
    if sum(comb(n, size) for size in sizes) + again > TRIED:
        raise NotListedError
    for size in sizes:
        for some in combinations(places, size):
            cells = frozenset(column[list(some)].tolist())
            if len(cells) == size:
                yield _Way(some, cells, here)
    if sight.most < inf:
        for some in combinations_with_replacement(places, int(sight.most)):
            yield _Way(some, frozenset(column[list(some)].tolist()), here, here)


def _least_seen(number: int, sight: Sight) -> list[int]:
    """The kinds in cells of a reader, without those of which others see what they do of another one, and more; of kinds
    that all see alike the first.
    """
    column, found = sight.cells[number], []
    others = [sight.rows, *(one for at, one in enumerate(sight.cells) if at != number)]
    for kind in np.flatnonzero(column >= 0).tolist():
        same = (column == column[kind]) & (sight.group == sight.group[kind])
        less, alike = same & (sight.rows < 0), same
        for other in others:
            less &= (other < 0) | (other == other[kind])
            alike &= other == other[kind]
        if np.argmax(alike) == kind and not (less & ~alike).any():
            found.append(kind)
    return found


def _rows_beside(sight: Sight, reached: Flags, before: Ints) -> tuple[Ints, Ints]:
    """What the reader of rows may retain for each key: the numbers of the keys, and rows of each column (n x columns).

    ``reached`` (keys x columns): of which columns a unit may have rows; ``before``: how many the others need it to.
    """
    rows = _candidates(sight, before)
    if len(rows) * len(reached) > TRIED * 10:
        raise NotListedError
    of_group = sight.group_of_columns[:, None] == np.arange(sight.labels)
    each, needed = rows @ of_group, before @ of_group > 0
    fits = (~reached).astype(np.int64) @ (rows > 0).T == 0
    if sight.tells_cells:
        holds = np.ones(fits.shape, dtype=bool)
        for label, mine in enumerate(of_group.T):
            inside = (each[:, label] == sight.most) | (rows[None, :, mine] >= before[:, None, mine]).all(axis=2)
            outside = (each > 0).sum(axis=1) == sight.groups
            holds &= ~needed[:, label, None] | np.where(each[:, label] > 0, inside, outside)
        fits &= holds | (rows.sum(axis=1) == sight.limit)
    key, choice = np.nonzero(fits)
    if key.size > TRIED:
        raise NotListedError
    return key, rows[choice]


def _candidates(sight: Sight, before: Ints) -> Ints:
    """What the reader of rows may retain, as far as that is enough, if others need some of ``before`` (n x columns)."""
    group, limit = sight.group_of_columns, sight.limit
    of_group = group[:, None] == np.arange(sight.labels)
    eye, short = np.eye(group.size, dtype=np.int64), np.zeros((1, group.size), dtype=np.int64)
    one, needs = [eye[mine] for mine in of_group.T], np.unique(before, axis=0)
    times, rest = (0, limit) if sight.most > limit else divmod(limit, int(sight.most))
    found = [short]
    for full in combinations(range(sight.labels), times) if times + (rest > 0) <= sight.groups else ():
        whole = short
        for label in full:
            whole = _added(whole, one[label] * int(sight.most))
        others = [one[label] * rest for label in range(sight.labels) if label not in full]
        found.append(_added(whole, np.concatenate(others or [short[:0]])) if rest else whole)
        if sum(map(len, found)) * group.size > 10 * TRIED:
            raise NotListedError
    for label, mine in enumerate(of_group.T):
        options = [needs * mine, *([one[label] * int(sight.most)] if sight.most < limit else [])]
        options += [one[label]] if sight.groups < inf and sight.cells else []
        more = np.unique(np.concatenate(options), axis=0)
        longer = _added(short, more[(more.sum(axis=1) > 0) & (more.sum(axis=1) <= sight.most)])
        few = (longer.sum(axis=1) < limit) & ((longer @ of_group > 0).sum(axis=1) <= sight.groups)
        short = np.concatenate([short, longer[few]])
        if short.size > 10 * TRIED:
            raise NotListedError
    return np.unique(np.concatenate([*found, short]), axis=0)


def _added(some: Ints, others: Ints) -> Ints:
    """All sums of one of each (count x columns)."""
    if len(some) * len(others) > TRIED:
        raise NotListedError
    sums: Ints = (some[:, None, :] + others[None, :, :]).reshape(len(some) * len(others), some.shape[1])
    return sums
