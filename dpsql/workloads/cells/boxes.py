"""Boxes: very many cells under conjunctions, known by how they come about and never listed.

A thousand conditions over three columns tell millions of cells apart, each of which is counted by some fifty of them:
W over the cells would hold a thousand million entries. Here x has one entry for each block instead, the number of rows
that it counts, so that a row moves all entries of the blocks that hold for it: by the column of zeros and ones
alive[:, s] & holds[:, r], s its state after all axes but the last and r its region there. Every pair (s, r) is
reached by some row that the regions allow, so that the largest norm over all pairs is the sensitivity.

**Norms of all columns.** Let K = M^T M for an integer M over the blocks, a the state's set and h_r the set that holds
in region r. q(a, r) = ||M (a & h_r)||^2, and from one region to the next

    q(a, r) - q(a, r - 1) = sum over blocks b that begin (+) or end (-) at r, and are in a, of
                            +- sum_j a_j K_bj (h_{r-1,j} + h_{r,j}),

so that one product of all states with a column for each beginning and ending gives all norms: states x blocks x
changes multiplications, where listing the columns takes states x regions x blocks^2.

**Exactness.** In floats each q is off by at most g = c u / (1 - c u) times 2 sum_e k_e, u = 2^-53, c the number of
roundings that one of its terms goes through, k_e the sum of the column of |M|^T |M| that change e reads (Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 3.1: sums in any order). The largest q is therefore
among the columns within 2 g of the largest float, whose norms are then taken in integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Matrix
from dpsql.common.numerics import AT_ONCE
from dpsql.errors import InternalError
from dpsql.linalg.exact import max_abs
from dpsql.linalg.forms import dense
from dpsql.linalg.norms import column_norms
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.expr.regions import Axis, BoolArray, IntArray, mix
from dpsql.workloads.families.matrix import Workload

_STATES = 1024  # states of one product


@dataclass(frozen=True)
class Boxes:
    """Blocks over axes whose combinations are too many to be cells.

    ``transitions`` as in ``Cells``, of all axes but the last; ``alive`` (blocks x states) says which blocks are open in
    each state after them, ``holds`` (blocks x regions) which hold in each region of the last axis.
    """

    axes: tuple[Axis, ...]
    transitions: tuple[npt.NDArray[np.int32], ...] = field(repr=False)
    alive: BoolArray = field(repr=False)
    holds: BoolArray = field(repr=False)

    def __len__(self) -> int:
        """How many entries of x there are: one a block."""
        return len(self.alive)

    @property
    def pairs(self) -> int:
        """How many pairs of a state and a region there are: no fewer than cells."""
        return int(self.alive.shape[1] * self.holds.shape[1])

    @property
    def combinations(self) -> int:
        """How many combinations of regions there are before merging."""
        return int(prod(axis.size for axis in self.axes))

    def members(self, blocks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The entry of x that is each block, none where no row can be in it; as ``Cells.members``."""
        reached = self.alive[blocks].any(axis=1) & self.holds[blocks].any(axis=1)
        place = np.flatnonzero(reached)
        return place, blocks[place], np.zeros(len(place), dtype=np.int64)

    def locate(self, regions: Sequence[IntArray]) -> IntArray:
        """The pair of every row of region numbers (one array an axis), state x regions + region; -1 outside."""
        state = np.zeros(len(regions[0]), dtype=np.int64)
        outside = np.zeros(len(regions[0]), dtype=bool)
        for table, region in zip(self.transitions, regions, strict=False):
            outside |= region < 0
            state = table[state, np.maximum(region, 0)].astype(np.int64)
        last = regions[-1]
        return np.where(outside | (last < 0), -1, state * self.holds.shape[1] + np.maximum(last, 0))

    def sets(self, pairs: IntArray) -> BoolArray:
        """The blocks that count each pair: (blocks x pairs)."""
        state, region = np.divmod(pairs, self.holds.shape[1])
        return self.alive[:, state] & self.holds[:, region]

    def columns(self, pairs: IntArray) -> sparse.csc_array:
        """``sets`` as integers: (blocks x pairs)."""
        parts = [
            sparse.csc_array(self.sets(pairs[at : at + AT_ONCE]).astype(np.int64))
            for at in range(0, len(pairs), AT_ONCE)
        ]
        return sparse.csc_array(sparse.hstack(parts, format="csc"))

    def totals(self, pairs: IntArray, counts: IntArray) -> list[int]:
        """How many rows each block counts, where ``counts`` rows lie in each of ``pairs`` (not -1): exact.

        Counts are added up as halves of 32 bits, in floats that hold every sum of some thousand of them.
        """
        halves = np.stack([counts & (2**32 - 1), counts >> 32], axis=1).astype(np.float64)
        found = np.zeros((len(self), 2), dtype=np.int64)
        for at in range(0, len(pairs), AT_ONCE):
            held = self.sets(pairs[at : at + AT_ONCE]).astype(np.float64)
            found += (held @ halves[at : at + AT_ONCE]).astype(np.int64)
        return [int(low) + (int(high) << 32) for low, high in found]

    def spread(self, number: int) -> IntArray:
        """Some pairs with a block that counts them, ascending: one of each block, and others all over the place."""
        size = self.holds.shape[1]
        drawn = (mix(np.arange(number, dtype=np.uint64)) % np.uint64(self.pairs)).astype(np.int64)
        drawn = drawn[self.sets(drawn).any(axis=0)]
        inside = self.alive.any(axis=1) & self.holds.any(axis=1)
        one = self.alive.argmax(axis=1) * size + self.holds.argmax(axis=1)
        return np.unique(np.concatenate([drawn, one[inside]]))

    def some_columns(self) -> sparse.csr_array:
        """The columns of ``spread``, four for each block."""
        return sparse.csr_array(self.columns(self.spread(4 * len(self))))

    def squares(self, M: Floats, states: IntArray | None = None, single: bool = False) -> Iterator[tuple[int, Array]]:
        """||M column||^2 of every pair (``states``: of these only), M (p x blocks): (place of the first state, part).

        Parts are (some states x regions). ``single``: in float32, good to about 1e-4 of the largest.
        Cost: states x blocks x changes on the last axis.
        """
        yield from _squares(M, self.alive, self.holds, states, np.float32 if single else np.float64)

    def sums(self, d: Floats) -> Floats:
        """The largest d . column of every state (states,), d (blocks,): exact where sums of |d| stay below 2^53."""
        blocks, at, sign = _changes(self.holds)
        best = np.zeros(self.alive.shape[1])
        for start in range(0, self.alive.shape[1], _STATES):
            part = self.alive[:, start : start + _STATES].T
            moves = part[:, blocks] * (d[blocks] * sign)
            best[start : start + _STATES] = _running(moves, at, self.holds.shape[1]).max(axis=1)
        return best

    def norms(self, mixing: Matrix) -> tuple[int, int]:
        """(L1, squared L2) of the largest column of ``mixing`` (p x blocks integers) times the columns.

        L2 exactly; L1 exactly where every row of ``mixing`` reads one block (both are sums over blocks then), else
        the bound sqrt(p) L2, rounded up.
        """
        M = dense(mixing)
        if M.shape[0] == 0 or not M.any():
            return 0, 0
        values = M.astype(np.float64)
        if max_abs(M) >= 2**53:
            raise InternalError("strategy: integers beyond 2^53 have no exact floats")
        sizes, squares = np.abs(values).sum(axis=0), (values**2).sum(axis=0)
        if int(np.count_nonzero(M, axis=1).max()) <= 1 and float(squares.sum()) < 2.0**53:
            l1 = int(self.sums(sizes).max())
            return l1, l1 if np.array_equal(sizes, squares) else int(self.sums(squares).max())
        blocks, _, _ = _changes(self.holds)
        reach = (np.abs(values).T @ np.abs(values)).sum(axis=1)
        rounds = (M.shape[0] + 2 * M.shape[1] + 2 * len(blocks) + 16) * 2.0**-53
        slack = 2.0 * rounds / (1.0 - rounds) * 2.0 * 1.01 * float(reach[blocks].sum())
        top, near = 0.0, np.zeros(0, dtype=np.int64)
        height = np.zeros(0)
        for start, part in self.squares(values):
            top = max(top, float(part.max()))
            rows, regions = np.nonzero(part >= top - slack)
            near = np.concatenate([near, (start + rows) * self.holds.shape[1] + regions])
            height = np.concatenate([height, part[rows, regions]])
            kept = height >= top - slack
            near, height = near[kept], height[kept]
        columns = self._distinct(near)
        _, l2 = column_norms(M, columns)
        return isqrt(M.shape[0] * l2) + 1, l2

    def _distinct(self, pairs: IntArray) -> sparse.csc_array:
        """The different sets of some pairs as columns."""
        held = np.concatenate(
            [np.packbits(self.sets(pairs[at : at + AT_ONCE]), axis=0) for at in range(0, len(pairs), AT_ONCE)],
            axis=1,
        )
        _, first = np.unique(held.T, axis=0, return_index=True)
        return self.columns(pairs[np.sort(first)])

    def largest_square(self, M: Floats) -> float:
        """The largest ||M column||^2 in floats, the last axis taken backwards: rounded otherwise than ``norms``."""
        return max(float(part.max()) for _, part in _squares(M, self.alive, self.holds[:, ::-1], None, np.float64))


