"""The parts of K in ``dpsql.strategies.kronecker.structured_bound``, and the traces of their roots.

K falls apart by the contrasts that are taken. In one part, the coordinates that only blocks over one set of axes have
are theirs alone: over pairs of columns, those of a pair. So a part is an arrow, whose shaft are the coordinates that
several sets of axes share, and it is solved as one where that costs less than K written out.

An arrow matrix has blocks that meet in a few shared rows only, and the whole is never built.

    K = [D_1      B_1 ]
        [    ...  ... ]      positive semidefinite, D_g of order p_g, A of order q.
        [B_1^T .. A   ]

For t > 0 the Schur complement S = A + t - sum_g B_g^T (D_g + t)^-1 B_g gives det(K + t) = det S prod_g det(D_g + t),
and its logarithmic derivative by t

    tr (K + t)^-1 = tr S^-1 (I + sum_g B_g^T (D_g + t)^-2 B_g) + sum_g tr (D_g + t)^-1.

The root as a sum. x^1/2 = (1/pi) int x / (x + e^u) e^(u/2) du. The trapezoid rule of step h has, by Poisson's formula,
a relative error of at most e = 2 sum_(k >= 1) sech(2 pi^2 k / h) for every x >= 0, since the integrand's Fourier
transform is its integral times sech(pi omega). All its terms are positive, so any of them, over 1 + e, are at most
x^1/2:

    tr K^1/2 >= 1 / (1 + e) sum_t w_t tr K (K + t)^-1,    w = h t^1/2 / pi,

for any nodes t; those from ``_LEAST`` ||K|| on are taken. Of the terms beyond ||K|| only tr K / (||K|| + t) is taken.

Rounding. K is known up to a matrix of norm delta. A sum of x / (x + t) changes by at most delta sum w / t for each
eigenvalue, and a solution with S, whose least eigenvalue is t or more, by as much again: both are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.strategies.core.limits import CUBES
from dpsql.strategies.kronecker import shared_rows
from dpsql.strategies.kronecker.shared_rows import LostError

_SMALL = 300  # the order up to which a part is written out
_LABELS = 2**21
_FEW_ENTRIES = 64
_BARBS = 2**25  # entries of all blocks of an arrow


@dataclass(eq=False)
class Item:
    """What two blocks with the same rows add to K: ``scale`` x the Kronecker product of ``factors``."""

    span: int
    rows: Ints
    columns: Ints
    factors: list[Floats]
    scale: float


@dataclass(eq=False)
class Part:
    """One part of K: its items, of ``order`` coordinates."""

    items: list[Item] = field(default_factory=list)
    order: int = 0

    def split(self) -> tuple[Ints, list[tuple[Ints, list[Item]]]]:
        """(The shared coordinates, the others with the items that have them, by the blocks' coordinates.)"""
        spans: dict[int, list[Item]] = {}
        for item in self.items:
            spans.setdefault(item.span, []).append(item)
        groups: dict[bytes, tuple[Ints, list[Item]]] = {}
        for items in spans.values():
            places = np.unique(np.concatenate([held for item in items for held in (item.rows, item.columns)]))
            groups.setdefault(places.tobytes(), (places, []))[1].extend(items)
        times = np.zeros(self.order, dtype=np.int64)
        for places, _ in groups.values():
            times[places] += 1
        return np.flatnonzero(times > 1), list(groups.values())


class Parts:
    """The parts of K as they are found. Raises LostError, here and below, where they are too large."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], tuple[list[Floats], Floats]] = {}
        self.roots: dict[object, float] = {}
        self.held: dict[object, Part] = {}
        self.work = self.labels = 0

    def add(self, key: object, item: Item, order: int) -> None:
        """Add an item to the part ``key``, which has ``order`` coordinates by now."""
        part = self.held.setdefault(key, Part())
        part.items.append(item)
        part.order = max(part.order, order)
        self.work += len(item.rows) * len(item.columns)
        self.labels += len(item.rows) + len(item.columns)
        if self.work > MATRIX_CAP or self.labels > _LABELS:
            raise LostError

    def plan(self) -> float:
        """What all traces cost, in orders cubed; which parts are arrows is settled."""
        self.arrows: dict[object, tuple[Ints, list[tuple[Ints, list[Item]]]]] = {}
        cost = 0.0
        for key, part in self.held.items():
            whole = float(part.order) ** 3
            if part.order > _SMALL:
                shared, groups = part.split()
                apart = np.ones(part.order, dtype=bool)
                apart[shared] = False
                own = [int(apart[places].sum()) for places, _ in groups]
                q = len(shared)
                entries = sum(p * len(places) for p, (places, _) in zip(own, groups, strict=True))
                split = sum(p**3 for p in own) + NODES * (q**3 / 3 + sum(
                    p * (len(places) - p) ** 2 for p, (places, _) in zip(own, groups, strict=True)))  # fmt: skip
                if (split < whole or part.order > shared_rows.MOST_ORDER) and entries <= _BARBS:
                    if max([q, *own]) > shared_rows.MOST_ORDER:
                        raise LostError
                    self.arrows[key] = shared, groups
                    whole = float(split)
            if key not in self.arrows and part.order > shared_rows.MOST_ORDER:
                raise LostError
            cost += whole
        if cost > CUBES:
            raise LostError
        return cost

    def trace(self, key: object) -> float:
        """A lower bound on the trace of the root of one part."""
        part = self.held[key]
        index = np.arange(part.order)
        if key not in self.arrows:
            known = (part.order, *self._named(part.items, index))
            if known not in self.roots:
                self.roots[known] = _root_trace(self._summed(part.items, index, part.order))
            return self.roots[known]
        shared, groups = self.arrows[key]
        apart = np.ones(part.order, dtype=bool)
        apart[shared] = False
        shaft = np.zeros((len(shared),) * 2)
        barbs = []
        alike: dict[object, Floats] = {}
        for places, items in groups:
            inside = apart[places]
            own, ends = places[inside], places[~inside]
            index[own], index[ends] = np.arange(len(own)), np.arange(len(own), len(places))
            named = self._named(items, index)
            if named not in alike:
                alike[named] = self._summed(items, index, len(places))
            K = alike[named]
            at = np.searchsorted(shared, ends)
            shaft[np.ix_(at, at)] += K[len(own) :, len(own) :]
            barbs.append(Barb(K[: len(own), : len(own)], K[: len(own), len(own) :], at))
        return root_trace(shaft, barbs)

    def _named(self, items: Sequence[Item], index: Ints) -> tuple[object, ...]:
        """What items come to over the coordinates ``index``: the same for columns alike, which share their factors."""
        return tuple(
            (index[item.rows].tobytes(), index[item.columns].tobytes(), *map(id, self._product(item)[0]), item.scale)
            for item in items
        )

    def _product(self, item: Item) -> tuple[list[Floats], Floats]:
        """(The factors, which stay, so that no other has their place, and their Kronecker product.)"""
        key = tuple(map(id, item.factors))
        if key not in self.kept:
            self.kept[key] = item.factors, _kron(item.factors)
        return self.kept[key]

    def _summed(self, items: Sequence[Item], index: Ints, order: int) -> Floats:
        """The items over ``order`` coordinates, numbered by ``index``, symmetric."""
        places: dict[tuple[int, int], list[Item]] = {}
        for item in items:
            places.setdefault((id(item.rows), id(item.columns)), []).append(item)
        K = np.zeros((order, order))
        for held in places.values():
            added = sum(item.scale * self._product(item)[1] for item in held)
            K[np.ix_(index[held[0].rows], index[held[0].columns])] += added
        return np.asarray((K + K.T) / 2.0)

    def corner(self, key: object, place: int) -> float:
        """The entry (place, place) of one part."""
        total = 0.0
        for item in self.held[key].items:
            rows, columns = item.rows.tolist(), item.columns.tolist()
            if place in rows and place in columns:
                total += item.scale * float(self._product(item)[1][rows.index(place), columns.index(place)])
        return total


def _kron(parts: Sequence[Floats]) -> Floats:
    out: Floats = np.ones((1, 1))
    for part in parts:
        out = _product_of(out, part)
    return out


def _product_of(left: Floats, right: Floats) -> Floats:
    """The Kronecker product, whose entries are written in long runs where one of both is small."""
    if min(left.size, right.size) > _FEW_ENTRIES:
        return np.asarray(np.kron(left, right))
    out = np.empty((left.shape[0], right.shape[0], left.shape[1], right.shape[1]))
    if left.size < right.size:
        for i, j in np.ndindex(left.shape):
            np.multiply(right, left[i, j], out=out[i, :, j])
    else:
        for i, j in np.ndindex(right.shape):
            np.multiply(left, right[i, j], out=out[:, i, :, j])
    return out.reshape(left.shape[0] * right.shape[0], -1)


def _root_trace(K: Floats) -> float:
    """A lower bound on tr K^1/2: what rounding can have added to an eigenvalue is taken off it (Weyl)."""
    if K.shape[0] == 1:
        return float(np.sqrt(max(K[0, 0], 0.0)))
    s = scipy.linalg.eigvalsh(K)
    slack = (64.0 + 4.0 * len(s)) * np.finfo(np.float64).eps * float(np.abs(s).max())
    return float(np.sqrt(np.maximum(s - slack, 0.0)).sum())


_STEP = 1.5
_LEAST = 1e-11
NODES = 24
"""How often S is formed and solved."""


@dataclass(frozen=True, eq=False)
class Barb:
    """A block D (p x p) and B (p x shared), its columns at the places ``shared`` of A."""

    block: Floats = field(repr=False)
    links: Floats = field(repr=False)
    shared: Ints = field(repr=False)


def root_trace(shaft: Floats, barbs: Sequence[Barb]) -> float:
    """A lower bound on tr K^1/2, K of ``shaft`` A (q x q) and ``barbs``, short of it by about 1e-5.

    Cost: the eigenvalues of the distinct blocks, and 24 times a solution of order q and sum_g p_g shared_g^2.
    """
    q = shaft.shape[0]
    known: dict[bytes, tuple[Floats, Floats]] = {}
    alike: dict[bytes, list[Ints]] = {}
    for barb in barbs:
        key = f"{barb.links.shape} ".encode() + barb.block.tobytes() + barb.links.tobytes()
        if key not in known:
            s, V = scipy.linalg.eigh(barb.block, driver="evd")
            known[key] = np.maximum(s, 0.0), V.T @ barb.links
        alike.setdefault(key, []).append(barb.shared)
    turned = [(*known[key], np.array(places)) for key, places in alike.items()]
    longest = float(scipy.linalg.eigvalsh(shaft)[-1]) if q else 0.0
    norm = longest + max((float(s[-1]) for s, _, _ in turned if s.size), default=0.0)
    if norm <= 0.0:
        return 0.0
    rows = q + sum(len(places) * len(s) for s, _, places in turned)
    widest = max([q, *(len(s) for s, _, _ in turned)])
    nodes = norm * _LEAST * np.exp(_STEP * np.arange(NODES))
    weights = _STEP * np.sqrt(nodes) / np.pi
    total = 0.0
    for t, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        S, M = shaft + t * np.eye(q), np.eye(q)
        own = 0.0
        for s, links, places in turned:
            own += len(places) * float((s / (s + t)).sum())
            if places.size:
                scaled = links / (s + t)[:, None]
                at = places[:, :, None], places[:, None, :]
                np.subtract.at(S, at, links.T @ scaled)
                np.add.at(M, at, scaled.T @ scaled)
        if q:
            own += q - t * float(np.trace(scipy.linalg.solve(S, M, assume_a="pos")))
        total += weight * own
    beyond = nodes[-1] * np.exp(_STEP * np.arange(1, 60))
    trace = float(np.trace(shaft)) + sum(len(places) * float(s.sum()) for s, _, places in turned)
    total += trace * float((_STEP * np.sqrt(beyond) / np.pi / (norm + beyond)).sum())
    slack = (64.0 + 4.0 * widest) * np.finfo(np.float64).eps * norm * (rows + q)
    total -= slack * float((weights / nodes).sum() + (_STEP / np.pi / np.sqrt(beyond)).sum())
    return float(max(total, 0.0)) / (1.0 + _aliasing())


def _aliasing() -> float:
    """At least 2 sum_k sech(2 pi^2 k / h): sech x <= 2 e^-x, a geometric sum."""
    ratio = np.exp(-2.0 * np.pi**2 / _STEP)
    return float(4.0 * ratio / (1.0 - ratio))
