"""Weights of residuals where a bound keeps the rows of a unit in different regions of one axis, and the least error.

``dpsql.workloads.compile.rows_apart`` bounds the squared sensitivity of squared multipliers w by the largest over s of
Q a + R^2 b, with a linear in w and b = sum_U N_U max(b_U, 0), b_U = w_U - g w_mU; that of the count of all rows is
taken with its sign. With multipliers lambda on s, x = sum lambda Q and y = sum lambda R^2, sum e / w plus the mean of
the bound is least pair by pair: at w_U = (e_U / y N_U)^1/2 and w_mU = (e_mU / (x H - y g) N_U)^1/2, or, where b_U would
be below 0, at w_U = g w_mU = g ((e_mU + e_U / g) / x H N_U)^1/2. The bound is largest at one s or two neighbours, so
that lambda is one number, the mean of s, which is searched.

A lower bound for marginals. All regions of an axis can be exchanged, so that the mean of c c^T over them is a multiple
of a projection on each residual, or, for classes of h regions, on its part inside classes and that between them. Units
have rows in s classes, alike on the other axes, or each class by itself there: with P_T the squared length of what they
leave of a residual, the least error is at least (sum_T (e_T sum lambda P_T)^1/2)^2 for any weights lambda of them.

A lower bound for any blocks. Of g classes of h regions some by lot, rows in one region of each, alike on the other
axes, R in all with the sum Q of their squared numbers: the mean of c c^T on that axis, a product with the weights of
the other axes, has Q / (g h) on its diagonal, nothing elsewhere inside a class and (R^2 - Q) / (g (g - 1) h^2)
between classes. Its root takes the place of the axis' own weights in ``dpsql.strategies.kronecker.structured_bound``:
rows of W are multiplied by it. Times what is constant it is R.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.linalg.blocks import Centre, Residual, RowBlock
from dpsql.workloads.compile.rows_apart import Reach, RowsApart

_SIZES = 24  # numbers of rows that are looked at before the best is searched between them
_STEPS = 400  # of the search for the weights of units
_SMALL = 1e-9


class ApartWeights:
    """The squared multipliers of least error for one table, ``errors`` e_T of its residuals."""

    def __init__(self, reach: Reach, errors: Floats) -> None:
        self.errors, self.most = errors, reach.apart.most
        self.linear, self.level, self.norm = (
            np.array(held, dtype=np.float64) for held in (reach.linear, reach.level, reach.norm)
        )
        self.key, self.total = np.array(reach.key, dtype=np.int64), reach.total
        self.sums = np.zeros((len(reach.sums), self.most))
        self.summed = np.array(list(reach.sums), dtype=np.int64)
        for row, held in zip(self.sums, reach.sums.values(), strict=True):
            row[:] = held
        self.R, self.Q = np.array(reach.apart.rows, dtype=np.float64).T
        count = int(self.key.max(initial=-1)) + 1
        self.without, self.within = np.full(count, -1), np.full(count, -1)
        places = np.arange(self.key.size)
        self.without[self.key[self.level == 1]] = places[self.level == 1]
        self.within[self.key[self.level != 1]] = places[self.level != 1]
        self.length = np.zeros(count)
        self.length[self.key] = self.norm

    def best(self) -> tuple[float, Floats, float]:
        """(error at sensitivity 1, squared multipliers of that sensitivity, the mean number of rows they are for)."""
        tried = np.unique(np.linspace(1, self.most, min(self.most, _SIZES)).round())
        values = [self._at(float(mean))[0] for mean in tried]
        at = int(np.argmin(values))
        low, high = tried[max(0, at - 1)], tried[min(len(tried) - 1, at + 1)]
        means = [float(tried[at])]
        if low < high:
            found = scipy.optimize.minimize_scalar(
                lambda mean: self._at(float(mean))[0], bounds=(low, high), method="bounded", options={"xatol": 1e-4}
            )
            means.append(float(found.x))
        error, squares, mean = min(((*self._at(mean), mean) for mean in means), key=lambda one: one[0])
        return error, squares, mean

    def _at(self, mean: float) -> tuple[float, Floats]:
        """The error of the best weights for multipliers on the two numbers of rows around ``mean``, and these."""
        low = max(0, min(int(mean) - 1, self.most - 2))
        part, high = mean - 1 - low, min(low + 1, self.most - 1)
        x, y = ((1 - part) * held[low] + part * held[high] for held in (self.Q, self.R**2))
        rises = self.linear * x
        if self.summed.size:
            rises[self.summed] += (1 - part) * self.sums[:, low] + part * self.sums[:, high]
        squares = np.empty(self.errors.size)
        for held in (self.without, self.within):
            only = held[(held >= 0) & ((self.without < 0) | (self.within < 0))]
            cost = rises[only] + y * self.norm[only] * np.where(
                self.level[only] == 1, 1.0, np.where(self.key[only] == self.total, self.level[only], 0.0)
            )
            squares[only] = self._root(only, cost, rises[only])
        pairs = np.flatnonzero((self.without >= 0) & (self.within >= 0))
        flat, steep, g = self.without[pairs], self.within[pairs], -self.level[self.within[pairs]]
        cost = y * self.length[pairs]
        squares[flat] = self._root(flat, cost, cost)
        squares[steep] = self._root(steep, rises[steep] - g * cost, rises[steep])
        pinned = (squares[flat] < g * squares[steep]) & (pairs != self.total)
        flat, steep, g = flat[pinned], steep[pinned], g[pinned]
        squares[steep] = np.sqrt((self.errors[steep] + self.errors[flat] / g) / rises[steep])
        squares[flat] = g * squares[steep]
        reached = self.reached(squares)
        return float((self.errors / squares).sum()) * reached, squares / reached

    def _root(self, places: np.ndarray, cost: Floats, scale: Floats) -> Floats:
        """(e / cost)^1/2, a cost of nearly nothing or less held up."""
        return np.asarray(np.sqrt(self.errors[places] / np.maximum(cost, _SMALL * np.maximum(scale, 1e-300))))

    def reached(self, squares: Floats) -> float:
        """The bound of the squared sensitivity."""
        held = np.bincount(self.key, squares * self.level, self.length.size)
        signed = np.arange(held.size) == self.total
        flat = float(self.length @ np.where(signed, held, np.maximum(held, 0.0)))
        found = self.Q * float(squares @ self.linear) + self.R**2 * flat
        if self.summed.size:
            found = found + squares[self.summed] @ self.sums
        return float(found.max())


def least_apart(residuals: Sequence[Residual], errors: Floats, reach: Reach, mean: float) -> tuple[float, float] | None:
    """The root of a lower bound for a table of marginals, and at most how much of it the count of all rows has.

    ``mean``: the number of rows that the weights found are for. None where classes or what is measured are not alike.
    """
    apart = reach.apart
    if not apart.free or any(type(part) is not Centre for r in residuals for part in r.integers):
        return None
    d = float(apart.label.size)
    h = d / apart.classes
    reads = np.array([apart.axis in r.axes for r in residuals])
    alone = np.array([all(axis == apart.axis for axis in r.axes) for r in residuals])
    norm = np.array(reach.norm, dtype=np.float64)
    near = {int(np.clip(round(mean) + step, 1, apart.most)) for step in range(-3, 4)} | {apart.most}
    parts, counts = [], []  # of the residuals: what does not read the axis or is between classes, and inside them
    for R, Q in (apart.rows[s - 1] for s in sorted(near)):
        for alike in (True, False):
            together = alone | alike
            flat = norm * np.where(together, R * R, Q)
            between = norm * np.where(together, Q * d * d / h - R * R * d, Q * (d * d / h - d))
            inside = norm * Q * d * d * (1 - 1 / h)
            parts.append(np.concatenate([np.where(reads, between, flat), np.where(reads, inside, 0.0)]))
            counts.append(R)
    share = (d / h - 1) / max(d - 1, 1)  # of one region there is nothing to share
    weight = np.sqrt(np.concatenate([errors * np.where(reads, share, 1.0), errors * np.where(reads, 1 - share, 0.0)]))
    P = np.maximum(np.array(parts), 0.0)
    lam = np.full(len(P), 1.0 / len(P))
    best, kept = 0.0, lam
    for _ in range(_STEPS):
        held = np.sqrt(lam @ P)
        t = float(weight @ held)
        if t > best:
            best, kept = t, lam
        moved = P @ np.divide(weight, held, out=np.zeros_like(held), where=held > 0)
        lam = lam * (moved / t) ** 2
        lam = lam / lam.sum()
    first = np.flatnonzero(alone & ~reads)
    mean_rows = float(kept @ np.array(counts))
    return best, float(weight[first] @ np.sqrt(norm[first])) * mean_rows if first.size else 0.0


_MOST = 256  # regions of the axis


def alone_apart(apart: RowsApart, counted: NDArray[np.bool_]) -> float | None:
    """By what the norm of single rows is multiplied, at least, for rows of a unit in very many classes of one region.

    The matrix of the module is at least its part on the diagonal, less what is beside it. None where the ``counted``
    regions (d,) are few or share classes, or single rows do as much.
    """
    label = apart.label[counted]
    g = label.size
    if g <= _MOST or label.min() < 0 or np.unique(label).size < g or apart.each > apart.least:
        return None
    squares = [Q - (R * R - Q) / (g - 1) for R, Q in apart.rows if R * apart.each == Q]
    best = max(squares, default=0.0)
    return float(best**0.5) if best > apart.each**2 else None


def blocks_apart(
    blocks: Sequence[RowBlock], apart: RowsApart, counted: NDArray[np.bool_], sizes: Sequence[int]
) -> Iterator[list[RowBlock]]:
    """The blocks of a table for some numbers of rows; none where the ``counted`` regions (d,) are in unlike classes."""
    label = apart.label[counted]
    each = np.unique(label, return_counts=True)[1]
    if not label.size or each.min() < each.max() or label.min() < 0 or apart.each > apart.least or label.size > _MOST:
        return
    g, h = each.size, int(each[0])
    offered = [number for number in apart.rows[:g] if number[0] < g * apart.each or h > 1]
    for R, Q in sorted({*offered[-1:], *offered[: -(-3 * g // 4)][-1:]}):
        if g > 1 and apart.each < R:
            M = np.where(label[:, None] == label[None, :], 0.0, (R * R - Q) / (g * (g - 1) * h * h))
            np.fill_diagonal(M, Q / (g * h))
            values, vectors = np.linalg.eigh(M)
            root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * sqrt(g * h)
            yield [_turned(block, apart.axis, counted, root, sizes) for block in blocks]


def _turned(block: RowBlock, axis: int, counted: NDArray[np.bool_], root: Floats, sizes: Sequence[int]) -> RowBlock:
    """A block whose rows are multiplied by ``root`` along the counted regions of an axis, equally weighed."""
    if axis not in block.axes:
        return replace(block, coefficient=block.coefficient * float(root[0].sum()))
    factors = []
    for factor in block.factors:
        if axis in factor.axes:
            shape = [sizes[i] for i in factor.axes]
            held = np.moveaxis(factor.matrix.toarray().reshape(-1, *shape), 1 + factor.axes.index(axis), -1)
            moved = np.zeros_like(held, dtype=np.float64)
            moved[..., counted] = held[..., counted] @ root
            moved = np.moveaxis(moved, -1, 1 + factor.axes.index(axis)).reshape(factor.matrix.shape)
            factor = replace(factor, matrix=sparse.csr_array(moved))
        factors.append(factor)
    return replace(block, factors=tuple(factors))
