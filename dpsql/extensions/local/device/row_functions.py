"""Functions of one record, phi, as sums of products over columns: what the queries of a local release add up.

    phi(v) = sum over terms of the product of the term's factors,

each factor an array over the categories of one column, or of a few. The sums over the whole joint domain that
estimators need (S = sum_v phi(v), S2 = sum_v phi(v)^2) are products of sums of factors, so they cost what the factors
cost and never what the domain has; only `tabulated` lists combinations, of small domains.

    where(domain, {"smoker": ["yes"]})          1 where the condition is true, else 0
    value(domain, "age")                        the column's number, 0 where it is NULL (as SUM has it)
    constant(domain, 1)
    phi + psi, phi - psi, phi * psi, 2 * phi    AND is a product, NOT phi is 1 - phi, OR is phi + psi - phi * psi
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import DataError, InterfaceError
from dpsql.extensions.local.device.domain import OTHER, Domain
from dpsql.privacy.response import Codes

LISTED_CAP = 10**6
"""The most combinations of columns that are ever listed."""

TERMS_CAP = 500
"""The most terms of one function; sums of squares cost the square of it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Factor:
    """A function of the columns ``axes`` (ascending); ``values`` has one dimension for each."""

    axes: tuple[int, ...]
    values: Floats

    def times(self, other: Factor) -> Factor:
        """The product, over the columns of both."""
        axes = tuple(sorted({*self.axes, *other.axes}))
        return Factor(axes, self.over(axes) * other.over(axes))

    def over(self, axes: tuple[int, ...]) -> Floats:
        """The values with dimensions of length 1 for further axes."""
        sizes = dict(zip(self.axes, self.values.shape, strict=True))
        return self.values.reshape([sizes.get(axis, 1) for axis in axes])


Term = tuple[Factor, ...]
"""Factors over disjoint columns; none is the constant 1."""


