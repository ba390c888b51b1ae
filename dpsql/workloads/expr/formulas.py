"""Formulas over the private numbers of one query, such as AVG = SUM / COUNT.

A query's private outputs are linear in the data and jointly estimated; a formula is a small
frozen tree over them. ``derived.evaluate`` works it out for all groups of the query at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from fractions import Fraction
from typing import TypeAlias, Union, cast

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError

Formula: TypeAlias = Union[
    "Leaf", "Number", "Negative", "Sum", "Product", "Quotient", "Default", "Root", "Variance", "Statistic"
]  # fmt: skip
Statistic: TypeAlias = Union["Fit", "Comparison", "Independence", "Gini"]
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
class Default:
    """``of``, and 0 where that is NULL by the statement and the policy alone: COALESCE(of, 0)."""

    of: Formula


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


@dataclass(frozen=True)
class Fit:
    """A number of the least-squares fit of y on an intercept and x_1, ..., x_k, from sums, squares and products.

    With z = (1, x_1 - c_1, ..., x_k - c_k, y - c_y), ``moments`` are the sums of z_i z_j, i <= j, row by row; each must
    be linear in the outputs. ``centres``: c_1, ..., c_k, c_y; ``scales``: how far each lies from its centre at most.
    ``what``: "coefficient" (number ``at``; 0 is the intercept), its "stderr" (noise and sampling together) and
    "p_value"; "r2"; and of one x: "corr", "covar_pop", "covar_samp".
    """

    moments: tuple[Formula, ...]
    centres: tuple[float, ...]
    scales: tuple[float, ...]
    what: str
    at: int = 0

    def __post_init__(self) -> None:
        size = len(self.centres) + 1
        if len(self.moments) != size * (size + 1) // 2 or len(self.scales) != len(self.centres):
            raise InterfaceError(f"a fit of {size - 2} columns needs {size * (size + 1) // 2} moments")


@dataclass(frozen=True)
class Comparison:
    """Welch's test of two means: (n, sum of (v - c), sum of (v - c)^2) of each group. ``what``: "t", "df", "p_value".

    ``width``: upper minus lower bound of the values. All parts must be linear in the outputs.
    """

    groups: tuple[tuple[Formula, Formula, Formula], tuple[Formula, Formula, Formula]]
    width: float
    what: str


@dataclass(frozen=True)
class Independence:
    """The test of independence in a table of ``counts``, row by row. ``what``: "chisq" or "p_value"."""

    counts: tuple[Formula, ...]
    rows: int
    what: str

    @property
    def degrees(self) -> int:
        """Of freedom: (rows - 1) (columns - 1)."""
        return (self.rows - 1) * (len(self.counts) // self.rows - 1)


@dataclass(frozen=True)
class Gini:
    """Gini's coefficient of values from 0: ``prefixes[i]`` counts the rows of at most ``values[i]``, ascending."""

    prefixes: tuple[Formula, ...]
    values: tuple[float, ...]


def has_its_law(formula: Formula) -> bool:
    """Whether a number says by itself what the noise may have done, such as a p-value, and has no interval."""
    if isinstance(formula, Fit):
        return formula.what in ("stderr", "p_value")
    return isinstance(formula, Comparison | Independence)


def check_bounds(bounds: Bounds | None) -> None:
    """DataError unless ``bounds`` is None or (low, high) in order; an end may be infinite on its own side."""
    if bounds is None:
        return
    low, high = bounds
    if not (low <= high and low < math.inf and high > -math.inf):
        raise DataError(f"bounds must be ordered, with infinite ends outward only, not {low!r} to {high!r}")


def narrowed(formula: Formula) -> tuple[Formula, tuple[int, ...]]:
    """The formula over the outputs that it names alone, and their numbers, ascending."""
    found = tuple(sorted(set(leaves(formula))))
    return _renumbered(formula, {index: place for place, index in enumerate(found)}), found


def leaves(formula: object) -> Iterator[int]:
    """The outputs that a formula, or a tuple of them, is worked out of; one that it names twice comes twice."""
    if isinstance(formula, Leaf):
        yield formula.index
    elif isinstance(formula, tuple):
        for part in formula:
            yield from leaves(part)
    elif is_dataclass(formula):
        yield from leaves(tuple(vars(formula).values()))


def _renumbered(formula: Formula, places: Mapping[int, int]) -> Formula:
    def moved(value: object) -> object:
        if isinstance(value, Leaf):
            return Leaf(places[value.index])
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{name: moved(held) for name, held in vars(value).items()})
        return value

    return cast(Formula, moved(formula))


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


def range_of(formula: Formula, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The least and the largest value of the formula in each group (g,), by interval arithmetic.

    ``low`` and ``high`` (g x k): the ends of the outputs, infinite where they are not known, as are those of a part
    that is no sum, product, quotient or root.
    """
    match formula:
        case Leaf(index):
            return low[:, index], high[:, index]
        case Number(value):
            constant = np.full(len(low), float(value))
            return constant, constant
        case Negative(of):
            least, most = range_of(of, low, high)
            return 0.0 - most, 0.0 - least
        case Sum(parts):
            ends = [range_of(part, low, high) for part in parts]
            return np.sum([least for least, _ in ends], axis=0), np.sum([most for _, most in ends], axis=0)
        case Product(parts):
            found = range_of(parts[0], low, high)
            for part in parts[1:]:
                found = products(found, range_of(part, low, high))
            return found
        case Quotient(numerator, denominator, bounds):
            found = quotients(range_of(numerator, low, high), range_of(denominator, low, high))
            lower, upper = bounds or (-np.inf, np.inf)
            return np.maximum(found[0], lower), np.minimum(found[1], upper)
        case Default(of):
            least, most = range_of(of, low, high)
            return np.minimum(least, 0.0), np.maximum(most, 0.0)
        case Root(of):
            least, most = (np.sqrt(np.maximum(ends, 0.0)) for ends in range_of(of, low, high))
            return least, most
    return np.full(len(low), -np.inf), np.full(len(low), np.inf)


def products(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The set of products of two intervals; 0 times an infinite end is 0, the limit from within."""
    with np.errstate(invalid="ignore"):
        corners = np.stack([x * y for x in a for y in b])
    corners[np.isnan(corners)] = 0.0
    return corners.min(axis=0), corners.max(axis=0)


def quotients(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The set of quotients of two intervals, without ends where the second one holds 0."""
    away = (b[0] > 0) | (b[1] < 0)
    low, high = products(a, (1 / np.where(away, b[1], 1.0), 1 / np.where(away, b[0], 1.0)))
    return np.where(away, low, -np.inf), np.where(away, high, np.inf)


def _scaled(found: tuple[Floats, float] | None, factor: float) -> tuple[Floats, float] | None:
    return None if found is None else (found[0] * factor, found[1] * factor)