def _changes(holds: BoolArray) -> tuple[IntArray, IntArray, Floats]:
    """Where blocks begin and end, by region: (block, region, +1 or -1); what holds in the first begins there."""
    steps = np.diff(holds.astype(np.int8), axis=1, prepend=np.zeros((len(holds), 1), dtype=np.int8))
    at, blocks = np.nonzero(steps.T)
    return blocks, at, steps[blocks, at].astype(np.float64)


def _running(moves: Array, at: IntArray, size: int) -> Array:
    """Moves (states x changes) added up to each region: (states x regions)."""
    by_region = np.zeros((moves.shape[0], size), dtype=moves.dtype)
    if len(at):
        first = np.flatnonzero(np.diff(at, prepend=-1))
        by_region[:, at[first]] = np.add.reduceat(moves, first, axis=1)
    return np.cumsum(by_region, axis=1, dtype=moves.dtype)


def _squares(
    M: Floats, alive: BoolArray, holds: BoolArray, states: IntArray | None, kind: npt.DTypeLike
) -> Iterator[tuple[int, Array]]:
    K = M.T @ M
    blocks, at, sign = _changes(holds)
    before = np.where(at > 0, holds[:, np.maximum(at - 1, 0)], False)
    reads = (K[:, blocks] * (before.astype(np.float64) + holds[:, at]) * sign).astype(kind)
    number = alive.shape[1] if states is None else len(states)
    for start in range(0, number, _STATES):
        here = slice(start, start + _STATES)
        part = (alive[:, here] if states is None else alive[:, states[here]]).T
        moves = part.astype(kind) @ reads
        moves *= part[:, blocks]
        yield start, _running(moves, at, holds.shape[1])


