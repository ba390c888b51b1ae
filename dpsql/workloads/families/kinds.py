"""How groups of several counts of units lie in each other, and a bound on how far one unit moves them together.

Entries of x that lie alike among all others are of one kind: wards, months, pairs of both. Kind a refines kind b where
every row that counts in a group of a counts in one and the same group of b: a month in its quarter, all in all. Two
entries meet in w where both are in one group of a kind w that refines neither more nor less than what both refine; in
which kinds they meet is their relation. For a union c (``Patterns``) with s_a entries of each kind a,

    c^T K c <= sum over relations r of K_r n_r,   K_r the largest entry of K in relation r,  n_r the pairs of c in r.

Of the pairs of kinds a and b that meet in w there are N_w = sum_h s_ah s_bh, h the groups of w. So the sum is one of
such N_w, by Moebius inversion over relations; each N_w is known, or between two bounds that follow from the sizes s,
and sizes that no union has are left out. Exact where K is alike within relations and the N_w may take their bounds
together, as for groups in groups.

Classes of which a union has one row each are groups of kinds of their own, that are as wide as one entry of any other.
There are as many rows as classes, and none beyond. Rows of nobody then are those of a union: K is 0 for what counts
units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product
from typing import Any

import numpy as np

from dpsql.common.arrays import Array, Flags, Ints
from dpsql.errors import InternalError
from dpsql.linalg.exact import max_abs
from dpsql.workloads.families.patterns import TRIED, Patterns

_MOST_KINDS = 12
_MOST_ENTRIES = 3_600


@dataclass(frozen=True, eq=False)
class Kinds:
    """The structure of some ``cells`` (T x J) over entries numbered from 0, -1 for none; a row is one of its columns.

    ``kind`` (N,); ``parent`` (kinds x N): the group of each kind that an entry is in, its own of its kind, or -1.
    ``rows``: the kinds of entries that count rows; ``classes``: those of classes, the last in each column. ``nobody``:
    whether rows may have no unit.
    """

    cells: Ints = field(repr=False)
    most: int
    kind: Ints = field(repr=False)
    parent: Ints = field(repr=False)
    rows: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()
    nobody: bool = True

    @property
    def number(self) -> int:
        """How many kinds there are."""
        return int(self.kind.max()) + 1

    @cached_property
    def groups(self) -> list[Ints]:
        """The entries of each kind."""
        return [np.flatnonzero(self.kind == one) for one in range(self.number)]

    @cached_property
    def refines(self) -> np.ndarray:
        """(kinds x kinds): whether each entry of the first is in a group of the second; a kind refines itself."""
        return np.array([[bool((self.parent[b, own] >= 0).all()) for b in range(self.number)] for own in self.groups])

    @cached_property
    def met(self) -> Ints:
        """(N x N): in which kinds two entries meet, as bits."""
        found = np.zeros((self.kind.size, self.kind.size), dtype=np.int64)
        for b, parent in enumerate(self.parent):
            if self.groups[b].size > 1:
                found += ((parent[:, None] == parent[None, :]) & (parent[:, None] >= 0)).astype(np.int64) << b
        return found

    @cached_property
    def relation(self) -> Ints:
        """(N x N): the number of the relation of two entries, by their kinds and in which kinds they meet."""
        whole = (self.met * self.number + self.kind[:, None]) * self.number + self.kind[None, :]
        if whole.max() < whole.size:
            return np.asarray((np.cumsum(np.bincount(whole.ravel()) > 0) - 1)[whole])
        return np.asarray(np.unique(whole, return_inverse=True)[1].reshape(whole.shape))

    @cached_property
    def together(self) -> Ints:
        """The kinds that a row counts in, as bits, each once."""
        bits = np.where(self.cells >= 0, 1 << self.kind[self.cells], 0)
        return np.unique(bits.sum(axis=0))

    @cached_property
    def sizes(self) -> Ints | None:
        """Numbers of entries of each kind (kinds x sizes), among them those of every union; None for very many."""
        s, done = np.zeros((self.number, 1), dtype=np.int64), list[int]()
        for kind in sorted(range(self.number), key=lambda one: one not in (*self.rows, *self.classes)):
            many = np.arange(min(self.groups[kind].size, self.most) + 1)
            if many.size * s.shape[1] > 10 * TRIED:
                return None
            s = np.repeat(s, many.size, axis=1)
            s[kind], done = np.tile(many, s.shape[1] // many.size), [*done, kind]
            s = s[:, self._may_be(s, done)]
        present = ((s > 0) << np.arange(self.number)[:, None]).sum(axis=0)
        covered = np.zeros_like(present)
        for row in self.together.tolist():
            covered |= np.where(present & row == row, row, 0)
        found = s[:, (present > 0) & (covered == present)]
        return found if found.shape[1] <= TRIED else None

    def _may_be(self, s: Ints, done: Sequence[int]) -> Flags:
        """Which numbers of the kinds ``done`` a union may have."""
        keep = np.ones(s.shape[1], dtype=bool)
        for one in np.unique(self.source[done]):
            mine = np.flatnonzero(self.source == one)
            keep &= s[mine].sum(axis=0) <= self.most
            if self.classes and set(self.classes) <= set(done):
                keep &= s[mine].sum(axis=0) <= s[list(self.classes)].sum(axis=0)
            for b in done:
                finer = [a for a in mine.tolist() if self.refines[a, b]]
                if set(finer) <= set(done) and finer and self.fills(finer, b):
                    keep &= s[b] <= s[finer].sum(axis=0)
        for a, b in permutations(done, 2):
            if self.refines[a, b]:
                keep &= s[a] <= s[b] * self.widest(a, b)
                for other in done[: done.index(b)]:
                    keep &= (s[a] <= s[b] * s[other]) | (not self._crosses(a, b, other))
        return keep

    @cached_property
    def source(self) -> Ints:
        """The source of each kind."""
        return np.array([np.flatnonzero((self.cells == own[0]).any(axis=1))[0] for own in self.groups])

    def widest(self, a: int, b: int) -> int:
        """How many groups of a kind that refines b one of b has at most, in one union."""
        if b in self.classes:
            return 1
        return int(np.bincount(self.parent[b, self.groups[a]]).max())

    def fills(self, finer: Sequence[int], b: int) -> bool:
        """Whether every row that counts in b counts in one of the kinds ``finer``."""
        bits = sum(1 << a for a in finer)
        return all(row & bits for row in self.together.tolist() if row >> b & 1)

    def _crosses(self, a: int, b: int, other: int) -> bool:
        """Whether the groups of b and of another kind that one of a is in say which it is."""
        if not self.refines[a, other]:
            return False
        pairs = self.parent[[b, other]][:, self.groups[a]]
        return bool(np.unique(pairs, axis=1).shape[1] == pairs.shape[1])

    def longest(self, K: Array) -> Any:
        """Never below c^T K c for a union c, K (N x N) over the entries; None where sizes are too many."""
        return None if self.sizes is None else self.reach(K).max()

    def reach(self, K: Array) -> Array:
        """The same for unions of each of ``sizes``."""
        s = self.sizes
        if s is None:
            raise InternalError("the sizes of unions are not listed")
        if self.classes:
            alone = self.rows if self.nobody else ()
            found = [self._reach(self.among(K, counted), s)[1] for counted in (self.counting, alone) if counted]
            return np.asarray(np.maximum.reduce(found))
        s, total = self._reach(K, s)
        return self._with_more(K, s, total) if self.rows else total

    @property
    def counting(self) -> tuple[int, ...]:
        """The kinds that are entries of x, or sums of them."""
        return tuple(one for one in range(self.number) if one not in self.classes)

    def among(self, K: Array, counted: Sequence[int]) -> Array:
        """K between the kinds ``counted``, and 0 for all others: with rows alone what those of nobody add."""
        held = np.isin(self.kind, counted)
        return np.where(held[:, None] & held[None, :], K, np.zeros(1, dtype=K.dtype))

    def _reach(self, K: Array, s: Array) -> tuple[Array, Array]:
        """What no union of each of the sizes ``s`` exceeds, beside these in a type that holds it."""
        worth: dict[tuple[int, int, int], Any] = {}
        for a, b in product(range(self.number), repeat=2):
            if b < a:
                continue
            for met, share in self._shares(K, a, b):
                key = self._same_pairs(a, b, met)
                worth[key] = worth.get(key, 0) + (1 if a == b else 2) * share
        reached = int(s.sum(axis=0).max()) + self.most
        if K.dtype == np.float64:
            s = s.astype(np.float64)
        elif (sum(map(abs, worth.values())) + 4 * max_abs(K)) * reached * max(reached, len(K)) >= 2**62:
            s = s.astype(object)
        total = s[0] * 0
        for key, share in worth.items():
            low, high = self._meeting(*key, s)
            total = total + share * (high if share > 0 else low)
        return s, np.asarray(total)

    def _with_more(self, K: Array, s: Array, total: Array) -> Array:
        """``total`` with all other rows that may count in one entry, if that is longer, or such rows without a unit."""
        best = total
        rest = self.most - sum(s[a] for a in self.rows)
        for a in self.rows:
            alone = np.diag(K)[self.groups[a]].max()
            alone = alone if K.dtype == np.float64 else int(alone)
            beside = sum(self._beside(a, b, K, s) for b in range(self.number))
            longer = total + 2 * rest * beside + rest * rest * alone
            best = np.where(s[a] > 0, np.maximum(best, longer), best)
            best = np.maximum(best, self.most**2 * alone) if self.nobody else best
        return best

    def _beside(self, a: int, b: int, K: Array, s: Array) -> Array:
        """The most that the products of an entry of kind a with all of kind b come to, of a union that has it."""
        value = self._values(K, a, b)
        own = self.refines[a, b]  # then one of b is the group that the entry is in
        mine = [value.pop(one) for one in list(value) if one >> b & 1 and own]
        total, left = (max(mine), s[b] - 1) if mine else (0, s[b])
        for one in sorted(value, key=lambda one: -value[one]):
            here = left
            for w in (w for w in range(self.number) if one >> w & 1):
                # Each of the other groups of w has a row, and so has this entry.
                here = np.minimum(here, np.minimum(self.widest(b, w) - bool(mine), self._having(w, s) - s[w]))
            total, left = total + here * value[one], left - here
        return np.asarray(total + left * max(value.values(), default=0))

    def _shares(self, K: Array, a: int, b: int) -> Iterator[tuple[int, Any]]:
        """The most that pairs of entries of kinds a and b are worth, as a sum over what they meet in at least."""
        share: dict[int, Any] = {}
        value = self._values(K, a, b)
        for met in sorted(value, key=int.bit_count):
            share[met] = value[met] - sum(share[less] for less in share if less & met == less)
        yield from share.items()

    def _values(self, K: Array, a: int, b: int) -> dict[int, Any]:
        """The largest entry of K for each of what entries of kinds a and b meet in."""
        held = K[np.ix_(self.groups[a], self.groups[b])]
        met = self.met[np.ix_(self.groups[a], self.groups[b])]
        found = {int(one): held[met == one].max() for one in np.unique(met)}
        return found if K.dtype == np.float64 else {one: int(value) for one, value in found.items()}

    def _same_pairs(self, a: int, b: int, met: int) -> tuple[int, int, int]:
        """Kinds, and what they meet in, of which there are as many pairs: kinds of the same groups are one."""
        first = [int(np.argmax(self.refines[one] & self.refines[:, one])) for one in range(self.number)]
        within = [w for w in range(self.number) if met >> w & 1]
        finest = [w for w in within if all(self.refines[w, other] for other in within)]
        one, other = sorted((first[a], first[b]))
        return one, other, 1 << first[finest[0]] if finest else met

    def _meeting(self, a: int, b: int, met: int, s: Array) -> tuple[Array, Array]:
        """How many pairs of entries of kinds a and b meet in all kinds of ``met``, at least and at most."""
        within = [w for w in range(self.number) if met >> w & 1]
        if not within:
            return s[a] * s[b], s[a] * s[b]
        finest = [w for w in within if all(self.refines[w, other] for other in within)]
        bounds = [self._meeting_in(a, b, w, s) for w in finest[:1] or within]
        if finest:
            return bounds[0]
        return s[a] * 0, np.minimum.reduce([high for _, high in bounds])

    def _meeting_in(self, a: int, b: int, w: int, s: Array) -> tuple[Array, Array]:
        """How many pairs meet in w, at least and at most."""
        if w in (a, b):
            return (s[b], s[b]) if w == a else (s[a], s[a])
        if self.refines[a, b] and self.refines[b, a]:  # the same groups
            return self._squares(a, w, s)
        # A group has no more rows than there are beside one in each other; of kinds that no row is both of, one less.
        apart = not any(row >> a & row >> b & 1 for row in self.together.tolist())
        over = self._having(w, s) - s[w] + (0 if apart else 1)
        A, B = self.widest(a, w), self.widest(b, w)
        high = np.minimum(np.minimum(B, over) * s[a], np.minimum(A, over) * s[b])
        # A group with x of a and y of b has x + y - 1 rows beside its first; x y is at most A B / (A + B - 1) of that.
        high = np.minimum(high, A * B * over // (A + B - 1)) if apart else high
        low = np.maximum(s[a], s[b]) if self.fills([a], w) and self.fills([b], w) else s[a] * 0
        # The groups that have one of a and those that have one of b are s_w at most.
        return np.maximum(low, -(-s[a] // A) - (-s[b] // B) - s[w]), high

    def _having(self, w: int, s: Array) -> Array:
        """How many rows count in w, at most."""
        rows = [a for a in self.rows if self.refines[a, w]]
        if w in self.classes:
            return np.asarray(s[w])
        if not self.rows and self.classes:
            rows = list(self.classes)
        return np.asarray(s[rows].sum(axis=0) if self.rows or self.classes else s[w] * 0 + self.most)

    def _squares(self, a: int, w: int, s: Array) -> tuple[Array, Array]:
        """sum_h s_ah^2 over the groups h of w, at least and at most.

        Of the rows that count in w at least s_a count in a, and the others in all groups of w that have none of a.
        """
        widest = self.widest(a, w)
        if widest == 1:
            return s[a], s[a]
        each, over = s[a] // np.maximum(s[w], 1), s[a] % np.maximum(s[w], 1)
        low = over * (each + 1) ** 2 + (s[w] - over) * each**2
        few = np.maximum(-(-s[a] // widest), s[a] + s[w] - self._having(w, s))
        few = s[w] if self.fills([a], w) else np.minimum(few, np.minimum(s[a], s[w]))
        rest = np.maximum(s[a] - few, 0)  # beyond one in each group that has one
        full, left = rest // (widest - 1), rest % (widest - 1)
        high = full * widest**2 + np.where(full < few, (1 + left) ** 2 + few - full - 1, 0)
        return low, np.minimum(high, s[a] * widest)


def kinds_of(patterns: Patterns) -> Kinds | None:
    """The kinds of the columns of ``patterns``; None where they are many."""
    cells, N = patterns.numbered, patterns.columns.shape[1]
    if N > _MOST_ENTRIES:
        return None
    source, column = np.nonzero(cells >= 0)
    entry = cells[source, column]
    kind = np.zeros(N, dtype=np.int64)
    kind[entry] = 2 * source
    if patterns.rows is not None:  # rows that count in nothing themselves are of other kinds
        kind[cells[len(patterns.cells)]] += patterns.rows < 0
    kind = np.unique(kind, return_inverse=True)[1].ravel()  # every entry of a source may be one of another, too
    for _ in range(_MOST_KINDS):  # each adds a kind, or ends
        rows = np.unique(np.where(cells >= 0, kind[cells], -1), axis=1, return_inverse=True)[1].ravel()
        often = np.zeros((N, int(rows.max()) + 1), dtype=np.int64)
        np.add.at(often, (entry, rows[column]), 1)
        finer = np.unique(np.column_stack([kind, often]), axis=0, return_inverse=True)[1].ravel()
        if finer.max() == kind.max():
            break
        kind = finer
    number = int(kind.max()) + 1
    if number > _MOST_KINDS:
        return None
    parent = np.full((number, N), -1, dtype=np.int64)
    for t in range(len(cells)):
        low, high = np.full(N, N), np.full(N, -2)
        np.minimum.at(low, entry, cells[t, column])
        np.maximum.at(high, entry, cells[t, column])
        inside = np.flatnonzero((low == high) & (low >= 0))
        parent[kind[low[inside]], inside] = low[inside]
    refined = np.array([[(parent[b, kind == a] >= 0).all() for a in range(number)] for b in range(number)])
    counting, classes = (
        () if told is None else tuple(np.unique(kind[cells[at]]).tolist())
        for told, at in ((patterns.rows, len(patterns.cells)), (patterns.classes, -1))
    )
    return Kinds(cells, patterns.most, kind, np.where(refined[:, kind], parent, -1), counting, classes, patterns.nobody)


def sources_of(patterns: Patterns) -> Kinds:
    """All groups of a source as one kind, though they may not be alike: nothing is told of how they lie."""
    cells, N = patterns.numbered, patterns.columns.shape[1]
    kind = np.zeros(N, dtype=np.int64)
    source, column = np.nonzero(cells >= 0)
    kind[cells[source, column]] = np.unique(source, return_inverse=True)[1]
    number = int(kind.max()) + 1
    counting = () if patterns.rows is None else (number - 1,)
    return Kinds(cells, patterns.most, kind, np.full((number, N), -1, dtype=np.int64), counting, (), patterns.nobody)
