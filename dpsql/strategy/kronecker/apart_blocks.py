"""Blocks over the regions that rows of a unit have together, where a bound keeps these rows in different regions.

Of g classes of h regions some by lot, rows in one region of each, alike on the other axes, R in all with the sum Q of
their squared numbers: the mean of c c^T on that axis, a product with the weights of the other axes, has Q / (g h) on
its diagonal, nothing elsewhere inside a class and (R^2 - Q) / (g (g - 1) h^2) between classes. Its root takes the place
of the axis' own weights in a lower bound (``dpsql.strategy.kronecker.structured_bound``): rows of W are multiplied by
it. Times what is constant it is R.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.arrays import Floats
from dpsql.linalg.blocks import RowBlock
from dpsql.workload.compile.rows_apart import RowsApart

_MOST = 256  # regions of the axis


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
