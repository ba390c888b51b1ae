"""What one unit adds to several counts of units over the same rows, such as units by month, by ward and in all.

A row has its unit counted in a group of each grouping, or in none where it is in no group that is asked. A unit is
counted once in a group however many of its rows are there: it adds the union of what its rows have it counted in. So it
is in all whenever it is in a month, and in the quarters of just its months.

Rows themselves may be counted, too. Rows that are counted alike, in every count, are told apart from all others by an
entry of their own, of which the entries of x are sums. Of the rows of a unit a few have the same union, none of which
can be left out, and what others add is a mean of none and of all others that may count, in one entry inside the union:
norms are largest there. So thresholds have few such sums: one row of the farthest, and others of one entry up to it.
Rows that have no unit, which no count counts, add ``most`` rows of one entry at the farthest.

Where a bound lets a unit have one row at most in each of some classes, one visit a month, no two rows of a union are of
one class, and no others are added to them: rows of nobody are those of a union, without what counts units. A class is
an entry that counts nothing, so that the bound is one on how many columns have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Ints, Sparse

ENOUGH = 5_000
"""Vectors up to which they are counted, and written out."""
TRIED = 100_000
"""Combinations of how many groups, entries or rows of each kind a unit has that are gone through: under a second."""


@dataclass(frozen=True, eq=False)
class Patterns:
    """Unions of at most ``most`` of the columns of ``cells`` (T x J).

    A column is what one row has its unit counted in: an entry of x in each of T sources, or -1 for none. ``rows`` (J,):
    the entry of x in which such a row is counted itself, or -1; None where no rows are counted. ``parts``: the numbers
    of all these sources, that of rows last, among all of the unit. ``size``: how many entries x has. ``classes`` (J,):
    the class of each column, of which a unit has one row at most; None where nothing bounds them. ``nobody``: whether
    rows may have no unit.
    """

    cells: Ints = field(repr=False)
    most: int
    parts: tuple[int, ...]
    size: int
    rows: Ints | None = field(default=None, repr=False)
    classes: Ints | None = field(default=None, repr=False)
    nobody: bool = True

    def without_rows(self) -> Patterns:
        """Of the counts of units alone."""
        if self.rows is None:
            return self
        told = self.cells if self.classes is None else np.vstack([self.cells, self.classes])
        told = np.unique(told[:, (self.cells >= 0).any(axis=0)], axis=1)
        T = len(self.cells)
        return Patterns(
            told[:T], self.most, self.parts[:-1], self.size, classes=None if self.classes is None else told[T]
        )

    @property
    def count(self) -> int:
        """How many vectors there are, more than ``ENOUGH`` where that is not known."""
        J = self.cells.shape[1]
        return J if J > ENOUGH else len(self._vectors)

    @property
    def listable(self) -> bool:
        """Whether they are written out."""
        return self.count <= ENOUGH

    @property
    def entries(self) -> Ints:
        """The entries of x that count units."""
        return np.unique(self.cells[self.cells >= 0])

    @cached_property
    def _first(self) -> Ints:
        """Of each entry the first that counts the units of just the same rows: no unit moves one without the other."""
        source, column = np.nonzero(self.cells >= 0)
        entry = np.searchsorted(self.entries, self.cells[source, column])
        order = np.lexsort((column, entry))
        held = np.split(column[order], np.flatnonzero(np.diff(entry[order])) + 1)
        first: dict[bytes, int] = {}
        return np.array([first.setdefault(one.tobytes(), number) for number, one in enumerate(held)], dtype=np.int64)

    @cached_property
    def numbered(self) -> Ints:
        """``cells`` by the numbers of their columns in ``columns``, each once, below them rows and then classes (T x J,
        or more).
        """
        alone, number = np.unique(self._first, return_inverse=True)
        place = np.searchsorted(self.entries, self.cells) * (self.cells >= 0)
        found = [np.where((self.cells >= 0) & (self._first[place] == place), number[place], -1)]
        start = alone.size
        if self.rows is not None:
            found.append(start + np.arange(self.rows.size)[None, :])
            start += self.rows.size
        if self.classes is not None:
            found.append(start + np.unique(self.classes, return_inverse=True)[1][None, :])
        return np.concatenate(found)

    @property
    def columns(self) -> Sparse:
        """What unions are of: the entries that count units, those of the same rows as one, each kind of row, and each
        class, which is 0 (n x N).
        """
        alone, number = np.unique(self._first, return_inverse=True)
        rows = np.zeros(0, dtype=np.int64) if self.rows is None else self.rows
        classes = 0 if self.classes is None else np.unique(self.classes).size
        place, column = np.concatenate([self.entries, rows]), np.append(number, alone.size + np.arange(rows.size))
        inside = np.flatnonzero(place >= 0)
        ones = (np.ones(inside.size, dtype=np.int64), (place[inside], column[inside]))
        return sparse.csc_array(ones, shape=(self.size, alone.size + rows.size + classes))

    @cached_property
    def _vectors(self) -> list[tuple[int, int, int]]:
        """Unions as sets of bits with a column of rows and how many more of these; more than ``ENOUGH`` if they are."""
        if self.rows is not None and self.classes is None:
            return list(islice(self._with_rows(), ENOUGH + 1))
        bits = [sum(1 << int(bit) for bit in column if bit >= 0) for column in self.numbered.T]
        newest = dict.fromkeys(bits)
        seen, found = set(newest), dict.fromkeys(self._added(newest))
        for _ in range(self.most - 1):
            longer: dict[int, None] = {}
            for union in newest:
                longer |= {
                    union | row: None for row in bits if not row & union & self._once and union | row not in seen
                }
                if len(found) + len(longer) > ENOUGH:
                    return [*found, *((one, 0, 0) for one in longer)]
            found |= dict.fromkeys(self._added(longer))
            newest = longer
            seen |= set(newest)
            if not longer:
                break
        return list(found)

    @cached_property
    def _once(self) -> int:
        """The bits of classes, of which a union has each from one column."""
        return 0 if self.classes is None else -1 << int(self.numbered[-1].min())

    def _added(self, unions: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """What rows add whose unions these are: rows of classes also without their unit."""
        units = (1 << np.unique(self._first).size) - 1
        for union in unions:
            yield union & ~self._once, 0, 0
            if self.rows is not None and self.nobody:
                yield union & ~self._once & ~units, 0, 0

    def _with_rows(self) -> Iterator[tuple[int, int, int]]:
        """The extreme vectors where rows count and no class bounds them.

        Of rows of one union some are enough, none of which can be left out. Whatever further rows inside the union
        there are, the vector is a mean of those with none and with all that may be of one column: extreme are these.
        Where that column could be in the place of one of the enough, it is a mean of two vectors whose further rows are
        of a column that is there: (a + k b) = (a + k a + k (b + k b)) / (k + 1).
        """
        first, J = int(self.numbered[-1, 0]), self.cells.shape[1]
        inside = [sum(1 << int(bit) for bit in column[:-1] if bit >= 0) for column in self.numbered.T]
        yield from ((0, first + j, self.most) for j in range(J) if self.nobody or not inside[j])
        newest: list[tuple[tuple[int, ...], int, list[int]]] = [((), 0, [])]  # columns, union, what each is alone in
        every = list(newest)
        for left in range(self.most - 1, -1, -1):
            longer = []
            for rows, union, alone in newest:
                for j in range(rows[-1] + 1 if rows else 0, J):
                    new, rest = inside[j] & ~union, [bits & ~inside[j] for bits in alone]
                    if new and all(rest):
                        longer.append(((*rows, j), union | inside[j], [*rest, new]))
                        entries = _bits(longer[-1], first)
                        yield entries, 0, 0
                        yield from ((entries, first + i, left) for i in longer[-1][0] if left)
            every, newest = every + longer, longer
        for one in every[1:]:
            rows, union, alone = one
            left = self.most - len(rows)
            for j in range(J) if left else ():
                if not inside[j] & ~union and all(bits & ~inside[j] for bits in alone):
                    yield _bits(one, first), first + j, left

    def listed(self) -> Sparse:
        """All vectors (n x count)."""
        return sparse.csc_array(self.columns @ self.unions())

    def unions(self) -> Sparse:
        """All vectors, over ``columns`` (N x count)."""
        N = self.columns.shape[1]
        held = np.zeros((N, self.count), dtype=np.int64)
        for at, (union, column, more) in enumerate(self._vectors):
            held[[bit for bit in range(N) if union >> bit & 1], at] = 1
            held[column, at] += more
        return sparse.csc_array(held)

    def some(self, number: int | None = None) -> Sparse:
        """A few of them: of one row each, of as many alike, and of as many different ones, as there may be.

        Of ``number`` rows, if any, in place of all.
        """
        J, N = self.numbered.shape[1], self.columns.shape[1]
        source, column = np.nonzero(self.numbered >= 0)
        each = sparse.csc_array(
            (np.ones(column.size, dtype=np.int64), (self.numbered[source, column], column)), shape=(N, J)
        )
        of_class = np.arange(J) if self.classes is None else np.unique(self.classes, return_index=True)[1]
        first = of_class[: self.most]
        spread = of_class[np.unique(np.linspace(0, of_class.size - 1, first.size).round().astype(np.int64))]
        chosen = np.arange(J) if number is None else np.unique(np.linspace(0, J - 1, number).round().astype(np.int64))
        several = [np.flatnonzero(each[:, some].sum(axis=1)) for some in (first, spread)]
        ones = [(np.ones(union.size, dtype=np.int64), (union, union * 0)) for union in several]
        found = [each[:, chosen], *(sparse.csc_array(one, shape=(N, 1)) for one in ones)]
        if self.rows is not None and self.classes is None:
            place = self.numbered[-1][chosen], np.arange(chosen.size)
            further = np.full(chosen.size, self.most - 1), place
            alone = np.full(chosen.size, self.most), place
            found += [each[:, chosen] + sparse.csc_array(further, shape=(N, chosen.size))]
            found += [sparse.csc_array(alone, shape=(N, chosen.size))] if self.nobody else []
        return sparse.csc_array(self.columns @ sparse.hstack(found, format="csc"))


def _bits(one: tuple[tuple[int, ...], int, list[int]], first: int) -> int:
    """Some columns and their union as bits, those of rows from ``first`` on."""
    return one[1] | sum(1 << first + i for i in one[0])
