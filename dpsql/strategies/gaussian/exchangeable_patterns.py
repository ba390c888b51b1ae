"""The least error of several counts of units over the same rows, where groups lie alike among each other.

A unit adds a union of what its rows have it counted in (``dpsql.workloads.families.patterns``), and such rows as are
counted themselves. Groups may be exchanged
where what rows may count in stays the same: wards, months within a quarter, quarters with all their months. So an
optimal X is constant on the orbits of pairs of groups, and of a union c only the numbers of its pairs in each orbit
count, as in ``dpsql.strategies.gaussian.exchangeable_cells``, which finds X. The orbits are the relations of
``dpsql.workloads.families.kinds``, which is held against exchanges that are tried one by one; there, too, is what no
union exceeds under X.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from dpsql.common.arrays import Flags, Floats, Ints
from dpsql.common.numerics import ROUNDING
from dpsql.linalg.linked import linked_parts
from dpsql.strategies.core.colouring import Colouring
from dpsql.strategies.core.limits import ADDED, COLOURS, SIZES
from dpsql.strategies.gaussian.exchangeable_cells import AlikeOptimum, Sum, solve_alike_cells
from dpsql.workloads.families.kinds import Kinds

_EXCHANGES = 20
_SIZES = 4  # at which unions may be longest


def solve_alike_patterns(
    gram: Floats, kinds: Kinds, tolerance: float, deadline: float, *, apart: bool = False
) -> tuple[AlikeOptimum, float] | None:
    """The optimum for the Gram matrix ``gram`` (N x N) over the entries of ``kinds``, and what no vector exceeds under
    its X; None where entries are not alike, or the numbers of them that a unit is in too many.

    ``apart``: of those that measure units and rows apart.
    """
    cells = Colouring(kinds.relation)
    if cells.size.size > COLOURS or not cells.constant(gram) or kinds.sizes is None or not _are_orbits(kinds):
        return None
    solved = partial(solve_alike_cells, gram, cells, partial(longest_unions, kinds=kinds), tolerance, deadline)
    found = solved(alone=False)
    if apart and found is not None:
        # Colours of pairs of a unit's entry and a row's.
        rows = np.isin(kinds.kind, kinds.rows)
        support = np.ones(cells.size.size, dtype=bool)
        support[cells.colour[rows[:, None] != rows[None, :]]] = False
        two = solved(alone=False, support=support)
        found = None if two is None else replace(two, lower=max(found.lower, two.lower))
    return None if found is None else (found, float(kinds.longest(found.metric)))


def _are_orbits(kinds: Kinds) -> bool:
    """Whether exchanges of groups take pairs of entries to all others of their relation.

    They do where they take an entry to all of its kind, and those that leave one of each kind where it is take all
    others to as many as are in one relation to it.
    """
    N = kinds.kind.size
    swaps = [
        to
        for own in kinds.groups
        for one, other in zip(own[:-1].tolist(), own[1:].tolist(), strict=True)
        if (to := _exchange(kinds, one, other)) is not None
    ]
    moves = np.array(swaps, dtype=np.int64).reshape(-1, N)
    if _reached(moves) > kinds.number:
        return False
    fixed = [int(own[0]) for own in kinds.groups]
    return all(_reached(moves[moves[:, x] == x]) == np.unique(kinds.relation[x]).size for x in fixed)


def _reached(moves: Ints) -> int:
    """How many sets of entries none of ``moves`` (exchanges x N) leaves."""
    swap, entry = np.nonzero(moves != np.arange(moves.shape[1]))
    return linked_parts(moves.shape[1], (entry, moves[swap, entry]))[0]


def _exchange(kinds: Kinds, one: int, other: int) -> Ints | None:
    """Where each entry goes if the rows of two groups change places; None where others would then count otherwise."""
    cells, to = kinds.cells, np.arange(kinds.kind.size)
    mine, theirs = (np.flatnonzero((cells == entry).any(axis=0)) for entry in (one, other))
    if mine.size != theirs.size:
        return None
    for here, there in ((cells[:, mine], cells[:, theirs]), (cells[:, theirs], cells[:, mine])):
        if ((here < 0) != (there < 0)).any():
            return None
        to[here[here >= 0]] = there[here >= 0]
    if to[one] != other or not np.array_equal(np.sort(to), np.arange(to.size)):
        return None
    moved = np.where(cells >= 0, to[cells], -1)
    touched = (moved != cells).any(axis=0)
    return to if _sorted(moved[:, touched]) == _sorted(cells[:, touched]) else None


def _sorted(cells: Ints) -> bytes:
    """The columns in an order that does not depend on theirs."""
    columns = np.ascontiguousarray(cells.T)
    return np.sort(columns.view([("", columns.dtype)] * columns.shape[1]), axis=0).tobytes()


def longest_unions(K: Floats, kinds: Kinds, *, told: bool = True) -> list[Sum]:
    """Long vectors c, c^T K c, of unions: grown row by row by what lengthens c most, of all rows, or of those that add
    most, or fewest, groups to it, up to the sizes at which c may be longest; the longest of them improved, one row in
    the place of another. And of rows of nobody. ``told``: whether kinds are those of ``kinds_of``, which tell sizes.
    """
    longest = list[Sum]()
    for counted in (kinds.counting, kinds.rows) if kinds.classes and kinds.nobody else (kinds.counting,):
        held = np.isin(kinds.kind, counted)
        for value, at, times in _grown(kinds.among(K, counted), kinds, told) if counted else ():
            longest.append((value, at[held[at]], times[held[at]]))
    for a in () if kinds.classes or not kinds.nobody else kinds.rows:
        alone = np.diag(K)[kinds.groups[a]]
        heavy = kinds.groups[a][[int(np.argmax(alone))]]
        longest.append((kinds.most**2 * float(alone.max()), heavy, np.array([kinds.most])))
    return sorted(longest, key=lambda one: -one[0])


def _grown(K: Floats, kinds: Kinds, told: bool) -> list[Sum]:
    """Long unions, and with further rows."""
    growing, found = _Growing(K, kinds), dict[bytes, tuple[float, list[int]]]()
    bits = np.where(kinds.cells >= 0, 1 << kinds.kind[kinds.cells], 0).sum(axis=0)
    most = np.array([own.size for own in kinds.groups])
    far = np.zeros((most.size, 0), dtype=np.int64)
    if told and kinds.sizes is not None:
        far = kinds.sizes[:, np.argsort(-kinds.reach(K), kind="stable")[:_SIZES]]
    begins = np.unique(bits, return_index=True)[1]
    begins = begins[:: -(-begins.size // SIZES)].tolist()
    for limit, begin, mode in product((most, *far.T), begins, (0, 1, -1)):
        rows, value = [begin], float(growing.gain([])[begin])
        while True:
            found.setdefault(growing.union(rows).tobytes(), (value, list(rows)))
            at = growing.best(rows, mode, limit) if len(rows) < kinds.most else -1
            if at < 0:
                break
            value += float(growing.gain(rows)[at])
            rows.append(at)
    for value, rows in sorted(found.values(), key=lambda one: -one[0])[:ADDED]:
        value, rows = growing.improved(value, rows)
        found.setdefault(growing.union(rows).tobytes(), (value, rows))
    return [one for value, rows in found.values() for one in growing.sums(value, rows)]


class _Growing:
    """c^T K c of unions c, row by row."""

    def __init__(self, K: Floats, kinds: Kinds) -> None:
        self.K, self.kinds, self.inside, self.held = K, kinds, kinds.cells >= 0, np.maximum(kinds.cells, 0)
        both = self.inside[:, None] & self.inside[None, :]
        self.products = np.where(both, K[self.held[:, None], self.held[None, :]], 0.0)

    def union(self, rows: list[int]) -> Flags:
        """The entries of some rows."""
        found = np.zeros(self.kinds.kind.size, dtype=bool)
        found[self.held[:, rows][self.inside[:, rows]]] = True
        return found

    def sums(self, value: float, rows: list[int]) -> list[Sum]:
        """The union, and with all other rows that may count in the entry of one of them."""
        union = self.union(rows)
        chosen, rest = np.flatnonzero(union), self.kinds.most - len(rows)
        found: list[Sum] = [(value, chosen, np.ones(chosen.size, dtype=np.int64))]
        if self.kinds.rows and not self.kinds.classes and rest:
            own = self.held[-1, rows]
            longer = 2 * rest * self.K[own][:, union].sum(axis=1) + rest**2 * np.diag(self.K)[own]
            best = int(np.argmax(longer))
            found.append((value + float(longer[best]), chosen, 1 + rest * (chosen == own[best])))
        return found

    def new(self, union: Flags) -> Flags:
        """Which entries each row adds to a union (T x J)."""
        return np.asarray(self.inside & ~union[self.held])

    def gain(self, rows: list[int]) -> Floats:
        """By how much each row lengthens the union of others; -inf where that has one of its class."""
        union = self.union(rows)
        new, reach = self.new(union).astype(np.float64), self.K[:, union].sum(axis=1)
        gain = 2.0 * (new * reach[self.held]).sum(axis=0) + np.einsum("tj,uj,tuj->j", new, new, self.products)
        return np.asarray(np.where(self.closed(union), -np.inf, gain))

    def closed(self, union: Flags) -> Flags:
        """Which rows are of a class of which the union has a row."""
        return np.asarray(union[self.held[-1]] if self.kinds.classes else np.zeros(self.held.shape[1], dtype=bool))

    def best(self, rows: list[int], mode: int, limit: Ints) -> int:
        """The row that lengthens it most, of those that add most (``mode`` 1) or fewest (-1) entries; -1 for none.

        Up to ``limit`` entries of each kind.
        """
        union = self.union(rows)
        new, J = self.new(union), self.held.shape[1]
        often = np.zeros((limit.size, J), dtype=np.int64)
        np.add.at(often, (self.kinds.kind[self.held], np.arange(J)[None, :]), new)
        held = np.bincount(self.kinds.kind[union], minlength=limit.size)
        open_ = (often + held[:, None] <= limit[:, None]).all(axis=0) & new.any(axis=0) & ~self.closed(union)
        if not open_.any():
            return -1
        if mode:
            many = new.sum(axis=0)
            open_ &= many == (many[open_].max() if mode > 0 else many[open_].min())
        return int(np.argmax(np.where(open_, self.gain(rows), -np.inf)))

    def improved(self, value: float, rows: list[int]) -> tuple[float, list[int]]:
        """A union that no exchange, or loss, of one row makes longer."""
        for _ in range(_EXCHANGES):
            tried = []
            for out in rows:
                rest = [row for row in rows if row != out]
                gain = self.gain(rest)
                left = value - float(gain[out])
                at = int(np.argmax(gain))
                tried.append((left + float(gain[at]), [*rest, at]))
                tried += [(left, rest)] if rest else []
            if len(rows) < self.kinds.most:
                gain = self.gain(rows)
                tried.append((value + float(gain.max()), [*rows, int(np.argmax(gain))]))
            longest = max(tried, key=lambda one: one[0])
            if longest[0] <= value * (1.0 + ROUNDING):
                break
            value, rows = longest
        return value, rows
