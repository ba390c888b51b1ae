"""Sensitivity: how far one privacy unit can move B x, in exact integers.

Neighbours: all rows of one unit are added or removed, in every table that shares the unit
(``dpsql.policy.units``); for tables of single rows, one row of one table. ``dpsql.workload.expr.rows`` proves that a
source then gains or loses at most ``limit`` rows that count and keeps the others as they are. So B x moves by B c for a
c whose norm is at most the largest over ``dpsql.workload.families.contributions``.

Where B is a matrix and the contributions are few, or multiples of single corners, that is the largest norm of a column
of B C: exact. Of many contributions (sums of s_t of the corners of each source t, times k_t),

    ||B c||^2 <= sum_t k_t^2 (the s_t longest ||B b||^2 + s_t (s_t - 1) o_t) + 2 sum_(t<u) k_t k_u s_t s_u o_tu

with o_t the largest product of two different columns of one source and o_tu of two sources, at the worst sizes s: exact
where the columns of a source are alike, such as groups that B treats alike or that no measurement has two of. In L1 the
norms add up. Where B is never written out (``dpsql.workload.compile.kronecker``), the norms of sources add, and their
squares where no measurement reaches two of them: sum_t k_t b_t with b_t the longest single corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from math import isqrt, prod
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.linalg.exact import column_norms, each_norm, gram, largest_norm
from dpsql.workload.cells.integers import Integers
from dpsql.workload.compile.layout import Layout
from dpsql.workload.compile.units import by_unit, contributions_of
from dpsql.workload.families.contributions import Contributions, Part

_BITS = 32
_SIZES = 100_000  # combinations of how many groups a unit has in each source that are tried
_PRODUCTS = 4_000  # columns between which all products are formed


def sensitivity_of(noise: str, integers: Integers, layouts: Sequence[Layout]) -> int:
    """L1 (``noise`` "laplace") or *squared* L2 sensitivity of B = ``integers``; never below the true one.

    See the module for neighbours, proof, and where it is exact. Cost: the norms of B over all listed contributions, or
    all products of columns of B.
    """
    held = integers.written
    if held is None:
        return _triangle(noise, integers, layouts)
    units = contributions_of(layouts, integers.shape[1])
    return sensitivity_over(noise, *held, units)


def sensitivity_over(noise: str, mixing: Any, basis: Any, units: Contributions) -> int:
    """``sensitivity_of`` a matrix mixing @ basis over ``units``."""
    order = 1 if noise == "laplace" else 2
    if units.listable:
        if not units.units:
            return 0
        found = column_norms(mixing, sparse.csc_array(basis @ units.columns))[order - 1]
        return int(found * units.common**order)
    return max(_bounded(order, mixing, basis, parts) for parts in units.units)


def rough_sensitivity(noise: str, integers: Integers, layouts: Sequence[Layout]) -> float:
    """The same by another way, in floats: right to a relative 1e-5, what is only bounded by the same bound."""
    order = 1 if noise == "laplace" else 2
    held = integers.written
    if held is None:
        return _rough_triangle(order, integers, layouts)
    mixing, basis = held
    units = contributions_of(layouts, integers.shape[1])
    if units.listable:
        found = largest_norm(mixing, sparse.csc_array(basis @ units.columns), order)
        return found * float(units.common) ** order
    return float(max(_bounded(order, mixing, basis, parts) for parts in units.units))


def _bounded(order: int, mixing: Any, basis: Any, parts: Sequence[Part]) -> int:
    """The bound of the module for one kind of unit whose contributions are many."""
    held = [sparse.csc_array(basis @ part.corners) for part in parts]
    norms = [sorted(each_norm(mixing, columns, order), reverse=True) for columns in held]
    longest = [
        [part.times**order * sum(mine[:size]) for size in range(part.most + 1)]
        for part, mine in zip(parts, norms, strict=True)
    ]
    if order == 1:
        return sum(mine[-1] for mine in longest)
    if sum(columns.shape[1] for columns in held) > _PRODUCTS or prod(part.most + 1 for part in parts) > _SIZES:
        each = [part.times**2 * part.most**2 * mine[0] for part, mine in zip(parts, norms, strict=True)]
        return squared_sum(each)
    inside, between = _products(mixing, held)
    worst = 0
    for sizes in product(*(range(part.most + 1) for part in parts)):
        total = sum(mine[size] for mine, size in zip(longest, sizes, strict=True))
        total += sum(p.times**2 * s * (s - 1) * o for p, s, o in zip(parts, sizes, inside, strict=True))
        for (t, u), o in between.items():
            total += 2 * parts[t].times * parts[u].times * sizes[t] * sizes[u] * o
        worst = max(worst, total)
    return worst


def _products(mixing: Any, held: Sequence[Any]) -> tuple[list[int], dict[tuple[int, int], int]]:
    """The largest products of two different columns of mixing @ held: within each matrix, and between two."""
    whole = gram(mixing, sparse.hstack(held, format="csc"))
    stops = np.cumsum([columns.shape[1] for columns in held]).tolist()
    spans = [slice(stop - columns.shape[1], stop) for stop, columns in zip(stops, held, strict=True)]
    inside = []
    for span in spans:
        mine = whole[span, span]
        off = mine[~np.eye(mine.shape[0], dtype=bool)]
        inside.append(int(off.max()) if off.size else 0)
    between = {(t, u): int(whole[spans[t], spans[u]].max()) for t, u in combinations(range(len(held)), 2)}
    return inside, between


def _triangle(noise: str, integers: Integers, layouts: Sequence[Layout]) -> int:
    """The sum of what the sources of a unit can do, or of its squares where they are measured apart."""
    order = 0 if noise == "laplace" else 1
    largest = 0
    for mates in by_unit(layouts):
        reached = [(layout.multiplicity, integers.norms(layout.entry)[order]) for layout in mates]
        if noise == "laplace":
            found = sum(k * b for k, b in reached)
        elif integers.are_apart([layout.entry for layout in mates]):
            found = sum(k * k * b for k, b in reached)
        else:
            found = squared_sum([k * k * b for k, b in reached])
        largest = max(largest, found)
    return largest


def _rough_triangle(order: int, integers: Integers, layouts: Sequence[Layout]) -> float:
    found = 0.0
    for mates in by_unit(layouts):
        norms = [integers.largest_norm(layout.entry, order) for layout in mates]
        reached = [layout.multiplicity * norm ** (1 / order) for layout, norm in zip(mates, norms, strict=True)]
        apart = order == 2 and integers.are_apart([layout.entry for layout in mates])
        found = max(found, sum(r * r for r in reached) if apart else sum(reached) ** order)
    return found


def squared_sum(squares: Sequence[int]) -> int:
    """(sum of the square roots)^2, rounded up to a whole number: each root is rounded up in 2^-32 parts."""
    scale = 1 << (2 * _BITS)
    roots = 0
    for square in squares:
        root = isqrt(square * scale)
        roots += root + (root * root < square * scale)
    return -(-roots * roots // scale)
