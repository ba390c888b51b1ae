"""Columns of a product of axes, written as sums of few parts: Y = T E.

Queries that concern the same attributes tell few cells apart; a cell of the product is one class
for each such set of rows. With E (u x N) holding one 1 a group and column, K = (R T) (E Lambda E^T) (R T)^T
needs only the pairwise marginals of lambda, and q_j is a sum of G^2 entries of an u x u matrix:
a step over all N columns costs O(r^3 + r u^2 + G^2 N) instead of O(r^2 N).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats, Ints, Matrix, Sparse
from dpsql.common.numerics import SEED
from dpsql.linalg.columns import columns_at, distinct_columns
from dpsql.linalg.inner import Inner
from dpsql.strategies.core.limits import PAIRED_ROWS

_SAMPLE = 3000
_GROUPS_CAP = 8
_GROWTH = 3  # an interval adds two breakpoints to the axis that it shares, a value of a key one
_COUNTED = 2**16  # values up to which they are counted, not sorted


@dataclass(frozen=True, eq=False)
class Axes:
    """``table`` T (v x u); ``codes`` (G, N): the class of each column in each group; ``starts`` (G + 1,)."""

    table: Floats
    codes: Ints
    starts: Ints


def group_rows(matrix: Sparse) -> list[list[int]] | None:
    """Groups of rows (v x N integer csr) that share an axis, or None where there is no short list of them.

    A row joins the group whose number of classes it raises least, if by at most three, on a
    fixed sample of columns; rows are taken in their order, since neighbours mostly belong together.
    """
    v, N = matrix.shape
    if v > PAIRED_ROWS:
        return None
    sample = np.random.default_rng(SEED).choice(N, size=min(N, _SAMPLE), replace=False)
    seen = matrix[:, np.sort(sample)].toarray()
    groups: list[list[int]] = []
    labels: list[Ints] = []
    for i in range(v):
        value = _classes(seen[i])
        width = int(value.max()) + 1
        options = []
        for g, label in enumerate(labels):
            joint = _classes(label * width + value)
            options.append((int(joint.max()) - int(label.max()), g, joint))
        best = min(options, key=lambda o: o[0], default=None)
        if best is not None and best[0] <= _GROWTH:
            groups[best[1]].append(i)
            labels[best[1]] = best[2]
        elif len(groups) == _GROUPS_CAP:
            return None
        else:
            groups.append([i])
            labels.append(value)
    return groups


def _classes(values: Ints) -> Ints:
    """The rank of each of the ``values`` among the distinct ones."""
    low, high = int(values.min()), int(values.max())
    if high - low > _COUNTED:
        return np.asarray(np.unique(values, return_inverse=True)[1])
    there = np.zeros(high - low + 1, dtype=np.int64)
    there[values - low] = 1
    return np.asarray((np.cumsum(there) - 1)[values - low])


def find_axes(columns: Sparse) -> Axes | None:
    """Write the columns (v x N, integer csc) as T E, exactly, or None where no short way is found."""
    Y = sparse.csr_array(columns)
    v = Y.shape[0]
    groups = group_rows(Y)
    if groups is None or len(groups) == 1:
        return None
    tables, codes, starts = [], [], [0]
    for rows in groups:
        part = sparse.csr_array(Y[rows])
        found = distinct_columns(part)
        # Columns of zeros in this group form a class without a part of its own: one zero column.
        table = np.zeros((v, found.keep.size + 1))
        table[rows, :-1] = columns_at(part, found.keep).toarray()
        codes.append(np.where(found.label < 0, found.keep.size, found.label))
        tables.append(table)
        starts.append(starts[-1] + table.shape[1])
    if starts[-1] > max(6 * v, 600):
        return None
    return Axes(np.hstack(tables), np.stack(codes), np.array(starts))


class Written(Inner):
    """Y^T for columns Y = T E that are never written out: what the iterations need, under weights of the columns."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._flat = flat_codes(axes)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self._axes.codes.shape[1]), int(self._axes.table.shape[0])

    def matrix(self) -> Floats:
        classes = self._axes.starts[:-1, None] + self._axes.codes
        return np.asarray(self._axes.table.T[classes].sum(axis=0))

    def gram(self, weights: Floats | None = None) -> Floats:
        """Y diag(weights) Y^T (v x v), from the pairwise marginals of the weights."""
        starts, lam = self._axes.starts, weights
        u = int(starts[-1])
        L = np.zeros((u, u))
        for (g, h), place in self._flat.items():
            size = (starts[g + 1] - starts[g], starts[h + 1] - starts[h])
            block = np.bincount(place, weights=lam, minlength=size[0] * size[1]).reshape(size)
            L[starts[g] : starts[g + 1], starts[h] : starts[h + 1]] = block
            if g != h:
                L[starts[h] : starts[h + 1], starts[g] : starts[g + 1]] = block.T
        return np.asarray(self._axes.table @ L @ self._axes.table.T)

    def variances(self, root: Matrix | None = None) -> Floats:
        """||root^T y_j||^2 of every column (N,)."""
        starts, table = self._axes.starts, self._axes.table
        moved = table if root is None else root.T @ table
        H = moved.T @ moved
        q = np.zeros(self.shape[0])
        for (g, h), place in self._flat.items():
            part = H[starts[g] : starts[g + 1], starts[h] : starts[h + 1]].ravel()
            q += (1.0 if g == h else 2.0) * part[place]
        return q


def flat_codes(axes: Axes) -> dict[tuple[int, int], Ints]:
    """For each pair of groups the place of every column in their table of class pairs."""
    G = axes.codes.shape[0]
    widths = np.diff(axes.starts)
    return {(g, h): axes.codes[g] * widths[h] + axes.codes[h] for g in range(G) for h in range(g, G)}