@dataclass(frozen=True, eq=False)
class BoxIntegers(Factored):
    """B = mixing @ basis over the blocks of ``boxes``, of which one row may move many."""

    boxes: Boxes = field(kw_only=True, repr=False)

    @property
    def written(self) -> None:
        """None: what a row can do is the boxes', never a list of columns."""
        return None

    def _whole(self) -> Array:
        return dense(self.mixing @ self.basis)

    def norms(self, entry: IntArray) -> tuple[int, int]:
        """Over all pairs; ``entry`` is the one layout's."""
        return self.boxes.norms(self._whole())

    def largest_norm(self, entry: IntArray, order: int) -> float:
        """L2 by a second sweep; L1 (a bound where ``Boxes.norms`` gives one) by the first."""
        if order == 1:
            return float(self.boxes.norms(self._whole())[0])
        return self.boxes.largest_square(self._whole().astype(np.float64))

    def digest(self) -> str:
        """Of the matrices; the boxes are the layout's."""
        return hashlib.sha256(b"boxes " + super().digest().encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class BoxWorkload(Workload):
    """W over the counts of ``boxes``. ``contributions`` are some of the columns by which a row can move them.

    What is worked out from ``contributions`` alone bounds the least error from below; sensitivities are those of
    ``boxes``.
    """

    boxes: Boxes = field(kw_only=True, repr=False)

    @classmethod
    def over(cls, boxes: Boxes, rows: Csr, scale: Floats, groups: IntArray, some: Csr | None = None) -> BoxWorkload:
        """diag(scale) @ rows over the boxes' counts; ``some``: columns of theirs, where they are at hand."""
        contributions = boxes.some_columns() if some is None else some
        plain = Workload.from_rows(rows, scale, contributions=contributions, groups=groups)
        return cls(plain.span, plain.inner, plain.contributions, plain.groups, plain.name, boxes=boxes)
