"""The least error where one unit has a cell in each of some classes, and classes and corners are alike up to a few.

Cells are pairs of a class and a corner, such as a day and a ward; a unit has at most one cell of each class, in at most
``most`` classes. Classes of one kind may be exchanged, and so may corners of one kind in all classes at once: that
changes neither the Gram matrix G nor the contributions C. So an optimal X is constant on the orbits of pairs of cells,
and of a contribution c only the numbers n_o(c) of its pairs in each orbit o count:

    M = sum_c lambda_c E[c c^T] = sum_o (sum_c lambda_c n_o(c) / |o|) I_o,   q_c = c^T X c = sum_o n_o(c) x_o,

for the 0/1 matrix I_o of an orbit of |o| pairs and X = sum_o x_o I_o. Products of such matrices are again such: I_o I_p
= sum_r k_opr I_r, where a pair (x, y) of r has k_opr cells z with (x, z) in o and (z, y) in p. In the basis of I_o /
|o|^1/2 multiplication with a symmetric one is a symmetric matrix of the order of the number of orbits, with the same
eigenvalues: roots are taken there, and all else is as in ``dpsql.strategies.gaussian.optimal``. A step costs O(L^3) for
L orbits, two dozen or so, for any number of cells and contributions. Contributions that turn out to be long under the X
found join the list; any list proves a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.strategies.core.ascent import ascend
from dpsql.workloads.families.contributions import Tied

_CLOSE = 1e-9
_ORBITS = 120
_NOTHING = 1e-11  # of the largest eigenvalue: what is not asked
_ROUNDS = 12
_ADDED = 8
_STARTS = 64
_STEPS = 500
_SIZES = 24  # numbers of classes that are tried of units tied to rows


@dataclass(frozen=True, eq=False)
class Cells:
    """``orbit`` (N x N): the number of the orbit of each pair of cells; ``label`` (N,): the class of each cell.

    A matrix that is constant on orbits is given by its entries (L,).
    """

    orbit: Ints
    label: Ints

    @cached_property
    def size(self) -> Floats:
        """|o| (L,)."""
        return np.bincount(self.orbit.ravel()).astype(np.float64)

    @cached_property
    def alone(self) -> Floats:
        """The identity (L,)."""
        return np.isin(np.arange(self.size.size), np.diag(self.orbit)).astype(np.float64)

    @cached_property
    def table(self) -> Floats:
        """k_opr |r|^1/2 / |p|^1/2 (o, r, p)."""
        L, place = self.size.size, np.zeros(self.size.size, dtype=np.int64)
        place[self.orbit.ravel()] = np.arange(self.orbit.size)  # any pair of the orbit will do
        out = np.zeros((L, L, L))
        for r, (x, y) in enumerate(zip(*np.unravel_index(place, self.orbit.shape), strict=True)):
            both = self.orbit[x] * L + self.orbit[:, y]
            out[:, r, :] = np.bincount(both, minlength=L * L).reshape(L, L)
        root = np.sqrt(self.size)
        return out * (root[:, None] / root[None, :])

    def multiplied(self, a: Floats) -> Floats:
        """Multiplication with a matrix from the left (L x L), in the basis of the module."""
        return np.tensordot(a, self.table, axes=1)

    def product(self, a: Floats, b: Floats) -> Floats:
        root = np.sqrt(self.size)
        return np.asarray(self.multiplied(a) @ (b * root) / root)

    def functions(self, a: Floats, *of: Callable[[Floats], Floats]) -> list[Floats]:
        """f(A) of a symmetric A, by its eigenvalues, for each f."""
        held = self.multiplied(a)
        s, V = scipy.linalg.eigh((held + held.T) / 2.0, driver="evd", check_finite=False)
        root = np.sqrt(self.size)
        alone = V.T @ (self.alone * root)
        return [np.asarray(V @ (f(s) * alone) / root) for f in of]

    def root(self, a: Floats) -> Floats:
        """The symmetric root of a positive A (N x N)."""
        (found,) = self.functions(a, lambda s: np.sqrt(np.maximum(s, 0.0)))
        return np.asarray(found[self.orbit])

    def pairs(self, chosen: Ints, times: Ints | None = None) -> tuple[int, ...]:
        """n_o of the sum of some cells, each once or so many ``times``."""
        often = np.ones(chosen.size, dtype=np.int64) if times is None else times
        weights = np.outer(often, often).ravel()
        found = np.bincount(self.orbit[np.ix_(chosen, chosen)].ravel(), weights, minlength=self.size.size)
        return tuple(found.round().astype(np.int64).tolist())


@dataclass(frozen=True, eq=False)
class Found:
    """``metric`` X (L,) under which no listed contribution is longer than 1, and its ``error`` tr(G X^+), where the
    least is ``lower`` or more.

    ``second`` (L,), ``first`` (N,): M and the mean of the contributions that prove it.
    """

    metric: Floats
    error: float
    lower: float
    second: Floats
    first: Floats


def alike_cells(gram: Floats, label: Ints, corner: Ints, again: Ints | None = None) -> Cells | None:
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
        orbit = (np.cumsum(np.bincount(place.ravel()) > 0) - 1)[place]
    else:
        orbit = np.unique(place, return_inverse=True)[1].reshape(place.shape)
    cells = Cells(orbit, label)
    mean = np.bincount(orbit.ravel(), weights=gram.ravel()) / cells.size
    if cells.size.size > _ORBITS or np.abs(gram - mean[orbit]).max() > _CLOSE * np.abs(gram).max():
        return None
    return cells


def _kinds(gram: Floats, own: Ints, other: Ints) -> Ints:
    """The kind of each of ``own``: alike are those with the same of ``other`` and equal Gram matrices over these."""
    found: dict[bytes, int] = {}
    kinds = np.zeros(int(own.max()) + 1, dtype=np.int64)
    scale = np.abs(gram).max()
    for one in np.unique(own):
        mine = np.flatnonzero(own == one)
        mine = mine[np.argsort(other[mine])]
        told = other[mine].tobytes() + (gram[np.ix_(mine, mine)] / scale).round(8).tobytes()
        kinds[one] = found.setdefault(told, len(found))
    return kinds


class _State:
    """A state of the ascent over contributions with these numbers of pairs (contributions x L).

    What is not asked is kept apart as a part of K of its own, so that no root of a rounded zero is taken.
    """

    def __init__(self, cells: Cells, half: Floats, apart: Floats, pairs: Floats, lam: Floats) -> None:
        self.second = (lam @ pairs) / cells.size
        K = cells.product(half, cells.product(self.second, half))
        trace = cells.size * cells.alone
        scale = float(trace @ K)
        whole = K + scale * apart
        root, inverse = cells.functions(
            whole,
            lambda s: np.sqrt(np.maximum(s, 1e-15 * scale)),
            lambda s: 1.0 / np.sqrt(np.maximum(s, 1e-15 * scale)),
        )
        self.t = float(trace @ (root - np.sqrt(scale) * apart))
        self.metric = cells.product(half, cells.product(inverse, half))
        self.q = pairs @ self.metric

    def upper(self) -> float:
        return self.t * float(self.q.max())


Sum: TypeAlias = "tuple[float, Ints, Ints]"
"""A contribution and its c^T K c: the numbers of its cells, and how often it has each."""


def solve_alike_cells(
    gram: Floats,
    cells: Cells,
    longest: Callable[[Floats], list[Sum]],
    tolerance: float,
    deadline: float,
    *,
    alone: bool = True,
    kept: Floats | None = None,
) -> Found:
    """The optimum over contributions, from single cells and long sums of them, for ``gram`` (N x N) over cells.

    ``longest``: sums c of which c^T K c is large, the largest first. ``alone``: whether a cell is one by itself.
    ``kept`` (L,): 0 for orbits of cells that are to be measured apart, in which X and G are 0; ``lower`` is of any X.
    """
    kept = np.ones(cells.size.size) if kept is None else kept
    entries = np.bincount(cells.orbit.ravel(), weights=gram.ravel()) / cells.size
    top = float(np.linalg.eigvalsh(cells.multiplied(entries)).max())
    half, apart = cells.functions(
        entries,
        lambda s: np.sqrt(np.where(s > _NOTHING * top, s, 0.0)),
        lambda s: np.where(s > _NOTHING * top, 0.0, 1.0),
    )
    single = [np.array([i]) for i in np.unique(np.diag(cells.orbit), return_index=True)[1]]
    first = [(i, np.ones(1, dtype=np.int64)) for i in single] if alone else []
    held = {cells.pairs(*one): one for one in (*first, *((at, times) for _, at, times in longest(gram)))}
    for _ in range(_ROUNDS):
        pairs, equal = np.array(list(held), dtype=np.float64), np.full(len(held), 1.0 / len(held))
        seen = pairs * kept
        state, lam, _ = ascend(partial(_State, cells, half, apart, seen), equal, tolerance, deadline, _STEPS)
        reached, before = float(state.q.max()), list(held.values())
        found = longest((state.metric / reached)[cells.orbit])[:_ADDED]
        held |= {
            cells.pairs(*one): one for one in ((at, times) for value, at, times in found if value > 1.0 + tolerance)
        }
        if len(held) == len(before):
            break
    # Each cell is as likely as those of its orbit.
    single_orbit = np.diag(cells.orbit)
    chance = sum(
        share * np.bincount(single_orbit[chosen], times, minlength=cells.size.size)
        for share, (chosen, times) in zip(lam, before, strict=True)
    )
    mean = (chance / cells.size)[single_orbit]
    proven = state if kept.all() else _State(cells, half, apart, pairs, lam)
    return Found(state.metric / reached, state.upper(), proven.t**2, proven.second, mean)


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
    ranked = sorted(found.values(), key=lambda one: -one[0])[:_ADDED]
    return [(value, chosen, np.ones(chosen.size, dtype=np.int64)) for value, chosen in ranked]


def longest_tied(K: Floats, tied: Tied) -> list[Sum]:
    """The same of rows and the units that they count, over the columns of ``tied``: at each number of classes, with all
    other rows of one corner or without them, from each corner by the best of the other classes, one after the other.
    """
    label, most, c = tied.label, tied.most, tied.label.size
    found: list[Sum] = [(most**2 * float(K[c + i, c + i]), np.array([c + i]), np.array([most])) for i in range(c)]
    told = np.stack([np.diag(K)[:c], np.diag(K)[c:], K[:c].sum(axis=1), K[c:].sum(axis=1), label < 0]).round(9)
    starts = np.unique(told, axis=1, return_index=True)[1][:_STARTS].tolist()
    sizes = sorted({round(size) for size in np.geomspace(1, tied.limit, _SIZES)})
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
