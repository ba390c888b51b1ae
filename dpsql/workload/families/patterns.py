"""What one unit adds to several counts of units over the same rows, such as units by month, by ward and in all.

A row has its unit counted in a group of each grouping, or in none where it is in no group that is asked. A unit is
counted once in a group however many of its rows are there: it adds the union of what its rows have it counted in. So it
is in all whenever it is in a month, and in the quarters of just its months.

Rows themselves may be counted, too. Rows that are counted alike, in every count, are told apart from all others by an
entry of their own, of which the entries of x are sums. Of a unit with rows in s such entries one row is in each, and
what others add is a mean of sums that have none or all others that may count in one of these: norms are largest there.
Rows that have no unit, which no count counts, add ``most`` rows of one entry at the farthest.

Where a bound lets a unit have one row at most in each of some classes, one visit a month, no two rows of a union are of
one class, and no others are added to them: rows of nobody are those of a union, without what counts units. A class is
an entry that counts nothing, so that the bound is one on how many columns have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from dpsql.arrays import Ints, Sparse

ENOUGH = 5_000
"""Vectors up to which they are counted, and written out."""


@dataclass(frozen=True, eq=False)
class Patterns:
    """Unions of at most ``most`` of the columns of ``cells`` (T x J).

    A column is what one row has its unit counted in: an entry of x in each of T sources, or -1 for none. ``rows`` (J,):
    the entry of x in which such a row is counted itself, or -1; None where no rows are counted. ``parts``: the numbers
    of all these sources, that of rows last, among all of the unit. ``size``: how many entries x has. ``classes`` (J,):
    the class of each column, of which a unit has one row at most; None where nothing bounds them.
    """

    cells: Ints = field(repr=False)
    most: int
    parts: tuple[int, ...]
    size: int
    rows: Ints | None = field(default=None, repr=False)
    classes: Ints | None = field(default=None, repr=False)

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
        return len(self._vectors)

    @property
    def listable(self) -> bool:
        """Whether they are written out."""
        return self.count <= ENOUGH

    @property
    def entries(self) -> Ints:
        """The entries of x that count units."""
        return np.unique(self.cells[self.cells >= 0])

    @cached_property
    def numbered(self) -> Ints:
        """``cells`` by the numbers of their columns in ``columns`` (T x J), below them rows and then classes."""
        found, start = [np.where(self.cells >= 0, np.searchsorted(self.entries, self.cells), -1)], self.entries.size
        if self.rows is not None:
            found.append(start + np.arange(self.rows.size)[None, :])
            start += self.rows.size
        if self.classes is not None:
            found.append(start + np.unique(self.classes, return_inverse=True)[1][None, :])
        return np.concatenate(found)

    @property
    def columns(self) -> Sparse:
        """What unions are of: the entries that count units, each kind of row, and each class, which is 0 (n x N)."""
        rows = np.zeros(0, dtype=np.int64) if self.rows is None else self.rows
        classes = np.zeros(0, dtype=np.int64) if self.classes is None else np.unique(self.classes)
        place = np.concatenate([self.entries, rows, np.full(classes.size, -1)])
        inside = np.flatnonzero(place >= 0)
        ones = (np.ones(inside.size, dtype=np.int64), (place[inside], inside))
        return sparse.csc_array(ones, shape=(self.size, place.size))

    @cached_property
    def _vectors(self) -> list[tuple[int, int, int]]:
        """Unions as sets of bits with a column of rows and how many more of these; more than ``ENOUGH`` if they are."""
        bits = [sum(1 << int(bit) for bit in column if bit >= 0) for column in self.numbered.T]
        newest = dict.fromkeys(bits)
        seen, found = set(newest), dict.fromkeys(self._added(newest))
        if self.rows is not None and self.classes is None:
            found |= {(0, column, self.most): None for column in self.numbered[-1].tolist()}
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
        """What rows add whose unions these are."""
        units = (1 << self.entries.size) - 1
        for union in unions:
            counted = union & ~self._once
            yield counted, 0, 0
            if self.rows is None:
                continue
            if self.classes is not None:
                yield counted & ~units, 0, 0
                continue
            left, inside = counted & ~units, []
            while left:
                inside.append((left & -left).bit_length() - 1)
                left &= left - 1
            rest = self.most - len(inside)
            yield from ((counted, column, rest) for column in inside if rest)

    def listed(self) -> Sparse:
        """All vectors (n x count)."""
        N = self.columns.shape[1]
        held = np.zeros((N, self.count), dtype=np.int64)
        for at, (union, column, more) in enumerate(self._vectors):
            held[[bit for bit in range(N) if union >> bit & 1], at] = 1
            held[column, at] += more
        return sparse.csc_array(self.columns @ sparse.csc_array(held))

    def some(self) -> Sparse:
        """A few of them: of one row each, of as many alike, and of as many different ones, as there may be."""
        J, N = self.numbered.shape[1], self.columns.shape[1]
        source, column = np.nonzero(self.numbered >= 0)
        each = sparse.csc_array(
            (np.ones(column.size, dtype=np.int64), (self.numbered[source, column], column)), shape=(N, J)
        )
        apart = np.arange(J) if self.classes is None else np.unique(self.classes, return_index=True)[1]
        most = (each[:, apart[: self.most]].sum(axis=1) > 0).astype(np.int64)[:, None]
        found = [each, sparse.csc_array(most)]
        if self.rows is not None and self.classes is None:
            further = np.full(J, self.most - 1), (self.numbered[-1], np.arange(J))
            found.append(each + sparse.csc_array(further, shape=(N, J)))
        return sparse.csc_array(self.columns @ sparse.hstack(found, format="csc"))
