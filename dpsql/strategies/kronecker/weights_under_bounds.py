"""Weights of residuals where a bound keeps the rows of a unit in different regions of one axis, and the least error.

``dpsql.workloads.compile.rows_in_classes`` bounds the squared sensitivity of squared multipliers w by the largest
over s of
Q a + R^2 b, with a linear in w and b = sum_U N_U max(b_U, 0), b_U = w_U - g w_mU; that of the count of all rows is
taken with its sign. For each s and each set of U whose b_U count that is linear in w, so that the least sum e / w under
the bound is a problem of lines (``dpsql.strategies.core.symmetric``), whose orbits are generated: those of the sets of
U whose b_U is above 0 at the present w.

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
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Flags, Floats
from dpsql.common.numerics import NEAR
from dpsql.linalg.blocks import Centre, Residual, RowBlock
from dpsql.strategies.core.limits import ADDED
from dpsql.strategies.core.symmetric import Lines, solve
from dpsql.workloads.compile.rows_in_classes import ClassBound, Reach


class ApartWeights:
    """The squared multipliers of least error for one table, ``errors`` e_T of its residuals."""

    def __init__(self, reach: Reach, errors: Floats) -> None:
        self.errors, self.most = errors, reach.bound.most
        self.linear, self.level, self.norm = (
            np.array(held, dtype=np.float64) for held in (reach.linear, reach.level, reach.norm)
        )
        self.key, self.total = np.array(reach.key, dtype=np.int64), reach.total
        self.summed = np.array(list(reach.sums), dtype=np.int64)
        self.sums = np.array(list(reach.sums.values()), dtype=np.float64).reshape(-1, self.most)
        self.R, self.Q = np.array(reach.bound.rows, dtype=np.float64).T
        self.length = np.zeros(int(self.key.max(initial=-1)) + 1)
        self.length[self.key] = self.norm

    def best(self) -> tuple[float, Floats, float]:
        """(error at sensitivity 1, squared multipliers of that sensitivity, the mean number of rows they are for)."""
        sizes = np.unique(np.linspace(0, self.most - 1, min(self.most, ADDED)).round().astype(np.int64)).tolist()
        every, total = np.ones(self.length.size, dtype=bool), np.arange(self.length.size) == self.total
        listed = {(s, counted.tobytes()): self._orbit(s, counted) for s in sizes for counted in (every, total)}

        def worst(metrics: tuple[Floats, ...]) -> list[Floats] | None:
            before, (counted, values) = len(listed), self._by_size(metrics[0])
            for s in np.argsort(-values, kind="stable")[:ADDED].tolist():
                if values[s] > 1.0 + NEAR:
                    listed.setdefault((s, counted.tobytes()), self._orbit(s, counted))
            new = list(listed.values())[before:]
            return [np.array(new)] if new else None

        lines = Lines(np.ones(self.errors.size), np.sqrt(self.errors), np.array(list(listed.values())))
        found = solve([lines], NEAR, worst=worst)
        squares = found.metrics[0] / self.reached(found.metrics[0])
        mean = sum(share * (s + 1) for share, (s, _) in zip(found.weights.tolist(), listed, strict=False))
        return float((self.errors / squares).sum()), squares, mean

    def _orbit(self, s: int, counted: Flags) -> Floats:
        """What a unit with rows in s + 1 regions moves of each residual, with the b_U that are ``counted``."""
        moved = self.Q[s] * self.linear + self.R[s] ** 2 * self.norm * self.level * counted[self.key]
        moved[self.summed] += self.sums[:, s]
        return np.asarray(np.maximum(moved, 0.0))

    def _by_size(self, squares: Floats) -> tuple[Flags, Floats]:
        """(which b_U count, the bound of the squared sensitivity for rows in 1, 2, ... regions)."""
        held = np.bincount(self.key, squares * self.level, self.length.size)
        counted = (held > 0) | (np.arange(held.size) == self.total)
        flat = float(self.length @ (held * counted))
        return counted, self.Q * float(squares @ self.linear) + self.R**2 * flat + squares[self.summed] @ self.sums

    def reached(self, squares: Floats) -> float:
        """The bound of the squared sensitivity."""
        return float(self._by_size(squares)[1].max())


def table_bound(residuals: Sequence[Residual], errors: Floats, reach: Reach, mean: float) -> tuple[float, float] | None:
    """The root of a lower bound for a table of marginals, and at most how much of it the count of all rows has.

    ``mean``: the number of rows that the weights found are for. None where classes or what is measured are not alike.
    """
    apart = reach.bound
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
    found = solve([Lines(np.ones(weight.size), weight, np.maximum(np.array(parts), 0.0))], NEAR)
    first = np.flatnonzero(alone & ~reads)
    mean_rows = float(found.weights @ np.array(counts))
    return found.lower**0.5, float(weight[first] @ np.sqrt(norm[first])) * mean_rows if first.size else 0.0


_MOST = 256  # regions of the axis


def single_row_factor(bound: ClassBound, counted: NDArray[np.bool_]) -> float | None:
    """By what the norm of single rows is multiplied, at least, for rows of a unit in very many classes of one region.

    The matrix of the module is at least its part on the diagonal, less what is beside it. None where the ``counted``
    regions (d,) are few or share classes, or single rows do as much.
    """
    label = bound.label[counted]
    g = label.size
    if g <= _MOST or label.min() < 0 or np.unique(label).size < g or bound.each > bound.least:
        return None
    squares = [Q - (R * R - Q) / (g - 1) for R, Q in bound.rows if R * bound.each == Q]
    best = max(squares, default=0.0)
    return float(best**0.5) if best > bound.each**2 else None


def turned_blocks(
    blocks: Sequence[RowBlock], bound: ClassBound, counted: NDArray[np.bool_], sizes: Sequence[int]
) -> Iterator[list[RowBlock]]:
    """The blocks of a table for some numbers of rows; none where the ``counted`` regions (d,) are in unlike classes."""
    label = bound.label[counted]
    each = np.unique(label, return_counts=True)[1]
    if not label.size or each.min() < each.max() or label.min() < 0 or bound.each > bound.least or label.size > _MOST:
        return
    g, h = each.size, int(each[0])
    offered = [number for number in bound.rows[:g] if number[0] < g * bound.each or h > 1]
    for R, Q in sorted({*offered[-1:], *offered[: -(-3 * g // 4)][-1:]}):
        if g > 1 and bound.each < R:
            M = np.where(label[:, None] == label[None, :], 0.0, (R * R - Q) / (g * (g - 1) * h * h))
            np.fill_diagonal(M, Q / (g * h))
            values, vectors = np.linalg.eigh(M)
            root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * sqrt(g * h)
            yield [_turned(block, bound.axis, counted, root, sizes) for block in blocks]


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
