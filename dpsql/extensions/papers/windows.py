"""The supreme singular value bound of range workloads over projections onto ranges (Li and Miklau 2013, Ex. 4.9)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index

import numpy as np
from scipy import linalg

from dpsql.common.arguments import sizes, taking, whole
from dpsql.errors import DataError


@taking(n=whole(), first=whole(), last=whole())
def range_window_bound(n: int, first: int, last: int) -> float:
    """The singular value bound of all ranges over n cells, projected on the cells first..last (from 0).

    G = (n + 1) L^-1 with L = tridiag(-1, 2, -1). The inverse of its block on a window of k cells is the Schur
    complement of L: still tridiagonal, only its two corners fall, by a / (a + 1) with a the number of
    cells cut off on that side (the last entry of tridiag_a^-1). Our derivation. Eigenvalues in O(k^2).
    Raises DataError for a window outside 0..n-1.
    """
    n, first, last = index(n), index(first), index(last)
    if not 0 <= first <= last < n:
        raise DataError(f"bounds: a window must lie between the cells 0 and {n - 1}")
    before, after, k = first, n - 1 - last, last - first + 1
    diagonal = np.full(k, 2.0)
    diagonal[0] -= before / (before + 1.0)
    diagonal[-1] -= after / (after + 1.0)
    s = linalg.eigvalsh_tridiagonal(diagonal, -np.ones(k - 1)) if k > 1 else diagonal
    return float(np.sqrt((n + 1.0) / s).sum() ** 2 / k)


@taking(shape=sizes())
def supreme_range_bound(shape: int | Sequence[int]) -> float:
    """A lower bound of the least error of ``all_range(shape)``: the best over centred boxes.

    The bound of a box is the product of those of its sides, so each axis is searched apart: windows that leave out
    a cells on either side, a growing while the bound does. Cost O(n^2) a window. The paper takes all boxes; any
    box is valid. Raises DataError for an empty shape or sizes below 1.
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not sizes or any(index(n) < 1 for n in sizes):
        raise DataError("bounds: a shape needs sizes of at least 1, one an axis")
    return prod(_best_window(index(n)) for n in sizes)


def _best_window(n: int) -> float:
    best = range_window_bound(n, 0, n - 1)
    for a in range(1, (n + 1) // 2):
        found = range_window_bound(n, a, n - 1 - a)
        if found <= best:
            break
        best = found
    return best
