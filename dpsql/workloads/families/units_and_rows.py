"""How far a unit moves counts of units, and rows that are measured apart from them, by how many different rows it has.

Of the columns of ``Patterns`` a unit has rows in s different ones. Counts of units then move by a union of s columns,
and rows by one of each and all or none of the ``most`` - s others in one of these. Where no measurement reads both,

    ||B c||^2 <= max_s (U_s + R_s),   U_s what no union of s columns exceeds, R_s what no such rows do:

twelve visits in one month are one patient in one month, and patients of twelve months have one visit in each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpsql.common.arrays import Array, Ints
from dpsql.workloads.families.kinds import kinds_of
from dpsql.workloads.families.patterns import Patterns


def reach_apart(patterns: Patterns, units: Array, rows: Array) -> Any:
    """Never below ||B c||^2 where no measurement reads both units and rows.

    ``units`` (N x N), ``rows`` (J x J): the products of what the columns of ``patterns``, which has no classes, that
    count these move, or more; floats, or integers so short that sums over a union fit.
    """
    U, R = reach_of_units(patterns.without_rows(), units), reach_of_rows(rows, patterns.most, nobody=patterns.nobody)
    return max(one + other for one, other in zip(U.tolist(), R.tolist(), strict=False))


def reach_of_rows(K: Array, most: int, *, nobody: bool) -> Array:
    """R_s: of s rows in different columns and of up to ``most`` - s more in one of them, K (J x J) over columns.

    R_0 is of rows of ``nobody``, if there may be any. A row adds at most its own entry and the s - 1 largest others.
    """
    J, diagonal = K.shape[0], np.diag(K)
    found = [most**2 * diagonal.max() * nobody]
    others = _ranked(K, min(most, J))
    for s in range(1, min(most, J) + 1):
        row, rest = diagonal + others[:, s - 1], most - s
        ranked = np.sort(row)[::-1]
        further = 2 * rest * row + rest * rest * diagonal
        first = ranked[: s - 1].sum()
        # The row with the others among the longest s, or beside the longest s - 1.
        beside = np.where(row >= ranked[s - 1], first + ranked[s - 1], first + row)
        found.append(max(ranked[:s].sum(), (beside + further).max()))
    return np.array(found)


def reach_of_units(patterns: Patterns, K: Array) -> Array:
    """U_s: of unions of at most s columns, K (N x N) over these of ``patterns``, which has no rows."""
    S = min(patterns.most, patterns.cells.shape[1])
    if patterns.listable:
        unions = patterns.unions()
        source = np.stack([np.isin(np.arange(K.shape[0]), own) for own in patterns.numbered]).astype(np.int64)
        reached, entries = np.asarray(unions.multiply(K @ unions).sum(axis=0)).ravel(), source @ unions.toarray()
        return _up_to(S, entries.max(axis=0), reached)
    kinds = kinds_of(patterns)
    if kinds is not None and kinds.sizes is not None:
        source = np.stack([kinds.source == one for one in np.unique(kinds.source)]).astype(np.int64)
        return _up_to(S, (source @ kinds.sizes).max(axis=0), kinds.reach(K))
    # Of m entries each adds at most its own and the m - 1 largest others.
    wide = np.append(0, np.cumsum(np.sort((patterns.numbered >= 0).sum(axis=0))[::-1][:S])).clip(max=K.shape[0])
    others, diagonal, many = _ranked(K, int(wide[-1])), np.diag(K), np.arange(1, wide[-1] + 1)
    largest = [np.sort(diagonal + others[:, m - 1])[::-1][:m].sum() for m in many]
    return np.asarray(np.maximum.accumulate([0, *largest])[wide])


def _up_to(S: int, needed: Ints, reached: Array) -> Array:
    """The most of ``reached`` with 0, 1, ..., S rows, of which each has ``needed`` at least: one is in one group of
    each source.
    """
    return np.array([reached[needed <= s].max(initial=0) for s in range(S + 1)])


def _ranked(K: Array, most: int) -> Array:
    """Of each row the sums of the 0, 1, ..., ``most`` - 1 largest entries off the diagonal."""
    N = K.shape[0]
    off = K[~np.eye(N, dtype=bool)].reshape(N, N - 1)
    if 0 < most < N - 1:
        off = np.partition(off, N - 1 - most, axis=1)[:, N - 1 - most :]
    ranked = np.sort(off, axis=1)[:, ::-1].cumsum(axis=1)
    return np.concatenate([K[:, :1] * 0, ranked], axis=1)
