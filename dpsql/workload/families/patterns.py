"""What one unit adds to several counts of units over the same rows, such as units by month, by ward and in all.

A row has its unit counted in a group of each grouping, or in none where it is in no group that is asked. A unit is
counted once in a group however many of its rows are there: it adds the union of what its rows have it counted in. So it
is in all whenever it is in a month, and in the quarters of just its months.

Rows themselves may be counted, too. Rows that are counted alike, in every count, are told apart from all others by an
entry of their own, of which the entries of x are sums. Of a unit with rows in s such entries one row is in each, and
what others add is a mean of sums that have none or all others that may count in one of these: norms are largest there.
Rows that have no unit, which no count counts, add ``most`` rows of one entry at the farthest.
"""

from __future__ import annotations

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
    of all these sources, that of rows last, among all of the unit. ``size``: how many entries x has.
    """

    cells: Ints = field(repr=False)
    most: int
    parts: tuple[int, ...]
    size: int
    rows: Ints | None = field(default=None, repr=False)

    def without_rows(self) -> Patterns:
        """Of the counts of units alone."""
        if self.rows is None:
            return self
        cells = np.unique(self.cells, axis=1)
        return Patterns(cells[:, (cells >= 0).any(axis=0)], self.most, self.parts[:-1], self.size)

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
        """``cells`` by the numbers of their columns in ``columns``, each once; last come rows (T x J, or T + 1)."""
        alone, number = np.unique(self._first, return_inverse=True)
        place = np.searchsorted(self.entries, self.cells) * (self.cells >= 0)
        units = np.where((self.cells >= 0) & (self._first[place] == place), number[place], -1)
        if self.rows is None:
            return units
        return np.concatenate([units, alone.size + np.arange(units.shape[1])[None, :]])

    @property
    def columns(self) -> Sparse:
        """What unions are of: the entries that count units, those of the same rows as one, and each kind of row
        (n x N).
        """
        alone, number = np.unique(self._first, return_inverse=True)
        rows = np.zeros(0, dtype=np.int64) if self.rows is None else self.rows
        place, column = np.concatenate([self.entries, rows]), np.append(number, alone.size + np.arange(rows.size))
        inside = np.flatnonzero(place >= 0)
        ones = (np.ones(inside.size, dtype=np.int64), (place[inside], column[inside]))
        return sparse.csc_array(ones, shape=(self.size, alone.size + rows.size))

    @cached_property
    def _vectors(self) -> list[tuple[int, int, int]]:
        """Unions as sets of bits with a column of rows and how many more of these; more than ``ENOUGH`` if they are."""
        bits = [sum(1 << int(bit) for bit in column if bit >= 0) for column in self.numbered.T]
        alone = [(0, column, self.most) for column in self.numbered[-1].tolist()] if self.rows is not None else []
        found = [(one, *more) for one in dict.fromkeys(bits[: ENOUGH + 1]) for more in self._more(one)] + alone
        newest = {one for one, *_ in found if one}
        seen = set(newest)
        for _ in range(self.most - 1):
            longer: dict[int, None] = {}
            for union in newest:
                longer |= {union | row: None for row in bits if union | row not in seen}
                if len(found) + len(longer) > ENOUGH:
                    return [*found, *((one, 0, 0) for one in longer)]
            found += [(one, *more) for one in longer for more in self._more(one)]
            newest = set(longer)
            seen |= newest
            if not longer:
                break
        return found

    def _more(self, union: int) -> list[tuple[int, int]]:
        """The further rows of a union."""
        if self.rows is None:
            return [(0, 0)]
        units, inside = np.unique(self._first).size, []
        left = union >> units << units
        while left:
            inside.append((left & -left).bit_length() - 1)
            left &= left - 1
        rest = self.most - len(inside)
        return [(0, 0), *((column, rest) for column in inside if rest)]

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
        spread = np.unique(np.linspace(0, J - 1, min(self.most, J)).round().astype(np.int64))
        chosen = np.arange(J) if number is None else np.unique(np.linspace(0, J - 1, number).round().astype(np.int64))
        several = [np.flatnonzero(each[:, some].sum(axis=1)) for some in (np.arange(self.most) % J, spread)]
        ones = [(np.ones(union.size, dtype=np.int64), (union, union * 0)) for union in several]
        found = [each[:, chosen], *(sparse.csc_array(one, shape=(N, 1)) for one in ones)]
        if self.rows is not None:
            place = self.numbered[-1][chosen], np.arange(chosen.size)
            further = np.full(chosen.size, self.most - 1), place
            alone = np.full(chosen.size, self.most), place
            found += [each[:, chosen] + sparse.csc_array(further, shape=(N, chosen.size))]
            found += [sparse.csc_array(alone, shape=(N, chosen.size))]
        return sparse.csc_array(self.columns @ sparse.hstack(found, format="csc"))
