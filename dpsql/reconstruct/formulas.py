"""Formulas over the private numbers of one query, such as AVG = SUM / COUNT.

A query's private outputs are linear in the data and jointly estimated; a formula is a small
frozen tree over them. ``derived.evaluate`` works it out for all groups of the query at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias, Union

import numpy as np

from dpsql.arrays import Floats
from dpsql.errors import DataError, InterfaceError

Formula: TypeAlias = Union["Leaf", "Number", "Negative", "Sum", "Product", "Quotient", "Root", "Variance"]
Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Leaf:
    """The query's private output number ``index``, from 0."""

    index: int

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise InterfaceError(f"a leaf takes the number of an output, from 0, not {self.index!r}")


@dataclass(frozen=True)
class Number:
    value: float | Fraction

    def __post_init__(self) -> None:
        try:
            finite = math.isfinite(self.value)
        except OverflowError:
            finite = False
        if not finite:
            raise DataError("a constant of a formula must be finite and fit a double; write a smaller number")


@dataclass(frozen=True)
class Negative:
    of: Formula


@dataclass(frozen=True)
class Sum:
    """The sum of at least one part."""

    parts: tuple[Formula, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InterfaceError("a sum needs at least one part")


@dataclass(frozen=True)
class Product:
    """The product of at least one part."""

    parts: tuple[Formula, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InterfaceError("a product needs at least one part")


@dataclass(frozen=True)
class Quotient:
    """numerator / denominator, known in advance to lie within ``bounds`` where they are given.

    The average of a column lies within the column's bounds, a share within (0, 1). An end may be
    infinite: a ratio of counts lies within (0, inf).
    """

    numerator: Formula
    denominator: Formula
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        check_bounds(self.bounds)


@dataclass(frozen=True)
class Root:
    """The square root of ``of``, with negative estimates taken as 0."""

    of: Formula


@dataclass(frozen=True)
class Variance:
    """The variance of n values from n, sum of (v - c) and sum of (v - c)^2, for any one centre c.

    ``width``: upper minus lower bound of the values, in their units; ``sample``: divide by n - 1 in place
    of n. All three parts must be linear in the outputs.
    """

    count: Formula
    total: Formula
    squares: Formula
    width: float
    sample: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width >= 0):
            raise DataError(f"a variance needs the width of its column's bounds, finite and not negative: {self.width}")


def check_bounds(bounds: Bounds | None) -> None:
    """DataError unless ``bounds`` is None or (low, high) in order; an end may be infinite on its own side."""
    if bounds is None:
        return
    low, high = bounds
    if not (low <= high and low < math.inf and high > -math.inf):
        raise DataError(f"bounds must be ordered, with infinite ends outward only, not {low!r} to {high!r}")


def narrowed(formula: Formula) -> tuple[Formula, tuple[int, ...]]:
    """The formula over the outputs that it names alone, and their numbers, ascending."""
    found = tuple(sorted(set(_leaves(formula))))
    return _renumbered(formula, {index: place for place, index in enumerate(found)}), found


def _leaves(formula: Formula) -> Iterator[int]:
    if isinstance(formula, Leaf):
        yield formula.index
    for value in vars(formula).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, _NODES):
                yield from _leaves(part)


def _renumbered(formula: Formula, places: Mapping[int, int]) -> Formula:
    if isinstance(formula, Leaf):
        return Leaf(places[formula.index])

    def moved(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return _renumbered(value, places) if isinstance(value, _NODES) else value

    return replace(formula, **{name: moved(value) for name, value in vars(formula).items()})  # type: ignore[arg-type]


_NODES = (Leaf, Number, Negative, Sum, Product, Quotient, Root, Variance)


def affine(formula: Formula, outputs: int) -> tuple[Floats, float] | None:
    """(weights (outputs,), constant) of a formula that is linear in the outputs, else None.

    Raises InterfaceError for a leaf beyond the outputs.
    """
    match formula:
        case Leaf(index):
            if index >= outputs:
                raise InterfaceError(f"the formula names output {index}; there are {outputs}, numbered from 0")
            weights = np.zeros(outputs)
            weights[index] = 1.0
            return weights, 0.0
        case Number(value):
            return np.zeros(outputs), float(value)
        case Negative(of):
            return _scaled(affine(of, outputs), -1.0)
        case Sum(parts):
            total, constant = np.zeros(outputs), 0.0
            for found in [affine(part, outputs) for part in parts]:
                if found is None:
                    return None
                total, constant = total + found[0], constant + found[1]
            return total, constant
        case Product(parts):
            product: tuple[Floats, float] = (np.zeros(outputs), 1.0)
            for found in [affine(part, outputs) for part in parts]:
                if found is None:
                    return None
                if not found[0].any():
                    product = (product[0] * found[1], product[1] * found[1])
                elif not product[0].any():
                    product = (found[0] * product[1], found[1] * product[1])
                else:
                    return None
            return product
        case Quotient(numerator, denominator, None):
            top, bottom = affine(numerator, outputs), affine(denominator, outputs)
            if top is None or bottom is None or bottom[0].any() or bottom[1] == 0:
                return None
            return top[0] / bottom[1], top[1] / bottom[1]
    return None


def _scaled(found: tuple[Floats, float] | None, factor: float) -> tuple[Floats, float] | None:
    return None if found is None else (found[0] * factor, found[1] * factor)
