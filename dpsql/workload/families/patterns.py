"""What one unit adds to several counts of units over the same rows, such as units by month, by ward and in all.

A row has its unit counted in a group of each grouping, or in none where it is in no group that is asked. A unit is
counted once in a group however many of its rows are there: it adds the union of what its rows have it counted in. So it
is in all whenever it is in a month, and in the quarters of just its months.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from dpsql.arrays import Ints, Sparse

ENOUGH = 5_000
"""Unions up to which they are counted, and written out."""


@dataclass(frozen=True, eq=False)
class Patterns:
    """Unions of at most ``most`` of the columns of ``cells`` (T x J).

    A column is what one row has its unit counted in: an entry of x in each of T sources, or -1 for none. ``parts``: the
    numbers of these sources among all of the unit. ``size``: how many entries x has.
    """

    cells: Ints = field(repr=False)
    most: int
    parts: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """How many unions there are, more than ``ENOUGH`` where that is not known."""
        return len(self._unions)

    @property
    def corners(self) -> Sparse:
        """What a row has its unit counted in (n x J, 0/1)."""
        source, column = np.nonzero(self.cells >= 0)
        place = (self.cells[source, column], column)
        shape = (self.size, self.cells.shape[1])
        return sparse.csc_array((np.ones(column.size, dtype=np.int64), place), shape=shape)

    @cached_property
    def _unions(self) -> list[int]:
        """The unions as sets of bits, one more than ``ENOUGH`` at the most."""
        used = np.unique(self.cells[self.cells >= 0])
        bits = np.where(self.cells >= 0, np.searchsorted(used, self.cells), -1)
        rows = list(dict.fromkeys(sum(1 << int(bit) for bit in column if bit >= 0) for column in bits.T))
        found = dict.fromkeys(rows[: ENOUGH + 1])
        newest = list(found)
        for _ in range(self.most - 1):
            longer: dict[int, None] = {}
            for union in newest:
                longer |= {union | row: None for row in rows if union | row not in found}
                if len(found) + len(longer) > ENOUGH:
                    return [*found, *longer]
            if not longer:
                break
            found |= longer
            newest = list(longer)
        return list(found)

    def listed(self) -> Sparse:
        """All unions (n x count)."""
        used = np.unique(self.cells[self.cells >= 0])
        inside = [[bit for bit in range(used.size) if union >> bit & 1] for union in self._unions]
        column = np.repeat(np.arange(len(inside)), [len(bits) for bits in inside])
        row = used[[bit for bits in inside for bit in bits]]
        return sparse.csc_array((np.ones(row.size, dtype=np.int64), (row, column)), shape=(self.size, len(inside)))

    def some(self) -> Sparse:
        """A few of them: of one row each, and of as many rows as there may be."""
        corners = self.corners
        first = sparse.csc_array((corners[:, : self.most].sum(axis=1) > 0).astype(np.int64)[:, None])
        return sparse.csc_array(sparse.hstack([corners, first], format="csc"))
