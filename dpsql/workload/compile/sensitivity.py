"""Sensitivity: how far one privacy unit can move B x, in exact integers.

Neighbours: all rows of one unit are added or removed, in every table that shares the unit
(``dpsql.policy.units``); for tables of single rows, one row of one table. ``dpsql.workload.expr.rows`` proves that a
source then gains or loses at most ``limit`` rows that count and keeps the others as they are.

One source. A row moves B x by B c, c in the convex hull of the source's corners (``dpsql.workload.cells.corners``), or
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

from dpsql.workload.cells.integers import Integers
from dpsql.workload.compile.layout import Layout, common_multiplicity

_BITS = 32


def sensitivity_of(noise: str, integers: Integers, layouts: Sequence[Layout], known: int | None = None) -> int:
    """L1 (``noise`` "laplace") or *squared* L2 sensitivity of B = ``integers``.

    See the module for neighbours and proof. Exact for one matrix where no two of ``layouts`` share a unit, and for L1
    and separately measured ones a bound that is attained if the largest columns do not cancel. ``known`` is
    the largest L1 (squared L2) norm over ``Compiled.contributions``, as the strategy has it: with it nothing is
    computed where no two layouts share a unit. Cost else: the norms of all columns of B, once.
    """
    if known is not None and all(len(mates) == 1 for mates in by_unit(layouts)):
        common = common_multiplicity(layouts)
        return known * (common if noise == "laplace" else common**2)
    order = 0 if noise == "laplace" else 1
    largest = 0
    for mates in by_unit(layouts):
        reached = [(layout.multiplicity, integers.norms(layout.entry)[order]) for layout in mates]
        if noise == "laplace":
            found = sum(k * b for k, b in reached)
        elif integers.are_apart([layout.entry for layout in mates]):
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


def _squared_sum(squares: Sequence[int]) -> int:
    """(sum of the square roots)^2, rounded up to a whole number: each root is rounded up in 2^-32 parts."""
    scale = 1 << (2 * _BITS)
    roots = 0
    for square in squares:
        root = isqrt(square * scale)
        roots += root + (root * root < square * scale)
    return -(-roots * roots // scale)
