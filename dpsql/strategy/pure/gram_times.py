"""Z -> Z G faster than by the N^2 entries of a Gram matrix G, where G has one of two structures.

A product workload over axes of sizes d_i has G = G_1 x ... x G_k: a row of Z costs N sum d_i. All ranges, all
prefixes and sums of such have a G whose second differences down a column vanish off the diagonal:
G_(i-1)j - 2 G_ij + G_(i+1)j = 0 for j != i. Then y = G z has the second differences s_i z_i, s_i the diagonal ones, and
two known ends, y_1 = G_1 z and y_N = G_N z: one tridiagonal system, some 10 N a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import numpy as np
from scipy import linalg

from dpsql.arrays import Floats

Times = Callable[[Floats], Floats]

_NEAR = 1e-9  # of the largest entry: structure up to rounding
_SMALL = 64  # cells up to which the plain product is as fast


def gram_times(G: Floats, shape: tuple[int, ...] = ()) -> tuple[Times, float] | None:
    """(Z -> Z G for Z of any number of rows, multiplications a row), None where G shows no such structure.

    ``shape``: axes that G may be a product over. The structure is checked on all entries. Cost O(N^2).
    """
    N = G.shape[0]
    if N <= _SMALL:
        return None
    if len(shape) > 1 and prod(shape) == N:
        axes = _axes(G, shape)
        if axes is not None:
            return _along(axes), float(N * sum(shape))
    bend = G[:-2] - 2.0 * G[1:-1] + G[2:]
    at = np.arange(N - 2)
    s = bend[at, at + 1].copy()
    bend[at, at + 1] = 0.0
    if np.abs(bend).max() <= _NEAR * np.abs(s).max():
        return _tridiagonal(G[0].copy(), G[-1].copy(), s), 20.0 * N
    return None


def _axes(G: Floats, shape: tuple[int, ...]) -> list[Floats] | None:
    """Factors of G over the axes, None where G is no such product."""
    corner = float(G[0, 0])
    if corner <= 0:
        return None
    full = G.reshape(shape + shape)
    k, found = len(shape), []
    for i in range(k):
        index: list[int | slice] = [0] * (2 * k)
        index[i] = index[k + i] = slice(None)
        found.append(np.array(full[tuple(index)]) / (corner if i else 1.0))
    product = reduce(lambda a, b: np.asarray(np.kron(a, b)), found)
    return found if np.abs(product - G).max() <= _NEAR * np.abs(G).max() else None


def _along(axes: list[Floats]) -> Times:
    shape = tuple(a.shape[0] for a in axes)

    def times(Z: Floats) -> Floats:
        out = Z.reshape(-1, *shape)
        for i, axis in enumerate(axes):
            out = np.moveaxis(np.tensordot(out, axis, axes=(i + 1, 0)), -1, i + 1)
        return np.ascontiguousarray(out).reshape(Z.shape)

    return times


def _tridiagonal(first: Floats, last: Floats, s: Floats) -> Times:
    bands = np.vstack([np.full(s.size, -1.0), np.full(s.size, 2.0)])
    factor = linalg.cholesky_banded(bands)

    def times(Z: Floats) -> Floats:
        out = np.empty_like(Z)
        out[:, 0], out[:, -1] = Z @ first, Z @ last
        right = -(Z[:, 1:-1] * s)
        right[:, 0] += out[:, 0]
        right[:, -1] += out[:, -1]
        out[:, 1:-1] = linalg.cho_solve_banded((factor, False), right.T, check_finite=False).T
        return out

    return times
