"""The least error where one unit has a cell in each of some classes, such as one visit a month, all cells alike.

Cells are a grid of c classes by g corners. A unit adds one corner of each of s <= l classes. Where the Gram matrix is

    G_(ki, lj) = a, b, d or e   as (k = l, i = j), (k = l), (i = j) or neither,

exchanging classes, and corners in all classes at once, changes neither it nor the contributions C, so that an optimal X
is a sum of x_i P_i over the four spaces that such exchanges keep: the whole, contrasts of corners, contrasts of classes
and the rest. Of a unit with N_j classes in corner j, sum_j N_j^2 = r, the squared lengths in them are

    s^2 / (c g),   r / c - s^2 / (c g),   s / g - s^2 / (c g),   and what is left of s,

linear in r, so that all classes in one corner (r = s^2) and classes spread over corners decide. That is the problem of
``dpsql.strategy.gaussian.alike_groups`` with the whole as the one other query.
"""

from __future__ import annotations

import numpy as np

from dpsql.arrays import Floats
from dpsql.strategy.gaussian.alike_groups import Alike, Orbits

_CLOSE = 1e-9


def grid_values(gram: Floats, classes: int, corners: int) -> Floats | None:
    """The eigenvalues (4,) of ``gram`` (cg x cg) in the spaces of the module, None where it is of another form."""
    G = gram.reshape(classes, corners, classes, corners)
    a, b, d, e = (float(block) for block in (G[0, 0, 0, 0], G[0, 0, 0, 1], G[0, 0, 1, 0], G[0, 0, 1, 1]))
    within, between = b + (a - b) * np.eye(corners), e + (d - e) * np.eye(corners)
    model = np.broadcast_to(between[None, :, None, :], G.shape).copy()
    for k in range(classes):
        model[k, :, k, :] = within
    scale = float(np.abs(gram).max())
    if np.abs(G - model).max() > _CLOSE * scale:
        return None
    inside, across = a - b, d - e
    row, cross = inside + corners * b, across + corners * e
    values = np.array([row + (classes - 1) * cross, inside + (classes - 1) * across, row - cross, inside - across])
    return values if values.min() > _CLOSE * scale else None


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


def grid_root(found: Alike, classes: int, corners: int) -> Floats:
    """A (cg x cg) with A^T A the metric found."""
    x = np.sqrt(np.array([float(found.metric[0, 0]) * classes * corners, *found.contrasts]))
    J, K = np.full((corners, corners), 1.0 / corners), np.full((classes, classes), 1.0 / classes)
    I, L = np.eye(corners) - J, np.eye(classes) - K  # noqa: E741 - the identity without its mean
    return np.asarray(x[0] * np.kron(K, J) + x[1] * np.kron(K, I) + x[2] * np.kron(L, J) + x[3] * np.kron(L, I))
