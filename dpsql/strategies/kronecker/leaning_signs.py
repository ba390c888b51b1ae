"""Signs of measures that lean: a bound of blocks in which the corners of one row's box are not all as likely.

``structured_bound`` takes the corners v in {-1, 1}^s of what a row adds to s sums, each with some chance. Fair signs
keep counts and sums apart. Those of mean m put a multiple of the sums beside the counts. With any signs of

    E v = m,   E v v^T = m m^T + L L^T,

and e_0 = 1, e_1, ..., e_s uncorrelated and of mean square 1, v = m e_0 + L e, so that W_0 + sum_l v_l W_l is

    (W_0 + sum_l m_l W_l) e_0 + sum_k (sum_l L_lk W_l) e_k:

blocks of other components, with the same rows. Two kinds of signs are taken. Independent ones, L = diag(1 - m^2)^1/2,
exist for every m in [-1, 1]^s, also where a measure is 0 in some cells (its NULL region). Those of probability
2^-s (1 + sum_l m_l v_l), which is none below 0 where sum |m_l| <= 1, have E v v^T = 1: L L^T = 1 - m m^T. They leave
nothing between two sums, as is best where no number has both, and are taken where no measure has a NULL region.

Which m. At the optimum of counts and sums of the same groups measured apart, X_0 = G_00^1/2 and X_k = G_kk^1/2, the
dual's moments are X^-1 G X^-1, so m_k = G_0k / (G_00 G_kk)^1/2. The bound is concave in the moments, hence in m of
the second kind; the best multiple of that m is searched for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.strategies.kronecker.shared_rows import by_span


def means_of(blocks: Sequence[RowBlock]) -> dict[int, float]:
    """m of each component but the first, from the coefficients of blocks alone."""
    all_counts = 0.0
    cross: dict[int, float] = {}
    own: dict[int, float] = {}
    for mine in by_span(blocks):
        count = sum(block.coefficient for block in mine if not block.component)
        each = mine[0].weight ** 2 * (mine[0].stop - mine[0].start)
        all_counts += each * count**2
        for block in mine:
            if block.component:
                cross[block.component] = cross.get(block.component, 0.0) + each * count * block.coefficient
                own[block.component] = own.get(block.component, 0.0) + each * block.coefficient**2
    found = {k: cross[k] / np.sqrt(all_counts * own[k]) for k in sorted(own) if all_counts and own[k]}
    return {k: float(m) for k, m in found.items() if m}


def most(means: Mapping[int, float], dead: Mapping[tuple[int, int], int]) -> float:
    """The largest multiple of the means that signs can have."""
    sizes = [abs(m) for m in means.values()]
    return (1.0 - 1e-9) / (max(sizes) if dead else sum(sizes))


def leaning(
    blocks: Sequence[RowBlock], means: Mapping[int, float], dead: Mapping[tuple[int, int], int], sizes: Sequence[int]
) -> list[RowBlock]:
    """The blocks with signs of these means; ``dead`` are NULL regions, by (component, axis), of axes of these sizes."""
    components = sorted({block.component for block in blocks} - {0})
    m = np.array([means.get(k, 0.0) for k in components])
    L = np.diag(np.sqrt(1.0 - m**2)) if dead else _root(m)
    alive = _Alive(dead, sizes)
    out = []
    for block in blocks:
        if not block.component:
            out.append(block)
            continue
        at = components.index(block.component)
        if m[at]:
            factors = alive.of(block)
            out.append(replace(block, component=0, coefficient=block.coefficient * m[at], factors=factors))
        for k in np.flatnonzero(L[at]).tolist():
            out.append(replace(block, component=components[k], coefficient=block.coefficient * L[at, k]))
    return out


def _root(m: Floats) -> Floats:
    """L with L L^T = 1 - m m^T, symmetric; |m| <= 1."""
    square = float(m @ m)
    if not square:
        return np.eye(len(m))
    return np.asarray(np.eye(len(m)) - np.outer(m, m) * ((1.0 - np.sqrt(max(1.0 - square, 0.0))) / square))


class _Alive:
    """The factors of blocks without the NULL regions of their components."""

    def __init__(self, dead: Mapping[tuple[int, int], int], sizes: Sequence[int]) -> None:
        self.dead = dead
        self.sizes = sizes
        self.made: dict[object, RowFactor] = {}

    def of(self, block: RowBlock) -> tuple[RowFactor, ...]:
        out = block.factors
        for (component, axis), region in self.dead.items():
            if component != block.component:
                continue
            if axis not in block.axes:
                out = (*out, self._kept(axis, region))
            else:
                out = tuple(self._without(factor, axis, region) if axis in factor.axes else factor for factor in out)
        return out

    def _kept(self, axis: int, region: int) -> RowFactor:
        if (axis, region) not in self.made:
            one = np.ones((1, self.sizes[axis]))
            one[0, region] = 0.0
            self.made[axis, region] = RowFactor((axis,), (), sparse.csr_array(one))
        return self.made[axis, region]

    def _without(self, factor: RowFactor, axis: int, region: int) -> RowFactor:
        key = (id(factor), axis, region)
        if key not in self.made:
            kept = np.ones([self.sizes[i] for i in factor.axes])
            np.moveaxis(kept, factor.axes.index(axis), 0)[region] = 0.0
            matrix = sparse.csr_array(factor.matrix @ sparse.diags_array(kept.ravel()))
            matrix.eliminate_zeros()
            self.made[key] = RowFactor(factor.axes, factor.keys, matrix)
        return self.made[key]
