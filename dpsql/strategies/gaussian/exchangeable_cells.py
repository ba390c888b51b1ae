"""Finds the parts where a unit has a cell in each of some classes, and classes and corners are alike up to a few.

Cells are pairs of a class and a corner, such as a day and a ward; a unit has at most one cell of each class, in at most
``most`` classes. Classes of one kind may be exchanged, and so may corners of one kind in all classes at once: that
changes neither the Gram matrix G nor the contributions C, so that the orbits of pairs of cells are a colouring
(``dpsql.strategies.core.colouring``), of two dozen colours or so, and of a contribution only the numbers of its pairs
in each colour count. A step costs the d^3 of the parts, whatever the number of cells. Contributions that turn out to be
long under the X found join the list; any list proves a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import scipy

from dpsql.common.arrays import Flags, Floats, Ints
from dpsql.strategies.core.colouring import Colouring, Decomposition
from dpsql.strategies.core.limits import ADDED, COLOURS, SIZES
from dpsql.strategies.core.symmetric import lower_bound, solve
from dpsql.workloads.families.contributions import Tied

_STARTS = 64

Sum: TypeAlias = "tuple[float, Ints, Ints]"
"""A contribution c with c^T K c: the numbers of its cells, and how often it has each."""


@dataclass(frozen=True, eq=False)
class AlikeOptimum:
    """``metrics`` X_k in the parts of ``split``, under which no listed contribution is longer than 1.

    ``error`` tr(G X^+), where the least is ``lower`` or more. ``second`` (L,) by colours, ``first`` (N,): M and the
    mean of the contributions that prove it.
    """

    split: Decomposition
    metrics: tuple[Floats, ...]
    error: float
    lower: float
    second: Floats
    first: Floats

    @cached_property
    def metric(self) -> Floats:
        """X (N x N)."""
        return np.asarray(self.split.combined(self.metrics)[self.split.cells.colour])

    @cached_property
    def root(self) -> Floats:
        """The symmetric root of X (N x N)."""
        spectra = [scipy.linalg.eigh(X, driver="evd") for X in self.metrics]
        roots = [(V * np.sqrt(np.maximum(s, 0.0))) @ V.T for s, V in spectra]
        return np.asarray(self.split.combined(roots)[self.split.cells.colour])

    def moment(self) -> Floats:
        """M (N x N)."""
        return np.asarray(self.second[self.split.cells.colour])


def alike_cells(gram: Floats, label: Ints, corner: Ints, again: Ints | None = None) -> Colouring | None:
    """The orbits of pairs of cells with a class ``label`` and a ``corner`` each; None where too few are alike.

    ``gram`` (N x N) over cells. Kinds are guessed from its entries, and held to leave it as it is. Where a class has a
    corner several times ``again`` tells which one it is, and all of them are exchanged together.
    """
    again = np.zeros_like(label) if again is None else again
    if np.unique(np.stack([label, corner, again]), axis=1).shape[1] < label.size:
        return None
    times = int(again.max()) + 1
    crossed = np.unique(np.stack([label, corner]), axis=1).shape[1] > np.unique(label).size
    if crossed:
        kinds = [_kinds(gram, own, other * times + again) for own, other in ((label, corner), (corner, label))]
    else:
        # Classes of one corner each: they may be exchanged within it, and corners with all classes of theirs.
        of_label = _kinds(gram, label, again)
        order = np.lexsort((label, of_label[label], corner))
        step = np.diff(label[order], prepend=-1) != 0
        begin = np.diff(corner[order], prepend=-1) != 0
        place = np.cumsum(step)
        rank = np.zeros_like(label)
        rank[order] = place - np.maximum.accumulate(np.where(begin, place, 0))
        kinds = [of_label, _kinds(gram, corner, rank * times + again)]
    told = [kind[own] for kind, own in zip(kinds, (label, corner), strict=True)]
    place = again[:, None] * times + again[None, :]
    for kind, own in zip(told, (label, corner), strict=True):
        many = int(kind.max()) + 1
        for one in (kind[:, None], kind[None, :]):
            place = place * many + one
        place = place * 2 + (own[:, None] == own[None, :])
    if place.max() < place.size:
        colour = (np.cumsum(np.bincount(place.ravel()) > 0) - 1)[place]
    else:
        colour = np.unique(place, return_inverse=True)[1].reshape(place.shape)
    cells = Colouring(colour)
    return cells if cells.size.size <= COLOURS and cells.constant(gram) else None


def _kinds(gram: Floats, label: Ints, other: Ints) -> Ints:
    """The kind of each ``label``: alike are those with the same of ``other`` and equal Gram matrices over these."""
    found: dict[bytes, int] = {}
    kinds = np.zeros(int(label.max()) + 1, dtype=np.int64)
    scale = np.abs(gram).max()
    for one in np.unique(label):
        mine = np.flatnonzero(label == one)
        mine = mine[np.argsort(other[mine])]
        told = other[mine].tobytes() + (gram[np.ix_(mine, mine)] / scale).round(8).tobytes()
        kinds[one] = found.setdefault(told, len(found))
    return kinds


def solve_alike_cells(
    gram: Floats,
    cells: Colouring,
    longest: Callable[[Floats], list[Sum]],
    tolerance: float,
    deadline: float,
    *,
    alone: bool = True,
    support: Flags | None = None,
) -> AlikeOptimum | None:
    """The optimum over contributions, from single cells and long sums of them, for ``gram`` (N x N) over cells.

    ``longest``: sums c of which c^T K c is large, the largest first. ``alone``: whether a cell is one by itself.
    ``support`` (L,): False for the colours of pairs of cells that are to be measured apart, in which X and G are 0;
    ``lower`` is of any X. None where the colouring is refused.
    """
    split = Decomposition.of(cells, support)
    whole = split if support is None else Decomposition.of(cells)
    if split is None or whole is None:
        return None
    kinds = np.diag(cells.colour)
    single = np.unique(kinds, return_index=True)[1].tolist() if alone else []
    first = [(np.array([i]), np.ones(1, dtype=np.int64)) for i in single]
    listed = {cells.pairs(*one): one for one in (*first, *((at, times) for _, at, times in longest(gram)))}

    def worst(metrics: tuple[Floats, ...]) -> list[Floats] | None:
        before = len(listed)
        for value, at, times in longest(split.combined(metrics)[cells.colour])[:ADDED]:
            if value > 1.0 + tolerance / 4.0:  # what is left out adds to the gap
                listed.setdefault(cells.pairs(at, times), (at, times))
        new = list(listed)[before:]
        return split.moments(np.array(new, dtype=np.float64)) if new else None

    entries = cells.entries(gram)
    parts = split.parts(entries, np.array(list(listed), dtype=np.float64))
    if parts is None:
        return None
    found = solve(parts, tolerance, deadline, worst=worst)
    pairs, lower = np.array(list(listed), dtype=np.float64)[: found.weights.size], found.lower
    if whole is not split:
        lower = lower_bound(whole.parts(entries, pairs) or parts, found.weights)
    # Each cell is as likely as those of its kind.
    chance = sum(
        share * np.bincount(kinds[at], times, minlength=cells.size.size)
        for share, (at, times) in zip(found.weights, listed.values(), strict=False)
    )
    second, mean = (found.weights @ pairs) / cells.size, (chance / cells.size)[kinds]
    return AlikeOptimum(split, found.metrics, found.upper, lower, second, mean)


def longest_sums(K: Floats, label: Ints, most: int) -> list[Sum]:
    """Long sums c^T K c: from each cell those most alike to all before, then class by class the best cell or none."""
    home = np.unique(label, return_inverse=True)[1]
    members = [np.flatnonzero(home == one) for one in range(int(home.max()) + 1)]
    found: dict[bytes, tuple[float, Ints]] = {}
    _, first = np.unique(np.stack([np.diag(K), K.sum(axis=1)]).round(9), axis=1, return_index=True)
    for begin in first[:_STARTS]:
        for limit in {1, most}:
            chosen = _grown(K, home, members, int(begin), limit, most)
            found[np.sort(chosen).tobytes()] = (float(K[np.ix_(chosen, chosen)].sum()), chosen)
    ranked = sorted(found.values(), key=lambda one: -one[0])[:ADDED]
    return [(value, chosen, np.ones(chosen.size, dtype=np.int64)) for value, chosen in ranked]


def longest_tied(K: Floats, tied: Tied) -> list[Sum]:
    """The same of rows and the units that they count, over the columns of ``tied``: at each number of classes, with all
    other rows of one corner or without them, from each corner by the best of the other classes, one after the other.
    """
    label, most, c = tied.label, tied.most, tied.label.size
    found: list[Sum] = [(most**2 * float(K[c + i, c + i]), np.array([c + i]), np.array([most])) for i in tied.alone]
    told = np.stack([np.diag(K)[:c], np.diag(K)[c:], K[:c].sum(axis=1), K[c:].sum(axis=1), label < 0]).round(9)
    starts = np.unique(told, axis=1, return_index=True)[1][:_STARTS].tolist()
    sizes = sorted({round(size) for size in np.geomspace(1, tied.limit, SIZES)})
    for begin, s in product(starts, sizes):
        for left in {0, most - s}:
            chosen = [] if label[begin] < 0 else [begin]
            row, gain = c + begin, np.diag(K)[:c] + 2 * left * K[c + begin, :c]
            open_ = (label >= 0) & (label != label[begin])
            if chosen:
                gain = gain + 2 * K[begin, :c]
            while len(chosen) < s and open_.any():
                best = int(np.argmax(np.where(open_, gain, -np.inf)))
                chosen.append(best)
                open_ &= label != label[best]
                gain = gain + 2 * K[best, :c]
            at, times = np.array([*chosen, row]), np.array([*[1] * len(chosen), left])
            if len(chosen) == s:
                found.append((float(times @ K[np.ix_(at, at)] @ times), at, times))
    return sorted(found, key=lambda one: -one[0])


def _grown(K: Any, home: Ints, members: list[Ints], begin: int, limit: int, most: int) -> Ints:
    """A sum grown from one cell to ``limit`` greedily, then to a local optimum of at most ``most``."""
    taken = np.full(len(members), -1)
    taken[home[begin]] = begin
    reach = K[:, begin].copy()  # K c
    diagonal = np.diag(K)
    for _ in range(4 * most):
        used = int((taken >= 0).sum())
        # Putting a cell in the place of its class's own, or of none.
        own = taken[home]
        without = reach - np.where(own >= 0, K[np.arange(K.shape[0]), own], 0.0)
        lost = np.where(own >= 0, 2 * reach[own] - diagonal[own], 0.0)
        gain = 2 * without + diagonal - lost
        gain[(own < 0) & (used >= max(limit, 1))] = -np.inf
        gain[own == np.arange(K.shape[0])] = -np.inf
        best = int(np.argmax(gain))
        drop = [(-(2 * reach[i] - diagonal[i]), i) for i in taken[taken >= 0].tolist()] if used > 1 else []
        worst = max(drop, default=(-np.inf, -1))
        if worst[0] > max(gain[best], 1e-12):
            taken[home[worst[1]]] = -1
            reach -= K[:, worst[1]]
        elif gain[best] > 1e-12 or used < limit:
            if taken[home[best]] >= 0:
                reach -= K[:, taken[home[best]]]
            taken[home[best]] = best
            reach += K[:, best]
        elif limit < most:
            limit = most
        else:
            break
    return taken[taken >= 0]
