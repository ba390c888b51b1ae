"""The Level Selection Algorithm: partitions of the cells, added one at a time while they lower the error.

Li and Miklau 2011, Program 4.1. A level starts as the sum of all cells; its boxes are cut in two, each at the
axis and place that lowers the error most, until no cut helps; the level is kept if the error is lower with it.
Every level holds each cell once, so k levels and the identity have squared L2 (and L1) sensitivity k + 1.

Cutting box q = q1 + q2 changes M = A^T A by -(q1 q2^T + q2 q1^T), of rank 2. With P = M^-1, H = P G P,
a = q1' P q1, b = q1' P q2, c = q2' P q2 and alpha, beta, gamma the same for H, Woodbury's identity gives the
change of tr(G P) as -(c alpha + 2 (1 - b) beta + a gamma) / (a c - (1 - b)^2)  (our form of their App. D.2).
All cuts of a box need only sums of P and H over slices of it: O(|q|^2) a box instead of O(n^3), and the update
of P and H after a cut is O(n^2), so a level costs O(n^3) where the paper states O(n^4).

Equal boxes of several levels are one row with a larger weight (Thm 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from dpsql.errors import DataError

Floats = NDArray[np.float64]
Box = tuple[tuple[int, int], ...]

MOST_LEVELS = 40


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
) -> Levels:
    """Program 4.1 for the Gram matrix G (n x n) over cells of the given shape.

    ``most``: the bound on the number of levels. ``base`` (n x n) and ``sensitivity`` (squared): what is measured
    already, the identity by default. Stops early at ``deadline`` (monotonic seconds). Raises DataError
    where the shape does not hold n cells.
    """
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
        boxes, trial = _grow(G, P, sizes, deadline)
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


def _grow(G: Floats, P: Floats, shape: tuple[int, ...], deadline: float) -> tuple[tuple[Box, ...], Floats]:
    """One level: boxes that are cut while it lowers tr(G P), and P with that level measured."""
    n = P.shape[0]
    whole: Box = tuple((0, s) for s in shape)
    # The sum of all cells: a rank-1 update.
    v = P.sum(axis=1)
    P = P - np.outer(v, v) / (1.0 + float(v.sum()))
    H = P @ G @ P
    # The largest box first (the paper leaves the order open); ties in order of appearance.
    waiting: list[tuple[int, int, Box]] = [(-n, 0, whole)]
    done: list[Box] = []
    seen = 0
    while waiting:
        _, _, box = heappop(waiting)
        cut = best_cut(P, H, shape, box) if monotonic() < deadline else None
        if cut is None:
            done.append(box)
            continue
        axis, place = cut
        a, b = box[axis]
        first = (*box[:axis], (a, place), *box[axis + 1 :])
        second = (*box[:axis], (place, b), *box[axis + 1 :])
        U = np.zeros((n, 2))
        U[box_cells(shape, first), 0] = 1.0
        U[box_cells(shape, second), 1] = 1.0
        P, H = _updated(P, H, U)
        for part in (first, second):
            seen += 1
            heappush(waiting, (-prod(b - a for a, b in part), seen, part))
    return tuple(done), P


def _updated(P: Floats, H: Floats, U: Floats) -> tuple[Floats, Floats]:
    """P and H = P G P after M loses U J U^T, J = [[0, 1], [1, 0]] (Woodbury)."""
    V, Z = P @ U, H @ U
    S = U.T @ V
    K = np.linalg.inv(np.array([[-S[0, 0], 1.0 - S[0, 1]], [1.0 - S[1, 0], -S[1, 1]]]))
    VK = V @ K
    half = Z @ K + 0.5 * VK @ (U.T @ Z) @ K
    right = V @ half.T
    return P + VK @ V.T, H + right + right.T


def best_cut(P: Floats, H: Floats, shape: Sequence[int], box: Box) -> tuple[int, int] | None:
    """(axis, place) of the cut of ``box`` that lowers tr(G P) most; None where none does."""
    cells = box_cells(shape, box)
    if cells.size == 1:
        return None
    if len(shape) == 1:
        part = slice(*box[0])
        own_P, own_H = P[part, part], H[part, part]
    else:
        own_P, own_H = P[np.ix_(cells, cells)], H[np.ix_(cells, cells)]
    sizes = [b - a for a, b in box]
    k = len(sizes)
    best: tuple[float, int, int] | None = None
    scale = float(np.trace(own_H))
    for axis in range(k):
        if sizes[axis] == 1:
            continue
        others = tuple(i for i in range(2 * k) if i % k != axis)
        sums = []
        for own in (own_P, own_H):
            slices = own if k == 1 else own.reshape(*sizes, *sizes).sum(axis=others)
            corner = np.cumsum(np.cumsum(slices, axis=0), axis=1)
            left = np.diag(corner)[:-1]
            cross = corner[:-1, -1] - left
            sums.append((left, cross, corner[-1, -1] - left - 2.0 * cross))
        (a, b, c), (alpha, beta, gamma) = sums
        below = a * c - (1.0 - b) ** 2
        # M stays positive definite: 1 - (rank-2 part) has determinant (1 - b)^2 - a c > 0.
        safe = below < -1e-12
        change = np.where(safe, -(c * alpha + 2.0 * (1.0 - b) * beta + a * gamma) / np.where(safe, below, 1.0), np.inf)
        at = int(np.argmin(change))
        if change[at] < -1e-10 * scale and (best is None or change[at] < best[0]):
            best = (float(change[at]), axis, box[axis][0] + at + 1)
    return None if best is None else best[1:]


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
