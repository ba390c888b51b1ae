"""The blocks of a structured batch as its bound takes them: by the rows that they share, and how they treat regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpsql.common.arrays import Floats, Matrix
from dpsql.linalg.blocks import RowBlock, RowFactor
from dpsql.linalg.forms import MATRIX_CAP
from dpsql.workloads.compile.level_integers import nulls_of
from dpsql.workloads.compile.structured import Structured

MOST_ORDER = 2_500
"""The most rows of one part of K."""


class LostError(Exception):
    """The classes do not carry a factor, or a part is too large."""


def by_span(blocks: Sequence[RowBlock]) -> list[list[RowBlock]]:
    """The blocks that share their rows."""
    found: dict[tuple[int, int], list[RowBlock]] = {}
    for block in blocks:
        found.setdefault((block.start, block.stop), []).append(block)
    return list(found.values())


def unlike(mine: Sequence[RowBlock]) -> set[int]:
    """Axes whose regions stay apart: of factors over several, or of factors that meet one over other axes."""
    out = {axis for block in mine for factor in block.factors if len(factor.axes) > 1 for axis in factor.axes}
    for one, other in combinations(mine, 2):
        axes = {factor.keys: factor.axes for factor in one.factors if factor.keys}
        for factor in other.factors:
            if factor.keys and axes[factor.keys] != factor.axes:
                out |= {*axes[factor.keys], *factor.axes}
    return out


def with_common_factors(mine: Sequence[RowBlock], sizes: Sequence[int]) -> list[RowBlock]:
    """The same blocks with one division of the keys among factors: the finest that all of them have."""
    sets = [frozenset(factor.keys) for block in mine for factor in block.factors if factor.keys]
    joined: list[frozenset[int]] = []
    for keys in sets:
        near = [other for other in joined if other & keys]
        joined = [other for other in joined if not other & keys] + [keys.union(*near)]
    if all(keys in joined for keys in sets):
        return list(mine)
    out = []
    for block in mine:
        factors = [factor for factor in block.factors if not factor.keys]
        for keys in joined:
            factors.append(_product([f for f in block.factors if f.keys and set(f.keys) <= keys], block, sizes))
        out.append(replace(block, factors=tuple(factors)))
    return out


def _product(factors: Sequence[RowFactor], block: RowBlock, sizes: Sequence[int]) -> RowFactor:
    """The Kronecker product of factors as one."""
    keys = tuple(sorted(key for factor in factors for key in factor.keys))
    axes = tuple(sorted(axis for factor in factors for axis in factor.axes))
    if len(factors) == 1 and factors[0].keys == keys:
        return factors[0]
    rows, columns = [block.key_sizes[key] for key in keys], [sizes[axis] for axis in axes]
    if prod(columns) > MOST_ORDER or prod(rows) * prod(columns) > MATRIX_CAP // 8:
        raise LostError
    held = np.ones((1,) * (len(keys) + len(axes)))
    for factor in factors:
        places = [keys.index(key) for key in factor.keys] + [len(keys) + axes.index(axis) for axis in factor.axes]
        one = factor.matrix.toarray().reshape([(rows + columns)[place] for place in places])
        shape = [1] * held.ndim
        for place in places:
            shape[place] = (rows + columns)[place]
        held = held * one.transpose(np.argsort(places)).reshape(shape)
    return RowFactor(axes, keys, sparse.csr_array(held.reshape(prod(rows), prod(columns))))


def dead_regions(batch: Structured, table: int) -> Mapping[tuple[int, int], int]:
    """The NULL region of each measure's own column, by (component, axis): a row there adds 0 to its sums."""
    return nulls_of(batch.histograms, [batch.layouts[number] for number in batch.owners[table]])


def means_of(blocks: Sequence[RowBlock]) -> Floats:
    """Means m (components,) of signs for ``leaning``, from the coefficients of blocks alone; m_0 = 0.

    At the optimum of counts and sums of the same groups measured apart, X_0 = G_00^1/2 and X_k = G_kk^1/2, the moments
    of the dual are X^-1 G X^-1, so m_k is in proportion to G_0k / (G_00 G_kk)^1/2.
    """
    gram = np.zeros((1 + max(block.component for block in blocks),) * 2)
    for mine in by_span(blocks):
        own = np.zeros(len(gram))
        for block in mine:
            own[block.component] += block.coefficient * block.weight * np.sqrt(block.stop - block.start)
        gram += np.outer(own, own)
    scale = np.sqrt(gram[0, 0] * np.diag(gram))
    m = np.divide(gram[0], scale, out=np.zeros(len(gram)), where=scale > 0)
    m[0] = 0.0
    return np.asarray(m * min(1.0, (1.0 - 1e-9) / max(1.0, float(abs(m).sum()))))


def leaning(blocks: Sequence[RowBlock], m: Floats) -> list[RowBlock]:
    """The blocks under signs v of the s measures with means m, sum |m_l| <= 1, not all 0, in place of fair ones.

    With the chance 2^-s (1 + sum_l m_l v_l) of v, E v = m and E v v^T = 1. So v = m e_0 + L e, where L L^T = 1 - m m^T
    and e_0 = 1, e_1, ..., e_s are uncorrelated and of mean square 1, and

        W_0 + sum_l v_l W_l = (W_0 + sum_l m_l W_l) e_0 + sum_k (sum_l L_lk W_l) e_k:

    blocks of other components over the same rows. It holds in cells where no measure is NULL.
    """
    square = float(m @ m)
    L = np.eye(m.size) - np.outer(m, m) * ((1.0 - np.sqrt(1.0 - square)) / square)
    L[:, 0], L[0, 0] = m, 1.0
    return [
        replace(block, component=k, coefficient=block.coefficient * float(L[block.component, k]))
        for block in blocks
        for k in np.flatnonzero(L[block.component]).tolist()
    ]


def treated(matrix: Matrix) -> NDArray[np.int64]:
    """Labels (d,) of the columns: equal ones for equal columns, and for lone equal entries in rows of their own."""
    columns = sparse.csc_array(matrix)
    columns.sort_indices()
    filled = np.bincount(columns.indices, minlength=matrix.shape[0])
    names: dict[object, int] = {}
    out = np.empty(matrix.shape[1], dtype=np.int64)
    for at, (a, b) in enumerate(zip(columns.indptr[:-1].tolist(), columns.indptr[1:].tolist(), strict=True)):
        if b - a == 1 and filled[columns.indices[a]] == 1 and matrix.shape[0] > 1:
            name: object = float(columns.data[a])
        else:
            name = (columns.indices[a:b].tobytes(), columns.data[a:b].tobytes())
        out[at] = names.setdefault(name, len(names))
    return out
