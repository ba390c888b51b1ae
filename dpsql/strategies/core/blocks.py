"""Measurements in blocks: pure noise whose probability falls with the largest entry of each block.

The strategy B falls into blocks of rows B_1, B_2, ... and is measured with noise of probability proportional to
exp(-sum_k max_i |z_ki| / b) (``dpsql.privacy.noise``). Its sensitivity is the largest sum_k max_i |(B_k c)_i| over what
a unit can change, and one coordinate of a block of m has the variance (m + 1)(m + 2) / 6 times that of Laplace noise of
the same scale; coordinates are uncorrelated. So the best linear unbiased answers are least squares with the rows of a
block divided by the root of that factor. Blocks of one row are Laplace measurements: a Laplace strategy is the list of
blocks that are all single.

A block for 0/1 patterns with at most l ones (``dpsql.common.pattern_block``) has noise of the gauge of these patterns;
its coordinates are correlated, and least squares are over the rows times the inverse root of their covariance matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Array, Csr, Floats, Matrix
from dpsql.common.pattern_block import PatternBlock
from dpsql.linalg.forms import is_sparse

NORM_BLOCKS = "norm-blocks"
_WORTH = 1.005
"""By so much a strategy in blocks must be better than single measurements, which more is known of."""


def standing(method: str, error: float) -> float:
    """What a method of pure noise is ranked by: its error, and in blocks half a per cent more."""
    return error * _WORTH if method == NORM_BLOCKS else error


def factor(size: int) -> float:
    """The variance of a coordinate of a block over that of Laplace noise of the same scale: (m + 1)(m + 2) / 6."""
    from dpsql.reconstruct.block_sums import variance

    return variance(size) / 2.0


def deviations(blocks: Sequence[int]) -> Floats:
    """Of the coordinates of all blocks (p,), in those of Laplace noise of the same scale."""
    return np.repeat([factor(size) ** 0.5 for size in blocks], blocks)


def whitening(blocks: Sequence[int]) -> Csr:
    """The inverse root (p x p) of the covariance matrix of the noise, in that of Laplace noise of the same scale."""
    from dpsql.reconstruct.block_sums import covariance_root

    return covariance_root(blocks, deviations(blocks) ** 2, inverse=True)


def whitened(root: Array, blocks: Sequence[int]) -> Floats:
    """Rows over the deviations of their noise, times ``whitening`` where it is correlated."""
    if any(isinstance(block, PatternBlock) for block in blocks):
        return np.asarray(whitening(blocks) @ root)
    return np.asarray(root / deviations(blocks)[:, None])


def evened(mixing: Matrix, blocks: Sequence[int]) -> Matrix:
    """``whitened`` for dense or sparse rows; unchanged without blocks."""
    if not blocks:
        return mixing
    if is_sparse(mixing):
        return sparse.csr_array(whitening(blocks) @ mixing)
    return whitened(mixing, blocks)
