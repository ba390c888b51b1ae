"""Formulas over the private numbers of one query, such as AVG = SUM / COUNT.

A query's private outputs are linear in the data and jointly estimated; a formula is a small
frozen tree over them. ``derived.evaluate`` works it out for all groups of the query at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from fractions import Fraction
from typing import ClassVar, TypeAlias, Union, cast

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError

Formula: TypeAlias = Union[
    "Leaf", "Number", "Negative", "Sum", "Product", "Quotient", "Default", "Dated", "Monotone", "Statistic"
]  # fmt: skip
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
class Dated:
    """A time: ``of`` days after ``start``, that in days since 1970-01-01; nothing is worked out of it.

    It is released as a TIMESTAMP, as DuckDB has AVG of a DATE; its standard error is in days.
    """

    of: Formula
    start: float

    @property
    def days(self) -> Formula:
        """Days since 1970-01-01."""
        return Sum((self.of, Number(self.start)))


@dataclass(frozen=True)
class Monotone(ABC):
    """An increasing function of one part: the ends of its interval are the function at the ends of the part's."""

    of: Formula
    words: ClassVar[str]

    @abstractmethod
    def at(self, values: Floats) -> Floats:
        """The function."""

    @abstractmethod
    def slope(self, values: Floats, deviations: Floats) -> Floats:
        """Its derivative, or what bounds its deviation better for a part with such ``deviations``."""


class Root(Monotone):
    """The square root of ``of``, with negative estimates taken as 0."""

    words = "sqrt"

    def at(self, values: Floats) -> Floats:
        """The root."""
        return cast("Floats", np.sqrt(np.maximum(values, 0.0)))

    def slope(self, values: Floats, deviations: Floats) -> Floats:
        """At most the root of the deviation per deviation, since |sqrt a - sqrt b| <= sqrt |a - b|."""
        with np.errstate(divide="ignore"):
            steep = 1 / np.sqrt(np.where(deviations > 0, deviations, 1.0))
            return cast("Floats", np.minimum(0.5 / self.at(values), steep))


class Exponential(Monotone):
    """The exponential of ``of``, which has bounds whose exponentials are finite."""

    words = "exp"

    def at(self, values: Floats) -> Floats:
        """The exponential; infinite where no DOUBLE holds it."""
        with np.errstate(over="ignore"):
            return cast("Floats", np.exp(values))

    def slope(self, values: Floats, deviations: Floats) -> Floats:
        """Itself, largest doubles in place of infinity."""
        return np.nan_to_num(self.at(values))


class Statistic(ABC):
    """A number of several parts, each linear in the outputs.

    ``interval`` and ``words`` say for explain how the interval is made, and what it is. ``has_law``: whether it says by
    itself what the noise may have done, as a p-value does, and has no interval.
    """

    interval: ClassVar[str] = "Fieller's interval of the ratio that it is, linearised"
    has_law: ClassVar[bool] = False

    @property
    @abstractmethod
    def words(self) -> str: ...

    @property
    def counted(self) -> Formula | None:
        """The part that counts rows, of which there must be some; None where a NULL comes of the value itself."""
        return None


@dataclass(frozen=True)
class Variance(Statistic):
    """The variance of n values from n, sum of (v - c) and sum of (v - c)^2, for any one centre c.

    ``width``: upper minus lower bound of the values, in their units; ``sample``: divide by n - 1 in place
    of n. ``power``: the variance times n to that power, -1, 0 or 1: that of the mean, itself, or the sum of squares
    about the mean; 0 for samples. All three parts must be linear in the outputs.
    """

    count: Formula
    total: Formula
    squares: Formula
    width: float
    sample: bool = False
    power: int = 0
    interval = "Fieller's interval about the estimated mean"

    @property
    def words(self) -> str:
        """What it is."""
        if self.power:
            return "sum of squares about the mean" if self.power > 0 else "variance of the mean"
        return "sample variance" if self.sample else "variance"

    @property
    def counted(self) -> Formula:
        """n."""
        return self.count

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width >= 0):
            raise DataError(f"a variance needs the width of its column's bounds, finite and not negative: {self.width}")
        if self.power not in ((0,) if self.sample else (-1, 0, 1)):
            raise InterfaceError("a variance is multiplied by n to the power -1, 0 or 1, that of a sample by nothing")


def has_its_law(formula: Formula) -> bool:
    """Whether a number says by itself what the noise may have done, such as a p-value, and has no interval."""
    return isinstance(formula, Statistic) and formula.has_law


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
    def renumbered(value: object) -> object:
        if isinstance(value, Leaf):
            return Leaf(places[value.index])
        if isinstance(value, tuple):
            return tuple(map(renumbered, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{name: renumbered(held) for name, held in vars(value).items()})
        return value

    return cast(Formula, renumbered(formula))


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
        case Dated():
            return range_of(formula.days, low, high)
        case Monotone(of):
            least, most = range_of(of, low, high)
            return formula.at(least), formula.at(most)
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


def _scaled(form: tuple[Floats, float] | None, factor: float) -> tuple[Floats, float] | None:
    return None if form is None else (form[0] * factor, form[1] * factor)
