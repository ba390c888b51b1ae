"""Sensitivity: how far one privacy unit can move B x, in exact integers.

Neighbours: all rows of one unit are added or removed, in every table that shares the unit
(``dpsql.policy.units``); for tables of single rows, one row of one table. ``dpsql.workloads.expr.rows`` proves that a
source then gains or loses at most ``limit`` rows that count and keeps the others as they are. So B x moves by B c for a
c whose norm is at most the largest over ``dpsql.workloads.families.contributions``.

Noise in blocks has a norm of its own: the sum over blocks of measurements of the largest change of one. It is
taken over listed contributions, exactly, and of many bounded (``dpsql.workloads.compile.unlisted_pure``).

Where B is a matrix and the contributions are few, or multiples of single corners, that is the largest norm of a column
of B C: exact. Of many contributions it is a bound (``dpsql.workloads.compile.unlisted``), exact where B treats groups
alike. Where B is never written out (``dpsql.workloads.compile.kronecker``), the norms of sources add, and their squares
where no measurement reaches two of them: sum_t k_t b_t with b_t the longest single corner, or less where ``at_most``
keeps the rows of a unit apart (``dpsql.workloads.compile.rows_in_classes``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Matrix
from dpsql.errors import InternalError
from dpsql.linalg.blocks import Residual
from dpsql.linalg.norms import block_norm, column_norms, largest_norm, squared_sum
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.kronecker import KroneckerIntegers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.level_integers import LevelIntegers
from dpsql.workloads.compile.rows_in_classes import ClassBound, Reach, class_bounds, rough_squared
from dpsql.workloads.compile.units import by_unit, contributions_of
from dpsql.workloads.families.contributions import Contributions


def sensitivity_of(noise: str, integers: Integers, layouts: Sequence[Layout], blocks: tuple[int, ...] = ()) -> int:
    """L1 (``noise`` "laplace"; by ``blocks``, if any) or *squared* L2 sensitivity of B = ``integers``; never below it.

    See the module for neighbours, proof, and where it is exact. Cost: the norms of B over all listed contributions, or
    all products of columns of B.
    """
    held = integers.written
    if held is None:
        return _triangle(noise, integers, layouts)
    units = contributions_of(layouts, integers.shape[1])
    return sensitivity_over(noise, *held, units, blocks)


def sensitivity_over(noise: str, mixing: Matrix, basis: Csr, units: Contributions, blocks: tuple[int, ...] = ()) -> int:
    """``sensitivity_of`` a matrix mixing @ basis over ``units``."""
    order = 1 if noise == "laplace" else 2
    blocks = blocks if order == 1 else ()  # Gaussian noise knows none
    if units.listable:
        if not units.units:
            return 0
        columns = sparse.csc_array(basis) @ units.by_column
        found = block_norm(mixing, columns, blocks) if blocks else column_norms(mixing, columns)[order - 1]
        return math.ceil(found * units.common**order)
    return _bounded(order, mixing, basis, units, blocks)


def rough_sensitivity(noise: str, integers: Integers, layouts: Sequence[Layout], blocks: tuple[int, ...] = ()) -> float:
    """The same by another way, in floats: right to a relative 1e-5. What is only bounded is bounded the same way, and
    held against some of what a unit can change.
    """
    order = 1 if noise == "laplace" else 2
    blocks = blocks if order == 1 else ()
    held = integers.written
    if held is None:
        return _rough_triangle(order, integers, layouts)
    mixing, basis = held
    units = contributions_of(layouts, integers.shape[1])
    if units.listable:
        found = largest_norm(mixing, sparse.csc_array(basis) @ units.by_column, order, blocks)
        return found * float(units.common) ** order
    bound = _bounded(order, mixing, basis, units, blocks)
    columns = sparse.csc_array(basis.astype(np.float64)) @ units.by_column.astype(np.float64)
    some = largest_norm(mixing, columns, order, blocks)
    return max(float(bound), some * float(units.common) ** order)


def share_reached(noise: str, integers: Integers, units: Contributions, blocks: tuple[int, ...] = ()) -> float | None:
    """How much of the sensitivity, in L1 or L2, is reached by a change of one unit that is listed; 1 where all are.

    The rest is what a bound may have in excess. None where B is not written out.
    """
    if integers.written is None or units.listable:
        return None if integers.written is None else 1.0
    order = 1 if noise == "laplace" else 2
    mixing, basis = integers.written
    columns = sparse.csc_array(basis.astype(np.float64)) @ units.by_column.astype(np.float64)
    some = largest_norm(mixing, columns, order, blocks if order == 1 else ()) * float(units.common) ** order
    return float(min(1.0, some / max(_bounded(order, mixing, basis, units, blocks), 1)) ** (1 / order))


def _bounded(order: int, mixing: Matrix, basis: Csr, units: Contributions, blocks: tuple[int, ...]) -> int:
    """What no contribution of ``units`` exceeds where they are not listed."""
    from dpsql.workloads.compile.unlisted import bounded_norm

    return max(
        bounded_norm(order, mixing, basis, parts, units.tied.get(kind), units.patterns.get(kind, ()), blocks)
        for kind, parts in enumerate(units.units)
    )


def _triangle(noise: str, integers: Integers, layouts: Sequence[Layout]) -> int:
    """The sum of what the sources of a unit can do, or of its squares where they are measured apart."""
    order = 0 if noise == "laplace" else 1
    if isinstance(integers, LevelIntegers):
        rows = _largest_multiplicity(layouts)
        return (rows, rows * rows)[order] * integers.joint_norms(layouts)[order]
    largest = 0
    for mates in by_unit(layouts):
        if order and integers.share_no_measurement([layout.entry for layout in mates]):
            found = sum(_squared(integers, of_table) for of_table in _by_table(mates))
        else:
            reached = [(layout.multiplicity, integers.norms(layout.entry)[order]) for layout in mates]
            squares = [k * k * b for k, b in reached]
            found = squared_sum(squares) if order else sum(k * b for k, b in reached)
        largest = max(largest, found)
    return largest


def _squared(integers: Integers, of_table: Sequence[Layout]) -> int:
    """How far a unit moves the measurements of one table, squared: its rows in one cell, or apart where they are."""
    found = sum(layout.multiplicity**2 * integers.norms(layout.entry)[1] for layout in of_table)
    for residuals, bound in _class_bounds(integers, of_table):
        reach = Reach.of(residuals, bound)
        if reach is not None:
            found = min(found, reach.squared([residual.multiplier**2 for residual in residuals]))
    return found


def _class_bounds(integers: Integers, of_table: Sequence[Layout]) -> list[tuple[list[Residual], ClassBound]]:
    """The residuals of the layouts of a table, with each bound that keeps the rows of a unit apart."""
    bounds = class_bounds(of_table[0]) if isinstance(integers, KroneckerIntegers) else []
    if not bounds:
        return []
    assert isinstance(integers, KroneckerIntegers)  # noqa: S101 - narrows the type for the checker
    residuals = [residual for layout in of_table for residual in integers.residuals_of(layout.entry)]
    return [(residuals, bound) for bound in bounds]


def _largest_multiplicity(layouts: Sequence[Layout]) -> int:
    """How many rows a unit has in the one table of some layouts, all of them at most in one cell; see ``_triangle``."""
    if len({layout.table for layout in layouts}) > 1 or any(layout.tie is not None for layout in layouts):
        raise InternalError("levels are measured of one table")
    return max(layout.multiplicity for layout in layouts)


def _by_table(layouts: Sequence[Layout]) -> list[list[Layout]]:
    found: dict[str, list[Layout]] = {}
    for layout in layouts:
        found.setdefault(layout.table, []).append(layout)
    return list(found.values())


def _rough_triangle(order: int, integers: Integers, layouts: Sequence[Layout]) -> float:
    found = 0.0
    if isinstance(integers, LevelIntegers):
        return float(_largest_multiplicity(layouts)) ** order * integers.joint_norm(layouts, order)
    for mates in by_unit(layouts):
        norms = [integers.largest_norm(layout.entry, order) for layout in mates]
        reached = [layout.multiplicity * norm ** (1 / order) for layout, norm in zip(mates, norms, strict=True)]
        if order == 2 and integers.share_no_measurement([layout.entry for layout in mates]):
            each = {id(layout): r * r for layout, r in zip(mates, reached, strict=True)}
            tables = _by_table(mates)
            squares = [sum(each[id(layout)] for layout in of_table) for of_table in tables]
            for at, of_table in enumerate(tables):
                apart = (rough_squared(*one) for one in _class_bounds(integers, of_table) if Reach.of(*one) is not None)
                squares[at] = min([squares[at], *apart])
            found = max(found, sum(squares))
        else:
            found = max(found, sum(reached) ** order)
    return found
