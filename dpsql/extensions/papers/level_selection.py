"""The Level Selection Algorithm: partitions of the cells, added one at a time while they lower the error.

Li and Miklau 2011, Program 4.1. A level starts as the sum of all cells; its boxes are cut in two, each at the
axis and place that lowers the error most, until no cut helps; the level is kept if the error is lower with it.
Every level holds each cell once, so k levels and the identity have squared L2 (and L1) sensitivity k + 1.

Which box is cut next the program leaves open; ``ORDERS`` has four readings. "rounds", the default, cuts all boxes of
a round at once, each at its own best place with the others still whole, as lines 5 to 9 may be read: it has the 33
levels, 4,746 queries and 1,931 distinct ones of their Example 4.1, and their error at n = 1,024. "best" takes the cut
that lowers the error most over all boxes, as their section 4.2 counts the work. The search is greedy and stops at
the first level that does not pay, so the orders, and even the breaking of ties, lead to strategies of rather
different error, and no order is best on every workload (benchmarks/paper_tables.py).

Cutting box q = q1 + q2 changes M = A^T A by -(q1 q2^T + q2 q1^T), of rank 2. With P = M^-1, H = P G P,
a = q1' P q1, b = q1' P q2, c = q2' P q2 and alpha, beta, gamma the same for H, Woodbury's identity gives the
change of tr(G P) as -(c alpha + 2 (1 - b) beta + a gamma) / (a c - (1 - b)^2)  (our form of their App. D.2).
All cuts of all boxes need only sums of P and H over pairs of cells of one box, at most n^2, and the update
of P and H after a cut is of rank 2, so a level costs O(n^3) where the paper states O(n^4).

Equal boxes of several levels are one row with a larger weight (Thm 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, quoted

Box = tuple[tuple[int, int], ...]

MOST_LEVELS = 128

# Which box is cut next, among those whose best cut lowers the error (least key first): (change, box, age). None: all.
ORDERS: dict[str, Callable[[float, Box, int], tuple[float, ...]] | None] = {
    "rounds": None,
    "best": lambda change, box, age: (change,),
    "largest": lambda change, box, age: (-prod(b - a for a, b in box), age),
    "oldest": lambda change, box, age: (age,),
}


@dataclass(frozen=True, eq=False)
class Levels:
    """``boxes``: the levels in order, each a partition of the cells into boxes; ``errors``: the error after 0, 1,
    2, ... levels, (k + 1) tr(G M^-1), in the L2 sense.
    """

    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, ...], ...]
    errors: tuple[float, ...]

    def rows(self, noise: str) -> Floats:
        """A (p x n): the cells, then the distinct boxes of several cells, each with its joint weight.

        Weights of repeated rows add in squares for Gaussian noise and plainly for Laplace noise, where
        one row of weight 2 costs what two rows cost and tells more.
        """
        n = prod(self.shape)
        count: dict[Box, int] = {}
        for level in self.boxes:
            for box in level:
                count[box] = count.get(box, 0) + 1
        single = np.ones(n)
        rest = []
        for box, times in sorted(count.items()):
            cells = box_cells(self.shape, box)
            if cells.size == 1:
                single[cells] += times
            else:
                row = np.zeros(n)
                row[cells] = np.sqrt(times) if noise == "gaussian" else times
                rest.append(row)
        top = np.diag(np.sqrt(single) if noise == "gaussian" else single)
        return np.vstack([top, *rest]) if rest else top


def box_cells(shape: Sequence[int], box: Box) -> NDArray[np.int64]:
    """The cell numbers of a box, in row-major order."""
    out = np.zeros(1, dtype=np.int64)
    for size, (a, b) in zip(shape, box, strict=True):
        out = (out[:, None] * size + np.arange(a, b)[None, :]).ravel()
    return out


def select_levels(
    G: Floats,
    shape: Sequence[int],
    most: int = MOST_LEVELS,
    deadline: float = np.inf,
    base: Floats | None = None,
    sensitivity: float = 1.0,
    order: str = "rounds",
) -> Levels:
    """Program 4.1 for the Gram matrix G (n x n) over cells of the given shape.

    ``most``: the bound on the number of levels. ``base`` (n x n) and ``sensitivity`` (squared): what is measured
    already, the identity by default. ``order``: one of ``ORDERS``. Stops early at ``deadline`` (monotonic
    seconds). Cost O(n^3) a level. Raises DataError where the shape does not hold n cells or for an order
    that is not known.
    """
    if order not in ORDERS:
        raise DataError(f"strategy: order {quoted(order)} is not known; use one of {', '.join(ORDERS)}")
    sizes = tuple(int(s) for s in shape)
    n = prod(sizes)
    if G.shape != (n, n):
        raise DataError(f"strategy: a shape of {n} cells does not fit {G.shape[0]} columns")
    M = np.eye(n) if base is None else base
    P = np.asarray(linalg.inv(M))
    squared = sensitivity
    errors = [squared * float(np.sum(G * P))]
    chosen: list[tuple[Box, ...]] = []
    while len(chosen) < most and monotonic() < deadline:
        boxes, trial = _grow(G, P, sizes, deadline, order)
        error = (squared + 1.0) * float(np.sum(G * trial))
        if error > errors[-1] * (1.0 - 1e-9):
            break
        chosen.append(boxes)
        errors.append(error)
        P, squared = trial, squared + 1.0
        if len(chosen) % 8 == 0:
            P = _refreshed(P)
    return Levels(sizes, tuple(chosen), tuple(errors))


def _refreshed(P: Floats) -> Floats:
    """P again from its inverse: rank-2 updates let rounding grow."""
    inverse = linalg.inv(0.5 * (P + P.T))
    return np.asarray(linalg.inv(0.5 * (inverse + inverse.T)))


def _grow(G: Floats, P: Floats, shape: tuple[int, ...], deadline: float, order: str) -> tuple[tuple[Box, ...], Floats]:
    """One level: boxes that are cut while it lowers tr(G P), and P with that level measured."""
    # The sum of all cells: a rank-1 update.
    v = P.sum(axis=1)
    P = P - np.outer(v, v) / (1.0 + float(v.sum()))
    level, rank = Partition(shape, P, P @ G @ P), ORDERS[order]
    while monotonic() < deadline and (cuts := level.cuts()):
        if rank is not None:
            cuts = [min(cuts, key=lambda c: rank(c.change, level.boxes[c.box], c.box))]
        for cut in cuts:
            level.split(cut)
    return tuple(level.boxes), level.inverse()


class Cut(NamedTuple):
    """Box number ``box`` cut on ``axis`` before coordinate ``place``; ``change`` of tr(G P) by it."""

    change: float
    box: int
    axis: int
    place: int


class Partition:
    """A level in the making: ``boxes`` in order of age, over P = M^-1 and H = P G P with the level measured.

    Of P and H only the entries of pairs of cells in one box are carried along; the rest stays as it was at the
    start, P0 and H0, with the rank-2 changes beside it: P = P0 + (V K) V^T, H = H0 + V T^T + T V^T.
    A cut then costs O(n cuts + pairs) in place of O(n^2).
    """

    def __init__(self, shape: tuple[int, ...], P: Floats, H: Floats) -> None:
        n = prod(shape)
        self.shape = shape
        self.boxes: list[Box] = [tuple((0, s) for s in shape)]
        self._start = (P, H)
        self._coordinates = np.indices(shape).reshape(len(shape), n)
        self._box = np.zeros(n, dtype=np.int64)
        self._u, self._v = (a.ravel() for a in np.indices((n, n)))
        self._values = [P.ravel().copy(), H.ravel().copy()]
        self._V, self._VK, self._T = (np.zeros((n, 2 * n), order="F") for _ in range(3))
        self._used = 0

    def cuts(self) -> list[Cut]:
        """The best cut of every box that has one which lowers tr(G P). Cost O(pairs) an axis."""
        n = self._box.size
        of_pair = self._box[self._u]
        rows = [np.bincount(self._u, value, minlength=n) for value in self._values]
        scale = np.bincount(self._box, self._values[1][self._u == self._v])
        best: dict[int, Cut] = {}
        for axis, (size, at) in enumerate(zip(self.shape, self._coordinates, strict=True)):
            bins = len(self.boxes) * size
            key_pair = of_pair * size + np.maximum(at[self._u], at[self._v])
            key_cell = self._box * size + at
            sums = []
            for value, row in zip(self._values, rows, strict=True):
                # Both cells before a cut; and one cell before it with any cell of the box.
                left = np.bincount(key_pair, value, minlength=bins).reshape(-1, size).cumsum(axis=1)
                any_left = np.bincount(key_cell, row, minlength=bins).reshape(-1, size).cumsum(axis=1)
                cross = any_left - left
                sums.append((left, cross, left[:, -1:] - left - 2.0 * cross))
            (a, b, c), (alpha, beta, gamma) = sums
            below = a * c - (1.0 - b) ** 2
            inner = np.arange(1, size + 1)[None, :]
            ends = np.array([box[axis] for box in self.boxes])
            # M stays positive definite: 1 - (rank-2 part) has determinant (1 - b)^2 - a c > 0.
            safe = (below < -1e-12) & (inner > ends[:, :1]) & (inner < ends[:, 1:])
            change = -(c * alpha + 2.0 * (1.0 - b) * beta + a * gamma) / np.where(safe, below, 1.0)
            change = np.where(safe, change, np.inf)
            for box in np.flatnonzero(change.min(axis=1) < -1e-10 * scale).tolist():
                place = int(np.argmin(change[box]))
                cut = Cut(float(change[box, place]), box, axis, place + 1)
                if box not in best or cut.change < best[box].change:
                    best[box] = cut
        return list(best.values())

    def split(self, cut: Cut) -> None:
        """Carry the cut out: the half after it is a new box; P and H after M loses U J U^T (Woodbury).

        U has the indicators of the halves as columns, J = [[0, 1], [1, 0]].
        """
        inside = self._box == cut.box
        after = inside & (self._coordinates[cut.axis] >= cut.place)
        halves = (np.flatnonzero(inside & ~after), np.flatnonzero(after))
        P, H = self._start
        V0, VK0, T0 = (M[:, : self._used] for M in (self._V, self._VK, self._T))
        V = np.column_stack([P[h].sum(axis=0) + VK0 @ V0[h].sum(axis=0) for h in halves])
        Z = np.column_stack([H[h].sum(axis=0) + V0 @ T0[h].sum(axis=0) + T0 @ V0[h].sum(axis=0) for h in halves])
        S, UZ = (np.array([M[h].sum(axis=0) for h in halves]) for M in (V, Z))
        K = np.linalg.inv(np.array([[-S[0, 0], 1.0 - S[0, 1]], [1.0 - S[1, 0], -S[1, 1]]]))
        VK = V @ K
        T = Z @ K + 0.5 * VK @ UZ @ K
        for held, new in ((self._V, V), (self._VK, VK), (self._T, T)):
            held[:, self._used : self._used + 2] = new
        self._used += 2
        box = self.boxes[cut.box]
        a, b = box[cut.axis]
        self.boxes[cut.box] = (*box[: cut.axis], (a, cut.place), *box[cut.axis + 1 :])
        self.boxes.append((*box[: cut.axis], (cut.place, b), *box[cut.axis + 1 :]))
        self._box[after] = len(self.boxes) - 1
        kept = self._box[self._u] == self._box[self._v]
        u, v = self._u, self._v = self._u[kept], self._v[kept]
        p, h = (value[kept] for value in self._values)
        for k in (0, 1):
            p += VK[u, k] * V[v, k]
            h += V[u, k] * T[v, k] + T[u, k] * V[v, k]
        self._values = [p, h]

    def inverse(self) -> Floats:
        """P with the level measured (n x n)."""
        return np.asarray(self._start[0] + self._VK[:, : self._used] @ self._V[:, : self._used].T)


def generalised_levels(G: Floats, n_coarse: int, most: int = MOST_LEVELS, deadline: float = np.inf) -> Levels:
    """Workload generalisation (Li and Miklau 2011, section 4.3.2) over n ordered cells.

    First Program 4.1 over ``n_coarse`` merged cells; then, inside every merged cell, Program 4.1 on the
    Gram matrix of its own cells with the first phase counted as measured; the k-th levels of all merged
    cells together are one level. A cell block that stops early repeats its single cells (column
    completion). Cost O(k (m^3 + n^3 / m^2)). Raises DataError for a number of merged cells outside 1..n.
    """
    n = G.shape[0]
    if not 1 <= n_coarse <= n:
        raise DataError(f"strategy: {n_coarse} merged cells do not fit {n} cells")
    edges = np.linspace(0, n, n_coarse + 1).round().astype(int)
    coarse = np.add.reduceat(np.add.reduceat(G, edges[:-1], 0), edges[:-1], 1)
    first = select_levels(coarse, (n_coarse,), most, deadline)
    lifted = [tuple(((int(edges[a]), int(edges[b])),) for ((a, b),) in level) for level in first.boxes]
    fine: list[list[tuple[Box, ...]]] = []
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        base = np.eye(b - a)
        for level in lifted:
            for ((lo, hi),) in level:
                if lo <= a and b <= hi:
                    base += 1.0
        local = select_levels(G[a:b, a:b], (b - a,), most, deadline, base, 1.0 + len(lifted))
        fine.append([tuple(((lo + a, hi + a),) for ((lo, hi),) in level) for level in local.boxes])
    depth = max(len(f) for f in fine)
    joined = []
    for k in range(depth):
        level_boxes: list[Box] = []
        for a, b, own in zip(edges[:-1].tolist(), edges[1:].tolist(), fine, strict=True):
            level_boxes += own[k] if k < len(own) else [((j, j + 1),) for j in range(a, b)]
        joined.append(tuple(level_boxes))
    # The error of every prefix of the second phase, over all cells; the best prefix is kept.
    chosen, errors = list(lifted), []
    M = np.eye(n)
    for level in lifted:
        _measure(M, level)
    best = 0
    for k in range(depth + 1):
        errors.append((1.0 + len(lifted) + k) * float(np.trace(linalg.solve(M, G, assume_a="pos"))))
        best = k if errors[k] < errors[best] else best
        if k < depth:
            _measure(M, joined[k])
    return Levels((n,), tuple(chosen + joined[:best]), tuple(errors[: best + 1]))


def _measure(M: Floats, level: tuple[Box, ...]) -> None:
    for ((a, b),) in level:
        M[a:b, a:b] += 1.0
