"""The least error where one unit has a cell in each of some classes, such as one visit a month, all cells alike.

Cells are a grid of c classes by g corners. A unit adds one corner of each of s <= l classes. Where the Gram matrix is

    G_(ki, lj) = a, b, d or e   as (k = l, i = j), (k = l), (i = j) or neither,

exchanging classes, and corners in all classes at once, changes neither it nor the contributions C, so that an optimal X
is a sum of x_i P_i over the four spaces that such exchanges keep: the whole, contrasts of corners, contrasts of classes
and the rest. Of a unit with N_j classes in corner j, sum_j N_j^2 = r, the squared lengths in them are

    s^2 / (c g),   r / c - s^2 / (c g),   s / g - s^2 / (c g),   and what is left of s,

linear in r, so that all classes in one corner (r = s^2) and classes spread over corners decide. That is the problem of
``dpsql.strategy.gaussian.alike_groups`` with the whole as the one other query. A space that no query sees, such as the
last where classes and corners are counted and no cell is, is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats
from dpsql.strategy.gaussian.alike_groups import Alike, Orbits

_CLOSE = 1e-9


@dataclass(frozen=True, eq=False)
class Grid:
    """A Gram matrix of the grid by its eigenvalues (4,) in the spaces, 0 in one that no query sees.

    ``shares``: their projections, in coordinates of the independent rows R (v x cg) that span what is asked: a metric
    M with R^T M R = sum_i x_i P_i is sum_i x_i shares_i.
    """

    values: Floats
    shares: tuple[Floats, ...]


def grid_of(gram: Floats, rows: Floats, classes: int, corners: int) -> Grid | None:
    """The grid of the Gram matrix rows^T gram rows over cells class by class; None where it is of another form.

    With F = R R^T and A_i = R P_i R^T it is sum_i g_i P_i if gram = sum_i g_i F^-1 A_i F^-1 and the rows span all of
    each space with g_i > 0: then tr(F^-1 A_i) is its dimension. Cost: O(v^2 (cg + v)) for v rows.
    """
    cells = rows.reshape(-1, classes, corners)
    by_corner, by_class, whole = cells.sum(axis=1), cells.sum(axis=2), rows.sum(axis=1)
    middle = np.outer(whole, whole) / (classes * corners)
    held = [middle, by_corner @ by_corner.T / classes - middle, by_class @ by_class.T / corners - middle]
    total = rows @ rows.T
    held.append(total - held[0] - held[1] - held[2])
    inverse = linalg.inv(total)
    ranks = np.array([1, corners - 1, classes - 1, (corners - 1) * (classes - 1)], dtype=np.float64)
    spanned = np.array([float((inverse * A).sum()) for A in held]) / ranks
    values = np.where(spanned > 0.5, [float((gram * A).sum()) for A in held] / ranks, 0.0)
    shares = tuple(inverse @ A @ inverse for A in held)
    model = sum(value * share for value, share in zip(values, shares, strict=True))
    fits = np.abs(gram - model).max() <= _CLOSE * np.abs(gram).max()
    seen = np.abs(spanned - np.where(values > 0, 1.0, 0.0)).max() < _CLOSE
    return Grid(values, shares) if fits and seen and values[0] > 0 else None


def grid_orbits(values: Floats, classes: int, corners: int, most: int, times: int) -> Orbits:
    """C by its orbits: how many classes, all in one corner or spread."""
    s = np.arange(1, min(most, classes) + 1)
    base, more = np.divmod(s, corners)
    spread = more * (base + 1) ** 2 + (corners - more) * base**2
    s, r = np.concatenate([s, s]).astype(np.float64), np.concatenate([s**2, spread]).astype(np.float64)
    whole = s**2 / (classes * corners)
    contrasts = np.array([r / classes - whole, s / corners - whole, s - s / corners - r / classes + whole])
    ranks = np.array([corners - 1, classes - 1, (corners - 1) * (classes - 1)], dtype=np.float64)
    factor = np.array([[np.sqrt(values[0] / (classes * corners))]])
    held = np.maximum(contrasts, 0.0) * times**2
    columns = np.asarray((times * s)[None, :], dtype=np.float64)
    return Orbits(factor, columns, np.asarray(held, dtype=np.float64), ranks * values[1:])


def grid_root(found: Alike, grid: Grid, cells: int) -> Floats:
    """The root C (v x v) of the metric found that is symmetric, so that what is alike is rounded alike."""
    x = [float(found.metric[0, 0]) * cells, *found.contrasts]
    metric = sum(one * share for one, share in zip(x, grid.shares, strict=True))
    s, V = linalg.eigh(metric)
    return np.asarray((V * np.sqrt(np.maximum(s, s[-1] * 1e-14))) @ V.T)
