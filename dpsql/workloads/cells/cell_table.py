"""What telling cells apart gives: where a row's regions lead, and which blocks count each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.common.arrays import Csr
from dpsql.workloads.expr.conditions import Condition
from dpsql.workloads.expr.regions import Axis, BoolArray, IntArray

MOST_STATES = 2_000_000
"""Combinations of regions x states up to which it is followed in which cells they end."""


@dataclass(frozen=True)
class Block:
    """Rows of the workload that share a condition and group keys.

    It has one row per combination of the keys' groups (one row without keys): the number of
    rows of the table for which ``condition`` holds and that lie in the group.
    """

    condition: Condition
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cells:
    """The cells of one table.

    ``transitions[k]`` (states before axis k x regions of axis k) gives the state after it;
    ``cell_of_state`` maps the last state to a cell, -1 for rows that no query counts.
    ``counted`` (blocks x cells) holds 1 + the row of a block that counts a cell, where one does.
    """

    axes: tuple[Axis, ...]
    transitions: tuple[npt.NDArray[np.int32], ...] = field(repr=False)
    cell_of_state: IntArray = field(repr=False)
    counted: Csr = field(repr=False)

    def __len__(self) -> int:
        return int(self.counted.shape[1])

    @property
    def combinations(self) -> int:
        """How many combinations of regions there are before merging."""
        return int(prod(axis.size for axis in self.axes))

    def cells_of(self, chosen: Sequence[bool]) -> tuple[IntArray, IntArray] | None:
        """Pairs (number, cell): combinations of regions of the ``chosen`` axes, numbered, and cells of rows in them.

        None where that is followed through more than ``MOST_STATES`` of these.
        """
        number, state = np.zeros((2, 1), dtype=np.int64)
        for table, counts in zip(self.transitions, chosen, strict=True):
            size = table.shape[1]
            if state.size * size > MOST_STATES:
                return None
            after = table[state].astype(np.int64).ravel()
            number = np.repeat(number, size)
            if counts:
                number = np.unique(number * size + np.tile(np.arange(size), state.size), return_inverse=True)[1]
            number, state = np.unique(np.stack([number, after]), axis=1)
        cell = self.cell_of_state[state]
        number, cell = np.unique(np.stack([number, cell])[:, cell >= 0], axis=1)
        return number, cell

    def members(self, blocks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Pair by pair, block by block: the place in ``blocks``, a cell that it counts, the block's row that does."""
        if len(blocks) == 1:  # most blocks are asked for one by one, which scipy takes long for
            start, stop = self.counted.indptr[blocks[0]], self.counted.indptr[blocks[0] + 1]
            inside, label = self.counted.indices[start:stop], self.counted.data[start:stop]
            return np.zeros(stop - start, dtype=np.int64), inside.astype(np.int64), label.astype(np.int64) - 1
        held = self.counted[blocks]
        place = np.repeat(np.arange(len(blocks)), np.diff(held.indptr))
        return place, held.indices.astype(np.int64), held.data.astype(np.int64) - 1

    def locate(self, regions: Sequence[IntArray]) -> IntArray:
        """The cell of every row of region numbers (one array an axis); -1 where there is none."""
        if not self.axes:
            raise ValueError("a table without axes has one cell; there is nothing to locate")
        state = np.zeros(len(regions[0]), dtype=np.int64)
        outside = np.zeros(len(regions[0]), dtype=bool)
        for table, region in zip(self.transitions, regions, strict=True):
            outside |= region < 0
            state = table[state, np.maximum(region, 0)].astype(np.int64)
        return np.where(outside, -1, self.cell_of_state[state])


def counted_of(alive: BoolArray, marks: IntArray, sets: Sequence[int], others: Sequence[int]) -> Csr:
    """``Cells.counted`` of dense tables, row by row, so that no second table of their size is held.

    ``alive`` (one row for each of the blocks ``sets``): the cells of blocks of one row; ``marks`` (one for each of
    ``others``): the row of each other block that counts a cell, or -1.
    """
    inside: list[IntArray] = [np.zeros(0, dtype=np.int32)] * (len(sets) + len(others))
    label: list[IntArray] = list(inside)
    for at, block in enumerate(sets):
        inside[block] = np.flatnonzero(alive[at]).astype(np.int32)
        label[block] = np.ones(len(inside[block]), dtype=np.int32)
    for at, block in enumerate(others):
        inside[block] = np.flatnonzero(marks[at] >= 0).astype(np.int32)
        label[block] = (marks[at][inside[block]] + 1).astype(np.int32)
    ends = np.cumsum([0, *(len(held) for held in inside)])
    shape = (len(inside), alive.shape[1])
    if not inside:
        return sparse.csr_array(sparse.coo_array(shape, dtype=np.int32))
    return sparse.csr_array((np.concatenate(label), np.concatenate(inside), ends), shape=shape)
