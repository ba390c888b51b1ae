"""Sensitivity: how far one privacy unit can move B x, in exact integers.

Neighbours: all rows of one unit are added or removed, in every table that shares the unit
(``dpsql.policy.units``); for tables of single rows, one row of one table. ``dpsql.workload.rows`` proves that a
source then gains or loses at most ``limit`` rows that count and keeps the others as they are.

One source. A row moves B x by B c, c in the convex hull of the source's corners (``dpsql.workload.corners``), or
not at all. Let b be the largest ||B c|| over the corners, a convex function's maximum over the hull. k rows
move B x by a sum of k such vectors: at most k b by the triangle inequality, and exactly k b where all k rows are in
the corner that attains b. So the L1 sensitivity is k b, the squared L2 one k^2 b^2, for counts, sums and both. A
distinct source moves by at most k different cells' corners, again at most k b.

Sources that share a unit: the changes add, so the norms do at most: sum_t k_t b_t. Squared L2: where no measurement
(no row of B) reaches two of the sources, the changes are orthogonal and the squares add, sum_t k_t^2 b_t^2; else the
square of the sum, rounded up. Sources that share none: no neighbour moves both, so the largest counts. Two sources
over one table of single rows share that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.linalg.exact import column_norms
from dpsql.workload.compile import Layout, common_multiplicity
from dpsql.workload.corners import corners_of

_BITS = 32


def sensitivity_of(noise: str, mixing: Any, basis: Any, layouts: Sequence[Layout], known: int | None = None) -> int:
    """L1 (``noise`` "laplace") or *squared* L2 sensitivity of B = mixing @ basis (p x v, v x n integers).

    See the module for neighbours and proof. Exact where no two of ``layouts`` share a unit, and for L1 and
    separately measured ones a bound that is attained if the largest columns do not cancel. ``known`` is
    the largest L1 (squared L2) norm over ``Compiled.contributions``, as the strategy has it: with it nothing is
    computed where no two layouts share a unit. Cost else: the norms of all columns of B, once.
    """
    if known is not None and all(len(mates) == 1 for mates in by_unit(layouts)):
        common = common_multiplicity(layouts)
        return known * (common if noise == "laplace" else common**2)
    norms = {id(layout): _norms(mixing, basis, layout) for layout in layouts}
    order = 0 if noise == "laplace" else 1
    largest = 0
    for mates in by_unit(layouts):
        reached = [(layout.multiplicity, norms[id(layout)][order]) for layout in mates]
        if noise == "laplace":
            found = sum(k * b for k, b in reached)
        elif are_apart(mixing, basis, mates):
            found = sum(k * k * b for k, b in reached)
        else:
            found = _squared_sum([k * k * b for k, b in reached])
        largest = max(largest, found)
    return largest


def by_unit(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts whose sources share a unit, together."""
    found: dict[str, list[Layout]] = {}
    for layout in layouts:
        found.setdefault(layout.source.protects, []).append(layout)
    return list(found.values())


def are_apart(mixing: Any, basis: Any, layouts: Sequence[Layout]) -> bool:
    """Whether no row of mixing @ basis reaches the entries of two of the layouts; False where that is not plain.

    Looks at where entries are not zero in either matrix, so that a sum that cancels counts as reached.
    """
    if len(layouts) == 1:
        return True
    held = sparse.csc_array(abs(sparse.csr_array(basis)))
    left = sparse.csr_array(mixing).astype(np.int64)
    left.data = np.not_equal(left.data, 0).astype(np.int64)
    reached = np.zeros(left.shape[0], dtype=np.int64)
    for layout in layouts:
        entries = np.unique(layout.entry[layout.entry >= 0])
        touched = np.asarray(held[:, entries].sum(axis=1)).ravel() != 0
        reached += (left @ touched.astype(np.int64)) > 0
    return bool(reached.max(initial=0) <= 1)


def _norms(mixing: Any, basis: Any, layout: Layout) -> tuple[int, int]:
    corners = corners_of([layout.entry], basis.shape[1])
    if corners.shape[1] == 0:
        return 0, 0
    return column_norms(mixing, sparse.csc_array(basis @ corners))


def _squared_sum(squares: Sequence[int]) -> int:
    """(sum of the square roots)^2, rounded up to a whole number: each root is rounded up in 2^-32 parts."""
    scale = 1 << (2 * _BITS)
    roots = 0
    for square in squares:
        root = isqrt(square * scale)
        roots += root + (root * root < square * scale)
    return -(-roots * roots // scale)
