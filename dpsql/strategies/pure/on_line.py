"""Queries that are ranges of ordered cells: products with their Gram matrix, and starts for weighted sums of cells.

The Gram matrix of weighted ranges is G = T M T^T, T lower triangular of ones, whose mixed differences M have at most
four entries a range: Z -> Z G is two running sums and a sparse product.

Hats, the functions max(0, 1 - |x - c| / s) at centres c a spacing s apart, each overlapping the next, are near what
p-identity (``dpsql.strategies.pure.p_identity``) makes of ranges at last, at two scales where ranges are long: 1,000
random ranges of 1,083 cells come to 1.05 times its least error by hats alone, to 1.7 times by sums of blocks. What is
zero far from a centre may stay so: it is a tenth of the numbers to be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Csr, Floats
from dpsql.common.numerics import ROUNDING

FROM = 640
"""Cells from which hats are the better starts; below, searches from several others take little time."""
_SPARSE = 32  # one entry of M in so many may be other than 0
_SPACINGS, _COARSER = (8, 12, 16, 24), (1, 8, 12, 16)
_FINE = 2048  # cells up to which spacings are these
_BEYOND = 1.5  # spacings from a centre to where a hat may grow


class Hats(NamedTuple):
    """``Theta`` (p x N), and which of its numbers may be other than 0."""

    Theta: Floats
    free: NDArray[np.bool_]


def mixed_differences(G: Floats) -> Csr | None:
    """M (N x N) with G = T M T^T, None where too many of its entries are not 0. Cost O(N^2)."""
    M = np.diff(np.diff(G, axis=0, prepend=0.0), axis=1, prepend=0.0)
    few = np.abs(M) > ROUNDING * float(np.abs(G).max())
    if np.count_nonzero(few) * _SPARSE > M.size:
        return None
    return sparse.csr_array(np.where(few, M, 0.0))


def times(M: Csr, Z: Floats) -> Floats:
    """Z T M T^T."""
    sums = np.cumsum(Z[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(np.cumsum((M @ sums.T).T, axis=1))


def starts(N: int) -> Iterator[Hats]:
    """Hats at one scale and at two, for every spacing that is tried."""
    unit = -(-N // _FINE)
    for fine in _SPACINGS:
        for coarser in _COARSER:
            spacings = [unit * fine] if coarser == 1 else [unit * fine, unit * fine * coarser]
            if 2 * spacings[-1] <= N:
                yield hats(N, spacings)


def hats(N: int, spacings: Sequence[float]) -> Hats:
    """Hats over N cells at each of the spacings, which are stretched so that their number is whole."""
    counts = [max(1, round(N / spacing)) for spacing in spacings]
    away = [
        np.abs(np.arange(N) + 0.5 - (np.arange(count) + 0.5)[:, None] * (N / count)) / (N / count) for count in counts
    ]
    far = np.vstack(away)
    return Hats(np.maximum(0.0, 1.0 - far), far < _BEYOND)