@dataclass(frozen=True, eq=False)
class RowFunction:
    """phi over ``domain``: real, finite, known to everybody. Immutable; make one as the module shows."""

    domain: Domain
    terms: tuple[Term, ...]

    def __add__(self, other: RowFunction | float) -> RowFunction:
        psi = self._like(other)
        return _made(self.domain, [*self.terms, *psi.terms])

    def __sub__(self, other: RowFunction | float) -> RowFunction:
        return self + self._like(other) * -1.0

    def __mul__(self, other: RowFunction | float) -> RowFunction:
        """phi * psi, also AND of conditions."""
        psi = self._like(other)
        if len(self.terms) * len(psi.terms) > TERMS_CAP:
            raise DataError(_too_many(len(self.terms) * len(psi.terms)))
        return _made(self.domain, [_product(self.domain, s, t) for s in self.terms for t in psi.terms])

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: float) -> RowFunction:
        """c - phi; 1 - phi is NOT of a condition."""
        return self._like(other) - self

    @property
    def total(self) -> float:
        """S = sum of phi over all combinations, in closed form."""
        return math.fsum(_sum(self.domain, term) for term in self.terms)

    @property
    def mean(self) -> float:
        """The mean over all combinations, S / k."""
        return self.total / self.domain.size

    def inner(self, psi: RowFunction) -> float:
        """sum over v of phi(v) psi(v); phi.inner(phi) is S2. Terms times terms, in closed form."""
        self._like(psi)
        if len(self.terms) * len(psi.terms) > TERMS_CAP**2:
            raise DataError(_too_many(len(self.terms)))
        return math.fsum(_sum(self.domain, _product(self.domain, s, t)) for s in self.terms for t in psi.terms)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of phi: its least and largest value where it is one product or names at most LISTED_CAP combinations.

        Elsewhere the bounds of its terms, added up.
        """
        listed = self._listed()
        if listed is not None:
            return float(listed.min()), float(listed.max())
        ends = [_term_range(term) for term in self.terms]
        return math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)

    @property
    def is_indicator(self) -> bool:
        """Whether phi is known to be 0 or 1 everywhere."""
        if len(self.terms) == 1 and all(np.isin(factor.values, (0.0, 1.0)).all() for factor in self.terms[0]):
            return True
        listed = self._listed()
        return listed is not None and bool(np.isin(listed, (0.0, 1.0)).all())

    def at(self, places: tuple[Codes, ...]) -> Floats:
        """phi of n records, given by the categories of all columns, each (n,)."""
        total = np.zeros(places[0].shape)
        for term in self.terms:
            product: Floats | float = 1.0
            for factor in term:
                product = product * factor.values[tuple(places[axis] for axis in factor.axes)]
            total += product
        return total

    def _listed(self) -> Floats | None:
        """phi over the combinations of the columns that it names, None where they are too many."""
        axes = tuple(sorted({axis for term in self.terms for factor in term for axis in factor.axes}))
        shape = [self.domain.shape[axis] for axis in axes]
        if math.prod(shape) > LISTED_CAP:
            return None
        total = np.zeros(shape)
        for term in self.terms:
            product: Floats | float = 1.0
            for factor in term:
                product = product * factor.over(axes)
            total += product
        return total

    def _like(self, other: RowFunction | float) -> RowFunction:
        if not isinstance(other, RowFunction):
            return constant(self.domain, other)
        if other.domain != self.domain:
            raise InterfaceError("two functions of different domains cannot be combined; make both of one domain")
        return other


def constant(domain: Domain, number: float) -> RowFunction:
    """phi = ``number`` for every record."""
    return RowFunction(domain, ((Factor((), np.array(_finite(number))),),))


def where(domain: Domain, conditions: Mapping[str, Collection[object] | Callable[[Any], bool] | object]) -> RowFunction:
    """1 where every named column satisfies its condition, else 0.

    A condition is one category, a collection of them (None is NULL, OTHER is OTHER), or a function of a declared
    value; like SQL's comparisons such a function is not true of NULL, nor of OTHER. Raises PolicyError for a
    column and DataError for a category that was not released.
    """
    term: list[Factor] = []
    for name, condition in conditions.items():
        axis = domain.axis(name)
        column = domain.columns[axis]
        if callable(condition):
            chosen = [v is not None and v is not OTHER and bool(condition(v)) for v in column.all]
        else:
            several = isinstance(condition, Collection) and not isinstance(condition, str)
            wanted = list(condition) if several and isinstance(condition, Collection) else [condition]
            places = column.public_places(wanted)
            if wanted and int(places.min()) < 0:
                shown = repr(wanted[int(np.argmin(places))])
                raise DataError(f"{shown[:40]} is no category of column {column.name!r}; name declared values")
            chosen = np.isin(np.arange(len(column)), places).tolist()
        term.append(Factor((axis,), np.array(chosen, dtype=np.float64)))
    if len({factor.axes for factor in term}) < len(term):
        raise InterfaceError("a column has two conditions; combine them into one, or multiply two functions")
    return _made(domain, [tuple(term)])


def value(domain: Domain, name: str, *, other: float | None = None) -> RowFunction:
    """The number in a column: 0 where it is NULL, ``other`` where it is OTHER.

    Divide by where(domain, {name: lambda v: True}) (``per`` of estimates) for an AVG over what is not NULL. Raises
    DataError for a column of other things than numbers, and where OTHER is declared without saying what it counts.
    """
    axis = domain.axis(name)
    column = domain.columns[axis]
    if column.other and other is None:
        raise DataError(f"column {column.name!r} has OTHER, whose number nobody knows; say what it counts: other=0")
    numbers = []
    for category in column.all:
        if category is None:
            numbers.append(0.0)
        elif category is OTHER:
            numbers.append(_finite(other))
        else:
            numbers.append(_finite(category, column.name))
    return RowFunction(domain, ((Factor((axis,), np.array(numbers)),),))


def tabulated(domain: Domain, function: Callable[[dict[str, Any]], float]) -> RowFunction:
    """phi from a function of a record, asked once for each combination. Raises DataError past LISTED_CAP of them."""
    if domain.size > LISTED_CAP:
        raise DataError(
            f"a function of records would be asked {domain.size:,} times, more than {LISTED_CAP:,}; write it as "
            "products of conditions and values of columns"
        )
    records = domain.decode(np.arange(domain.size))
    listed = [
        _finite(function(dict(zip(domain.names, record, strict=True))))
        for record in zip(*records.values(), strict=True)
    ]
    return RowFunction(domain, ((Factor(tuple(range(len(domain.columns))), np.array(listed).reshape(domain.shape)),),))


def _finite(number: object, column: str = "") -> float:
    if isinstance(number, int | float | Decimal | np.number | np.bool_) and math.isfinite(number):
        return float(number)
    if column:
        raise DataError(f"column {column!r} holds values that are no numbers; add up a column of numbers")
    raise DataError("a function of a record must give finite numbers; look at what it returns")


def _made(domain: Domain, terms: list[Term]) -> RowFunction:
    """The sum of ``terms``, those over one column and the constants added up into one term for each column."""
    single: dict[int, Floats] = {}
    level = 0.0
    rest: list[Term] = []
    for term in terms:
        named = [factor for factor in term if factor.axes]
        scale = math.prod(float(factor.values) for factor in term if not factor.axes)
        if not named:
            level += scale
        elif len(named) == 1 and len(named[0].axes) == 1:
            axis = named[0].axes[0]
            single[axis] = single.get(axis, 0.0) + scale * named[0].values
        else:
            rest.append((Factor(named[0].axes, scale * named[0].values), *named[1:]))
    if single:
        # A constant beside a column's own numbers: added to them, so that centring loses no digits.
        first = next(iter(single))
        single[first] = single[first] + level
    elif level or not rest:
        rest.append((Factor((), np.array(level)),))
    out: list[Term] = [(Factor((axis,), values),) for axis, values in single.items()]
    if len(out) + len(rest) > TERMS_CAP:
        raise DataError(_too_many(len(out) + len(rest)))
    return RowFunction(domain, (*out, *rest))


def _too_many(terms: int) -> str:
    return f"a function of records has {terms} terms, more than {TERMS_CAP}; ask for its parts one by one"


def _product(domain: Domain, left: Term, right: Term) -> Term:
    """The product of two terms: factors that share a column are multiplied into one."""
    out = list(left)
    for factor in right:
        touched = [f for f in out if set(f.axes) & set(factor.axes)]
        out = [f for f in out if not set(f.axes) & set(factor.axes)]
        axes = {axis for f in (factor, *touched) for axis in f.axes}
        size = math.prod(domain.shape[axis] for axis in axes)
        if size > LISTED_CAP:
            raise DataError(f"a product would list {size:,} combinations, more than {LISTED_CAP:,}; use fewer columns")
        for f in touched:
            factor = factor.times(f)
        out.append(factor)
    return tuple(out)


def _sum(domain: Domain, term: Term) -> float:
    """Sum of a term over all combinations: sums of its factors, times the sizes of the columns it does not name."""
    named = {axis for factor in term for axis in factor.axes}
    free = math.prod(size for axis, size in enumerate(domain.shape) if axis not in named)
    return free * math.prod(math.fsum(factor.values.ravel().tolist()) for factor in term)


def _term_range(term: Term) -> tuple[float, float]:
    low = high = 1.0
    for factor in term:
        ends = [a * b for a in (low, high) for b in (float(factor.values.min()), float(factor.values.max()))]
        low, high = min(ends), max(ends)
    return low, high
